"""The sizes of messages that a stream has not read yet, as far as they are known.

Owners of partitions know the sizes of sealed ledgers.  A stream asks them again after a minute, so
that a short trigger costs no question.  A partition without sealed ledgers is judged by the entry
at which the trigger begins, once in that time.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from daybook.clients.python.errors import BrokerError
from daybook.clients.python.reader import TopicLedgers
from daybook.clients.spark.offsets import Partition, PartitionValues, Stored, stored_sizes
from daybook.clients.spark.topics import Held

FRESH_S = 60.0


@dataclass(frozen=True, slots=True)
class _Known:
    asked_s: float
    created: int | None
    sealed: tuple[Stored, ...]
    average: float | None


class KnownSizes:
    """One instance per query.  `sample` returns the size of a message at an offset."""

    def __init__(
        self,
        ledgers: Callable[[str], TopicLedgers],
        sample: Callable[[str, int], float],
        now: Callable[[], float],
    ) -> None:
        self._ledgers = ledgers
        self._sample = sample
        self._now = now
        self._known: dict[Partition, _Known] = {}

    def between(
        self, start: PartitionValues, end: PartitionValues, held: Held
    ) -> Mapping[Partition, list[Stored]]:
        """Return the sizes of what lies between the start and the end of each partition."""
        found: dict[Partition, list[Stored]] = {}
        for partition, until in end.items():
            begin = start.get(partition, until)
            if begin < until:
                known = self._of(partition, begin, held)
                found[partition] = stored_sizes(begin, until, known.sealed, known.average)
        return found

    def _of(self, partition: Partition, begin: int, held: Held) -> _Known:
        known = self._known.get(partition)
        created = held.partitions[partition].created
        now_s = self._now()
        if known is not None and known.created == created and now_s - known.asked_s < FRESH_S:
            return known
        topic = held.stored_in[partition]
        try:
            sealed = tuple(
                Stored(each.first, each.next, each.bytes) for each in self._ledgers(topic).sealed
            )
            if held.archived is not None:
                archived = held.archived.sizes(partition)
                end = archived[-1].next if archived else 0
                sealed = (*archived, *(each for each in sealed if each.first >= end))
            average = None if sealed else self._sample(topic, begin)
        except (BrokerError, TimeoutError):
            if known is None or known.created != created:
                raise
            return known  # Sizes that are a bit old are no reason to stop a stream.
        found = self._known[partition] = _Known(now_s, created, sealed, average)
        return found
