"""Rates of a topic, from counters that are remembered from one period to the next.

A rate is the mean of the last whole period.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

PERIOD_S = 60.0


@dataclass(frozen=True, slots=True)
class OutCounters:
    """The deliveries of one subscription: since the topic was loaded or, as rates, per second."""

    messages: float = 0
    bytes: float = 0
    redelivered: float = 0
    expired: float = 0  # entries


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of one topic: since it was loaded or, as rates, per second."""

    messages: float = 0
    bytes: float = 0
    out: Mapping[str, OutCounters] = field(default_factory=dict[str, OutCounters])


NOTHING = OutCounters()


class Rates:
    """The rates of one topic.  `current` has them per second."""

    def __init__(self) -> None:
        self.current = Counters()
        self._before = Counters()
        self._since_s: float | None = None

    def tick(self, now: Counters, now_s: float) -> None:
        """Compute the rates of the period that ends now."""
        before, since_s = self._before, self._since_s
        self._before, self._since_s = now, now_s
        if since_s is None or now_s <= since_s:
            return
        seconds = now_s - since_s
        self.current = Counters(
            (now.messages - before.messages) / seconds,
            (now.bytes - before.bytes) / seconds,
            {
                name: _difference(out, before.out.get(name, NOTHING), seconds)
                for name, out in now.out.items()
            },
        )


def _difference(now: OutCounters, before: OutCounters, seconds: float) -> OutCounters:
    # A subscription that was removed and created again counts from zero again.
    return OutCounters(
        max(0.0, now.messages - before.messages) / seconds,
        max(0.0, now.bytes - before.bytes) / seconds,
        max(0.0, now.redelivered - before.redelivered) / seconds,
        max(0.0, now.expired - before.expired) / seconds,
    )
