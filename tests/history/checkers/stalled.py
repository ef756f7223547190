"""A waiting reader gets new messages.

    stalled    all was healed, and no client acted: a reader that was there did not get the messages
               behind its last one; or, without one, behind the position where it starts

If a reader's start is not known, it is owed the messages that were sent after it was open.  The
messages that subscriptions owe their consumers are in `cursors`.
"""

from collections.abc import Iterator, Sequence

from tests.history.events import Follows, Quiet, Read, Stamped
from tests.history.record import Log, Record, Violation, show


def check(record: Record) -> Iterator[Violation]:
    for number, stamped in enumerate(record.events):
        if isinstance(stamped.event, Quiet):
            before = record.events[:number]
            for opened in before:
                if isinstance(opened.event, Follows) and opened.event.reader in stamped.event.there:
                    yield from _check(record, opened.event, opened.at_ns, before)


def _check(
    record: Record, opened: Follows, opened_ns: int, before: Sequence[Stamped]
) -> Iterator[Violation]:
    topic, reader, quiet_ns = opened.topic, opened.reader, before[-1].at_ns
    log = record.logs.get(topic) or Log(topic, [])
    had = [e.event for e in before if isinstance(e.event, Read) and e.event.reader == reader]
    for read in log.reads:
        sending = record.sends.get(read.value)
        if sending is None or not sending.is_there_at(quiet_ns):
            continue
        if had:
            owed = read.position > had[-1].position
        else:
            owed = opened.start == "earliest" or sending.began_ns > opened_ns
        if owed:
            about = f"{read.value} {show(read.position)}"
            yield Violation("stalled", topic, about, f"{reader} did not get it")
