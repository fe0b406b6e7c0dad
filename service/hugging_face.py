"""Requests of the Hugging Face protocol as they come over the wire, and nothing else.

The names are those that its clients send. A field for what is not served takes the value that
leaves it off, and any other is refused: nothing that was asked for is ignored.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.schemas import MAX_BEAMS, Items, Strict

MAX_STOPS = 4
MAX_BEST_OF = 16
MAX_TOP_TOKENS = 5


def _off(why: str, *, neutral: Any = None) -> tuple[Any, ...]:
    """What makes a field one that can only be left off, by null or ``neutral``."""
    named = "null" if neutral is None else f"null or {json.dumps(neutral)}"
    reason = {"expected": f"{named}, as {why}"}

    def require(value: Any) -> Any:
        # 0 equals False, but is no answer to a yes or no.
        is_neutral = value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        if value is not None and not is_neutral:
            raise PydanticCustomError("literal_error", "expected {expected}", reason)
        return None

    return (
        BeforeValidator(require),
        WithJsonSchema({"enum": [None] if neutral is None else [None, neutral]}),
        Field(description=f"Only {named}, as {why}."),
    )


Stop = Annotated[str, Field(min_length=1)]
Stops = Annotated[Items[Stop], Field(max_length=MAX_STOPS)]


class FillMaskParameters(Strict):
    """What masks are filled with."""

    top_k: int | None = Field(
        default=None,
        ge=1,
        description="Candidates per mask: by default 5, or as many as there are targets.",
    )
    targets: str | Annotated[Items[str], Field(min_length=1)] | None = Field(
        default=None,
        description="Only these symbols as candidates; scores are not renormalised.",
    )


class FillMaskInput(Strict):
    """Texts with masks to fill."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "the time trave<mask>ler", "parameters": {"top_k": 3}},
                {"inputs": ["t<mask>me", "spac<mask>"], "parameters": {"targets": ["e", "i"]}},
            ]
        }
    )

    inputs: str | Items[str] = Field(
        description="One text or a list; every text holds at least one mask."
    )
    parameters: FillMaskParameters | None = Field(
        default=None, description="What masks are filled with."
    )


class FeatureExtractionInput(Strict):
    """Texts to be read into vectors; what else is asked lies beside them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "the time"},
                {"inputs": ["time", "mach"], "normalize": True, "truncate": True},
            ]
        }
    )

    inputs: str | Items[str] = Field(
        description="One text or a list; a mask token in it is read as a mask."
    )
    normalize: bool | None = Field(
        default=None, description="Whether every vector is scaled to length 1; by default not."
    )
    truncate: bool | None = Field(
        default=None,
        description="Whether a text that is longer than the model reads is cut; by default it is "
        "refused.",
    )
    truncation_direction: Literal["left", "right"] | None = Field(
        default=None,
        description="The end that is cut off, right by default; only where truncate is true.",
    )
    dimensions: int | None = Field(
        default=None, ge=1, description="The model's width; others are not served."
    )
    encoding_format: Annotated[
        Any, *_off("answers of this call are nested lists of numbers", neutral="float")
    ] = None
    prompt_name: Annotated[Any, *_off("no model has prompts")] = None


class SentenceSimilaritySentences(Strict):
    """A text, and those that it is compared with."""

    source_sentence: str = Field(description="The text that is compared with every other.")
    sentences: Annotated[Items[str], Field(min_length=1)] = Field(description="The others.")


class SentenceSimilarityInput(Strict):
    """Texts to be compared."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": {"source_sentence": "time", "sentences": ["times", "space"]}}]
        }
    )

    inputs: SentenceSimilaritySentences = Field(description="The texts.")
    parameters: Annotated[Any, *_off("there are none", neutral={})] = None


class TextGenerationParameters(Strict):
    """How a text is written."""

    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens to write: by default 100 for a decoder, and what the task needs "
        "for an encoder-decoder.",
    )
    do_sample: bool | None = Field(
        default=None,
        description="Whether tokens are drawn rather than the likeliest taken; by default where "
        "temperature or top_p is given. Decoders only.",
    )
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="1 by default; 0 takes the likeliest. Decoders only."
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Keeps the likeliest tokens of this mass. Decoders only.",
    )
    seed: int | None = Field(
        default=None, ge=0, lt=2**63, description="The same seed draws the same text."
    )
    best_of: int | None = Field(
        default=None,
        ge=1,
        le=MAX_BEST_OF,
        description="Texts to draw; the likeliest is answered. Decoders only, not as a stream.",
    )
    stop: Stops | None = Field(
        default=None, description="Up to 4 strings that end the text; they are not part of it."
    )
    stop_sequences: Stops | None = Field(default=None, description="An older name of stop.")
    num_beams: int | None = Field(
        default=None,
        ge=1,
        le=MAX_BEAMS,
        description="Targets searched at a time. Encoder-decoders only, not as a stream.",
    )
    return_full_text: bool | None = Field(
        default=None,
        description="Whether the prompt, as the model read it, comes first. Decoders only.",
    )
    truncate: int | None = Field(
        default=None,
        ge=1,
        description="Reads only so many tokens, the last ones; by default none is left out.",
    )
    details: bool | None = Field(
        default=None, description="Whether to tell of every token and why the text ends."
    )
    top_n_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_TOKENS,
        description="Tells so many of the likeliest tokens at every step. Decoders only.",
    )
    decoder_input_details: Annotated[
        Any, *_off("tokens that are read have no log-probabilities here", neutral=False)
    ] = None
    top_k: Annotated[Any, *_off("only top_p narrows what is drawn")] = None
    typical_p: Annotated[Any, *_off("only top_p narrows what is drawn", neutral=1)] = None
    repetition_penalty: Annotated[Any, *_off("probabilities are the model's own", neutral=1)] = None
    frequency_penalty: Annotated[Any, *_off("probabilities are the model's own", neutral=0)] = None
    grammar: Annotated[Any, *_off("no grammar is served")] = None
    adapter_id: Annotated[Any, *_off("no model has adapters")] = None
    watermark: Annotated[Any, *_off("no text is marked", neutral=False)] = None


class TextGenerationInput(Strict):
    """A text to go on from, or to decode."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "the time ", "parameters": {"max_new_tokens": 8, "details": True}},
                {"inputs": "abcdefghijkl", "parameters": {"num_beams": 4}},
                {"inputs": "abcdefghijkl", "stream": True},
            ]
        }
    )

    inputs: str = Field(description="One text.")
    parameters: TextGenerationParameters | None = Field(
        default=None, description="How the text is written."
    )
    stream: bool | None = Field(
        default=None, description="Server-sent events: every token as it is written."
    )


class GenerateParameters(Strict):
    """How a target is decoded."""

    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens to write, by default as many as the task needs.",
    )
    num_beams: int | None = Field(
        default=None,
        ge=1,
        le=MAX_BEAMS,
        description="Targets searched at a time; 1 takes the likeliest token every time.",
    )


class TranslationParameters(Strict):
    """How a text is translated, or summed up."""

    generate_parameters: GenerateParameters | None = Field(
        default=None, description="How the target is decoded."
    )
    src_lang: Annotated[Any, *_off("a model has one pair of languages")] = None
    tgt_lang: Annotated[Any, *_off("a model has one pair of languages")] = None
    clean_up_tokenization_spaces: Annotated[
        Any, *_off("texts are given as they are decoded", neutral=False)
    ] = None
    truncation: Annotated[Any, *_off("no text is cut", neutral="do_not_truncate")] = None


class TranslationInput(Strict):
    """A text to be translated, or summed up."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "abcdefghijkl"},
                {"inputs": "abcdefghijkl", "parameters": {"generate_parameters": {"num_beams": 4}}},
            ]
        }
    )

    inputs: str = Field(description="One text.")
    parameters: TranslationParameters | None = Field(
        default=None, description="How it is translated."
    )


FIELD_NAMES = frozenset(
    name
    for schema in (
        FillMaskInput,
        FillMaskParameters,
        FeatureExtractionInput,
        SentenceSimilarityInput,
        SentenceSimilaritySentences,
        TextGenerationInput,
        TextGenerationParameters,
        TranslationInput,
        TranslationParameters,
        GenerateParameters,
    )
    for name in schema.model_fields
)
