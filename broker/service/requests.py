"""What a client asks for that takes a while: open and close, look up, seek, tell.

Each request is answered once, with its result or with its error.  Opening and closing go through
the machines of the connection (`protocol.producing`, `protocol.consuming`), which decide; here it
is done.

A request may have to wait for its turn (`request_turns`).  The machines know of an opening
from the moment in which it was asked for, so a close that comes meanwhile finds it.  A request that
names a consumer is for the consumer that had this id when the request came: it must not reach
another one that the client has opened under the same id since.

What takes consumers off their subscription, a seek or an unsubscription, does so in the turn in
which the request is begun.  So what the client says next finds it done, and what it has said before
is done already.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, assert_never

import trio
from crc32c import crc32c
from google.protobuf.message import Message

from daybook.broker.connected_client import ConnectedClient
from daybook.broker.context import BrokerContext
from daybook.broker.dispatch.subscription import TYPE_NAMES, Consumer, Subscription
from daybook.broker.errors import (
    BrokerError,
    ConsumerBusyError,
    InvalidNameError,
    NotAllowedError,
    NotFoundError,
    PreconditionError,
    RefusedError,
    UnavailableError,
)
from daybook.broker.protocol import consuming, producing
from daybook.broker.protocol.access import AccessMode
from daybook.broker.service.request_turns import Request, RequestHost, RequestQueue
from daybook.broker.topics.producer import Producer
from daybook.broker.topics.stats import consumer_stats_response
from daybook.broker.topics.topic import ConsumerRequest, ProducerRequest, Topic
from daybook.managed_ledger.position import Position
from daybook.wire.errors import MalformedError
from daybook.wire.messages.consumer import decode_ack_set
from daybook.wire.messages.registry import signed, unsigned
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName, check_namespace
from daybook.wire.transport import Buffer

T = pb.BaseCommand
_LOOKUPS = (
    T.LOOKUP,
    T.PARTITIONED_METADATA,
    T.GET_TOPICS_OF_NAMESPACE,
    T.CONSUMER_STATS,
)
_OF_CONSUMERS = (T.GET_LAST_MESSAGE_ID, T.CONSUMER_STATS, T.SEEK, T.UNSUBSCRIBE)
_UNTYPED = (int(pb.Schema.NoSchema), int(pb.Schema.AutoConsume))


class RequestConnection(RequestHost, Protocol):
    """What requests need of the connection that they came on."""

    producers: dict[int, Producer]
    consumers: dict[int, Consumer]
    producing: producing.ProducingProtocol
    consuming: consuming.ConsumingProtocol

    @property
    def closing(self) -> bool: ...

    @property
    def peer(self) -> str: ...

    @property
    def is_ours(self) -> bool: ...

    @property
    def client(self) -> ConnectedClient: ...

    def send(self, buffers: Sequence[Buffer]) -> None: ...

    def forget_producer(self, producer: Producer) -> None: ...

    def forget_consumer(self, consumer: Consumer) -> None: ...

    def tell(self, message: Message) -> None: ...

    def refuse(self, command: int, body: Any, error: BrokerError) -> None: ...  # noqa: ANN401


@dataclass(slots=True)
class _Opening:
    """A producer or a consumer that is being opened, or waits to be."""

    scope: trio.CancelScope
    request: Request
    give_up: Callable[[BrokerError], None]


class _Begun:
    """A request of which the first part is done at once; the rest is what that part returns."""

    def __init__(self, act: Callable[[], Callable[[], Awaitable[None]]]) -> None:
        self._act = act
        self._rest: Callable[[], Awaitable[None]] | None = None
        self._error: Exception | None = None

    def begin(self) -> None:
        try:
            self._rest = self._act()
        except Exception as error:  # It is raised in the task of the request.
            self._error = error

    async def finish(self) -> None:
        if self._error is not None:
            raise self._error
        assert self._rest is not None
        await self._rest()


class Requests:
    """Of one connection."""

    def __init__(self, connection: RequestConnection, broker: BrokerContext) -> None:
        self._connection = connection
        self._broker = broker
        self._requests = RequestQueue(broker.request_turns, connection)
        self._lookups = RequestQueue(broker.lookup_turns, connection)
        self._opening_producers: dict[int, _Opening] = {}  # by attempt
        self._opening_consumers: dict[int, _Opening] = {}

    def close(self) -> None:
        """The connection ends: nothing that waits is begun any more."""
        self._requests.close()
        self._lookups.close()

    # -- opening, in its turn

    def _begin_opening(
        self, openings: dict[int, _Opening], attempt: int, opening: _Opening
    ) -> None:
        openings[attempt] = opening
        if not self._requests.begin(opening.request):
            del openings[attempt]
            opening.give_up(_too_many(self._requests))

    def _abort_opening(self, openings: dict[int, _Opening], attempt: int, what: str) -> None:
        """Its client has closed it.  One that still waits for its turn is answered at once."""
        opening = openings[attempt]
        if self._requests.withdraw(opening.request):
            del openings[attempt]
            opening.give_up(_closed_early(what))
        else:
            opening.scope.cancel()

    # -- producers

    def feed_producing(
        self,
        event: producing.Event,
        body: pb.CommandProducer | None = None,
        frame_bytes: int = 0,
    ) -> None:
        connection = self._connection
        for effect in connection.producing.step(event):
            match effect:
                case producing.Attach(_, attempt):
                    assert body is not None
                    opening = self._producer_opening(body, attempt, frame_bytes)
                    self._begin_opening(self._opening_producers, attempt, opening)
                case producing.Abort(_, attempt):
                    self._abort_opening(self._opening_producers, attempt, "producer")
                case producing.Drain(producer_id):
                    self._drain(connection.producers[producer_id])
                case producing.Detach(producer_id):
                    self.detach_producer(connection.producers.pop(producer_id))
                case producing.Confirm(request_id):
                    connection.tell(pb.CommandSuccess(request_id=request_id))
                case producing.Repeat(producer_id, request_id):
                    producer = connection.producers[producer_id]
                    connection.tell(_producer_success(request_id, producer.name, producer.epoch))
                case producing.Refuse(_, code, reason):
                    assert body is not None
                    connection.refuse(T.PRODUCER, body, RefusedError(code, reason))
                case _:
                    assert_never(effect)

    def _drain(self, producer: Producer) -> None:
        drained = producing.Drained(producer.producer_id)
        producer.drain(lambda: self.feed_producing(drained))

    def detach_producer(self, producer: Producer) -> None:
        producer.topic.producers.remove(producer)

    def _producer_opening(
        self, body: pb.CommandProducer, attempt: int, frame_bytes: int
    ) -> _Opening:
        scope = trio.CancelScope()
        request = Request(partial(self._open_producer, body, attempt, scope), frame_bytes)
        return _Opening(scope, request, partial(self._producer_not_opened, body, attempt))

    def _producer_not_opened(
        self, body: pb.CommandProducer, attempt: int, error: BrokerError
    ) -> None:
        self._connection.refuse(T.PRODUCER, body, error)
        self.feed_producing(producing.OpenFailed(body.producer_id, attempt))

    async def _open_producer(
        self, body: pb.CommandProducer, attempt: int, scope: trio.CancelScope
    ) -> None:
        connection, producer_id = self._connection, body.producer_id
        producer: Producer | None = None
        error: BrokerError = _closed_early("producer")
        request = self._opening_producers[attempt].request
        try:
            with scope:
                producer = await self._attach_producer(body, request)
        except BrokerError as refused:
            error = refused
        finally:
            del self._opening_producers[attempt]
        if producer is not None and (scope.cancel_called or connection.closing or producer.closed):
            self.detach_producer(producer)
            producer = None
        if producer is None:
            self._producer_not_opened(body, attempt, error)
            return
        connection.producers[producer_id] = producer
        self.feed_producing(producing.Opened(producer_id, attempt))
        connection.tell(_producer_success(body.request_id, producer.name, producer.epoch))

    async def _attach_producer(self, body: pb.CommandProducer, opening: Request) -> Producer:
        broker = self._broker
        _check_untyped(body)
        if body.txn_enabled:
            raise NotAllowedError("this broker has no transactions")
        self._check_chars(body.producer_name, body.initial_subscription_name)
        name = topic_name(body.topic)
        topic = await broker.topics.get(name, create=broker.config.auto_create_topics)
        if body.initial_subscription_name:
            await topic.subscriptions.ensure(body.initial_subscription_name)
        request = ProducerRequest(
            body.producer_id,
            body.producer_name or broker.topics.producer_name(),
            AccessMode(body.producer_access_mode),
            body.topic_epoch if body.HasField("topic_epoch") else None,
            _pairs(body.metadata),
        )

        def must_wait() -> None:
            success = _producer_success(body.request_id, request.name, None)
            success.producer_ready = False
            self._connection.tell(success)
            # It waits for as long as another producer stays: no other request waits for that.
            self._requests.step_aside(opening)

        return await topic.producers.add(request, self._connection.client, on_wait=must_wait)

    # -- consumers

    def feed_consuming(
        self,
        event: consuming.Event,
        body: pb.CommandSubscribe | None = None,
        frame_bytes: int = 0,
    ) -> None:
        connection = self._connection
        for effect in connection.consuming.step(event):
            match effect:
                case consuming.Attach(_, attempt):
                    assert body is not None
                    opening = self._consumer_opening(body, attempt, frame_bytes)
                    self._begin_opening(self._opening_consumers, attempt, opening)
                case consuming.Abort(_, attempt):
                    self._abort_opening(self._opening_consumers, attempt, "consumer")
                case consuming.Detach(consumer_id):
                    self.detach_consumer(connection.consumers.pop(consumer_id))
                case consuming.Confirm(request_id):
                    connection.tell(pb.CommandSuccess(request_id=request_id))
                case consuming.Refuse(_, code, reason):
                    assert body is not None
                    connection.refuse(T.SUBSCRIBE, body, RefusedError(code, reason))
                case _:
                    assert_never(effect)

    def detach_consumer(self, consumer: Consumer) -> None:
        consumer.subscription.remove(consumer)

    def _consumer_opening(
        self, body: pb.CommandSubscribe, attempt: int, frame_bytes: int
    ) -> _Opening:
        scope = trio.CancelScope()
        request = Request(partial(self._open_consumer, body, attempt, scope), frame_bytes)
        return _Opening(scope, request, partial(self._consumer_not_opened, body, attempt))

    def _consumer_not_opened(
        self, body: pb.CommandSubscribe, attempt: int, error: BrokerError
    ) -> None:
        self._connection.refuse(T.SUBSCRIBE, body, error)
        self.feed_consuming(consuming.OpenFailed(body.consumer_id, attempt))

    async def _open_consumer(
        self, body: pb.CommandSubscribe, attempt: int, scope: trio.CancelScope
    ) -> None:
        connection, consumer_id = self._connection, body.consumer_id
        found: tuple[Topic, Subscription] | None = None
        error: BrokerError = _closed_early("consumer")
        request = consumer_request(body)
        try:
            with scope:
                found = await self._prepare(body, request)
        except BrokerError as refused:
            error = refused
        finally:
            del self._opening_consumers[attempt]
        if found is not None and (scope.cancel_called or connection.closing):
            found[1].drop_if_unused()
            found = None
        if found is None:
            self._consumer_not_opened(body, attempt, error)
            return
        topic, subscription = found
        # The answer goes out before anything that the subscription has to say.
        success = pb.CommandSuccess(request_id=body.request_id)
        self._add_move(success, subscription)
        connection.tell(success)
        consumer = topic.subscriptions.join(subscription, request, connection.client)
        connection.consumers[consumer_id] = consumer
        self.feed_consuming(consuming.Opened(consumer_id, attempt))

    async def _prepare(
        self, body: pb.CommandSubscribe, request: ConsumerRequest
    ) -> tuple[Topic, Subscription]:
        broker = self._broker
        _check_untyped(body)
        if body.subType not in TYPE_NAMES:
            raise NotAllowedError("this broker has no subscriptions of that type")
        if body.read_compacted:
            raise NotAllowedError("this broker does not compact topics")
        if body.replicate_subscription_state:
            raise NotAllowedError("this broker does not replicate subscriptions")
        if request.durable and request.start_offset is not None:
            raise NotAllowedError("only volatile subscriptions start at an offset")
        self._check_chars(body.subscription, body.consumer_name)
        create = broker.config.auto_create_topics and body.force_topic_creation
        topic = await broker.topics.get(topic_name(body.topic), create=create)
        return topic, await topic.subscriptions.prepare(request, self._connection.client)

    def _check_chars(self, *names: str) -> None:
        for name in names:
            if len(name) > self._broker.limits.names_chars_max:
                raise PreconditionError(f"a name of {len(name)} characters")

    # -- everything else that has an answer

    def ask(self, command: int, body: Any, frame_bytes: int) -> None:  # noqa: ANN401
        """Answer it in its turn, in a task of its own; or say at once that too many wait."""
        consumer: Consumer | None = None
        if command in _OF_CONSUMERS:
            consumer = self._connection.consumers.get(body.consumer_id)
        queue = self._lookups if command in _LOOKUPS else self._requests
        begun: _Begun | None = None
        if command == T.SEEK:
            begun = _Begun(partial(self._begin_seek, body, consumer))
        elif command == T.UNSUBSCRIBE:
            begun = _Begun(partial(self._begin_unsubscription, body, consumer))
        run = partial(self._answer, command, body, consumer, begun)
        request = Request(run, frame_bytes, None if begun is None else begun.begin)
        if not queue.begin(request):
            self._connection.refuse(command, body, _too_many(queue))

    async def _answer(
        self,
        command: int,
        body: Any,  # noqa: ANN401  generated messages
        consumer: Consumer | None,
        begun: _Begun | None,
    ) -> None:
        try:
            match command:
                case T.LOOKUP:
                    answer = await self._lookup(body)
                case T.PARTITIONED_METADATA:
                    answer = await self._partitioned_metadata(body)
                case T.GET_TOPICS_OF_NAMESPACE:
                    answer = await self._topics_of_namespace(body)
                case T.GET_LAST_MESSAGE_ID:
                    answer = await self._last_message_id(body, consumer)
                case T.CONSUMER_STATS:
                    known = self._known(body.consumer_id, consumer, pb.ConsumerNotFound)
                    now_ms = self._broker.clock.now_ms()
                    answer = consumer_stats_response(known, body.request_id, now_ms)
                case _:
                    assert begun is not None  # A seek, or an unsubscription.
                    await begun.finish()
                    answer = pb.CommandSuccess(request_id=body.request_id)
                    if command == T.SEEK:  # The client does not take it for somebody else's then.
                        assert consumer is not None
                        self._add_move(answer, consumer.subscription)
        except BrokerError as error:
            self._connection.refuse(command, body, error)
        else:
            self._connection.tell(answer)

    async def _lookup(self, body: pb.CommandLookupTopic) -> Message:
        name = topic_name(body.topic)
        if body.advertised_listener_name.strip():
            listener = body.advertised_listener_name.strip()
            raise UnavailableError(f"the broker do not have {listener} listener")
        found = await self._broker.lookups.lookup(name, authoritative=body.authoritative)
        answer = pb.CommandLookupTopicResponse(
            request_id=body.request_id,
            response=pb.CommandLookupTopicResponse.Connect,
            brokerServiceUrl=found.service_url,
            authoritative=found.authoritative,
        )
        if found.redirect:
            answer.response = pb.CommandLookupTopicResponse.Redirect
        if found.service_url_tls:
            answer.brokerServiceUrlTls = found.service_url_tls
        return answer

    async def _partitioned_metadata(self, body: pb.CommandPartitionedTopicMetadata) -> Message:
        broker, name = self._broker, topic_name(body.topic)
        partitions = await broker.policies.partitions(name)
        if not partitions:
            await broker.policies.namespace(name.namespace)
            create = broker.config.auto_create_topics and body.metadata_auto_creation_enabled
            if not create and not await broker.topics.exists(name):
                raise NotFoundError(f"there is no topic {name}")
        return pb.CommandPartitionedTopicMetadataResponse(
            request_id=body.request_id,
            partitions=partitions,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
        )

    async def _topics_of_namespace(self, body: pb.CommandGetTopicsOfNamespace) -> Message:
        broker = self._broker
        try:
            namespace = check_namespace(body.namespace)
        except MalformedError as error:
            raise InvalidNameError(str(error)) from None
        names: list[str] = []
        # A namespace that is not there has no topics; Go's client would repeat an error for 30 s.
        with suppress(NotFoundError):
            await broker.policies.namespace(namespace)
            if body.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
                names = await broker.topics.names_in(namespace)
        # `filtered` stays false: the client applies its pattern by itself.
        answer = pb.CommandGetTopicsOfNamespaceResponse(
            request_id=body.request_id, topics_hash=topics_hash(names)
        )
        if answer.topics_hash == body.topics_hash:
            answer.changed = False
        else:
            answer.topics.extend(names)
        if answer.ByteSize() > broker.config.max_message_size:
            raise NotAllowedError(f"{namespace} has too many topics for one answer")
        return answer

    async def _last_message_id(
        self, body: pb.CommandGetLastMessageId, consumer: Consumer | None
    ) -> Message:
        subscription = self._known(body.consumer_id, consumer).subscription
        topic = subscription.topic
        answer = pb.CommandGetLastMessageIdResponse(request_id=body.request_id)
        last = await topic.last_message()
        position, batch_index = last if last is not None else (Position(-1, -1), -1)
        _set_id(answer.last_message_id, position)
        answer.last_message_id.partition = topic.name.partition
        answer.last_message_id.batch_index = batch_index
        mark_delete = subscription.cursor.mark_delete
        if mark_delete.ledger_id >= 0:
            _set_id(answer.consumer_mark_delete_position, mark_delete)
        if self._connection.is_ours:
            answer.next_offset = topic.log.confirmed_offset + 1
            answer.first_offset = min(await topic.first_offset(), answer.next_offset)
        return answer

    def _begin_seek(
        self, body: pb.CommandSeek, consumer: Consumer | None
    ) -> Callable[[], Awaitable[None]]:
        subscription = self._known(body.consumer_id, consumer).subscription
        topic = subscription.topic
        pending: int | None = None

        async def find() -> Position:
            if body.HasField("offset"):
                return await topic.position_of_offset(body.offset)
            if body.HasField("message_id"):
                return topic.position_of_id(_position(body.message_id))
            return await topic.position_of_time(body.message_publish_time)

        if body.HasField("message_id"):
            try:
                pending = decode_ack_set(body.message_id.ack_set)
            except MalformedError as error:
                raise PreconditionError(str(error)) from None
        elif not (body.HasField("offset") or body.HasField("message_publish_time")):
            raise PreconditionError("SEEK without a place to go to")
        return subscription.begin_move(find, pending)

    def _begin_unsubscription(
        self, body: pb.CommandUnsubscribe, asked: Consumer | None
    ) -> Callable[[], Awaitable[None]]:
        consumer = self._known(body.consumer_id, asked)
        subscription = consumer.subscription
        if len(subscription.consumers) > 1 and not body.force:
            raise ConsumerBusyError(f"{subscription.name} has other consumers")
        topic = subscription.topic
        # This client knows; were it told, it would subscribe again.
        self._connection.forget_consumer(consumer)
        subscription.remove(consumer)
        return topic.subscriptions.begin_removal(subscription)

    def _add_move(self, success: pb.CommandSuccess, subscription: Subscription) -> None:
        """Name the latest move of the subscription to a client that understands it."""
        if self._connection.is_ours and subscription.moved is not None:
            success.moved = subscription.moved

    def _known(
        self, consumer_id: int, consumer: Consumer | None, code: int = pb.MetadataError
    ) -> Consumer:
        """The consumer that a request was for, if it is open still."""
        if consumer is None or self._connection.consumers.get(consumer_id) is not consumer:
            raise RefusedError(code, f"there is no consumer {consumer_id}")
        return consumer


def _too_many(queue: RequestQueue) -> UnavailableError:
    return UnavailableError(
        f"the request was not begun: {len(queue)} requests of this connection wait already, and"
        " neither it nor the broker has room for more; ask again after some have been answered"
    )


def _closed_early(what: str) -> UnavailableError:
    return UnavailableError(f"the {what} was closed before it was open")


def topic_name(text: str) -> TopicName:
    """Raises InvalidNameError."""
    try:
        return TopicName.parse(text)
    except MalformedError as error:
        raise InvalidNameError(str(error)) from None


def consumer_request(body: pb.CommandSubscribe) -> ConsumerRequest:
    return ConsumerRequest(
        body.consumer_id,
        body.subscription,
        int(body.subType),
        body.consumer_name,
        body.durable,
        body.initialPosition == pb.CommandSubscribe.Earliest,
        _position(body.start_message_id) if body.HasField("start_message_id") else None,
        body.start_offset if body.HasField("start_offset") else None,
        body.start_message_rollback_duration_sec,
        body.priority_level,
        body.consumer_epoch if body.HasField("consumer_epoch") else None,
        _pairs(body.metadata),
        _pairs(body.subscription_properties),
    )


def topics_hash(names: Iterable[str]) -> str:
    """What clients compare lists of topics by."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


def _check_untyped(body: pb.CommandProducer | pb.CommandSubscribe) -> None:
    if body.HasField("schema") and body.schema.type not in _UNTYPED:
        raise NotAllowedError("this broker has no schemas: send bytes")


def _position(message_id: pb.MessageIdData) -> Position:
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


def _set_id(target: pb.MessageIdData, position: Position) -> None:
    target.ledgerId, target.entryId = unsigned(position.ledger_id), unsigned(position.entry_id)


def _pairs(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value for pair in pairs}


def _producer_success(request_id: int, name: str, epoch: int | None) -> pb.CommandProducerSuccess:
    success = pb.CommandProducerSuccess(
        request_id=request_id, producer_name=name, last_sequence_id=-1, schema_version=b""
    )
    if epoch is not None:
        success.topic_epoch = epoch
    return success
