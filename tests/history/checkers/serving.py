"""A broker delivers from a topic only when the topic is its own, and the tail is recovered (O4).

early-delivery   the first delivery of a process: it has not written the topic's list before, or
                 a ledger of that list that another process has made is not closed

If the process that wrote the list or made a ledger is not known, nothing is judged; so nothing is
judged in histories of real processes, whose lists are not observed.
"""

from collections.abc import Iterator

from tests.history.events import (
    Attached,
    Belongs,
    Deliver,
    LedgerVersion,
    ListGone,
    ListVersion,
)
from tests.history.record import Record, Violation, show


def check(record: Record) -> Iterator[Violation]:
    if not any(isinstance(stamped.event, ListVersion) for stamped in record.events):
        return
    makers: dict[int, str] = {}
    states: dict[int, str] = {}
    lists: dict[str, ListVersion] = {}
    wrote: set[tuple[str, str]] = set()  # topic, process
    unclear: dict[str, None] = {}  # topics whose list an unknown process has written
    serves: dict[tuple[str, str], str] = {}  # consumer, topic: by which process
    judged: set[tuple[str, str]] = set()
    for stamped in record.events:
        match stamped.event:
            case Belongs(ledger, _, broker):
                makers[ledger] = broker
            case LedgerVersion(ledger, _, state):
                states[ledger] = state
            case ListVersion(topic, _, _, broker):
                lists[topic] = stamped.event
                wrote.add((topic, broker))
                if not broker:
                    unclear[topic] = None
            case ListGone(topic):
                lists.pop(topic, None)
            case Attached(consumer, _, topic, broker):
                serves[consumer, topic] = broker
            case Deliver(consumer, topic, position, value):
                broker = serves.get((consumer, topic), "")
                if not broker or topic in unclear or (topic, broker) in judged:
                    continue
                judged.add((topic, broker))
                about = f"{value} {show(position)}"
                if (topic, broker) not in wrote:
                    text = f"{broker} delivers it, and has not written the list of ledgers"
                    yield Violation("early-delivery", topic, about, text)
                for ledger in lists[topic].ledgers if topic in lists else ():
                    maker = makers.get(ledger, "")
                    others = maker not in ("", broker) and lists[topic].broker == broker
                    if others and states.get(ledger, "CLOSED") != "CLOSED":
                        text = f"{broker} delivers it, and ledger {ledger} of {maker} is open"
                        yield Violation("early-delivery", topic, about, text)
            case _:
                pass
