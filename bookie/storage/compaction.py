"""Compaction: segments with few live bytes are emptied and deleted, to make space for entries.

A record is live if the index points to it, or if it holds the state of a ledger (its key, a fence,
an explicit LAC, its deletion).  To empty a segment, the compactor appends its live records to the
log once more, with the entries sorted by ledger, a portion at a time:

    read the segment -> append a portion -> durable -> checkpoint that moves its entries -> ...
                     -> no record is live -> noted in `REMOVED` -> deleted

So at any moment, even at a power loss, the index points to durable records only, and the segments
on the disk hold everything that a rebuild of the index needs.

**A segment is deleted only on proof**: every byte of it that was durable was read and found whole,
every record in it was looked up in the index, and the segment usage (`entry_locations`), which is
counted from the index, says that nothing points into it.  A damaged segment stays as it is.

The reserve of the disk (`StoreLimits`) is for this: deletions and compaction have disk space when
adds have none.  While space is short the compactor runs without its rate limit.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

import trio

from daybook.bookie.storage.batches import Damage, begins, durable_end, first_mark, scan
from daybook.bookie.storage.deleted_segments import Gap, with_gap, write_gaps
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.entry_locations import Lookup, Moves
from daybook.bookie.storage.ledger_directory import LedgerDirectory
from daybook.bookie.storage.ledger_state import LedgerState
from daybook.bookie.storage.limits import CompactionLimits
from daybook.bookie.storage.log import Log
from daybook.bookie.storage.records import (
    EVERY_LEDGER,
    NO_ENTRY_ID,
    RECORD_HEADER_BYTES,
    Kind,
    Record,
)
from daybook.bookie.storage.recovery import Contents
from daybook.bookie.storage.segments import Segment
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.tombstones import Tombstones
from daybook.bookie.storage.write_cache import BLOCK_ENTRIES
from daybook.wire.rate_limit import RateLimit

_TURN_RECORDS = 200  # Then the requests of clients get their turn of the event loop.


@dataclass(slots=True)
class CompactionStatistics:
    """Counters of compaction since the start of the bookie."""

    segments_removed: int = 0
    bytes_removed: int = 0
    bytes_rewritten: int = 0
    segments_kept_damaged: int = 0  # candidates that could not be emptied
    reclaim_failures: int = 0  # disk errors


class _Portion:
    """Live entries on their way to the end of the log."""

    def __init__(self) -> None:
        self.bytes = 0
        self.count = 0
        self._ledgers: dict[int, list[tuple[int, int, bytes]]] = {}

    def add(self, record: Record) -> None:
        # The payload is copied: a view would keep the whole piece that was read in memory.
        payload = bytes(record.payload)
        entries = self._ledgers.setdefault(record.ledger_id, [])
        entries.append((record.entry_id, record.position, payload))
        self.bytes += RECORD_HEADER_BYTES + len(payload)
        self.count += 1

    def sorted(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield ledger, entry, position, payload, by ledger: later reads are then sequential."""
        for ledger_id in sorted(self._ledgers):
            for entry in sorted(self._ledgers[ledger_id]):
                yield (ledger_id, *entry)


class Compactor:
    """The compactor of one directory; `run_once` runs one at a time."""

    def __init__(
        self,
        disk: Disk,
        log_directory: str,
        limits: CompactionLimits,
        directory: LedgerDirectory,
        contents: Contents,
        tombstones: Tombstones,
        *,
        checkpoint: Callable[[Moves | None], Awaitable[None]],
        check_space: Callable[[], Awaitable[int]],
    ) -> None:
        self.statistics = CompactionStatistics()
        self._disk = disk
        self._log_directory = log_directory
        self._limits = limits
        self._directory = directory
        self._contents = contents
        self._tombstones = tombstones
        self._checkpoint = checkpoint
        self._check_space = check_space
        self._rate_limit = RateLimit(limits.bytes_per_s)
        self.running = trio.Lock()  # held by `run_once`
        self._damaged: set[int] = set()  # segments that are not tried again before a restart

    @property
    def _log(self) -> Log[LedgerState]:
        return self._directory.log

    # ---- which

    async def run_once(self) -> None:
        """Empty and remove every segment whose live share is low enough."""
        async with self.running:
            await self._run()

    async def _run(self) -> None:
        try:
            # A deletion frees bytes only when a checkpoint drops the entries from the index.
            await self._checkpoint(None)
            self._check()
            for segment in self._candidates():
                if not self._directory.locations.usage.live_bytes(
                    segment.first
                ) or await self._fits(segment):
                    await self._compact(segment)
        except OSError:
            self.statistics.reclaim_failures += 1
        except StoreError:
            pass  # the log has failed, or the store is closing: both are reported elsewhere

    def _candidates(self) -> list[Segment]:
        """Return the segments behind the checkpoint, those with the fewest live bytes first."""
        usage, segments = self._directory.locations.usage, self._log.segments
        ends = begins(self._log.segments, self._contents.gaps)
        found: list[tuple[int, Segment]] = []
        for segment, following in pairwise(segments):
            # The next start begins to read in the segment in which the checkpoint lies.
            if following.first > self._contents.checkpoint or segment.first in self._damaged:
                continue
            live = usage.live_bytes(segment.first)
            size = ends[bisect_right(ends, segment.first)] - segment.first
            if live < self._limits.live_share_max * size:
                found.append((live, segment))
        return [segment for _, segment in sorted(found, key=lambda each: each[0])]

    async def _fits(self, segment: Segment) -> bool:
        live = self._directory.locations.usage.live_bytes(segment.first)
        return live + self._limits.spare_bytes <= await self._check_space()

    # ---- how

    async def _compact(self, segment: Segment) -> None:
        try:
            limit = await durable_end(self._disk, segment, self._log.segments, self._contents.gaps)
            mark = await first_mark(self._disk, segment)
        except OSError:  # this segment or the next one is unreadable; others may be fine
            limit = mark = None
        if limit is None or not await self._move_live_records(segment, limit):
            self._damaged.add(segment.first)
            self.statistics.segments_kept_damaged += 1
            return
        # A segment without a whole first batch does not exist and has nothing below `limit`.
        await self._remove(segment, limit if mark is None else mark)

    def _end_of(self, segment: Segment) -> int:
        ends = begins(self._log.segments, self._contents.gaps)
        return ends[bisect_right(ends, segment.first)]

    async def _move_live_records(self, segment: Segment, limit: int) -> bool:
        """Move all live records out of the segment; return False if that cannot be proved."""
        portion, known_of = _Portion(), set[int]()
        lookup = Lookup(self._directory.locations)
        async with aclosing(scan(self._disk, segment, limit)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Damage):
                    return False
                await self._spend(piece.end - piece.position)
                for number, record in enumerate(piece.records, 1):
                    if not number % _TURN_RECORDS:
                        await trio.lowlevel.checkpoint()
                    if record.kind is not Kind.ENTRY:
                        known_of.add(record.ledger_id)
                    elif await self._is_live(lookup, record):
                        portion.add(record)
                if self._is_full(portion):
                    await self._move(portion)
                    portion = _Portion()
        await self._rewrite_states(segment, sorted(known_of))
        await self._move(portion)
        if not self._nothing_points_into(segment):
            # A ledger deleted meanwhile still has its entries in the index until a checkpoint.
            await self._checkpoint(None)
        return self._nothing_points_into(segment)

    async def _is_live(self, lookup: Lookup, record: Record) -> bool:
        state = self._directory.ledgers.get(record.ledger_id)
        if state is None or state.deleted:
            return False
        return await lookup.is_at(record.ledger_id, record.entry_id, record.position)

    def _is_full(self, portion: _Portion) -> bool:
        limits = self._limits
        return portion.bytes >= limits.portion_bytes or portion.count >= limits.portion_entries

    def _nothing_points_into(self, segment: Segment) -> bool:
        return self._directory.locations.usage.live_bytes(segment.first) == 0

    async def _move(self, portion: _Portion) -> None:
        """Append the entries once more, and let the index point to the new records."""
        moves: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        chunk_bytes = 0
        for count, (ledger_id, entry_id, before, payload) in enumerate(portion.sorted(), 1):
            if not count % _TURN_RECORDS:
                await trio.lowlevel.checkpoint()
            self._check()
            state = self._directory.ledgers.get(ledger_id)
            if state is None or state.deleted:
                continue  # the ledger was deleted meanwhile
            position = self._log.append(Kind.ENTRY, ledger_id, entry_id, payload, None)
            number, low = divmod(entry_id, BLOCK_ENTRIES)
            moves.setdefault((ledger_id, number), {})[low] = (before, position)
            size = RECORD_HEADER_BYTES + len(payload)
            self.statistics.bytes_rewritten += size
            chunk_bytes += size
            if chunk_bytes >= self._limits.chunk_bytes:
                await self._log.wait_durable(position)
                await self._spend(chunk_bytes)
                chunk_bytes = 0
        if moves:
            await self._spend(chunk_bytes)
            await self._checkpoint(moves)
            self._check()  # the checkpoint was skipped if the index or the log has failed

    async def _rewrite_states(self, segment: Segment, ledger_ids: list[int]) -> None:
        """Append the state of these ledgers again: a rebuild of the index needs it in the log."""
        position = -1
        stays = self._tombstones.tombstones_kept(segment)
        for ledger_id in ledger_ids:
            self._check()
            state = self._directory.ledgers.get(ledger_id)
            if state is not None and state.deleted and stays(state):
                continue
            stated = -1
            for record in self._state_records(ledger_id):
                payload = record.payload
                position = self._log.append(record.kind, ledger_id, record.entry_id, payload, None)
                stated = position if stated < 0 else stated
            if state is not None and state.deleted:
                self._tombstones.state_rewritten(state, segment, stated, position)
        if position >= 0:
            await self._log.wait_durable(position)

    def _state_records(self, ledger_id: int) -> list[Record]:
        def record(kind: Kind, entry_id: int = NO_ENTRY_ID, payload: bytes = b"") -> Record:
            return Record(-1, kind, ledger_id, entry_id, memoryview(payload))

        if ledger_id == EVERY_LEDGER:
            return [record(Kind.LIMBO)] if self._contents.limbo else []
        state = self._directory.ledgers.get(ledger_id)
        if state is None:
            return []
        known: list[Record] = []
        if state.master_key is not None:
            known.append(record(Kind.MASTER_KEY, payload=state.master_key))
        if state.deleted:
            return [*known, record(Kind.TOMBSTONE)]
        if state.fenced:
            known.append(record(Kind.FENCE))
        if state.limbo:
            known.append(record(Kind.LIMBO))
        if state.explicit_body is not None:
            known.append(record(Kind.EXPLICIT_LAC, state.explicit_lac, state.explicit_body))
        return known

    async def _remove(self, segment: Segment, mark: int) -> None:
        # If the index was found damaged meanwhile, it does not prove that the segment is empty.
        self._check()
        gap = Gap(segment.first, mark, self._end_of(segment))
        gaps = with_gap(self._contents.gaps, gap)
        assert gap.end <= self._contents.checkpoint, "a start would have to read this segment"
        assert segment != self._log.segments[-1], "the log is written to this segment"
        # REMOVED is written before the file goes: otherwise a start would take this for a loss.
        await write_gaps(self._disk, self._log_directory, gaps)
        self._contents.gaps = gaps
        self._tombstones.removed(segment)
        self._directory.locations.usage.end(segment.first)
        self._log.forget(segment)
        self.statistics.segments_removed += 1
        self.statistics.bytes_removed += gap.end - gap.first
        await self._disk.remove_in_steps(segment.path)
        await self._check_space()

    def _check(self) -> None:
        """Raise `StoreError` unless records may be appended and the index is trusted."""
        directory = self._directory
        failure = self._log.failure or directory.locations.failure or directory.rebuilding
        if directory.closing or failure:
            raise StoreError(StoreStatus.READ_ONLY, str(failure or "the store is closing"))

    async def _spend(self, size: int) -> None:
        if not self._directory.out_of_space:
            await self._rate_limit.spend(size)
