"""Requests as they come over the wire, and nothing else.

Unknown fields, NaN, infinities and numbers in strings are refused.
"""

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from service.encoding import Encoding

UNKNOWN_FIELD = "unknown_field"
# How much of the name of an unknown field is told back.
MAX_NAME = 40
# Items of a list that may each be of several kinds, which is slow to tell.
MAX_ITEMS = 2**16
# The widest beam; whatever its width, a beam costs as much as this one.
MAX_BEAMS = 8

Item = TypeVar("Item")
Index = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
# One wrong item ends the check of a list: a body can hold millions, and each would be described.
Items = Annotated[list[Item], Field(fail_fast=True)]
# Texts, or the token ids of texts.
TextsOrIds = str | Annotated[Items[str | int | Items[int]], Field(max_length=MAX_ITEMS)]


def _require_boolean(value: Any) -> Any:
    """Keeps 0, which equals False, from passing for it."""
    if not isinstance(value, bool):
        raise PydanticCustomError("literal_error", "expected {expected}", {"expected": "False"})
    return value


def _off(off: Any) -> BeforeValidator:
    """Takes ``off`` alone, the value with which a request says that it does not want a feature."""
    expected = f"{json.dumps(off)} or null"

    def require(value: Any) -> Any:
        if isinstance(value, bool) or value != off:
            raise PydanticCustomError(
                "literal_error", "expected {expected}", {"expected": expected}
            )
        return value

    return BeforeValidator(require)


# What a schema has and this service does not do.
Unserved = Annotated[Literal[False], BeforeValidator(_require_boolean)]


class Strict(BaseModel):
    """An object without unknown fields; its values are not converted from other types."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _require_known_fields(cls, data: Any) -> Any:
        """Stops at the first unknown field, where pydantic alone would describe them all."""
        names = data if isinstance(data, dict) else ()
        unknown = next((name for name in names if name not in cls.model_fields), None)
        if unknown is not None:
            raise PydanticCustomError(
                UNKNOWN_FIELD,
                "expected one of the fields {expected}",
                {"field": unknown[:MAX_NAME], "expected": ", ".join(cls.model_fields)},
            )
        return data


class Request(Strict):
    """What every request shares."""

    model: str | None = Field(
        default=None,
        description="Name of a loaded model; by default the only one that can do the task, or of "
        "several the one whose bundle calls itself the default.",
    )


class AttentionRequest(Strict):
    """Which attention weights to return, and how."""

    layers: Literal["all"] | Items[Index] = Field(
        default="all", description="Layers, counted from 0."
    )
    heads: Literal["all", "mean"] | Items[Index] = Field(
        default="all", description="Heads, counted from 0, or their mean."
    )
    encoding: Encoding = Field(default="float", description="Nested lists, or base64 of float32.")


Attention = Annotated[
    bool | AttentionRequest | None,
    Field(description="true for all attention weights, or an object that chooses some."),
]


class FillMaskRequest(Request):
    """Texts with masks to fill."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "the time trave<mask>ler", "top_k": 3},
                {"inputs": "the time _raveller", "mask_token": "_", "evidence": True},
            ]
        }
    )

    inputs: str | Items[str] = Field(
        description="One text or a list; every text holds at least one mask.",
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        description="Candidates per mask: by default 5, or as many as there are targets.",
    )
    targets: Items[str] | None = Field(
        default=None,
        min_length=1,
        description="Only these symbols as candidates; scores are not renormalised.",
    )
    mask_token: str = Field(
        default="<mask>",
        min_length=1,
        description="The placeholder that stands for a mask in inputs.",
    )
    evidence: bool = Field(
        default=False,
        description="Whether to tell what the left side of each mask, the right side and both say.",
    )
    attention: Attention = None


class DecodeRequest(Request):
    """Sources for an encoder-decoder."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "abcdefghijkl", "attention": {"heads": "mean"}},
                {"inputs": ["abcdefghijkl"], "num_beams": 4},
                {"inputs": "abcdefghijkl", "stream": True},
            ]
        }
    )

    inputs: str | Items[str] = Field(description="One source or a list, in the model's alphabet.")
    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens to decode, by default as many as the task needs.",
    )
    num_beams: int = Field(
        default=1,
        ge=1,
        le=MAX_BEAMS,
        description="Targets searched at a time; 1 takes the likeliest token every time.",
    )
    attention: Attention = None
    stream: bool = Field(
        default=False,
        description="Server-sent events: every token as it is decoded, then the whole answer.",
    )


class EncodedArray(Strict):
    """An array as base64."""

    data: str = Field(description="Base64 of row-major little-endian values.")
    dtype: Literal["float32", "float64"] = "float32"
    shape: Items[Size] = Field(min_length=2, max_length=3, description="[N, D] or [B, N, D].")


class LatentsRequest(Request):
    """Long inputs to be read into latents: ``inputs`` or ``features``, not both."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "the time traveller", "encoding_format": "base64"},
                {"inputs": ["the time machine", "the time traveller"], "reconstruct": True},
            ]
        }
    )

    inputs: str | Items[str] | None = Field(default=None, description="One text or a list.")
    features: EncodedArray | list[object] | None = Field(
        default=None,
        description="N vectors of the model's width, a list of such inputs, or base64.",
    )
    encoding_format: Encoding = Field(
        default="float", description="Nested lists, or base64 of float32."
    )
    reconstruct: bool = Field(
        default=False,
        description="Whether to read the text back out of the latents; for inputs only.",
    )
    attention: Attention = Field(
        default=None,
        description="What each latent read: all weights of the reading cross-attention with true, "
        "or an object that chooses some; for inputs only.",
    )


class LatentsOptions(Request):
    """What goes with an array that is sent as it is, as parameters of the query."""

    encoding_format: Encoding = Field(
        default="float", description="Nested lists, or base64 of float32, where JSON is answered."
    )


class EmbeddingsRequest(Request):
    """The OpenAI embeddings schema, for an encoder or a Perceiver."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "perceiver", "input": "the time traveller"},
                {"model": "masked-lm", "input": ["time", "space"], "encoding_format": "base64"},
            ]
        }
    )

    input: TextsOrIds = Field(
        description="A text or a list of texts, the token ids of one or a list of such.",
    )
    encoding_format: Encoding = Field(default="float", description="Numbers, or base64 of float32.")
    dimensions: int | None = Field(
        default=None, ge=1, description="The model's width; others are not served."
    )
    user: str | None = Field(default=None, description="Accepted as the schema has it; not used.")


class StreamOptions(Strict):
    """What else a stream of completions tells."""

    include_usage: bool = Field(
        default=False, description="Whether a last chunk, without choices, tells the usage."
    )
    include_obfuscation: Unserved = Field(
        default=False, description="Random padding of chunks; not served, leave it false."
    )


class CompletionRequest(Request):
    """The OpenAI completions schema, for a decoder; null stands for the default of any field."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "the time ", "max_tokens": 32, "temperature": 0},
                {"prompt": "the time ", "max_tokens": 8, "stream": True},
            ]
        }
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_null(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {
            name: value
            for name, value in data.items()
            if value is not None or name not in cls.model_fields
        }

    prompt: TextsOrIds = Field(
        default="",
        description="A text to continue or a list of texts, the token ids of one or a list of "
        "such; by default an empty text.",
    )
    max_tokens: int = Field(default=16, ge=0, description="Tokens to generate for each choice.")
    temperature: float = Field(default=1.0, ge=0, le=2, description="0 takes the likeliest token.")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Keeps the likeliest tokens of this mass."
    )
    n: int = Field(default=1, ge=1, le=128, description="Choices per prompt.")
    best_of: int | None = Field(
        default=None,
        ge=0,
        le=20,
        description="Continuations per prompt of which the n likeliest, by token, are told; by "
        "default, or with 0, n.",
    )
    stop: str | Items[str] | None = Field(
        default=None, description="Up to 4 strings that end a completion; they are not returned."
    )
    seed: int | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**63,
        description="The same seed draws the same completion.",
    )
    echo: bool = Field(
        default=False,
        description="Whether the prompt, with its log-probabilities if any are asked for, comes "
        "before the completion.",
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=5,
        description="Log-probabilities of the tokens and of this many others.",
    )
    stream: bool = Field(
        default=False,
        description="Server-sent events: a chunk for every token, those of all choices in turn.",
    )
    stream_options: StreamOptions | None = Field(
        default=None, description="What else a stream tells; only where stream is true."
    )
    frequency_penalty: Annotated[float, _off(0)] = Field(
        default=0, description="Not served: 0 or null."
    )
    presence_penalty: Annotated[float, _off(0)] = Field(
        default=0, description="Not served: 0 or null."
    )
    logit_bias: Annotated[dict[str, float], _off({})] = Field(
        default_factory=dict, description="Not served: {} or null."
    )
    suffix: Annotated[str, _off("")] = Field(
        default="", description="Not served: an empty string or null."
    )
    user: str | None = Field(default=None, description="Accepted as the schema has it; not used.")


FIELD_NAMES = frozenset(
    name
    for schema in (
        AttentionRequest,
        EncodedArray,
        FillMaskRequest,
        DecodeRequest,
        LatentsRequest,
        LatentsOptions,
        EmbeddingsRequest,
        StreamOptions,
        CompletionRequest,
    )
    for name in schema.model_fields
)
