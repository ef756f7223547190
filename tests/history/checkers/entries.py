"""Ledgers, as their writers, recoverers and readers see them.

lost-entry     a confirmed entry lies behind the end, or the last read did not find it
late-confirm   an entry behind the end was confirmed after a client had been told the end
entry-changed  an entry came back with other bytes than it was sent with
entry-phantom  an entry came back, or counts as in the ledger, that nobody had sent by then
entry-order    the entries that one reader was given have gaps, or go back
end-changed    two clients were told different ends, or different lengths
read-lost      the end is before an entry that a reader had seen or was told to be confirmed
lac-ahead      a reader was told of a confirmed entry that had not been sent by then
false-no       a reader was told that an existing entry, or ledger, does not exist
confirm-order  a writer's confirmations went back, or ran ahead of its sends
unread-ledger  it has confirmed entries, and nobody has read it after everything was healed
length         the length at the end is not the sum of the sizes
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.history.events import Stamped
from tests.history.ledger_events import (
    Append,
    Confirmed,
    Entries,
    LacSeen,
    LedgerCreate,
    LedgerDelete,
    LedgerEnd,
    LedgerRead,
    NoEntry,
)
from tests.history.record import Record, Violation


@dataclass(slots=True)
class _Sent:
    """The entries sent to a ledger, up to the present event."""

    digests: dict[int, str] = field(default_factory=dict[int, str])
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    whole: int = -1  # all entries up to here were sent
    confirmed: int = -1
    told: int = -1  # the highest entry that a reader has seen, or was told of
    told_by: str = ""
    end: LedgerEnd | None = None
    negatives: list[NoEntry] = field(default_factory=list[NoEntry])
    deleted: bool = False
    read: bool = False

    def append(self, event: Append) -> None:
        self.digests[event.entry] = event.digest
        self.sizes[event.entry] = event.size
        while self.whole + 1 in self.digests:
            self.whole += 1

    def tell(self, entry: int, reader: str) -> None:
        if entry > self.told:
            self.told, self.told_by = entry, reader


@dataclass(slots=True)
class _Stream:
    first: int
    behind: int  # the last entry that it was given


def check(record: Record) -> Iterator[Violation]:
    ledgers: dict[int, _Sent] = {}
    streams: dict[str, _Stream] = {}
    for stamped in record.events:
        event = stamped.event
        if isinstance(event, Entries):
            sent = ledgers.setdefault(event.ledger, _Sent())
            yield from _given(sent, event, streams)
        elif isinstance(event, LedgerRead):
            sent = ledgers.setdefault(event.ledger, _Sent())
            yield from _read(sent, event, streams.get(event.reader))
        else:
            yield from _step(ledgers, stamped)
    for ledger, sent in ledgers.items():
        yield from _afterwards(ledger, sent)


def _step(ledgers: dict[int, _Sent], stamped: Stamped) -> Iterator[Violation]:
    match stamped.event:
        case LedgerCreate(ledger):
            ledgers.setdefault(ledger, _Sent())
        case Append(ledger):
            ledgers.setdefault(ledger, _Sent()).append(stamped.event)
        case Confirmed(ledger):
            yield from _confirmed(ledgers.setdefault(ledger, _Sent()), stamped.event)
        case LedgerEnd(ledger):
            yield from _ended(ledgers.setdefault(ledger, _Sent()), stamped.event)
        case LacSeen(ledger, reader, entry):
            sent = ledgers.setdefault(ledger, _Sent())
            sent.tell(entry, reader)
            if entry > sent.whole:
                text = (
                    f"{reader} was told that it is confirmed; entries up to {sent.whole} were sent"
                )
                yield _violation("lac-ahead", ledger, entry, text)
        case NoEntry(ledger):
            sent = ledgers.setdefault(ledger, _Sent())
            if not sent.deleted:
                sent.negatives.append(stamped.event)
        case LedgerDelete(ledger):
            ledgers.setdefault(ledger, _Sent()).deleted = True
        case _:
            pass


def _confirmed(sent: _Sent, event: Confirmed) -> Iterator[Violation]:
    if event.entry < sent.confirmed or event.entry > sent.whole:
        text = f"behind {sent.confirmed}; entries up to {sent.whole} were sent"
        yield _violation("confirm-order", event.ledger, event.entry, text)
    sent.confirmed = max(sent.confirmed, event.entry)
    if sent.end is not None and event.entry > sent.end.last:
        text = f"{event.writer} was told so, after {sent.end.who} was told the end {sent.end.last}"
        yield _violation("late-confirm", event.ledger, event.entry, text)


def _ended(sent: _Sent, event: LedgerEnd) -> Iterator[Violation]:
    if sent.end is None:
        sent.end = event
        if event.last > sent.whole:
            text = f"{event.who} was told that it is the last; entries up to {sent.whole} were sent"
            yield _violation("entry-phantom", event.ledger, event.last, text)
            return
        length = sum(sent.sizes[entry] for entry in range(event.last + 1))
        if length != event.length:
            text = f"{event.length} bytes at its end, {length} were sent"
            yield Violation("length", "", f"ledger {event.ledger}", text)
        return
    before = sent.end
    if (event.last, event.length) != (before.last, before.length):
        text = (
            f"{before.who} was told {before.last} with {before.length} bytes ({before.how}),"
            f" {event.who} {event.last} with {event.length} ({event.how})"
        )
        yield Violation("end-changed", "", f"ledger {event.ledger}", text)


def _given(sent: _Sent, event: Entries, streams: dict[str, _Stream]) -> Iterator[Violation]:
    stream = streams.setdefault(event.reader, _Stream(event.first, event.first - 1))
    if event.first != stream.behind + 1:
        text = f"{event.reader} was given it behind {stream.behind}"
        yield _violation("entry-order", event.ledger, event.first, text)
    stream.behind = event.first + len(event.digests) - 1
    sent.tell(stream.behind, event.reader)
    for entry, digest in enumerate(event.digests, event.first):
        was = sent.digests.get(entry)
        if was is None:
            text = f"{event.reader} was given it, and nobody had sent it"
            yield _violation("entry-phantom", event.ledger, entry, text)
        elif was != digest:
            text = f"sent as {was}, {event.reader} was given {digest}"
            yield _violation("entry-changed", event.ledger, entry, text)


def _read(sent: _Sent, event: LedgerRead, stream: _Stream | None) -> Iterator[Violation]:
    """Check the claim of a reader that it has read the whole ledger."""
    sent.read = True
    first, behind = (0, -1) if stream is None else (stream.first, stream.behind)
    owed = max(sent.confirmed, -1 if sent.end is None else sent.end.last)
    if first or behind < owed:
        text = f"{event.reader} has read {first} to {behind}, and the ledger goes to {owed}"
        yield _violation("lost-entry", event.ledger, owed if not first else 0, text)


def _afterwards(ledger: int, sent: _Sent) -> Iterator[Violation]:
    end = sent.end
    if end is not None and sent.confirmed > end.last:
        text = f"it was confirmed, and {end.who} was told the end {end.last} ({end.how})"
        yield _violation("lost-entry", ledger, sent.confirmed, text)
    if end is not None and sent.told > end.last:
        text = f"{sent.told_by} knew of it, and the end is {end.last} ({end.how})"
        yield _violation("read-lost", ledger, sent.told, text)
    if sent.confirmed >= 0 and not sent.read and not sent.deleted:
        text = f"confirmed up to {sent.confirmed}"
        yield Violation("unread-ledger", "", f"ledger {ledger}", text)
    there = max(sent.confirmed, -1 if end is None else end.last)
    for negative in sent.negatives:
        if negative.entry <= there:
            text = f"{negative.reader} was told that it does not exist; there are those to {there}"
            yield _violation("false-no", ledger, negative.entry, text)


def _violation(rule: str, ledger: int, entry: int, text: str) -> Violation:
    return Violation(rule, "", f"ledger {ledger} entry {entry}", text)
