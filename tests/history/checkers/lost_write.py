"""Acknowledged messages are where their receipts say; messages that were never sent are nowhere.

lost-write    a send with a receipt is missing in the log
position      the message is at another position than its receipt says
phantom       a message was read or delivered that nobody sent there, or whose send had failed
changed       the message came back with other bytes
unread        a topic with receipts has no complete read: nothing was checked
"""

from collections.abc import Iterator

from tests.history.compaction_events import LatestRead
from tests.history.events import Deliver, Position, Read
from tests.history.record import Record, Sending, Violation, parent, show


def check(record: Record) -> Iterator[Violation]:
    yield from _losses(record)
    yield from _phantoms(record)


def _losses(record: Record) -> Iterator[Violation]:
    unread: dict[str, None] = {}
    for sending, position in record.oks():
        topic = sending.stored_in
        if record.is_deleted(topic, sending.began_ns) or record.is_trimmed(topic, position):
            continue
        log = record.logs.get(topic)
        if log is None:
            unread[topic] = None
        elif sending.value not in log.places:
            text = f"{sending.producer} had a receipt for {show(position)}"
            yield Violation("lost-write", topic, sending.value, text)
        elif position not in log.places[sending.value]:
            text = f"the receipt says {show(position)}, it is at {_places(log.places, sending)}"
            yield Violation("position", topic, sending.value, text)
    for sending in record.repeats():
        topic = sending.stored_in
        log = record.logs.get(topic)
        if not record.is_deduplicated(topic):
            text = "the receipt says that it is a repeat, and the topic is not deduplicated"
            yield Violation("position", topic, sending.value, text)
        elif log is None:
            unread[topic] = None
        elif (
            sending.value not in log.places
            and not record.is_deleted(topic, sending.began_ns)
            and topic not in record.trimmed
        ):
            text = f"{sending.producer} was told that the topic has it already"
            yield Violation("lost-write", topic, sending.value, text)
    for topic in unread:
        yield Violation("unread", topic, "", "nobody has read it to its end after the faults")


def _places(places: dict[str, list[Position]], sending: Sending) -> str:
    return ", ".join(map(show, places[sending.value]))


def _phantoms(record: Record) -> Iterator[Violation]:
    for stamped in record.events:
        event = stamped.event
        if not isinstance(event, Read | Deliver | LatestRead):
            continue
        sending = record.sends.get(event.value)
        where = f"at {show(event.position)}"
        if sending is None:
            yield Violation("phantom", event.topic, event.value, f"nobody sent it; {where}")
        elif sending.topic not in (event.topic, parent(event.topic)):
            text = f"it was sent to {sending.topic}; {where}"
            yield Violation("phantom", event.topic, event.value, text)
        elif sending.began_ns > stamped.at_ns:
            text = f"it came before it was sent; {where}"
            yield Violation("phantom", event.topic, event.value, text)
        elif sending.outcome == "error":
            text = f"its producer was told that it is not stored; {where}"
            yield Violation("phantom", event.topic, event.value, text)
        elif sending.digest != event.digest:
            text = f"sent as {sending.digest}, came as {event.digest}; {where}"
            yield Violation("changed", event.topic, event.value, text)
