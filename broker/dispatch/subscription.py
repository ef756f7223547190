"""A subscription: a cursor, its consumers, and the moves of the cursor.

The type of a subscription is the one that its first consumer asks for.  It may be another one after
the last consumer has left.  `broker.dispatch.dispatcher` chooses which consumer gets which entry,
and `broker.dispatch.acknowledgements` notes what they acknowledge.

While the cursor is being moved (`seek`), its consumers are closed and new ones wait, for a bounded
time.  A move voids all earlier deliveries.  A volatile subscription is removed together with its
last consumer, unless it was just moved and its consumers are expected back.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import trio

from daybook.broker.connected_client import ConnectedClient
from daybook.broker.dispatch.acknowledgements import Acknowledgements
from daybook.broker.dispatch.backlog import Backlog, BacklogSize
from daybook.broker.dispatch.consumer import REGISTERED_S, Consumer, OnDurable
from daybook.broker.dispatch.dispatcher import Dispatcher
from daybook.broker.dispatch.source import Source
from daybook.broker.dispatch.topic_view import TopicView
from daybook.broker.errors import (
    BrokerError,
    ConsumerAssignError,
    ConsumerBusyError,
    NotAllowedError,
    UnavailableError,
)
from daybook.broker.limits import check_properties
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.dispatch.exclusive import ExclusiveDispatch
from daybook.broker.protocol.dispatch.failover import FailoverDispatch
from daybook.broker.protocol.dispatch.interface import Dispatch, DispatchLimits, Entry
from daybook.broker.protocol.dispatch.key_shared import KeyPolicy, KeySharedDispatch
from daybook.broker.protocol.dispatch.places import ConsumerKey, Place
from daybook.broker.protocol.dispatch.ranges import ranges_problem
from daybook.broker.protocol.dispatch.shared import SharedDispatch
from daybook.broker.protocol.dispatch.stall import StallWatch
from daybook.broker.protocol.dispatch_rate import DispatchRates
from daybook.broker.to_the_end import to_the_end
from daybook.broker.topics.rate_limits import DispatchRatePolicy
from daybook.broker.topics.stored_topic import StoredTopic
from daybook.broker.topics.topic_log import TopicCursor
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.wire.messages.consumer import Ack
from daybook.wire.proto import pulsar_pb2 as pb

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = (
    int(pb.CommandSubscribe.Exclusive),
    int(pb.CommandSubscribe.Shared),
    int(pb.CommandSubscribe.Failover),
    int(pb.CommandSubscribe.Key_Shared),
)
TYPE_NAMES = {
    EXCLUSIVE: "Exclusive",
    SHARED: "Shared",
    FAILOVER: "Failover",
    KEY_SHARED: "Key_Shared",
}
MOVED = "daybook.moved"  # a property of the cursor: the number of its latest move

Target: TypeAlias = tuple[Position, int | None]
"""Where a subscription is moved to: an entry, and its messages that are wanted (None: all)."""


class Subscription:
    """One instance per subscription of a loaded topic.

    `on_gone` is called once, when the subscription is removed or the topic is closed.
    `begin_removal` removes it from its topic, and returns a function that waits for that.
    """

    def __init__(
        self,
        topic: StoredTopic,
        name: str,
        cursor: TopicCursor,
        *,
        durable: bool,
        on_gone: Callable[["Subscription"], None],
        begin_removal: Callable[["Subscription"], Callable[[], Awaitable[None]]],
        properties: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.topic = topic
        self.cursor = cursor
        self.durable = durable
        self.type: int | None = None  # the consumers' type; it stays when the last one leaves
        self.consumers: dict[int, Consumer] = {}
        self._untold: dict[int, Consumer] = {}  # those that do not know that the topic has ended
        self.properties = dict(properties or cursor.labels)
        self.reader_of = ""  # the role of the reader that has drawn the name
        self.gone = False
        self.messages = 0  # delivered, redeliveries included
        self.bytes = 0
        self.redelivered = 0
        self.expired = 0  # messages that were acknowledged because of their age or a quota
        self.expired_ms = 0  # the last time
        self._unused_since_ms = topic.clock.now_ms()
        self.moved = cursor.properties.get(MOVED)  # a number for the latest move; it grows
        self._limits = topic.limits
        self._clock = topic.clock
        self._on_gone = on_gone
        self._begin_removal = begin_removal
        self.dispatcher = Dispatcher(
            topic.log,
            cursor,
            ExclusiveDispatch(topic.limits.dispatch),
            limits=topic.limits,
            clock=topic.clock,
            start_task=topic.start_task,
            call_when_appended=topic.call_when_appended,
            deliver=self._deliver,
            activate=self._activate,
            room_bytes=self._room_bytes,
            on_end=self.check_end,
            source=self._choose_source,
            unacked=topic.unacked,
        )
        self.view = TopicView(topic, cursor, durable=durable)
        self._acks = Acknowledgements(topic, cursor, self.dispatcher)
        self.dispatcher.delayed_delivery = topic.policies.delayed_delivery.active
        self.dispatch_rate = DispatchRatePolicy("subscriptionDispatchRate", topic.rates)
        self._apply_rates(topic.policies)
        self._backlog = Backlog(topic, cursor)
        self._redeliveries: dict[Place, int] = {}  # while no consumer is connected
        self.stall = StallWatch()
        self.alone_ms = topic.clock.now_ms()  # since then it has no consumer, if it has none
        self._moving: trio.Event | None = None  # set when the move is done
        self._awaits_return = False  # a moved volatile subscription expects its consumers back

    # -- properties

    @property
    def remembers_redeliveries(self) -> bool:
        """True while it has no consumer and knows which messages were delivered before."""
        return bool(self._redeliveries)

    @property
    def acked_ms(self) -> int:
        """The time of the latest acknowledgement of a consumer; 0 if there was none."""
        return self._acks.acked_ms

    @property
    def advanced_ms(self) -> int:
        """The time when acknowledgements moved the mark-delete position last."""
        return self._acks.advanced_ms

    @property
    def dispatch(self) -> Dispatch:
        return self.dispatcher.dispatch

    @property
    def moving(self) -> bool:
        return self._moving is not None

    @property
    def backlog(self) -> BacklogSize:
        return self._backlog.size()

    async def read_backlog(self) -> None:
        """Make the backlog exact, by reading two entries at most.  Raise BrokerError.

        More is read only if sizes of entries are not known; that goes on if the caller gives up.
        """
        await self._backlog.read()

    # -- consumers

    async def make_way(
        self, wanted: int, connection: ConnectedClient, keys: KeyPolicy | None = None
    ) -> None:
        """Return when a consumer of the wanted type can join, or raise ConsumerBusyError.

        Raise ConsumerAssignError if the policy or the ranges of a key_shared consumer do not fit.

        Consumers in the way whose clients do not answer are taken for dead.  The client that asks
        is alive, so its own consumers stay.  When this returns, the cursor is not being moved.
        """
        await self._wait_moved()
        if wanted not in TYPE_NAMES:
            raise NotAllowedError(
                f"this broker has no subscriptions of type {wanted}, only"
                f" {', '.join(TYPE_NAMES.values())}"
            )
        keys = keys or KeyPolicy()
        if wanted == KEY_SHARED and keys.sticky and (problem := ranges_problem(keys.ranges)):
            raise ConsumerAssignError(f"{problem}: correct the ranges")
        in_the_way = self._in_the_way(wanted, keys)
        if not in_the_way:
            self._check_room()
            self._check_assignable(wanted, keys)
            return
        others: dict[ConnectedClient, list[Consumer]] = {}
        for consumer in in_the_way:
            if consumer.connection is not connection:
                others.setdefault(consumer.connection, []).append(consumer)
        async with trio.open_nursery() as nursery:
            for other, consumers in others.items():
                nursery.start_soon(self._probe, other, consumers)
        await self._wait_moved()  # A move may have begun meanwhile.
        if self._in_the_way(wanted, keys):
            if wanted == self.type == KEY_SHARED:
                raise self._not_assignable(keys)
            kind = TYPE_NAMES[self.type or EXCLUSIVE]
            raise ConsumerBusyError(
                f"the subscription {self.name} is {kind} and has a consumer already: close that"
                " one first"
            )
        self._check_room()
        self._check_assignable(wanted, keys)

    def _check_room(self) -> None:
        """Raise ConsumerBusyError if the subscription has as many consumers as it may have.

        A newcomer asks only when those in its way, which may be dead, are gone.
        """
        limit = self.topic.policies.max_consumers_per_subscription or self._limits.consumers_max
        if len(self.consumers) >= limit:
            raise ConsumerBusyError(
                f"the subscription {self.name} has {len(self.consumers)} consumers, which is the"
                " limit: close some, or raise the policy maxConsumersPerSubscription"
            )

    def _check_assignable(self, wanted: int, keys: KeyPolicy) -> None:
        dispatch = self.dispatch
        if wanted == KEY_SHARED and self.consumers and isinstance(dispatch, KeySharedDispatch):
            refusal = dispatch.refusal(keys.ranges)
            if refusal is not None:
                raise ConsumerAssignError(f"no consumer can join {self.name}: {refusal}")

    def _not_assignable(self, keys: KeyPolicy) -> ConsumerAssignError:
        assert isinstance(self.dispatch, KeySharedDispatch)
        policy = self.dispatch.policy
        if policy.agrees(keys):
            return ConsumerAssignError(
                f"{self.dispatch.refusal(keys.ranges)}: choose other ranges for this consumer of"
                f" {self.name}, or close the other one first"
            )
        return ConsumerAssignError(
            f"the subscription {self.name} has consumers with the key_shared policy {policy}, and"
            f" this one asks for {keys}: use the same policy for all, or close the others first"
        )

    async def _wait_moved(self) -> None:
        """Wait while the cursor is moved.

        Raise UnavailableError if that takes long, as the store may be away, or if the subscription
        is gone.
        """
        with trio.move_on_after(self._limits.change_s):
            while self._moving is not None:
                await self._moving.wait()
        self._check_not_gone()
        if self._moving is not None:
            raise UnavailableError(
                f"the subscription {self.name} is being moved to another position: try again"
            )

    def _in_the_way(self, wanted: int, keys: KeyPolicy) -> list[Consumer]:
        """Return the consumers that exclude a new one of the wanted type."""
        dispatch = self.dispatch
        if self.type == wanted == KEY_SHARED and isinstance(dispatch, KeySharedDispatch):
            if dispatch.policy.agrees(keys):
                return [self.consumers[key] for key in dispatch.in_the_way(keys.ranges)]
            return list(self.consumers.values())
        if self.type == wanted and wanted != EXCLUSIVE:
            return []
        return list(self.consumers.values())

    async def _probe(self, connection: ConnectedClient, consumers: Sequence[Consumer]) -> None:
        """Remove the consumers of a client that does not answer."""
        if not await connection.is_alive(self._limits.probe_s):
            for consumer in consumers:
                consumer.disconnect()
                self.remove(consumer)

    def _check_not_gone(self) -> None:
        if self.gone:
            raise UnavailableError(
                f"the subscription {self.name} is being removed, or its topic closes: try again"
            )

    def add(self, consumer: Consumer, wanted: int) -> None:
        """Serve the consumer, from its first permits on.

        The caller has awaited `make_way`, and has not reached a checkpoint since.
        """
        assert self._moving is None
        assert not self._in_the_way(wanted, consumer.keys)
        assert consumer.key not in self.consumers
        if not self.consumers:
            self.type = wanted
            self.dispatcher.dispatch = self._new_dispatch(wanted, consumer.keys)
            self._remember_redeliveries()
            self.dispatcher.shared = wanted in (SHARED, KEY_SHARED)
            self.dispatcher.keyed = wanted == KEY_SHARED
        self._awaits_return = False
        self.consumers[consumer.key] = self._untold[consumer.key] = consumer
        self.dispatcher.perform_all(
            self.dispatch.joined(
                consumer.key, consumer.name, consumer.priority, consumer.keys.ranges
            )
        )
        self.dispatcher.start()
        if wanted == FAILOVER:
            self.topic.start_task(self._wait_registered, consumer)

    def _remember_redeliveries(self) -> None:
        is_acked = self.cursor.is_acked
        counts = {p: n for p, n in self._redeliveries.items() if not is_acked(Position(*p))}
        self.dispatch.remember(counts)
        self._redeliveries = {}

    async def _wait_registered(self, consumer: Consumer) -> None:
        """Send waiting news after a while.

        A client may give no permits before it knows whether its consumer is active.
        """
        await trio.sleep(REGISTERED_S)
        consumer.note_registered()

    def _choose_source(self) -> Source:
        active = self.dispatch.active
        return self.view.source_for(None if active is None else self.consumers.get(active))

    def _new_dispatch(self, wanted: int, keys: KeyPolicy) -> Dispatch:
        limits, name = self._dispatch_limits(self.topic.policies), self.topic.name
        if wanted == EXCLUSIVE:
            return ExclusiveDispatch(limits)
        if wanted == FAILOVER:
            return FailoverDispatch(limits, topic=name.full, partition=name.partition)
        if wanted == KEY_SHARED:
            return KeySharedDispatch(limits, keys)
        return SharedDispatch(limits)

    def _dispatch_limits(self, policies: EffectivePolicies) -> DispatchLimits:
        limits = self._limits.dispatch
        one, all_ = policies.max_unacked_per_consumer, policies.max_unacked_per_subscription
        most, most_of_all = limits.unacked_messages_max, limits.subscription_unacked_messages_max
        return replace(
            limits,
            unacked_messages_max=min(one or most, most),
            subscription_unacked_messages_max=min(all_ or most_of_all, most_of_all),
        )

    def apply_policies(self, policies: EffectivePolicies) -> None:
        """Serve the consumers by other policies from now on."""
        self.dispatcher.delayed_delivery = policies.delayed_delivery.active
        self.dispatcher.perform_all(self.dispatch.limit(self._dispatch_limits(policies)))
        self._apply_rates(policies)
        # A consumer that had too much unacknowledged may get more, and one that waits for a rate.
        self.dispatcher.wake()

    def _apply_rates(self, policies: EffectivePolicies) -> None:
        """Serve the consumers by the limit of the topic, which comes first, and by the own one."""
        own = policies.of_subscriptions.get(self.name)
        rate = None if own is None else own.dispatch_rate
        self.dispatch_rate.apply(rate or policies.subscription_dispatch_rate)
        both = (self.topic.rate_limits.dispatch.limit, self.dispatch_rate.limit)
        limits = [limit for limit in both if limit is not None]
        self.dispatcher.rates = DispatchRates(limits) if limits else None

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer that has left or is lost.  Its entries go to other consumers."""
        consumer.closed = True
        self._untold.pop(consumer.key, None)
        if self.consumers.pop(consumer.key, None) is None:
            return
        if not self.consumers:
            # A client that reconnects must go on counting, else no message becomes a dead letter.
            self._redeliveries = self.dispatch.redeliveries()
        self.dispatcher.perform_all(self.dispatch.left(consumer.key))
        if self.consumers:
            self.dispatcher.wake()
            return
        self.alone_ms = self._clock.now_ms()
        self.dispatcher.stop()
        self._unused_since_ms = self._clock.now_ms()
        self.drop_if_unused()

    def drop_if_unused(self) -> None:
        """Drop a volatile subscription that has no consumers."""
        if self.durable or self.consumers or self._awaits_return or self._moving is not None:
            return
        self.drop()

    def drop(self) -> None:
        """Disconnect all consumers, and take the subscription off the topic.

        Nothing that is stored changes.
        """
        if self.gone:
            return
        self.gone = True
        self.dispatcher.stop()
        self.disconnect_all()
        self._acks.fail(
            UnavailableError(
                f"the subscription {self.name} is no longer served here, so acknowledgements may be"
                " lost"
            )
        )
        self._on_gone(self)
        self.dispatcher.end()

    def disconnect_all(self) -> None:
        for consumer in list(self.consumers.values()):
            consumer.disconnect()
            self.remove(consumer)

    # -- delivering

    def _deliver(
        self, key: ConsumerKey, entries: Sequence[Entry], redeliveries: Sequence[int] | None
    ) -> None:
        consumer = self.consumers[key]
        ack_sets = self.view.pending_of(entries)
        self._acks.note_delivered(entries)
        before = consumer.messages, consumer.bytes
        consumer.deliver(entries, redeliveries, ack_sets, self._clock.now_ms())
        self.messages += consumer.messages - before[0]
        self.bytes += consumer.bytes - before[1]
        if redeliveries is not None:
            again = sum(e.messages for e, n in zip(entries, redeliveries, strict=True) if n)
            consumer.redelivered += again
            self.redelivered += again
        if consumer.connection.room_bytes <= 0:
            self.dispatcher.perform_all(self.dispatch.connection_full(key))
            consumer.connection.call_when_writable(consumer.writable)

    def _activate(self, key: ConsumerKey, active: bool) -> None:
        self.consumers[key].send_active(active)

    def _room_bytes(self, wanted: int) -> int:
        """Return how many bytes the consumer with the most room can be sent, up to `wanted`."""
        room = 0
        for consumer in self.consumers.values():
            room = max(room, consumer.connection.room_bytes)
            if room >= wanted:  # Nearly always the first consumer has room for all of it.
                break
        return room

    # -- commands of consumers

    def flow(self, consumer: Consumer, messages: int) -> None:
        """Give the consumer permits for so many more messages."""
        if consumer.key not in self.consumers:
            return
        consumer.note_registered()
        self.dispatcher.perform_all(self.dispatch.permits_granted(consumer.key, messages))
        self.dispatcher.wake()

    def writable(self, consumer: Consumer) -> None:
        if consumer.key in self.consumers:
            self.dispatcher.perform_all(self.dispatch.connection_writable(consumer.key))
            self.dispatcher.wake()

    def redeliver(self, consumer: Consumer, places: Sequence[Place], epoch: int | None) -> None:
        """Take entries back from the consumer, to deliver them again; all if none is named."""
        if epoch is not None and epoch > (consumer.epoch or -1):
            consumer.epoch = epoch
        if consumer.key not in self.consumers:
            return
        self.dispatcher.perform_all(self.dispatch.redelivery_requested(consumer.key, places))
        self.dispatcher.wake()

    def ack(self, consumer: Consumer, ack: Ack) -> None:
        """Note in memory what is acknowledged.

        Raise a BrokerError if an entry does not exist, or the acknowledgement is not allowed.  If
        an entry does not exist, the other single entries of the acknowledgement count all the same.
        """
        try:
            self._acks.add(consumer, ack)
        finally:
            if self.topic.terminated:
                self.check_end()

    def when_durable(self, call: OnDurable) -> None:
        """Call back when all acknowledgements so far are durable, or with why they may be lost."""
        self._acks.when_durable(call)

    # -- the end, and moving the cursor

    def begin_removal(self) -> Callable[[], Awaitable[None]]:
        """Remove the subscription, and return a function that waits until its cursor is deleted."""
        return self._begin_removal(self)

    async def move(self, find: Callable[[], Awaitable[Target]]) -> None:
        """Move the cursor to what `find` returns, and forget all acknowledgements.

        Consumers are closed, and find the new place when they come back.
        """
        await self.begin_move(find)()

    def begin_move(self, find: Callable[[], Awaitable[Target]]) -> Callable[[], Awaitable[None]]:
        """Close all consumers, admit no new ones, and return a function that awaits the move.

        The move continues if the caller stops waiting: it is done as a whole, or not begun.  If
        this raises a BrokerError, nothing was done.
        """
        if self._moving is not None:
            raise BrokerError(
                f"another client is moving the subscription {self.name} already: try again"
            )
        self._check_not_gone()
        # Both come before the consumers are closed: else a volatile subscription would be dropped.
        self._moving = trio.Event()
        self._awaits_return = not self.durable
        self.disconnect_all()
        act = partial(self._finish_move, find)
        ended = UnavailableError(
            f"the topic was closed while the subscription {self.name} was moved, so it is unknown"
            " where the subscription stands: try again"
        )
        on_bug = partial(self.topic.has_bug, f"moving the subscription {self.name}")
        return to_the_end(self.topic.start_task, act, over=self._moved, ended=ended, on_bug=on_bug)

    async def _finish_move(self, find: Callable[[], Awaitable[Target]]) -> None:
        try:
            await self._reset(*await find())
        finally:
            if self._awaits_return and not self.gone:
                self.topic.start_task(self._wait_return)

    def _moved(self) -> None:
        moving, self._moving = self._moving, None
        assert moving is not None
        moving.set()

    async def _reset(self, start: Position, pending: int | None) -> None:
        log = self.topic.log
        mark_delete = log.previous_position(max(start, log.next_position(log.before_first)))
        # The number grows even if the clock goes back: no two moves may have the same one.
        self.moved = max(self._clock.now_ms(), (self.moved or 0) + 1)
        try:
            part = (start, pending) if pending else None
            properties = {MOVED: self.moved, **self.view.begin_move(start)}
            await self.cursor.reset(mark_delete, properties, part)
        except ManagedLedgerError as error:
            raise UnavailableError(
                f"the subscription {self.name} could not be moved: {error}"
            ) from error
        finally:
            # In memory the cursor stands there now, even if that could not be stored.
            self._acks.void_deliveries()
            self._redeliveries = {}
            self.dispatcher.restart()

    async def _wait_return(self) -> None:
        """Drop the volatile subscription if no consumer comes back in time."""
        await trio.sleep(self._limits.return_s)
        if self._awaits_return and not self.consumers:
            self.drop()

    async def skip_all(self) -> None:
        """Acknowledge everything up to now, durably."""
        await self.acknowledge(self.topic.log.last_confirmed)

    async def acknowledge(
        self, through: Position | None, part: tuple[Position, int] | None = None
    ) -> None:
        """Acknowledge everything up to `through`, durably, on behalf of an administrator.

        `part` is an entry behind that, and the bits of its messages that stay pending.
        """
        if through is not None:
            self._acks.add_up_to(through)
        if part is not None:
            self._acks.add_part(*part)
        self.dispatcher.wake()  # A consumer may have had too much unacknowledged.
        self.check_end()
        try:
            await self.cursor.flush()
        except ManagedLedgerError as error:
            raise UnavailableError(f"{self.name}: {error}") from error

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties of the subscription, durably."""
        check_properties(f"subscription {self.name}", properties)
        if not self.durable:
            raise NotAllowedError(f"the subscription {self.name} is not durable")
        try:
            await self.cursor.set_labels(properties)
        except ManagedLedgerError as error:
            raise UnavailableError(f"{self.name}: {error}") from error
        self.properties = dict(properties)

    # -- expiring

    @property
    def unused_since_ms(self) -> int:
        """The time since which the subscription certainly has had no consumer."""
        return self._clock.now_ms() if self.consumers or self.moving else self._unused_since_ms

    async def expire(self, before_ms: int) -> int:
        """Acknowledge what was stored before that time, and nothing else; see `skip_to`.

        Raise UnavailableError if entries cannot be read now.
        """
        topic = self.topic
        start = self.cursor.read_start
        young = await topic.logs.first_stored_since(topic.log, start, before_ms)
        return self.skip_to(topic.log.previous_position(young)) if young > start else 0

    def skip_to(self, position: Position) -> int:
        """Acknowledge everything up to a position.

        Return how many messages that were not acknowledged before.  It is 0 if the subscription is
        being moved or removed.
        """
        if self.gone or self.moving or position <= self.cursor.mark_delete:
            return 0
        before = self.backlog.messages
        self._acks.add_up_to(position)
        expired = max(0, before - self.backlog.messages)
        self.expired += expired
        self.expired_ms = self._clock.now_ms()
        self.dispatcher.wake()  # A consumer may have had too much unacknowledged.
        self.check_end()
        return expired

    def check_end(self) -> None:
        """Tell each consumer once if the topic has ended and the subscription is done with it."""
        if not self.topic.terminated:
            return
        # A volatile subscription is done when everything is read, even if not acknowledged.
        if not self.cursor.backlog_entries if self.durable else self.dispatcher.at_end:
            while self._untold:
                self._untold.popitem()[1].send_end_of_topic()


def type_name(kind: int) -> str:
    """Return the name of a subscription type, as policies write it."""
    names = pb.CommandSubscribe.SubType
    return names.Name(kind) if kind in names.values() else str(kind)
