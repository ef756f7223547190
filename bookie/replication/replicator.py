"""Copies entries to a bookie, and puts it into the metadata.

An entry goes out with the bytes that it has elsewhere, its digest verified on the way, as a
recovery add: a fenced ledger takes it, and a copy that is there stays as it is.  The metadata
change after every entry is acknowledged, that is durable; `protocol.replace` says when they may.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import assert_never

import trio

from bookie.ledger.bookies import Purpose
from bookie.ledger.catalog import StoredMetadata
from bookie.ledger.context import LedgerContext
from bookie.ledger.lanes import Lane
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.protocol.placement import BookieId
from bookie.ledger.protocol.update import Gone, NotAllowed, NotDone, Settled
from bookie.ledger.reader import digester_of, read_entries
from bookie.replication.protocol.copies import Stretch, entry_bytes
from bookie.replication.protocol.pace import Pace
from bookie.replication.protocol.replace import Replacement, replace_bookie
from wire.digest import master_key
from wire.entry import Entry, encode_header
from wire.messages.bookie import Status, encode_add_header

_CHUNK_BYTES = 1 << 20


class TargetError(Exception):
    """The bookie that was to get the copies did not take them."""

    def __init__(self, bookie: BookieId, reason: str) -> None:
        super().__init__(f"bookie {bookie}: {reason}")
        self.bookie = bookie


class Replaced(Enum):
    YES = auto()
    OTHERWISE = auto()  # the metadata are others by now: look again
    GONE = auto()  # the ledger was deleted
    NOT_NOW = auto()  # the metadata store does not answer


class Replicator:
    """`copied` hears of entries and bytes as they become durable."""

    def __init__(
        self,
        context: LedgerContext,
        pace: Pace,
        copied: Callable[[int, int], None] = lambda entries, size: None,
    ) -> None:
        self._context = context
        self._pace = pace
        self._copied = copied

    async def copy(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        entries: Sequence[range],
        to: BookieId,
    ) -> None:
        """Return when all are durable there.

        TargetError; NoSuchEntryError or ReadUnknownError if a copy to read cannot be had.
        """
        sending = _Sending(self._context, ledger_id, metadata, to)
        size_of_one = entry_bytes(metadata)
        try:
            for run in entries:
                first = run.start
                while first < run.stop:
                    await self._wait_turn(min(_CHUNK_BYTES, size_of_one * (run.stop - first)))
                    chunk = await read_entries(
                        self._context,
                        ledger_id,
                        metadata,
                        first,
                        run.stop - 1,
                        max_bytes=_CHUNK_BYTES,
                        entry_bytes=size_of_one,
                    )
                    await sending.send(chunk)
                    size = sum(len(entry.payload) for entry in chunk)
                    size_of_one = max(1, size // len(chunk))
                    self._copied(len(chunk), size)
                    first = chunk[-1].entry_id + 1
        finally:
            sending.close()

    async def _wait_turn(self, size: int) -> None:
        await trio.sleep(self._pace.take(size, trio.current_time()))

    async def replace(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        stretch: Stretch,
        position: int,
        newcomer: BookieId,
    ) -> Replaced:
        """Name the bookie in the metadata.  It has all that the position holds."""
        decide = replace_bookie(Replacement(stretch, position, newcomer))
        result = await self._context.catalog.update(ledger_id, stored, decide)
        match result:
            case Settled():
                return Replaced.YES
            case NotAllowed():
                return Replaced.OTHERWISE
            case Gone():
                return Replaced.GONE
            case NotDone():
                return Replaced.NOT_NOW
            case _:
                assert_never(result)


class _Sending:
    """Recovery adds to one bookie."""

    def __init__(
        self, context: LedgerContext, ledger_id: int, metadata: LedgerMetadata, to: BookieId
    ) -> None:
        self._ledger_id = ledger_id
        self._digester = digester_of(metadata)
        self._master_key = master_key(metadata.password or b"")
        self._under_way: set[int] = set()
        self._changed = trio.Event()
        self._failure: TargetError | None = None
        self._lane: Lane = context.bookies.open_lane(to, ledger_id, Purpose.RECOVER, self)

    async def send(self, entries: Sequence[Entry]) -> None:
        """Return when all are acknowledged."""
        for entry in entries:
            self._under_way.add(entry.entry_id)
        for entry in entries:
            self._lane.add(entry.entry_id, self._frame(entry))
        while self._under_way and self._failure is None:
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def _frame(self, entry: Entry) -> list[bytes | memoryview]:
        payload = [entry.payload]
        header = encode_header(
            self._ledger_id, entry.entry_id, entry.lac, entry.length, self._digester, payload
        )
        size = len(header) + len(entry.payload)
        return [encode_add_header(self._master_key, size, recovery=True) + header, entry.payload]

    def close(self) -> None:
        self._lane.close()

    # -- what the bookie says

    def added(self, bookie: BookieId, first: int, count: int) -> None:
        self._under_way.difference_update(range(first, first + count))
        self._wake()

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        self._failure = TargetError(bookie, reason)
        self._wake()

    def add_refused(self, bookie: BookieId, status: Status) -> None:
        self._failure = TargetError(bookie, f"it answered {status.name}")
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
