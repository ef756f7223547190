"""A history as the checkers need it: the sends, and the contents of each topic at the end.

The *log* of a topic is what its last complete read found, after all faults were healed.  Without
such a read nothing can be said about loss, and that is a violation of its own.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tests.history.events import (
    Delete,
    Deleted,
    Error,
    HistoryError,
    Ok,
    Position,
    Read,
    ReadEnd,
    Run,
    Send,
    Spoils,
    Stamped,
    Trimmed,
    Unknown,
)
from tests.history.faults import Faults

_PARTITION = "-partition-"


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    topic: str
    about: str  # the value, position or ledger with the violation
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.topic} {self.about}: {self.text}"


@dataclass(slots=True)
class Sending:
    """A send, and its outcome."""

    topic: str
    producer: str
    seq: int
    value: str
    digest: str
    began_ns: int
    key: str = ""
    empty: bool = False
    outcome: str = "unknown"  # ok, error, unknown
    stored_in: str = ""  # the topic, or the partition
    position: Position | None = None
    ended_ns: int = 0

    def is_there_at(self, quiet_ns: int) -> bool:
        """Return True if the message is stored when all is quiet.

        All sends have an answer then, so a receipt that comes later is that of a repeat: the
        message was in doubt before, and may not have been stored.
        """
        later = self.outcome == "ok" and self.ended_ns > quiet_ns
        return self.began_ns <= quiet_ns and not later


@dataclass(slots=True)
class Log:
    """The messages of a topic at the end, in order."""

    topic: str
    reads: list[Read]
    index: dict[Position, int] = field(default_factory=dict[Position, int])
    places: dict[str, list[Position]] = field(default_factory=dict[str, list[Position]])
    sizes: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __post_init__(self) -> None:
        for number, read in enumerate(self.reads):
            self.index[read.position] = number
            self.places.setdefault(read.value, []).append(read.position)
            entry = read.position[:2]
            self.sizes[entry] = self.sizes.get(entry, 0) + 1


@dataclass(slots=True)
class Deletion:
    began_ns: int
    ended_ns: int | None = None  # None: not known


class Record:
    """The events, with the indexes that several checkers need."""

    def __init__(self, events: Sequence[Stamped]) -> None:
        if not events or not isinstance(events[0].event, Run):
            raise HistoryError("a history begins with a `run` event")
        self.run = events[0].event
        self.events = events
        self.faults = Faults(self.run, events)
        self.sends: dict[str, Sending] = {}
        self.by_seq: dict[tuple[str, int], Sending] = {}
        self.deletions: dict[str, list[Deletion]] = defaultdict(list)
        self.trimmed: dict[str, int] = {}  # the first ledger that is left
        self.spoiled: dict[str, None] = {}  # topics with entries that nobody can read
        self.read_of: dict[str, list[Read]] = defaultdict(list)  # by reader
        self._complete: dict[str, str] = {}  # by topic: the last reader that came to the end
        for stamped in events:
            self._take(stamped)

    def _take(self, stamped: Stamped) -> None:
        match stamped.event:
            case Send(topic, producer, seq, value, digest, key, empty):
                if value in self.sends:
                    raise HistoryError(f"{value} was sent twice by its application")
                sending = Sending(topic, producer, seq, value, digest, stamped.at_ns, key, empty)
                self.sends[value] = self.by_seq[producer, seq] = sending
            case Ok(topic, producer, seq, position):
                sending = self._sending(producer, seq)
                sending.outcome, sending.ended_ns = "ok", stamped.at_ns
                sending.stored_in, sending.position = topic, position
            case Error(producer, seq):
                sending = self._sending(producer, seq)
                sending.outcome, sending.ended_ns = "error", stamped.at_ns
            case Unknown(producer, seq):
                self._sending(producer, seq).ended_ns = stamped.at_ns
            case Delete(topic):
                self.deletions[topic].append(Deletion(stamped.at_ns))
            case Deleted(topic):
                self.deletions[topic][-1].ended_ns = stamped.at_ns
            case Trimmed(topic, ledger):
                self.trimmed[topic] = max(ledger, self.trimmed.get(topic, 0))
            case Spoils(topic):
                self.spoiled[topic] = None
            case Read(_, reader):
                self.read_of[reader].append(stamped.event)
            case ReadEnd(topic, reader):
                self._complete[topic] = reader
            case _:
                pass

    def _sending(self, producer: str, seq: int) -> Sending:
        sending = self.by_seq.get((producer, seq))
        if sending is None:
            raise HistoryError(f"{producer} has no send {seq}")
        if sending.outcome != "unknown" or sending.ended_ns:
            raise HistoryError(f"the send {seq} of {producer} has two outcomes")
        return sending

    @cached_property
    def logs(self) -> dict[str, Log]:
        """Return the logs by topic."""
        return {
            topic: Log(topic, [r for r in self.read_of[reader] if r.topic == topic])
            for topic, reader in self._complete.items()
        }

    def is_deleted(self, topic: str, began_ns: int) -> bool:
        """Return True if an operation that began then may have gone with the topic."""
        return any(
            deletion.ended_ns is None or began_ns < deletion.ended_ns
            for deletion in (*self.deletions[topic], *self.deletions[parent(topic)])
        )

    def is_trimmed(self, topic: str, position: Position) -> bool:
        return position[0] < self.trimmed.get(topic, 0)

    def oks(self) -> Iterator[tuple[Sending, Position]]:
        """Yield the sends with a receipt that names a position."""
        for sending in self.sends.values():
            if sending.position is not None and not is_repeat(sending.position):
                yield sending, sending.position

    def repeats(self) -> Iterator[Sending]:
        """Yield the sends whose receipt says that the topic had the message already."""
        for sending in self.sends.values():
            if sending.position is not None and is_repeat(sending.position):
                yield sending

    def place_of(self, producer: str, seq: int, receipt: Position) -> Position | None:
        """Return where the message lies; a receipt for a repeat does not say that, but the log."""
        if not is_repeat(receipt):
            return receipt
        sending = self.by_seq[producer, seq]
        log = self.logs.get(sending.stored_in)
        return None if log is None else next(iter(log.places.get(sending.value, [])), None)

    def is_deduplicated(self, topic: str) -> bool:
        return parent(topic) in self.run.deduplicated


def is_repeat(position: Position) -> bool:
    return position[0] < 0


def parent(topic: str) -> str:
    """Return the topic that a partition belongs to."""
    head, found, tail = topic.rpartition(_PARTITION)
    return head if found and tail.isdigit() else topic


def show(position: Position) -> str:
    ledger, entry, index = position
    return f"{ledger}:{entry}" if index < 0 else f"{ledger}:{entry}:{index}"
