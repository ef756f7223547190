"""The state of a cursor, and the changes of it that have to be recorded.

Everything up to the mark-delete position is acknowledged.  Above it single positions may be
acknowledged, with holes in between, and single messages of an entry, its *parts*.  The mark-delete
position never moves back, except by a reset.

A change is *recorded* when a record of it is durable.  Between two snapshots only changes are
written: the new mark-delete position, the runs that were acknowledged since, and the pending
messages of each entry of which a part was acknowledged since.

The caller makes sure that a position that it acknowledges holds a confirmed entry.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.entry_sizes import EntrySizes
from daybook.managed_ledger.partial_acks import BYTES_MAX as PARTS_BYTES_MAX
from daybook.managed_ledger.partial_acks import PartialAcks
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.holes import HoleCount, Holes, Spans

Run = tuple[int, int, int]  # ledger, first entry, last entry
Part = tuple[Position, int]  # an entry, and the bits of its messages that are pending


@dataclass(frozen=True, slots=True)
class Change:
    """The change since the last record.  `reset` says that everything before is void."""

    mark_delete: Position
    runs: tuple[Run, ...]
    reset: bool = False
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class CursorSnapshot:
    mark_delete: Position
    acked: tuple[Run, ...]
    fresh: tuple[Run, ...]
    reset: bool
    taken: Position
    parts: tuple[Part, ...] = ()
    fresh_parts: tuple[Position, ...] = ()


class CursorState:
    """The acknowledgements of one cursor.

    `next_position` returns the position behind another one in the log, and `spans` the entries
    between two positions.  With `recording` False no changes are kept, since none will be taken.
    `holes` counts what is not acknowledged below the highest acknowledgement; without `spans` it
    counts nothing.
    """

    def __init__(
        self,
        mark_delete: Position,
        acked: AckSet,
        next_position: Callable[[Position], Position],
        *,
        recording: bool = True,
        parts_bytes_max: int = PARTS_BYTES_MAX,
        sizes: EntrySizes | None = None,
        spans: Spans | None = None,
    ) -> None:
        self.holes = Holes(sizes or EntrySizes(0), spans or _no_spans)
        self.mark_delete = mark_delete
        self.acked = acked
        self.parts = PartialAcks(parts_bytes_max)
        self.changes = 0  # counts acknowledgements that changed something, and resets
        self._next_position = next_position
        self._recording = recording
        self._fresh = AckSet()  # acknowledged since the last `take_change`
        self._fresh_parts: set[Position] = set()  # entries of which a part was
        self._reset = False
        self._taken_mark_delete = mark_delete
        self._advance()
        self._find_holes()

    def ack(self, positions: Sequence[Position]) -> bool:
        """Acknowledge single positions; return False if none of them was new."""
        before, holes = self.changes, self.holes
        following = self._next_position(self.mark_delete)
        for position in positions:
            if position == following:  # In order: the ack set is not needed.
                # If there are no holes, this makes none.
                known = not holes.open or self._fill(position)
                self.mark_delete = position
                self.changes += 1
                if holes.open:
                    self._advance()
                    if not known:
                        self._lose_count()
                following = self._next_position(self.mark_delete)
            elif position > self.mark_delete and self.acked.add(position):
                self.changes += 1
                if self._recording:
                    self._fresh.add(position)
                if not self._fill(position):
                    self._lose_count()
        if self.parts:
            self.parts.done(positions)
            self.parts.done_up_to(self.mark_delete)
        return self.changes != before

    def ack_part(self, position: Position, pending: int) -> bool:
        """Leave only those messages of an entry pending that are pending and in `pending`.

        Return True if none is left.  The entry itself is not acknowledged by that: `ack` does it.
        """
        if self.is_acked(position):
            return False
        before, kept = self.parts.pending(position), len(self.parts)
        done = self.parts.ack(position, pending)
        after = self.parts.pending(position)
        # Without room, the parts of another entry were forgotten, or even these.
        forgotten = not done and len(self.parts) < kept + (before is None)
        known = self.holes.part_acked(position, before, after, self.mark_delete)
        if forgotten or not known:
            self._lose_count()
        if done:
            return True
        if after != before:
            self.changes += 1
            if self._recording:
                self._fresh_parts.add(position)
        return False

    def ack_cumulative(self, position: Position) -> bool:
        """Acknowledge everything up to and including `position`."""
        if position <= self.mark_delete:
            return False
        parts = self.parts.sets() if self.parts and self.holes.open else ()
        known = self.holes.passed(self.mark_delete, position, self.acked, parts)
        self.mark_delete = position
        self.changes += 1
        self._advance()
        if not known:
            self._lose_count()
        return True

    def reset(self, mark_delete: Position) -> None:
        """Forget all acknowledgements and start behind `mark_delete`: an explicit seek."""
        self.mark_delete = mark_delete
        self.acked = AckSet()
        self.parts.clear()
        self.holes.close()
        self._fresh = AckSet()
        self._fresh_parts.clear()
        self._reset = True
        self.changes += 1

    def touch(self) -> None:
        """Count a change of something that is recorded together with the positions."""
        self.changes += 1

    def is_acked(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.acked

    def take_change(self) -> Change | None:
        """Return the change since the last call, to be recorded; None if there is none."""
        fresh = self._fresh
        # The new mark-delete position covers these acknowledgements.
        fresh.discard_through(self.mark_delete)
        parts = self._changed_parts()
        if not (fresh or parts or self._reset or self.mark_delete != self._taken_mark_delete):
            return None
        change = Change(self.mark_delete, tuple(fresh.ranges()), self._reset, parts)
        self._fresh = AckSet()
        self._reset = False
        self._taken_mark_delete = self.mark_delete
        return change

    def take_parts(self, parts: Mapping[Position, int]) -> None:
        """Take over the parts that were recorded; entries that are done are left out."""
        for position, left in parts.items():
            if not self.is_acked(position):
                self.parts.ack(position, left)
        self._find_holes()

    # -- how much is not acknowledged

    def take_count(self, count: HoleCount | None) -> None:
        """Take over the count of the holes that was recorded, if it is one of this state.

        A Pulsar broker that has served the topic meanwhile knows nothing of the count, and may have
        kept it: the count says which state it is for.
        """
        holes, acked = self.holes, len(self.acked)
        top = holes.top if holes.open else self.mark_delete
        if count is not None and (count.mark_delete, count.top, count.acked) == (
            self.mark_delete,
            top,
            acked,
        ):
            holes.adopt(count)

    def count_of_holes(self) -> HoleCount | None:
        """Return the count of the holes; None if some of them are uncounted."""
        return self.holes.counted(self.mark_delete, len(self.acked))

    def count(self, position: Position, messages: int, size: int) -> None:
        """Tell the size of an entry that was uncounted."""
        self.holes.count(position, self.parts.pending(position), messages, size)

    def count_run(self, run: Run, messages: int, size: int) -> bool:
        """Tell the size of entries that were uncounted; return False if that comes too late.

        That is so if some of them were acknowledged meanwhile, even in part.
        """
        ledger_id, first, last = run
        for position, _ in self.parts.sets():
            if position.ledger_id == ledger_id and first <= position.entry_id <= last:
                return False
        return self.holes.count_run(run, messages, size)

    def _fill(self, position: Position) -> bool:
        pending = self.parts.pending(position) if self.parts else None
        return self.holes.acked(position, pending, self.mark_delete)

    def _lose_count(self) -> None:
        self.holes.lose(self.mark_delete, self.acked)

    def _find_holes(self) -> None:
        """Find the holes of a state that was recovered; they are uncounted."""
        tops = [self.acked.highest(), *(position for position, _ in self.parts.sets())]
        top = max((each for each in tops if each is not None), default=self.mark_delete)
        self.holes.lose(self.mark_delete, self.acked, max(top, self.mark_delete))

    def _changed_parts(self) -> tuple[Part, ...]:
        """Return the parts that changed since the last call; an entry that is done has none."""
        if not self._fresh_parts:
            return ()
        changed = [(each, self.parts.pending(each)) for each in sorted(self._fresh_parts)]
        self._fresh_parts.clear()
        return tuple((position, left) for position, left in changed if left is not None)

    def _advance(self) -> None:
        """Move the mark-delete position over the acknowledged positions behind it."""
        moved = self.mark_delete
        self.acked.discard_through(moved)
        while (following := self._next_position(moved)) in self.acked:
            moved = Position(following.ledger_id, self.acked.run_end(following))
        if moved != self.mark_delete:
            self.mark_delete = moved
            self.acked.discard_through(moved)
        self.parts.done_up_to(moved)
        self.holes.moved(moved)
        # Invariant: the position behind mark-delete is never acknowledged.

    def snapshot(self) -> CursorSnapshot:
        return CursorSnapshot(
            self.mark_delete,
            tuple(self.acked.ranges()),
            tuple(self._fresh.ranges()),
            self._reset,
            self._taken_mark_delete,
            tuple(self.parts.sets()),
            tuple(sorted(self._fresh_parts)),
        )

    def restore(self, snapshot: CursorSnapshot) -> None:
        self.mark_delete = snapshot.mark_delete
        self.acked, self._fresh = AckSet(), AckSet()
        for run in snapshot.acked:
            self.acked.add_range(*run)
        for run in snapshot.fresh:
            self._fresh.add_range(*run)
        self._reset = snapshot.reset
        self._taken_mark_delete = snapshot.taken
        self.parts.clear()
        for position, left in snapshot.parts:
            self.parts.ack(position, left)
        self._fresh_parts = set(snapshot.fresh_parts)
        self._find_holes()

    def canonical(self) -> CursorSnapshot:
        return self.snapshot()


def _no_spans(_after: Position, _through: Position) -> tuple[Run, ...]:
    return ()


def apply_change(mark_delete: Position, acked: AckSet, change: Change) -> tuple[Position, AckSet]:
    """Apply the record of a change to a state, when a cursor is recovered.

    Raise ValueError for entries that no ledger can have.
    """
    if change.reset:
        acked = AckSet()
    for ledger_id, first, last in change.runs:
        acked.add_range(ledger_id, first, last)
    # Only a reset moves a cursor back.
    mark_delete = change.mark_delete if change.reset else max(mark_delete, change.mark_delete)
    acked.discard_through(mark_delete)
    return mark_delete, acked
