"""The messages that a subscription has to deliver, and its acknowledgements, event by event.

It is about one topic (or partition) and one subscription, over the log that the topic has at the
end.  Two things are known about each message: whether it is *free* (the subscription owes it to
nobody: an acknowledgement was sent, a seek went past it, it is older than the subscription), and
when its acknowledgement was sent and confirmed.
"""

import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.history.events import Ack, HistoryError, Position
from tests.history.record import Log

_Entry = tuple[int, int]


@dataclass(slots=True)
class AckTimes:
    """The times of an acknowledgement; the receipt may come, or not."""

    sent_ns: int
    confirmed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """All messages of an entry are acknowledged: first sent, last sent, confirmed at."""

    first_ns: int
    sent_ns: int
    confirmed_ns: int | None
    at_once: bool  # certainly all by one acknowledgement


_Acks = dict[tuple[str, int], tuple[AckTimes, Ack]]  # by consumer and number


def _parts(acks: _Acks) -> Iterator[tuple[tuple[str, _Entry], int, bool]]:
    """Yield for batches: (consumer, entry), index, and True if all before it are meant as well."""
    for (consumer, _), (_, ack) in acks.items():
        for ledger, entry, index in ack.positions:
            if index >= 0:
                yield (consumer, (ledger, entry)), index, ack.cumulative


class Owed:
    """The messages of the log that are not free, as a union-find structure."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._next = list(range(len(log.reads) + 1))  # the first message from there on that is owed

    def free(self, index: int) -> None:
        if self._next[index] == index:
            self._next[index] = index + 1

    def free_before(self, end: int) -> None:
        index = self.first(0)
        while index < end:
            self.free(index)
            index = self.first(index)

    def owe_from(self, start: int) -> None:
        """Owe everything from there on again."""
        free = [index for index in range(start) if self.first(index) != index]
        self._next = list(range(len(self.log.reads) + 1))
        for index in free:
            self.free(index)

    def __iter__(self) -> Iterator[int]:
        index = self.first(0)
        while index < len(self.log.reads):
            yield index
            index = self.first(index + 1)

    def first(self, start: int) -> int:
        """Return the first message from `start` on that is owed; the log's length if none is."""
        root = start
        while self._next[root] != root:
            root = self._next[root]
        while self._next[start] != root:
            self._next[start], start = root, self._next[start]
        return root


class Subscription:
    """One subscription, event by event.  `began`: when each message of the log was sent."""

    def __init__(self, log: Log, began: list[int]) -> None:
        self.log = log
        self.owed = Owed(log)
        self.since_ns: int | None = None  # the first request for it
        self.attached = False
        self.is_new = False  # it did not exist before
        self._from_earliest = True  # all consumers that may have created it wanted that
        self.sought_ns = -1  # when the last seek began
        self.seeking: dict[int, Position | str] = {}
        self._meanwhile: dict[int, list[Position | str]] = {}  # the targets of other seeks, by seek
        # Targets of seeks without an answer: each may have been carried out, or may yet be.
        self._unanswered: list[Position | str] = []
        self.changes = 0  # counts events after which deliveries may start over
        # Leaving consumers, and for each those whose deliveries started over since.
        self._leaving: dict[str, set[str]] = {}
        self._began = began
        self._single: dict[Position, AckTimes] = {}
        self._up_to: list[tuple[Position, int, AckTimes]] = []  # sorted; cumulative ones
        self._acks: _Acks = {}
        self._parts: dict[tuple[str, _Entry], set[int]] = {}  # by consumer; seeks leave them out

    # -- consumers that leave

    def leave(self, consumer: str) -> None:
        """Note that a consumer leaves: until it has `left`, others may start over at any time."""
        self._leaving[consumer] = set()

    def starts_over(self, consumer: str) -> bool:
        """Return True if a leaving consumer is the reason; each is a reason once."""
        for others in self._leaving.values():
            if consumer not in others:
                others.add(consumer)
                return True
        return False

    def left(self, consumer: str) -> set[str]:
        """Note that it has left, a reason to start over except for the returned consumers."""
        self.changes += 1
        return self._leaving.pop(consumer, set())

    # -- the beginning

    def asked_for(self, at_ns: int, start: str, *, is_new: bool) -> None:
        """Note a request; even a failed one may have created it, or it in one partition."""
        if self.since_ns is None:
            self.since_ns, self.is_new = at_ns, is_new
        if not self.attached and start != "earliest":
            self._from_earliest = False

    def may_begin_later(self) -> None:
        """Note that a consumer that was there may have created it, from the latest message."""
        self._from_earliest = False

    def got(self, at_ns: int) -> None:
        """Note that it exists.  From `latest`, or an unknown start, it owes only later messages."""
        if not self.attached:
            self.attached = True
            if not self._from_earliest or not self.is_new:
                self._free_until(at_ns)

    def trimmed(self, ledger: int) -> None:
        """Note that earlier ledgers are gone; a later subscription is not owed their messages."""
        if not self.attached:
            reads = self.log.reads
            self.owed.free_before(bisect_left(reads, ledger, key=lambda read: read.position[0]))

    def _free_until(self, at_ns: int) -> None:
        for index, began_ns in enumerate(self._began):
            if began_ns <= at_ns:
                self.owed.free(index)

    # -- acknowledgements

    def ack(self, consumer: str, ack: Ack, at_ns: int) -> None:
        times = AckTimes(at_ns)
        self._acks[consumer, ack.ack] = times, ack
        self._free(ack)
        for position in ack.positions:
            if ack.cumulative:
                insort(self._up_to, (position, len(self._up_to), times), key=lambda each: each[:2])
            else:
                known = self._single.get(position)
                if known is None or known.confirmed_ns is None:
                    self._single[position] = times

    def may_be_told(self, acks: Iterable[Ack]) -> None:
        """Apply acknowledgements that a new consumer may have kept from an earlier subscription."""
        for ack in acks:
            if ack.topic == self.log.topic:
                self._free(ack)

    def _free(self, ack: Ack) -> None:
        for position in ack.positions:
            if ack.cumulative:
                self.owed.free_before(self.index_after(position))
            elif (index := self.log.index.get(position)) is not None:
                self.owed.free(index)

    def acked(self, consumer: str, ack: int, at_ns: int) -> None:
        found = self._acks.get((consumer, ack))
        if found is not None and not self.seeking:
            found[0].confirmed_ns = at_ns

    def index_after(self, position: Position) -> int:
        """Return how many messages of the log are at this position or before it."""
        index = self.log.index.get(position)
        if index is not None:
            return index + 1
        return bisect_left(self.log.reads, position, key=lambda read: read.position)

    def owed_until(self, at_ns: int) -> Iterator[int]:
        """Yield the messages that were sent before that, and are owed."""
        return (index for index in self.owed if 0 < self._began[index] < at_ns)

    def settled(self, position: Position, *, whole_entry: bool) -> Settled | None:
        """Return since when a message, or all of its entry, is acknowledged; None if it is not."""
        ledger, entry, index = position
        count = self.log.sizes.get((ledger, entry))
        if index >= 0 and whole_entry and count is None:
            return None
        members = [position]
        if index >= 0 and count is not None:
            members = [(ledger, entry, i) for i in range(count)]
        of_entry = [self._times(member) for member in members]
        found = of_entry if whole_entry else [self._times(position)]
        times = [each for each in found if each is not None]
        if len(times) < len(found):
            return None
        # Nobody knows how many messages a batch had that was trimmed before the last read.
        is_known = index < 0 or count is not None
        confirmed = [each.confirmed_ns for each in times if each.confirmed_ns is not None]
        return Settled(
            min(each.sent_ns for each in times),
            max(each.sent_ns for each in times),
            max(confirmed) if len(confirmed) == len(times) else None,
            at_once=(is_known or self._covers_entry(times[0], (ledger, entry)))
            and all(each is times[0] for each in of_entry),
        )

    def _covers_entry(self, times: AckTimes, entry: _Entry) -> bool:
        """Return True if the acknowledgement is cumulative, and of a later entry."""
        behind = bisect_left(self._up_to, (*entry, sys.maxsize), key=lambda each: each[0])
        return any(each[2] is times for each in self._up_to[behind : behind + _COVERING_MAX])

    def _times(self, position: Position) -> AckTimes | None:
        single = self._single.get(position)
        if single is not None and single.confirmed_ns is not None:
            return single
        at = bisect_left(self._up_to, (position, -1), key=lambda each: each[:2])
        covering = [each[2] for each in self._up_to[at : at + _COVERING_MAX]]
        confirmed = [each for each in covering if each.confirmed_ns is not None]
        return next(iter(confirmed), None) or single or next(iter(covering), None)

    # -- policies

    def free_until(self, at_ns: int) -> None:
        """Note that a broker may have acknowledged what was sent until then."""
        self._free_until(at_ns)

    def began_until(self, index: int, at_ns: int) -> bool:
        return self._began[index] <= at_ns

    # -- seeks

    def seek(self, seek: int, to: Position | str, at_ns: int, *, answered: bool) -> None:
        self.changes += 1
        self.sought_ns = at_ns
        if answered:
            self.seeking[seek] = to
            self._meanwhile[seek] = []
            return
        self._unanswered.append(to)
        self._let_go_unanswered()

    @property
    def unclear(self) -> bool:
        """True if a seek has no answer."""
        return bool(self._unanswered)

    def _let_go_unanswered(self) -> None:
        """Free what the seeks without an answer may pass over, whenever they are carried out."""
        for to in self._unanswered:
            self._let_go(to, max(self._began, default=0))

    def _let_go(self, to: Position | str, at_ns: int) -> None:
        """Free the messages that a seek passes over."""
        if to in _AWAY:
            self._free_until(at_ns)
        else:
            self.owed.free_before(self._start_of(to))

    def sought(self, seek: int, at_ns: int, consumer: str) -> None:
        """Apply a seek: acknowledgements are forgotten, later messages are owed again.

        The instant of the seek is not known.  An acknowledgement that was sent in between, or that
        had no receipt before, may have come after it; so may another seek.  And consumers that were
        not told of the seek still leave out the messages that they have acknowledged in batches
        that they have not finished.
        """
        to, others = self.seeking.pop(seek), self._meanwhile.pop(seek)
        for meanwhile in self._meanwhile.values():
            meanwhile.append(to)
        self.changes += 1
        meanwhile_acked = {
            key: (times, ack)
            for key, (times, ack) in self._acks.items()
            if times.confirmed_ns is None or times.confirmed_ns > self.sought_ns
        }
        left_out = self._parts_of_batches(consumer, meanwhile_acked)
        self._acks = meanwhile_acked
        self._single.clear()
        self._up_to.clear()
        self.owed.owe_from(0 if to in _AWAY else self._start_of(to))
        for each in [to, *others]:
            self._let_go(each, at_ns)
        self._let_go_unanswered()
        for _, ack in self._acks.values():
            self._free(ack)
        for index in left_out:
            self.owed.free(index)
        # The seeker leaves out the earlier messages of that batch.
        if not isinstance(to, str) and to[2] > 0:
            self._parts.setdefault((consumer, to[:2]), set()).update(range(to[2]))

    def _parts_of_batches(self, seeker: str, meanwhile: _Acks) -> list[int]:
        """Return messages that consumers other than the seeker have acknowledged, of entries that
        they have not finished: the rest of such an entry went to another consumer, or is still to
        come.  Entries whose last acknowledgement may have come after the seek count, too: it
        covered all of their messages.
        """
        acked = {of: set(parts) for of, parts in self._parts.items() if of[0] != seeker}
        for of, index, cumulative in _parts(self._acks):
            if of[0] != seeker:
                acked.setdefault(of, set()).update(range(index + 1) if cumulative else [index])
        late = {of for of, _, _ in _parts(meanwhile)}
        self._parts = {
            of: indexes
            for of, indexes in acked.items()
            if of in late or len(indexes) < self.log.sizes.get(of[1], 0)
        }
        places = [
            (*entry, index)
            for (_, entry), indexes in self._parts.items()
            for index in sorted(indexes)
        ]
        return [self.log.index[place] for place in places if place in self.log.index]

    def _start_of(self, to: Position | str) -> int:
        if isinstance(to, str):
            if to != "earliest":
                raise HistoryError(f"a seek to {to}")
            return 0
        return bisect_left(self.log.reads, to, key=lambda read: read.position)


_AWAY = ("latest", "time")  # only later messages are owed for certain
_COVERING_MAX = 8  # cumulative acknowledgements that are considered for one message
