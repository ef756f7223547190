"""Dispatch for a non-persistent subscription: an entry goes to a consumer at once, or is dropped.

    exclusive, failover    the active consumer gets everything that it has permits and room for
    shared                 consumers with permits and room take turns; those of the best priority
                           first
    key_shared             the consumer of the key gets the entry, or nobody does

Nothing is kept: there is no backlog, no acknowledgement and no redelivery.  An entry with several
messages needs one permit to be delivered, and takes as many as it has messages, as always.  A
failover subscription changes its active consumer without a pause, because no entry could be
delivered twice.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daybook.broker.protocol.dispatch.failover import FailoverDispatch
from daybook.broker.protocol.dispatch.interface import Activate, DispatchLimits, Effect, Entry
from daybook.broker.protocol.dispatch.places import ConsumerKey, SlotRange
from daybook.broker.protocol.dispatch.ranges import KeyRanges

_FAR_MS = 1 << 60


@dataclass(slots=True)
class _Consumer:
    priority: int
    permits: int = 0


@dataclass(slots=True)
class Assigned:
    """The entries of each consumer, in order, and how many messages nobody could take."""

    deliveries: dict[ConsumerKey, list[Entry]] = field(
        default_factory=dict[ConsumerKey, list[Entry]]
    )
    dropped: int = 0


class NonPersistentDispatch:
    """One instance per subscription, from its first consumer of a type to its last one.

    `failover`, the topic and its partition, is for a failover subscription only, and `ranges` for
    a key_shared one.
    """

    delayed = 0

    def __init__(
        self,
        *,
        shared: bool,
        failover: tuple[str, int] | None = None,
        ranges: KeyRanges | None = None,
    ) -> None:
        self.ranges = ranges
        self._shared = shared
        self._consumers: dict[ConsumerKey, _Consumer] = {}
        self._turns: deque[ConsumerKey] = deque()
        self._chooser: FailoverDispatch | None = None
        if failover is not None:
            topic, partition = failover
            self._chooser = FailoverDispatch(DispatchLimits(), topic=topic, partition=partition)

    # -- consumers

    def joined(
        self,
        consumer: ConsumerKey,
        name: str = "",
        priority: int = 0,
        ranges: Sequence[SlotRange] = (),
    ) -> list[Activate]:
        if self.ranges is not None:
            self.ranges.add(consumer, name, ranges)
        self._consumers[consumer] = _Consumer(priority)
        self._turns.append(consumer)
        if self._chooser is None:
            return []
        return self._chosen(self._chooser.joined(consumer, name, priority))

    def left(self, consumer: ConsumerKey) -> list[Activate]:
        if self.ranges is not None:
            self.ranges.remove(consumer)
        del self._consumers[consumer]
        self._turns.remove(consumer)
        return [] if self._chooser is None else self._chosen(self._chooser.left(consumer))

    def _chosen(self, effects: Sequence[Effect]) -> list[Activate]:
        """Return who becomes active or inactive; a change that is due is made now."""
        assert self._chooser is not None
        effects = [*effects, *self._chooser.tick(0), *self._chooser.tick(_FAR_MS)]
        return [effect for effect in effects if isinstance(effect, Activate)]

    def permits_granted(self, consumer: ConsumerKey, permits: int) -> None:
        self._consumers[consumer].permits += permits

    # -- properties

    @property
    def active(self) -> ConsumerKey | None:
        """The consumer that gets everything; None if several do."""
        if self._chooser is not None:
            return self._chooser.active
        if self._shared or self.ranges is not None:
            return None
        return next(iter(self._consumers), None)

    def permits_of(self, consumer: ConsumerKey) -> int:
        return self._consumers[consumer].permits

    def unacked_of(self, consumer: ConsumerKey) -> int:
        assert consumer in self._consumers
        return 0

    def is_blocked(self, consumer: ConsumerKey) -> bool:
        assert consumer in self._consumers
        return False

    # -- entries

    def assign(
        self, entries: Sequence[Entry], sizes: Sequence[int], rooms: Mapping[ConsumerKey, int]
    ) -> Assigned:
        """Give each entry to a consumer that can take it, or drop it.

        `rooms` has how many bytes can be queued for each consumer, and `sizes` how many each entry
        has.  The last entry that a consumer takes may exceed its room.
        """
        left = dict(rooms)
        assigned = Assigned()
        if self.ranges is not None:
            for entry, size in zip(entries, sizes, strict=True):
                owner = self.ranges.owner_of(entry.key)
                if owner is not None and self._takes(owner, left):
                    self._give(owner, entry, size, left, assigned)
                else:
                    assigned.dropped += entry.messages
            return assigned
        ready = self._ready(left)
        for entry, size in zip(entries, sizes, strict=True):
            while ready and not self._takes(ready[0], left):
                ready.popleft()
                if not ready:
                    ready = self._ready(left)
            if not ready:
                assigned.dropped += entry.messages
                continue
            key = ready[0]
            ready.rotate(-1)
            self._give(key, entry, size, left, assigned)
            if self._shared:  # The next assignment begins with another consumer.
                self._turns.remove(key)
                self._turns.append(key)
        return assigned

    def _give(
        self,
        consumer: ConsumerKey,
        entry: Entry,
        size: int,
        left: dict[ConsumerKey, int],
        assigned: Assigned,
    ) -> None:
        assigned.deliveries.setdefault(consumer, []).append(entry)
        self._consumers[consumer].permits -= entry.messages
        left[consumer] -= size

    def _takes(self, consumer: ConsumerKey, left: Mapping[ConsumerKey, int]) -> bool:
        return self._consumers[consumer].permits > 0 and left[consumer] > 0

    def _ready(self, left: Mapping[ConsumerKey, int]) -> deque[ConsumerKey]:
        """Return the consumers that can take entries and have the best priority, in turn."""
        if not self._shared:
            active = self.active
            return deque() if active is None or not self._takes(active, left) else deque([active])
        ready = [key for key in self._turns if self._takes(key, left)]
        best = min((self._consumers[key].priority for key in ready), default=0)
        return deque(key for key in ready if self._consumers[key].priority == best)
