"""The Open Inference Protocol's requests and answers as they come over the wire, and nothing else.

Source: the protocol's OpenAPI document, version 2, with Triton's extensions for binary tensors,
for the configuration of models and for the index of the repository.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from service.schemas import Items, Strict

# Values of a tensor in JSON: of any depth, and checked number by number only once the shape is.
JsonData = Annotated[
    list[object],
    WithJsonSchema({"type": "array", "items": {}, "description": "Row-major, nested or flat."}),
]
# Of a request, of any model; what else there is, its metadata says.
PARAMETERS = {
    "binary_data_output": "boolean; outputs behind the JSON, where they do not say it themselves",
    "timeout": "integer, microseconds; 504 after that, or after the service's own time for any",
    "priority": "integer, 0; all requests have the same priority",
}


class InputParameters(Strict):
    """How an input is sent."""

    binary_data_size: int | None = Field(
        default=None, ge=0, description="Bytes that it takes behind the JSON, in place of data."
    )


class InputTensor(Strict):
    """A tensor that is sent."""

    name: str = Field(description="One of the model's inputs.")
    shape: Items[int] = Field(max_length=8, description="Its size along every axis.")
    datatype: str = Field(description="What the model's metadata names.")
    parameters: InputParameters | None = Field(default=None, description="How it is sent.")
    data: JsonData | None = Field(
        default=None, description="Its values, row-major, nested as the shape has it or flat."
    )


class OutputParameters(Strict):
    """How an output is to be sent."""

    binary_data: bool | None = Field(
        default=None, description="Whether it comes behind the JSON; else as data."
    )


class RequestedOutput(Strict):
    """A tensor that is asked for."""

    name: str = Field(description="One of the model's outputs.")
    parameters: OutputParameters | None = Field(default=None, description="How it is to be sent.")


class InferRequest(Strict):
    """Tensors for a model."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "1",
                    "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}],
                }
                for text in ("the time trave<mask>ler", "abcdefghijkl", "the time ")
            ]
        }
    )

    id: str | None = Field(default=None, description="Told again in the answer.")
    parameters: dict[str, Any] | None = Field(
        default=None, description="What the model's metadata names, and some that all models take."
    )
    inputs: Items[InputTensor] = Field(min_length=1, description="Tensors by name.")
    outputs: Items[RequestedOutput] | None = Field(
        default=None, description="Which are wanted; without any, those that the metadata says."
    )


class RepositoryIndexRequest(Strict):
    """Which models to list."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ready": True}]})

    ready: bool = Field(default=False, description="Only those that are ready.")


FIELD_NAMES = frozenset(
    name
    for schema in (
        InputParameters,
        InputTensor,
        OutputParameters,
        RequestedOutput,
        InferRequest,
        RepositoryIndexRequest,
    )
    for name in schema.model_fields
)


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor that is answered; without ``data`` it lies behind the JSON."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, int] | None = None
    data: Annotated[Any, WithJsonSchema({"type": "array", "items": {}})] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InferAnswer:
    """The answer to an infer request."""

    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """A tensor that a model takes or gives; -1 stands for any size."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelMetadata:
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """A tensor, as Triton's configuration of a model has it."""

    name: str
    data_type: str
    dims: list[int]
    optional: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """What a model takes and gives, as Triton's configuration of a model has it."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: list[TensorConfig]
    output: list[TensorConfig]


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """Who serves, and which extensions of the protocol."""

    name: str
    version: str
    extensions: list[str]


@dataclass(frozen=True, slots=True)
class ServerLive:
    """The process answers."""

    live: bool


@dataclass(frozen=True, slots=True)
class ServerReady:
    """The service takes requests."""

    ready: bool


@dataclass(frozen=True, slots=True)
class ModelReady:
    """A model takes requests."""

    name: str
    ready: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedModel:
    """A model in the index: READY, LOADING or UNAVAILABLE, and why."""

    name: str
    version: str | None = None
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProtocolError:
    """The body of every error of this protocol."""

    error: str
