"""The ledgers of one directory: which entries are accepted.

Each decision and its record in the log are one synchronous step, so the order of the log is the
order of the decisions:

- A ledger accepts only entries with its own master key, and plain adds only until it is fenced
  (`states`).
- If an entry id is added again, the first bytes stay, and OK is sent when *they* are durable.
- An entry that can no longer be read from the disk (`reads`) is accepted again from a recovery
  (`entry_repair`).
- **In doubt**, after a log of this bookie has lost records, plain adds are refused for all ledgers,
  since the lost record may have been the fence of any of them.  A ledger in limbo refuses plain
  adds until it has all the entries that it may have lost (`limbo`).
- While a damaged index is rebuilt (`rebuild`), an id that is not above the last indexed one of its
  ledger is refused unless the entry is found: a damaged index cannot prove that the id is new.
- With `ack_early` a plain add is answered when it is accepted, if the master key of its ledger is
  durable and few bytes are on their way to the disk.  Any other add is answered when it is durable.

Answers to readers are in `reads`; checkpoints, disk space, start and stop are in
`directory_runner`.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from typing import TypeAlias

import trio

from daybook.bookie.storage.boot import Contents
from daybook.bookie.storage.entry_locations import EntryLocation, EntryLocations
from daybook.bookie.storage.ledger_state import MASTER_KEY_BYTES_MAX, LedgerState, lac_of_entry
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import Done, Log
from daybook.bookie.storage.reads import Reads
from daybook.bookie.storage.records import RECORD_HEADER_BYTES, Buffer, Kind, Run, SharedRun
from daybook.bookie.storage.states import States
from daybook.bookie.storage.status import StoreError, StoreStatus

_LOOKUP_BYTES = 2048  # the approximate memory of a task that looks an entry up

DoneOfRuns: TypeAlias = Callable[[Sequence[SharedRun], int], Done]
"""Makes the `Done` of these runs, given their size in bytes with the record headers."""

Repair: TypeAlias = Callable[[LedgerState, int, EntryLocation, memoryview, Done], None]


class LedgerDirectory:
    """The rules for adds to one directory.

    The directory runner reports disk space and the state of the log to it.
    """

    def __init__(
        self,
        directory: str,
        limits: StoreLimits,
        contents: Contents,
        log: Log[LedgerState],
        nursery: trio.Nursery,
    ) -> None:
        self.directory = directory
        self.ledgers = contents.ledgers
        self.places: EntryLocations = contents.places
        self.log = log
        self.states = States(self, limits, contents, log)
        self.reads = Reads(self.ledgers, self.places, log, nursery)
        self.heal: Repair
        self.out_of_space = False
        self.out_of_reserve = False  # only fences, deletions and compaction may write then
        # Log positions up to which the disk has space: for plain adds, for all adds and LACs.
        self.plain_end: float = inf
        self.recovery_end: float = inf
        # Below this log position neither disk space nor memory is short for plain adds.
        self._add_at_once_below: float = 0
        self.read_only = False  # an operator or another part of the bookie asked for it
        self.closing = False
        self.rebuilding = ""  # the damage of the index, until a new index is in use
        self.writable = True  # plain adds are accepted; `judge` decides
        self.looked_up_bytes = 0  # in entries that wait for a lookup or for a repair
        self.entries_added = 0
        self.bytes_added = 0
        self._ack_early = limits.ack_early
        self._early_bytes_max = limits.early_bytes_max
        self._in_flight_bytes_max = limits.in_flight_bytes_max
        self._recent_entries_max = limits.recent_entries_max
        self._nursery = nursery

    def judge(self) -> bool:
        """Decide again if plain adds are accepted; return True if that has changed."""
        before = self.writable
        failed = self.log.failure or self.places.failure or self.rebuilding
        full = self.out_of_space or self.out_of_reserve
        self.writable = not (self.reads.doubt or full or self.read_only or self.closing or failed)
        return before != self.writable

    def room_changed(self) -> None:
        """Compute `_add_at_once_below` after a commit or a look at the free disk space."""
        self._add_at_once_below = min(self.log.durable + self._in_flight_bytes_max, self.plain_end)

    # ---- adding

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: Buffer,
        entry: memoryview,
        recovery: bool,
        done: Done,
    ) -> None:
        state = self.ledgers.get(ledger_id)
        log = self.log
        if (
            state is not None
            and entry_id > state.last_entry
            and self.writable
            and not state.fenced
            and not state.limbo
            and state.master_key == master_key
            and log.end < self._add_at_once_below
        ):
            self._accept(state, entry_id, entry, recovery, done)  # the usual case
            return
        refused = self._refusal(state, master_key, recovery)
        if refused is not StoreStatus.OK:
            done(refused)
            return
        state = state or self.states.make(ledger_id)
        self.states.keep_key(state, master_key)
        if entry_id > state.last_entry:
            self._accept(state, entry_id, entry, recovery, done)
        else:
            self._add_again(state, entry_id, entry, recovery, done)

    def try_add_run(self, run: Run, master_key: Buffer, done: Done) -> bool:
        """Accept plain adds of consecutive entries; return False if each needs a check first."""
        state = self.ledgers.get(run.ledger_id)
        if state is None or not self._takes_run(state, run.first, master_key):
            return False
        self._accept_run(state, run, done)
        return True

    def try_add_runs(
        self, runs: Sequence[SharedRun], start: int, span: memoryview, taken: DoneOfRuns
    ) -> int:
        """Accept runs of several ledgers that arrived in one piece, from `start` on.

        Return how many were accepted: those in front of the first one that needs a check.
        """
        ledgers = self.ledgers
        states: list[LedgerState] = []
        for run in islice(runs, start, start + 1 if self._ack_early else None):
            state = ledgers.get(run.ledger_id)
            if state is None or not self._takes_run(state, run.first, run.master_key):
                break
            # The same ledger may have a later run, whose check needs the new last entry.
            state.last_entry = run.first + len(run.sizes) - 1
            states.append(state)
        if states:
            self._accept_runs(states, runs, start, span, taken)
        return len(states)

    def _takes_run(self, state: LedgerState, first: int, master_key: Buffer) -> bool:
        """Return True if plain adds from this id on are new and need no further check."""
        return (
            first > state.last_entry
            and self.writable
            and not state.fenced
            and not state.limbo
            and state.master_key == master_key
            and self.log.end < self._add_at_once_below
        )

    def _refusal(
        self, state: LedgerState | None, master_key: Buffer, recovery: bool
    ) -> StoreStatus:
        if self.closing:
            return StoreStatus.READ_ONLY
        if self.log.failure is not None:
            return StoreStatus.IO_ERROR
        if not 0 < len(master_key) <= MASTER_KEY_BYTES_MAX:
            return StoreStatus.UNAUTHORIZED
        if state is not None:
            if state.master_key is not None and state.master_key != master_key:
                return StoreStatus.UNAUTHORIZED
            if state.deleted or (state.fenced and not recovery):
                return StoreStatus.FENCED
            if state.limbo and not recovery:
                return StoreStatus.READ_ONLY  # its writer may choose another bookie
        if not (recovery or self.writable):
            return StoreStatus.READ_ONLY
        if self.out_of_reserve or self.log.end >= self.recovery_end:
            return StoreStatus.READ_ONLY
        if self.log.end >= self.plain_end and not recovery:
            return StoreStatus.READ_ONLY
        if self.bytes_in_flight >= self._in_flight_bytes_max:
            return StoreStatus.TOO_MANY
        if self.rebuilding and self._memory_is_full:
            return StoreStatus.TOO_MANY
        return StoreStatus.OK

    @property
    def _memory_is_full(self) -> bool:
        """The memory limit applies only during a rebuild, when no checkpoint empties the memory."""
        return self.places.recent_entries + self.places.held_entries >= self._recent_entries_max

    @property
    def bytes_in_flight(self) -> int:
        return self.log.pending_bytes + self.looked_up_bytes

    def _accept(
        self, state: LedgerState, entry_id: int, entry: memoryview, recovery: bool, done: Done
    ) -> None:
        log = self.log
        # This comes before the record is appended: its own bytes do not count.
        early = self._ack_early and not recovery and self._may_lose(state)
        lac = lac_of_entry(entry)
        if lac > state.accepted_lac:
            state.accepted_lac = lac
            log.open_group.lacs[state] = lac
        told = None if early else done
        position = log.append(Kind.ENTRY, state.ledger_id, entry_id, entry, told)
        size = len(entry)
        self.places.add(state, entry_id, position, size)
        self.entries_added += 1
        self.bytes_added += size
        if early:
            done(StoreStatus.OK)

    def _accept_run(self, state: LedgerState, run: Run, done: Done) -> None:
        sizes = run.sizes
        lac = lac_of_entry(run.data[-sizes[-1] :])  # a writer's LAC never goes back
        if lac > state.accepted_lac:
            state.accepted_lac = lac
            self.log.open_group.lacs[state] = lac
        early = self._ack_early and self._may_lose(state)
        told = None if early else done
        positions = self.log.append_run(run, told)
        self.places.add_run(state, run.first, positions, sizes)
        self.entries_added += len(sizes)
        self.bytes_added += sum(sizes)
        if early:
            done(StoreStatus.OK)

    def _accept_runs(
        self,
        states: Sequence[LedgerState],
        runs: Sequence[SharedRun],
        start: int,
        span: memoryview,
        taken: DoneOfRuns,
    ) -> None:
        stop = start + len(states)
        accepted = runs[start:stop]
        end = runs[stop].begin if stop < len(runs) else len(span)
        if self._ack_early:  # each run may be answered at another time
            ledger_id, first, _, sizes, begin = accepted[0]
            alone = Run(ledger_id, first, span[begin:end], sizes)
            self._accept_run(states[0], alone, taken(accepted, end - begin))
            return
        lacs = self.log.open_group.lacs
        for state, (_, _, _, sizes, begin) in zip(states, accepted, strict=True):
            at = begin + sum(sizes) + RECORD_HEADER_BYTES * len(sizes) - sizes[-1]
            lac = lac_of_entry(span[at : at + sizes[-1]])
            if lac > state.accepted_lac:
                lacs[state] = state.accepted_lac = lac
        piece = span[accepted[0].begin : end]
        found = self.log.append_runs(accepted, piece, taken(accepted, len(piece)))
        count = 0
        for state, run, positions in zip(states, accepted, found, strict=True):
            self.places.add_run(state, run.first, positions, run.sizes)
            count += len(positions)
        self.entries_added += count
        self.bytes_added += len(piece) - RECORD_HEADER_BYTES * count

    def _may_lose(self, state: LedgerState) -> bool:
        """Return True if a plain add to the ledger may be answered before it is durable."""
        log = self.log
        return state.key_position < log.durable and log.end - log.durable < self._early_bytes_max

    def _add_again(
        self, state: LedgerState, entry_id: int, entry: memoryview, recovery: bool, done: Done
    ) -> None:
        """Add an entry whose id is not above the last one: a duplicate, or one that is late."""
        known, place = self.places.try_find(state, entry_id)
        if known and place is None and self.rebuilding and entry_id <= state.indexed_last:
            done(StoreStatus.READ_ONLY)  # A damaged index cannot prove that it is absent.
        elif place is not None:
            self._add_known(state, entry_id, place, entry, recovery, done)
        elif known:
            self._accept(state, entry_id, entry, recovery, done)
        else:
            self.looked_up_bytes += len(entry) + _LOOKUP_BYTES
            self._nursery.start_soon(self._add_after_lookup, state, entry_id, entry, recovery, done)

    async def _add_after_lookup(
        self, state: LedgerState, entry_id: int, entry: memoryview, recovery: bool, done: Done
    ) -> None:
        try:
            place = await self.places.find(state, entry_id)
        except StoreError as error:
            done(error.status)
            return
        except trio.Cancelled:
            done(StoreStatus.READ_ONLY)  # the store is closing
            raise
        finally:
            self.looked_up_bytes -= len(entry) + _LOOKUP_BYTES
        # During the lookup the ledger may have been fenced, or the same id added by another caller.
        assert state.master_key is not None
        refused = self._refusal(state, state.master_key, recovery)
        if refused is StoreStatus.FENCED:
            done(refused)
        elif place is not None:
            self._add_known(state, entry_id, place, entry, recovery, done)
        elif refused is not StoreStatus.OK:
            done(refused)
        elif self.rebuilding:
            done(StoreStatus.READ_ONLY)  # The index was found damaged during the lookup.
        else:
            self._accept(state, entry_id, entry, recovery, done)

    def _add_known(
        self,
        state: LedgerState,
        entry_id: int,
        place: EntryLocation,
        entry: memoryview,
        recovery: bool,
        done: Done,
    ) -> None:
        if recovery and self.reads.damaged.get((state.ledger_id, entry_id)) == place:
            self.heal(state, entry_id, place, entry, done)
        else:
            self.log.when_durable(place[0], done)
