"""The text of metrics, made in pieces: other tasks run between two of them.

A broker with thousands of topics has hundreds of thousands of series, and their text takes seconds.
"""

from collections.abc import Iterable, Iterator
from copy import copy

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_SAMPLES = 500  # in a piece


async def in_pieces(registry: CollectorRegistry) -> bytes:
    """Return what `generate_latest` returns, without keeping other tasks waiting for it.

    A family is collected in one piece, and written in several.
    """
    text: list[bytes] = []
    for family in registry.collect():
        for number, piece in enumerate(_pieces(family)):
            lines = generate_latest(_Family(piece))
            # Only the first piece begins with the type and the help text of the family.
            text.append(lines if not number else _without_comments(lines))
            await trio.lowlevel.checkpoint()
    return b"".join(text)


def _pieces(family: Metric) -> Iterator[Metric]:
    if len(family.samples) <= _SAMPLES:
        yield family
        return
    for at in range(0, len(family.samples), _SAMPLES):
        piece = copy(family)
        piece.samples = family.samples[at : at + _SAMPLES]
        yield piece


def _without_comments(lines: bytes) -> bytes:
    return b"".join(line for line in lines.splitlines(keepends=True) if not line.startswith(b"#"))


class _Family(Collector):
    """A single family, in the place of a registry."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]
