"""Key_shared subscriptions deliver the entries of each key in order.

    key-order    an entry came for the first time after a later entry of its key

Only first deliveries count: an entry that comes again may come behind others that its consumer has
already.  A subscription that was moved or deleted, and one whose consumers receive in several tasks
(which note their messages in any order), is not checked.
"""

from collections.abc import Iterator

from tests.history.events import Deliver, Seek, Subscribe, Unsubscribe
from tests.history.record import Record, Violation, parent


def check(record: Record) -> Iterator[Violation]:
    consumers: dict[str, Subscribe] = {}
    left_out: set[tuple[str, str]] = set()
    for stamped in record.events:
        match stamped.event:
            case Subscribe(topic, subscription, consumer, kind, _, tasks) as subscribe:
                consumers[consumer] = subscribe
                if kind != "key_shared" or tasks > 1:
                    left_out.add((parent(topic), subscription))
            case Seek(topic, subscription) | Unsubscribe(topic, subscription):
                left_out.add((parent(topic), subscription))
            case _:
                pass
    yield from _in_order(record, consumers, left_out)


def _in_order(
    record: Record, consumers: dict[str, Subscribe], left_out: set[tuple[str, str]]
) -> Iterator[Violation]:
    seen: set[tuple[str, str, tuple[int, int]]] = set()
    last: dict[tuple[str, str, str], tuple[int, int]] = {}
    for stamped in record.events:
        event = stamped.event
        if not isinstance(event, Deliver) or not event.key or event.consumer not in consumers:
            continue
        subscribe, topic = consumers[event.consumer], event.topic
        name = subscribe.subscription
        gone = record.deletions[topic] or record.deletions[parent(topic)]
        if (parent(subscribe.topic), name) in left_out or gone:
            continue
        entry = event.position[:2]
        if (topic, name, entry) in seen:
            continue
        seen.add((topic, name, entry))
        before = last.get((topic, name, event.key), entry)
        if entry < before:
            text = f"{event.consumer} got it after {before[0]}:{before[1]} of its key {event.key}"
            yield Violation("key-order", topic, event.value, text)
        last[topic, name, event.key] = max(entry, before)
