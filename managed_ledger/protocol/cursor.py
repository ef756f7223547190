"""What a cursor knows, and what of it has to be written.

The mark-delete position is the last one up to which everything is acknowledged; above it single
positions may be acknowledged, with holes in between.  It never moves back, except by a reset.

A change is *recorded* when a record of it is durable.  Between two snapshots only changes are
written: the new mark-delete position and the runs that were acknowledged since.

Whoever acknowledges sees to it that the position holds an entry that is confirmed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.position import Position

Run = tuple[int, int, int]  # ledger, first entry, last entry


@dataclass(frozen=True, slots=True)
class Change:
    """What happened since the last record.  `reset` says that everything before is void."""

    mark_delete: Position
    runs: tuple[Run, ...]
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    mark_delete: Position
    acked: tuple[Run, ...]
    fresh: tuple[Run, ...]
    reset: bool
    taken: Position


class CursorState:
    """A cursor's acknowledgements.  `next_position` is the log's: the position behind another.

    `recording` False: nobody will ask for changes, and none are kept.
    """

    def __init__(
        self,
        mark_delete: Position,
        acked: AckSet,
        next_position: Callable[[Position], Position],
        *,
        recording: bool = True,
    ) -> None:
        self.mark_delete = mark_delete
        self.acked = acked
        self.changes = 0  # counts acknowledgements that changed something, and resets
        self._next_position = next_position
        self._recording = recording
        self._fresh = AckSet()  # acknowledged since the last `take_change`
        self._reset = False
        self._taken_mark_delete = mark_delete
        self._advance()

    def ack(self, positions: Sequence[Position]) -> bool:
        """Acknowledge single positions; False if none of them was new."""
        before = self.changes
        following = self._next_position(self.mark_delete)
        for position in positions:
            if position == following:  # In order: nothing has to be remembered.
                self.mark_delete = position
                self.changes += 1
                if self.acked:
                    self._advance()
                following = self._next_position(self.mark_delete)
            elif position > self.mark_delete and self.acked.add(position):
                self.changes += 1
                if self._recording:
                    self._fresh.add(position)
        return self.changes != before

    def ack_cumulative(self, position: Position) -> bool:
        """Acknowledge everything up to, and with, `position`."""
        if position <= self.mark_delete:
            return False
        self.mark_delete = position
        self.changes += 1
        self._advance()
        return True

    def reset(self, mark_delete: Position) -> None:
        """Forget all acknowledgements and begin behind `mark_delete`: an explicit seek."""
        self.mark_delete = mark_delete
        self.acked = AckSet()
        self._fresh = AckSet()
        self._reset = True
        self.changes += 1

    def is_acked(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.acked

    def take_change(self) -> Change | None:
        """What is to be recorded now; None if nothing is.  It counts as taken."""
        fresh = self._fresh
        fresh.discard_through(self.mark_delete)
        if not (fresh or self._reset or self.mark_delete != self._taken_mark_delete):
            return None
        change = Change(self.mark_delete, tuple(fresh.ranges()), self._reset)
        self._fresh = AckSet()
        self._reset = False
        self._taken_mark_delete = self.mark_delete
        return change

    def _advance(self) -> None:
        """Move the mark-delete position over what is acknowledged behind it."""
        moved = self.mark_delete
        self.acked.discard_through(moved)
        while (following := self._next_position(moved)) in self.acked:
            moved = Position(following.ledger_id, self.acked.run_end(following))
        if moved != self.mark_delete:
            self.mark_delete = moved
            self.acked.discard_through(moved)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.mark_delete,
            tuple(self.acked.ranges()),
            tuple(self._fresh.ranges()),
            self._reset,
            self._taken_mark_delete,
        )

    def restore(self, snapshot: Snapshot) -> None:
        self.mark_delete = snapshot.mark_delete
        self.acked, self._fresh = AckSet(), AckSet()
        for run in snapshot.acked:
            self.acked.add_range(*run)
        for run in snapshot.fresh:
            self._fresh.add_range(*run)
        self._reset = snapshot.reset
        self._taken_mark_delete = snapshot.taken

    def canonical(self) -> Snapshot:
        return self.snapshot()


def apply_change(mark_delete: Position, acked: AckSet, change: Change) -> tuple[Position, AckSet]:
    """What a record of `change` makes of a state, when a cursor is recovered.

    ValueError for entries that no ledger can have.
    """
    if change.reset:
        acked = AckSet()
    for ledger_id, first, last in change.runs:
        acked.add_range(ledger_id, first, last)
    mark_delete = change.mark_delete if change.reset else max(mark_delete, change.mark_delete)
    acked.discard_through(mark_delete)
    return mark_delete, acked
