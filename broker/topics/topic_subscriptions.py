"""The subscriptions of a topic: where a new one begins, who joins which, how one is removed."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import trio

from daybook.broker.dispatch.consumer import Consumer, ConsumerConnection
from daybook.broker.dispatch.subscription import Subscription, SubscriptionTopic
from daybook.broker.errors import (
    ConflictError,
    NotAllowedError,
    PreconditionError,
    SubscriptionNotFoundError,
    UnavailableError,
)
from daybook.broker.limits import TopicLimits, check_properties
from daybook.broker.to_the_end import to_the_end
from daybook.broker.topics.topic_log import TopicCursor, translated
from daybook.managed_ledger.errors import InvalidNameError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.records import check_cursor_name
from daybook.wire.clock import WallClock

T = TypeVar("T")
INTERNAL_CURSORS = frozenset({"pulsar.dedup", "__compaction"})
_INTERNAL_PREFIX = "pulsar.repl."


@dataclass(frozen=True, slots=True)
class ConsumerRequest:
    """What a client asks for when it subscribes."""

    consumer_id: int
    subscription: str
    type: int
    name: str = ""
    durable: bool = True
    earliest: bool = False
    start: Position | None = None  # where a volatile one begins: on this entry
    start_offset: int | None = None  # or on the one with this message
    rollback_s: int = 0
    priority: int = 0
    epoch: int | None = None
    metadata: Mapping[str, str] | None = None
    properties: Mapping[str, str] | None = None


class SubscribedTopic(SubscriptionTopic, Protocol):
    """What is needed of the topic."""

    def check_serving(self) -> None:
        """Raises UnavailableError."""
        ...

    def removal_failed(self, error: Exception) -> None:
        """There may be a cursor without its subscription."""
        ...

    async def position_of_time(self, publish_ms: int) -> Position: ...

    async def position_of_offset(self, offset: int) -> Position: ...


class TopicSubscriptions:
    """The durable ones that the log has are there from the beginning."""

    def __init__(
        self, topic: SubscribedTopic, *, limits: TopicLimits, clock: WallClock, keys: Iterator[int]
    ) -> None:
        self.by_name: dict[str, Subscription] = {}
        self._topic = topic
        self._limits = limits
        self._clock = clock
        self._keys = keys
        self._changing: dict[str, trio.Event] = {}  # set when its cursor is created, or deleted
        for name, cursor in topic.log.cursors.items():
            if not is_internal(name):
                self._new(name, cursor, durable=True)

    def __len__(self) -> int:
        return len(self.by_name)

    def get(self, name: str) -> Subscription:
        """Raises SubscriptionNotFoundError."""
        found = self.by_name.get(name)
        if found is None:
            raise SubscriptionNotFoundError(f"{self._topic.name} has no subscription {name}")
        return found

    async def prepare(
        self, request: ConsumerRequest, connection: ConsumerConnection
    ) -> Subscription:
        """The subscription, made if need be, and ready for `join` in this very turn."""
        check_name(request.subscription)
        subscription = await self._get_or_create(request)
        try:
            await subscription.make_way(request.type, connection)
        except UnavailableError:
            if request.durable or not subscription.gone:
                raise
            # It died with a consumer that was dead already; this is a new one.
            subscription = await self._get_or_create(request)
            await subscription.make_way(request.type, connection)
        self._topic.check_serving()
        return subscription

    def join(
        self,
        subscription: Subscription,
        request: ConsumerRequest,
        connection: ConsumerConnection,
    ) -> Consumer:
        """A new consumer.  It is served from its first permits on."""
        consumer = Consumer(
            next(self._keys),
            request.consumer_id,
            request.name,
            connection,
            subscription,
            partition=self._topic.name.partition,
            priority=request.priority,
            epoch=request.epoch,
            metadata=dict(request.metadata or {}),
        )
        subscription.add(consumer, request.type)
        return consumer

    async def _get_or_create(self, request: ConsumerRequest) -> Subscription:
        initial: Position | None = None
        while True:
            await self._wait_changed(request.subscription)
            self._topic.check_serving()
            known = self.by_name.get(request.subscription)
            if known is not None:
                if known.durable != request.durable:
                    kind = "durable" if known.durable else "not durable"
                    raise NotAllowedError(f"the subscription {known.name} is {kind}")
                return known
            if initial is not None:
                break
            initial = await self._initial(request)  # Another one may create it meanwhile.
        if request.durable:
            properties = dict(request.properties or {})
            return await self._create(request.subscription, initial, properties)
        cursor = self._topic.log.new_volatile_cursor(request.subscription, initial)
        return self._new(request.subscription, cursor, durable=False)

    async def create(
        self, name: str, mark_delete: Position, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """A durable one, which begins behind `mark_delete`.  ConflictError if it exists."""
        check_name(name)
        await self._wait_changed(name)
        if name in self.by_name:
            raise ConflictError(f"{self._topic.name} has a subscription {name} already")
        return await self._create(name, mark_delete, dict(properties or {}))

    async def ensure(self, name: str) -> None:
        """Have a durable subscription, from the first message on if it is new."""
        check_name(name)
        await self._wait_changed(name)
        if name not in self.by_name:
            await self._create(name, self._topic.log.before_first, {})

    async def _create(
        self, name: str, mark_delete: Position, properties: dict[str, str]
    ) -> Subscription:
        """There is none of that name, and nothing of that name is being changed.

        What was begun goes on if the one who asked for it stops waiting: the subscription is there
        then, as it is with Pulsar.
        """
        if len(self.by_name) + len(self._changing) >= self._limits.subscriptions_max:
            raise NotAllowedError(f"{self._topic.name} has too many subscriptions")
        check_properties(f"subscription {name}", properties)
        self._topic.check_serving()
        creation = self._changing[name] = trio.Event()
        return await self._to_the_end(
            name, creation, partial(self._finish_creation, name, mark_delete, properties)
        )()

    async def _finish_creation(
        self, name: str, mark_delete: Position, properties: dict[str, str]
    ) -> Subscription:
        with translated(self._topic.name):
            cursor = await self._topic.log.open_cursor(
                name, initial=mark_delete, properties=properties
            )
        self._topic.check_serving()
        return self._new(name, cursor, durable=True, properties=properties)

    def _new(
        self,
        name: str,
        cursor: TopicCursor,
        *,
        durable: bool,
        properties: dict[str, str] | None = None,
    ) -> Subscription:
        subscription = self.by_name[name] = Subscription(
            self._topic,
            name,
            cursor,
            durable=durable,
            limits=self._limits,
            clock=self._clock,
            on_gone=self._forget,
            properties=properties,
        )
        return subscription

    async def _initial(self, request: ConsumerRequest) -> Position:
        """Behind which position a new subscription begins."""
        topic, log = self._topic, self._topic.log
        if request.rollback_s:
            since = self._clock.now_ms() - request.rollback_s * 1000
            return log.previous_position(await topic.position_of_time(since))
        if request.durable:
            return log.before_first if request.earliest else log.last_confirmed
        if request.start_offset is not None:
            return log.previous_position(await topic.position_of_offset(request.start_offset))
        start = request.start
        if start is None:
            return log.last_confirmed
        if start <= log.before_first:
            return log.before_first
        if start <= log.last_confirmed:
            return log.previous_position(start)  # The client drops what it does not want of it.
        return log.before_first if request.earliest else log.last_confirmed

    async def remove(self, subscription: Subscription) -> None:
        """Remove a subscription and its consumers for good."""
        await self.begin_removal(subscription)()

    def begin_removal(self, subscription: Subscription) -> Callable[[], Awaitable[None]]:
        """It is not there any more; what is returned waits until nothing of it is stored.

        Until then nobody gets a new one of that name: it would find the old cursor.
        """
        subscription.drop()
        name, removal = subscription.name, trio.Event()
        before = self._changing.get(name)
        self._changing[name] = removal
        return self._to_the_end(name, removal, partial(self._finish_removal, subscription, before))

    async def _finish_removal(self, subscription: Subscription, before: trio.Event | None) -> None:
        if before is not None:
            await before.wait()
        if subscription.durable:
            try:
                with translated(self._topic.name):
                    await self._topic.log.delete_cursor(subscription.name)
            except UnavailableError as error:
                self._topic.removal_failed(error)
                raise

    def _to_the_end(
        self, name: str, change: trio.Event, act: Callable[[], Awaitable[T]]
    ) -> Callable[[], Awaitable[T]]:
        """Whoever waits for that name goes on when `act` is done."""

        def over() -> None:
            change.set()
            if self._changing.get(name) is change:
                del self._changing[name]

        ended = UnavailableError(f"{self._topic.name} was let go meanwhile, with its {name}")
        return to_the_end(self._topic.nursery, act, over=over, ended=ended)

    async def _wait_changed(self, name: str) -> None:
        """No subscription of that name is being created, and none is being deleted.

        UnavailableError if the change takes long: the store may be away.
        """
        with trio.move_on_after(self._limits.change_s):
            while (change := self._changing.get(name)) is not None:
                await change.wait()
        if name in self._changing:
            raise UnavailableError(f"the subscription {name} is being created or deleted")

    def _forget(self, subscription: Subscription) -> None:
        if self.by_name.get(subscription.name) is subscription:
            del self.by_name[subscription.name]

    def let_go(self) -> None:
        """Tell all clients; nothing that is stored changes."""
        for subscription in list(self.by_name.values()):
            subscription.drop()


def is_internal(cursor: str) -> bool:
    """Is it a cursor of a Pulsar broker's own, and no subscription?"""
    return cursor in INTERNAL_CURSORS or cursor.startswith(_INTERNAL_PREFIX)


def check_name(subscription: str) -> None:
    """Raises BrokerError for a name that no subscription can have."""
    advice = "" if subscription else ": give the subscription a name"
    refusal = PreconditionError(f"no subscription can be called {subscription[:64]!r}{advice}")
    if not subscription.strip() or is_internal(subscription):
        raise refusal
    try:
        check_cursor_name(subscription)
    except InvalidNameError as error:
        raise refusal from error
