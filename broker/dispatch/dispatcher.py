"""The dispatcher of a subscription: one task that reads entries and gives them to consumers.

A machine (`broker.protocol.dispatch`) decides what the task reads and which consumer gets it.  The
task sleeps at the end of the log and while no consumer can take anything.  Everything that may
change that wakes it.  While it sleeps at the end, new entries that are in memory are delivered
without it: one call costs much less than a task that wakes, reads, and sleeps again.

    permits, acks, ... ---> Dispatch ---want---> read ---> Dispatch ---deliver---> consumers
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import inf
from typing import assert_never

import trio

from daybook.bookie.errors import LedgerError
from daybook.broker.dispatch.entries import Payload, delivered_head, keyed_head
from daybook.broker.dispatch.newest import READ_BYTES_MIN, Newest
from daybook.broker.dispatch.source import LogSource, Source
from daybook.broker.dispatch.unacked_limit import UnackedLimit
from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.dispatch.interface import (
    Activate,
    Deliver,
    Dispatch,
    Effect,
    Entry,
    Read,
    Replay,
    Rewind,
    Taken,
    Want,
)
from daybook.broker.protocol.dispatch.places import ConsumerKey
from daybook.broker.protocol.dispatch.unreadable import Unreadable
from daybook.broker.protocol.dispatch_rate import DispatchRates
from daybook.broker.topics.topic_log import TopicCursor, TopicLog
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry
from daybook.wire.clock import WallClock

_ASIDE_RETRY_S = 5.0  # between two tries to read what could not be read


class Dispatcher:
    """One instance per subscription, which gives it what it uses:

    start_task            run the task for as long as the topic is loaded
    call_when_appended    call once when the next entry is confirmed
    deliver               send entries to a consumer, with how often each was given back before
    activate              tell a consumer whether it is the one that is served
    room_bytes            how much the consumer with the most room can be sent
    on_end                called when everything is read that the log has
    source                what the consumer that is served reads; asked at each rewind
    unacked               the limit of the broker, which may stop the dispatcher for a while
    """

    def __init__(
        self,
        log: TopicLog,
        cursor: TopicCursor,
        dispatch: Dispatch,
        *,
        limits: TopicLimits,
        clock: WallClock,
        start_task: Callable[[Callable[..., Awaitable[None]], trio.CancelScope], None],
        call_when_appended: Callable[[Callable[[Newest], None]], None],
        deliver: Callable[[ConsumerKey, Sequence[Entry], Sequence[int] | None], None],
        activate: Callable[[ConsumerKey, bool], None],
        room_bytes: Callable[[int], int],
        on_end: Callable[[], None],
        source: Callable[[], Source],
        unacked: UnackedLimit,
    ) -> None:
        self.dispatch = dispatch
        self.shared = False  # then entries may ask to be delivered later, and chunks stay together
        self.keyed = False  # then entries go to the consumers of their keys
        self.delayed_delivery = True  # a policy: if it is off, entries never wait for their time
        self.rates: DispatchRates | None = (
            None  # None: nothing limits how fast consumers are served
        )
        self._log = log
        self._cursor = cursor
        self._limits = limits
        self._clock = clock
        self._start_task = start_task
        self._call_when_appended = call_when_appended
        self._deliver = deliver
        self._activate = activate
        self._room_bytes = room_bytes
        self._on_end = on_end
        self._choose_source = source
        self._unacked_limit = unacked
        self._counted = 0  # the unacknowledged messages that the limit was told of
        self._source: Source = LogSource(log, cursor)
        self._next: Position | None = None  # the next entry to read; None: the cursor knows
        self._end: Position | None = None  # the end of the log, if everything before it is read
        self._wake = trio.Event()
        self._sleeps_at_end = False  # the task; new entries may be delivered without it
        self._task: trio.CancelScope | None = None
        self._reading: tuple[Want, int] | None = None  # the read under way, and since when
        self.unreadable = Unreadable()
        self._reading_aside: trio.CancelScope | None = None

    @property
    def at_end(self) -> bool:
        """True if everything is read that the log has now."""
        return self._end == self._log.last_confirmed

    @property
    def has_more(self) -> bool:
        """True if there is something to send: entries not read yet, given back or held."""
        start = self._next or self._cursor.read_start
        return start <= self._log.last_confirmed or self.dispatch.queued > 0

    @property
    def reading(self) -> tuple[Position, int] | None:
        """The first entry of the read that is under way, and since when (in ms); else None."""
        if self._reading is None:
            return None
        want, since_ms = self._reading
        if isinstance(want, Replay) and want.places:
            return Position(*want.places[0]), since_ms
        return self._next or self._cursor.read_start, since_ms

    @property
    def stopped_by_broker(self) -> bool:
        """True while the subscription has its share, and the broker too many unacknowledged."""
        return self._unacked_limit.rules.blocks(self)

    def start(self) -> None:
        if self._task is None:
            self._task = trio.CancelScope()
            self._start_task(self._run, self._task)
        self.wake()

    def stop(self) -> None:
        self._forget_unreadable()
        self._sleeps_at_end = False
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def end(self) -> None:
        """Stop for good, and drop what refers back to the subscription, which is gone."""
        self.stop()
        source = self._source
        self._deliver = self._activate = self._on_end = _nothing
        self._room_bytes = _no_room
        self._choose_source = lambda: source

    def wake(self) -> None:
        self._wake.set()

    def restart(self) -> None:
        """Read from the cursor again: it was moved, and nothing was delivered since the move."""
        self.perform_all(self.dispatch.cursor_moved())

    def perform_all(self, effects: Sequence[Effect]) -> None:
        """Carry out the effects of an input of `dispatch`."""
        for effect in effects:
            self._perform(effect)
        self._count_unacked()

    def _count_unacked(self) -> None:
        """Tell the limit of the broker if the consumers have more or less than before."""
        messages = self.dispatch.unacked
        if messages != self._counted:
            self._counted = messages
            self._unacked_limit.count(self, messages)

    # -- the task

    async def _run(self, scope: trio.CancelScope) -> None:
        with scope:
            while not scope.cancel_called:
                # This comes before the machine is asked: a wake-up from here on is not missed.
                if self._wake.is_set():
                    self._wake = trio.Event()
                await self._serve_once(scope)

    async def _serve_once(self, scope: trio.CancelScope) -> None:
        self._sleeps_at_end = False
        deadline_ms = self.dispatch.deadline_ms
        if deadline_ms is not None and deadline_ms <= self._clock.now_ms():
            self.perform_all(self.dispatch.tick(self._clock.now_ms()))
        want = None if self.stopped_by_broker else self.dispatch.want()
        # The sleep asks about the same moment, or a limit could open between two looks, unnoticed.
        now_s = trio.current_time()
        if want is not None and self.rates is not None:
            want = self._limited(want, self.rates, now_s)
        if want is None:
            await self._sleep(now_s)
            return
        self._reading = want, self._clock.now_ms()
        try:
            want, entries = await self._read(want)
        except LedgerError as error:
            self._reading = None
            if not await self._go_on_behind(want, str(error)):
                await trio.sleep(self._limits.retry_s)  # Its bookies may come back.
            return
        except ManagedLedgerError:
            await trio.sleep_forever()  # The topic is about to be dropped.
            return
        finally:
            self._reading = None
        if scope.cancel_called:
            return  # A new task may be at work already.
        if self.stopped_by_broker:
            return  # The entries are read again when it goes on.
        if entries is None:
            self._sleeps_at_end = isinstance(want, Read)
            await self._sleep(trio.current_time())
            return
        self._assign(want, entries)
        await trio.lowlevel.checkpoint()

    def _appended(self, newest: Newest) -> None:
        """Deliver the new entries now if that needs no wait, else wake the task."""
        if not (self._sleeps_at_end and self._serve_now(newest)):
            self.wake()

    def _serve_now(self, newest: Newest) -> bool:
        """Deliver what was just confirmed, while the task sleeps at the end of the log.

        Return False if the task has to do that, or has more to do.
        """
        want = self._want_new()
        if want is None or self._next is None or not isinstance(self._source, LogSource):
            return False
        entries = newest.small(self._next, want.entries) or newest.read(
            self._next, max_entries=want.entries, max_bytes=self._read_bytes(limited=True)
        )
        if not entries:
            return False
        deadline_ms = self.dispatch.deadline_ms
        self._assign(want, entries, newest)
        # The task sleeps until the deadline that it knows, and does all that is left to be done.
        # One consumer that takes no more is noticed when the next entry has come.  For shared ones
        # there may also be entries to be read again now.
        if (
            self.dispatch.deadline_ms != deadline_ms
            or not self._has_passed_end
            or (self.dispatch.active is None and self._want_new() is None)
        ):
            return False
        self._note_end()
        return True

    @property
    def _has_passed_end(self) -> bool:
        return self._next is not None and self._next > self._log.last_confirmed

    def _want_new(self) -> Read | None:
        """Return what the machine wants if that is new entries, and nothing limits them."""
        if self.rates is not None or self.stopped_by_broker:
            return None
        want = self.dispatch.want()
        return want if isinstance(want, Read) and want.waits else None

    async def _sleep(self, looked_s: float) -> None:
        """Sleep until something happens, or the machine is due for a tick.

        `looked_s` is when the limits of rates were asked.
        """
        deadline_ms = self.dispatch.deadline_ms
        seconds = inf
        if deadline_ms is not None:
            seconds = max(0.0, (deadline_ms - self._clock.now_ms()) / 1000)
        if self.rates is not None and (wait_s := self.rates.wait_s(looked_s)):
            seconds = min(seconds, wait_s)
        with trio.move_on_after(seconds):
            await self._wake.wait()

    # -- reading

    async def _read(self, want: Want) -> tuple[Want, list[LogEntry] | None]:
        """Read what is wanted, and return what of it was tried.

        At the end of the log, return None for the entries and arrange for a wake-up.
        """
        match want:
            case Read(count):
                entries = await self._read_next(count, waits=want.waits)
                self.unreadable.went_on()
                return want, entries
            case Replay():
                return await self._read_again(want)
            case _:
                assert_never(want)

    # -- entries that cannot be read

    async def _go_on_behind(self, want: Want, why: str) -> bool:
        """Return True if the next entry cannot be read and reading goes on behind it."""
        start, source = self._next, self._source
        if not isinstance(want, Read) or start is None:
            return False
        if source.is_acked(start):  # Nobody needs it.
            self._next = source.next_position(start)
            return True
        place = (start.ledger_id, start.entry_id)
        lasts = self.unreadable.failed(place, why, self._clock.now_ms())
        # On a key_shared subscription it is not known which key has to wait for the entry.
        may_pass = self.shared and not self.keyed and self.unreadable.has_room
        if not (lasts and may_pass and await self._is_readable(source.next_position(start))):
            return False
        if self._next == start and not source.is_acked(start):  # It was not moved meanwhile.
            self._next = source.next_position(start)
            self._put_aside(start, why)
        return True

    async def _is_readable(self, position: Position) -> bool:
        """Return True if an entry exists and can be read."""
        if position > self._log.last_confirmed:
            return False
        try:
            return bool(await self._log.read(position, max_entries=1, max_bytes=1))
        except (LedgerError, ManagedLedgerError):  # The main task notices the end of the log.
            return False

    def _put_aside(self, position: Position, why: str) -> None:
        place = (position.ledger_id, position.entry_id)
        self.unreadable.put_aside(place, why, self._clock.now_ms())
        self.dispatch.put_aside(place)
        if self._reading_aside is None:
            self._reading_aside = trio.CancelScope()
            self._start_task(self._read_aside, self._reading_aside)

    async def _read_aside(self, scope: trio.CancelScope) -> None:
        """Read again, from time to time, what was put aside."""
        with scope:
            while self.unreadable.aside:
                await trio.sleep(_ASIDE_RETRY_S)
                for place in list(self.unreadable.aside):
                    position = Position(*place)
                    acked = self._cursor.is_acked(position)
                    if acked or await self._is_readable(position):
                        self.unreadable.bring_back(place)
                        self.dispatch.bring_back(place)
                        self.wake()
            self._reading_aside = None

    def _forget_unreadable(self) -> None:
        self.unreadable.clear()
        if self._reading_aside is not None:
            self._reading_aside.cancel()
            self._reading_aside = None

    @property
    def source(self) -> Source:
        """The source from which the dispatcher has read last."""
        return self._source

    async def _read_next(self, count: int, *, waits: bool) -> list[LogEntry] | None:
        log = self._log
        start = self._next
        if start is None:
            self._source = self._choose_source()
            start = self._next = self._source.read_start
        end = log.last_confirmed
        if start <= end:
            size = self._read_bytes(limited=True)
            entries = await self._source.read(start, max_entries=count, max_bytes=size)
            # An empty read that saw a moved end is not the end: the next pass reads on.
            if entries or log.last_confirmed != end:
                self._end = None
                return entries
        # No checkpoint since `last_confirmed` was read, so no append can come in between unseen.
        if not waits:
            self._end = end
            self._on_end()
            return []
        self._note_end()
        return None

    def _note_end(self) -> None:
        """Note that everything is read, and arrange to hear of the next entry."""
        self._end = self._log.last_confirmed
        self._on_end()
        self._call_when_appended(self._appended)

    def _read_bytes(self, *, limited: bool) -> int:
        """Return how much to read: not more than some consumer has room for.

        The rates count for what is `limited`; the far part of what is delayed is only noted.
        """
        most = self._limits.read_bytes_max
        size = max(READ_BYTES_MIN, min(most, self._room_bytes(most)))
        if self.rates is None or not limited:
            return size
        return self.rates.room(trio.current_time()).size(size)

    async def _read_again(self, want: Replay) -> tuple[Replay, list[LogEntry] | None]:
        """Read these entries, without those that are acknowledged or trimmed away.

        Neighbours are read at once.  Each run of neighbours is read as far as one read brings it.
        An entry that cannot be read is put aside, and the read ends before it.
        """
        log, cursor, aside = self._log, self._cursor, self.unreadable.aside
        if aside:
            want = replace(want, places=tuple(p for p in want.places if p not in aside))
        places = want.places
        wanted = [Position(*place) for place in places]
        wanted = [position for position in wanted if not cursor.is_acked(position)]
        found: list[LogEntry] = []
        at = 0
        while at < len(wanted):
            run = wanted[at : at + 1]
            for position in wanted[at + 1 :]:
                if position != log.next_position(run[-1]):
                    break
                run.append(position)
            size = self._read_bytes(limited=not want.delayed)
            try:
                entries = await log.read(run[0], max_entries=len(run), max_bytes=size)
            except LedgerError as error:
                if not self.unreadable.has_room:
                    raise
                self._put_aside(run[0], str(error))
                if want.delayed:  # It is read as a whole, once more without this entry.
                    self.wake()
                    return want, None
                tried = places[: places.index((run[0].ledger_id, run[0].entry_id))]
                return replace(want, places=tried), found
            entries = [each for each in entries if run[0] <= each.position <= run[-1]]
            found += entries
            at += max(1, len(entries))
        return want, found

    # -- limits of rates

    def _limited(self, want: Want, rates: DispatchRates, now_s: float) -> Want | None:
        """Return what may be read of it now; None to wait."""
        if isinstance(want, Replay) and want.delayed:
            return want  # Nothing of it is delivered.
        at = self._next
        if isinstance(want, Read) and at is not None and at > self._log.last_confirmed:
            return want  # The end of the log is noticed all the same.
        room = rates.room(now_s)
        if room.is_closed:
            return None
        if isinstance(want, Read):
            return replace(want, entries=room.entries(want.entries))
        return replace(want, places=want.places[: room.entries(len(want.places))])

    def _fitting(
        self, want: Want, raw: Sequence[LogEntry], visible: Sequence[Entry], rates: DispatchRates
    ) -> tuple[Want, Sequence[LogEntry], Sequence[Entry]]:
        """Leave out what the limits have no room for, as if it had not been read."""
        if isinstance(want, Replay) and want.delayed:
            return want, raw, visible
        sizes = ((entry.messages, _size(entry)) for entry in visible)
        count = rates.room(trio.current_time()).fitting(sizes)
        if count == len(visible):
            return want, raw, visible
        if isinstance(want, Replay):
            # The machine takes a place for gone if its entry does not come.
            places = want.places[: want.places.index(visible[count].place)]
            return replace(want, places=places), raw, visible[:count]
        last = Position(*visible[count - 1].place)
        return want, [each for each in raw if each.position <= last], visible[:count]

    # -- giving entries to consumers

    def _assign(self, want: Want, raw: Sequence[LogEntry], newest: Newest | None = None) -> None:
        """Let the machine assign what was read, and read on behind the entries that it took."""
        visible = self._entries(raw, newest)
        if self.rates is not None and len(visible) > 1:
            want, raw, visible = self._fitting(want, raw, visible, self.rates)
        for effect in self.dispatch.entries_read(want, visible):
            if isinstance(effect, Taken):
                self._advance(effect.count, visible, raw)
            else:
                self._perform(effect)
        self._count_unacked()

    def _advance(self, count: int, visible: Sequence[Entry], raw: Sequence[LogEntry]) -> None:
        assert 0 <= count <= len(visible)
        if count < len(visible):
            self._next = Position(*visible[count].place)
        elif raw:
            self._next = self._source.next_position(raw[-1].position)

    def _entries(self, raw: Sequence[LogEntry], newest: Newest | None) -> Sequence[Entry]:
        """Return what consumers may see of a read.

        Subscriptions of one kind share what is made of the newest entries, unless it depends on
        their acknowledgements, or they have to acknowledge some of them.
        """
        if newest is None or self._some_acked(raw):
            return self._visible(raw)
        kind = self.shared, self.keyed
        entries = newest.made(raw, kind)
        if entries is None:
            entries = self._visible(raw)
            if len(entries) == len(raw):
                newest.keep(raw, kind, entries)
        return entries

    def _some_acked(self, raw: Sequence[LogEntry]) -> bool:
        """Return True if one of these entries is acknowledged, or a part of it."""
        cursor, source = self._cursor, self._source
        if cursor.partly_acked and any(cursor.pending_of(e.position) is not None for e in raw):
            return True
        return source.may_be_acked(raw[0].position) and any(
            source.is_acked(each.position) for each in raw
        )

    def _visible(self, raw: Sequence[LogEntry]) -> list[Entry]:
        """Return the entries that consumers may see: no acknowledged ones, and no markers."""
        if not raw:
            return []
        cursor, source = self._cursor, self._source
        some_in_part = cursor.partly_acked > 0
        # Most reads are above everything acknowledged; then no entry has to be looked up.
        some_acked = source.may_be_acked(raw[0].position)
        head_of = keyed_head if self.keyed else delivered_head
        visible: list[Entry] = []
        # The sizes of a run are noted at once, and only by the first subscription that reads it.
        first, last = raw[0].position, raw[-1].position
        noting = (
            isinstance(source, LogSource)  # A compacted entry may be smaller than that of the log.
            and last.entry_id - first.entry_id == len(raw) - 1
            and last.ledger_id == first.ledger_id
            and not self._log.sizes.knows(first.ledger_id, first.entry_id, last.entry_id)
        )
        counts: list[int] = []
        for each in raw:
            position = each.position
            if some_acked and source.is_acked(position):
                counts.append(0)  # Its size will not be needed.
                continue
            head = head_of(each.data)
            counts.append(head.messages)
            if head.marker:
                cursor.ack([position])
                continue
            place = (position.ledger_id, position.entry_id)
            messages = head.messages
            if some_in_part and (pending := cursor.pending_of(position)) is not None:
                messages = (pending & ((1 << messages) - 1)).bit_count()
                if not messages:  # The bits that are left are of no message of this batch.
                    cursor.ack([position])
                    continue
            left = source.left_of(head) if head.left is not None else None
            if left is not None:
                if some_in_part and (pending := cursor.pending_of(position)) is not None:
                    left &= pending
                if not left:  # The rest of the batch was acknowledged before it was compacted.
                    cursor.ack([position])
                    continue
                messages = left.bit_count()
            data = each.data
            if not isinstance(data.obj, bytes):
                # A view into an arena pins it, and a slow consumer may keep its entries for long.
                data = memoryview(bytes(data))
            entry = Entry(place, messages, Payload(data, head.start), left=left)
            if self.shared:
                due_ms = entry.due_ms = head.deliver_at_ms
                if due_ms and self.delayed_delivery and due_ms > self._clock.now_ms():
                    entry.deliver_at_ms = due_ms
                entry.group, entry.group_ends = head.group, head.group_ends
                entry.key = head.key
            visible.append(entry)
        if noting:
            sizes = [len(each.data) for each in raw]
            self._log.sizes.note(first.ledger_id, first.entry_id, counts, sizes)
        return visible

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Deliver(key, entries, redeliveries):
                if self.rates is not None:
                    messages, size = sum(e.messages for e in entries), sum(map(_size, entries))
                    self.rates.take(messages, size, trio.current_time())
                self._deliver(key, entries, redeliveries)
            case Rewind():
                self._next = self._end = None
                self._forget_unreadable()
            case Activate(key, active):
                self._activate(key, active)
            case Taken():
                raise AssertionError("entries are taken only out of a read")
            case _:
                assert_never(effect)


def _size(entry: Entry) -> int:
    """Return the bytes of an entry, without the broker's own metadata."""
    payload: Payload = entry.token
    return len(payload.own)


def _nothing(*_: object) -> None:
    """Do nothing: there is no consumer any more."""


def _no_room(_wanted: int) -> int:
    """Return that no consumer has room."""
    return 0
