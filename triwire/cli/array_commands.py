"""``latents`` and ``embeddings``: files or texts in, arrays out."""

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from triwire import calls
from triwire.answers import LatentsResult
from triwire.calls.vectors import to_npy
from triwire.cli import inputs
from triwire.cli.attention import attention_of, show_attention
from triwire.cli.inputs import STANDARD_INPUT, UsageError
from triwire.cli.screen import table, visible
from triwire.cli.session import Session


def latents(session: Session) -> None:
    """Reads every file into latents; shows what became of it, and writes them where asked."""
    options = session.options
    _require_no_conflict(session)
    names, items = _read(session)
    found: list[LatentsResult] = []
    for index, (_, result) in enumerate(
        session.results_of(
            items,
            lambda batch: calls.latents(
                batch,
                reconstruct=options.reconstruct,
                attention=attention_of(options),
                model=options.model,
            ),
        )
    ):
        found.append(result)
        if options.output != STANDARD_INPUT:
            session.screen.write(*_summary(session, names[index], result))
    if options.output:
        _save([result.latents for result in found], options.output)


def _read(session: Session) -> tuple[list[str], list[str | np.ndarray]]:
    """The inputs with their names: whole files, or with ``--lines`` every line of theirs."""
    files = session.options.file or [STANDARD_INPUT]
    if not session.options.lines:
        return files, [inputs.read_input(file) for file in files]
    found = inputs.texts([], files)
    return [visible(text) for text in found], [*found]


def _summary(session: Session, name: str, result: LatentsResult) -> Iterable[str]:
    header = ["input", "length", "latents"]
    row = [visible(name), str(result.length), " x ".join(map(str, result.shape))]
    if result.fidelity is not None:
        header.append("read back")
        row.append(f"{result.fidelity:.1%}")
    yield from table(header, [row], "<>>>")
    if result.reconstruction is not None:
        yield visible(result.reconstruction)
    if result.attention:
        yield from show_attention(session.screen, result.attention)
    yield ""


def embeddings(session: Session) -> None:
    """Shows the length of every vector and its angle to the first; writes them where asked."""
    options = session.options
    _require_no_conflict(session)
    texts = inputs.texts(options.text, options.file)
    found = [
        np.asarray(vector)
        for _, vector in session.results_of(
            texts, lambda batch: calls.embeddings(batch, model=options.model)
        )
    ]
    if found and options.output != STANDARD_INPUT:
        norms = [float(np.linalg.norm(vector)) for vector in found]
        cosines = [
            float(vector @ found[0]) / max(norm * norms[0], np.finfo(np.float32).tiny)
            for vector, norm in zip(found, norms, strict=True)
        ]
        rows = [
            [visible(text), str(len(vector)), f"{norm:.3f}", f"{cosine:.4f}"]
            for text, vector, norm, cosine in zip(texts, found, norms, cosines, strict=True)
        ]
        header = ["text", "numbers", "norm", "cosine with the first"]
        session.screen.write(*table(header, rows, "<>>>"))
    if options.output:
        _save(found, options.output)


def _require_no_conflict(session: Session) -> None:
    if session.options.json and session.options.output:
        raise UsageError("expected either --json or --output, got both")


def _save(arrays: list[np.ndarray], file: str) -> None:
    """Writes one array as it is, several as a stack."""
    content = to_npy(arrays[0] if len(arrays) == 1 else np.stack(arrays))
    try:
        if file == STANDARD_INPUT:
            sys.stdout.buffer.write(content)
        else:
            Path(file).write_bytes(content)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"--output: expected a file that can be written, got {file}: {error.strerror}"
        ) from None
