"""The native tasks as calls with tensors in and out, as the Open Inference Protocol has them.

Nothing is computed here: a call becomes the request of a native task, and the results of that
become arrays. Results that differ in length are filled up, and an output tells the lengths.
``CALLS`` is the table of what models take and give, by wiring: a new one is one more line.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint import ModelCard
from service.batches import Ticket
from service.errors import InvalidInput, ModelNotFound, excerpt
from service.registry import LoadedModel, Registry
from service.tasks import complete, decode, fill_mask, latents
from service.tasks.context import Context, off_loop
from service.tasks.tensor_calls import decoder, encoder, encoder_decoder, perceiver
from service.tasks.tensor_calls.call import Results, TensorCall, Usage
from service.tasks.tensor_calls.signature import Signature
from service.tensor_schemas import (
    PARAMETERS,
    IndexedModel,
    InferAnswer,
    InferRequest,
    ModelConfig,
    ModelMetadata,
    RequestedOutput,
)
from service.tensors import read_tensors, write_tensor

# More digits than any version has; their number would take long to read.
MAX_VERSION_LEN = 9


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a model of a wiring takes and gives, and what answers it."""

    signature: Callable[[ModelCard], Signature]
    run: Callable[[TensorCall], Awaitable[Results]]


CALLS: Mapping[str, Wiring] = {
    fill_mask.WIRING: Wiring(encoder.signature, encoder.run),
    decode.WIRING: Wiring(encoder_decoder.signature, encoder_decoder.run),
    complete.WIRING: Wiring(decoder.signature, decoder.run),
    latents.WIRING: Wiring(perceiver.signature, perceiver.run),
}


@dataclass(frozen=True, slots=True)
class Inference:
    """An answer, with the raw tensors that come behind its JSON if ``is_binary``."""

    answer: InferAnswer
    tail: bytes
    is_binary: bool
    usage: Usage


def find(registry: Registry, name: str, version: str | None) -> LoadedModel:
    """The model of that name, by default in the version that is served.

    Raises:
        ModelNotFound: if there is none, or not in that version.
        NotReady: if models are still loading, or this one could not be loaded.
    """
    default = registry.find(name)
    if version is None:
        return default
    is_number = version.isascii() and version.isdecimal() and len(version) <= MAX_VERSION_LEN
    if not is_number or version != str(int(version)):
        loaded = [model.card.version for model in registry.versions(name)]
        raise ModelNotFound(
            f"expected one of the versions {loaded}, got {excerpt(version)}", "version"
        )
    return registry.find(name, int(version))


def metadata(registry: Registry, model: LoadedModel) -> ModelMetadata:
    """What a model takes and gives."""
    card = model.card
    versions = [other.card.version for other in registry.versions(card.name)]
    return _signature(model).metadata(card.name, versions, card.wiring)


def config(model: LoadedModel) -> ModelConfig:
    """What a model takes and gives, as Triton's configuration of a model has it."""
    return _signature(model).config(model.card.name, model.card.wiring)


def index(registry: Registry, *, ready: bool) -> list[IndexedModel]:
    """Every version that is loaded, every model that is loading or could not be loaded.

    A model can be there twice: what was loaded before goes on serving. With ``ready`` only what is
    loaded.
    """
    loaded = [
        IndexedModel(name=name, version=str(model.card.version), state="READY", reason="")
        for name in sorted(registry.models)
        for model in registry.versions(name)
    ]
    if ready:
        return loaded
    states = (("LOADING", registry.loading), ("UNAVAILABLE", registry.failures))
    others = [
        IndexedModel(name=name, state=state, reason=reason)
        for state, reasons in states
        for name, reason in sorted(reasons.copy().items())
    ]
    return [*loaded, *others]


async def infer(
    context: Context, model: LoadedModel, request: InferRequest, tail: bytes, ticket: Ticket
) -> Inference:
    """The outputs of ``model`` that are asked for; ``tail`` is what came behind the JSON.

    Raises:
        InvalidInput: if a tensor or a parameter is not as the model takes it.
    """
    signature = _signature(model)
    form = signature.find_form(request.inputs)
    wanted = signature.choose(form, request.outputs or [])
    parameters = dict(request.parameters or {})
    signature.require_parameters(parameters)
    default = _take_general(parameters, ticket)
    call = TensorCall(
        context=dataclasses.replace(context, registry=context.registry.pinned(model)),
        model=model,
        inputs=await off_loop(lambda: read_tensors(request.inputs, tail)),
        wanted=frozenset(wanted),
        parameters=parameters,
        ticket=ticket,
    )
    results = await CALLS[model.card.wiring].run(call)
    asked = request.outputs or [RequestedOutput(name=name) for name in wanted]
    is_binary = {output.name: _is_binary(output, default=default) for output in asked}
    written = await off_loop(
        lambda: [
            write_tensor(name, signature.datatype(name), results.outputs[name], binary=binary)
            for name, binary in is_binary.items()
        ]
    )
    answer = InferAnswer(
        model_name=model.card.name,
        model_version=str(model.card.version),
        outputs=[tensor for tensor, _ in written],
        id=request.id,
    )
    raw = b"".join(part for _, part in written)
    return Inference(answer, raw, any(is_binary.values()), results.usage)


def _signature(model: LoadedModel) -> Signature:
    return CALLS[model.card.wiring].signature(model.card)


def _take_general(parameters: dict[str, Any], ticket: Ticket) -> bool:
    """Takes out what all models have, and does it; gives whether outputs are binary by default."""
    general = {name: parameters.pop(name) for name in PARAMETERS if name in parameters}
    is_binary = general.get("binary_data_output", False)
    if not isinstance(is_binary, bool):
        raise InvalidInput(
            f"expected true or false, got {excerpt(is_binary)}", "parameters.binary_data_output"
        )
    timeout_us = general.get("timeout", 0)
    if type(timeout_us) is not int or timeout_us < 0:
        raise InvalidInput(
            f"expected an integer of microseconds, got {excerpt(timeout_us)}", "parameters.timeout"
        )
    if timeout_us:
        ticket.deadline = min(ticket.deadline, time.monotonic() + timeout_us / 1e6)
    priority = general.get("priority", 0)
    if type(priority) is not int or priority:
        raise InvalidInput(
            f"expected 0, as all requests have the same priority, got {excerpt(priority)}",
            "parameters.priority",
        )
    return is_binary


def _is_binary(output: RequestedOutput, *, default: bool) -> bool:
    chosen = output.parameters.binary_data if output.parameters else None
    return default if chosen is None else chosen
