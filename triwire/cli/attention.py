"""``--attention``, ``--layer`` and ``--head``: what is asked for, and how it is shown."""

import argparse
from collections.abc import Iterable

from triwire.answers import AttentionMap
from triwire.calls.request import Attention
from triwire.cli.heat_map import draw
from triwire.cli.inputs import UsageError
from triwire.cli.screen import Screen


def attention_of(options: argparse.Namespace) -> Attention:
    """What is asked of the service: one layer where one is named, a head or the mean of all.

    Raises:
        UsageError: if a map is chosen and none is wanted.
    """
    if not options.attention:
        if options.layer is not None or options.head is not None:
            raise UsageError("--layer and --head choose from what --attention shows")
        return False
    layers = "all" if options.layer is None else [options.layer]
    return {"layers": layers, "heads": "mean" if options.head is None else [options.head]}


def show_attention(screen: Screen, attention: AttentionMap) -> Iterable[str]:
    """The map of the last layer that was asked for, with what its rows and columns are."""
    head = attention.heads[0]
    which = "mean of heads" if head == "mean" else f"head {head}"
    yield f"attention in layer {attention.layers[-1]}, {which}; a row for each symbol that reads"
    targets = [screen.symbol(token) for token in attention.target_tokens]
    sources = [screen.symbol(token) for token in attention.source_tokens]
    yield from draw(screen, attention.weights[-1, 0], targets, sources)
