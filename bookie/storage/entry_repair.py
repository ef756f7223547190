"""Entry repair: a damaged entry is written again when a recovery add brings its bytes.

A bookie keeps the first bytes that it received for an entry, so an add of an id that is here
changes nothing.  The exception is an entry whose record can no longer be read from the disk.  A
read that meets such damage notes it (`LedgerDirectory.damaged`).  A recovery add of a noted entry
is appended to the log, and a checkpoint moves the index there, as in compaction (`compaction`).
The add is answered with OK only after that, and after the entry has been read from its new
location.

An entry that the scrub finds damaged on the disk may still be in memory.  The bookie writes it
again in the same way, without a recovery add (`rewrite`).

A stop in between leaves the entry as damaged as it was.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import trio

from daybook.bookie.storage.entry_locations import EntryLocation, Moves
from daybook.bookie.storage.ledger_directory import LedgerDirectory
from daybook.bookie.storage.ledger_state import LedgerState
from daybook.bookie.storage.log import Done
from daybook.bookie.storage.records import Kind
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.write_cache import BLOCK_ENTRIES

_REWRITTEN_BYTES = 1 << 20  # written again at a time


@dataclass(frozen=True, slots=True)
class _DamagedEntry:
    state: LedgerState
    entry_id: int
    location: EntryLocation
    entry: bytes
    done: Done


class _Readable(NamedTuple):
    state: LedgerState
    entry_id: int
    location: EntryLocation
    entry: memoryview


class EntryRepairer:
    """The repairs of one directory: those that arrive during one checkpoint share the next."""

    def __init__(
        self,
        directory: LedgerDirectory,
        checkpoint: Callable[[Moves | None], Awaitable[None]],
        nursery: trio.Nursery,
    ) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._nursery = nursery
        self._damaged: list[_DamagedEntry] = []
        self._busy = False

    def repair(
        self,
        state: LedgerState,
        entry_id: int,
        location: EntryLocation,
        entry: memoryview,
        done: Done,
    ) -> None:
        """Write the entry again; `done` is called once, with OK when it can be read again."""
        if len(entry) != location[1]:
            done(StoreStatus.IO_ERROR)  # These are not the bytes that were stored.
            return
        self._directory.looked_up_bytes += len(entry)  # The entry is in flight until `done`.
        self._damaged.append(_DamagedEntry(state, entry_id, location, bytes(entry), done))
        if not self._busy:
            self._busy = True
            self._nursery.start_soon(self._run)

    async def rewrite(self, entries: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Write the entries again that can still be read; return the others.

        `entries` are pairs of ledger and entry id.  If disk space is short, all of them are
        returned: other bookies of the ensemble have them.
        """
        left: list[tuple[int, int]] = []
        some: list[_Readable] = []
        size = 0
        for ledger_id, entry_id in entries:
            found = await self._readable(ledger_id, entry_id)
            if found is None:
                left.append((ledger_id, entry_id))
                continue
            some.append(found)
            size += len(found.entry)
            if size >= _REWRITTEN_BYTES:
                left += await self._write_again(some)
                some, size = [], 0
        return left + await self._write_again(some)

    async def _readable(self, ledger_id: int, entry_id: int) -> _Readable | None:
        directory = self._directory
        if directory.out_of_space:
            return None
        try:
            entry = bytes(await directory.read(ledger_id, entry_id))
            state = directory.known_ledger(ledger_id)
            location = await directory.locations.find(state, entry_id)
        except (StoreError, OSError):
            return None
        return None if location is None else _Readable(state, entry_id, location, memoryview(entry))

    async def _write_again(self, some: Sequence[_Readable]) -> list[tuple[int, int]]:
        """Write these entries again; return those that are still damaged."""
        answers = [_Answer() for _ in some]
        for (state, entry_id, location, entry), answer in zip(some, answers, strict=True):
            self.repair(state, entry_id, location, entry, answer.tell)
        left: list[tuple[int, int]] = []
        for (state, entry_id, _, _), answer in zip(some, answers, strict=True):
            # FENCED means that the ledger was deleted meanwhile.
            if await answer.get() not in (StoreStatus.OK, StoreStatus.FENCED):
                left.append((state.ledger_id, entry_id))
        return left

    async def _run(self) -> None:
        damaged_entries: list[_DamagedEntry] = []
        try:
            while self._damaged:
                damaged_entries, self._damaged = self._damaged, []
                with suppress(StoreError, OSError):  # `_status` finds out what was moved
                    await self._write(damaged_entries)
                while damaged_entries:
                    status = await self._status(damaged_entries[0])
                    self._answer(damaged_entries.pop(0), status)
        finally:
            self._busy = False
            for damaged in [*damaged_entries, *self._damaged]:
                self._answer(damaged, StoreStatus.READ_ONLY)  # the store is closing
            self._damaged = []

    def _answer(self, damaged: _DamagedEntry, status: StoreStatus) -> None:
        self._directory.looked_up_bytes -= len(damaged.entry)
        damaged.done(status)

    async def _write(self, damaged_entries: list[_DamagedEntry]) -> None:
        await self._checkpoint(None)  # A checkpoint can move only entries that the index has.
        log, moves = self._directory.log, dict[tuple[int, int], dict[int, tuple[int, int]]]()
        if self._directory.closing or log.failure or self._directory.locations.failure:
            return  # the checkpoint was skipped, so nothing can be moved
        for damaged in damaged_entries:
            if damaged.state.deleted:
                continue
            ledger_id = damaged.state.ledger_id
            assert len(damaged.entry) == damaged.location[1], "other bytes than were stored"
            position = log.append(Kind.ENTRY, ledger_id, damaged.entry_id, damaged.entry, None)
            number, low = divmod(damaged.entry_id, BLOCK_ENTRIES)
            moves.setdefault((ledger_id, number), {})[low] = (damaged.location[0], position)
        if moves:
            await self._checkpoint(moves)

    async def _status(self, damaged: _DamagedEntry) -> StoreStatus:
        """Return OK if the entry has moved and can be read; a window may hold the old record."""
        state, directory = damaged.state, self._directory
        try:
            await directory.read(state.ledger_id, damaged.entry_id)
            moved = await directory.locations.find(state, damaged.entry_id) != damaged.location
        except StoreError as error:
            # A ledger that was deleted meanwhile is answered like a fenced one: no add follows.
            gone = error.status is StoreStatus.NO_LEDGER
            return StoreStatus.FENCED if gone else StoreStatus.IO_ERROR
        if not moved:
            return StoreStatus.IO_ERROR
        directory.damaged.pop((state.ledger_id, damaged.entry_id), None)
        return StoreStatus.OK


class _Answer:
    """The status of one repair, for a task that waits for it."""

    def __init__(self) -> None:
        self._status: StoreStatus | None = None
        self._told = trio.Event()

    def tell(self, status: StoreStatus) -> None:
        self._status = status
        self._told.set()

    async def get(self) -> StoreStatus | None:
        await self._told.wait()
        return self._status
