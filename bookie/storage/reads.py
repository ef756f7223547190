"""What is answered of the ledgers of one directory: entries, LACs, and that something is not there.

- A read waits for a record that is accepted but not durable yet: it may be acknowledged soon, so
  "no" would be a lie.
- What was read may have been moved meanwhile (`compaction`): then it is looked up and read again.
- What the disk does not give is noted: a recovery add of it is a new one (`entry_repair`).
- **In doubt**, after a log of this bookie has lost records, absence is UNKNOWN.  So it is of a
  ledger in limbo, until it has all that it may have lost (`limbo`).

Nothing here changes a ledger: that is `ledger_directory`.
"""

import trio

from daybook.bookie.storage.entry_locations import EntryLocation, EntryLocations
from daybook.bookie.storage.ledger_state import LedgerState
from daybook.bookie.storage.log import Log
from daybook.bookie.storage.records import Kind, Record
from daybook.bookie.storage.status import StoreError, StoreStatus

LAST_ENTRY = -1  # as the id of an entry to be read
_DAMAGED_MAX = 100_000  # noted; more of it is found again when it is read again


class Reads:
    """`ledgers` are those of the volume, which makes and forgets them."""

    def __init__(
        self,
        ledgers: dict[int, LedgerState],
        places: EntryLocations,
        log: Log[LedgerState],
        nursery: trio.Nursery,
    ) -> None:
        self.doubt = False  # some log of this bookie has lost records, and nobody knows whose
        self.damaged: dict[
            tuple[int, int], EntryLocation
        ] = {}  # ledger and entry: could not be read there
        self._ledgers = ledgers
        self._places = places
        self._log = log
        self._nursery = nursery

    def known(self, ledger_id: int) -> LedgerState:
        state = self._ledgers.get(ledger_id)
        if state is None or state.deleted:
            raise self.absent(StoreStatus.NO_LEDGER)
        return state

    def check_whole(self, ledger_id: int) -> None:
        """StoreError if something that was accepted may be lost, or somebody ends the ledger."""
        state = self.known(ledger_id)
        if self.doubt or state.limbo:
            raise StoreError(StoreStatus.UNKNOWN, "this bookie has lost records")
        if state.fenced:  # Also for good, when what it lacked up to its end is copied.
            raise StoreError(StoreStatus.FENCED)

    def absent(self, status: StoreStatus, state: LedgerState | None = None) -> StoreError:
        if self.doubt or (state is not None and state.limbo):
            return StoreError(StoreStatus.UNKNOWN, "this bookie has lost records")
        return StoreError(status)

    def try_read(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """The entry if it is at hand without waiting; None if that cannot be said."""
        state = self.known(ledger_id)
        if entry_id == LAST_ENTRY:
            entry_id = state.last_entry
        known, place = self._places.try_find(state, entry_id)
        if not known:
            return None
        if place is None:
            raise self.absent(StoreStatus.NO_ENTRY, state)
        if place[0] >= self._log.durable:
            return None
        try:
            record = self._log.try_read(*place)
        except StoreError:
            self._note_damage(ledger_id, entry_id, place)
            raise
        return None if record is None else _entry(record, ledger_id, entry_id)

    async def read(self, ledger_id: int, entry_id: int) -> memoryview:
        state = self.known(ledger_id)
        if entry_id == LAST_ENTRY:
            entry_id = state.last_entry
        place = await self._places.find(state, entry_id)
        while True:
            if place is None:
                raise self.absent(StoreStatus.NO_ENTRY, state)
            try:
                await self._log.wait_durable(place[0])
                entry = _entry(await self._log.read(*place), ledger_id, entry_id)
                if (ahead := self._log.place_ahead(*place)) is not None:
                    self._nursery.start_soon(self._log.read_ahead, ahead)
                return entry
            except StoreError:
                read_at = place
                place = await self._places.find(self.known(ledger_id), entry_id)
                if place == read_at:
                    self._note_damage(ledger_id, entry_id, read_at)
                    raise

    def _note_damage(self, ledger_id: int, entry_id: int, place: EntryLocation) -> None:
        if place[0] >= self._log.durable:
            return  # not on the disk: the log has failed
        if len(self.damaged) >= _DAMAGED_MAX:
            del self.damaged[next(iter(self.damaged))]
        self.damaged[ledger_id, entry_id] = place

    async def read_lac(self, ledger_id: int) -> tuple[bytes | None, memoryview | None]:
        state = self.known(ledger_id)
        body = state.explicit_body
        if body is not None:
            await self._log.wait_durable(state.explicit_position)
        last = await self.read(ledger_id, LAST_ENTRY) if state.last_entry >= 0 else None
        if body is None and last is None:
            raise self.absent(StoreStatus.NO_ENTRY, state)
        return body, last

    async def entry_ids(self, ledger_id: int) -> list[int]:
        return await self._places.entry_ids(self.known(ledger_id), below=self._log.durable)


def _entry(record: Record, ledger_id: int, entry_id: int) -> memoryview:
    if (record.kind, record.ledger_id, record.entry_id) != (Kind.ENTRY, ledger_id, entry_id):
        raise StoreError(StoreStatus.IO_ERROR, f"the index points to a {record.kind.name}")
    return record.payload
