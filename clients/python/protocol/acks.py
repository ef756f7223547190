"""What the application is done with, and what the broker has to hear of it.

The broker counts entries, the application messages: an entry is acknowledged when all messages of
its batch are.  Until then its *pending set* (bit i: message i is not acknowledged) is kept here and
sent along, so that a broker which remembers such sets delivers only the rest again; and if it
delivers the whole entry again to this consumer, the set says which messages to leave out.

Acknowledgements are grouped: `take` gives what has gathered, each entry once.  An entry that comes
again while it waits to be handed out, or while its acknowledgement is on its way, is not wanted.

A batch that was given back, or that an earlier attachment delivered, may come again here, or go to
somebody else who finishes it.  Its pending set is kept for the first case, and for so many batches
only: one that is forgotten comes again as the broker knows it, whole if need be.
"""

from collections import deque
from collections.abc import Sequence

from daybook.clients.python.protocol.acks_in_doubt import AcksInDoubt, AckTuple, EntryKey

_INDEX_UNKNOWN = -1
_MISSING = object()


class AckTracker:
    """The acknowledgements of one consumer on one topic."""

    __slots__ = (
        "_changed",
        "_cumulative",
        "_done",
        "_given_back",
        "_given_back_max",
        "_mark",
        "_pending",
        "_queued",
        "_told",
        "in_doubt",
        "times_moved",
    )

    def __init__(self, *, in_doubt_max: int = 100_000, given_back_max: int = 10_000) -> None:
        self.in_doubt = AcksInDoubt(in_doubt_max)
        self.times_moved = 0
        self._given_back_max = given_back_max
        self._given_back: dict[EntryKey, None] = {}  # of those pending: may be with somebody else
        self._queued: dict[EntryKey, bool] = {}  # entries in the inbox: done in the meantime?
        self._pending: dict[EntryKey, int] = {}  # batches that are with the application
        self._done: dict[EntryKey, None] = {}  # whole entries, to be told
        self._changed: dict[EntryKey, None] = {}  # batches of which something more is done
        self._told: dict[EntryKey, None] = {}  # whole entries, told and not confirmed
        self._cumulative: AckTuple | None = None
        self._mark: EntryKey | None = None  # done up to here, and not confirmed yet

    # -- deliveries

    def arrived(self, key: EntryKey) -> bool:
        """An entry came, maybe again: is it wanted?  Not if it waits already, or is done."""
        if key in self._queued or key in self._done or key in self._told:
            return False
        if self._mark is not None and key <= self._mark and key not in self._pending:
            return False
        self._queued[key] = False
        return True

    def taken(self, key: EntryKey) -> bool:
        """An entry leaves the inbox: whether it is still wanted."""
        return not self._queued.pop(key, False)

    def dropped(self) -> None:
        """The inbox was emptied: what is not acknowledged comes again, here or to somebody else."""
        self._queued.clear()
        self.all_given_back()

    def all_given_back(self) -> None:
        self.given_back(list(self._pending))

    def given_back(self, keys: Sequence[EntryKey]) -> None:
        """The broker delivers these again, here or to somebody else."""
        for key in keys:
            if key in self._pending:
                self._given_back[key] = None
        excess = len(self._given_back) - self._given_back_max
        if excess > 0:
            for key in [key for key in self._given_back if not self._is_needed(key)][:excess]:
                del self._given_back[key], self._pending[key]

    def _is_needed(self, key: EntryKey) -> bool:
        """Whether the broker is still to hear of a part of this batch."""
        return key in self._changed or key in self.in_doubt

    @property
    def pending_batches(self) -> int:
        """How many batches are known of which something is not acknowledged."""
        return len(self._pending)

    def delivered(self, key: EntryKey, count: int, ack_set: int | None) -> int:
        """A batch is handed out, maybe again: the messages of it that are not done."""
        everything = (1 << count) - 1
        pending = self._pending.get(key, everything)
        if ack_set is not None:
            pending &= ack_set & everything
        self._given_back.pop(key, None)
        if pending:
            self._pending[key] = pending
        return pending

    # -- acknowledgements

    def ack(self, key: EntryKey, index: int) -> None:
        """The application is done with a message; `index` -1: with the whole entry.

        A message of a batch that is not with the application is done already, or was delivered
        to somebody else: then nothing is known about the rest of its batch, and nothing is said.
        """
        if index == _INDEX_UNKNOWN:
            self._finish(key)
            return
        self.skip(key, 1 << index)

    def skip(self, key: EntryKey, indexes: int) -> None:
        """These messages (bits) of a batch are done."""
        pending = self._pending.get(key)
        if pending is None or not pending & indexes:
            return
        if pending := pending & ~indexes:
            self._pending[key] = pending
            self._changed[key] = None
        else:
            self._finish(key)

    def ack_cumulative(self, key: EntryKey, index: int) -> None:
        """The application is done with everything up to this message.

        Of a batch that is not with the application nothing is said, as in `ack`; what lies before
        it is done all the same.
        """
        pending = self._pending.get(key)
        rest = 0
        if index != _INDEX_UNKNOWN and pending is None:
            key = (key[0], key[1] - 1)
        elif index != _INDEX_UNKNOWN and pending is not None:
            rest = pending & (-1 << (index + 1))
        if self._mark is not None and key < self._mark:
            return
        self._cover(key, rest)
        self._cumulative = (key[0], key[1], rest or None)

    def _cover(self, key: EntryKey, rest: int) -> None:
        """All that lies before is done, and of the entry itself all but `rest`."""
        self._mark = key
        for known in (self._pending, self._given_back, self._done, self._changed, self._told):
            for earlier in [each for each in known if each <= key]:
                del known[earlier]
        self.in_doubt.cover(key, whole=not rest)
        for queued in self._queued:
            if queued < key or (queued == key and not rest):
                self._queued[queued] = True
        if rest:
            self._pending[key] = rest

    def _finish(self, key: EntryKey) -> None:
        for known in (self._pending, self._given_back, self._changed):
            known.pop(key, None)
        self._done[key] = None
        if key in self._queued:
            self._queued[key] = True

    # -- what the broker has to hear

    @property
    def waiting(self) -> int:
        """How many entries the broker has not heard of."""
        return len(self._done) + len(self._changed) + (self._cumulative is not None)

    def untold(self) -> tuple[AckTuple | None, list[AckTuple]]:
        """All that the broker has not heard of."""
        single = [(*key, self._pending.get(key)) for key in (*self._done, *self._changed)]
        return self._cumulative, single

    def recall(self) -> None:
        """Have what was told without a receipt told again."""
        recalled = self.in_doubt.recall()
        if recalled.cumulative is not None:
            self._recall_place(recalled.cumulative)
        for key in recalled.whole:
            self._finish(key)
        for key in recalled.parts:
            if key in self._pending:
                self._changed[key] = None

    def _recall_place(self, place: AckTuple) -> None:
        key, rest = place[:2], place[2] or 0
        if self._mark is not None and key < self._mark:
            return
        if rest and key in self._pending:
            rest &= self._pending[key]
        elif rest:  # What is done of the entry itself is told by itself.
            key, rest = (key[0], key[1] - 1), 0
        self._cover(key, rest)
        self._cumulative = (*key, rest or None)

    def take_all(self, entries_max: int) -> list[tuple[AckTuple | None, list[AckTuple]]]:
        """All that the broker has to confirm, in groups."""
        self.recall()
        groups: list[tuple[AckTuple | None, list[AckTuple]]] = []
        while self.waiting:
            groups.append(self.take(entries_max))
        return groups

    def told(self, cumulative: AckTuple | None, single: Sequence[AckTuple]) -> None:
        """These were told, and the broker gives no receipt: they are in doubt."""
        self.in_doubt.note(cumulative, single)
        self.confirmed(cumulative, single)  # What comes again is wanted.

    def take(self, entries_max: int) -> tuple[AckTuple | None, list[AckTuple]]:
        """What to tell the broker now: up to where everything is done, and single entries."""
        cumulative, self._cumulative = self._cumulative, None
        single: list[AckTuple] = []
        for waiting in (self._done, self._changed):
            for key in list(waiting)[: entries_max - len(single)]:
                del waiting[key]
                pending = self._pending.get(key)
                single.append((*key, pending))
                if pending is None:
                    self._told[key] = None
        return cumulative, single

    def confirmed(self, cumulative: AckTuple | None, single: Sequence[AckTuple]) -> None:
        """The broker has these.  If it delivers them nevertheless, its cursor was moved."""
        if cumulative is not None and self._mark == cumulative[:2]:
            self._mark = None
        for ledger_id, entry_id, _ in single:
            self._told.pop((ledger_id, entry_id), None)

    def give_back(self, cumulative: AckTuple | None, single: Sequence[AckTuple]) -> None:
        """The broker may not have heard it: tell it again.  (Twice does no harm.)"""
        if cumulative is not None and self._cumulative is None and self._mark == cumulative[:2]:
            self._cumulative = cumulative  # Else it was forgotten meanwhile.
        for ledger_id, entry_id, pending in single:
            key = (ledger_id, entry_id)
            if pending is None:
                if self._told.pop(key, _MISSING) is not _MISSING:
                    self._done[key] = None
            elif key in self._pending:
                self._changed[key] = None

    def forget(self) -> int:
        """The position was moved: what was delivered before is no longer of interest.

        Returns how many acknowledgements are void with it, because the broker has not confirmed
        them.
        """
        unconfirmed = (self._done, self._changed, self._told)
        void = sum(map(len, unconfirmed)) + len(self.in_doubt) + (self._mark is not None)
        for known in (self._pending, self._given_back, *unconfirmed):
            known.clear()
        self._queued.clear()
        self.in_doubt.forget()
        self.times_moved += 1
        self._cumulative = self._mark = None
        return void


class NackTracker:
    """Entries that the application wants to see again, after a delay."""

    __slots__ = ("_delay_s", "_due", "_known")

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._due: deque[tuple[float, EntryKey]] = deque()
        self._known: set[EntryKey] = set()  # never iterated

    def nack(self, key: EntryKey, now: float) -> None:
        if key not in self._known:
            self._known.add(key)
            self._due.append((now + self._delay_s, key))

    @property
    def deadline(self) -> float | None:
        return self._due[0][0] if self._due else None

    def due(self, now: float) -> list[EntryKey]:
        """The entries to ask for now, in order."""
        found: list[EntryKey] = []
        while self._due and self._due[0][0] <= now:
            key = self._due.popleft()[1]
            self._known.discard(key)
            found.append(key)
        return sorted(found)

    def forget(self) -> None:
        self._due.clear()
        self._known.clear()
