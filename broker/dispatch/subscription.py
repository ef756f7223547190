"""A subscription: a cursor, who consumes, and what they acknowledge.

Its type is what the first consumer asks for, and may be another one after the last has left.  How
consumers are fed is in `feeder`.

An acknowledgement counts at once in memory, and is durable within the flush interval of the log; a
receipt is given when it is durable.

While the cursor is being moved (`seek`), consumers are closed and newcomers wait, or are told after
a while to come again.  What consumers were given before is void with the move, and so are their
acknowledgements of it: those of entries that nobody was given since are not noted.  A volatile
subscription is gone when its last consumer is, unless it was just moved and they are to come back.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import trio

from daybook.broker.dispatch.consumer import Consumer, ConsumerConnection, OnDurable
from daybook.broker.dispatch.dispatcher import Feeder
from daybook.broker.dispatch.partial_acks import PartialAcks
from daybook.broker.errors import (
    BrokerError,
    ConsumerBusyError,
    NotAllowedError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.dispatch.events import (
    Acked,
    AckedUpTo,
    Dispatch,
    Joined,
    Left,
    Permits,
    Place,
    Redeliver,
    Writable,
)
from daybook.broker.protocol.dispatch.exclusive import ExclusiveDispatch
from daybook.broker.protocol.dispatch.failover import FailoverDispatch
from daybook.broker.protocol.dispatch.shared import SharedDispatch
from daybook.broker.to_the_end import to_the_end
from daybook.broker.topics.backlog import Backlog, BacklogSize
from daybook.broker.topics.topic_log import TopicCursor, TopicLog
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.wire.clock import WallClock
from daybook.wire.messages.consumer import Ack, AckedId
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

EXCLUSIVE, SHARED, FAILOVER = (
    int(pb.CommandSubscribe.Exclusive),
    int(pb.CommandSubscribe.Shared),
    int(pb.CommandSubscribe.Failover),
)
_REGISTERED_S = 0.25  # after the answer to SUBSCRIBE a client knows its consumer
MOVED = "daybook.moved"  # a property of the cursor
TYPE_NAMES = {EXCLUSIVE: "Exclusive", SHARED: "Shared", FAILOVER: "Failover"}


class SubscriptionTopic(Protocol):
    """What a subscription needs of its topic."""

    @property
    def name(self) -> TopicName: ...

    @property
    def log(self) -> TopicLog: ...

    @property
    def nursery(self) -> trio.Nursery: ...

    @property
    def terminated(self) -> bool: ...

    def wake_when_appended(self, feeder: Feeder) -> None: ...

    async def offset_before(self, position: Position) -> int: ...


class Subscription:
    """See the module."""

    def __init__(
        self,
        topic: SubscriptionTopic,
        name: str,
        cursor: TopicCursor,
        *,
        durable: bool,
        limits: TopicLimits,
        clock: WallClock,
        on_gone: Callable[["Subscription"], None],
        properties: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.durable = durable
        self.type: int | None = None
        self.consumers: dict[int, Consumer] = {}
        self.properties = properties or {}
        self.gone = False
        self.acked_ms = 0
        self.moved = cursor.properties.get(MOVED)  # a number for the latest move; it grows
        self.topic = topic
        self._limits = limits
        self._clock = clock
        self._on_gone = on_gone
        self._partial = PartialAcks(limits.partial_bytes_max)
        self.feeder = Feeder(
            topic,
            cursor,
            self.consumers,
            self._partial,
            ExclusiveDispatch(limits.dispatch),
            limits=limits,
            clock=clock,
            on_end=self.check_end,
        )
        self._backlog = Backlog(topic, cursor)
        self._moving: trio.Event | None = None  # set when the move is done
        self._awaits_return = False
        self._unflushed: list[OnDurable] = []
        self._flushing = False

    # -- what is so

    @property
    def dispatch(self) -> Dispatch:
        return self.feeder.dispatch

    @property
    def moving(self) -> bool:
        return self._moving is not None

    @property
    def backlog(self) -> BacklogSize:
        return self._backlog.size(partly_acked=bool(self._partial))

    async def look_at_backlog(self) -> None:
        """Know its messages better.  Raises BrokerError."""
        await self._backlog.look()

    # -- consumers

    async def make_way(self, wanted: int, connection: ConsumerConnection) -> None:
        """Be ready for a consumer of that type, or raise ConsumerBusyError.

        Consumers in the way whose clients do not answer are taken for dead; who asks is not.  When
        it returns, the cursor is not being moved.
        """
        await self._wait_moved()
        if wanted not in TYPE_NAMES:
            raise NotAllowedError("this broker has no subscriptions of that type")
        if len(self.consumers) >= self._limits.consumers_max:
            raise ConsumerBusyError(f"{self.name} has too many consumers")
        in_the_way = self._in_the_way(wanted)
        if not in_the_way:
            return
        async with trio.open_nursery() as nursery:
            for consumer in in_the_way:
                if consumer.connection is not connection:
                    nursery.start_soon(self._probe, consumer)
        await self._wait_moved()  # A move may have begun meanwhile.
        if self._in_the_way(wanted):
            kind = TYPE_NAMES[self.type or EXCLUSIVE]
            raise ConsumerBusyError(f"{self.name} has a consumer, and is {kind}")

    async def _wait_moved(self) -> None:
        """Until the cursor is not being moved.

        UnavailableError if that takes long, as the store may be away, or if it is the end of it.
        """
        with trio.move_on_after(self._limits.change_s):
            while self._moving is not None:
                await self._moving.wait()
        self._check_here()
        if self._moving is not None:
            raise UnavailableError(f"the subscription {self.name} is being moved")

    def _in_the_way(self, wanted: int) -> list[Consumer]:
        if self.type == wanted and wanted != EXCLUSIVE:
            return []
        return list(self.consumers.values())

    async def _probe(self, consumer: Consumer) -> None:
        if not await consumer.connection.is_alive(self._limits.probe_s):
            consumer.disconnect()
            self.remove(consumer)

    def _check_here(self) -> None:
        if self.gone:
            raise UnavailableError(f"the subscription {self.name} is being removed")

    def add(self, consumer: Consumer, wanted: int) -> None:
        """Serve the consumer, from its first permits on.  `make_way` has just returned."""
        assert self._moving is None
        assert not self._in_the_way(wanted)
        if not self.consumers:
            self.type = wanted
            self.feeder.dispatch = self._new_dispatch(wanted)
            self.feeder.sees_times = wanted == SHARED
        self._awaits_return = False
        self.consumers[consumer.key] = consumer
        self.feeder.feed(Joined(consumer.key, consumer.name, consumer.priority))
        self.feeder.start()
        if wanted == FAILOVER:
            self.topic.nursery.start_soon(self._wait_registered, consumer)

    async def _wait_registered(self, consumer: Consumer) -> None:
        """A client may wait for the news before it gives any permits."""
        await trio.sleep(_REGISTERED_S)
        consumer.note_registered()

    def _new_dispatch(self, wanted: int) -> Dispatch:
        limits, name = self._limits.dispatch, self.topic.name
        if wanted == EXCLUSIVE:
            return ExclusiveDispatch(limits)
        if wanted == FAILOVER:
            return FailoverDispatch(limits, topic=name.full, partition=name.partition)
        return SharedDispatch(limits)

    def remove(self, consumer: Consumer) -> None:
        """The consumer has left, or is lost; what it had goes to others."""
        consumer.closed = True
        if self.consumers.pop(consumer.key, None) is None:
            return
        self.feeder.feed(Left(consumer.key))
        if self.consumers:
            self.feeder.wake()
            return
        self.feeder.stop()
        self.drop_if_unused()

    def drop_if_unused(self) -> None:
        """A volatile one is there for its consumers."""
        if self.durable or self.consumers or self._awaits_return or self._moving is not None:
            return
        self.drop()

    def drop(self) -> None:
        """It is not there any more: consumers are told, nothing is stored."""
        if self.gone:
            return
        self.gone = True
        self.feeder.stop()
        self.disconnect_all()
        self._answer_acks(UnavailableError(f"the subscription {self.name} is not served here"))
        self._on_gone(self)

    def disconnect_all(self) -> None:
        for consumer in list(self.consumers.values()):
            consumer.disconnect()
            self.remove(consumer)

    # -- what consumers say

    def flow(self, consumer: Consumer, messages: int) -> None:
        """The consumer has room for so many messages more."""
        if consumer.key not in self.consumers:
            return
        consumer.note_registered()
        self.feeder.feed(Permits(consumer.key, messages))
        self.feeder.wake()

    def writable(self, consumer: Consumer) -> None:
        if consumer.key in self.consumers:
            self.feeder.feed(Writable(consumer.key))
            self.feeder.wake()

    def redeliver(self, consumer: Consumer, places: Sequence[Place], epoch: int | None) -> None:
        if epoch is not None and epoch > (consumer.epoch or -1):
            consumer.epoch = epoch
        if consumer.key not in self.consumers:
            return
        self.feeder.feed(Redeliver(consumer.key, places))
        self.feeder.wake()

    def ack(self, consumer: Consumer, ack: Ack) -> None:
        """Note in memory what is acknowledged.

        Raises BrokerError for what cannot be; single entries beside one that is not there are.
        """
        if ack.txn is not None:
            raise NotAllowedError("this broker has no transactions")
        last = self.topic.log.last_confirmed
        end = (last.ledger_id, last.entry_id)
        missing = [each for each in ack.ids if (each.ledger_id, each.entry_id) > end]
        self.acked_ms = consumer.acked_ms = self._clock.now_ms()
        if not ack.cumulative:
            there = [each for each in ack.ids if (each.ledger_id, each.entry_id) <= end]
            self._ack_each(consumer, there)
        elif not missing:
            self._ack_cumulative(ack)
        if self.topic.terminated:
            self.check_end()
        if missing:
            where = f"{missing[0].ledger_id}:{missing[0].entry_id}"
            raise PreconditionError(
                f"{self.topic.name} has no entry {where}: it ends at {end[0]}:{end[1]}"
            )

    def _ack_each(self, consumer: Consumer, ids: Sequence[AckedId]) -> None:
        partial = self._partial
        places: list[Place] = []
        for each in ids:
            place = (each.ledger_id, each.entry_id)
            if self._is_void(place):
                continue
            if each.ack_set is None or partial.ack(place, each.ack_set):
                places.append(place)
        if places:
            partial.done(places)
            self.cursor.ack([Position(*place) for place in places])
            self.feeder.feed(Acked(consumer.key, places))
            if self.dispatch.active is None:
                self.feeder.wake()  # Somebody may have been blocked by what it had.

    def _ack_cumulative(self, ack: Ack) -> None:
        if self.type == SHARED:
            raise NotAllowedError("entries of a shared subscription are acknowledged one by one")
        if len(ack.ids) != 1:
            raise PreconditionError("a cumulative acknowledgement names one entry")
        (last,) = ack.ids
        if self._is_void((last.ledger_id, last.entry_id)):
            return
        position = Position(last.ledger_id, last.entry_id)
        if last.ack_set:
            position = self.topic.log.previous_position(position)
        self._ack_up_to(position)
        if last.ack_set:
            self._partial.ack((last.ledger_id, last.entry_id), last.ack_set)

    def _is_void(self, place: Place) -> bool:
        """Is an acknowledgement one of a delivery before the latest move?

        It is if nobody was given the entry since.  (Of one that was delivered again nobody can
        tell; our own clients hear of the move, and do not acknowledge what they had before.)
        """
        furthest = self.feeder.furthest
        return furthest is not None and place > furthest

    def _ack_up_to(self, position: Position) -> None:
        place = (position.ledger_id, position.entry_id)
        self.cursor.ack_cumulative(position)
        self._partial.done_up_to(place)
        self.feeder.feed(AckedUpTo(place))

    def when_durable(self, call: OnDurable) -> None:
        """Call back when all acknowledgements so far are durable, or with why they are not."""
        self._unflushed.append(call)
        if not self._flushing:
            self._flushing = True
            self.topic.nursery.start_soon(self._flush_acks)

    async def _flush_acks(self) -> None:
        while self._unflushed:
            calls, self._unflushed = self._unflushed, []
            error: BrokerError | None = UnavailableError("the acknowledgement may be lost")
            try:
                await self.cursor.flush()
                error = None
            except ManagedLedgerError as failure:
                error = UnavailableError(f"the acknowledgement may be lost: {failure}")
            finally:  # Also when the topic ends meanwhile: its clients wait for an answer.
                for call in calls:
                    call(error)
        self._flushing = False

    def _answer_acks(self, error: BrokerError) -> None:
        calls, self._unflushed = self._unflushed, []
        for call in calls:
            call(error)

    # -- moving the cursor

    async def move(self, find: Callable[[], Awaitable[Position]], pending: int | None) -> None:
        """Go to the entry that `find` names; what was acknowledged is forgotten.

        Consumers are closed, and find the new place when they come back.  `pending`: the messages
        of that entry that are wanted, if not all are.
        """
        await self.begin_move(find, pending)()

    def begin_move(
        self, find: Callable[[], Awaitable[Position]], pending: int | None
    ) -> Callable[[], Awaitable[None]]:
        """Close the consumers, and let nobody join until it is done, which what is returned awaits.

        It goes on if the one who asked for it stops waiting: a move is whole, or not begun.  Raises
        BrokerError: then nothing was done.
        """
        if self._moving is not None:
            raise BrokerError(f"{self.name} is being moved already")
        self._check_here()
        self._moving = trio.Event()
        self._awaits_return = not self.durable
        self.disconnect_all()
        act = partial(self._finish_move, find, pending)
        ended = UnavailableError(f"{self.name} was let go meanwhile: it may have been moved")
        return to_the_end(self.topic.nursery, act, over=self._moved, ended=ended)

    async def _finish_move(
        self, find: Callable[[], Awaitable[Position]], pending: int | None
    ) -> None:
        try:
            start = await find()
            await self._reset(start, pending)
        finally:
            if self._awaits_return and not self.gone:
                self.topic.nursery.start_soon(self._wait_return)

    def _moved(self) -> None:
        moving, self._moving = self._moving, None
        assert moving is not None
        moving.set()

    async def _reset(self, start: Position, pending: int | None) -> None:
        mark_delete = self.topic.log.previous_position(start)
        self.moved = max(self._clock.now_ms(), (self.moved or 0) + 1)
        try:
            await self.cursor.reset(mark_delete, {MOVED: self.moved})
        except ManagedLedgerError as error:
            raise UnavailableError(f"{self.name} could not be moved: {error}") from error
        finally:  # The cursor stands there in any case, though that may not be stored.
            self.feeder.start_over()
            self._partial.keep_only((start.ledger_id, start.entry_id), pending)

    async def _wait_return(self) -> None:
        await trio.sleep(self._limits.return_s)
        if self._awaits_return and not self.consumers:
            self.drop()

    async def skip_all(self) -> None:
        """Acknowledge everything up to now, durably."""
        self._ack_up_to(self.topic.log.last_confirmed)
        self.feeder.wake()  # Somebody may have been blocked by what it had.
        self.check_end()
        try:
            await self.cursor.flush()
        except ManagedLedgerError as error:
            raise UnavailableError(f"{self.name}: {error}") from error

    def check_end(self) -> None:
        """Tell those who are done with a topic that will never grow again; each once."""
        if not self.topic.terminated:
            return
        if not self.cursor.backlog_entries if self.durable else self.feeder.at_end:
            for consumer in self.consumers.values():
                consumer.tell_end_of_topic()
