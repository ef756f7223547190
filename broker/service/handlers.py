"""Carries out what a client sends: commands in their order, requests in tasks of their own.

One task reads the connection.  It carries out at once the commands that come once per entry (SEND,
ACK, FLOW), and every other command that waits for nothing.  All other commands are requests: open
and close, look up, seek, ask for statistics.  Each request runs in a task of its own and is
answered once, with its result or with its error.  A command that the session does not admit is
refused, or ends the connection: `broker.protocol.session` decides.

Opening and closing go through two machines (`protocol.producing`, `protocol.consuming`), which
decide; this module does the work.  A request may have to wait for its turn (`request_turns`).  The
machines know of an opening from the moment in which the client asked for it, so a close that
arrives meanwhile finds it.  A request that names a consumer is for the consumer that had this id
when the request arrived: it must not reach another one that the client has opened under the same id
since.

A seek or an unsubscription takes consumers off their subscription.  It does so in the turn of the
event loop in which the request begins.  So the commands that follow find it done, and the commands
before it were carried out already.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import trio
from google.protobuf.message import Message

from daybook.broker.context import BrokerContext
from daybook.broker.dispatch.consumer import ConsumedSubscription, Consumer
from daybook.broker.dispatch.non_persistent import NonPersistentSubscription
from daybook.broker.dispatch.subscription import (
    EXCLUSIVE,
    FAILOVER,
    TYPE_NAMES,
    Subscription,
    Target,
)
from daybook.broker.errors import (
    AuthorizationError,
    BrokerError,
    ConsumerBusyError,
    NotAllowedError,
    PreconditionError,
    RefusedError,
    UnavailableError,
)
from daybook.broker.protocol import consuming, producing, session
from daybook.broker.protocol.access import AccessMode
from daybook.broker.protocol.deduplication import NOTHING, RESERVED
from daybook.broker.protocol.producing import Sending
from daybook.broker.protocol.session import Admission
from daybook.broker.security.authorization import of_topic
from daybook.broker.security.identity import Caller, on_behalf
from daybook.broker.security.rights import Right, right_of_command
from daybook.broker.service.accept import Prove, no_limits
from daybook.broker.service.command_bodies import (
    consumer_request,
    pairs_of,
    position_of,
    producer_success,
    resource_of,
    schema_of,
    set_id,
    success_of,
    topic_name,
    type_of,
)
from daybook.broker.service.connection import FRAME_PADDING_BYTES, ClientConnection
from daybook.broker.service.refused_requests import RefusedRequests
from daybook.broker.service.request_turns import Request, RequestQueue
from daybook.broker.service.role_use import ConnectionUse
from daybook.broker.service.topic_queries import TopicQueries
from daybook.broker.service.topic_watchers import TopicWatchers
from daybook.broker.topics.non_persistent import NonPersistentTopic
from daybook.broker.topics.producer import ProducedTopic, Producer
from daybook.broker.topics.stats import consumer_stats_response
from daybook.broker.topics.stored_topic import StoredTopic
from daybook.broker.topics.topic_producers import ProducerRequest
from daybook.broker.topics.topic_subscriptions import ConsumerRequest
from daybook.managed_ledger.position import Position
from daybook.wire.ack_sets import decode_ack_set
from daybook.wire.connection import FrameConnection, FramePace
from daybook.wire.errors import MalformedError, OversizeError, WireError
from daybook.wire.messages.client import Send
from daybook.wire.messages.consumer import Ack
from daybook.wire.messages.registry import (
    AnyCommand,
    Command,
    decode_frame,
    signed,
    type_name,
)
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from daybook.wire.transport import Stream

T = pb.BaseCommand
_LOOKUPS = (
    T.LOOKUP,
    T.PARTITIONED_METADATA,
    T.GET_TOPICS_OF_NAMESPACE,
    T.CONSUMER_STATS,
    T.GET_SCHEMA,
)
_AUDITED = (T.PRODUCER, T.SUBSCRIBE)  # noted when they are allowed, too
_OF_CONSUMERS = (T.GET_LAST_MESSAGE_ID, T.CONSUMER_STATS, T.SEEK, T.UNSUBSCRIBE)

# Clients compare `max_message_size` with the message, without its properties and key.  A frame that
# is read can be refused alone; one that is not read ends the connection for everybody who uses it.
_FRAME_MESSAGES = 2
ACKS_WAITING_MAX = 100_000  # acknowledgements of one connection that wait for their receipts
_FRAMES_PER_TURN = 128  # frames of one connection; then other tasks run
_SIGN_OF_LIFE_S = 1.0  # this project's clients give up after 3 s without one


async def serve_client(stream: Stream, broker: BrokerContext, prove: Prove = no_limits) -> None:
    """Serve one client until it leaves, breaks the protocol, or falls silent.

    `prove` is called when the client has proven its role.
    """
    frames = FrameConnection(
        stream,
        arenas=broker.arenas,
        flusher=broker.flusher,
        frame_bytes_max=_FRAME_MESSAGES * broker.config.max_message_size + FRAME_PADDING_BYTES,
        newcomer_frame_bytes_max=broker.config.connect_bytes_max,
        pace=FramePace(broker.config.frame_stall_s, broker.config.frame_bytes_per_s),
        pending_total=broker.unread,
    )
    try:
        await Handlers(frames, broker, prove).run()
    finally:
        frames.close("the broker closed the connection")


@dataclass(slots=True)
class _Opening:
    """A producer or a consumer that is being opened, or waits for its turn to be opened."""

    scope: trio.CancelScope
    request: Request
    give_up: Callable[[BrokerError], None]


class _TwoPartRequest:
    """A request whose first part runs in the turn in which it begins.

    `first` returns the rest, which runs in the task of the request.
    """

    def __init__(self, first: Callable[[], Callable[[], Awaitable[None]]]) -> None:
        self._first = first
        self._rest: Callable[[], Awaitable[None]] | None = None
        self._error: Exception | None = None

    def begin(self) -> None:
        try:
            self._rest = self._first()
        except Exception as error:  # `finish` raises it, in the task of the request.
            self._error = error

    async def finish(self) -> None:
        if self._error is not None:
            raise self._error
        assert self._rest is not None
        await self._rest()


class Handlers:
    """The handlers of one client connection, and the producers and consumers open on it."""

    def __init__(
        self, frames: FrameConnection, broker: BrokerContext, prove: Prove = no_limits
    ) -> None:
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self._broker = broker
        self._producing = producing.ProducingProtocol(
            producers_max=broker.limits.producers_max, ignore_s=broker.config.keep_alive_s
        )
        self._consuming = consuming.ConsumingProtocol(consumers_max=broker.limits.consumers_max)
        self._connection = ClientConnection(
            frames,
            broker,
            on_closing=self._close_queues,
            forget_producer=self._forget_producer,
            forget_consumer=self._forget_consumer,
            prove=prove,
        )
        self._refusals = RefusedRequests(self._connection, broker.refusal_log)
        self._requests = RequestQueue(broker.request_turns, self._connection)
        self._lookups = RequestQueue(broker.lookup_turns, self._connection)
        self._watchers = TopicWatchers(
            self._connection,
            broker.topic_lists,
            self._lookups,
            self.refuse,
            None if broker.authorization is None else partial(self._authorize, T.WATCH_TOPIC_LIST),
            watchers_max=broker.limits.watchers_max,
        )
        self._queries = TopicQueries(broker, encrypted=self._connection.encrypted)
        self._use = ConnectionUse(broker.role_use)
        self._acks_waiting = 0  # for their receipts
        self._opening_producers: dict[int, _Opening] = {}  # by attempt
        self._opening_consumers: dict[int, _Opening] = {}  # by attempt
        # The topics that this client has appended to since the last `_wait_room`.
        self._appended_to: dict[ProducedTopic, None] = {}

    # -- lifetime

    async def run(self) -> None:
        """Read and carry out commands until the connection ends."""
        connection = self._connection
        async with connection.opened():
            try:
                await self._receive()
                connection.note_if_cut()
                await connection.send_rest()
            finally:
                self._leave()

    async def _receive(self) -> None:
        connection = self._connection
        try:
            while not connection.closing and (batch := await connection.receive()):
                frames = iter(batch)
                while self._handle_some(frames):
                    await self._wait_room()
                    await trio.lowlevel.checkpoint()
                if connection.closing:
                    return
                await self._wait_room()
        except OversizeError as error:
            connection.violated(str(error))
        except WireError as error:
            connection.violated(f"a frame cannot be parsed: {error}")

    def _handle_some(self, frames: Iterator[memoryview]) -> bool:
        """Carry out commands until other tasks have to run; return False after the last one."""
        connection, handle = self._connection, self._handle
        with connection.together():
            for count, frame in enumerate(frames, 1):
                command = decode_frame(frame)
                try:
                    handle(command, len(frame))
                except WireError:
                    raise
                except Exception as bug:
                    # This ends the connection, too: other topics of the client are unharmed.
                    self._blame_topic(command, bug)
                    raise
                if connection.closing:
                    return False
                if count == _FRAMES_PER_TURN or connection.must_yield:
                    connection.must_yield = False
                    return True
        return False

    def _blame_topic(self, command: AnyCommand, bug: Exception) -> None:
        """Tell the topic of a command that the command has left it half changed."""
        user: Producer | Consumer | None = None
        match command:
            case Send():
                user = self.producers.get(command.producer_id)
            case Ack():
                user = self.consumers.get(command.consumer_id)
            case Command(type=T.FLOW | T.REDELIVER_UNACKNOWLEDGED_MESSAGES):
                user = self.consumers.get(command.body.consumer_id)
            case _:
                pass  # All others are requests, or concern no topic.
        if user is not None:
            topic = user.topic if isinstance(user, Producer) else user.subscription.topic
            topic.has_bug("carrying out a command of a client", bug)

    async def _wait_room(self) -> None:
        """Stop reading while the entries or answers of this client have nowhere to go."""
        connection = self._connection
        connection.reading = False
        topics, self._appended_to = self._appended_to, {}
        # Only this connection waits: other clients of the same topic are read on.
        for topic in topics:
            await self._wait_room_of(topic)
        if not connection.takes_answers:
            connection.awaits_client = True
            await connection.wait_takes_answers()
            connection.awaits_client = False
        connection.reading = True

    async def _wait_room_of(self, topic: ProducedTopic) -> None:
        """Wait until the topic takes more.

        The client's pings are not read meanwhile, so the broker sends pings as a sign of life.
        """
        while True:
            with trio.move_on_after(_SIGN_OF_LIFE_S) as scope:
                await topic.wait_room()
            if not scope.cancelled_caught:
                return
            self._connection.send_ping()

    def _leave(self) -> None:
        """Close everything that this client had open."""
        # End the session first: an opening that completes from now on is undone.
        role = self._role
        self._connection.end()
        for producer in list(self.producers.values()):
            self._detach_producer(producer)
        for consumer in list(self.consumers.values()):
            self._detach_consumer(consumer)
        self.producers.clear()
        self.consumers.clear()
        self._use.count(role, 0, 0)
        self._watchers.end()

    @property
    def _role(self) -> str:
        """Return the role that the client has proven; "" if it was not asked."""
        caller = self._connection.caller
        return "" if caller is None else caller.identity.role

    def _count_use(self) -> None:
        """Note how many producers and consumers are open, or are being opened."""
        if not self._connection.closing:
            self._use.count(
                self._role,
                len(self.producers) + len(self._opening_producers),
                len(self.consumers) + len(self._opening_consumers),
            )

    def _close_queues(self) -> None:
        """Forget the requests that wait for their turn: nobody would read the answers."""
        self._requests.close()
        self._lookups.close()

    def refuse(self, command: int, body: Any, error: BrokerError) -> None:  # noqa: ANN401
        """Answer a request with an error; later, if the client repeats a refused request."""
        self._refusals.refuse(command, body, error)

    # -- commands, in the order in which they arrive

    def _handle(self, command: AnyCommand, frame_bytes: int) -> None:
        """Carry out a command, or begin its request.  `frame_bytes` is the size of its frame."""
        connection = self._connection
        if connection.session_state is session.ClientState.OPEN:
            match command:
                case Send():
                    self._on_send(command)
                    return
                case Ack():
                    self._on_ack(command)
                    return
                case Command():
                    pass
                case _:
                    pass  # Only brokers send the others: `admit` finds a violation below.
        number = command.type if isinstance(command, Command) else type_of(command)
        # SEND and ACK have returned above: topics count messages.
        self._broker.request_counts.received[number] += 1
        match connection.admit(number):
            case Admission.SERVE:
                assert isinstance(command, Command)
                self._serve(command, frame_bytes)
            case Admission.REFUSE:
                assert isinstance(command, Command)
                error = NotAllowedError(
                    f"this broker does not offer the command {type_name(number)}"
                )
                self.refuse(command.type, command.body, error)
            case Admission.VIOLATION:
                connection.not_admitted(number)

    # -- SEND and ACK

    def _on_send(self, send: Send) -> None:
        match self._producing.sending(send.producer_id, trio.current_time()):
            case Sending.TAKE:
                producer = self.producers[send.producer_id]
                producer.send(send)
                self._appended_to[producer.topic] = None
            case Sending.IGNORE:
                pass  # The topic has dropped the producer; the client will repeat the send.
            case Sending.VIOLATION:
                reason = f"the client sent to producer {send.producer_id}, which is not open"
                self._connection.violated(reason)

    def _on_ack(self, ack: Ack) -> None:
        consumer = self.consumers.get(ack.consumer_id)
        if consumer is None:
            if ack.request_id is not None:
                error = RefusedError(
                    pb.ConsumerNotFound, f"this connection has no consumer {ack.consumer_id}"
                )
                self.refuse(T.ACK, ack, error)
            return
        try:
            consumer.subscription.ack(consumer, ack)
        except BrokerError as error:
            if ack.request_id is not None:
                self.refuse(T.ACK, ack, error)
            else:
                # The next acknowledgement that asks for a receipt gets this error.
                consumer.refused_ack = error
            return
        if ack.request_id is None:
            return
        refused, consumer.refused_ack = consumer.refused_ack, None
        if refused is not None:
            # Clients take a receipt for one of all their earlier acknowledgements, too.
            self.refuse(T.ACK, ack, refused)
        elif self._acks_waiting >= ACKS_WAITING_MAX:
            too_many = UnavailableError(
                f"the acknowledgement may be lost: {self._acks_waiting} earlier ones of this"
                " connection wait to be stored; send it again when they have their receipts"
            )
            self.refuse(T.ACK, ack, too_many)
        else:
            self._acks_waiting += 1
            consumer.subscription.when_durable(self._ack_answer(ack))

    def _ack_answer(self, ack: Ack) -> Callable[[BrokerError | None], None]:
        connection = self._connection

        def answer(error: BrokerError | None) -> None:
            self._acks_waiting -= 1
            if error is not None:
                self.refuse(T.ACK, ack, error)
                return
            assert ack.request_id is not None
            connection.send_command(
                pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
            )

        return answer

    # -- all other commands

    def _serve(self, command: Command, frame_bytes: int) -> None:
        body = command.body
        match command.type:
            case T.FLOW:
                self._on_flow(body)
            case T.PING:
                self._connection.answer_ping()
            case T.PONG:
                pass
            case T.REDELIVER_UNACKNOWLEDGED_MESSAGES:
                self._on_redeliver(body)
            case T.CONNECT:
                self._connection.connect(body)
            case T.AUTH_RESPONSE:
                self._connection.auth_response(body)
            case T.PRODUCER:
                opening = self._producing.open(body.producer_id, body.request_id, body.epoch)
                self._perform_producing(opening, body, frame_bytes)
            case T.SUBSCRIBE:
                joining = self._consuming.open(body.consumer_id, body.request_id)
                self._perform_consuming(joining, body, frame_bytes)
            case T.CLOSE_PRODUCER:
                self._perform_producing(self._producing.close(body.producer_id, body.request_id))
            case T.CLOSE_CONSUMER:
                self._perform_consuming(self._consuming.close(body.consumer_id, body.request_id))
            case T.WATCH_TOPIC_LIST:
                self._watchers.open(body, frame_bytes)
            case T.WATCH_TOPIC_LIST_CLOSE:
                self._watchers.close(body)
            case _:
                self._begin_request(command.type, body, frame_bytes)

    def _on_flow(self, body: pb.CommandFlow) -> None:
        if not body.messagePermits:
            self._connection.violated("the client sent FLOW without permits")
            return
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None:
            consumer.subscription.flow(consumer, body.messagePermits)

    def _on_redeliver(self, body: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None:
            places = [(signed(each.ledgerId), signed(each.entryId)) for each in body.message_ids]
            epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
            consumer.subscription.redeliver(consumer, places, epoch)

    # -- opening a producer or a consumer

    def _begin_opening(
        self, openings: dict[int, _Opening], attempt: int, opening: _Opening
    ) -> None:
        assert attempt not in openings
        # `begin` may run the request in this very call, and its task looks itself up here.
        openings[attempt] = opening
        if not self._requests.begin(opening.request):
            del openings[attempt]
            opening.give_up(_too_many(self._requests))

    def _abort_opening(self, openings: dict[int, _Opening], attempt: int, what: str) -> None:
        """Give up an opening that its client has closed.

        One that still waits for its turn is answered at once.
        """
        opening = openings[attempt]
        if self._requests.withdraw(opening.request):
            del openings[attempt]
            opening.give_up(_closed_early(what))
        else:
            # The task answers when the opening is undone; until then the id stays taken.
            opening.scope.cancel()

    # -- producers

    def _forget_producer(self, producer: Producer) -> None:
        """Note that the topic has closed a producer and told the client."""
        # The client may have opened another producer under the same id already.
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            now_s = trio.current_time()
            self._perform_producing(self._producing.dropped(producer.producer_id, now_s))

    def _perform_producing(
        self,
        effects: list[producing.Effect],
        body: pb.CommandProducer | None = None,
        frame_bytes: int = 0,
    ) -> None:
        connection = self._connection
        for effect in effects:
            match effect:
                case producing.Attach(_, attempt):
                    assert body is not None
                    opening = self._producer_opening(body, attempt, frame_bytes)
                    self._begin_opening(self._opening_producers, attempt, opening)
                case producing.Abort(_, attempt):
                    self._abort_opening(self._opening_producers, attempt, "producer")
                case producing.Drain(producer_id):
                    self._drain(self.producers[producer_id])
                case producing.Detach(producer_id):
                    self._detach_producer(self.producers.pop(producer_id))
                case producing.Confirm(request_id):
                    connection.send_command(pb.CommandSuccess(request_id=request_id))
                case producing.Repeat(producer_id, request_id):
                    opened = self.producers[producer_id]
                    connection.send_command(producer_success(request_id, opened))
                case producing.Refuse(_, code, reason):
                    assert body is not None
                    self.refuse(T.PRODUCER, body, RefusedError(code, reason))
                case _:
                    assert_never(effect)
        self._count_use()

    def _drain(self, producer: Producer) -> None:
        producer_id = producer.producer_id
        producer.drain(lambda: self._perform_producing(self._producing.drained(producer_id)))

    def _detach_producer(self, producer: Producer) -> None:
        producer.leave()

    def _producer_opening(
        self, body: pb.CommandProducer, attempt: int, frame_bytes: int
    ) -> _Opening:
        scope = trio.CancelScope()
        request = Request(partial(self._open_producer, body, attempt, scope), frame_bytes)
        return _Opening(scope, request, partial(self._producer_not_opened, body, attempt))

    def _producer_not_opened(
        self, body: pb.CommandProducer, attempt: int, error: BrokerError
    ) -> None:
        self.refuse(T.PRODUCER, body, error)
        self._perform_producing(self._producing.open_failed(body.producer_id, attempt))

    async def _open_producer(
        self, body: pb.CommandProducer, attempt: int, scope: trio.CancelScope
    ) -> None:
        connection, producer_id = self._connection, body.producer_id
        producer: Producer | None = None
        error: BrokerError = _closed_early("producer")
        request = self._opening_producers[attempt].request
        changes = self._changes_of_rights
        try:
            with scope:
                producer = await self._attach_producer(body, request)
        except BrokerError as refused:
            error = refused
        finally:
            del self._opening_producers[attempt]
        # The client may have closed the producer, or the topic dropped it, after it was admitted
        # and before this task ran again.
        if producer is not None and (scope.cancel_called or connection.closing or producer.closed):
            self._detach_producer(producer)
            producer = None
        if producer is None:
            self._producer_not_opened(body, attempt, error)
            return
        assert producer_id not in self.producers
        self.producers[producer_id] = producer
        self._recheck_since(changes, producer.topic.name)
        self._perform_producing(self._producing.opened(producer_id, attempt))
        success = producer_success(body.request_id, producer)
        if connection.is_ours:
            success.deduplicated = producer.topic.deduplication is not None
        connection.send_command(success)

    async def _attach_producer(self, body: pb.CommandProducer, opening: Request) -> Producer:
        broker = self._broker
        await self._authorize(T.PRODUCER, body)
        broker.role_use.check_producer(self._role)
        if body.txn_enabled:
            raise NotAllowedError("this broker does not offer transactions")
        self._check_chars(body.producer_name, body.initial_subscription_name)
        self._check_metadata("producer", body.metadata)
        if body.producer_name.startswith(RESERVED):
            raise PreconditionError(
                f"the producer name {body.producer_name[:64]!r} is reserved: choose another one"
            )
        name = topic_name(body.topic)
        topic = await broker.topics.open(name, create=await self._queries.may_create(name))
        schema_version = await broker.schemas.producer(topic, schema_of(body))
        if body.initial_subscription_name:
            await topic.subscriptions.ensure(body.initial_subscription_name)
        request = ProducerRequest(
            body.producer_id,
            body.producer_name or broker.topics.producer_name(),
            AccessMode(body.producer_access_mode),
            body.topic_epoch if body.HasField("topic_epoch") else None,
            pairs_of(body.metadata),
            schema_version,
        )

        def must_wait() -> None:
            success = success_of(body.request_id, request.name, NOTHING, schema_version)
            success.producer_ready = False
            self._connection.send_command(success)
            # This one waits for as long as another producer stays.  It gives its place to
            # other requests.
            self._requests.step_aside(opening)

        return await topic.producers.add(
            request,
            self._connection.client,
            on_wait=must_wait,
            on_held=partial(self._requests.step_aside, opening),
        )

    # -- consumers

    def _forget_consumer(self, consumer: Consumer) -> None:
        """Note that the subscription has closed a consumer and told the client."""
        if self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
            self._perform_consuming(self._consuming.dropped(consumer.consumer_id))

    def _perform_consuming(
        self,
        effects: list[consuming.Effect],
        body: pb.CommandSubscribe | None = None,
        frame_bytes: int = 0,
    ) -> None:
        connection = self._connection
        for effect in effects:
            match effect:
                case consuming.Attach(_, attempt):
                    assert body is not None
                    opening = self._consumer_opening(body, attempt, frame_bytes)
                    self._begin_opening(self._opening_consumers, attempt, opening)
                case consuming.Abort(_, attempt):
                    self._abort_opening(self._opening_consumers, attempt, "consumer")
                case consuming.Detach(consumer_id):
                    self._detach_consumer(self.consumers.pop(consumer_id))
                case consuming.Confirm(request_id):
                    connection.send_command(pb.CommandSuccess(request_id=request_id))
                case consuming.Refuse(_, code, reason):
                    assert body is not None
                    self.refuse(T.SUBSCRIBE, body, RefusedError(code, reason))
                case _:
                    assert_never(effect)
        self._count_use()

    def _detach_consumer(self, consumer: Consumer) -> None:
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
        self.refuse(T.SUBSCRIBE, body, error)
        self._perform_consuming(self._consuming.open_failed(body.consumer_id, attempt))

    async def _open_consumer(
        self, body: pb.CommandSubscribe, attempt: int, scope: trio.CancelScope
    ) -> None:
        connection, consumer_id = self._connection, body.consumer_id
        found: tuple[Subscription | NonPersistentSubscription, Callable[[], Consumer]] | None
        found = None
        error: BrokerError = _closed_early("consumer")
        request = consumer_request(body)
        changes = self._changes_of_rights
        try:
            with scope:
                found = await self._prepare(body, request)
        except BrokerError as refused:
            error = refused
        finally:
            del self._opening_consumers[attempt]
        # A volatile subscription that was created for this consumer goes with it.
        if found is not None and (scope.cancel_called or connection.closing):
            found[0].drop_if_unused()
            found = None
        if found is None:
            self._consumer_not_opened(body, attempt, error)
            return
        subscription, join = found
        # The answer has to be sent before anything that the subscription sends.
        success = pb.CommandSuccess(request_id=body.request_id)
        self._add_move(success, subscription)
        self._add_properties(success, subscription)
        connection.send_command(success)
        # No checkpoint since `_prepare`: the subscription is still the one that was made ready.
        consumer = join()
        assert consumer_id not in self.consumers
        self.consumers[consumer_id] = consumer
        self._recheck_since(changes, subscription.topic.name)
        self._perform_consuming(self._consuming.opened(consumer_id, attempt))

    async def _prepare(
        self, body: pb.CommandSubscribe, request: ConsumerRequest
    ) -> tuple[Subscription | NonPersistentSubscription, Callable[[], Consumer]]:
        """Return the subscription, and a function that adds the consumer to it.

        The caller has to call it before its next checkpoint.
        """
        broker = self._broker
        await self._authorize(T.SUBSCRIBE, body)
        broker.role_use.check_consumer(self._role)
        if body.subType not in TYPE_NAMES:
            raise NotAllowedError(
                f"this broker has no subscriptions of type {body.subType}, only"
                f" {', '.join(TYPE_NAMES.values())}"
            )
        if body.read_compacted and body.subType not in (EXCLUSIVE, FAILOVER):
            raise NotAllowedError(
                "a consumer can read a compacted topic only on an exclusive or a failover"
                " subscription: choose one of these types"
            )
        if body.replicate_subscription_state:
            raise NotAllowedError("this broker does not replicate subscriptions")
        if request.durable and request.start_offset is not None:
            raise NotAllowedError(
                "a durable subscription cannot start at an offset: use a reader, or seek afterwards"
            )
        self._check_chars(body.subscription, body.consumer_name)
        self._check_metadata("consumer", body.metadata)
        name = topic_name(body.topic)
        create = (
            request.creates and body.force_topic_creation and await self._queries.may_create(name)
        )
        topic = await broker.topics.open(name, create=create)
        await broker.schemas.consumer(topic, schema_of(body))
        client = self._connection.client
        if isinstance(topic, NonPersistentTopic):
            volatile = await topic.subscriptions.prepare(request, client)
            return volatile, partial(topic.subscriptions.join, volatile, request, client)
        subscription = await topic.subscriptions.prepare(request, client)
        return subscription, partial(topic.subscriptions.join, subscription, request, client)

    def _check_chars(self, *names: str) -> None:
        for name in names:
            if len(name) > self._broker.limits.names_chars_max:
                raise PreconditionError(
                    f"a name has {len(name)} characters, and may have"
                    f" {self._broker.limits.names_chars_max}: {name[:32]!r}..."
                )

    def _check_metadata(self, what: str, metadata: Iterable[pb.KeyValue]) -> None:
        """Raise PreconditionError if the metadata, which are kept in memory, are too large."""
        size = sum(len(pair.key.encode()) + len(pair.value.encode()) for pair in metadata)
        most = self._broker.limits.metadata_bytes_max
        if size > most:
            raise PreconditionError(
                f"the metadata of the {what} take {size} bytes, and may take {most}: shorten them"
            )

    # -- rights

    async def _authorize(self, command: int, body: Any) -> None:  # noqa: ANN401
        """Raise AuthorizationError if the client lacks the right that the command needs."""
        authorization, caller = self._broker.authorization, self._connection.client.caller
        right = right_of_command(command)
        if authorization is None or caller is None or right is Right.IDENTIFIED:
            return
        resource, error = resource_of(command, body), None
        try:
            if command in (T.LOOKUP, T.PARTITIONED_METADATA):
                caller = self._asking(caller, body.original_principal)
            await authorization.check(caller, right, resource)
            if command == T.PRODUCER and body.initial_subscription_name:
                initial = of_topic(topic_name(body.topic), body.initial_subscription_name)
                await authorization.check(caller, Right.CONSUME, initial)
        except AuthorizationError as refused:
            error = refused
            raise
        finally:
            audit = self._broker.audit
            if audit is not None and (error is not None or command in _AUDITED):
                name, peer = type_name(command), self._connection.peer
                audit.note(name, peer, caller, str(resource), error)

    @property
    def _changes_of_rights(self) -> int:
        authorization = self._broker.authorization
        return 0 if authorization is None else authorization.changes

    def _recheck_since(self, changes: int, topic: TopicName) -> None:
        """Check the rights again if they have changed since an opening began.

        A right that was revoked after it was checked, and before the producer or consumer was
        there to be closed, would be kept otherwise.
        """
        authorization = self._broker.authorization
        if authorization is not None and authorization.changes != changes:
            authorization.recheck(topic.namespace)

    def _asking(self, caller: Caller, original: str) -> Caller:
        """Return the caller of a lookup: proxies look up for many clients on one connection."""
        if not original or original == caller.original:
            return caller
        return on_behalf(caller.identity, original, proxies=self._broker.config.proxy_roles)

    # -- other requests

    def _begin_request(self, command: int, body: Any, frame_bytes: int) -> None:  # noqa: ANN401
        """Answer a request in its turn, in a task of its own; refuse it if too many wait."""
        # The request is for the consumer that has this id now, not when its turn comes.
        consumer: Consumer | None = None
        if command in _OF_CONSUMERS:
            consumer = self.consumers.get(body.consumer_id)
        queue = self._lookups if command in _LOOKUPS else self._requests
        parts: _TwoPartRequest | None = None
        if command == T.SEEK:
            parts = _TwoPartRequest(partial(self._begin_seek, body, consumer))
        elif command == T.UNSUBSCRIBE:
            parts = _TwoPartRequest(partial(self._begin_unsubscription, body, consumer))
        run = partial(self._answer, command, body, consumer, parts)
        request = Request(run, frame_bytes, None if parts is None else parts.begin)
        if not queue.begin(request):
            self.refuse(command, body, _too_many(queue))

    async def _answer(
        self,
        command: int,
        body: Any,  # noqa: ANN401  generated messages
        consumer: Consumer | None,
        parts: _TwoPartRequest | None,
    ) -> None:
        try:
            await self._authorize(command, body)
            match command:
                case T.LOOKUP:
                    answer = await self._queries.lookup(body)
                case T.PARTITIONED_METADATA:
                    answer = await self._queries.partitioned_metadata(body)
                case T.GET_TOPICS_OF_NAMESPACE:
                    answer = await self._queries.topics_of_namespace(body)
                case T.GET_LAST_MESSAGE_ID:
                    answer = await self._last_message_id(body, consumer)
                case T.GET_SCHEMA:
                    answer = await self._broker.schemas.get(topic_name(body.topic), body)
                case T.GET_OR_CREATE_SCHEMA:
                    answer = await self._queries.get_or_create_schema(body)
                case T.CONSUMER_STATS:
                    known = self._known(body.consumer_id, consumer, pb.ConsumerNotFound)
                    now_ms = self._broker.clock.now_ms()
                    answer = consumer_stats_response(known, body.request_id, now_ms)
                case _:
                    assert parts is not None  # for a seek or an unsubscription
                    await parts.finish()
                    answer = pb.CommandSuccess(request_id=body.request_id)
                    if command == T.SEEK:  # so the client knows the move as its own
                        assert consumer is not None
                        self._add_move(answer, consumer.subscription)
        except BrokerError as error:
            self.refuse(command, body, error)
            if command == T.UNSUBSCRIBE and consumer is not None:
                self._tell_closed(consumer)
        else:
            self._connection.send_command(answer)

    async def _last_message_id(
        self, body: pb.CommandGetLastMessageId, consumer: Consumer | None
    ) -> Message:
        asking = self._known(body.consumer_id, consumer)
        subscription = _stored(
            asking, "has no last message: use a consumer, or a reader that begins at earliest"
        )
        topic = subscription.topic
        answer = pb.CommandGetLastMessageIdResponse(request_id=body.request_id)
        last = await subscription.last_message(asking)
        position, batch_index = last if last is not None else (Position(-1, -1), -1)
        set_id(answer.last_message_id, position)
        answer.last_message_id.partition = topic.name.partition
        answer.last_message_id.batch_index = batch_index
        mark_delete = subscription.mark_delete_of(asking)
        if mark_delete.ledger_id >= 0:
            set_id(answer.consumer_mark_delete_position, mark_delete)
        if self._connection.is_ours:
            answer.next_offset = topic.log.confirmed_offset + 1
            answer.first_offset = min(await topic.first_offset(), answer.next_offset)
            # A list of ledgers whose creation is not known says nothing, which is not "the same".
            if topic.log.created:
                answer.created = topic.log.created
            if topic.log.instance is not None:
                answer.instance = topic.log.instance
            if body.with_ledgers:
                await self._add_ledgers(answer, topic)
        return answer

    async def _add_ledgers(
        self, answer: pb.CommandGetLastMessageIdResponse, topic: StoredTopic
    ) -> None:
        """Add the sealed ledgers, which clients can read without this broker."""
        answer.ledgers_url = self._broker.ledgers_url
        for each in await topic.sealed_offsets():
            answer.ledgers.add(
                ledger_id=each.ledger.ledger_id,
                first_offset=each.first,
                next_offset=each.next,
                entries=each.ledger.entries,
                bytes=each.ledger.bytes,
            )

    def _begin_seek(
        self, body: pb.CommandSeek, consumer: Consumer | None
    ) -> Callable[[], Awaitable[None]]:
        asking = self._known(body.consumer_id, consumer)
        subscription = _stored(asking, "cannot be moved")
        topic = subscription.topic
        pending: int | None = None

        async def find() -> Target:
            if body.HasField("offset"):
                return await topic.position_of_offset(body.offset), None
            if body.HasField("message_id"):
                named = position_of(body.message_id)
                found = subscription.position_of_id(asking, named)
                # The bits are those of the named entry.  It may be gone: then another one is first.
                return found, pending if found == named else None
            return await subscription.position_of_time(asking, body.message_publish_time), None

        if body.HasField("message_id"):
            try:
                pending = decode_ack_set(body.message_id.ack_set)
            except MalformedError as error:
                raise PreconditionError(str(error)) from None
        elif not (body.HasField("offset") or body.HasField("message_publish_time")):
            raise PreconditionError("the seek names neither a message nor a time")
        return subscription.begin_move(find)

    def _begin_unsubscription(
        self, body: pb.CommandUnsubscribe, asked: Consumer | None
    ) -> Callable[[], Awaitable[None]]:
        consumer = self._known(body.consumer_id, asked)
        subscription = consumer.subscription
        if len(subscription.consumers) > 1 and not body.force:
            raise ConsumerBusyError(
                f"the subscription {subscription.name} has other consumers: close them first"
            )
        # No CLOSE_CONSUMER for this client: it would subscribe again.
        self._forget_consumer(consumer)
        subscription.remove(consumer)
        return subscription.begin_removal()

    def _tell_closed(self, consumer: Consumer) -> None:
        """Let the client subscribe again: its unsubscription has failed, but closed the consumer.

        The client would wait for messages otherwise, and the subscription may still be there.
        """
        if consumer.consumer_id not in self.consumers:
            consumer.tell_closed()

    def _add_move(self, success: pb.CommandSuccess, subscription: ConsumedSubscription) -> None:
        """Add the number of the subscription's latest move, if the client knows the field."""
        if self._connection.is_ours and subscription.moved is not None:
            success.moved = subscription.moved

    def _add_properties(
        self, success: pb.CommandSuccess, subscription: ConsumedSubscription
    ) -> None:
        """Add the stored properties of the subscription, if the client knows the field."""
        if self._connection.is_ours and isinstance(subscription, Subscription):
            for key, value in subscription.properties.items():
                success.subscription_properties.add(key=key, value=value)

    def _known(
        self, consumer_id: int, consumer: Consumer | None, code: int = pb.MetadataError
    ) -> Consumer:
        """Return the consumer that a request was for, if it is still open."""
        if consumer is None or self.consumers.get(consumer_id) is not consumer:
            raise RefusedError(code, f"this connection has no consumer {consumer_id}")
        return consumer


def _stored(consumer: Consumer, why: str) -> Subscription:
    """Return the subscription of a consumer.  Raise NotAllowedError if nothing of it is stored."""
    subscription = consumer.subscription
    if not isinstance(subscription, Subscription):
        raise NotAllowedError(
            f"{subscription.topic.name} stores no messages, so the subscription"
            f" {subscription.name} {why}"
        )
    return subscription


def _too_many(queue: RequestQueue) -> UnavailableError:
    return UnavailableError(
        f"the request was not begun: {len(queue)} requests of this connection wait already, and"
        " neither it nor the broker has room for more; ask again after some have been answered"
    )


def _closed_early(what: str) -> UnavailableError:
    return UnavailableError(f"the {what} was closed before it was open")
