"""``fill-mask``, ``decode`` and ``complete``: text in, text out, with the evidence."""

import math
from collections.abc import Iterable

from triwire import calls
from triwire.answers import Beam, DecodeResult, FillMaskResult, MaskResult, StreamedToken
from triwire.cli import inputs
from triwire.cli.attention import attention_of, show_attention
from triwire.cli.inputs import UsageError
from triwire.cli.screen import table, visible
from triwire.cli.session import Session

MASK = "<mask>"
# What stands for a mask where no text has a <mask>.
PLACEHOLDER = "_"
BAR_WIDTH = 20


def fill_mask(session: Session) -> None:
    """Shows the candidates of every mask, and every text filled."""
    options = session.options
    texts = inputs.texts(options.text, options.file)
    for _, result in session.results_of(
        texts,
        lambda batch: calls.fill_mask(
            batch,
            top_k=options.top_k,
            targets=options.target,
            mask_token=options.mask_token or _placeholder(texts),
            evidence=options.evidence,
            attention=attention_of(options),
            model=options.model,
        ),
    ):
        session.screen.write(*_filled(session, result), "")


def _placeholder(texts: Iterable[str]) -> str:
    return MASK if any(MASK in text for text in texts) else PLACEHOLDER


def _filled(session: Session, result: FillMaskResult) -> Iterable[str]:
    yield visible(result.filled)
    for mask in result.masks:
        yield f"mask {mask.index}, at character {mask.char_start}"
        yield from _candidates(session, mask)
    if result.attention:
        yield from show_attention(session.screen, result.attention)


def _candidates(session: Session, mask: MaskResult) -> list[str]:
    """A line for every candidate, and one for what the mask leaves open."""
    evidence = mask.evidence
    sides = [evidence.left, evidence.right] if evidence else []
    names = ["both sides", "left alone", "right alone"] if evidence else ["score"]
    rows = [
        [
            session.screen.symbol(candidate.token),
            f"{candidate.score:.4f}",
            *(f"{side.scores[index]:.4f}" for side in sides),
            session.screen.bar(candidate.score, BAR_WIDTH),
        ]
        for index, candidate in enumerate(mask.candidates)
    ]
    entropies = [f"{entropy:.2f}" for entropy in (mask.entropy, *(s.entropy for s in sides))]
    rows.append(["entropy, nats", *entropies, ""])
    return table(["candidate", *names, ""], rows, "<" + ">" * len(names) + "<")


def decode(session: Session) -> None:
    """Shows what every source becomes, and where the decoder looked."""
    options = session.options
    texts = inputs.texts(options.text, options.file)
    how = {
        "max_new_tokens": options.max_new_tokens,
        "num_beams": options.num_beams,
        "attention": attention_of(options),
        "model": options.model,
    }
    if options.stream:
        separator = "" if options.json else _separator(session)
        for text in texts:
            call = calls.decode_stream(text, **how)
            session.write_stream(call, lambda token: _next(token, separator))
        return
    _show_decoded(session, session.results_of(texts, lambda batch: calls.decode(batch, **how)))


def _show_decoded(session: Session, found: Iterable[tuple[str, DecodeResult]]) -> None:
    """One table, or one above each map."""
    rows: list[list[str]] = []
    try:
        for text, result in found:
            rows += _rows(text, result)
            if result.attention:
                session.screen.write(*_table(rows), *_looked(session, result), "")
                rows.clear()
    finally:
        # What is there, where an error ends it before the last source.
        if rows:
            session.screen.write(*_table(rows))


def _rows(text: str, result: DecodeResult) -> list[list[str]]:
    """A line for the output, and one for every other beam."""
    logprob = sum(token.logprob for token in result.tokens)
    best, *others = result.beams or [Beam(output=result.output, logprob=logprob)]
    rows = [[text, result.output, _probability(best), result.finish_reason]]
    rows += [["", beam.output, _probability(beam), ""] for beam in others]
    return [[*map(visible, row)] for row in rows]


def _probability(beam: Beam) -> str:
    return f"{math.exp(beam.logprob):.4f}"


def _table(rows: Iterable[list[str]]) -> list[str]:
    return table(["source", "output", "probability", "ended by"], rows, "<<>")


def _looked(session: Session, result: DecodeResult) -> Iterable[str]:
    """The map, and how far it agrees with the true alignment where the task fixes one."""
    assert result.attention
    yield from show_attention(session.screen, result.attention)
    alignment = result.alignment
    if alignment and alignment.hit_rate is not None and alignment.mean_weight is not None:
        yield (
            f"on the true source position: {alignment.hit_rate:.1%} of symbols, "
            f"weight {alignment.mean_weight:.4f}"
        )


def _next(token: StreamedToken, separator: str) -> str:
    return visible((separator if token.position else "") + token.token)


def _separator(session: Session) -> str:
    """What stands between the symbols of outputs of the model that will answer."""
    wanted = session.options.model
    able = [model for model in session.client.models() if model.wiring == "encoder-decoder"]
    named = [model for model in able if wanted in (None, model.id)]
    chosen = [model for model in named if model.task.get("is_default")] or named
    # Where it is none, or none of several, the service says so.
    return (chosen[0].target_separator or "") if chosen else ""


def complete(session: Session) -> None:
    """Shows how every prompt goes on."""
    options = session.options
    prompts = inputs.texts(options.text, options.file)
    names = ("max_tokens", "temperature", "top_p", "n", "stop", "seed", "echo", "model")
    how = {name: getattr(options, name) for name in names}
    if options.stream:
        if (options.n or 1) > 1:
            raise UsageError("--stream: expected --n 1, as choices come in turn")
        for prompt in prompts:
            call = calls.complete_stream(prompt, **how)
            session.write_stream(call, lambda chunk: visible(chunk.text))
        return
    for _, result in session.results_of(prompts, lambda batch: calls.complete(batch, **how)):
        session.screen.write(*(visible(choice.text) for choice in result.choices))
