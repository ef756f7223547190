"""Read the entries of sealed ledgers straight from the bookies, and count what states no offset.

A sealed ledger is closed: it never changes, and any number of tasks may read it.  Reading never
fences or recovers a ledger.  The ledger client verifies each entry's digest, and asks another
replica if one fails.

An entry that a Pulsar broker wrote may state no offset.  Its messages are counted from the entry
before it, as brokers do it (`managed_ledger.offsets`), so such a ledger is read from its beginning.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Iterator

from daybook.bookie.errors import LedgerError, NoSuchEntryError, Remedy
from daybook.clients.ledgers import blocking as ledgers
from daybook.clients.python.reader import SealedLedger
from daybook.clients.spark.entry import StoredEntry, split_offset
from daybook.managed_ledger.records import LedgerOwner
from daybook.wire.batch import num_messages, parse_metadata
from daybook.wire.errors import WireError
from daybook.wire.topics import TopicName

READ_TIMEOUT_S = 60.0


class ForeignLedgerError(LedgerError):
    """A ledger belongs to another topic than the owner of the topic says."""


class NotSealedError(LedgerError):
    """A ledger is not closed, as far as this process can see."""

    remedy = Remedy.RETRY


class SealedLedgerReader:
    """Reads one sealed ledger of a topic.  Errors are LedgerErrors."""

    def __init__(self, client: ledgers.Client, topic: str, ledger: SealedLedger) -> None:
        self._ledger = ledger
        self._reader = client.open(ledger.ledger_id, recover=False)
        metadata = self._reader.metadata
        log = TopicName.parse(topic).managed_ledger_name
        other = LedgerOwner(log).contradicted_by(metadata.custom)
        if other is not None:
            raise ForeignLedgerError(
                f"ledger {ledger.ledger_id} is on the list of {topic}, but its metadata name"
                f" {other}: none of its entries is read"
            )
        if not self._reader.closed:
            raise NotSealedError(
                f"ledger {ledger.ledger_id} of {topic} is still {metadata.state.name} here"
            )
        if self._reader.last_add_confirmed != ledger.entries - 1:
            raise NoSuchEntryError(
                ledger.ledger_id,
                ledger.entries - 1,
                f"the ledger ends at entry {self._reader.last_add_confirmed}",
            )

    def read_from(self, offset: int) -> Iterator[StoredEntry]:
        """Return the entries from the one on that holds the offset."""
        ledger = self._ledger
        assert ledger.first <= offset < ledger.next
        first = 0 if offset == ledger.first else find_entry(self._offsets_at, ledger, offset)
        before = ledger.first - 1 if first == 0 else None
        ledger_id = ledger.ledger_id
        for entry in self._reader.read_views(first, ledger.entries - 1, timeout_s=READ_TIMEOUT_S):
            last, payload = split_offset(entry.data)
            if last is None and before is not None:
                last = _counted(payload, before)
            before = last
            yield StoredEntry(ledger_id, entry.entry_id, last, payload)

    def _offsets_at(self, first: int, last: int) -> list[int | None]:
        """Return the offset of the last message of each entry; None for one that states none."""
        entries = self._reader.read_views(first, last, timeout_s=READ_TIMEOUT_S)
        return [split_offset(entry.data)[0] for entry in entries]


def find_entry(
    offsets_at: Callable[[int, int], list[int | None]], ledger: SealedLedger, offset: int
) -> int:
    """Return the entry of the ledger that holds the offset.

    Messages lie about evenly in the entries, so the search first looks where the offset should be,
    and beside it: a look at three entries costs little more than at one.  Every second look halves
    what is left, in case they do not.  Return 0 if an entry states no offset: the messages have to
    be counted from the beginning.
    """
    low, high = 0, ledger.entries - 1
    first, last = ledger.first, ledger.next - 1  # the offsets of the entries from low to high
    halve = False
    while low < high:
        middle = (low + high) // 2
        if not halve:
            share = (offset - first) / max(1, last - first + 1)
            middle = min(high - 1, low + int(share * (high - low + 1)))
        halve = not halve
        begin = max(low, middle - 1)
        for entry_id, found in enumerate(offsets_at(begin, min(high - 1, middle + 1)), begin):
            if found is None:
                return 0
            if found >= offset:
                high, last = entry_id, found
                break
            low, first = entry_id + 1, found + 1
    return low


def _counted(payload: memoryview, before: int) -> int | None:
    """Return the offset of the last message of an entry behind the offset `before`."""
    try:
        return before + num_messages(parse_metadata(payload)[0])
    except WireError:
        # The entry has no number.  Entries behind it have none either, unless they state offsets.
        return None
