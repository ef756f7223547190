"""Carries out what a client sends: commands in their order, requests in tasks of their own.

One task reads the connection.  It carries out at once the commands that come once per entry (SEND,
ACK, FLOW), and every other command that waits for nothing.  All other commands are requests: open
and close, look up, seek, ask for statistics.  Each request runs in a task of its own and is
answered once, with its result or with its error.  A command that the session does not admit is
refused, or ends the connection: `broker.protocol.session` decides.

`client_producers` and `client_consumers` open and close producers and consumers.  A request may
have to wait for its turn (`request_turns`).  A request that names a consumer is for the consumer
that had this id when the request arrived: it must not reach another one that the client has opened
under the same id since.

A seek or an unsubscription takes consumers off their subscription.  It does so in the turn of the
event loop in which the request begins.  So the commands that follow find it done, and the commands
before it were carried out already.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import trio
from google.protobuf.message import Message

from daybook.broker.context import BrokerContext
from daybook.broker.dispatch.consumer import Consumer
from daybook.broker.dispatch.subscription import Subscription, Target
from daybook.broker.errors import (
    BrokerError,
    ConsumerBusyError,
    NotAllowedError,
    PreconditionError,
)
from daybook.broker.protocol import session
from daybook.broker.protocol.session import Admission
from daybook.broker.service.accept import Prove, no_limits
from daybook.broker.service.client_consumers import ClientConsumers, add_move
from daybook.broker.service.client_producers import ClientProducers
from daybook.broker.service.client_rights import ClientRights
from daybook.broker.service.command_bodies import position_of, set_id, topic_name, type_of
from daybook.broker.service.connection import FRAME_PADDING_BYTES, ClientConnection
from daybook.broker.service.connection_use import ConnectionUse
from daybook.broker.service.openings import too_many_wait
from daybook.broker.service.places import address_of
from daybook.broker.service.refused_requests import RefusedRequests
from daybook.broker.service.request_turns import Request, RequestQueue
from daybook.broker.service.topic_queries import TopicQueries
from daybook.broker.service.topic_watchers import TopicWatchers
from daybook.broker.topics.producer import ProducedTopic, Producer
from daybook.broker.topics.stats import consumer_stats_response
from daybook.broker.topics.stored_topic import StoredTopic
from daybook.managed_ledger.position import Position
from daybook.wire.ack_sets import decode_ack_set
from daybook.wire.connection import FrameConnection, FramePace
from daybook.wire.errors import MalformedError, OversizeError, WireError
from daybook.wire.messages.client import Send
from daybook.wire.messages.consumer import Ack
from daybook.wire.messages.registry import AnyCommand, Command, decode_frame, type_name
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Stream

T = pb.BaseCommand
_LOOKUPS = (
    T.LOOKUP,
    T.PARTITIONED_METADATA,
    T.GET_TOPICS_OF_NAMESPACE,
    T.CONSUMER_STATS,
    T.GET_SCHEMA,
)
_OF_CONSUMERS = (T.GET_LAST_MESSAGE_ID, T.CONSUMER_STATS, T.SEEK, T.UNSUBSCRIBE)

# Clients compare `max_message_size` with the message, without its properties and key.  A frame that
# is read can be refused alone; one that is not read ends the connection for everybody who uses it.
_FRAME_MESSAGES = 2
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
            try:
                raise self._error
            finally:
                self._error = None  # Its traceback refers to this object.
        assert self._rest is not None
        await self._rest()


class Handlers:
    """The handlers of one client connection, and the producers and consumers open on it."""

    def __init__(
        self, frames: FrameConnection, broker: BrokerContext, prove: Prove = no_limits
    ) -> None:
        self._broker = broker
        self._connection = ClientConnection(
            frames,
            broker,
            on_closing=self._close_queues,
            forget_producer=self._forget_producer,
            forget_consumer=self._forget_consumer,
            prove=prove,
        )
        self._address = address_of(frames.peer)
        self._rights = ClientRights(self._connection, broker)
        self._refusals = RefusedRequests(
            self._connection, broker.refusal_log, broker.refusal_pace, broker.request_counts
        )
        self._requests = RequestQueue(broker.request_turns, self._connection)
        self._lookups = RequestQueue(broker.lookup_turns, self._connection)
        self._watchers = TopicWatchers(
            self._connection,
            broker.topic_lists,
            self._lookups,
            self._refusals.refuse,
            self._refusals.hold,
            partial(self._rights.check, T.WATCH_TOPIC_LIST) if broker.authorization else None,
            watchers_max=broker.limits.watchers_max,
        )
        self._queries = TopicQueries(broker, encrypted=self._connection.encrypted)
        self._use = ConnectionUse(broker.role_use, self._connection, self._rights)
        self._producers = ClientProducers(
            self._connection,
            broker,
            self._rights,
            self._queries,
            self._requests,
            self._use,
            refuse=self._refusals.refuse,
            hold=self._refusals.hold,
        )
        self._consumers = ClientConsumers(
            self._connection,
            broker,
            self._rights,
            self._queries,
            self._requests,
            self._use,
            refuse=self._refusals.refuse,
            hold=self._refusals.hold,
        )

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
                with trio.CancelScope(shield=True):
                    await self._leave()

    async def _receive(self) -> None:
        connection = self._connection
        try:
            batch = await connection.receive_first()
            while batch:
                frames = iter(batch)
                await self._wait_turn()
                while self._handle_some(frames):
                    await self._wait_room()
                    await trio.lowlevel.checkpoint()
                    await self._wait_turn()
                    if connection.is_lost:
                        return  # Nobody would get an answer to the rest.
                if connection.closing:
                    return
                await self._wait_room()
                batch = [] if connection.closing else await connection.receive()
        except OversizeError as error:
            connection.violated(str(error))
        except WireError as error:
            connection.violated(f"a frame cannot be parsed: {error}")

    def _handle_some(self, frames: Iterator[memoryview]) -> bool:
        """Carry out commands until other tasks have to run; return False after the last one."""
        connection, handle = self._connection, self._handle
        turns, count, size_bytes = self._broker.frame_turns, 0, 0
        frames_max = turns.frames_max
        with connection.together():
            for count, frame in enumerate(frames, 1):
                size_bytes += len(frame)
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
                if count == frames_max or connection.must_yield:
                    connection.must_yield = False
                    turns.spend(count, size_bytes)
                    return True
        turns.spend(count, size_bytes)
        return False

    async def _wait_turn(self) -> None:
        """Wait until this connection may carry out commands."""
        turns, caller = self._broker.frame_turns, self._connection.caller
        source = self._address if caller is None else caller.role
        if not turns.may_begin(source):
            self._connection.reading = False
            await turns.wait(source, _SIGN_OF_LIFE_S, self._connection.send_ping)
            self._connection.reading = True

    def _blame_topic(self, command: AnyCommand, bug: Exception) -> None:
        """Tell the topic of a command that the command has left it half changed."""
        user: Producer | Consumer | None = None
        match command:
            case Send():
                user = self._producers.opened.get(command.producer_id)
            case Ack():
                user = self._consumers.opened.get(command.consumer_id)
            case Command(type=T.FLOW | T.REDELIVER_UNACKNOWLEDGED_MESSAGES):
                user = self._consumers.opened.get(command.body.consumer_id)
            case _:
                pass  # All others are requests, or concern no topic.
        if user is not None:
            topic = user.topic if isinstance(user, Producer) else user.subscription.topic
            topic.has_bug("carrying out a command of a client", bug)

    async def _wait_room(self) -> None:
        """Stop reading while the entries or answers of this client have nowhere to go."""
        connection = self._connection
        connection.reading = False
        # Only this connection waits: other clients of the same topic are read on.
        for topic in self._producers.take_appended_to():
            if not topic.has_room:  # A scope with a deadline costs more than to ask this.
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

    async def _leave(self) -> None:
        """Close everything that this client had open."""
        # End the session first: an opening that completes from now on is undone.
        self._connection.end()
        self._producers.leave()
        await self._consumers.leave()
        self._use.end()
        self._watchers.end()

    def _forget_producer(self, producer: Producer) -> None:
        self._producers.forget(producer)

    def _forget_consumer(self, consumer: Consumer) -> None:
        self._consumers.forget(consumer)

    def _close_queues(self) -> None:
        """Forget the requests that wait for their turn: nobody would read the answers."""
        self._requests.close()
        self._lookups.close()

    # -- commands, in the order in which they arrive

    def _handle(self, command: AnyCommand, frame_bytes: int) -> None:
        """Carry out a command, or begin its request.  `frame_bytes` is the size of its frame."""
        connection = self._connection
        if connection.session_state is session.ClientState.OPEN:
            match command:
                case Send():
                    self._producers.send(command)
                    return
                case Ack():
                    self._consumers.ack(command)
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
                self._refusals.refuse(command.type, command.body, error)
            case Admission.VIOLATION:
                connection.not_admitted(number)

    # -- all other commands

    def _serve(self, command: Command, frame_bytes: int) -> None:
        body = command.body
        match command.type:
            case T.FLOW:
                self._consumers.flow(body)
            case T.PING:
                self._connection.answer_ping()
            case T.PONG:
                pass
            case T.REDELIVER_UNACKNOWLEDGED_MESSAGES:
                self._consumers.redeliver(body)
            case T.CONNECT:
                self._connection.connect(body)
            case T.AUTH_RESPONSE:
                self._connection.auth_response(body)
            case T.PRODUCER:
                self._producers.open(body, frame_bytes)
            case T.SUBSCRIBE:
                self._consumers.open(body, frame_bytes)
            case T.CLOSE_PRODUCER:
                self._producers.close(body)
            case T.CLOSE_CONSUMER:
                self._consumers.close(body)
            case T.WATCH_TOPIC_LIST:
                self._watchers.open(body, frame_bytes)
            case T.WATCH_TOPIC_LIST_CLOSE:
                self._watchers.close(body)
            case _:
                self._begin_request(command.type, body, frame_bytes)

    # -- other requests

    def _begin_request(self, command: int, body: Any, frame_bytes: int) -> None:  # noqa: ANN401
        """Answer a request in its turn, in a task of its own; refuse it if too many wait."""
        # The request is for the consumer that has this id now, not when its turn comes.
        consumer: Consumer | None = None
        if command in _OF_CONSUMERS:
            consumer = self._consumers.opened.get(body.consumer_id)
        queue = self._lookups if command in _LOOKUPS else self._requests
        parts: _TwoPartRequest | None = None
        if command == T.SEEK:
            parts = _TwoPartRequest(partial(self._begin_seek, body, consumer))
        elif command == T.UNSUBSCRIBE:
            parts = _TwoPartRequest(partial(self._begin_unsubscription, body, consumer))
        run = partial(self._answer, command, body, consumer, parts, queue)
        request = Request(run, frame_bytes, None if parts is None else parts.begin)
        if not queue.begin(request):
            self._refusals.refuse(command, body, too_many_wait(queue))

    async def _answer(
        self,
        command: int,
        body: Any,  # noqa: ANN401  generated messages
        consumer: Consumer | None,
        parts: _TwoPartRequest | None,
        queue: RequestQueue,
        request: Request,
    ) -> None:
        try:
            await self._rights.check(command, body)
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
                    known = self._consumers.known(body.consumer_id, consumer, pb.ConsumerNotFound)
                    now_ms = self._broker.clock.now_ms()
                    answer = consumer_stats_response(known, body.request_id, now_ms)
                case _:
                    assert parts is not None  # for a seek or an unsubscription
                    await parts.finish()
                    answer = pb.CommandSuccess(request_id=body.request_id)
                    if command == T.SEEK:  # so the client knows the move as its own
                        assert consumer is not None
                        add_move(answer, self._connection, consumer.subscription)
        except BrokerError as error:
            await self._refusals.hold(error, queue.giving_way(request))
            self._refusals.refuse(command, body, error)
            if command == T.UNSUBSCRIBE and consumer is not None:
                self._tell_closed(consumer)
        else:
            self._connection.send_command(answer)

    async def _last_message_id(
        self, body: pb.CommandGetLastMessageId, consumer: Consumer | None
    ) -> Message:
        asking = self._consumers.known(body.consumer_id, consumer)
        subscription = _stored(
            asking, "has no last message: use a consumer, or a reader that begins at earliest"
        )
        topic = subscription.topic
        answer = pb.CommandGetLastMessageIdResponse(request_id=body.request_id)
        last = await subscription.view.last_message(asking)
        position, batch_index = last if last is not None else (Position(-1, -1), -1)
        set_id(answer.last_message_id, position)
        answer.last_message_id.partition = topic.name.partition
        answer.last_message_id.batch_index = batch_index
        mark_delete = subscription.view.mark_delete_of(asking)
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
        asking = self._consumers.known(body.consumer_id, consumer)
        subscription = _stored(asking, "cannot be moved")
        topic = subscription.topic
        pending: int | None = None

        async def find() -> Target:
            if body.HasField("offset"):
                return await topic.position_of_offset(body.offset), None
            if body.HasField("message_id"):
                named = position_of(body.message_id)
                found = subscription.view.position_of_id(asking, named)
                # The bits are those of the named entry.  It may be gone: then another one is first.
                return found, pending if found == named else None
            return await subscription.view.position_of_time(asking, body.message_publish_time), None

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
        consumer = self._consumers.known(body.consumer_id, asked)
        subscription = consumer.subscription
        if len(subscription.consumers) > 1 and not body.force:
            raise ConsumerBusyError(
                f"the subscription {subscription.name} has other consumers: close them first"
            )
        # No CLOSE_CONSUMER for this client: it would subscribe again.
        self._consumers.forget(consumer)
        subscription.remove(consumer)
        return subscription.begin_removal()

    def _tell_closed(self, consumer: Consumer) -> None:
        """Let the client subscribe again: its unsubscription has failed, but closed the consumer.

        The client would wait for messages otherwise, and the subscription may still be there.
        """
        if consumer.consumer_id not in self._consumers.opened:
            consumer.tell_closed()


def _stored(consumer: Consumer, why: str) -> Subscription:
    """Return the subscription of a consumer.  Raise NotAllowedError if nothing of it is stored."""
    subscription = consumer.subscription
    if not isinstance(subscription, Subscription):
        raise NotAllowedError(
            f"{subscription.topic.name} stores no messages, so the subscription"
            f" {subscription.name} {why}"
        )
    return subscription
