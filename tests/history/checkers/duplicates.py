"""Messages that are stored twice.

With deduplication, there are none.  Without it, a client may send a message again: a send without a
receipt, or one whose receipt came while connections broke or topics moved.
"""

from collections.abc import Iterator

from tests.history.record import Record, Violation, show


def check(record: Record) -> Iterator[Violation]:
    for topic, log in record.logs.items():
        for value, places in log.places.items():
            sending = record.sends.get(value)
            if len(places) == 1 or sending is None:
                continue
            if record.is_deduplicated(topic):
                why = "the topic is deduplicated"
            elif sending.outcome == "ok" and not record.faults.touch(
                sending.began_ns, sending.ended_ns
            ):
                why = "nothing was wrong while it was sent"
            else:
                continue
            text = f"at {', '.join(map(show, places))}, and {why}"
            yield Violation("duplicate", topic, value, text)
