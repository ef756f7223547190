"""The ledgers of one directory: the rules for adds, fences, LACs, deletions and reads.

Each decision and its record in the log are one synchronous step, so the order of the log is the
order of the decisions.  A method that returns a position has made the change; the caller waits
until the log is durable there.

Adds:

- The first request with a master key creates the ledger; its key is a record in front of the first
  entry or the fence.  A request with another key is refused.
- A ledger accepts plain adds only until it is fenced.  A fence is in force forever from the moment
  it is accepted; it is answered when it is durable.
- If an entry id is added again, the first bytes stay, and OK is sent when *they* are durable.
- An entry that can no longer be read from the disk is accepted again from a recovery
  (`entry_repair`).
- A ledger has no record behind its tombstone, except a copy of the tombstone.
- **In doubt**, after a log of this bookie has lost records, plain adds are refused for all ledgers,
  since the lost record may have been the fence of any of them.  A ledger in limbo refuses plain
  adds until it has all the entries that it may have lost (`limbo`).
- While a damaged index is rebuilt (`rebuild`), an id that is not above the last indexed one of its
  ledger is refused unless the entry is found: a damaged index cannot prove that the id is new.
- With `ack_early` a plain add is answered when it is accepted, if the master key of its ledger is
  durable and few bytes are on their way to the disk.  Any other add is answered when it is durable.

Reads:

- A read waits for a record that is accepted and not durable yet.  The record may be acknowledged
  soon, so "no" would be a lie.
- If compaction has moved the record meanwhile, it is looked up and read again.
- An entry that cannot be read from the disk is noted: a recovery add of it is a new one.
- In doubt every absence is UNKNOWN, and so it is for a ledger in limbo.

Checkpoints, disk space, start and stop are in `directory_runner`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from typing import TypeAlias

import trio

from daybook.bookie.storage.entry_locations import EntryLocation, EntryLocations
from daybook.bookie.storage.ledger_state import (
    EXPLICIT_LAC_BYTES_MAX,
    MASTER_KEY_BYTES_MAX,
    LedgerState,
    lac_of_entry,
)
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import Done, Log
from daybook.bookie.storage.records import (
    EVERY_LEDGER,
    NO_ENTRY_ID,
    RECORD_HEADER_BYTES,
    Buffer,
    Kind,
    Record,
    Run,
    SharedRun,
)
from daybook.bookie.storage.recovery import Contents
from daybook.bookie.storage.status import StoreError, StoreStatus

LAST_ENTRY = -1  # stands for the entry with the highest id in a read request
_DAMAGED_MAX = 100_000  # damaged entries noted; the others are noted when they are read again
_LOOKUP_BYTES = 2048  # the approximate memory of a task that looks an entry up

DoneOfRuns: TypeAlias = Callable[[Sequence[SharedRun], int], Done]
"""Makes the `Done` of these runs, given their size in bytes with the record headers."""

Repair: TypeAlias = Callable[[LedgerState, int, EntryLocation, memoryview, Done], None]


class LedgerDirectory:
    """The ledgers of one directory, and all decisions about them.

    The directory runner sets the flags for disk space, stop and rebuild.
    """

    def __init__(
        self,
        path: str,
        limits: StoreLimits,
        contents: Contents,
        log: Log[LedgerState],
        nursery: trio.Nursery,
    ) -> None:
        self.path = path
        self.ledgers = contents.ledgers
        self.locations: EntryLocations = contents.locations
        self.log = log
        self.repair: Repair  # set by the directory runner
        self.in_doubt = False  # the log of this directory has lost records of unknown ledgers
        self.bookie_in_doubt = False  # the log of some directory of this bookie has
        self.tombstones = 0  # deleted ledgers that are still remembered
        self.highest_tombstone = -1  # ledgers with lower ids may have been forgotten
        # Ledger and entry id, and the location at which the entry could not be read.
        self.damaged: dict[tuple[int, int], EntryLocation] = {}
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
        self.writable = True  # plain adds are accepted; `update_writable` decides
        self.looked_up_bytes = 0  # in entries that wait for a lookup or for a repair
        self.entries_added = 0
        self.bytes_added = 0
        self._ack_early = limits.ack_early
        self._early_bytes_max = limits.early_bytes_max
        self._in_flight_bytes_max = limits.in_flight_bytes_max
        self._recent_entries_max = limits.recent_entries_max
        self._contents = contents
        self._doubts = 0  # how often a doubt began since the start
        self._nursery = nursery

    def update_writable(self) -> bool:
        """Decide again if plain adds are accepted; return True if that has changed."""
        before = self.writable
        failed = self.log.failure or self.locations.failure or self.rebuilding
        full = self.out_of_space or self.out_of_reserve
        self.writable = not (
            self.bookie_in_doubt or full or self.read_only or self.closing or failed
        )
        return before != self.writable

    def update_add_limit(self) -> None:
        """Compute `_add_at_once_below` after a commit or a look at the free disk space."""
        self._add_at_once_below = min(self.log.durable + self._in_flight_bytes_max, self.plain_end)

    # ---- creation and deletion

    def create_ledger(self, ledger_id: int) -> LedgerState:
        """Create the state of a new ledger; the caller appends its first record."""
        assert ledger_id not in self.ledgers
        state = self.ledgers[ledger_id] = LedgerState(ledger_id, first=self.log.end)
        return state

    def keep_master_key(self, state: LedgerState, master_key: Buffer) -> None:
        """Store the key of the first request that has one; all later requests need this key."""
        # The key is in front of the first entry and the fence.  If the log ended between the two,
        # the ledger would accept any key after the next start.
        if state.master_key is None and not state.deleted:  # no record follows a tombstone
            state.master_key = bytes(master_key)
            state.key_position = self.log.append(
                Kind.MASTER_KEY, state.ledger_id, NO_ENTRY_ID, state.master_key, None
            )
            self.locations.mark_changed(state)

    def delete(self, ledger_id: int) -> int:
        """Delete the ledger; return the position of its tombstone.

        An unknown ledger gets a tombstone, too: its writer may come later.
        """
        self._check_log()
        state = self.ledgers.get(ledger_id) or self.create_ledger(ledger_id)
        if not state.deleted:
            state.deleted = True
            self.tombstones += 1
            state.tombstone_position = self.log.append(
                Kind.TOMBSTONE, ledger_id, NO_ENTRY_ID, b"", lambda _: state.wake_all()
            )
            fenced = state.fenced
            state.mark_deleted(state.tombstone_position)
            self.highest_tombstone = max(self.highest_tombstone, ledger_id)
            if not fenced:  # the tombstone is the fence of a ledger that had none
                state.fence_position = state.tombstone_position
            self.locations.mark_changed(state)
        return state.tombstone_position

    def forget(self, state: LedgerState) -> None:
        """Drop a deleted ledger whose tombstone is no longer needed (`tombstones`)."""
        assert state.deleted
        # The highest tombstone stays: `highest_tombstone` has to survive a restart.
        assert state.ledger_id != self.highest_tombstone
        del self.ledgers[state.ledger_id]
        self.tombstones -= 1

    # ---- adding

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: Buffer,
        entry: memoryview,
        recovery: bool,
        done: Done,
        *,
        admitted: bool = False,
    ) -> None:
        """Add an entry, or call `done` with the reason of the refusal.

        There is no checkpoint between the checks and the append, so no plain add gets behind a
        fence that was accepted before.  `admitted`: the entry is part of a run, and there was room
        when the run came.
        """
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
        refused = self._refusal(state, master_key, recovery, admitted)
        if refused is not StoreStatus.OK:
            done(refused)
            return
        state = state or self.create_ledger(ledger_id)
        self.keep_master_key(state, master_key)
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
        self, state: LedgerState | None, master_key: Buffer, recovery: bool, admitted: bool
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
        if not (admitted or self.has_room):
            return StoreStatus.TOO_MANY
        return StoreStatus.OK

    @property
    def has_room(self) -> bool:
        """Return True if there is memory for another add; a single one may exceed the limit."""
        return self.bytes_in_flight < self._in_flight_bytes_max and not (
            self.rebuilding and self._memory_is_full
        )

    @property
    def _memory_is_full(self) -> bool:
        """The memory limit applies only during a rebuild, when no checkpoint empties the memory."""
        return (
            self.locations.recent_entries + self.locations.held_entries >= self._recent_entries_max
        )

    @property
    def bytes_in_flight(self) -> int:
        return self.log.pending_bytes + self.looked_up_bytes

    def _accept(
        self, state: LedgerState, entry_id: int, entry: memoryview, recovery: bool, done: Done
    ) -> None:
        log = self.log
        assert not state.deleted, "no record follows a tombstone"
        # This comes before the record is appended: its own bytes do not count.
        early = self._ack_early and not recovery and self._may_ack_early(state)
        lac = lac_of_entry(entry)
        if lac > state.accepted_lac:
            state.accepted_lac = lac
            # The LAC belongs to the group of the entry, and `append` may close that group.
            log.open_group.lacs[state] = lac
        done_when_durable = None if early else done
        position = log.append(Kind.ENTRY, state.ledger_id, entry_id, entry, done_when_durable)
        size = len(entry)
        self.locations.add(state, entry_id, position, size)
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
        early = self._ack_early and self._may_ack_early(state)
        done_when_durable = None if early else done
        positions = self.log.append_run(run, done_when_durable)
        self.locations.add_run(state, run.first, positions, sizes)
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
            self.locations.add_run(state, run.first, positions, run.sizes)
            count += len(positions)
        self.entries_added += count
        self.bytes_added += len(piece) - RECORD_HEADER_BYTES * count

    def _may_ack_early(self, state: LedgerState) -> bool:
        """Return True if a plain add to the ledger may be answered before it is durable."""
        log = self.log
        return state.key_position < log.durable and log.end - log.durable < self._early_bytes_max

    def _add_again(
        self, state: LedgerState, entry_id: int, entry: memoryview, recovery: bool, done: Done
    ) -> None:
        """Add an entry whose id is not above the last one: a duplicate, or one that is late."""
        known, location = self.locations.try_find(state, entry_id)
        if known and location is None and self.rebuilding and entry_id <= state.indexed_last:
            done(StoreStatus.READ_ONLY)  # A damaged index cannot prove that it is absent.
        elif location is not None:
            self._add_known(state, entry_id, location, entry, recovery, done)
        elif known:
            self._accept(state, entry_id, entry, recovery, done)
        else:
            self.looked_up_bytes += len(entry) + _LOOKUP_BYTES
            self._nursery.start_soon(self._add_after_lookup, state, entry_id, entry, recovery, done)

    async def _add_after_lookup(
        self, state: LedgerState, entry_id: int, entry: memoryview, recovery: bool, done: Done
    ) -> None:
        try:
            location = await self.locations.find(state, entry_id)
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
        # The entry was let in before the lookup, and its memory is not needed twice.  If it had to
        # find room again, those that are looked up together would refuse each other.
        refused = self._refusal(state, state.master_key, recovery, admitted=True)
        if refused is StoreStatus.FENCED:
            done(refused)
        elif location is not None:
            self._add_known(state, entry_id, location, entry, recovery, done)
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
        location: EntryLocation,
        entry: memoryview,
        recovery: bool,
        done: Done,
    ) -> None:
        if recovery and self.damaged.get((state.ledger_id, entry_id)) == location:
            self.repair(state, entry_id, location, entry, done)
        else:
            self.log.when_durable(location[0], done)

    # ---- fences and LACs

    def fence(self, ledger_id: int, master_key: Buffer) -> int:
        """Fence the ledger; return the position of the fence.

        The fence is in force on return.  The adds that were accepted before are in front of it in
        the log, so they are durable when the fence is.
        """
        state = self._authorized(ledger_id, master_key)
        if not state.fenced:
            state.fenced = True
            state.fence_position = self.log.append(
                Kind.FENCE, ledger_id, NO_ENTRY_ID, b"", lambda _: state.wake_all()
            )
            self.locations.mark_changed(state)
        return state.fence_position

    def write_lac(self, ledger_id: int, master_key: Buffer, lac: int, body: Buffer) -> int:
        """Store an explicit LAC; return the position of the highest one so far."""
        if len(body) > EXPLICIT_LAC_BYTES_MAX:
            raise StoreError(StoreStatus.BAD_REQUEST, f"an explicit LAC of {len(body)} bytes")
        if self.out_of_reserve or self.log.end >= self.recovery_end:
            raise StoreError(StoreStatus.READ_ONLY, "too little disk space is left")
        if self.bytes_in_flight >= self._in_flight_bytes_max:
            raise StoreError(StoreStatus.TOO_MANY, "too many bytes are not durable yet")
        state = self._authorized(ledger_id, master_key)
        if state.deleted:
            raise StoreError(StoreStatus.FENCED, "the ledger was deleted")
        if lac > state.explicit_lac:
            state.explicit_lac = lac
            state.explicit_body = bytes(body)
            self.log.open_group.lacs[state] = state.accepted_lac = max(lac, state.accepted_lac)
            state.explicit_position = self.log.append(
                Kind.EXPLICIT_LAC, ledger_id, lac, state.explicit_body, None
            )
            self.locations.mark_changed(state)
        return state.explicit_position

    def _authorized(self, ledger_id: int, master_key: Buffer) -> LedgerState:
        """Return the ledger, created if it is new, after the check of its master key."""
        state = self.ledgers.get(ledger_id)
        if not 0 < len(master_key) <= MASTER_KEY_BYTES_MAX:
            raise StoreError(StoreStatus.UNAUTHORIZED, "no master key")
        if state is not None and state.master_key not in (None, master_key):
            raise StoreError(StoreStatus.UNAUTHORIZED)
        self._check_log()
        state = state or self.create_ledger(ledger_id)
        self.keep_master_key(state, master_key)
        return state

    # ---- reading

    def known_ledger(self, ledger_id: int) -> LedgerState:
        """Return the state of a ledger that is here; raise NO_LEDGER or UNKNOWN otherwise."""
        state = self.ledgers.get(ledger_id)
        if state is None or state.deleted:
            raise self.absence(StoreStatus.NO_LEDGER)
        return state

    def check_complete(self, ledger_id: int) -> None:
        """Raise `StoreError` if an accepted entry may be lost, or the ledger is fenced."""
        state = self.known_ledger(ledger_id)
        if self.bookie_in_doubt or state.limbo:
            raise StoreError(StoreStatus.UNKNOWN, "this bookie has lost records")
        if state.fenced:  # even if all that it lacked was copied here
            raise StoreError(StoreStatus.FENCED)

    def absence(self, status: StoreStatus, state: LedgerState | None = None) -> StoreError:
        """Return the error for an absent ledger or entry: UNKNOWN if it may have been lost."""
        assert status in (StoreStatus.NO_LEDGER, StoreStatus.NO_ENTRY)
        if self.bookie_in_doubt or (state is not None and state.limbo):
            return StoreError(StoreStatus.UNKNOWN, "this bookie has lost records")
        return StoreError(status)

    def try_read(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """Return the entry if that needs no waiting; None if the caller must use `read`."""
        state = self.known_ledger(ledger_id)
        if entry_id == LAST_ENTRY:
            entry_id = state.last_entry
        known, location = self.locations.try_find(state, entry_id)
        if not known:
            return None
        if location is None:
            raise self.absence(StoreStatus.NO_ENTRY, state)
        if location[0] >= self.log.durable:
            return None  # the entry may still be lost; `read` waits
        try:
            record = self.log.try_read(*location)
        except StoreError:
            self._note_damage(ledger_id, entry_id, location)
            raise
        return None if record is None else _entry(record, ledger_id, entry_id)

    async def read(self, ledger_id: int, entry_id: int) -> memoryview:
        """Return the entry; wait until it is durable."""
        state = self.known_ledger(ledger_id)
        if entry_id == LAST_ENTRY:
            entry_id = state.last_entry
        location = await self.locations.find(state, entry_id)
        while True:
            if location is None:
                raise self.absence(StoreStatus.NO_ENTRY, state)
            try:
                await self.log.wait_durable(location[0])
                entry = _entry(await self.log.read(*location), ledger_id, entry_id)
                if (ahead := self.log.read_ahead_position(*location)) is not None:
                    self._nursery.start_soon(self.log.read_ahead, ahead)
                return entry
            except StoreError:
                # Compaction may have moved the record and deleted its segment during the read.
                read_at = location
                location = await self.locations.find(self.known_ledger(ledger_id), entry_id)
                if location == read_at:
                    self._note_damage(ledger_id, entry_id, read_at)
                    raise

    async def fetch(self, ledger_id: int, first: int, count: int, bytes_max: int) -> None:
        """Read the first of these entries into memory, for `try_read`.

        Entries that are small, or lie close to each other, are left to `read`, whose windows suit
        them.  It raises no error: `read` does.
        """
        state = self.ledgers.get(ledger_id)
        if state is None or state.deleted:
            return
        reading = self.log.reading
        left = min(bytes_max, reading.window_bytes * 3 // 4)
        records: list[EntryLocation] = []
        with suppress(StoreError):
            for entry_id in range(first, first + count):
                location = await self.locations.find(state, entry_id)
                if location is None or location[0] >= self.log.durable:
                    break
                left -= location[1]
                if location[1] < reading.piece_bytes or left < 0:
                    break
                records.append(location)
        if len(records) > 1:
            await self.log.fetch(records)

    def _note_damage(self, ledger_id: int, entry_id: int, location: EntryLocation) -> None:
        if location[0] >= self.log.durable:
            return  # the record is not on the disk, since the log has failed
        if len(self.damaged) >= _DAMAGED_MAX:
            del self.damaged[next(iter(self.damaged))]
        self.damaged[ledger_id, entry_id] = location

    async def forget_moved_damage(self) -> None:
        """Forget damage at places to which the index no longer leads; a rebuild calls this.

        A record behind the damaged one may have the entry, or the entry is not there any more and
        comes as a new one.  A note that stayed would hide the next damage of the entry.
        """
        for (ledger_id, entry_id), location in sorted(self.damaged.items()):
            await trio.lowlevel.checkpoint()
            state = self.ledgers.get(ledger_id)
            if state is not None and not state.deleted:
                found = await self.locations.find(state, entry_id)
                if found == location or self.damaged.get((ledger_id, entry_id)) != location:
                    continue
            self.damaged.pop((ledger_id, entry_id), None)

    async def read_lac(self, ledger_id: int) -> tuple[bytes | None, memoryview | None]:
        """Return the body of the explicit LAC and the last entry, at least one of them."""
        state = self.known_ledger(ledger_id)
        body = state.explicit_body
        if body is not None:
            await self.log.wait_durable(state.explicit_position)
        last = await self.read(ledger_id, LAST_ENTRY) if state.last_entry >= 0 else None
        if body is None and last is None:
            raise self.absence(StoreStatus.NO_ENTRY, state)
        return body, last

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """Return the ids of the durable entries of the ledger, sorted."""
        return await self.locations.entry_ids(self.known_ledger(ledger_id), below=self.log.durable)

    # ---- limbo and doubt; the class `LimboLedgers` calls these in the right order

    def mark_limbo(self, ledger_id: int, *, limbo: bool, fence: bool) -> int:
        """Mark a ledger that may have lost records; return the mark's position, -1 if not new."""
        self._check_log()
        state = self.ledgers.get(ledger_id) or self.create_ledger(ledger_id)
        position = -1
        if state.deleted:
            return position
        if limbo and not state.limbo:
            state.limbo = True
            position = self.log.append(Kind.LIMBO, ledger_id, NO_ENTRY_ID, b"", None)
        if fence and not state.fenced:
            state.fenced = True
            position = state.fence_position = self.log.append(
                Kind.FENCE, ledger_id, NO_ENTRY_ID, b"", lambda _: state.wake_all()
            )
        self.locations.mark_changed(state)
        return position

    async def end_limbo(self, ledger_id: int) -> None:
        """End the limbo of a ledger: it no longer lacks anything."""
        self._check_log()
        self.check_index()
        state = self.ledgers[ledger_id]
        if state.deleted:
            return  # no record follows a tombstone
        position = self.log.append(Kind.LIMBO_END, ledger_id, NO_ENTRY_ID, b"", None)
        # The limbo ends when its end is durable: a restart must not find the ledger in limbo after
        # an absence was believed.
        await self.log.wait_durable(position)
        state.limbo = False
        self.locations.mark_changed(state)

    def begin_doubt(self) -> None:
        """Begin a doubt in memory: records may be lost.  `write_doubt` makes it durable."""
        self._doubts += 1
        self.in_doubt = self._contents.limbo = True

    def write_doubt(self) -> int:
        """Append a record that this directory is in doubt; return its position."""
        self._check_log()
        return self.log.append(Kind.LIMBO, EVERY_LEDGER, NO_ENTRY_ID, b"", None)

    async def end_doubt(self) -> None:
        """End the doubt: every ledger that may have lost records is marked by now."""
        self._check_log()
        self.check_index()
        doubts = self._doubts
        position = self.log.append(Kind.LIMBO_END, EVERY_LEDGER, NO_ENTRY_ID, b"", None)
        await self.log.wait_durable(position)
        if doubts != self._doubts:
            # The record of the doubt that began meanwhile lies behind this end, and so will its
            # own end.
            raise StoreError(StoreStatus.UNKNOWN, "a new doubt has begun")
        self.in_doubt = self._contents.limbo = False

    def check_index(self) -> None:
        """Raise UNKNOWN during a rebuild of the index: a ledger may lack more than is known."""
        if self.rebuilding:
            raise StoreError(StoreStatus.UNKNOWN, "the index is being rebuilt")

    def _check_log(self) -> None:
        if self.closing:
            raise StoreError(StoreStatus.READ_ONLY, "the store is closing")
        if self.log.failure is not None:
            raise StoreError(StoreStatus.IO_ERROR, f"the log has failed: {self.log.failure}")


def _entry(record: Record, ledger_id: int, entry_id: int) -> memoryview:
    if (record.kind, record.ledger_id, record.entry_id) != (Kind.ENTRY, ledger_id, entry_id):
        raise StoreError(StoreStatus.IO_ERROR, f"the index points to a {record.kind.name}")
    return record.payload
