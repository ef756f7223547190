"""The ledgers of one directory: which entries are accepted.

Each decision and its record in the log are one synchronous step, so the order of the log is the
order of the decisions:

- A ledger takes entries with its own key only, and plain ones until it is fenced (`states`).
- The same id again: the first bytes stay, and OK is said when *they* are durable.
- An entry that the disk does not give any more (`reads`) is taken again from a recovery (`heal`).
- **In doubt**, after a log of this bookie has lost records, plain adds are refused for all ledgers,
  since the lost record may have been anyone's fence.  So it is for a ledger in limbo, until it has
  all that it may have lost (`suspects`).
- While a damaged index is rebuilt (`rebuild`), an id below the last one of its ledger is refused
  unless the entry is found: without a whole index nobody knows that it is new.
- With `ack_early` a plain add is answered when it is accepted, if the key of its ledger is durable,
  and not much else is on its way to the disk; everything else when it is durable itself.

Not here: what is answered to readers (`reads`), when checkpoints are made, room, start and stop
(`upkeep`).
"""

from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from typing import TypeAlias

import trio

from daybook.bookie.storage.boot import Contents
from daybook.bookie.storage.ledgers import MASTER_KEY_BYTES_MAX, LedgerState, lac_of_entry
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import Done, Log
from daybook.bookie.storage.places import Place, Places
from daybook.bookie.storage.reads import Reads
from daybook.bookie.storage.records import RECORD_HEADER_BYTES, Buffer, Kind, Run, SharedRun
from daybook.bookie.storage.states import States
from daybook.bookie.storage.status import StoreError, StoreStatus

_LOOKUP_BYTES = 2048  # about what a task takes that looks an entry up

Taken: TypeAlias = Callable[[Sequence[SharedRun], int], Done]
"""Makes what is told when these are durable, of so many bytes with the room between them."""

Heal: TypeAlias = Callable[[LedgerState, int, Place, memoryview, Done], None]


class Volume:
    """Rules only; `upkeep` tells it what state the log is in."""

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
        self.places: Places = contents.places
        self.log = log
        self.states = States(self, limits, contents, log)
        self.reads = Reads(self.ledgers, self.places, log, nursery)
        self.heal: Heal
        self.out_of_space = False
        self.out_of_reserve = False  # then there is room for nothing but what makes room
        # Positions up to which there is room, whatever was written of it: for plain adds, for all.
        self.plain_end: float = inf
        self.recovery_end: float = inf
        self._add_at_once_below: float = 0  # plain adds: neither room nor memory is short there
        self.read_only = False  # because somebody wants it so
        self.closing = False
        self.rebuilding = ""  # what was found damaged in the index, until there is a new one
        self.writable = True  # whether plain adds are taken; `judge` decides
        self.looked_up_bytes = 0  # in entries that wait: are they here, can they be read again
        self.entries_added = 0
        self.bytes_added = 0
        self._ack_early = limits.ack_early
        self._early_bytes_max = limits.early_bytes_max
        self._in_flight_bytes_max = limits.in_flight_bytes_max
        self._recent_entries_max = limits.recent_entries_max
        self._nursery = nursery

    def judge(self) -> bool:
        """Look again whether plain adds may be taken; say whether that has changed."""
        before = self.writable
        failed = self.log.failure or self.places.failure or self.rebuilding
        full = self.out_of_space or self.out_of_reserve
        self.writable = not (self.reads.doubt or full or self.read_only or self.closing or failed)
        return before != self.writable

    def room_changed(self) -> None:
        """Records became durable, or somebody has looked how much room there is."""
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
            self._accept(state, entry_id, entry, recovery, done)  # as nearly always
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
        """Plain adds of consecutive entries, as nearly always; False: they have to be looked at."""
        state = self.ledgers.get(run.ledger_id)
        if state is None or not self._takes_run(state, run.first, master_key):
            return False
        self._accept_run(state, run, done)
        return True

    def try_add_runs(
        self, runs: Sequence[SharedRun], start: int, span: memoryview, taken: Taken
    ) -> int:
        """The same for runs of several ledgers that came in one piece: how many, from `start` on.

        Taken are those in front of the first one that has to be looked at.
        """
        ledgers = self.ledgers
        states: list[LedgerState] = []
        for run in islice(runs, start, start + 1 if self._ack_early else None):
            state = ledgers.get(run.ledger_id)
            if state is None or not self._takes_run(state, run.first, run.master_key):
                break
            state.last_entry = run.first + len(run.sizes) - 1  # the same ledger may come again
            states.append(state)
        if states:
            self._accept_runs(states, runs, start, span, taken)
        return len(states)

    def _takes_run(self, state: LedgerState, first: int, master_key: Buffer) -> bool:
        """Whether plain adds from this id on are new, and nothing is to be looked at."""
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
                return StoreStatus.READ_ONLY  # its writer may take another bookie
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
        """No checkpoint empties the memory while the index is being rebuilt."""
        return self.places.recent_entries + self.places.held_entries >= self._recent_entries_max

    @property
    def bytes_in_flight(self) -> int:
        return self.log.pending_bytes + self.looked_up_bytes

    def _accept(
        self, state: LedgerState, entry_id: int, entry: memoryview, recovery: bool, done: Done
    ) -> None:
        log = self.log
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
        taken: Taken,
    ) -> None:
        stop = start + len(states)
        accepted = runs[start:stop]
        end = runs[stop].begin if stop < len(runs) else len(span)
        if self._ack_early:  # each may be answered at another time
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
        """Whether a plain add to it may be answered before it is on the disk."""
        log = self.log
        return state.key_position < log.durable and log.end - log.durable < self._early_bytes_max

    def _add_again(
        self, state: LedgerState, entry_id: int, entry: memoryview, recovery: bool, done: Done
    ) -> None:
        """An id that may be here already, or one that comes late."""
        known, place = self.places.try_find(state, entry_id)
        if known and place is None and self.rebuilding and entry_id <= state.indexed_last:
            done(StoreStatus.READ_ONLY)  # A damaged index cannot say that it is not here.
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
        # Much may have happened meanwhile: a fence, the same id from somebody else.
        assert state.master_key is not None
        refused = self._refusal(state, state.master_key, recovery)
        if refused is StoreStatus.FENCED:
            done(refused)
        elif place is not None:
            self._add_known(state, entry_id, place, entry, recovery, done)
        elif refused is not StoreStatus.OK:
            done(refused)
        elif self.rebuilding:
            done(StoreStatus.READ_ONLY)  # The index was found damaged meanwhile.
        else:
            self._accept(state, entry_id, entry, recovery, done)

    def _add_known(
        self,
        state: LedgerState,
        entry_id: int,
        place: Place,
        entry: memoryview,
        recovery: bool,
        done: Done,
    ) -> None:
        if recovery and self.reads.damaged.get((state.ledger_id, entry_id)) == place:
            self.heal(state, entry_id, place, entry, done)
        else:
            self.log.when_durable(place[0], done)
