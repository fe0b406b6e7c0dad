"""What a request for text holds, whichever wiring writes it: the prompt, and where to stop."""

from dataclasses import dataclass

from service.errors import InvalidInput
from service.hugging_face import TextGenerationParameters
from service.registry import LoadedModel
from service.tasks.context import Context


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to go on from, with how many tokens a model reads in it."""

    text: str
    num_tokens: int


def read_prompt(context: Context, model: LoadedModel, text: str, truncate: int | None) -> Prompt:
    """The prompt, or its last ``truncate`` tokens.

    Raises:
        InvalidInput: if it is longer than texts may be.
        MalformedRequest: if it holds a lone surrogate.
    """
    context.texts(text)
    vocabulary = model.card.vocabulary
    symbols = vocabulary.split(vocabulary.normalized(text))
    if truncate is None or len(symbols) <= truncate:
        return Prompt(text, len(symbols))
    # What is normalised already stays as it is when it is normalised again.
    return Prompt(vocabulary.separator.join(symbols[-truncate:]), truncate)


def stops_of(parameters: TextGenerationParameters) -> list[str]:
    """The strings that end the text.

    Raises:
        InvalidInput: if both names of the field are used.
    """
    if parameters.stop is not None and parameters.stop_sequences is not None:
        raise InvalidInput(
            "expected null where stop is given, got a list", "parameters.stop_sequences"
        )
    return parameters.stop or parameters.stop_sequences or []
