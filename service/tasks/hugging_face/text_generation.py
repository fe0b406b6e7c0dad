"""Text generation: a prompt continued by a decoder, or what an encoder-decoder makes of it."""

from collections.abc import AsyncGenerator

from service.batches import Ticket
from service.hugging_face import TextGenerationInput
from service.tasks import decode
from service.tasks.context import Context
from service.tasks.hugging_face import continuing, decoding
from service.tasks.hugging_face.answer import Answer
from service.tasks.hugging_face.offers import TEXT_GENERATION, find
from service.tasks.hugging_face.written import StreamEvent


async def generate(
    context: Context, name: str, request: TextGenerationInput, ticket: Ticket
) -> Answer:
    """The text that a model writes.

    Raises:
        InvalidInput: if it writes none, the prompt is not what it reads, or a value cannot be met.
    """
    model = find(context, name, TEXT_GENERATION)
    writer = decoding if model.card.wiring == decode.WIRING else continuing
    return await writer.write(context, model, request, ticket)


def generate_stream(
    context: Context, name: str, request: TextGenerationInput, ticket: Ticket
) -> AsyncGenerator[StreamEvent, None]:
    """The text that a model writes, token by token.

    Raises:
        InvalidInput: as ``generate`` does.
    """
    model = find(context, name, TEXT_GENERATION)
    writer = decoding if model.card.wiring == decode.WIRING else continuing
    return writer.write_stream(context, model, request, ticket)
