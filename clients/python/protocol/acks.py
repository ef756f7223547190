"""Which messages the application has acknowledged, and what the broker has to learn.

The broker counts entries, the application messages: an entry is acknowledged when all messages of
its batch are.  Until then its *pending set* (bit i: message i is not acknowledged) is kept here and
sent to the broker.  A broker that stores pending sets delivers only the rest again; if it delivers
the whole entry again to this consumer, the set says which messages to leave out.

Acknowledgements are grouped: `take` returns what has gathered, each entry once.  An entry that is
delivered again while it waits in the queue, or while its acknowledgement is under way, is dropped.

A batch that was given back, or that an earlier attachment delivered, may be delivered here again,
or to another consumer, which then acknowledges the rest.  Its pending set is kept for the first
case, for a bounded number of batches: one that is forgotten is delivered again as the broker knows
it, whole in the worst case.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from daybook.clients.python.protocol.acks_in_doubt import AcksInDoubt, AckTuple, EntryKey

_INDEX_UNKNOWN = -1
_MISSING = object()


class AckTracker:
    """One instance per topic consumer."""

    __slots__ = (
        "_changed",
        "_cumulative",
        "_done",
        "_given_back",
        "_given_back_max",
        "_mark",
        "_pending",
        "_queued",
        "_unconfirmed",
        "in_doubt",
        "times_moved",
    )

    def __init__(self, *, in_doubt_max: int = 100_000, given_back_max: int = 10_000) -> None:
        self.in_doubt = AcksInDoubt(in_doubt_max)
        self.times_moved = 0
        self._given_back_max = given_back_max
        self._given_back: dict[
            EntryKey, None
        ] = {}  # pending, but perhaps delivered to another consumer
        self._queued: dict[
            EntryKey, bool
        ] = {}  # entries in the queue: acknowledged in the meantime?
        self._pending: dict[EntryKey, int] = {}  # batches that are with the application
        self._done: dict[EntryKey, None] = {}  # whole entries to acknowledge
        self._changed: dict[EntryKey, None] = {}  # batches with a new pending set to send
        self._unconfirmed: dict[
            EntryKey, None
        ] = {}  # whole entries that were sent and not confirmed
        self._cumulative: AckTuple | None = None
        self._mark: EntryKey | None = None  # acknowledged up to here, and not confirmed yet

    # -- deliveries

    def arrived(self, key: EntryKey) -> bool:
        """Note a delivery; return False if the entry waits already or is acknowledged."""
        if key in self._queued or key in self._done or key in self._unconfirmed:
            return False
        if self._mark is not None and key <= self._mark and key not in self._pending:
            return False
        self._queued[key] = False
        return True

    def taken(self, key: EntryKey) -> bool:
        """Note that an entry leaves the queue; return False if it is acknowledged by now."""
        return not self._queued.pop(key, False)

    def dropped(self) -> None:
        """Note that the queue was emptied: the broker delivers again what is not acknowledged."""
        self._queued.clear()
        self.all_given_back()

    def all_given_back(self) -> None:
        """Note that the broker may deliver all pending batches to another consumer."""
        self.given_back(list(self._pending))

    def given_back(self, keys: Sequence[EntryKey]) -> None:
        """Note that the broker delivers these again, here or to another consumer."""
        for key in keys:
            if key in self._pending:
                self._given_back[key] = None
        excess = len(self._given_back) - self._given_back_max
        if excess > 0:
            for key in [key for key in self._given_back if not self._is_needed(key)][:excess]:
                del self._given_back[key], self._pending[key]

    def _is_needed(self, key: EntryKey) -> bool:
        """Return True if an acknowledgement of a part of this batch is not confirmed."""
        return key in self._changed or key in self.in_doubt

    def is_pending(self, key: EntryKey) -> bool:
        """Return True if messages of this batch are not acknowledged."""
        return key in self._pending

    @property
    def pending_batches(self) -> int:
        """The number of batches with messages that are not acknowledged."""
        return len(self._pending)

    def delivered(self, key: EntryKey, count: int, ack_set: int | None) -> int:
        """Note that a batch is handed out, perhaps again; return its pending set."""
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
        """Acknowledge a message, or with `index` -1 the whole entry.

        If the batch is not pending here, the message is acknowledged already, or the batch was
        delivered to another consumer.  Then the rest of the batch is unknown: nothing is sent.
        """
        if index == _INDEX_UNKNOWN:
            self._finish(key)
            return
        self.skip(key, 1 << index)

    def skip(self, key: EntryKey, indexes: int) -> None:
        """Acknowledge these messages (as bits) of a batch."""
        pending = self._pending.get(key)
        if pending is None or not pending & indexes:
            return
        if pending := pending & ~indexes:
            self._pending[key] = pending
            self._changed[key] = None
        else:
            self._finish(key)

    def ack_cumulative(self, key: EntryKey, index: int) -> None:
        """Acknowledge everything up to this message.

        If its batch is not pending here, nothing is sent for the batch itself, as in `ack`; the
        entries before it are acknowledged all the same.
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
        """Note that all entries before `key` are acknowledged, and `key` except for `rest`."""
        self._mark = key
        for known in (
            self._pending,
            self._given_back,
            self._done,
            self._changed,
            self._unconfirmed,
        ):
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

    # -- what is sent to the broker

    @property
    def waiting(self) -> int:
        """The number of acknowledgements that wait to be sent."""
        return len(self._done) + len(self._changed) + (self._cumulative is not None)

    def unsent(self) -> tuple[AckTuple | None, list[AckTuple]]:
        """Return all acknowledgements that wait to be sent; they keep waiting."""
        single = [(*key, self._pending.get(key)) for key in (*self._done, *self._changed)]
        return self._cumulative, single

    def recall(self) -> None:
        """Have the acknowledgements that were sent without a receipt sent again."""
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
        # One with the same entry that waits, or awaits its receipt, is newer: it includes this one.
        if self._mark is not None and key <= self._mark:
            return
        if rest and key in self._pending:
            rest &= self._pending[key]
        elif rest:  # The acknowledged messages of the entry itself are sent separately.
            key, rest = (key[0], key[1] - 1), 0
        self._cover(key, rest)
        self._cumulative = (*key, rest or None)

    def take_all(self, entries_max: int) -> list[tuple[AckTuple | None, list[AckTuple]]]:
        """Return, in groups, all acknowledgements that the broker has to confirm."""
        self.recall()
        groups: list[tuple[AckTuple | None, list[AckTuple]]] = []
        while self.waiting:
            groups.append(self.take(entries_max))
        return groups

    def note_sent(self, cumulative: AckTuple | None, single: Sequence[AckTuple]) -> None:
        """Note that these were sent without a request for a receipt: they are in doubt."""
        self.in_doubt.note(cumulative, single)
        self.confirmed(cumulative, single)  # If one is lost, its entry is to be delivered again.

    def take(self, entries_max: int) -> tuple[AckTuple | None, list[AckTuple]]:
        """Return what to send now: a cumulative acknowledgement, and single entries."""
        cumulative, self._cumulative = self._cumulative, None
        single: list[AckTuple] = []
        for waiting in (self._done, self._changed):
            for key in list(waiting)[: entries_max - len(single)]:
                del waiting[key]
                pending = self._pending.get(key)
                single.append((*key, pending))
                if pending is None:
                    self._unconfirmed[key] = None
        return cumulative, single

    def confirmed(self, cumulative: AckTuple | None, single: Sequence[AckTuple]) -> None:
        """Note that the broker has these; if it delivers one again, its cursor was moved."""
        if cumulative is not None and self._mark == cumulative[:2]:
            self._mark = None
        for ledger_id, entry_id, _ in single:
            self._unconfirmed.pop((ledger_id, entry_id), None)

    def give_back(self, cumulative: AckTuple | None, single: Sequence[AckTuple]) -> None:
        """Have these sent again: the broker may not have got them.  (Twice does no harm.)"""
        if cumulative is not None and self._cumulative is None and self._mark == cumulative[:2]:
            self._cumulative = cumulative  # With another mark, it was superseded or forgotten.
        for ledger_id, entry_id, pending in single:
            key = (ledger_id, entry_id)
            if pending is None:
                if self._unconfirmed.pop(key, _MISSING) is not _MISSING:
                    self._done[key] = None
            elif key in self._pending:
                self._changed[key] = None

    def forget(self) -> int:
        """Forget everything: the position was moved.

        Return how many acknowledgements are void, because the broker has not confirmed them.
        """
        unconfirmed = (self._done, self._changed, self._unconfirmed)
        void = sum(map(len, unconfirmed)) + len(self.in_doubt) + (self._mark is not None)
        for known in (self._pending, self._given_back, *unconfirmed):
            known.clear()
        self._queued.clear()
        self.in_doubt.forget()
        self.times_moved += 1
        self._cumulative = self._mark = None
        return void


_DOUBLINGS_MAX = 60  # beyond that every delay is at its maximum


class NackTracker:
    """Entries to be delivered again, after a delay, which doubles with each redelivery."""

    __slots__ = ("_delay_max_s", "_delay_s", "_due", "_known")

    def __init__(self, delay_s: float, delay_max_s: float | None = None) -> None:
        """Without `delay_max_s` the delay is always the same."""
        self._delay_s = delay_s
        self._delay_max_s = delay_s if delay_max_s is None else max(delay_s, delay_max_s)
        self._due: list[tuple[float, EntryKey]] = []  # a heap
        self._known: set[EntryKey] = set()  # never iterated

    def nack(
        self,
        key: EntryKey,
        now: float,
        redeliveries: int = 0,
        delay_max_s: float | None = None,
    ) -> None:
        """Have an entry delivered again that was redelivered so often before.

        With `delay_max_s` the delay doubles up to that.
        """
        if key not in self._known:
            self._known.add(key)
            delay_s = self._delay_s * 2.0 ** min(redeliveries, _DOUBLINGS_MAX)
            most_s = max(self._delay_max_s, delay_max_s or 0.0)
            heappush(self._due, (now + min(delay_s, most_s), key))

    @property
    def deadline(self) -> float | None:
        return self._due[0][0] if self._due else None

    def due(self, now: float) -> list[EntryKey]:
        """Return the entries to ask for now, in order."""
        found: list[EntryKey] = []
        while self._due and self._due[0][0] <= now:
            key = heappop(self._due)[1]
            self._known.discard(key)
            found.append(key)
        return sorted(found)

    def forget(self) -> None:
        self._due.clear()
        self._known.clear()
