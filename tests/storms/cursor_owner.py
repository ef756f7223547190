"""The owner of a cursor in a storm: it does what `managed_ledger.cursor` does around the state.

The owner writes one record at a time into the cursor's ledger.  The first one after opening, and
the one after an error, is a whole snapshot in a new ledger; then the cursor's record points there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from daybook.managed_ledger import cursor_ledger
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.cursor_ledger import (
    IN_RECORD,
    Recovered,
    add_ranges,
    encode_change,
    encode_snapshot,
    folded,
    pointing,
)
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import CursorState
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo

if TYPE_CHECKING:
    from tests.storms.cursor import CursorStorm


END = -1  # stands for the clean close where other goals have the number of a receipt


class Owner:
    """One instance per takeover of the cursor.  `number` counts the takeovers."""

    def __init__(self, storm: "CursorStorm", number: int, host: int) -> None:
        self.storm = storm
        self.number = number
        self.host = host
        self.dead = False
        self.state: CursorState | None = None  # None until it is recovered
        self.info = ManagedCursorInfo(cursorsLedgerId=IN_RECORD)
        self.version = 0
        self.recorded = 0  # the number of changes that are durable
        self.closing = False
        self._writer: int | None = None
        self._records = 0
        self._busy = False
        self._goals: list[tuple[int, int]] = []  # number of a change, receipt that waits for it

    @property
    def serves(self) -> bool:
        return not self.dead and self.state is not None and not self.closing

    # -- recovering

    def recovered(self, info: ManagedCursorInfo, version: int, records: list[bytes] | None) -> None:
        """Start from the record and `records` of its ledger: None if it has none, or it is lost."""
        self.info, self.version = info, version
        lengths = {row.ledger_id: row.entries for row in self.storm.log.sealed}
        found = Recovered(lengths)
        for record in records or ():
            found.apply(record)
        if found.mark_delete is None:
            found = Recovered(lengths)
            found.mark_delete = Position(info.markDeleteLedgerId, info.markDeleteEntryId)
            add_ranges(found.acked, info.individualDeletedMessages, lengths)
            found.acked.discard_through(found.mark_delete)
        self._start(found.mark_delete, found.acked)

    def _start(self, mark_delete: Position, acked: AckSet) -> None:
        self.state = CursorState(mark_delete, acked, self.storm.log.next_position)
        self.storm.check_recovered(self)

    # -- recording

    def want_receipt(self, receipt: int) -> None:
        """Call `storm.receipt` when everything that was acknowledged so far is durable."""
        assert self.state is not None
        self._goals.append((self.state.changes, receipt))
        self._settle(self.recorded)

    def _settle(self, goal: int) -> None:
        self.recorded = max(self.recorded, goal)
        done = [receipt for change, receipt in self._goals if change <= self.recorded]
        self._goals = [each for each in self._goals if each[0] > self.recorded]
        for receipt in done:
            if receipt == END:
                self.storm.ended(self)
            else:
                self.storm.receipt(receipt)

    def record_changes(self) -> None:
        if self._busy or not self.serves:
            return
        assert self.state is not None
        goal = self.state.changes
        change = self.state.take_change()
        if change is None:
            self._settle(goal)
            return
        self._busy = True
        if self._writer is None or self._records >= self.storm.cursor_roll_records:
            self._start_ledger(goal)
            return

        def done(ok: bool) -> None:
            if not ok:  # The change may be lost, so a snapshot in a new ledger has to follow.
                self._writer = None
                self._start_ledger(goal)
                return
            self._records += 1
            self._done(goal)

        self.storm.append(self, self._writer, [encode_change(change)], done)

    def _done(self, goal: int) -> None:
        self._busy = False
        self._settle(goal)

    def _start_ledger(self, goal: int) -> None:
        assert self.state is not None
        mark_delete = self.state.mark_delete
        parts = encode_snapshot(mark_delete, self.state.acked, {})
        if self.state.acked.range_count(cursor_ledger.RANGES_MAX) > cursor_ledger.RANGES_MAX:
            self.storm.mark("dense")
        self.state.take_change()  # The snapshot contains it.
        ledger_id = self.storm.create_ledger(self)

        def written(ok: bool) -> None:
            if ok:
                made = pointing(self.info, ledger_id, mark_delete, {})
                self._store(made, lambda: self._ledger_started(ledger_id, goal))
            else:
                self._start_ledger(goal)

        self.storm.append(self, ledger_id, parts, written)

    def _ledger_started(self, ledger_id: int, goal: int) -> None:
        self._writer, self._records = ledger_id, 0
        self._done(goal)

    def _store(self, info: ManagedCursorInfo, then: Callable[[], None]) -> None:
        """Write the record, and delete the ledger that it no longer points to."""
        old_id = self.info.cursorsLedgerId

        def done(ok: bool) -> None:
            if not ok:
                self.storm.say(f"owner {self.number} is fenced")
                self.dead = True
                return
            self.info, self.version = info, self.version + 1
            if old_id != IN_RECORD:
                self.storm.delete(old_id)
            then()

        self.storm.store_record(self, info, self.version, done)

    # -- a clean end

    def close(self) -> None:
        """Store everything: in the record if it fits there, otherwise as a last snapshot."""
        if self._busy or not self.serves:
            return
        assert self.state is not None
        self.closing = self._busy = True
        goal = self.state.changes
        if self.state.acked.range_count(self.storm.ranges_in_record_max) > (
            self.storm.ranges_in_record_max
        ):
            self.storm.mark("closed with a snapshot")
            self._start_ledger(goal)
            self._goals.append((goal, END))
            return
        runs = list(self.state.acked.ranges())
        made = folded(self.info, self.state.mark_delete, runs, {})
        self._goals.append((goal, END))
        self._store(made, lambda: self._done(goal))
