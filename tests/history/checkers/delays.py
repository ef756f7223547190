"""Shared and key_shared subscriptions deliver no message before it is due.

early    a message was delivered before the time that its producer has named
"""

from collections.abc import Iterator

from tests.history.events import Deliver, Subscribe
from tests.history.record import Record, Violation, show

_SHARED = ("shared", "key_shared")


def check(record: Record) -> Iterator[Violation]:
    if not any(sending.due_ns for sending in record.sends.values()):
        return
    shared: set[str] = set()
    for stamped in record.events:
        match stamped.event:
            case Subscribe(_, _, consumer, kind) if kind in _SHARED:
                shared.add(consumer)
            case Deliver(consumer, topic, position, value) if consumer in shared:
                sending = record.sends.get(value)
                if sending is not None and stamped.at_ns < sending.due_ns:
                    early_s = (sending.due_ns - stamped.at_ns) / 1e9
                    text = f"{consumer} got it {early_s:.3f} s before it was due"
                    yield Violation("early", topic, f"{value} {show(position)}", text)
            case _:
                pass
