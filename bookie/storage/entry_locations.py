"""Entry locations: recent ones in memory, the others in the index; checkpoints move them over.

A *location* is the position and size of an entry in the log.  A checkpoint freezes the locations in
memory, waits until the log is durable up to there, and writes blocks, rows of changed ledgers and
the position as one batch.  Then the memory is freed.  Lookups see recent, frozen and indexed
locations at any time, so no entry is ever missing in between.

Entries whose records were written again elsewhere in the log *move* with a checkpoint, in the same
batch; the segment usage (`SegmentUsage`) changes with it, too.

After an error of the index there is no further checkpoint (`failure`): frozen locations stay in
memory, and their records in the log.  If the error is damage, the index is rebuilt from the log
(`rebuild`); `hold` and `adopt` are the two ends of that.
"""

import struct
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import trio

from daybook.bookie.storage.index import (
    BLOCK_KEYS,
    LEDGER_KEYS,
    Checkpoint,
    IndexDamagedError,
    IndexStore,
    MonitoredIndex,
    block_key,
    block_keys,
    block_number_of_key,
    checkpoint_key,
    ledger_key,
    ledger_of_block_key,
    ledger_of_key,
    shares_key,
)
from daybook.bookie.storage.ledger_state import LedgerState, decode_row, encode_row
from daybook.bookie.storage.records import RECORD_HEADER_BYTES
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.write_cache import BLOCK_ENTRIES, LOCATION_BYTES, Block, WriteCache

EntryLocation: TypeAlias = tuple[int, int]
Spend: TypeAlias = Callable[[int], Awaitable[None]]  # waits until this many bytes may be read

# Ledger and block number -> low byte of the entry id -> old and new position.
Moves: TypeAlias = Mapping[tuple[int, int], Mapping[int, tuple[int, int]]]

_POSITION = struct.Struct(">Q")
_USAGE = struct.Struct(">Qq")  # first position, live bytes
_SCAN_KEYS = 4096
_SCAN_BLOCKS = 256
_LOOKUP_BLOCKS = 4096
_LEDGERS_AT_ONCE = 256  # ledgers whose blocks are looked up together
_BLOCKS_A_TURN = 16  # blocks encoded before other tasks get their turn


@dataclass(frozen=True, slots=True)
class IndexedEntry:
    ledger_id: int
    entry_id: int
    position: int
    size: int


class SegmentUsage:
    """The live bytes of each segment, that is the bytes of records to which the index points.

    Each checkpoint changes the usage and the blocks in one batch, so the usage says exactly what
    the blocks say.  It only tells where compaction gains something: whether a segment may be
    deleted is looked up again, record by record (`compaction`).

    The usage is one value in the index, under `shares_key`, valid only for the checkpoint whose
    position it names.  If it is missing or names another position, the blocks are counted again:

        | position u64 | segments: first position u64, bytes i64 |
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._bytes: dict[int, int] = {}

    def begin(self, first: int) -> None:
        """Add a segment that begins at `first`."""
        if first not in self._bytes:
            insort(self._firsts, first)
            self._bytes[first] = 0

    def end(self, first: int) -> None:
        """Drop a segment that was deleted."""
        if self._bytes.pop(first, None) is not None:
            self._firsts.remove(first)

    def live_bytes(self, first: int) -> int:
        """Return the live bytes of the segment that begins at `first`."""
        return self._bytes.get(first, 0)

    @property
    def total(self) -> int:
        return sum(self._bytes.values())

    def change(self, changes: dict[int, int]) -> None:
        for first, delta in changes.items():
            if first in self._bytes:
                self._bytes[first] += delta

    def beyond(self, counted: dict[int, int]) -> int:
        """Return the bytes that the usage has and the count of the blocks lacks."""
        return sum(max(0, live - counted.get(first, 0)) for first, live in self._bytes.items())

    def count(self, changes: dict[int, int], block: Block, sign: int) -> None:
        """Add the entries of the block to `changes`, or subtract them, by the sign."""
        if not block.low:
            return
        positions, sizes = block.positions, block.sizes
        first = self.first_of(min(positions))
        if first == self.first_of(max(positions)):  # nearly always
            live = sum(sizes) + RECORD_HEADER_BYTES * len(sizes)
            changes[first] = changes.get(first, 0) + sign * live
            return
        for position, size in zip(positions, sizes, strict=True):
            self.count_one(changes, position, size, sign)

    def count_one(self, changes: dict[int, int], position: int, size: int, sign: int) -> None:
        first = self.first_of(position)
        changes[first] = changes.get(first, 0) + sign * (RECORD_HEADER_BYTES + size)

    def first_of(self, position: int) -> int:
        """Return where the segment that holds this position begins; -1 if there is none."""
        at = bisect_right(self._firsts, position) - 1
        return -1 if at < 0 else self._firsts[at]

    def encode(self, position: int, changes: dict[int, int]) -> bytes:
        """Encode the usage after the changes, for the checkpoint at this position."""
        usage = [
            _USAGE.pack(first, live + changes.get(first, 0)) for first, live in self._bytes.items()
        ]
        return _POSITION.pack(position) + b"".join(usage)

    def load(self, data: bytes, position: int) -> bool:
        """Load an encoded usage; return False if it belongs to another checkpoint."""
        stored = decode_usage(data, position)
        for first, live in stored or ():
            if first in self._bytes:
                self._bytes[first] = live
        return stored is not None


def decode_usage(data: bytes, position: int) -> list[tuple[int, int]] | None:
    """Return pairs of first position and live bytes.

    Return None if the value does not belong to the checkpoint at this position.
    """
    if len(data) % _USAGE.size != _POSITION.size or _POSITION.unpack_from(data)[0] != position:
        return None
    return list(_USAGE.iter_unpack(data[_POSITION.size :]))


@dataclass(frozen=True, slots=True)
class _Frozen:
    """A changed ledger, as it was when the checkpoint began."""

    state: LedgerState
    row: bytes
    last_entry: int
    purge: bool
    dropping_row: bool


class _Changes:
    """The batch that a checkpoint writes."""

    def __init__(self) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.deletes: list[bytes] = []
        self.usage: dict[int, int] = {}
        self._blocks = 0

    async def take_turn(self) -> None:
        self._blocks += 1
        if self._blocks % _BLOCKS_A_TURN == 0:
            await trio.lowlevel.checkpoint()


class EntryLocations:
    """The entries of one log, and the checkpoints of its ledgers."""

    def __init__(self, index: IndexStore, *, blocks_cached: int) -> None:
        self.recent_entries = 0  # in memory, without those that a checkpoint is writing
        self.held_entries = 0  # in memory until the index is rebuilt
        self.checkpoints = 0
        self.failure: OSError | None = None
        self.usage = SegmentUsage()
        self.index = index if isinstance(index, MonitoredIndex) else MonitoredIndex(index)
        self._dirty: list[LedgerState] = []
        self._under_way = False  # True during a checkpoint
        self._blocks_cached = blocks_cached
        self._cache: OrderedDict[bytes, Block | None] = OrderedDict()

    def add(self, state: LedgerState, entry_id: int, position: int, size: int) -> None:
        recent = state.recent
        if recent is None:
            recent = state.recent = WriteCache()
        recent.add(entry_id, position, size)
        if entry_id > state.last_entry:
            state.last_entry = entry_id
        self.recent_entries += 1
        if not state.dirty:
            self.mark_changed(state)

    def add_run(
        self, state: LedgerState, first: int, positions: Sequence[int], sizes: Sequence[int]
    ) -> None:
        """Add consecutive entries behind the last one of the ledger."""
        if len(positions) == 1:
            self.add(state, first, positions[0], sizes[0])
            return
        recent = state.recent
        if recent is None:
            recent = state.recent = WriteCache()
        recent.add_run(first, positions, sizes)
        state.last_entry = first + len(positions) - 1
        self.recent_entries += len(positions)
        self.mark_changed(state)

    def mark_changed(self, state: LedgerState) -> None:
        """Mark the ledger as different from its row in the index."""
        if not state.dirty:
            state.dirty = True
            self._dirty.append(state)

    def try_find(self, state: LedgerState, entry_id: int) -> tuple[bool, EntryLocation | None]:
        """Return True if the answer needs no waiting, and the location of the entry, if any."""
        location = state.find_recent(entry_id)
        if location is not None or not 0 <= entry_id <= state.indexed_last:
            return True, location
        key = block_key(state.ledger_id, entry_id // BLOCK_ENTRIES)
        if key not in self._cache:
            return False, None
        self._cache.move_to_end(key)
        block = self._cache[key]
        return True, block.find(entry_id) if block else None

    async def find(self, state: LedgerState, entry_id: int) -> EntryLocation | None:
        while True:
            known, location = self.try_find(state, entry_id)
            if known:
                return location
            key = block_key(state.ledger_id, entry_id // BLOCK_ENTRIES)
            before = self.checkpoints
            block = await self._read_block(key)
            # A checkpoint may have written this block during the read, which is then repeated.
            if before == self.checkpoints:
                self._cache[key] = block
                if len(self._cache) > self._blocks_cached:
                    self._cache.popitem(last=False)
                location = state.find_recent(entry_id)
                return location or (block.find(entry_id) if block else None)

    async def _read_block(self, key: bytes) -> Block | None:
        try:
            data = await self.index.get(key)
            return self._decode(data) if data is not None else None
        except OSError as error:
            raise StoreError(StoreStatus.IO_ERROR, str(error)) from error

    def _decode(self, data: bytes) -> Block:
        try:
            return Block.decode(data)
        except IndexDamagedError as error:
            self.index.report(error)
            raise

    async def checkpoint(
        self,
        position: int,
        *,
        limbo: bool,
        when_durable: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        moves: Moves | None = None,
    ) -> None:
        """Write everything accepted so far, which the log has below `position`, to the index.

        Nothing may be accepted between the choice of `position` and this call.  `moves` names
        entries of the index and their new positions below `position`.
        """
        assert self.failure is None
        assert not self._under_way, "checkpoints are made one at a time"
        frozen = self._freeze()
        self._under_way = True
        try:
            await when_durable()
            changes = await self._encode(frozen)
            if moves:
                await self._encode_moves(changes, moves, frozen)
            puts, deletes = changes.puts, changes.deletes
            puts[checkpoint_key()] = Checkpoint(position, limbo).encode()
            puts[shares_key()] = self.usage.encode(position, changes.usage)
            await self.index.write(puts, deletes)
        except BaseException as error:
            # Frozen ledgers are no longer in `_dirty`: a later checkpoint would leave them out.
            self.failure = error if isinstance(error, OSError) else OSError(f"ended by {error!r}")
            raise
        finally:
            self._under_way = False
        self.checkpoints += 1
        self.usage.change(changes.usage)
        # No await from here on: a lookup must find each entry in `frozen` or in the index.
        for key in (*puts, *deletes):
            self._cache.pop(key, None)
        for ledger in frozen:
            ledger.state.frozen = None
            ledger.state.indexed_last = ledger.last_entry

    def _freeze(self) -> list[_Frozen]:
        frozen: list[_Frozen] = []
        for state in self._dirty:
            # Entries that a failed checkpoint left here are in no index; they must not be replaced.
            assert state.frozen is None
            purge = state.deleted and (state.indexed_last >= 0 or state.recent is not None)
            if purge:
                state.recent = None
                state.last_entry = -1
            state.frozen, state.recent = state.recent, None
            state.dirty = False
            row = encode_row(state)
            frozen.append(_Frozen(state, row, state.last_entry, purge, state.dropping_row))
        self._dirty = []
        self.recent_entries = 0
        return frozen

    # ---- replacement of a damaged index (`rebuild`)

    def hold(self, states: Iterable[LedgerState]) -> None:
        """Keep the locations of all entries that are not indexed in memory until `adopt`.

        A failed checkpoint has left some of them frozen; these are kept as well.
        """
        for state in states:
            if state.recent is None:
                continue
            if state.frozen is None:
                state.frozen = state.recent
            else:
                state.frozen.add_all(state.recent)
            state.recent = None
        self.held_entries += self.recent_entries
        self.recent_entries = 0
        for state in self._dirty:
            state.dirty = False
        self._dirty = []

    def adopt(
        self, index: IndexStore, usage: SegmentUsage, states: Iterable[LedgerState]
    ) -> Callable[[], Awaitable[None]]:
        """Use the new index, which has the held entries.

        The caller has set `indexed_last` of each state to that of the new index, without an await
        in between.  The next checkpoint writes every row, since it may differ from the new one.
        """
        until_idle = self.index.replace(index)
        self.usage = usage
        self._cache.clear()
        self.checkpoints += 1  # A lookup that is under way is repeated in the new index.
        self.held_entries = 0
        self.failure = None
        for state in states:
            state.frozen = None
            self.mark_changed(state)
        return until_idle

    async def verify(self, states: Mapping[int, LedgerState], spend: Spend) -> None:
        """Read every row and block; damage is reported as for any read.

        Rows and blocks that are missing without an error are damage as well.  They are not
        compared if a checkpoint changes the index during the walk.
        """
        before = -1 if self._under_way else self.checkpoints
        clean = {
            state.ledger_id for state in states.values() if not (state.dirty or state.dropping_row)
        }
        first, end = LEDGER_KEYS
        while found := await self.index.scan(first, end, _SCAN_BLOCKS):
            for key, row in found:
                clean.discard(self._checked_row(key, row))
            await spend(sum(len(key) + len(row) for key, row in found))
            first = found[-1][0] + b"\0"
        counted: dict[int, int] = {}
        async with aclosing(self._blocks_between(*BLOCK_KEYS)) as blocks:
            async for key, block in blocks:
                self.usage.count(counted, block, 1)
                await spend(len(key) + LOCATION_BYTES * len(block.low))
        if before != self.checkpoints or self.failure is not None:
            return
        missing = self.usage.beyond(counted)
        if clean or missing:
            error = IndexDamagedError(
                f"the index lacks {len(clean)} rows, and blocks of {missing} bytes of the log"
            )
            self.index.report(error)
            raise error

    def _checked_row(self, key: bytes, row: bytes) -> int:
        try:
            ledger_id = ledger_of_key(key)
            decode_row(ledger_id, row)
        except IndexDamagedError as error:
            self.index.report(error)
            raise
        return ledger_id

    async def _encode(self, frozen: list[_Frozen]) -> _Changes:
        changes = _Changes()
        for ledger in frozen:
            state = ledger.state
            if ledger.dropping_row:
                changes.deletes.append(ledger_key(state.ledger_id))
            else:
                changes.puts[ledger_key(state.ledger_id)] = ledger.row
            if ledger.purge:
                await self._purge(changes, state.ledger_id)
        for start in range(0, len(frozen), _LEDGERS_AT_ONCE):
            await self._encode_blocks(changes, frozen[start : start + _LEDGERS_AT_ONCE])
        return changes

    async def _encode_blocks(self, changes: _Changes, frozen: list[_Frozen]) -> None:
        """Encode the blocks of these ledgers, merged with the stored ones from one request."""
        begun: list[bytes] = []
        blocks: list[tuple[bytes, Block]] = []
        for state in (ledger.state for ledger in frozen):
            for number, block in state.frozen.blocks() if state.frozen else ():
                key = block_key(state.ledger_id, number)
                blocks.append((key, block))
                if number * BLOCK_ENTRIES <= state.indexed_last:
                    begun.append(key)
        stored = dict(zip(begun, await self.index.get_many(begun), strict=True)) if begun else {}
        for key, block in blocks:
            before = stored.get(key)
            changes.puts[key] = self._merged(changes, before, block).encode()
            await changes.take_turn()

    def _merged(self, changes: _Changes, stored: bytes | None, block: Block) -> Block:
        if stored is None:
            self.usage.count(changes.usage, block, 1)
            return block
        older = self._decode(stored)
        merged = older.merge(block)
        if len(merged.low) == len(older.low) + len(block.low):
            self.usage.count(changes.usage, block, 1)
        else:
            self.usage.count(changes.usage, older, -1)
            self.usage.count(changes.usage, merged, 1)
        return merged

    async def _purge(self, changes: _Changes, ledger_id: int) -> None:
        async with aclosing(self._blocks_between(*block_keys(ledger_id))) as blocks:
            async for key, block in blocks:
                changes.deletes.append(key)
                self.usage.count(changes.usage, block, -1)
                await changes.take_turn()

    async def _encode_moves(self, changes: _Changes, moves: Moves, frozen: list[_Frozen]) -> None:
        """Encode the moved entries; a ledger that this checkpoint purges has none left."""
        purged = {ledger.state.ledger_id for ledger in frozen if ledger.purge}
        for (ledger_id, number), moved in moves.items():
            key = block_key(ledger_id, number)
            stored = changes.puts.get(key) or await self.index.get(key)
            if stored is None or ledger_id in purged:
                continue
            block = self._decode(stored)
            for at, low in enumerate(block.low):
                before, after = moved.get(low, (-1, -1))
                if block.positions[at] == before:
                    block.positions[at] = after
                    self.usage.count_one(changes.usage, before, block.sizes[at], -1)
                    self.usage.count_one(changes.usage, after, block.sizes[at], 1)
            changes.puts[key] = block.encode()
            await changes.take_turn()

    async def _blocks_between(
        self, first: bytes, end: bytes
    ) -> AsyncGenerator[tuple[bytes, Block]]:
        while found := await self.index.scan(first, end, _SCAN_BLOCKS):
            for key, data in found:
                yield key, self._decode(data)
            first = found[-1][0] + b"\0"

    # ---- the index as of the last checkpoint

    async def indexed_block(self, ledger_id: int, number: int) -> Block | None:
        """Return the block as the last checkpoint left it."""
        data = await self.index.get(block_key(ledger_id, number))
        return None if data is None else self._decode(data)

    async def load_usage(self, position: int) -> None:
        """Load the segment usage of the checkpoint at `position`; `begin` each segment before."""
        stored = await self.index.get(shares_key())
        if stored is not None and self.usage.load(stored, position):
            return
        counted: dict[int, int] = {}
        async with aclosing(self._blocks_between(*BLOCK_KEYS)) as blocks:
            async for _, block in blocks:
                self.usage.count(counted, block, 1)
        self.usage.change(counted)

    async def indexed_entries(self, start: int, end: int) -> list[IndexedEntry]:
        """Return all entries between these positions.  This reads the whole index."""
        found: list[IndexedEntry] = []
        async with aclosing(self._blocks_between(*BLOCK_KEYS)) as blocks:
            async for key, block in blocks:
                if not block.low or min(block.positions) >= end or max(block.positions) < start:
                    continue
                ledger_id, number = ledger_of_block_key(key), block_number_of_key(key)
                found += [
                    IndexedEntry(ledger_id, number * BLOCK_ENTRIES + low, position, size)
                    for low, position, size in zip(
                        block.low, block.positions, block.sizes, strict=True
                    )
                    if start <= position < end
                ]
                await trio.lowlevel.checkpoint()
        return found

    async def entry_ids(self, state: LedgerState, *, below: int) -> list[int]:
        """Return all entry ids of the ledger at positions below `below`, sorted."""
        before = -1
        ids: set[int] = set()
        # A checkpoint during the scan may move entries to blocks that were scanned before.
        while before != self.checkpoints:
            before = self.checkpoints
            first, end = block_keys(state.ledger_id)
            try:
                while found := await self.index.scan(first, end, _SCAN_KEYS):
                    for key, data in found:
                        number = int.from_bytes(key[-8:], "big")
                        ids.update(number * BLOCK_ENTRIES + low for low in self._decode(data).low)
                    first = found[-1][0] + b"\0"
            except OSError as error:
                raise StoreError(StoreStatus.IO_ERROR, str(error)) from error
        for recent in (state.frozen, state.recent):
            if recent is not None:
                both = zip(recent.ids, recent.positions, strict=True)
                ids.update(entry_id for entry_id, position in both if position < below)
        return sorted(ids)


class Lookup:
    """A cache of index blocks for lookups ledger by ledger, nearly in order."""

    def __init__(self, locations: EntryLocations) -> None:
        self._locations = locations
        self._blocks: dict[tuple[int, int], Block | None] = {}

    async def is_at(self, ledger_id: int, entry_id: int, position: int) -> bool:
        """Return True if the last checkpoint has the entry at this position."""
        key = (ledger_id, entry_id // BLOCK_ENTRIES)
        if key not in self._blocks:
            if len(self._blocks) >= _LOOKUP_BLOCKS:
                self._blocks.clear()
            self._blocks[key] = await self._locations.indexed_block(*key)
        block = self._blocks[key]
        location = block.find(entry_id) if block is not None else None
        return location is not None and location[0] == position
