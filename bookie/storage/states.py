"""The ledger states of one directory: creation, fencing, LACs, deletion, limbo.

A change of a state and its record in the log are one synchronous step, as with entries
(`ledger_directory`):

- The first request with a master key creates the ledger; its key is a record in front of the first
  entry or the fence.  Another key is refused.
- A fence is in force forever from the moment it is accepted; it is answered when it is durable.
- A ledger has no record behind its tombstone, except a copy of the tombstone.

A method that returns a position has made the change; the caller waits until that is durable.
"""

from typing import Protocol

from daybook.bookie.storage.boot import Contents
from daybook.bookie.storage.ledger_state import (
    EXPLICIT_LAC_BYTES_MAX,
    MASTER_KEY_BYTES_MAX,
    LedgerState,
)
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import Log
from daybook.bookie.storage.records import EVERY_LEDGER, NO_ENTRY_ID, Buffer, Kind
from daybook.bookie.storage.status import StoreError, StoreStatus


class StatedVolume(Protocol):
    """The part of the volume that the states need."""

    closing: bool
    rebuilding: str
    out_of_reserve: bool
    recovery_end: float

    @property
    def bytes_in_flight(self) -> int: ...


class States:
    def __init__(
        self, volume: StatedVolume, limits: StoreLimits, contents: Contents, log: Log[LedgerState]
    ) -> None:
        self.limbo = False  # records of unknown ledgers may be lost
        self._doubts = 0  # how often a doubt began since the start
        self.tombstones = 0  # deleted ledgers that are still remembered
        self.highest_tombstone = -1  # ledgers with lower ids may have been forgotten
        self._volume = volume
        self._contents = contents
        self._ledgers = contents.ledgers
        self._places = contents.places
        self._log = log
        self._in_flight_bytes_max = limits.in_flight_bytes_max

    # ---- ledgers come and go

    def make(self, ledger_id: int) -> LedgerState:
        state = self._ledgers[ledger_id] = LedgerState(ledger_id, first=self._log.end)
        return state

    def keep_key(self, state: LedgerState, master_key: Buffer) -> None:
        if state.master_key is None and not state.deleted:  # no record follows a tombstone
            state.master_key = bytes(master_key)
            state.key_position = self._log.append(
                Kind.MASTER_KEY, state.ledger_id, NO_ENTRY_ID, state.master_key, None
            )
            self._places.touch(state)

    def delete(self, ledger_id: int) -> int:
        self._check_log()
        state = self._ledgers.get(ledger_id) or self.make(ledger_id)
        if not state.deleted:
            state.deleted = True
            self.tombstones += 1
            state.tombstone_position = self._log.append(
                Kind.TOMBSTONE, ledger_id, NO_ENTRY_ID, b"", lambda _: state.wake_all()
            )
            fenced = state.fenced
            state.bury(state.tombstone_position)
            self.highest_tombstone = max(self.highest_tombstone, ledger_id)
            if not fenced:  # the tombstone is the fence of a ledger that had none
                state.fence_position = state.tombstone_position
            self._places.touch(state)
        return state.tombstone_position

    def forget(self, state: LedgerState) -> None:
        """Drop a deleted ledger whose tombstone is no longer needed (`tombstones`)."""
        del self._ledgers[state.ledger_id]
        self.tombstones -= 1

    # ---- fences and LACs

    def fence(self, ledger_id: int, master_key: Buffer) -> int:
        state = self._authorized(ledger_id, master_key)
        if not state.fenced:
            state.fenced = True
            state.fence_position = self._log.append(
                Kind.FENCE, ledger_id, NO_ENTRY_ID, b"", lambda _: state.wake_all()
            )
            self._places.touch(state)
        return state.fence_position

    def write_lac(self, ledger_id: int, master_key: Buffer, lac: int, body: Buffer) -> int:
        if len(body) > EXPLICIT_LAC_BYTES_MAX:
            raise StoreError(StoreStatus.BAD_REQUEST, f"an explicit LAC of {len(body)} bytes")
        if self._volume.out_of_reserve or self._log.end >= self._volume.recovery_end:
            raise StoreError(StoreStatus.READ_ONLY, "too little room is left")
        if self._volume.bytes_in_flight >= self._in_flight_bytes_max:
            raise StoreError(StoreStatus.TOO_MANY, "too much is not durable yet")
        state = self._authorized(ledger_id, master_key)
        if state.deleted:
            raise StoreError(StoreStatus.FENCED, "it was deleted")
        if lac > state.explicit_lac:
            state.explicit_lac = lac
            state.explicit_body = bytes(body)
            self._log.open_group.lacs[state] = state.accepted_lac = max(lac, state.accepted_lac)
            state.explicit_position = self._log.append(
                Kind.EXPLICIT_LAC, ledger_id, lac, state.explicit_body, None
            )
            self._places.touch(state)
        return state.explicit_position

    def _authorized(self, ledger_id: int, master_key: Buffer) -> LedgerState:
        """Return the ledger, created if it is new, after the check of its master key."""
        state = self._ledgers.get(ledger_id)
        if not 0 < len(master_key) <= MASTER_KEY_BYTES_MAX:
            raise StoreError(StoreStatus.UNAUTHORIZED, "no master key")
        if state is not None and state.master_key not in (None, master_key):
            raise StoreError(StoreStatus.UNAUTHORIZED)
        self._check_log()
        state = state or self.make(ledger_id)
        self.keep_key(state, master_key)
        return state

    # ---- limbo: `limbo` says in which order

    def suspect(self, ledger_id: int, *, limbo: bool, fence: bool) -> int:
        """Mark a ledger that may have lost records; return the mark's position, -1 if not new."""
        self._check_log()
        state = self._ledgers.get(ledger_id) or self.make(ledger_id)
        position = -1
        if state.deleted:
            return position
        if limbo and not state.limbo:
            state.limbo = True
            position = self._log.append(Kind.LIMBO, ledger_id, NO_ENTRY_ID, b"", None)
        if fence and not state.fenced:
            state.fenced = True
            position = state.fence_position = self._log.append(
                Kind.FENCE, ledger_id, NO_ENTRY_ID, b"", lambda _: state.wake_all()
            )
        self._places.touch(state)
        return position

    async def clear(self, ledger_id: int) -> None:
        """End the limbo of a ledger: it no longer lacks anything."""
        self._check_log()
        self.check_index()
        state = self._ledgers[ledger_id]
        if state.deleted:
            return  # no record follows a tombstone
        position = self._log.append(Kind.LIMBO_END, ledger_id, NO_ENTRY_ID, b"", None)
        await self._log.wait_durable(position)
        state.limbo = False
        self._places.touch(state)

    def doubt(self) -> None:
        """Begin a doubt in memory: records may be lost.  `write_doubt` makes it durable."""
        self._doubts += 1
        self.limbo = self._contents.limbo = True

    def write_doubt(self) -> int:
        """Append a record that this directory is in doubt; return its position."""
        self._check_log()
        return self._log.append(Kind.LIMBO, EVERY_LEDGER, NO_ENTRY_ID, b"", None)

    async def end_doubt(self) -> None:
        """End the doubt: every ledger that may have lost records is marked by now."""
        self._check_log()
        self.check_index()
        doubts = self._doubts
        position = self._log.append(Kind.LIMBO_END, EVERY_LEDGER, NO_ENTRY_ID, b"", None)
        await self._log.wait_durable(position)
        if doubts != self._doubts:
            # The record of the doubt that began meanwhile lies behind this end, and so will its
            # own end.
            raise StoreError(StoreStatus.UNKNOWN, "a new doubt has begun")
        self.limbo = self._contents.limbo = False

    def check_index(self) -> None:
        """Raise during a rebuild of the index: nobody knows then what a ledger lacks."""
        if self._volume.rebuilding:
            raise StoreError(StoreStatus.UNKNOWN, "the index is being rebuilt")

    def _check_log(self) -> None:
        if self._volume.closing:
            raise StoreError(StoreStatus.READ_ONLY, "the store is closing")
        if self._log.failure is not None:
            raise StoreError(StoreStatus.IO_ERROR, f"the log has failed: {self._log.failure}")
