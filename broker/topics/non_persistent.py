"""Non-persistent topics: messages go to the consumers that are there, and nothing is stored.

A message is received, answered with the id 0:0, and given to every subscription at the end of the
same turn of the event loop.  A subscription sends it to a consumer or drops it.  So no message ever
waits in the broker except in the queue of a client that reads, which has a bound, and a producer is
never slower than its own connection.

A topic exists on the broker that owns its bundle, from its first producer or consumer on.  One that
nobody uses is forgotten after a while.  Partitioned ones have a record with their number of
partitions; the rest of a topic is memory.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial

import trio

from daybook.broker.connected_client import NO_SUCCESSOR, ConnectedClient, SuccessorUrls
from daybook.broker.dispatch.consumer import Consumer
from daybook.broker.dispatch.entries import Payload
from daybook.broker.dispatch.non_persistent import NonPersistentSubscription
from daybook.broker.errors import (
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
    PreconditionError,
    SubscriptionNotFoundError,
    UnavailableError,
)
from daybook.broker.limits import TopicLimits
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.bundles import BundleName, contains
from daybook.broker.protocol.dispatch.interface import Entry
from daybook.broker.protocol.publish_rate import PublishRateLimit
from daybook.broker.topics.bugs import TopicBugs
from daybook.broker.topics.producer import Producer
from daybook.broker.topics.publish_limits import PublishLimits
from daybook.broker.topics.rates import Counters, OutCounters, Rates
from daybook.broker.topics.topic_producers import TopicProducers
from daybook.broker.topics.topic_subscriptions import (
    ConsumerRequest,
    check_consumer,
    check_name,
    check_reader,
)
from daybook.managed_ledger.position import Position
from daybook.wire.clock import WallClock
from daybook.wire.topics import TopicName

_NO_PLACE = Position(0, 0)
_TURN_ENTRIES = 128  # With more, or with more bytes, they are given to the subscriptions at once.
_TURN_BYTES = 1 << 20
_TURN_DELIVERIES = 1_000  # caused by one connection; then other tasks run


class NonPersistentTopic:
    """One topic.  `start_task` runs a short task that nobody waits for.

    `run` runs such a task so that a bug ends the topic only, and `on_bug` is told of other bugs.
    """

    deduplication = None
    quotas = None  # it stores nothing and has no backlog
    termination = None  # it cannot be terminated
    stored_epoch: int | None = None

    def __init__(
        self,
        name: TopicName,
        *,
        limits: TopicLimits,
        clock: WallClock,
        keys: Iterator[int],
        policies: EffectivePolicies,
        published_by_broker: PublishRateLimit | None = None,
        start_task: Callable[..., None],
        run: Callable[..., Awaitable[None]],
        on_bug: Callable[["NonPersistentTopic", str, Exception], None],
    ) -> None:
        self.name = name
        self.limits = limits
        self.clock = clock
        self.keys = keys
        self.policies = policies
        self.start_task = partial(start_task, run, self)
        self._on_bug = on_bug
        self.successor = NO_SUCCESSOR  # where a close sends the clients
        self.closing = self.closed = False
        self.messages = 0
        self.bytes = 0
        self.chunks = 0
        self.entries = 0
        self.rates = Rates()
        self.used_s = trio.current_time()  # when somebody was last seen to use it
        self._publish_limits = PublishLimits(policies.publish_rate, published_by_broker)
        self._arrived: list[Entry] = []
        self._sizes: list[int] = []
        self._arrived_bytes = 0
        self._deliveries = 0  # since the last pause
        self.producers = TopicProducers(self)
        self.subscriptions = NonPersistentSubscriptions(self)

    # -- what producers and their clients ask

    @property
    def in_use(self) -> bool:
        """True if a producer or a consumer is connected."""
        return bool(len(self.producers)) or bool(self.subscriptions.by_name)

    async def wait_termination_decided(self) -> None:
        await trio.lowlevel.checkpoint()

    def check_serving(self) -> None:
        """Raise UnavailableError if the topic is closed."""
        if self.closing:
            raise UnavailableError(f"{self.name} is being closed by this broker: look it up again")

    check_open = check_serving

    async def store_epoch(self, epoch: int) -> None:
        """Do nothing: the epoch of the topic is forgotten with the topic."""

    def apply_policies(self, policies: EffectivePolicies) -> None:
        self._publish_limits.apply(policies.publish_rate)
        self.policies = policies

    def append(
        self, payload: memoryview, messages: int, producer: Producer, *, is_chunk: bool
    ) -> None:
        """Answer the message, and give it to the subscriptions at the end of this turn."""
        size = len(payload)
        self.entries += 1
        self.messages += messages
        self.chunks += is_chunk
        self.bytes += size
        self._publish_limits.take(messages, size)
        producer.stored(_NO_PLACE, None)
        subscriptions = len(self.subscriptions.by_name)
        if not subscriptions:
            return
        if not self._arrived:
            producer.connection.call_at_flush(self.deliver)
        # The copy is shared by all subscriptions: a view would pin the buffer of the connection.
        self._arrived.append(Entry((0, 0), messages, Payload(memoryview(bytes(payload)), 0)))
        self._sizes.append(size)
        self._arrived_bytes += size
        self._deliveries += subscriptions
        if self._deliveries >= _TURN_DELIVERIES:
            self._deliveries = 0
            producer.connection.yield_soon()
        if len(self._arrived) >= _TURN_ENTRIES or self._arrived_bytes >= _TURN_BYTES:
            self.deliver()

    def has_bug(self, doing: str, bug: Exception) -> None:
        """Drop the topic after an error that nobody expected."""
        self._on_bug(self, doing, bug)

    def append_failed(self, error: Exception) -> None:
        raise AssertionError("nothing is stored, so nothing can fail") from error

    def deliver(self) -> None:
        """Give what has arrived to all subscriptions."""
        try:
            self._deliver()
        except Exception as bug:  # The caller works for all connections of the broker.
            self.has_bug("delivering messages", bug)

    def _deliver(self) -> None:
        entries, self._arrived = self._arrived, []
        sizes, self._sizes = self._sizes, []
        self._arrived_bytes = 0
        if entries:
            now_ms = self.clock.now_ms()
            for subscription in list(self.subscriptions.by_name.values()):
                subscription.deliver(entries, sizes, now_ms)

    @property
    def has_room(self) -> bool:
        """Return False, because `wait_room` lets other tasks run, whatever the policies allow."""
        return False

    async def wait_room(self) -> None:
        """Wait until the policies allow more messages."""
        await trio.lowlevel.checkpoint()
        await self._publish_limits.wait_room(lambda: self.closing)

    # -- numbers

    def tick_rates(self, now_s: float) -> None:
        """Compute the rates of the period that ends now."""
        out = {
            name: OutCounters(s.messages, s.bytes, s.dropped)
            for name, s in self.subscriptions.by_name.items()
        }
        self.rates.tick(Counters(self.messages, self.bytes, out), now_s)
        if self.in_use:
            self.used_s = now_s

    # -- the end

    def drop(self) -> None:
        """Close the topic, and tell its clients."""
        if not self.closed:
            # The flags are set first: closing a producer runs callbacks, which see a closed topic.
            self.closing = self.closed = True
            self.deliver()
            self.producers.close(
                UnavailableError(f"this broker no longer serves {self.name}: look it up again")
            )
            self.subscriptions.close()


class NonPersistentSubscriptions:
    """The subscriptions of one topic, each as long as it has consumers."""

    def __init__(self, topic: NonPersistentTopic) -> None:
        self.by_name: dict[str, NonPersistentSubscription] = {}
        self._topic = topic

    def get(self, name: str) -> NonPersistentSubscription:
        """Return the subscription.  Raise SubscriptionNotFoundError if there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise SubscriptionNotFoundError(f"{self._topic.name} has no subscription {name}")
        return found

    async def ensure(self, name: str) -> None:
        """Check the name: a subscription without consumers does not exist."""
        await trio.lowlevel.checkpoint()
        check_name(name)

    async def prepare(
        self, request: ConsumerRequest, connection: ConnectedClient
    ) -> NonPersistentSubscription:
        """Return the subscription, ready for a new consumer.

        The caller has to `join` it before its next checkpoint.
        """
        topic = self._topic
        check_name(request.subscription)
        consumers = sum(len(s.consumers) for s in self.by_name.values())
        check_consumer(topic.name, topic.policies, request.type, consumers)
        while True:
            topic.check_serving()
            subscription = self.by_name.get(request.subscription)
            if subscription is None:
                limit = topic.limits.subscriptions_max
                if len(self.by_name) >= limit:
                    raise NotAllowedError(
                        f"{topic.name} has {limit} subscriptions, which is the limit: close unused"
                        " ones"
                    )
                subscription = NonPersistentSubscription(
                    topic, request.subscription, on_gone=self._forget
                )
                subscription.reader_of = request.reader_of
                self.by_name[request.subscription] = subscription
            check_reader(request, subscription.name, subscription.reader_of)
            try:
                await subscription.make_way(request.type, connection, request.keys)
            except UnavailableError:
                if not subscription.gone or topic.closing:
                    raise
                continue  # Its last consumer was dead, and has taken it along.
            except BaseException:
                subscription.drop_if_unused()
                raise
            return subscription

    def join(
        self,
        subscription: NonPersistentSubscription,
        request: ConsumerRequest,
        connection: ConnectedClient,
    ) -> Consumer:
        """Add a consumer, which is served from its first permits on."""
        consumer = Consumer(
            next(self._topic.keys),
            request.consumer_id,
            request.name,
            connection,
            subscription,
            partition=self._topic.name.partition,
            priority=request.priority,
            epoch=request.epoch,
            metadata=dict(request.metadata or {}),
            keys=request.keys,
            schema_type=request.schema_type,
        )
        subscription.add(consumer, request.type)
        return consumer

    def _forget(self, subscription: NonPersistentSubscription) -> None:
        if self.by_name.get(subscription.name) is subscription:
            del self.by_name[subscription.name]

    def close(self) -> None:
        for subscription in list(self.by_name.values()):
            subscription.drop()


class NonPersistentTopics:
    """The non-persistent topics of one broker.  `run` belongs in its nursery."""

    def __init__(
        self,
        policies: Policies,
        *,
        clock: WallClock,
        limits: TopicLimits,
        published_by_broker: PublishRateLimit | None = None,
        keys: Iterator[int],
        owns: Callable[[TopicName], bool],
        may_load: Callable[[TopicName], bool],
        idle_s: float,
        bugs: TopicBugs,
    ) -> None:
        self._policies = policies
        self._clock = clock
        self._published_by_broker = published_by_broker
        self._limits = limits
        self._keys = keys
        self._owns = owns
        self._may_load = may_load
        self._idle_s = idle_s
        self._bugs = bugs
        self._loaded: dict[str, NonPersistentTopic] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await trio.sleep(self._idle_s)
                    self._forget_unused()
            finally:
                self._nursery = None

    def _forget_unused(self) -> None:
        """Drop the topics that nobody has used for a while, which would fill the memory."""
        now_s = trio.current_time()
        for topic in list(self._loaded.values()):
            with self._contained(topic, "looking if somebody uses it"):
                if topic.in_use:
                    topic.used_s = now_s
                elif now_s - topic.used_s >= self._idle_s:
                    self._drop(topic)

    def _contained(self, topic: NonPersistentTopic, doing: str) -> AbstractContextManager[None]:
        return self._bugs.contained(topic.name, doing, lambda _: self._drop(topic))

    async def _run(
        self, topic: NonPersistentTopic, task: Callable[..., Awaitable[None]], *args: object
    ) -> None:
        with self._contained(topic, "serving it"):
            await task(*args)

    def _has_bug(self, topic: NonPersistentTopic, doing: str, bug: Exception) -> None:
        with self._contained(topic, doing):
            raise bug

    # -- properties

    @property
    def loaded(self) -> Mapping[str, NonPersistentTopic]:
        """The topics that are served, by full name."""
        return self._loaded

    def names_in(self, namespace: str) -> set[str]:
        """Return the full names of the topics that this broker serves in a namespace."""
        return {t.name.full for t in self._loaded.values() if t.name.namespace == namespace}

    async def exists(self, name: TopicName) -> bool:
        return name.full in self._loaded or await self._is_partition(name)

    async def _is_partition(self, name: TopicName) -> bool:
        if name.partition < 0:
            return False
        return name.partition < await self._policies.partitions(name.base)

    # -- topics

    async def get(self, name: TopicName, *, create: bool) -> NonPersistentTopic:
        """Return the topic.  With `create`, or for a partition, it is made if there is none.

        Raise NotFoundError, NotOwnerError or another BrokerError.
        """
        if not self._may_load(name):
            raise NotOwnerError(f"this broker does not serve {name}: look it up again")
        policies = await self._policies.effective(name)
        topic = self._loaded.get(name.full)
        if topic is None:
            await self._check_creation(name, create=create)
            if not self._owns(name):
                raise NotOwnerError(f"this broker lost {name}: look it up again")
            topic = self._loaded.get(name.full) or self._open(name, policies)
        topic.apply_policies(policies)
        topic.check_serving()
        return topic

    def _open(self, name: TopicName, policies: EffectivePolicies) -> NonPersistentTopic:
        if self._nursery is None:
            raise UnavailableError("this broker is starting, or ending: try again")
        topic = self._loaded[name.full] = NonPersistentTopic(
            name,
            limits=self._limits,
            clock=self._clock,
            keys=self._keys,
            policies=policies,
            published_by_broker=self._published_by_broker,
            start_task=self._nursery.start_soon,
            run=self._run,
            on_bug=self._has_bug,
        )
        return topic

    async def _check_creation(self, name: TopicName, *, create: bool) -> None:
        """Raise a BrokerError if there can be no such topic."""
        partitions = await self._policies.partitions(name.base)
        if name.partition < 0 and partitions:
            raise NotAllowedError(
                f"{name} has {partitions} partitions: name one of them, such as {name}-partition-0"
            )
        if 0 <= name.partition >= partitions:
            # Another broker may have just added it.
            partitions = await self._policies.newest_partitions(name.base)
        if 0 <= name.partition >= partitions:
            how_many = f"only {partitions}" if partitions else "no"
            raise NotAllowedError(f"{name} does not exist: {name.base} has {how_many} partitions")
        if name.partition < 0 and not create:
            raise NotFoundError(f"the topic {name} does not exist")
        if (await self._policies.namespace(name.namespace)).deleted:
            raise NotFoundError(f"the namespace {name.namespace} is being deleted")

    # -- the end of topics

    def close(self, name: TopicName) -> None:
        """Close a topic: its clients are told, and come back.  Nothing happens without it."""
        topic = self._loaded.get(name.full)
        if topic is not None:
            self._drop(topic)

    def delete(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic.  Raise PreconditionError while it is in use, unless `force` is set."""
        topic = self._loaded.get(name.full)
        if topic is None:
            raise NotFoundError(f"the topic {name} does not exist")
        if topic.in_use and not force:
            raise PreconditionError(
                f"{name} has producers or consumers that are connected: close them, or use force"
            )
        self._drop(topic)

    def close_bundle(self, bundle: BundleName, to: SuccessorUrls = NO_SUCCESSOR) -> None:
        """Close the topics in the range of the bundle, and send their clients to a broker."""
        for topic in list(self._loaded.values()):
            if contains(bundle, topic.name.namespace, topic.name.bundle_hash):
                topic.successor = to
                self._drop(topic)

    def close_all(self) -> None:
        for topic in list(self._loaded.values()):
            self._drop(topic)

    def _drop(self, topic: NonPersistentTopic) -> None:
        if self._loaded.get(topic.name.full) is topic:
            del self._loaded[topic.name.full]
        topic.drop()
