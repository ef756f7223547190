"""How much is not acknowledged between the mark-delete position and the highest acknowledgement.

    acknowledged | holes: some acknowledged, some not |      nothing acknowledged      |
    .............|.#..##.#............##.#............|                                |
            mark-delete                              top                        end of the log

Behind the *top* nothing is acknowledged, so offsets and lengths of ledgers tell how much lies
there.  The holes are counted one by one.  That is done when an acknowledgement comes: each entry
that it passes over joins the holes, and each acknowledged hole leaves them.  A move of the
mark-delete position over acknowledged entries changes nothing.  An acknowledgement in the order of
the log makes no hole, and costs nothing here.

The size of an entry comes from those that were delivered (`EntrySizes`).  A hole whose size is not
known is *uncounted*.  The invariant, which a property test checks:

    messages and bytes = the sum over the holes that are not uncounted

So a count is exact if nothing is uncounted.  If a counted hole changes and its size has been
forgotten, all holes become uncounted, and are counted again by whoever wants to know.  There is no
other state that could go wrong: nothing is remembered about acknowledgements of the past.

A hole of which some messages are acknowledged counts with the pending messages, and all its bytes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.entry_sizes import EntrySizes
from daybook.managed_ledger.position import EARLIEST, Position

Run = tuple[int, int, int]  # ledger, first entry, last entry
Spans = Callable[[Position, Position], Iterable[Run]]
"""Returns the entries behind the first position, up to and including the second one."""


@dataclass(frozen=True, slots=True)
class HoleCount:
    """The size of the holes of a cursor, and the state that it is for."""

    mark_delete: Position
    top: Position
    acked: int  # acknowledged entries above the mark-delete position
    messages: int
    bytes: int


def pending_messages(pending: int | None, messages: int) -> int:
    """Return how many of the messages of an entry are pending; None stands for all of them."""
    return messages if pending is None else (pending & ((1 << messages) - 1)).bit_count()


class Holes:
    """The holes of one cursor.

    The methods that return a bool return False if a size was missing.  The caller then calls
    `lose`, when its own state has the change.
    """

    def __init__(self, sizes: EntrySizes, spans: Spans) -> None:
        self.open = False  # there may be holes: the top is above the mark-delete position
        self.top = EARLIEST
        self.messages = 0
        self.bytes = 0
        self.uncounted = AckSet()
        self._sizes = sizes
        self._spans = spans

    # -- acknowledgements

    def acked(self, position: Position, pending: int | None, mark_delete: Position) -> bool:
        """Note that an entry is acknowledged, of which `pending` messages were pending before.

        `mark_delete` is the position before that.
        """
        if not self.open:
            self._open(mark_delete)
        top, ledger_id, entry_id = self.top, position.ledger_id, position.entry_id
        # Comparing positions takes several times as long as comparing numbers.
        if entry_id > top.entry_id if ledger_id == top.ledger_id else ledger_id > top.ledger_id:
            if entry_id != top.entry_id + 1 or ledger_id != top.ledger_id:
                self._extend(Position(ledger_id, entry_id - 1))
            self.top = position
            return True
        if self.uncounted and self.uncounted.discard(position):
            return True
        size = self._sizes.get(ledger_id, entry_id)
        if size is None:
            return False
        self.messages -= pending_messages(pending, size[0])
        self.bytes -= size[1]
        return True

    def part_acked(
        self, position: Position, before: int | None, after: int | None, mark_delete: Position
    ) -> bool:
        """Note that other messages of an entry are pending than before."""
        if not self.open:
            self._open(mark_delete)
        if position > self.top:
            self._extend(position)
            self.top = position
        if position in self.uncounted:
            return True
        size = self._sizes.get(position.ledger_id, position.entry_id)
        if size is None:
            return False
        self.messages += pending_messages(after, size[0]) - pending_messages(before, size[0])
        return True

    def _open(self, mark_delete: Position) -> None:
        self.open, self.top = True, mark_delete

    def _extend(self, through: Position) -> None:
        """Let the entries behind the top, up to `through`, join the holes."""
        for ledger_id, first, last in self._spans(self.top, through):
            messages, size, unknown = self._sizes.total(ledger_id, first, last)
            self.messages += messages
            self.bytes += size
            for span in unknown:
                self.uncounted.add_range(ledger_id, *span)

    def passed(
        self,
        mark_delete: Position,
        through: Position,
        acked: AckSet,
        parts: Iterable[tuple[Position, int]],
    ) -> bool:
        """Note that everything up to `through` is acknowledged at once.

        `mark_delete`, `acked` and `parts` are as they were before.
        """
        if not self.open or through >= self.top:
            self.close()
            return True
        if self.uncounted:
            return False  # Which of the passed holes were counted is not worth finding out.
        messages = size = 0
        for ledger_id, first, last in self._spans(mark_delete, through):
            for gap in acked.gaps(ledger_id, first, last):
                some_messages, some_bytes, unknown = self._sizes.total(ledger_id, *gap)
                if unknown:
                    return False
                messages += some_messages
                size += some_bytes
        for position, pending in parts:
            if mark_delete < position <= through:
                known = self._sizes.get(position.ledger_id, position.entry_id)
                if known is None:  # Its ledger was trimmed away, so no gap has it.
                    return False
                messages += pending_messages(pending, known[0]) - known[0]
        self.messages -= messages
        self.bytes -= size
        return True

    def moved(self, mark_delete: Position) -> None:
        """Note a move over entries that were acknowledged already."""
        if self.open and mark_delete >= self.top:
            self.close()

    def close(self) -> None:
        """Forget everything: there are no holes."""
        self.open, self.top = False, EARLIEST
        self.messages = self.bytes = 0
        self.uncounted = AckSet()

    # -- counting

    def lose(self, mark_delete: Position, acked: AckSet, top: Position | None = None) -> None:
        """Make all holes uncounted.  `top` is where they end, if that is not known here."""
        if top is not None:
            self.open, self.top = top > mark_delete, top
        self.messages = self.bytes = 0
        self.uncounted = AckSet()
        if not self.open:
            return
        for ledger_id, first, last in self._spans(mark_delete, self.top):
            for gap in acked.gaps(ledger_id, first, last):
                self.uncounted.add_range(ledger_id, *gap)

    def count(self, position: Position, pending: int | None, messages: int, size: int) -> None:
        """Count a hole that was uncounted; others are ignored, because they have changed."""
        self._sizes.note(position.ledger_id, position.entry_id, [messages], [size])
        if self.uncounted.discard(position):
            self.messages += pending_messages(pending, messages)
            self.bytes += size

    def count_run(self, run: Run, messages: int, size: int) -> bool:
        """Count a run of holes that are uncounted, whole ones only, at once.

        Return False if one of them is not uncounted any more.
        """
        ledger_id, first, last = run
        if next(self.uncounted.gaps(ledger_id, first, last), None) is not None:
            return False
        self.uncounted.discard_range(ledger_id, first, last)
        self.messages += messages
        self.bytes += size
        return True

    def counted(self, mark_delete: Position, acked: int) -> HoleCount | None:
        """Return the count; None if something is uncounted."""
        if self.uncounted:
            return None
        top = self.top if self.open else mark_delete
        return HoleCount(mark_delete, top, acked, self.messages, self.bytes)

    def adopt(self, count: HoleCount) -> None:
        """Take over a count that was stored together with the state of the cursor."""
        self.open, self.top = count.top > count.mark_delete, count.top
        self.messages, self.bytes = count.messages, count.bytes
        self.uncounted = AckSet()
