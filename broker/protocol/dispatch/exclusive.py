"""Exclusive: one consumer gets everything, in the order of the log.

The machine does not remember deliveries.  When the consumer leaves or asks for redelivery, reading
begins again at the first entry that is not acknowledged.  Entries are delivered whole.  Permits
count messages, so they may end below zero by the rest of a batch.

    no consumer --Joined--> served --Redeliver--> served, rewound
                <--Left----
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from daybook.broker.protocol.dispatch.events import (
    Acked,
    AckedUpTo,
    Blocked,
    Brought,
    Cleared,
    ConsumerKey,
    Deliver,
    DispatchLimits,
    Effect,
    Entry,
    Event,
    Joined,
    Left,
    Permits,
    Place,
    Read,
    Redeliver,
    Rewind,
    Taken,
    Tick,
    Want,
    Writable,
)
from daybook.broker.protocol.dispatch.pending import Batches, MeanEntry


@dataclass(slots=True)
class Served:
    """A consumer: the one that is served, or one that waits for its turn."""

    key: ConsumerKey
    name: str
    priority: int
    permits: int = 0
    writable: bool = True


class ExclusiveDispatch:
    """One instance per exclusive subscription."""

    def __init__(self, limits: DispatchLimits) -> None:
        self._limits = limits
        self._consumers: dict[ConsumerKey, Served] = {}
        self._active: ConsumerKey | None = None
        self._generation = 0
        self._mean = MeanEntry()
        self._batches = Batches()

    # -- properties

    @property
    def active(self) -> ConsumerKey | None:
        return self._active

    @property
    def deadline_ms(self) -> int | None:
        return None

    @property
    def delayed(self) -> int:
        return 0

    def permits_of(self, consumer: ConsumerKey) -> int:
        return self._consumers[consumer].permits

    def unacked_of(self, consumer: ConsumerKey) -> int:
        del consumer  # Only the cursor knows what is not acknowledged.
        return 0

    def is_blocked(self, consumer: ConsumerKey) -> bool:
        del consumer
        return False

    def want(self) -> Want | None:
        active = None if self._active is None else self._consumers[self._active]
        if active is None or active.permits <= 0 or not active.writable:
            return None
        return Read(
            self._mean.entries_for(active.permits, self._limits.read_entries_max),
            self._generation,
        )

    # -- events

    def step(self, event: Event) -> list[Effect]:
        match event:
            case Brought(want, entries):
                return self._brought(want, entries)
            case Permits(consumer, messages):
                self._consumers[consumer].permits += messages
            case Blocked(consumer):
                self._consumers[consumer].writable = False
            case Writable(consumer):
                self._consumers[consumer].writable = True
            case Redeliver(consumer):
                if consumer == self._active:
                    return self._rewind()
            case Cleared():
                return self._rewind()
            case Joined(consumer, name, priority):
                self._consumers[consumer] = Served(consumer, name, priority)
                return self._joined(consumer)
            case Left(consumer):
                del self._consumers[consumer]
                return self._left(consumer)
            case Tick(now_ms):
                return self._tick(now_ms)
            case Acked(consumer, places, unread):
                self._acked(consumer, places, unread=unread)
            case AckedUpTo(place):
                self._batches.take_up_to(place)
            case _:
                assert_never(event)
        return []

    def _brought(self, want: Want, entries: Sequence[Entry]) -> list[Effect]:
        if want.generation != self._generation or self._active is None:
            return []  # The cursor was rewound, or the consumer left, during the read.
        active = self._consumers[self._active]
        count = 0
        for entry in entries:
            if active.permits <= 0:
                break  # Entries are whole, so the last one may have taken more than was left.
            active.permits -= entry.messages
            self._mean.add(entry.messages)
            self._batches.add(entry.place, entry.messages)
            count += 1
        if count:
            return [Deliver(active.key, entries[:count]), Taken(count)]
        return [Taken(0)]

    def _acked(self, consumer: ConsumerKey, places: Sequence[Place], *, unread: bool) -> None:
        """Free the permits of batches that the consumer could not read."""
        for place in places:
            taken = self._batches.take(place)
            if unread and consumer == self._active:
                self._consumers[consumer].permits += max(0, taken - 1)

    def _rewind(self) -> list[Effect]:
        self._generation += 1
        return [Rewind()]

    # -- the active consumer

    def _joined(self, consumer: ConsumerKey) -> list[Effect]:
        assert self._active is None, "an exclusive subscription has one consumer"
        return self._serve(consumer)

    def _left(self, consumer: ConsumerKey) -> list[Effect]:
        if consumer == self._active:
            self._active = None
            self._generation += 1  # A read that is under way was for the consumer that left.
        return []

    def _tick(self, now_ms: int) -> list[Effect]:
        del now_ms
        return []

    def _serve(self, consumer: ConsumerKey) -> list[Effect]:
        self._active = consumer
        self._batches.clear()
        return self._rewind()
