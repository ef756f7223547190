"""Failover: several consumers, of which one gets everything, in the order of the log.

The active consumer follows from the set of consumers, so that the partitions of a topic are spread
over them:

    a partition      consumers are sorted by priority, then by name; those with the best priority
                     take turns by the partition's index
    other topics     a ring of hashes with 100 points for each consumer; the first point from the
                     hash of the topic's name on wins

When the active consumer leaves, the next one takes over at once.  If a consumer joins that would be
chosen instead, it has to wait a moment: consumers often come together, and each change of the
active one delivers entries twice.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import TypeAlias

from daybook.broker.protocol.dispatch.exclusive import ExclusiveDispatch, Served
from daybook.broker.protocol.dispatch.interface import Activate, DispatchLimits, Effect
from daybook.broker.protocol.dispatch.murmur import murmur3, murmur3_each
from daybook.broker.protocol.dispatch.places import ConsumerKey, SlotRange

_POINTS = [str(point).encode() for point in range(100)]
_RING = 1 << 31

# Priority, how far it is on the ring from the topic's hash to its next point, name, key.
_Rank: TypeAlias = tuple[int, int, str, ConsumerKey]


class FailoverDispatch(ExclusiveDispatch):
    """One instance per failover subscription.

    `partition` is -1 for a topic that is not a partition.  Only `tick` tells the time.
    """

    def __init__(self, limits: DispatchLimits, *, topic: str, partition: int) -> None:
        super().__init__(limits)
        self._topic_hash = murmur3(topic.encode())
        self._partition = partition
        self._ranks: list[_Rank] = []  # the ranks of all consumers, sorted
        self._rank: dict[ConsumerKey, _Rank] = {}
        self._change_due = False  # another consumer should be active than is
        self._deadline_ms: int | None = None

    @property
    def deadline_ms(self) -> int | None:
        """The time of the change.  0 asks for a `tick` now, because only that tells the time."""
        if self._change_due and self._deadline_ms is None:
            return 0
        return self._deadline_ms

    def joined(
        self,
        consumer: ConsumerKey,
        name: str = "",
        priority: int = 0,
        ranges: Sequence[SlotRange] = (),
    ) -> list[Effect]:
        del ranges
        served = self._consumers[consumer] = Served(consumer, name, priority)
        rank = self._rank[consumer] = self._rank_of(served)
        insort(self._ranks, rank)
        chosen = self._choose()
        if self._active is None:
            return self._change(chosen)
        # This also cancels a change that is due if the choice is the active consumer again.
        self._change_due = chosen != self._active
        self._deadline_ms = None
        return [Activate(consumer, active=False)]

    def left(self, consumer: ConsumerKey) -> list[Effect]:
        effects = super().left(consumer)
        del self._ranks[bisect_left(self._ranks, self._rank.pop(consumer))]
        if self._active is not None:
            self._change_due = self._choose() != self._active
            self._deadline_ms = None
            return effects
        # No consumer is active, so there is nothing to wait for.
        self._change_due, self._deadline_ms = False, None
        if not self._consumers:
            return effects
        return [*effects, *self._change(self._choose())]

    def tick(self, now_ms: int) -> list[Effect]:
        if not self._change_due:
            return []
        if self._deadline_ms is None:
            self._deadline_ms = now_ms + self._limits.failover_delay_ms
        if now_ms < self._deadline_ms:
            return []
        self._change_due, self._deadline_ms = False, None
        return self._change(self._choose())

    def _change(self, chosen: ConsumerKey) -> list[Effect]:
        """Those who are not concerned have been told when they came."""
        before = self._active
        effects = self._serve(chosen)
        if before is not None and before != chosen:
            effects.append(Activate(before, active=False))
        return [*effects, Activate(chosen, active=True)]

    def _rank_of(self, served: Served) -> _Rank:
        if self._partition >= 0:
            return served.priority, 0, served.name, served.key
        points = murmur3_each(served.name.encode(), _POINTS)
        distance = min((point - self._topic_hash) % _RING for point in points)
        return served.priority, distance, served.name, served.key

    def _choose(self) -> ConsumerKey:
        ranks = self._ranks
        priority, distance, _, _ = ranks[0]
        if self._partition >= 0:
            best = bisect_right(ranks, priority, key=lambda rank: rank[0])
            return ranks[self._partition % best][-1]
        nearest = bisect_right(ranks, (priority, distance), key=lambda rank: rank[:2])
        return ranks[nearest - 1][-1]  # At the same point the last consumer by name is active.
