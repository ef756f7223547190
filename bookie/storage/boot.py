"""The contents of a directory at a start: rows of the index, then the log behind the checkpoint.

A segment is removed only when it is behind the checkpoint and nothing in the index points into it
any longer.  An index that contradicts this is an old image that was restored, which may have
ledgers that were deleted since.  It is emptied and rebuilt from the log.

A long replay, for instance after the loss of the index, makes checkpoints on its way.  So memory is
bounded, and a bookie that dies during its start resumes at the last of them, unless segments
further on were removed: then its index looks like an old image.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from daybook.bookie.storage.deleted_segments import Gap, read_gaps
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.entry_locations import EntryLocations
from daybook.bookie.storage.index import (
    BLOCK_KEYS,
    LEDGER_KEYS,
    Checkpoint,
    IndexStore,
    checkpoint_key,
    ledger_of_key,
    shares_key,
)
from daybook.bookie.storage.ledger_state import LedgerState, decode_row, lac_of_entry
from daybook.bookie.storage.records import EVERY_LEDGER, Kind, Record
from daybook.bookie.storage.recovery import ReplayResult, list_segments, replay
from daybook.bookie.storage.segments import Segment
from daybook.bookie.storage.shares import decode_shares
from daybook.bookie.storage.status import StoreError, StoreStatus

_ROWS_A_SCAN = 4096
_NO_CHECKPOINT = Checkpoint(0, limbo=False)


@dataclass(slots=True)
class Contents:
    """The ledgers of a directory, as far as they are known."""

    ledgers: dict[int, LedgerState]
    places: EntryLocations
    limbo: bool  # the log has lost records
    checkpoint: int
    gaps: list[Gap] = field(default_factory=list[Gap])  # segments that were removed

    def apply(self, record: Record, position: int) -> None:
        """Apply a record that the log has at this position."""
        if record.ledger_id == EVERY_LEDGER:
            self.limbo = record.kind is Kind.LIMBO
            return
        state = self.ledgers.get(record.ledger_id)
        if state is None:
            state = LedgerState(record.ledger_id, first=position)
            self.ledgers[record.ledger_id] = state
        if state.deleted and record.kind is not Kind.TOMBSTONE:
            state.middle = max(state.middle, position)
        match record.kind:
            case Kind.ENTRY:
                lac = lac_of_entry(record.payload)
                state.accepted_lac = state.lac = max(state.lac, lac)
                self.places.add(state, record.entry_id, position, len(record.payload))
            case Kind.MASTER_KEY:
                state.master_key = bytes(record.payload)
            case Kind.FENCE:
                state.fenced = True
            case Kind.EXPLICIT_LAC:
                if record.entry_id > state.explicit_lac:
                    state.explicit_lac = record.entry_id
                    state.explicit_body = bytes(record.payload)
                    state.accepted_lac = state.lac = max(state.lac, record.entry_id)
            case Kind.LIMBO | Kind.LIMBO_END:
                state.limbo = record.kind is Kind.LIMBO
            case Kind.TOMBSTONE:
                if state.deleted:  # a copy: the first tombstone may still be in its segment
                    state.middle = max(state.middle, state.last)
                    state.stated = state.last = position
                else:
                    state.bury(position)
        self.places.touch(state)


async def load(
    disk: Disk,
    log_directory: str,
    index: IndexStore,
    places: EntryLocations,
    *,
    checkpoint_entries: int,
    finish: bool = True,
) -> tuple[Contents, ReplayResult]:
    """Load the directory; with `finish`, segments whose removal was begun are removed."""
    stored = await index.get(checkpoint_key())
    checkpoint = Checkpoint.decode(stored) if stored is not None else _NO_CHECKPOINT
    gaps = await read_gaps(disk, log_directory)
    if finish and await _is_old(index, checkpoint, gaps):
        await empty(index)
        checkpoint = _NO_CHECKPOINT
    segments = await _segments(disk, log_directory, gaps, finish=finish)
    for segment in segments:
        places.shares.begin(segment.first)
    await places.load_shares(checkpoint.position)
    rows = await _load_rows(index)
    contents = Contents(rows, places, checkpoint.limbo, checkpoint.position, gaps)

    def apply(record: Record) -> None:
        contents.apply(record, record.position)

    async def applied(so_far: ReplayResult) -> None:
        contents.limbo |= bool(so_far.losses)
        if places.recent_entries >= checkpoint_entries:
            try:
                await places.checkpoint(so_far.mark, limbo=contents.limbo)
            except OSError as error:  # `replay` would take an OSError for one of the segment
                raise StoreError(StoreStatus.IO_ERROR, str(error)) from error
            contents.checkpoint = so_far.mark

    replayed = await replay(disk, segments, checkpoint.position, apply, applied, gaps=gaps)
    contents.limbo |= bool(replayed.losses)
    return contents, replayed


async def load_below(
    disk: Disk,
    segments: list[Segment],
    gaps: list[Gap],
    places: EntryLocations,
    end: int,
    *,
    checkpoint_entries: int,
    progress: Callable[[int], None],
) -> tuple[Contents, ReplayResult]:
    """Load the durable log below `end` into the index, and return its contents.

    `progress` gets the position below which everything was applied.  The checkpoints say limbo:
    the store is in doubt when its index is rebuilt.
    """
    for segment in segments:
        places.shares.begin(segment.first)
    contents = Contents({}, places, limbo=True, checkpoint=0, gaps=gaps)

    async def checkpoint(position: int) -> None:
        try:
            await places.checkpoint(position, limbo=True)
        except OSError as error:  # `replay` would take an OSError for one of the segment
            raise StoreError(StoreStatus.IO_ERROR, str(error)) from error
        contents.checkpoint = position

    async def applied(so_far: ReplayResult) -> None:
        progress(so_far.mark)
        if places.recent_entries >= checkpoint_entries:
            await checkpoint(so_far.mark)

    def apply(record: Record) -> None:
        contents.apply(record, record.position)

    replayed = await replay(disk, segments, 0, apply, applied, gaps=gaps, end=end)
    await checkpoint(end)
    return contents, replayed


async def _is_old(index: IndexStore, checkpoint: Checkpoint, gaps: list[Gap]) -> bool:
    """Return True if the index needs segments that were removed since it was written."""
    if any(gap.end > checkpoint.position for gap in gaps):
        return True
    shares = await index.get(shares_key()) if gaps else None
    counted = decode_shares(shares, checkpoint.position) if shares is not None else None
    return any(
        live and gap.first <= first < gap.end for first, live in counted or () for gap in gaps
    )


async def empty(index: IndexStore) -> None:
    """Empty the index; if this is cut short, the next start finds it old and empties it again."""
    for first, end in (BLOCK_KEYS, LEDGER_KEYS):
        while found := await index.scan(first, end, _ROWS_A_SCAN):
            await index.write({}, [key for key, _ in found])
    await index.write({}, [shares_key(), checkpoint_key()])


async def _segments(
    disk: Disk, log_directory: str, gaps: list[Gap], *, finish: bool
) -> list[Segment]:
    """Return the segments of the log, without those that the last process began to remove."""
    kept: list[Segment] = []
    for segment in await list_segments(disk, log_directory):
        if not any(gap.first <= segment.first < gap.end for gap in gaps):
            kept.append(segment)
        elif finish:
            with suppress(OSError):  # the segment is ignored; the next start tries again
                await disk.remove(segment.path)
    return kept


async def _load_rows(index: IndexStore) -> dict[int, LedgerState]:
    ledgers: dict[int, LedgerState] = {}
    first, end = LEDGER_KEYS
    while rows := await index.scan(first, end, _ROWS_A_SCAN):
        for key, row in rows:
            ledger_id = ledger_of_key(key)
            ledgers[ledger_id] = decode_row(ledger_id, row)
        first = rows[-1][0] + b"\0"
    return ledgers
