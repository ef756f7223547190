"""Readers of the latest messages, and table views, get the newest message of each key.

    latest-order   such a reader went backwards
    latest-lost    it passed a message with a key, and no later message of this key was sent by then
    latest-missing it came to the end, or had time to, without the newest message of a key
    view-back      a table view went back to an older value of a key

The partitions of a topic are looked at one by one.  A subscription that reads the latest messages
gets some of them again, so only the last rule but one counts for it.

A message without a key, and a tombstone, may always be gone.  So may a message that retention
deleted before the first compacted ledger was in force; from then on the log keeps what no compacted
ledger has.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.history.compaction_events import (
    Compacted,
    LatestEnd,
    LatestFollows,
    LatestRead,
    ViewChange,
)
from tests.history.events import Position, Quiet, Trimmed
from tests.history.policies import Policies
from tests.history.policy_events import Expired, MayEvict, MayExpire
from tests.history.record import Record, Sending, Violation, parent, show

_NOWHERE: Position = (-1, -1, -1)
_NEVER = 1 << 62


@dataclass(slots=True)
class _Reader:
    topic: str
    durable: bool
    at: dict[str, Position] = field(default_factory=dict[str, Position])  # by partition
    values: dict[str, None] = field(default_factory=dict[str, None])  # all that it got
    # For views, by key: the partition, and the place there.
    places: dict[str, tuple[str, Position]] = field(default_factory=dict[str, tuple[str, Position]])
    table: dict[str, str] = field(default_factory=dict[str, str])  # for views: the present values
    is_view: bool = False


class _Stored:
    """The messages of a topic that are known to be stored, in the order of their positions."""

    def __init__(self, record: Record, topic: str) -> None:
        found: dict[Position, Sending] = {}
        log = record.logs.get(topic)
        for read in () if log is None else log.reads:
            if (sending := record.sends.get(read.value)) is not None:
                found[read.position] = sending
        for sending, position in record.oks():
            if sending.stored_in == topic:
                found[position] = sending
        self.messages = sorted(found.items(), key=lambda pair: pair[0])
        self.places: dict[str, list[Position]] = defaultdict(list)
        self.by_key: dict[str, list[tuple[Position, Sending]]] = defaultdict(list)
        for position, sending in self.messages:
            self.places[sending.value].append(position)
            if sending.key:
                self.by_key[sending.key].append((position, sending))
        # By key: since when a message may be stored whose place is not known.
        self.doubtful: dict[str, int] = {}
        for sending in record.sends.values():
            unclear = sending.outcome != "error" and sending.value not in self.places
            if sending.topic in (topic, parent(topic)) and sending.key and unclear:
                before = self.doubtful.get(sending.key, _NEVER)
                self.doubtful[sending.key] = min(sending.began_ns, before)

    def between(self, after: Position, before: Position) -> Iterator[tuple[Position, Sending]]:
        start = bisect_left(self.messages, after, key=lambda pair: pair[0])
        for position, sending in self.messages[start:]:
            if position >= before:
                return
            if position > after:
                yield position, sending

    def is_replaced(self, position: Position, key: str, at_ns: int) -> bool:
        """Return True if a later message of the key may have been stored at that time."""
        later = (s.began_ns for p, s in self.by_key[key] if p > position)
        return min(later, default=_NEVER) < at_ns or self.doubtful.get(key, _NEVER) < at_ns


def check(record: Record) -> Iterator[Violation]:
    if any(isinstance(each.event, LatestFollows) for each in record.events):
        yield from _Check(record).run()


class _Check:
    def __init__(self, record: Record) -> None:
        self._record = record
        self._readers: dict[str, _Reader] = {}
        self._stored: dict[str, _Stored] = {}
        self._floors = _floors(record)
        self._policies = Policies(record)

    def run(self) -> Iterator[Violation]:
        for stamped in self._record.events:
            match stamped.event:
                case MayExpire() | Expired() | MayEvict():
                    self._policies.note(stamped.event, stamped.at_ns)
                case LatestFollows(topic, reader, durable):
                    self._readers.setdefault(reader, _Reader(topic, durable))
                case LatestRead():
                    yield from self._read(stamped.event, stamped.at_ns)
                case ViewChange():
                    yield from self._changed(stamped.event)
                case LatestEnd(_, reader):
                    yield from self._missing(reader, stamped.at_ns)
                case Quiet(there):
                    # The consumers of a subscription have its name, with a number.
                    names = [of for each in there for of in (each, each.rpartition(".")[0])]
                    for reader in names:
                        if reader in self._readers:
                            yield from self._missing(reader, stamped.at_ns)
                case _:
                    pass

    def _of(self, topic: str) -> _Stored:
        if topic not in self._stored:
            self._stored[topic] = _Stored(self._record, topic)
        return self._stored[topic]

    def _parts(self, topic: str) -> list[str]:
        """Return the topic, or its partitions."""
        return [each for each in self._record.logs if parent(each) == topic] or [topic]

    def _is_left_out(self, topic: str) -> bool:
        return bool(self._record.deletions[topic] or self._record.deletions[parent(topic)])

    def _may_be_gone(self, topic: str, position: Position, sending: Sending) -> bool:
        floor = self._floors.get(topic, self._record.trimmed.get(topic, 0))
        return not sending.key or sending.empty or position[0] < floor

    def _may_be_acknowledged(self, topic: str, sending: Sending, at_ns: int) -> bool:
        """Return True if a policy may have acknowledged the message for all subscriptions."""
        policies = self._policies
        return policies.evicts(topic) or sending.began_ns <= policies.expired_until(
            topic, "", at_ns
        )

    def _read(self, read: LatestRead, at_ns: int) -> Iterator[Violation]:
        reader = self._readers[read.reader]
        if self._is_left_out(read.topic):
            return
        if reader.durable:
            reader.values[read.value] = None
            return
        at = reader.at.get(read.topic, _NOWHERE)
        if read.position <= at:
            text = f"{read.reader} got it after {show(at)}"
            yield Violation("latest-order", read.topic, show(read.position), text)
            return
        stored = self._of(read.topic)
        for position, sending in stored.between(at, read.position):
            if self._may_be_gone(read.topic, position, sending):
                continue
            if not stored.is_replaced(position, sending.key, at_ns):
                text = f"{read.reader} went from {show(at)} to {show(read.position)}"
                about = f"{sending.value} {show(position)}"
                yield Violation("latest-lost", read.topic, about, text)
        reader.at[read.topic] = read.position
        reader.values[read.value] = None

    def _changed(self, change: ViewChange) -> Iterator[Violation]:
        view = self._readers[change.reader]
        view.is_view = True
        if not change.value:
            view.table.pop(change.key, None)
            return
        view.table[change.key] = change.value
        found = [
            part for part in self._parts(change.topic) if change.value in self._of(part).places
        ]
        if len(found) != 1 or self._is_left_out(change.topic):
            return  # Its send is in doubt, and retention has deleted it; or it is there twice.
        if self._may_have_another_copy(change, found[0]):
            return
        part, places = found[0], self._of(found[0]).places[change.value]
        before_part, before = view.places.get(change.key, (part, _NOWHERE))
        if before_part != part:  # The topic got more partitions, and the key went elsewhere.
            before = _NOWHERE
        later = [each for each in places if each > before]
        if not later:
            text = f"{change.reader} had {show(before)} of the key {change.key} before"
            yield Violation("view-back", change.topic, change.value, text)
            return
        view.places[change.key] = part, later[0]

    def _may_have_another_copy(self, change: ViewChange, part: str) -> bool:
        """Return True if the message may have been stored twice, and retention deleted one copy."""
        sending = self._record.sends.get(change.value)
        if sending is None or not self._record.trimmed.get(part):
            return False
        ended_ns = sending.ended_ns or _NEVER
        return self._record.faults.touch(sending.began_ns, ended_ns)

    def _missing(self, name: str, at_ns: int) -> Iterator[Violation]:
        reader = self._readers[name]
        if self._is_left_out(reader.topic):
            return
        for part in self._parts(reader.topic):
            yield from self._missing_of(name, part, at_ns)

    def _missing_of(self, name: str, topic: str, at_ns: int) -> Iterator[Violation]:
        reader, stored = self._readers[name], self._of(topic)
        others = [self._of(each) for each in self._parts(reader.topic) if each != topic]
        for key, messages in stored.by_key.items():
            if reader.is_view and any(key in each.by_key for each in others):
                continue  # The topic got more partitions, and the key went elsewhere.
            there = [each for each in messages if each[1].is_there_at(at_ns)]
            if not there or len(there) < len(messages) or key in stored.doubtful:
                continue
            position, sending = there[-1]
            if self._may_be_gone(topic, position, sending):
                continue
            if reader.durable and self._may_be_acknowledged(topic, sending, at_ns):
                continue
            has = reader.table.get(key) if reader.is_view else None
            if sending.value not in (has, *reader.values):
                about = f"{sending.value} {show(position)}"
                text = f"{name} does not have it, and it is the newest of the key {key}"
                yield Violation("latest-missing", topic, about, text)


def _floors(record: Record) -> dict[str, int]:
    """Return, by topic, the first ledger that was left when a compacted ledger was in force."""
    trimmed: dict[str, int] = {}
    found: dict[str, int] = {}
    for stamped in record.events:
        match stamped.event:
            case Trimmed(topic, ledger):
                trimmed[topic] = max(ledger, trimmed.get(topic, 0))
            case Compacted(topic):
                found.setdefault(topic, trimmed.get(topic, 0))
            case _:
                pass
    return found
