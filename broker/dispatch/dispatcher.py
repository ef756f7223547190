"""What feeds the consumers of a subscription: one task that reads, and hands out what it has read.

What the task reads, and who gets it, is up to a machine (`broker.protocol.dispatch`).  The task
sleeps while nobody can take anything, and at the end of the log; whatever changes that wakes it.

    permits, acks, ... ---> Dispatch ---want---> read ---> Dispatch ---deliver---> consumers
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Protocol, assert_never

import trio

from daybook.bookie.errors import LedgerError
from daybook.broker.dispatch.consumer import Consumer
from daybook.broker.dispatch.entries import delivered_head
from daybook.broker.dispatch.partial_acks import PartialAcks
from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.dispatch.events import (
    Activate,
    Blocked,
    Brought,
    Cleared,
    Deliver,
    Dispatch,
    Effect,
    Entry,
    Event,
    Place,
    Read,
    Replay,
    Rewind,
    Taken,
    Tick,
    Want,
)
from daybook.broker.topics.topic_log import TopicCursor, TopicLog
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry
from daybook.wire.clock import WallClock

NOWHERE: Place = (-1, -1)
_READ_BYTES_MIN = 64 << 10


class FeederTopic(Protocol):
    """What it needs of the topic."""

    @property
    def log(self) -> TopicLog: ...

    @property
    def nursery(self) -> trio.Nursery: ...

    def wake_when_appended(self, feeder: "Feeder") -> None:
        """Call `wake` when the next entry is confirmed."""
        ...


class Feeder:
    """Of one subscription.  `consumers` by key; `on_end` is called when all has been read."""

    def __init__(
        self,
        topic: FeederTopic,
        cursor: TopicCursor,
        consumers: Mapping[int, Consumer],
        partial: PartialAcks,
        dispatch: Dispatch,
        *,
        limits: TopicLimits,
        clock: WallClock,
        on_end: Callable[[], None],
    ) -> None:
        self.dispatch = dispatch
        self.messages = 0
        self.bytes = 0
        self.redelivered = 0
        self.sees_times = False  # entries may ask to be delivered later, chunks stay together
        self._topic = topic
        self._cursor = cursor
        self._consumers = consumers
        self._partial = partial
        self._limits = limits
        self._clock = clock
        self._next: Position | None = None  # where reading goes on; None: by the cursor
        self._wake = trio.Event()
        self._task: trio.CancelScope | None = None
        self.furthest: Place | None = (
            None  # that was delivered since the cursor was moved, if it was
        )
        self._end: Position | None = None  # the end of the log, if all up to it has been read
        self._on_end = on_end

    @property
    def read_position(self) -> Position:
        return self._next or self._cursor.read_start

    @property
    def at_end(self) -> bool:
        """Has everything been read that the log has now?"""
        return self._end == self._topic.log.last_confirmed

    def start(self) -> None:
        if self._task is None:
            self._task = trio.CancelScope()
            self._topic.nursery.start_soon(self._run, self._task)
        self.wake()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def wake(self) -> None:
        self._wake.set()

    def feed(self, event: Event) -> None:
        for effect in self.dispatch.step(event):
            self._perform(effect)

    # -- the task

    async def _run(self, scope: trio.CancelScope) -> None:
        with scope:
            while not scope.cancel_called:
                if self._wake.is_set():
                    self._wake = trio.Event()
                await self._serve_once(scope)

    async def _serve_once(self, scope: trio.CancelScope) -> None:
        deadline_ms = self.dispatch.deadline_ms
        if deadline_ms is not None and deadline_ms <= self._clock.now_ms():
            self.feed(Tick(self._clock.now_ms()))
        want = self.dispatch.want()
        if want is None:
            await self._sleep()
            return
        try:
            entries = await self._read(want)
        except LedgerError:
            await trio.sleep(self._limits.retry_s)  # Its bookies may come back.
            return
        except ManagedLedgerError:
            await trio.sleep_forever()  # The topic is about to be dropped.
            return
        if scope.cancel_called:
            return  # Somebody else may be at work by now.
        if entries is None:
            await self._sleep()
            return
        self._brought(want, entries)
        await trio.lowlevel.checkpoint()

    async def _sleep(self) -> None:
        deadline_ms = self.dispatch.deadline_ms
        seconds = inf
        if deadline_ms is not None:
            seconds = max(0.0, (deadline_ms - self._clock.now_ms()) / 1000)
        with trio.move_on_after(seconds):
            await self._wake.wait()

    def start_over(self) -> None:
        """The cursor was moved: nothing has been delivered since."""
        self.furthest = NOWHERE
        self.feed(Cleared())

    # -- reading

    async def _read(self, want: Want) -> list[LogEntry] | None:
        """What is wanted; None at the end of the log, and then something will wake us."""
        match want:
            case Read(count):
                return await self._read_on(count)
            case Replay(places):
                return await self._read_again(places)
            case _:
                assert_never(want)

    async def _read_on(self, count: int) -> list[LogEntry] | None:
        log = self._topic.log
        start = self._next
        if start is None:
            start = self._next = self._cursor.read_start
        end = log.last_confirmed
        if start <= end:
            size = self._read_bytes()
            entries = await log.read(start, max_entries=count, max_bytes=size)
            if entries or log.last_confirmed != end:
                self._end = None
                return entries
        self._end = end
        self._on_end()
        self._topic.wake_when_appended(self)
        return None

    def _read_bytes(self) -> int:
        """Not more than some consumer has room for."""
        room = max((c.connection.room_bytes for c in self._consumers.values()), default=0)
        return max(_READ_BYTES_MIN, min(self._limits.read_bytes_max, room))

    async def _read_again(self, places: Sequence[Place]) -> list[LogEntry]:
        """These entries, but for those that are acknowledged or gone; some of them, at least."""
        log, cursor = self._topic.log, self._cursor
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
            size = self._read_bytes()
            entries = await log.read(run[0], max_entries=len(run), max_bytes=size)
            entries = [entry for entry in entries if entry.position in run]
            found += entries
            at += max(1, len(entries))
        return found

    def _brought(self, want: Want, raw: Sequence[LogEntry]) -> None:
        visible = self._visible(raw)
        for effect in self.dispatch.step(Brought(want, visible)):
            if isinstance(effect, Taken):
                self._advance(effect.count, visible, raw)
            else:
                self._perform(effect)

    def _advance(self, count: int, visible: Sequence[Entry], raw: Sequence[LogEntry]) -> None:
        if count < len(visible):
            self._next = Position(*visible[count].place)
        elif raw:
            self._next = self._topic.log.next_position(raw[-1].position)

    def _visible(self, raw: Sequence[LogEntry]) -> list[Entry]:
        """The entries that consumers get to see."""
        if not raw:
            return []
        cursor, partial = self._cursor, self._partial
        some_acked = cursor.acked_above or raw[0].position <= cursor.mark_delete
        visible: list[Entry] = []
        for each in raw:
            position = each.position
            if some_acked and cursor.is_acked(position):
                continue
            head = delivered_head(each.data)
            if head.marker:
                cursor.ack([position])
                continue
            place = (position.ledger_id, position.entry_id)
            messages = head.messages
            if partial and (pending := partial.pending(place)) is not None:
                messages = (pending & ((1 << messages) - 1)).bit_count()
            data = each.data
            if not isinstance(data.obj, bytes):
                data = memoryview(bytes(data))  # What waits for a consumer must pin no arena.
            entry = Entry(place, messages, (data, head.start))
            if self.sees_times:
                if head.deliver_at_ms and head.deliver_at_ms > self._clock.now_ms():
                    entry.deliver_at_ms = head.deliver_at_ms
                entry.group, entry.group_ends = head.group, head.group_ends
            visible.append(entry)
        return visible

    # -- what the machine wants done

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Deliver(key, entries, redeliveries):
                self._deliver(self._consumers[key], entries, redeliveries)
            case Rewind():
                self._next = self._end = None
            case Activate(key, active):
                self._consumers[key].tell_active(active)
            case Taken():
                raise AssertionError("only what a read brought is taken")
            case _:
                assert_never(effect)

    def _deliver(
        self, consumer: Consumer, entries: Sequence[Entry], redeliveries: Sequence[int] | None
    ) -> None:
        ack_sets = None
        if self._partial:
            ack_sets = [self._partial.pending(entry.place) for entry in entries]
        if self.furthest is not None:
            self.furthest = max(self.furthest, *(entry.place for entry in entries))
        before = consumer.messages, consumer.bytes
        consumer.deliver(entries, redeliveries, ack_sets, self._clock.now_ms())
        self.messages += consumer.messages - before[0]
        self.bytes += consumer.bytes - before[1]
        if redeliveries is not None:
            again = sum(e.messages for e, n in zip(entries, redeliveries, strict=True) if n)
            consumer.redelivered += again
            self.redelivered += again
        if consumer.connection.room_bytes <= 0:
            self.feed(Blocked(consumer.key))
            consumer.connection.call_when_writable(consumer.writable)
