"""Helpers for tests of writers: numbered entries."""

from daybook.bookie.ledger.client import Quorums
from daybook.bookie.ledger.writer import LedgerWriter

QUORUMS = Quorums(3, 3, 2)


async def append(writer: LedgerWriter, count: int = 1) -> None:
    """Append numbered entries, and wait until they are confirmed."""
    for _ in range(count):
        writer.append([b"entry %d" % (writer.last_add_pushed + 1)])
    await writer.wait_confirmed(writer.last_add_pushed)


async def contents(writer: LedgerWriter) -> list[bytes]:
    entries = await writer.read(0, writer.last_add_confirmed, max_bytes=1 << 20)
    assert [entry.entry_id for entry in entries] == list(range(len(entries)))
    return [bytes(entry.payload) for entry in entries]


def expected(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]
