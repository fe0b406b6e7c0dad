"""What calls give: frozen dataclasses with the fields of the HTTP API, arrays as numpy's.

Fields that the service adds later are left out, and do no harm.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What was read and written, in tokens; None where an answer does not count it."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Which model gave a result, in which answer, and how long that took.

    ``timing_ms`` has the milliseconds of "queue", "compute" and "total". Results of one call share
    their origin.
    """

    model: str
    version: int | None
    usage: Usage
    request_id: str | None
    timing_ms: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionMap:
    """Attention ``weights`` [layers, heads, target, source]; rows sum to 1 over the source.

    ``layers`` and ``heads`` say which they are, counted from 0; ``heads`` may be ("mean",).
    """

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    layers: tuple[int, ...]
    heads: tuple[int | str, ...]
    shape: tuple[int, ...]
    weights: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A symbol with its probability."""

    token: str
    token_id: int
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What the tokens of ``window`` alone say of a mask: the scores of its candidates, in order.

    ``entropy`` is that of the whole distribution, in nats.
    """

    window: tuple[int, int]
    entropy: float
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What each side of a mask was worth, and both."""

    left: Side
    right: Side
    both: Side


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskResult:
    """One mask.

    ``position`` and ``window`` count tokens of the normalised text, ``char_start`` and ``char_end``
    characters of the text as sent. ``entropy`` is in nats.
    """

    index: int
    position: int
    char_start: int
    char_end: int
    window: tuple[int, int]
    entropy: float
    candidates: tuple[Candidate, ...]
    evidence: Evidence | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FillMaskResult:
    """One text: every mask with its candidates, and ``filled``, the best joint reading."""

    normalized: str
    masks: tuple[MaskResult, ...]
    filled: str
    attention: AttentionMap | None = None
    origin: Origin


@dataclass(frozen=True, slots=True)
class DecodedToken:
    """A token with the natural logarithm of its probability."""

    token: str
    logprob: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedToken:
    """Token ``position`` of what input ``index`` becomes, both counted from 0."""

    index: int
    position: int
    token: str
    logprob: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Beam:
    """A target that beam search found, with the natural logarithm of its whole probability."""

    output: str
    logprob: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """Where the last layer looks, averaged over heads: a source position for every target token.

    Where the task fixes the true alignment, ``hit_rate`` is the share of tokens that look there and
    ``mean_weight`` the mean weight there.
    """

    source_positions: tuple[int, ...]
    weights: tuple[float, ...]
    hit_rate: float | None = None
    mean_weight: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DecodeResult:
    """One decoded source; ``finish_reason`` is "length" where a limit cut it, otherwise "stop"."""

    output: str
    finish_reason: str
    tokens: tuple[DecodedToken, ...]
    beams: tuple[Beam, ...] | None = None
    attention: AttentionMap | None = None
    alignment: Alignment | None = None
    origin: Origin


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LatentsResult:
    """The ``latents`` (M x D) of one input of ``length`` characters or vectors.

    ``reconstruction`` is what the latents alone gave back of ``normalized``, and ``fidelity`` the
    share of characters that are the same.
    """

    latents: NDArray[np.float32]
    shape: tuple[int, ...]
    length: int
    normalized: str | None = None
    reconstruction: str | None = None
    fidelity: float | None = None
    attention: AttentionMap | None = None
    origin: Origin


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionLogprobs:
    """Natural logarithms of the probabilities of the tokens of a choice, and of others."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None
    text_offset: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One continuation of a prompt."""

    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """A prompt's ``choices``, as many as were asked for; ``text`` is that of the first."""

    choices: tuple[Choice, ...]
    normalized: str | None
    origin: Origin

    @property
    def text(self) -> str:
        """The first choice."""
        return self.choices[0].text


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionChunk:
    """More ``text`` of choice ``index``, counted over all prompts; the last says why it ends."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What is loaded under the name ``id``; docs/http-api.md says what each field is."""

    id: str
    wiring: str
    version: int
    task: dict[str, Any]
    limits: dict[str, int]
    created: int
    versions: tuple[int, ...] = ()
    loading: Any = None
    failure: str | None = None
    alphabet: str | None = None
    separator: str | None = None
    target_alphabet: str | None = None
    target_separator: str | None = None
    normalization: str | None = None
    mask_token: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] | None = None
    corpus: dict[str, Any] | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    plots: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """Whether the service can be used; ``reason`` says why not.

    ``failures`` says of every model that could not be loaded why.
    """

    is_ready: bool
    models: tuple[str, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)
    reason: str | None = None
