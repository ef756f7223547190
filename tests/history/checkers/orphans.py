"""Ledgers that were made for a topic and never named by its list.

orphan-written   it has an entry: the broker wrote before the list was stored
orphan-kept      it and its topic exist in the end, and the run had time to remove such ledgers

A ledger that a list has named once is no orphan, even if retention has deleted it.
"""

from collections.abc import Iterator

from tests.history.events import Belongs, LedgerGone, LedgerVersion, ListGone, ListVersion
from tests.history.record import Record, Violation


def check(record: Record) -> Iterator[Violation]:
    topics: dict[int, str] = {}
    last: dict[int, LedgerVersion] = {}
    listed: set[int] = set()
    there: dict[str, None] = {}
    gone: dict[int, None] = {}
    for stamped in record.events:
        match stamped.event:
            case Belongs(ledger, topic):
                topics[ledger] = topic
            case LedgerVersion(ledger):
                last[ledger] = stamped.event
            case LedgerGone(ledger):
                gone[ledger] = None
            case ListVersion(topic, _, ledgers):
                there[topic] = None
                listed.update(ledgers)
            case ListGone(topic):
                there.pop(topic, None)
            case _:
                pass
    for ledger, topic in topics.items():
        if ledger in listed:
            continue
        about = f"ledger {ledger}"
        if ledger in last and last[ledger].last_entry >= 0:
            text = f"it was never listed, and ends with entry {last[ledger].last_entry}"
            yield Violation("orphan-written", topic, about, text)
        if record.run.orphans_removed and ledger not in gone and topic in there:
            yield Violation("orphan-kept", topic, about, "nothing names it, and it is still there")
