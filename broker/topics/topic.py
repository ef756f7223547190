"""A topic: producers and subscriptions over one log.

    SERVING --close--> CLOSING --> CLOSED
       +-----drop, or the log failed-+

A close is orderly: the topic accepts no more sends, stores and receipts the outstanding ones, tells
the clients, stores the cursors and closes the log.  A drop is immediate: clients are told that
their producers and consumers are closed, and nothing else is sent.  In particular, a send that the
log could not confirm is *in doubt*: it gets neither a receipt nor an error.

A topic can also be terminated.  It then still serves its consumers, and accepts no more messages.
Outstanding sends are stored and receipted.  Sends that arrive meanwhile get no answer until either
the log has ended or the termination has failed.

A topic has three parts: `Topic` has the log and its life, `TopicSubscriptions` creates and removes
subscriptions, and `TopicProducers`, in `topic_producers`, decides who may produce.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from daybook.broker.compaction.topic_compaction import Compactions, TopicCompaction
from daybook.broker.connected_client import NO_SUCCESSOR, ConnectedClient
from daybook.broker.dispatch.consumer import Consumer
from daybook.broker.dispatch.entries import delivered_head
from daybook.broker.dispatch.subscription import BEFORE_LOG, Subscription, type_name
from daybook.broker.dispatch.unacked_limit import UnackedLimit
from daybook.broker.errors import (
    BrokerError,
    ConflictError,
    ConsumerBusyError,
    NotAllowedError,
    PreconditionError,
    SubscriptionNotFoundError,
    TopicTerminatedError,
    UnavailableError,
)
from daybook.broker.limits import TopicLimits, check_properties
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.dispatch.key_shared import KeyPolicy
from daybook.broker.protocol.publish_rate import PublishRateLimit
from daybook.broker.sinks.topic_sinks import TopicSinks
from daybook.broker.to_the_end import to_the_end
from daybook.broker.topics.backlog_quota import BacklogQuotas
from daybook.broker.topics.deduplication import Deduplication
from daybook.broker.topics.producer import Producer
from daybook.broker.topics.publish_limits import PublishLimits
from daybook.broker.topics.rate_limits import TopicRateLimits
from daybook.broker.topics.rates import Counters, OutCounters, Rates
from daybook.broker.topics.topic_log import Done, TopicCursor, TopicLog, TopicLogs, translated
from daybook.broker.topics.topic_producers import TopicProducers
from daybook.managed_ledger.behind import EntryStart
from daybook.managed_ledger.errors import InvalidNameError
from daybook.managed_ledger.offsets import LedgerOffsets
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.records import check_cursor_name
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.managed_ledger.traffic import NO_TRAFFIC, Traffic
from daybook.wire.clock import WallClock
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from daybook.wire.transport import Buffer

T = TypeVar("T")
_BACKLOG_READS_S = 2.0  # for reads that only make the statistics exact
INTERNAL_CURSORS = frozenset({"pulsar.dedup", "__compaction"})
_INTERNAL_PREFIX = "pulsar.repl."


class _Termination:
    """One attempt to terminate a topic, and the tasks that wait for its outcome."""

    def __init__(self) -> None:
        self._decided = trio.Event()
        self._outcome: Position | BrokerError | None = None

    def decide(self, outcome: Position | BrokerError) -> None:
        """Set the outcome: the position of the last message, or why the topic continues."""
        assert self._outcome is None
        self._outcome = outcome
        self._decided.set()

    async def wait_decided(self) -> None:
        await self._decided.wait()

    async def outcome(self) -> Position:
        """Return the last position.  Raise a BrokerError if the topic continues."""
        await self._decided.wait()
        assert self._outcome is not None
        if isinstance(self._outcome, BrokerError):
            raise self._outcome
        return self._outcome


class Topic:
    """One loaded topic.  `run` belongs in the nursery of `Topics`.

    `policies` are those in force now; `apply_policies` replaces them.  `deduplication` is None if
    it is switched off for this topic.  `on_failed` is called at most once, if the log fails.
    `on_bug` is told of errors that nobody expected, with what the topic was doing.
    """

    def __init__(
        self,
        name: TopicName,
        log: TopicLog,
        logs: TopicLogs,
        *,
        limits: TopicLimits,
        clock: WallClock,
        keys: Iterator[int],
        compactions: Compactions,
        unacked: UnackedLimit,
        policies: EffectivePolicies,
        published_by_broker: PublishRateLimit | None = None,
        deduplication: Deduplication | None = None,
        sinks: Sinks | None = None,
        on_failed: Callable[["Topic", Exception], None],
        on_bug: Callable[["Topic", str, Exception], None],
    ) -> None:
        self.name = name
        self.log = log
        self.logs = logs
        self.limits = limits
        self.unacked = unacked
        self.clock = clock
        self.policies = policies
        self._publish_limits = PublishLimits(policies.publish_rate, published_by_broker)
        self.deduplication = deduplication
        self.keys = keys  # numbers for producers and consumers, none of which is used twice
        self.closing = False  # for good, from the begin of a close or a drop on
        self.successor = NO_SUCCESSOR  # where a close sends the clients
        self.closed = False
        self.terminated = logs.is_terminated(log)
        self.termination: _Termination | None = None  # set while the outcome is open
        self.messages = 0
        self.bytes = 0
        self.chunks = 0
        self.rates = Rates()
        self.traffic: Traffic = NO_TRAFFIC  # the last whole minute
        self.rate_limits = TopicRateLimits(policies, self.rates)
        self.quotas = BacklogQuotas(self)
        self.used_ms = clock.now_ms()  # somebody was connected then, or the topic was loaded
        self.asked_s = trio.current_time()  # somebody asked for the topic then, or was connected
        self._on_failed = on_failed
        self._on_bug = on_bug
        self._call_when_appended: dict[Callable[[], None], None] = {}
        self._nursery: trio.Nursery | None = None
        self._failed = False
        self.compaction = TopicCompaction(name, log, logs, compactions, self.start_task)
        self.producers = TopicProducers(self)
        self.subscriptions = TopicSubscriptions(self)
        self.sinks = None if sinks is None else TopicSinks(self, sinks)
        log.on_fenced = self._fenced
        log.on_confirmed = self._confirmed
        log.on_bug = partial(on_bug, self, "looking after its log")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.deduplication is not None:
                nursery.start_soon(self.deduplication.run)
            if self.sinks is not None:
                nursery.start_soon(self.sinks.look)
            task_status.started()
            try:
                # The log may have been lost before: `_finish` found no nursery to cancel.
                if not self.closed:
                    await trio.sleep_forever()
            finally:
                # A broker that is cancelled closes no topic.  The topic is dropped before its
                # nursery ends, because a client that leaves later must find no open topic: it
                # could start no task any more.
                self.drop()

    def start_task(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task until the topic is closed."""
        assert self._nursery is not None
        self._nursery.start_soon(task, *args)

    @property
    def serving(self) -> bool:
        return not self.closing

    async def wait_termination_decided(self) -> None:
        """Return when no termination is under way, whatever its outcome was."""
        while self.termination is not None:
            await self.termination.wait_decided()

    @property
    def in_use(self) -> bool:
        """True if a producer or a consumer is connected."""
        subscriptions = self.subscriptions.by_name.values()
        return bool(len(self.producers)) or any(s.consumers for s in subscriptions)

    @property
    def is_held(self) -> bool:
        """True if somebody is connected, or is about to be."""
        subscriptions = self.subscriptions
        arriving = self.producers.arriving or subscriptions.arriving
        # A volatile subscription without consumers waits for them to come back.
        volatile = any(not each.durable for each in subscriptions.by_name.values())
        return bool(arriving) or volatile or self.in_use

    @property
    def is_busy(self) -> bool:
        """True if something is under way that a close would interrupt."""
        changing = self.subscriptions.changing or self.termination is not None
        applying = self.sinks is not None and self.sinks.active
        return changing or applying or self.compaction.running or bool(self.log.pending_bytes)

    @property
    def remembers(self) -> bool:
        """True if it knows how often messages were redelivered, which is stored nowhere."""
        return any(s.remembers_redeliveries for s in self.subscriptions.by_name.values())

    def check_serving(self) -> None:
        """Raise UnavailableError if the topic is being closed."""
        if self.closing:
            raise UnavailableError(f"{self.name} is being closed by this broker: look it up again")

    def check_open(self) -> None:
        """Raise a BrokerError if the topic accepts no producers."""
        self.check_serving()
        if self.terminated:
            raise TopicTerminatedError(f"{self.name} is terminated: it takes no messages any more")

    @property
    def stored_epoch(self) -> int | None:
        """The epoch that an exclusive producer has stored; None if there never was one."""
        return self.logs.epoch_of(self.log)

    async def store_epoch(self, epoch: int) -> None:
        with translated(self.name):
            await self.logs.store_epoch(self.log, epoch)

    def apply_policies(self, policies: EffectivePolicies) -> None:
        """Serve by other policies from now on.

        Producers, consumers and subscriptions that are there stay, also if there are too many.
        """
        self._publish_limits.apply(policies.publish_rate)
        if policies.inactive_topics != self.policies.inactive_topics:
            self.used_ms = self.clock.now_ms()
        self.rate_limits.apply(policies)  # before the subscriptions, which share them
        self.policies = policies
        for subscription in self.subscriptions.by_name.values():
            subscription.apply_policies(policies)

    # -- appending

    def append(
        self, payload: memoryview, messages: int, producer: Producer, *, is_chunk: bool
    ) -> None:
        """Append an entry; the log reports the result to `producer.stored`."""
        self.messages += messages
        self.chunks += is_chunk
        self.bytes += len(payload)
        self._publish_limits.take(messages, len(payload))
        self.log.append((payload,), messages, producer.stored)

    def append_for_sink(self, payload: Sequence[Buffer], messages: int, done: Done) -> None:
        """Append an entry of a committed batch of a sink, whatever the policies say."""
        self.messages += messages
        self.bytes += sum(map(len, payload))
        self.log.append(payload, messages, done)

    async def wait_room(self) -> None:
        """Wait until the log takes more entries, and the policies allow more."""
        await self.log.wait_room()
        await self._publish_limits.wait_room(lambda: self.closing)

    def _confirmed(self) -> None:
        """Wake the readers.

        The log reports this itself.  A producer could be closed between its append and the
        confirmation, and would then not report it.
        """
        if self._call_when_appended:
            calls, self._call_when_appended = self._call_when_appended, {}
            for call in calls:
                call()

    def call_when_appended(self, call: Callable[[], None]) -> None:
        """Call once, when the next entry is confirmed.  Asking twice makes one call."""
        self._call_when_appended[call] = None
        self.log.await_next()

    def append_failed(self, error: Exception) -> None:
        """Give the topic up, because its log takes no more entries."""
        self._fail(error)

    def has_bug(self, doing: str, bug: Exception) -> None:
        """Give the topic up after an error that nobody expected: its state may be half changed."""
        self._on_bug(self, doing, bug)

    def removal_failed(self, error: Exception) -> None:
        """Give the topic up, because a removed subscription may still have its cursor.

        The next loading of the topic finds that cursor.
        """
        if self.serving:
            self._fail(error)

    def _fenced(self) -> None:
        self._fail(UnavailableError(f"another broker took over {self.name}: look it up again"))

    def _fail(self, error: Exception) -> None:
        if not self._failed and not self.closed:
            self._failed = True
            self._on_failed(self, error)

    # -- numbers

    def tick_rates(self, now_s: float) -> None:
        """Compute the rates of the period that ends now."""
        out = {
            name: OutCounters(s.messages, s.bytes, s.redelivered, s.expired)
            for name, s in self.subscriptions.by_name.items()
        }
        self.rates.tick(Counters(self.messages, self.bytes, out), now_s)
        self.traffic = self.log.traffic.take()
        self.rate_limits.dispatch.follow()
        for subscription in self.subscriptions.by_name.values():
            subscription.dispatch_rate.follow()
            if subscription.dispatcher.rates is not None:
                subscription.dispatcher.wake()  # It may sleep for as long as a lower rate asks.

    def internal_stats(self) -> dict[str, object]:
        return self.logs.internal_stats(self.log)

    async def read_backlogs(self) -> None:
        """Make the backlogs exact, as far as a few quick reads allow."""
        with trio.move_on_after(_BACKLOG_READS_S):
            for subscription in list(self.subscriptions.by_name.values()):
                with suppress(BrokerError):  # Its backlog stays an estimate.
                    await subscription.read_backlog()

    # -- positions

    async def position_of_time(self, publish_ms: int) -> Position:
        with translated(self.name):
            return await self.logs.position_of_time(self.log, publish_ms)

    async def position_of_offset(self, offset: int) -> Position:
        with translated(self.name):
            return await self.logs.position_of_offset(self.log, offset)

    def position_of_id(self, position: Position) -> Position:
        """Return the position itself, or the next one that exists.

        The result is never before the first entry, and at most directly behind the last one.
        """
        log = self.log
        first = log.next_position(log.before_first)
        if position <= first:
            return first
        if position > log.last_confirmed:
            return log.next_position(log.last_confirmed)
        return log.next_position(log.previous_position(position))

    async def entry_start(self, position: Position) -> EntryStart | None:
        """Return where an entry begins; None if there is none, or no longer."""
        with translated(self.name):
            return await self.logs.entry_start(self.log, position)

    async def recount(self, cursor: TopicCursor) -> None:
        """Count the entries of a cursor whose size is not known, by reading them."""
        with translated(self.name):
            await self.logs.recount(self.log, cursor)

    async def first_offset(self) -> int:
        with translated(self.name):
            return await self.logs.first_offset(self.log)

    async def sealed_offsets(self) -> list[LedgerOffsets]:
        """Return the sealed ledgers that hold messages, in order, with their offsets."""
        with translated(self.name):
            return await self.logs.sealed_offsets(self.log)

    async def last_message(self) -> tuple[Position, int] | None:
        """Return the last entry and the index of its last message, or None if the log is empty.

        The index is -1 if the entry is not a batch.
        """
        log = self.log
        last = log.last_confirmed
        if last.entry_id < 0 or log.next_position(log.before_first) > last:
            return None
        with translated(self.name):
            found = await log.read(last, max_entries=1, max_bytes=1)
        if not found:
            return None
        head = delivered_head(found[0].data)
        return found[0].position, head.messages - 1 if head.is_batch else -1

    async def messages_of(self, position: Position) -> int:
        """Return how many messages an entry has; 0 if it is not there, or no longer."""
        log = self.log
        if not log.before_first < position <= log.last_confirmed:
            return 0
        with translated(self.name):
            found = await log.read(position, max_entries=1, max_bytes=1)
        if not found or found[0].position != position:
            return 0
        return delivered_head(found[0].data).messages

    # -- terminating

    async def terminate(self) -> Position:
        """Accept no more messages, and return the position of the last one.

        A termination that has begun continues even if its caller stops waiting.
        """
        self.check_serving()
        if self.termination is None:
            self.termination = _Termination()
            self.start_task(self._terminate, self.termination)
        return await self.termination.outcome()

    async def _terminate(self, termination: _Termination) -> None:
        outcome: Position | BrokerError = UnavailableError(f"{self.name} is being closed")
        try:
            with translated(self.name):
                outcome = await self.logs.terminate(self.log)
        except BrokerError as error:
            outcome = error
        finally:  # Also if the topic ends: every caller of `terminate` gets an outcome.
            # No task runs between these steps, so no send sees one without the others.
            self.termination = None
            if isinstance(outcome, BrokerError):
                self.producers.resume()
            else:
                self._ended()
            termination.decide(outcome)

    def _ended(self) -> None:
        self.terminated = True
        self.producers.end(TopicTerminatedError(f"{self.name} is terminated"))
        for subscription in list(self.subscriptions.by_name.values()):
            subscription.check_end()

    # -- the end

    async def release_stored(self) -> None:
        """Have the topic's own cursors need nothing of what is stored, so that it can be dropped.

        Raise a BrokerError, a ManagedLedgerError or a LedgerError if that is not durable.
        """
        await self.compaction.forget()
        if self.deduplication is not None:
            await self.deduplication.flush()

    async def close(self) -> None:
        """Close the topic in order.  Raise UnavailableError if the log cannot be closed."""
        if not await self._quiesce():
            return
        try:
            await self.compaction.stop()
            with translated(self.name):
                if self.deduplication is not None:
                    self.deduplication.store()
                await self.log.close()
        except BaseException:
            self.log.abandon()
            raise
        finally:
            self._finish()

    async def delete(self, *, unless_used: Callable[["Topic"], bool] | None = None) -> None:
        """Close the topic and delete everything that is stored of it.

        `unless_used` returns True if the topic is in use after all, which is known for sure only
        here.  Then the topic is closed, and nothing is deleted.
        """
        used = unless_used is not None and unless_used(self)
        if not await self._quiesce():
            return
        log = self.log
        # All messages that came before the producers were disconnected are stored now.
        used = used or log.next_position(log.before_first) <= log.last_confirmed
        used = used or bool(log.pending_bytes)
        try:
            await self.compaction.stop()
            with translated(self.name):
                if unless_used is not None and used:
                    await log.close()
                    return
                await self.logs.delete(log)
            await self.compaction.delete()
        except BaseException:
            self.log.abandon()
            raise
        finally:
            self._finish()

    async def _quiesce(self) -> bool:
        """Store what is outstanding, then disconnect all clients.

        Return False if the topic was closed or dropped by someone else.
        """
        if self.closing:
            return False
        self.closing = True
        with trio.move_on_after(self.limits.drain_s):
            for producer in list(self.producers.by_name.values()):
                await producer.wait_drained()
        self._disconnect_clients()
        return not self.closed  # A drop may have come while the producers were drained.

    def drop(self) -> None:
        """Close the topic at once, without touching anything that is stored."""
        if not self.closed:
            self.log.abandon()
            self._finish()

    def _finish(self) -> None:
        if not self.closed:
            # The flags are set first: closing a producer runs callbacks, which see a closed topic.
            self.closing = self.closed = True
            self._disconnect_clients()
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()

    def _disconnect_clients(self) -> None:
        self.producers.close(
            UnavailableError(f"this broker no longer serves {self.name}: look it up again")
        )
        self.subscriptions.close()


# -- subscriptions


@dataclass(frozen=True, slots=True)
class ConsumerRequest:
    """The properties of a consumer that a client asks for."""

    consumer_id: int
    subscription: str
    type: int
    name: str = ""
    durable: bool = True
    earliest: bool = False
    start: Position | None = None  # the entry at which a volatile subscription begins
    start_offset: int | None = None  # or the message at which it begins
    rollback_s: int = 0
    priority: int = 0
    epoch: int | None = None
    metadata: Mapping[str, str] | None = None
    properties: Mapping[str, str] | None = None
    read_compacted: bool = False
    resumes: bool = False  # the reader goes on behind `start`, which it has received
    schema_type: int = pb.Schema.NoSchema
    keys: KeyPolicy | None = None  # for a key_shared consumer
    creates: bool = True  # the topic and a durable subscription, if they do not exist


class TopicSubscriptions:
    """The subscriptions of one topic.

    The durable ones whose cursors the log has are there from the beginning.
    """

    def __init__(self, topic: Topic) -> None:
        self.by_name: dict[str, Subscription] = {}
        self.arriving = 0  # consumers for which a subscription is being made ready
        self._topic = topic
        # By name: set when the cursor is created or deleted.  Two tasks must not open the same one.
        self._changing: dict[str, trio.Event] = {}
        for name, cursor in topic.log.cursors.items():
            if not is_internal(name):
                self._new(name, cursor, durable=True)

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def changing(self) -> bool:
        """True while a subscription is being created or deleted."""
        return bool(self._changing)

    def get(self, name: str) -> Subscription:
        """Return the subscription.  Raise SubscriptionNotFoundError if there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise SubscriptionNotFoundError(f"{self._topic.name} has no subscription {name}")
        return found

    async def prepare(self, request: ConsumerRequest, connection: ConnectedClient) -> Subscription:
        """Return the subscription, created if necessary, and ready for a new consumer.

        The caller has to `join` it before its next checkpoint.
        """
        self.arriving += 1
        try:
            return await self._prepare(request, connection)
        finally:
            self.arriving -= 1

    async def _prepare(self, request: ConsumerRequest, connection: ConnectedClient) -> Subscription:
        check_name(request.subscription)
        self._topic.rate_limits.check_subscribe(connection, request.name, request.consumer_id)
        self._check_consumers(request)
        subscription = await self._get_or_create(request)
        try:
            try:
                await subscription.make_way(request.type, connection, request.keys)
            except UnavailableError:
                if request.durable or not subscription.gone:
                    raise
                # A volatile subscription is removed together with its last consumer.  Here the
                # last consumer was dead and has just been removed, so a new subscription takes
                # its place.
                subscription = await self._get_or_create(request)
                await subscription.make_way(request.type, connection, request.keys)
            self._topic.check_serving()
            self._check_consumers(request)
        except BaseException:
            subscription.drop_if_unused()  # Nobody else would ever remove a volatile one.
            raise
        return subscription

    def _check_consumers(self, request: ConsumerRequest) -> None:
        """Raise a BrokerError if the policies do not allow this consumer now."""
        consumers = sum(len(s.consumers) for s in self.by_name.values())
        check_consumer(self._topic.name, self._topic.policies, request.type, consumers)

    def join(
        self,
        subscription: Subscription,
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
            read_compacted=request.read_compacted,
            schema_type=request.schema_type,
            keys=request.keys,
        )
        if request.read_compacted and not subscription.consumers:
            subscription.begin_compacted(resumes=request.resumes)
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
                    raise NotAllowedError(
                        f"the subscription {known.name} exists and is {kind}: choose another name"
                    )
                return known
            if initial is not None:
                break
            # Somebody else may create it meanwhile, so this looks again afterwards.
            initial = await self._initial(request)
        if request.durable:
            if not request.creates:
                raise SubscriptionNotFoundError(
                    f"{self._topic.name} has no subscription {request.subscription}, and its client"
                    " expects that there is one"
                )
            if not self._topic.policies.auto_subscription_creation.allow_auto_subscription_creation:
                raise SubscriptionNotFoundError(
                    f"{self._topic.name} has no subscription {request.subscription}, and clients"
                    " may not create one here (autoSubscriptionCreation): create it as an"
                    " administrator"
                )
            properties = dict(request.properties or {})
            before_log = self._before_log(request) is not None
            return await self._create(
                request.subscription, initial, properties, before_log=before_log
            )
        self._check_room()
        cursor = self._topic.log.new_volatile_cursor(request.subscription, initial)
        created = self._new(request.subscription, cursor, durable=False)
        created.before_log = self._before_log(request)
        return created

    def _before_log(self, request: ConsumerRequest) -> Position | None:
        """Return where a new subscription stands if that is before everything that the log has."""
        if not request.read_compacted or request.rollback_s or request.start_offset is not None:
            return None
        start = request.start
        if request.durable or start is None:
            earliest = not request.durable or request.earliest
            return self._topic.compaction.before_log(EARLIEST) if earliest else None
        return self._topic.compaction.before_log(start)

    async def create(
        self,
        name: str,
        mark_delete: Position,
        properties: Mapping[str, str] | None = None,
        *,
        part: tuple[Position, int] | None = None,
    ) -> Subscription:
        """Create a durable subscription that begins behind `mark_delete`.

        `part` is the entry behind that, and the bits of its messages that are wanted.  Raise
        ConflictError if there is a subscription of that name.
        """
        check_name(name)
        await self._wait_changed(name)
        if name in self.by_name:
            raise ConflictError(f"{self._topic.name} has a subscription {name} already")
        return await self._create(name, mark_delete, dict(properties or {}), part=part)

    async def ensure(self, name: str) -> None:
        """Create a durable subscription from the first message on, unless there is one."""
        check_name(name)
        await self._wait_changed(name)
        if name not in self.by_name:
            await self._create(name, self._topic.log.before_first, {})

    async def _create(
        self,
        name: str,
        mark_delete: Position,
        properties: dict[str, str],
        *,
        before_log: bool = False,
        part: tuple[Position, int] | None = None,
    ) -> Subscription:
        """Create a subscription whose name nobody has and nobody changes at the moment.

        The creation continues if the caller stops waiting.  Then the subscription exists: its
        cursor would hold back trimming otherwise, and nobody would see it.
        """
        topic = self._topic
        assert name not in self.by_name
        assert name not in self._changing
        self._check_room()
        check_properties(f"subscription {name}", properties)
        topic.check_serving()
        creation = self._changing[name] = trio.Event()
        act = partial(self._finish_creation, name, mark_delete, properties, before_log, part)
        return await self._to_the_end(name, creation, act)()

    def _check_room(self) -> None:
        """Raise NotAllowedError if the topic has as many subscriptions as it may have."""
        topic = self._topic
        limit = topic.policies.max_subscriptions or topic.limits.subscriptions_max
        # Creations under way count, so that opens that are given up cannot pile up.
        if len(self.by_name) + len(self._changing) >= limit:
            raise NotAllowedError(
                f"{topic.name} has {limit} subscriptions, which is the limit: delete unused ones,"
                " or raise the policy maxSubscriptionsPerTopic"
            )

    async def _finish_creation(
        self,
        name: str,
        mark_delete: Position,
        properties: dict[str, str],
        before_log: bool,
        part: tuple[Position, int] | None,
    ) -> Subscription:
        topic = self._topic
        with translated(topic.name):
            cursor = await topic.log.open_cursor(
                name,
                initial=mark_delete,
                properties=properties,
                numbers={BEFORE_LOG: 1} if before_log else {},
            )
            if part is not None:
                cursor.ack_part(*part)
                await cursor.flush()
        topic.check_serving()
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
            on_gone=self._forget,
            properties=properties,
        )
        return subscription

    async def _initial(self, request: ConsumerRequest) -> Position:
        """Return the position behind which a new subscription begins."""
        topic, log = self._topic, self._topic.log
        if request.rollback_s:
            since = topic.clock.now_ms() - request.rollback_s * 1000
            return log.previous_position(await topic.position_of_time(since))
        if request.durable:
            return log.before_first if request.earliest else log.last_confirmed
        if request.start_offset is not None:
            return log.previous_position(await topic.position_of_offset(request.start_offset))
        start = request.start
        if start is None:
            return log.before_first if request.read_compacted else log.last_confirmed
        if start <= log.before_first:
            return log.before_first
        if start <= log.last_confirmed:
            # The client itself drops the messages of that entry that it does not want.
            return log.previous_position(start)
        return log.before_first if request.earliest else log.last_confirmed

    async def remove(self, subscription: Subscription) -> None:
        """Remove a subscription with its consumers and its cursor."""
        await self.begin_removal(subscription)()

    def begin_removal(self, subscription: Subscription) -> Callable[[], Awaitable[None]]:
        """Remove a subscription, and return a function that waits until its cursor is deleted.

        Until then a new subscription of the same name has to wait, because it would find the old
        cursor.
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
        """Begin a change of the subscription of that name; see `to_the_end`."""

        def over() -> None:
            change.set()
            if self._changing.get(name) is change:  # unless another removal waits for this one
                del self._changing[name]

        ended = UnavailableError(
            f"{self._topic.name} was closed while its subscription {name} was created or deleted,"
            " so the outcome is unknown: try again"
        )
        on_bug = partial(self._topic.has_bug, f"creating or deleting the subscription {name}")
        return to_the_end(self._topic.start_task, act, over=over, ended=ended, on_bug=on_bug)

    async def _wait_changed(self, name: str) -> None:
        """Return when no subscription of that name is being created or deleted.

        Raise UnavailableError if the change takes long, as the store may be away.
        """
        with trio.move_on_after(self._topic.limits.change_s):
            while (change := self._changing.get(name)) is not None:
                await change.wait()
        if name in self._changing:
            raise UnavailableError(
                f"the subscription {name} is being created or deleted by another client: try again"
            )

    def _forget(self, subscription: Subscription) -> None:
        if self.by_name.get(subscription.name) is subscription:
            del self.by_name[subscription.name]

    def close(self) -> None:
        """Disconnect all consumers.  Nothing that is stored changes."""
        for subscription in list(self.by_name.values()):
            subscription.drop()


def is_internal(cursor: str) -> bool:
    """Return True if a Pulsar broker keeps this cursor for itself: it is no subscription."""
    return cursor in INTERNAL_CURSORS or cursor.startswith(_INTERNAL_PREFIX)


def check_consumer(
    topic: TopicName, policies: EffectivePolicies, wanted: int, consumers: int
) -> None:
    """Raise a BrokerError if the policies do not allow one more consumer of that type."""
    kind = type_name(wanted)
    if kind not in policies.subscription_types:
        allowed = ", ".join(sorted(policies.subscription_types))
        raise NotAllowedError(
            f"{topic} allows no subscriptions of type {kind}, only {allowed}"
            " (subscriptionTypesEnabled)"
        )
    if policies.max_consumers and consumers >= policies.max_consumers:
        raise ConsumerBusyError(
            f"{topic} has {policies.max_consumers} consumers, which is the limit: close some, or"
            " raise the policy maxConsumers"
        )


def check_name(subscription: str) -> None:
    """Raise a BrokerError if no subscription can have the name."""
    advice = "" if subscription else ": give the subscription a name"
    refusal = PreconditionError(f"a subscription cannot be named {subscription[:64]!r}{advice}")
    if not subscription.strip() or is_internal(subscription):
        raise refusal
    try:
        check_cursor_name(subscription)
    except InvalidNameError as error:
        raise refusal from error
