"""Sentence similarity: cosines between embeddings, one vector for each text."""

import numpy as np

from service.batches import Ticket
from service.hugging_face import SentenceSimilarityInput
from service.schemas import EmbeddingsRequest
from service.tasks.context import Context
from service.tasks.embeddings import embeddings
from service.tasks.hugging_face.answer import Answer, naming
from service.tasks.hugging_face.offers import SENTENCE_SIMILARITY, find


async def compare(
    context: Context, name: str, request: SentenceSimilarityInput, ticket: Ticket
) -> Answer:
    """The cosine between the embedding of one text and that of each of the others.

    Raises:
        InvalidInput: if the model gives no embeddings, or a text is not what it reads.
    """
    model = find(context, name, SENTENCE_SIMILARITY)
    inputs = request.inputs
    count = len(inputs.sentences)
    context.require_count(count + 1, "inputs.sentences")
    native = EmbeddingsRequest(
        model=model.card.name, input=[*inputs.sentences, inputs.source_sentence]
    )
    with naming({f"input[{count}]": "inputs.source_sentence", "input": "inputs.sentences"}):
        answer = await embeddings(context, native, ticket)
    vectors = np.array([item.embedding for item in answer.data], dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    # A vector of zeros has no direction, and is like none.
    units = vectors / np.where(lengths > 0, lengths, 1)[:, None]
    return Answer(units[:count] @ units[count], answer.usage)
