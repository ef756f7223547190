"""The subscriptions of one topic: which there are, and how they are created and removed."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from daybook.broker.connected_client import ConnectedClient
from daybook.broker.dispatch.consumer import Consumer
from daybook.broker.dispatch.subscription import Subscription, type_name
from daybook.broker.dispatch.topic_view import BEFORE_LOG
from daybook.broker.errors import (
    AuthorizationError,
    ConflictError,
    ConsumerBusyError,
    NotAllowedError,
    PreconditionError,
    SubscriptionNotFoundError,
    UnavailableError,
)
from daybook.broker.limits import check_properties
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.dispatch.key_shared import KeyPolicy
from daybook.broker.to_the_end import to_the_end
from daybook.broker.topics.stored_topic import StoredTopic
from daybook.broker.topics.topic_log import TopicCursor, translated
from daybook.managed_ledger.errors import InvalidNameError
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.records import check_cursor_name
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from daybook.wire.weakly import weak

T = TypeVar("T")
INTERNAL_CURSORS = frozenset({"pulsar.dedup", "__compaction"})
_INTERNAL_PREFIX = "pulsar.repl."


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
    reader_of: str = ""  # the role of a reader that has drawn the name of its subscription


def check_reader(request: ConsumerRequest, subscription: str, reader_of: str) -> None:
    """Raise AuthorizationError if the subscription is that of another role's reader.

    No grant names the drawn names, so a role would otherwise take the place of a reader whose
    connection is lost.
    """
    if request.reader_of != reader_of:
        raise AuthorizationError(
            f"the subscription {subscription} is that of a reader of another role: let the reader"
            " draw another name"
        )


class TopicSubscriptions:
    """The subscriptions of one topic.

    The durable ones whose cursors the log has are there from the beginning.
    """

    def __init__(self, topic: StoredTopic) -> None:
        self.by_name: dict[str, Subscription] = {}
        self.arriving = 0  # consumers for which a subscription is being made ready
        self._topic = weak(topic)
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
            raise SubscriptionNotFoundError(f"{self._topic().name} has no subscription {name}")
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
        self._topic().rate_limits.check_subscribe(connection, request.name, request.consumer_id)
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
            self._topic().check_serving()
            self._check_consumers(request)
        except BaseException:
            subscription.drop_if_unused()  # Nobody else would ever remove a volatile one.
            raise
        return subscription

    def _check_consumers(self, request: ConsumerRequest) -> None:
        """Raise a BrokerError if the policies do not allow this consumer now."""
        consumers = sum(len(s.consumers) for s in self.by_name.values())
        check_consumer(self._topic().name, self._topic().policies, request.type, consumers)

    def join(
        self,
        subscription: Subscription,
        request: ConsumerRequest,
        connection: ConnectedClient,
    ) -> Consumer:
        """Add a consumer, which is served from its first permits on."""
        consumer = Consumer(
            next(self._topic().keys),
            request.consumer_id,
            request.name,
            connection,
            subscription,
            partition=self._topic().name.partition,
            priority=request.priority,
            epoch=request.epoch,
            metadata=dict(request.metadata or {}),
            read_compacted=request.read_compacted,
            schema_type=request.schema_type,
            keys=request.keys,
        )
        if request.read_compacted and not subscription.consumers:
            subscription.view.begin_compacted(resumes=request.resumes)
        subscription.add(consumer, request.type)
        return consumer

    async def _get_or_create(self, request: ConsumerRequest) -> Subscription:
        initial: Position | None = None
        while True:
            await self._wait_changed(request.subscription)
            self._topic().check_serving()
            known = self.by_name.get(request.subscription)
            if known is not None:
                if known.durable != request.durable:
                    kind = "durable" if known.durable else "not durable"
                    raise NotAllowedError(
                        f"the subscription {known.name} exists and is {kind}: choose another name"
                    )
                check_reader(request, known.name, known.reader_of)
                return known
            if initial is not None:
                break
            # Somebody else may create it meanwhile, so this looks again afterwards.
            initial = await self._initial(request)
        if request.durable:
            if not request.creates:
                raise SubscriptionNotFoundError(
                    f"{self._topic().name} has no subscription {request.subscription}, and its"
                    " client expects that there is one"
                )
            policies = self._topic().policies
            if not policies.auto_subscription_creation.allow_auto_subscription_creation:
                raise SubscriptionNotFoundError(
                    f"{self._topic().name} has no subscription {request.subscription}, and clients"
                    " may not create one here (autoSubscriptionCreation): create it as an"
                    " administrator"
                )
            properties = dict(request.properties or {})
            before_log = self._before_log(request) is not None
            return await self._create(
                request.subscription, initial, properties, before_log=before_log
            )
        self._check_room()
        cursor = self._topic().log.new_volatile_cursor(request.subscription, initial)
        created = self._new(request.subscription, cursor, durable=False)
        created.reader_of = request.reader_of
        created.view.before_log = self._before_log(request)
        return created

    def _before_log(self, request: ConsumerRequest) -> Position | None:
        """Return where a new subscription stands if that is before everything that the log has."""
        if not request.read_compacted or request.rollback_s or request.start_offset is not None:
            return None
        start = request.start
        if request.durable or start is None:
            earliest = not request.durable or request.earliest
            return self._topic().compaction.before_log(EARLIEST) if earliest else None
        return self._topic().compaction.before_log(start)

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
            raise ConflictError(f"{self._topic().name} has a subscription {name} already")
        return await self._create(name, mark_delete, dict(properties or {}), part=part)

    async def ensure(self, name: str) -> None:
        """Create a durable subscription from the first message on, unless there is one."""
        check_name(name)
        await self._wait_changed(name)
        if name not in self.by_name:
            await self._create(name, self._topic().log.before_first, {})

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
        topic = self._topic()
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
        topic = self._topic()
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
        topic = self._topic()
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
            self._topic(),
            name,
            cursor,
            durable=durable,
            on_gone=self._forget,
            begin_removal=self.begin_removal,
            properties=properties,
        )
        return subscription

    async def _initial(self, request: ConsumerRequest) -> Position:
        """Return the position behind which a new subscription begins."""
        topic, log = self._topic(), self._topic().log
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
                with translated(self._topic().name):
                    await self._topic().log.delete_cursor(subscription.name)
            except UnavailableError as error:
                self._topic().removal_failed(error)
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
            f"{self._topic().name} was closed while its subscription {name} was created or deleted,"
            " so the outcome is unknown: try again"
        )
        on_bug = partial(self._topic().has_bug, f"creating or deleting the subscription {name}")
        return to_the_end(self._topic().start_task, act, over=over, ended=ended, on_bug=on_bug)

    async def _wait_changed(self, name: str) -> None:
        """Return when no subscription of that name is being created or deleted.

        Raise UnavailableError if the change takes long, as the store may be away.
        """
        with trio.move_on_after(self._topic().limits.change_s):
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
