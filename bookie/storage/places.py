"""Where entries are: recent ones in memory, the others in the index; checkpoints move them over.

A *place* is position and size of an entry in the log.  A checkpoint freezes what is in memory,
waits until the log is durable up to there, and writes blocks, rows of changed ledgers and the
position as one batch.  Then the memory is free again.  Look-ups see recent, frozen and index at
any time, so no entry is ever missing in between.

After an error of the index there is no further checkpoint (`failure`): what was frozen stays in
memory and in the log.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import trio

from bookie.storage.index import (
    Checkpoint,
    IndexStore,
    block_key,
    block_keys,
    checkpoint_key,
    ledger_key,
)
from bookie.storage.ledgers import LedgerState, encode_row
from bookie.storage.recent import BLOCK_ENTRIES, Block, RecentEntries
from bookie.storage.status import StoreError, StoreStatus

Place: TypeAlias = tuple[int, int]

_SCAN_KEYS = 4096
_BLOCKS_A_TURN = 16  # encoded before other tasks get their turn


@dataclass(frozen=True, slots=True)
class _Frozen:
    """A changed ledger, as it was when the checkpoint began."""

    state: LedgerState
    row: bytes
    last_entry: int
    purge: bool


class Places:
    """The entries of one log, and the checkpoints of its ledgers."""

    def __init__(self, index: IndexStore, *, blocks_cached: int) -> None:
        self.recent_entries = 0  # in memory, without those being written by a checkpoint
        self.checkpoints = 0
        self.failure: OSError | None = None
        self._index = index
        self._dirty: list[LedgerState] = []
        self._blocks_cached = blocks_cached
        self._cache: OrderedDict[bytes, Block | None] = OrderedDict()

    def add(self, state: LedgerState, entry_id: int, position: int, size: int) -> None:
        recent = state.recent
        if recent is None:
            recent = state.recent = RecentEntries()
        recent.add(entry_id, position, size)
        if entry_id > state.last_entry:
            state.last_entry = entry_id
        self.recent_entries += 1
        if not state.dirty:
            self.touch(state)

    def touch(self, state: LedgerState) -> None:
        """The ledger differs from its row."""
        if not state.dirty:
            state.dirty = True
            self._dirty.append(state)

    def try_find(self, state: LedgerState, entry_id: int) -> tuple[bool, Place | None]:
        """Whether it can be said without waiting, and where the entry is, None for nowhere."""
        place = state.find_recent(entry_id)
        if place is not None or not 0 <= entry_id <= state.indexed_last:
            return True, place
        key = block_key(state.ledger_id, entry_id // BLOCK_ENTRIES)
        if key not in self._cache:
            return False, None
        self._cache.move_to_end(key)
        block = self._cache[key]
        return True, block.find(entry_id) if block else None

    async def find(self, state: LedgerState, entry_id: int) -> Place | None:
        while True:
            known, place = self.try_find(state, entry_id)
            if known:
                return place
            key = block_key(state.ledger_id, entry_id // BLOCK_ENTRIES)
            before = self.checkpoints
            block = await self._read_block(key)
            # A checkpoint may have written this block meanwhile: then look again.
            if before == self.checkpoints:
                self._cache[key] = block
                if len(self._cache) > self._blocks_cached:
                    self._cache.popitem(last=False)
                place = state.find_recent(entry_id)
                return place or (block.find(entry_id) if block else None)

    async def _read_block(self, key: bytes) -> Block | None:
        try:
            data = await self._index.get(key)
            return Block.decode(data) if data is not None else None
        except OSError as error:
            raise StoreError(StoreStatus.IO_ERROR, str(error)) from error

    async def checkpoint(
        self,
        position: int,
        *,
        limbo: bool,
        when_durable: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        """Put everything accepted so far, which the log has below `position`, into the index.

        Nothing may be accepted between the choice of `position` and this call.
        """
        assert self.failure is None
        frozen = self._freeze()
        try:
            await when_durable()
            puts, deletes = await self._encode(frozen)
            puts[checkpoint_key()] = Checkpoint(position, limbo).encode()
            await self._index.write(puts, deletes)
        except BaseException as error:
            # What is frozen is in no list any more: a later checkpoint would leave it out.
            self.failure = error if isinstance(error, OSError) else OSError(f"ended by {error!r}")
            raise
        self.checkpoints += 1
        for key in (*puts, *deletes):
            self._cache.pop(key, None)
        for ledger in frozen:
            ledger.state.frozen = None
            ledger.state.indexed_last = ledger.last_entry

    def _freeze(self) -> list[_Frozen]:
        frozen: list[_Frozen] = []
        for state in self._dirty:
            purge = state.deleted and (state.indexed_last >= 0 or state.recent is not None)
            if purge:
                state.recent = None
                state.last_entry = -1
            state.frozen, state.recent = state.recent, None
            state.dirty = False
            frozen.append(_Frozen(state, encode_row(state), state.last_entry, purge))
        self._dirty = []
        self.recent_entries = 0
        return frozen

    async def _encode(self, frozen: list[_Frozen]) -> tuple[dict[bytes, bytes], list[bytes]]:
        puts: dict[bytes, bytes] = {}
        deletes: list[bytes] = []
        encoded = 0
        for ledger in frozen:
            state = ledger.state
            puts[ledger_key(state.ledger_id)] = ledger.row
            if ledger.purge:
                deletes += await self._keys_of_blocks(state.ledger_id)
            for number, block in state.frozen.blocks() if state.frozen else ():
                key = block_key(state.ledger_id, number)
                if number * BLOCK_ENTRIES <= state.indexed_last:
                    stored = await self._index.get(key)
                    if stored is not None:
                        block = Block.decode(stored).merge(block)
                puts[key] = block.encode()
                encoded += 1
                if encoded % _BLOCKS_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
        return puts, deletes

    async def _keys_of_blocks(self, ledger_id: int) -> list[bytes]:
        keys: list[bytes] = []
        first, end = block_keys(ledger_id)
        while found := await self._index.scan(first, end, _SCAN_KEYS):
            keys += [key for key, _ in found]
            first = found[-1][0] + b"\0"
        return keys

    async def entry_ids(self, state: LedgerState, *, below: int) -> list[int]:
        """All ids at positions below this one, sorted."""
        before = -1
        ids: set[int] = set()
        while before != self.checkpoints:
            before = self.checkpoints
            first, end = block_keys(state.ledger_id)
            try:
                while found := await self._index.scan(first, end, _SCAN_KEYS):
                    for key, data in found:
                        number = int.from_bytes(key[-8:], "big")
                        ids.update(number * BLOCK_ENTRIES + low for low in Block.decode(data).low)
                    first = found[-1][0] + b"\0"
            except OSError as error:
                raise StoreError(StoreStatus.IO_ERROR, str(error)) from error
        for recent in (state.frozen, state.recent):
            if recent is not None:
                both = zip(recent.ids, recent.positions, strict=True)
                ids.update(entry_id for entry_id, position in both if position < below)
        return sorted(ids)
