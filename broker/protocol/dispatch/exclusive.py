"""Exclusive: one consumer gets everything, in the order of the log.

The machine does not remember deliveries.  When the consumer leaves or asks for redelivery, reading
begins again at the first entry that is not acknowledged.  Entries are delivered whole.  Permits
count messages, so they may end below zero by the rest of a batch.

    no consumer --joined--> served --redelivery_requested--> served, rewound
                <--left----
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daybook.broker.protocol.dispatch.blockers import Blocker, Cause
from daybook.broker.protocol.dispatch.interface import (
    Deliver,
    DispatchLimits,
    Effect,
    Entry,
    Read,
    Rewind,
    Taken,
    Want,
)
from daybook.broker.protocol.dispatch.pending import Batches, MeanEntry
from daybook.broker.protocol.dispatch.places import ConsumerKey, Place, SlotRange


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

    @property
    def blocked(self) -> bool:
        return False

    @property
    def queued(self) -> int:
        return 0

    def explain(self) -> list[Blocker]:
        if self._active is None:
            return [Blocker(Cause.NO_CONSUMERS)]
        active = self._consumers[self._active]
        blockers: list[Blocker] = []
        if active.permits <= 0:
            blockers.append(Blocker(Cause.NO_PERMITS, active.key, count=active.permits))
        if not active.writable:
            blockers.append(Blocker(Cause.CONNECTION_FULL, active.key))
        return blockers

    def permits_of(self, consumer: ConsumerKey) -> int:
        return self._consumers[consumer].permits

    def redeliveries(self) -> dict[Place, int]:
        return {}

    def remember(self, redeliveries: Mapping[Place, int]) -> None:
        del redeliveries  # Only shared consumers are told of them.

    @property
    def unacked(self) -> int:
        return 0

    def unacked_of(self, consumer: ConsumerKey) -> int:
        del consumer  # Only the cursor knows what is not acknowledged.
        return 0

    def oldest_unacked_of(self, consumer: ConsumerKey) -> Place | None:
        del consumer
        return None

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

    # -- inputs

    def joined(
        self,
        consumer: ConsumerKey,
        name: str = "",
        priority: int = 0,
        ranges: Sequence[SlotRange] = (),
    ) -> list[Effect]:
        del ranges
        assert self._active is None, "an exclusive subscription has one consumer"
        self._consumers[consumer] = Served(consumer, name, priority)
        return self._serve(consumer)

    def left(self, consumer: ConsumerKey) -> list[Effect]:
        del self._consumers[consumer]
        if consumer == self._active:
            self._active = None
            self._generation += 1  # A read that is under way was for the consumer that left.
        return []

    def permits_granted(self, consumer: ConsumerKey, messages: int) -> list[Effect]:
        self._consumers[consumer].permits += messages
        return []

    def connection_full(self, consumer: ConsumerKey) -> list[Effect]:
        self._consumers[consumer].writable = False
        return []

    def connection_writable(self, consumer: ConsumerKey) -> list[Effect]:
        self._consumers[consumer].writable = True
        return []

    def redelivery_requested(
        self, consumer: ConsumerKey, places: Sequence[Place] = ()
    ) -> list[Effect]:
        del places  # Deliveries are not remembered, so everything unacknowledged is read again.
        return self._rewind() if consumer == self._active else []

    def acked(
        self, consumer: ConsumerKey, places: Sequence[Place], unread: bool = False
    ) -> list[Effect]:
        """Free the permits of batches that the consumer could not read."""
        for place in places:
            taken = self._batches.take(place)
            if unread and consumer == self._active:
                self._consumers[consumer].permits += max(0, taken - 1)
        return []

    def acked_up_to(self, place: Place) -> list[Effect]:
        self._batches.take_up_to(place)
        return []

    def partly_acked(self, entries: Sequence[tuple[Place, int]]) -> list[Effect]:
        del entries  # Only the cursor knows what is not acknowledged.
        return []

    def cursor_moved(self) -> list[Effect]:
        return self._rewind()

    def put_aside(self, place: Place) -> None:
        raise AssertionError("the order of the log is promised, so no entry can be put aside")

    def bring_back(self, place: Place) -> None:
        del place  # None was put aside.

    def limit(self, limits: DispatchLimits) -> list[Effect]:
        self._limits = limits
        return []

    def tick(self, now_ms: int) -> list[Effect]:
        del now_ms
        return []

    def entries_read(self, want: Want, entries: Sequence[Entry]) -> list[Effect]:
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

    # -- the active consumer

    def _serve(self, consumer: ConsumerKey) -> list[Effect]:
        self._active = consumer
        self._batches.clear()
        return self._rewind()

    def _rewind(self) -> list[Effect]:
        self._generation += 1
        return [Rewind()]
