"""Entries of a subscription that cannot be read now: all copies are away, lost or damaged.

No such entry is skipped: it is delivered when it can be read, or an administrator acknowledges it.
Meanwhile a shared subscription delivers the others.  The entry is *put aside*, and read again from
time to time.  On a key_shared subscription that is possible only if the key of the entry is known,
because it was read before; the other entries of its key wait for it.  Exclusive and failover
subscriptions promise the order of the log, so they wait.

An entry that was never read is put aside only if it has failed for a while and the one behind it
can be read.  So while all bookies are away, nothing is put aside.
"""

from dataclasses import dataclass

from daybook.broker.protocol.dispatch.places import Place

ASIDE_MAX = 1_000  # With more, the subscription waits.
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Unread:
    """An entry that cannot be read, since when (in ms), and why in words."""

    place: Place
    since_ms: int
    why: str


class Unreadable:
    """One instance per subscription."""

    def __init__(self) -> None:
        self.aside: dict[Place, Unread] = {}
        self.stops: Unread | None = None  # the entry at which reading stands still

    def __len__(self) -> int:
        return len(self.aside) + (self.stops is not None)

    @property
    def all(self) -> list[Unread]:
        """Return the entry that stops everything first, then the others."""
        return [*([] if self.stops is None else [self.stops]), *self.aside.values()]

    @property
    def has_room(self) -> bool:
        return len(self.aside) < ASIDE_MAX

    def failed(self, place: Place, why: str, now_ms: int) -> bool:
        """Note that the next entry could not be read; return True if that lasts for long."""
        known = self.stops
        since_ms = known.since_ms if known is not None and known.place == place else now_ms
        self.stops = Unread(place, since_ms, why)
        return now_ms - since_ms >= PATIENCE_S * 1000

    def went_on(self) -> None:
        """Note that reading goes on: the entry at which it stood can be read, or was put aside."""
        self.stops = None

    def put_aside(self, place: Place, why: str, now_ms: int) -> None:
        since_ms = now_ms
        if self.stops is not None and self.stops.place == place:
            since_ms, self.stops = self.stops.since_ms, None
        known = self.aside.get(place)
        self.aside[place] = Unread(place, since_ms if known is None else known.since_ms, why)

    def bring_back(self, place: Place) -> None:
        self.aside.pop(place, None)

    def clear(self) -> None:
        self.aside.clear()
        self.stops = None
