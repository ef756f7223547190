"""A terminated topic has had its last message.

    terminated    a send has a receipt behind the last entry, or began after the end; or the
                  last read found a message there

The rule holds until the topic is deleted: another one may have its name.  If a deletion was under
way at the same time, nobody knows which of the two topics was terminated.
"""

from collections.abc import Iterator

from tests.history.events import Delete, Deleted, Ok, Terminate, Terminated
from tests.history.record import Record, Violation, parent, show


def check(record: Record) -> Iterator[Violation]:
    ended: dict[str, tuple[int, tuple[int, int]]] = {}  # by topic: the time, and the last entry
    going: dict[str, None] = {}  # topics that are being deleted
    unclear: dict[str, None] = {}  # deleted, or perhaps deleted, since their termination
    for stamped in record.events:
        match stamped.event:
            case Terminate(topic):
                unclear.pop(topic, None)
                if topic in going or parent(topic) in going:
                    unclear[topic] = None
            case Terminated(topic, last):
                if topic not in unclear:
                    ended.setdefault(topic, (stamped.at_ns, last))
            case Delete(topic):
                going[topic] = None
                for each in [each for each in ended if topic in (each, parent(each))]:
                    del ended[each]
                unclear.update(dict.fromkeys(_parts(record, topic)))
            case Deleted(topic):
                going.pop(topic, None)
            case Ok(topic, producer, seq, position) if topic in ended:
                at_ns, last = ended[topic]
                sending = record.by_seq[producer, seq]
                if position[:2] > last or sending.began_ns > at_ns:
                    text = f"its receipt says {show(position)}, the last entry was {show_end(last)}"
                    yield Violation("terminated", topic, sending.value, text)
            case _:
                pass
    for topic, (_, last) in ended.items():
        for read in record.logs[topic].reads if topic in record.logs else ():
            if read.position[:2] > last:
                text = f"it lies at {show(read.position)}, the last entry was {show_end(last)}"
                yield Violation("terminated", topic, read.value, text)


def _parts(record: Record, topic: str) -> list[str]:
    return [topic, *(each for each in record.logs if parent(each) == topic)]


def show_end(last: tuple[int, int]) -> str:
    return show((*last, -1))
