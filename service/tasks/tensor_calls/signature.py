"""What a model takes and gives as tensors, and whether a request fits it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.errors import InvalidInput, excerpt
from service.tensor_schemas import (
    PARAMETERS,
    InputTensor,
    ModelConfig,
    ModelMetadata,
    RequestedOutput,
    TensorConfig,
    TensorMetadata,
)

# Of an axis; it keeps the product of all of them to a few digits.
MAX_SIZE = 2**31 - 1
# How much of a name that no tensor has is told back.
MAX_NAME = 40
CONFIG_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT32": "TYPE_INT32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """A tensor that a model takes or gives; -1 in ``shape`` stands for any size.

    The first of ``datatypes`` is what the metadata names, the others are taken as well.
    """

    name: str
    datatypes: tuple[str, ...]
    shape: tuple[int, ...]
    description: str

    def require(self, tensor: InputTensor) -> None:
        """Checks that what is sent is of this type and shape.

        Raises:
            InvalidInput: if it is not.
        """
        if tensor.datatype not in self.datatypes:
            raise InvalidInput(
                f"expected {' or '.join(self.datatypes)}, got {excerpt(tensor.datatype)}",
                f"{self.name}.datatype",
            )
        is_alike = len(tensor.shape) == len(self.shape) and all(
            wanted in (size, -1) and 1 <= size <= MAX_SIZE
            for size, wanted in zip(tensor.shape, self.shape, strict=True)
        )
        if not is_alike:
            raise InvalidInput(
                f"expected {list(self.shape)}, where -1 is any size from 1 to {MAX_SIZE}, "
                f"got {excerpt(tensor.shape)}",
                f"{self.name}.shape",
            )


def spec(name: str, datatype: str, shape: tuple[int, ...], description: str) -> TensorSpec:
    """A tensor of one datatype."""
    return TensorSpec(name=name, datatypes=(datatype,), shape=shape, description=description)


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """A way to ask a model: ``inputs`` that must be sent, those that may, and what there is then.

    ``outputs`` are given where none is named, ``others`` only where they are.
    """

    inputs: tuple[str, ...]
    optional: tuple[str, ...] = ()
    outputs: tuple[str, ...]
    others: tuple[str, ...] = ()

    def takes(self, names: set[str]) -> bool:
        """Whether these are inputs of this form, and all that it must have."""
        return set(self.inputs) <= names <= {*self.inputs, *self.optional}

    def __str__(self) -> str:
        """The names of its inputs, for messages."""
        optional = f" (with or without {' and '.join(self.optional)})" if self.optional else ""
        return " and ".join(self.inputs) + optional


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """All of it for one model; ``parameters`` are told by name what they do."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    forms: tuple[Form, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)

    def datatype(self, output: str) -> str:
        """That of an output."""
        return next(own.datatypes[0] for own in self.outputs if own.name == output)

    def find_form(self, tensors: Sequence[InputTensor]) -> Form:
        """The way in which a request asks, once its tensors are found to be of type and shape.

        Raises:
            InvalidInput: if a tensor does not exist, comes twice or is not as the model takes it,
                or the tensors do not belong together.
        """
        specs = {own.name: own for own in self.inputs}
        _require_names([tensor.name for tensor in tensors], list(specs), "inputs")
        names = {tensor.name for tensor in tensors}
        form = next((form for form in self.forms if form.takes(names)), None)
        if form is None:
            wanted = ", or ".join(str(form) for form in self.forms)
            raise InvalidInput(f"expected {wanted}, got {' and '.join(sorted(names))}", "inputs")
        for tensor in tensors:
            specs[tensor.name].require(tensor)
        return form

    def choose(self, form: Form, asked: Sequence[RequestedOutput]) -> list[str]:
        """The outputs that are asked for, or those that come by themselves.

        Raises:
            InvalidInput: if one does not exist with these inputs, or is named twice.
        """
        names = [output.name for output in asked]
        _require_names(names, [*form.outputs, *form.others], "outputs", f" where {form} is sent")
        return names or list(form.outputs)

    def require_parameters(self, parameters: Mapping[str, object]) -> None:
        """Checks that every parameter exists.

        Raises:
            InvalidInput: if one does not.
        """
        known = [*self.parameters, *PARAMETERS]
        unknown = next((name for name in parameters if name not in known), None)
        if unknown is not None:
            raise InvalidInput(
                f"expected one of the parameters {', '.join(known)}",
                f"parameters.{unknown[:MAX_NAME]}",
            )

    def metadata(self, name: str, versions: Sequence[int], wiring: str) -> ModelMetadata:
        """What the protocol's metadata tell of it, with what each tensor is."""
        required = set.intersection(*(set(form.inputs) for form in self.forms))
        given = {output for form in self.forms for output in form.outputs}
        return ModelMetadata(
            name=name,
            versions=[str(version) for version in versions],
            platform=_platform(wiring),
            inputs=[_described(own, {"optional": own.name not in required}) for own in self.inputs],
            outputs=[
                _described(own, {"only_if_named": own.name not in given}) for own in self.outputs
            ],
            parameters={**self.parameters, **PARAMETERS},
        )

    def config(self, name: str, wiring: str) -> ModelConfig:
        """What Triton's configuration of a model tells of it."""
        required = set.intersection(*(set(form.inputs) for form in self.forms))
        return ModelConfig(
            name=name,
            platform=_platform(wiring),
            backend="triwire",
            # The first axis of every tensor is the batch, rather than one that is not told of.
            max_batch_size=0,
            input=[
                TensorConfig(*_configured(own), optional=own.name not in required)
                for own in self.inputs
            ],
            output=[TensorConfig(*_configured(own)) for own in self.outputs],
        )


def _require_names(names: list[str], known: list[str], param: str, told: str = "") -> None:
    for index, name in enumerate(names):
        if name not in known:
            raise InvalidInput(
                f"expected one of {', '.join(known)}{told}, got {excerpt(name)}",
                f"{param}[{index}].name",
            )
        if name in names[:index]:
            raise InvalidInput(
                f"expected every name once, got {name} again", f"{param}[{index}].name"
            )


def _platform(wiring: str) -> str:
    return f"triwire_{wiring.replace('-', '_')}"


def _described(own: TensorSpec, flags: dict[str, bool]) -> TensorMetadata:
    told = {"description": own.description, **flags}
    return TensorMetadata(own.name, own.datatypes[0], list(own.shape), told)


def _configured(own: TensorSpec) -> tuple[str, str, list[int]]:
    return own.name, CONFIG_TYPES[own.datatypes[0]], list(own.shape)
