"""Positions agree with receipts, with the order of sends, with time, and with each other.

receipts           the receipts of a producer come in the order of its sends
nonmonotonic-send  a producer's messages lie in the log in the order of its sends
realtime           a message acknowledged before another send began lies before the other one
inconsistent       one position was seen with two messages
read-order         a reader went backwards, or skipped a message; or its offsets do not count up
"""

from collections import defaultdict
from collections.abc import Iterator

from tests.history.compaction_events import LatestRead
from tests.history.events import Deliver, Ok, Position, Read, Send
from tests.history.record import Log, Record, Violation, show


def check(record: Record) -> Iterator[Violation]:
    yield from _receipts(record)
    yield from _producers(record)
    yield from _realtime(record)
    yield from _agreement(record)
    for reader, reads in record.read_of.items():
        yield from _reader(record, reader, reads)


def _receipts(record: Record) -> Iterator[Violation]:
    last: dict[tuple[str, str], int] = {}
    for stamped in record.events:
        match stamped.event:
            case Ok(topic, producer, seq, position):
                before = last.get((producer, topic), -1)
                if seq < before:
                    text = f"the receipt for {show(position)} came after that of send {before}"
                    yield Violation("receipts", topic, f"{producer}/{seq}", text)
                last[producer, topic] = max(seq, before)
            case _:
                pass


def _producers(record: Record) -> Iterator[Violation]:
    """Check the first positions; second ones are the subject of `duplicates`."""
    for topic, log in record.logs.items():
        last: dict[str, int] = {}
        for value in log.places:
            sending = record.sends.get(value)
            if sending is None:
                continue
            before = last.get(sending.producer, -1)
            if sending.seq < before:
                text = f"{show(log.places[value][0])} lies behind its producer's send {before}"
                yield Violation("nonmonotonic-send", topic, value, text)
            last[sending.producer] = max(before, sending.seq)


def _realtime(record: Record) -> Iterator[Violation]:
    highest: dict[str, dict[str, Position]] = defaultdict(dict)  # the last acknowledged so far
    floor: dict[tuple[str, int], dict[str, Position]] = {}  # the same when a send began
    for stamped in record.events:
        match stamped.event:
            case Send(topic, producer, seq):
                floor[producer, seq] = dict(highest[topic])  # per partition, if there are any
            case Ok(topic, producer, seq, receipt):
                position = record.place_of(producer, seq, receipt)
                if position is None:
                    continue
                before = floor.pop((producer, seq), {}).get(topic)
                if before is not None and position <= before:
                    text = f"{show(position)}, although {show(before)} was acknowledged before"
                    yield Violation("realtime", topic, f"{producer}/{seq}", text)
                group = highest[record.by_seq[producer, seq].topic]
                group[topic] = max(position, group.get(topic, position))
            case _:
                pass


def _agreement(record: Record) -> Iterator[Violation]:
    seen: dict[tuple[str, Position], str] = {}
    for sending, position in record.oks():
        key = (sending.stored_in, position)
        first = seen.setdefault(key, sending.value)
        if first != sending.value:
            text = f"the receipts of {first} and of {sending.value} say so"
            yield Violation("inconsistent", sending.stored_in, show(position), text)
    for stamped in record.events:
        event = stamped.event
        if isinstance(event, Read | Deliver | LatestRead):
            first = seen.setdefault((event.topic, event.position), event.value)
            if first != event.value:
                text = f"{first} and {event.value}"
                yield Violation("inconsistent", event.topic, show(event.position), text)


def _reader(record: Record, reader: str, reads: list[Read]) -> Iterator[Violation]:
    last: dict[str, Read] = {}
    for read in reads:
        before = last.get(read.topic)
        last[read.topic] = read
        if before is None:
            continue
        if read.position <= before.position:
            text = f"{reader} got it after {show(before.position)}"
            yield Violation("read-order", read.topic, show(read.position), text)
        elif not _may_follow(record, before, read):
            text = f"offset {read.offset} after {before.offset}"
            yield Violation("read-order", read.topic, show(read.position), text)
        log = record.logs.get(read.topic)
        if log is not None:
            yield from _next_in_log(record, log, reader, before, read)


def _may_follow(record: Record, before: Read, read: Read) -> bool:
    """Return True if the offset counts up.  It need not across messages that retention or a
    deletion took, or that nobody can read.
    """
    if read.offset is None or before.offset is None or record.deletions[read.topic]:
        return True
    if read.topic in record.spoiled:
        return read.offset > before.offset
    return read.offset == before.offset + 1 or record.is_trimmed(read.topic, before.position)


def _next_in_log(
    record: Record, log: Log, reader: str, before: Read, read: Read
) -> Iterator[Violation]:
    here, there = log.index.get(read.position), log.index.get(before.position)
    if here is None:
        if not record.is_trimmed(read.topic, read.position) and not record.deletions[read.topic]:
            text = f"{reader} has read it, and the last read has not found it"
            yield Violation("lost-write", read.topic, show(read.position), text)
    elif there is not None and here > there + 1:
        skipped = log.reads[there + 1]
        text = f"{reader} went from {show(before.position)} to {show(read.position)}"
        yield Violation("read-order", read.topic, f"{skipped.value} was skipped", text)
