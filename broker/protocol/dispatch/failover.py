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

from bisect import bisect_left

from daybook.broker.protocol.dispatch.events import Activate, ConsumerKey, DispatchLimits, Effect
from daybook.broker.protocol.dispatch.exclusive import ExclusiveDispatch, Served
from daybook.broker.protocol.dispatch.murmur import murmur3

_POINTS = 100


class FailoverDispatch(ExclusiveDispatch):
    """One instance per failover subscription.

    `partition` is -1 for a topic that is not a partition.  Only a `Tick` tells the time.
    """

    def __init__(self, limits: DispatchLimits, *, topic: str, partition: int) -> None:
        super().__init__(limits)
        self._topic_hash = murmur3(topic.encode())
        self._partition = partition
        self._change_due = False  # another consumer should be active than is
        self._deadline_ms: int | None = None

    @property
    def deadline_ms(self) -> int | None:
        """The time of the change.  0 asks for a `Tick` now, because only that tells the time."""
        if self._change_due and self._deadline_ms is None:
            return 0
        return self._deadline_ms

    def _joined(self, consumer: ConsumerKey) -> list[Effect]:
        chosen = self._choose()
        if self._active is None:
            return [*self._serve(chosen), *self._activations()]
        self._change_due = chosen != self._active
        self._deadline_ms = None
        return [Activate(consumer, active=False)]

    def _left(self, consumer: ConsumerKey) -> list[Effect]:
        effects = super()._left(consumer)
        if self._active is not None:
            self._change_due = self._choose() != self._active
            self._deadline_ms = None
            return effects
        self._change_due, self._deadline_ms = False, None
        if not self._consumers:
            return effects
        return [*effects, *self._serve(self._choose()), *self._activations()]

    def _tick(self, now_ms: int) -> list[Effect]:
        if not self._change_due:
            return []
        if self._deadline_ms is None:
            self._deadline_ms = now_ms + self._limits.failover_delay_ms
        if now_ms < self._deadline_ms:
            return []
        self._change_due, self._deadline_ms = False, None
        return [*self._serve(self._choose()), *self._activations()]

    def _choose(self) -> ConsumerKey:
        best = min(served.priority for served in self._consumers.values())
        candidates = sorted(
            (served for served in self._consumers.values() if served.priority == best),
            key=lambda served: (served.name, served.key),
        )
        if self._partition >= 0:
            return candidates[self._partition % len(candidates)].key
        return self._on_ring(candidates)

    def _on_ring(self, candidates: list[Served]) -> ConsumerKey:
        ring = {
            murmur3(f"{served.name}{point}".encode()): served.key
            for served in candidates
            for point in range(_POINTS)
        }
        points = sorted(ring)
        return ring[points[bisect_left(points, self._topic_hash) % len(points)]]
