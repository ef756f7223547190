"""One client's connection: from frames to producers, consumers and requests, and back.

One task reads.  What comes once per entry (SEND, ACK, FLOW) is carried out at once, in that task;
what has to wait for something is a request in a task of its own (`broker.requests`), and there is a
limit to how many of those a client has under way.

Reading stops while a topic that this client sends to has too much to store, while too much waits to
be sent to the client, and while too many of its requests are under way.
"""

from collections.abc import Callable, Sequence
from typing import Any, assert_never

import trio
from google.protobuf.message import Message

from broker.consumer import Consumer
from broker.context import BrokerContext
from broker.errors import BrokerError, NotAllowedError, RefusedError
from broker.producer import Producer
from broker.protocol import consuming, producing, session
from broker.protocol.producing import Sending
from broker.protocol.refusals import refusal
from broker.protocol.session import Admission, SessionProtocol
from broker.requests import Requests
from broker.topic_log import TopicLog
from wire.connection import FrameConnection
from wire.errors import OversizeError, WireError
from wire.messages.client import Send
from wire.messages.consumer import Ack
from wire.messages.registry import (
    NO_ID,
    AnyCommand,
    Command,
    decode_frame,
    encode,
    signed,
)
from wire.proto import pulsar_pb2 as pb
from wire.transport import Buffer, Stream

T = pb.BaseCommand

FRAME_PADDING_BYTES = 10 * 1024
_FRAMES_IN_A_TURN = 128  # of one connection; then others have theirs
_PONG = encode(pb.CommandPong())
_PING = encode(pb.CommandPing())


async def serve_client(stream: Stream, broker: BrokerContext) -> None:
    """Serve one client until it leaves, breaks the protocol, or falls silent."""
    frames = FrameConnection(
        stream,
        arenas=broker.arenas,
        flusher=broker.flusher,
        frame_bytes_max=broker.config.max_message_size + FRAME_PADDING_BYTES,
        frame_timeout_s=broker.config.keep_alive_s,
    )
    connection = ClientConnection(frames, broker)
    try:
        await connection.run()
    finally:
        frames.close("the broker closed the connection")


class ClientConnection:
    """See the module."""

    def __init__(self, frames: FrameConnection, broker: BrokerContext) -> None:
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.producing = producing.ProducingProtocol(
            producers_max=broker.limits.producers_max, ignore_s=broker.config.keep_alive_s
        )
        self.consuming = consuming.ConsumingProtocol(consumers_max=broker.limits.consumers_max)
        self.connected_ms = broker.clock.now_ms()
        self._frames = frames
        self._broker = broker
        self._limits = broker.limits
        self._session = SessionProtocol(broker.own_urls)
        self._nursery: trio.Nursery | None = None
        self._requests = Requests(self, broker)
        self._under_way = 0
        self._fewer = trio.Event()
        self._crowded: dict[TopicLog, None] = {}  # was appended to since we last looked
        self._reading = True
        self._with_receipts: list[Producer] = []
        self._draining: dict[Consumer, None] = {}
        self._heard = trio.Event()
        self._closing = False

    # -- what is so

    @property
    def peer(self) -> str:
        return self._frames.peer

    @property
    def client_version(self) -> str:
        return self._session.client_version

    @property
    def protocol_version(self) -> int:
        return self._session.protocol_version

    @property
    def is_ours(self) -> bool:
        return self._session.is_ours

    @property
    def sends_broker_metadata(self) -> bool:
        return self._session.sends_broker_metadata

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def room_bytes(self) -> int:
        return self._broker.feed_budget.share_bytes - self._frames.pending_bytes

    # -- its life

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._keep_alive)
            try:
                await self._receive()
                await self._frames.aclose(self._frames.close_reason or "closed")
            finally:
                self._leave()
                nursery.cancel_scope.cancel()

    async def _receive(self) -> None:
        try:
            while not self._closing and (batch := await self._frames.receive()):
                self._heard.set()
                for count, frame in enumerate(batch, 1):
                    self._dispatch(decode_frame(frame))
                    if self._closing:
                        return
                    if self._under_way >= self._limits.requests_max:
                        await self._wait_fewer()
                    if not count % _FRAMES_IN_A_TURN:
                        await self._wait_room()
                        await trio.lowlevel.checkpoint()
                await self._wait_room()
        except OversizeError as error:
            self._feed_session(session.Violated(str(error)))
        except WireError as error:
            self._feed_session(session.Violated(f"a frame makes no sense: {error}"))

    async def _wait_room(self) -> None:
        """Do not read on while what was read has nowhere to go."""
        self._reading = False
        crowded, self._crowded = self._crowded, {}
        for log in crowded:
            await log.wait_room()
        if self._frames.pending_bytes > self._limits.unread_bytes_max:
            await self._frames.wait_below(self._limits.unread_bytes_max // 2)
        self._reading = True

    async def _wait_fewer(self) -> None:
        self._reading = False
        while self._under_way >= self._limits.requests_max:
            self._fewer = trio.Event()
            await self._fewer.wait()
        self._reading = True

    async def _keep_alive(self) -> None:
        config = self._broker.config
        with trio.move_on_after(config.connect_timeout_s):
            while self._session.state is session.State.GREETING:
                await self._hear()
        self._feed_session(session.GreetingOverdue())
        while True:
            await trio.sleep(config.keep_alive_s)
            tick = session.Tick(self._frames.received_bytes, self._reading)
            self._feed_session(tick)

    def _leave(self) -> None:
        """Whatever this client had open is closed."""
        self._feed_session(session.Ended())
        self._closing = True
        for producer in list(self.producers.values()):
            self._requests.detach_producer(producer)
        for consumer in list(self.consumers.values()):
            self._requests.detach_consumer(consumer)
        self.producers.clear()
        self.consumers.clear()

    async def is_alive(self, within_s: float) -> bool:
        """Does the client answer a PING in time?  Anything that it sends will do."""
        if self._closing or self._frames.closed:
            return False
        if not self._reading:
            return True  # Nobody listens to it now.  That it is dead is not known.
        before = self._frames.received_bytes
        self._frames.send((_PING,))
        with trio.move_on_after(within_s):
            while self._frames.received_bytes == before and not self._closing:
                await self._hear()
        return self._frames.received_bytes != before and not self._closing

    async def _hear(self) -> None:
        """Return when something has come, or was done about the session."""
        if self._heard.is_set():
            self._heard = trio.Event()
        await self._heard.wait()

    # -- sending

    def send(self, buffers: Sequence[Buffer]) -> None:
        self._frames.send(buffers)

    def tell(self, message: Message) -> None:
        self._frames.send((encode(message),))

    def receipts_ready(self, producer: Producer) -> None:
        if not self._with_receipts:
            self._broker.flusher.mark(self)
        self._with_receipts.append(producer)

    def flush(self) -> bool:
        """For the flusher: send the receipts that have gathered in this turn."""
        producers, self._with_receipts = self._with_receipts, []
        for producer in producers:
            producer.flush_receipts()
        return True

    async def drain(self) -> None:
        """For the flusher; there is never a rest."""
        await trio.lowlevel.checkpoint()

    def call_when_writable(self, consumer: Consumer) -> None:
        if not self._draining and self._nursery is not None and not self._closing:
            self._nursery.start_soon(self._wait_writable)
        self._draining[consumer] = None

    async def _wait_writable(self) -> None:
        """Until half of what may wait is gone.  A client that takes nothing at all is cut."""
        budget, frames = self._broker.feed_budget, self._frames
        budget.slow += 1
        try:
            while (before := frames.pending_bytes) > budget.share_bytes // 2:
                with trio.move_on_after(2 * self._broker.config.keep_alive_s):
                    await frames.wait_below(budget.share_bytes // 2)
                if frames.pending_bytes >= before:
                    frames.close("it does not take what it has asked for")
        finally:
            budget.slow -= 1
        draining, self._draining = self._draining, {}
        for consumer in draining:
            consumer.writable()

    # -- what the session says

    def _feed_session(self, event: session.Event) -> None:
        for effect in self._session.step(event):
            match effect:
                case session.Greet(protocol_version):
                    self._greet(protocol_version)
                case session.SendPing():
                    self._frames.send((_PING,))
                case session.Refuse(code, reason):
                    error = pb.CommandError(request_id=NO_ID, message=reason)
                    error.error = code  # type: ignore[assignment]
                    self.tell(error)
                    self._end(reason)
                case session.Close(reason):
                    self._end(reason)
                    self._frames.close(reason)
                case _:
                    assert_never(effect)

    def _greet(self, protocol_version: int) -> None:
        connected = pb.CommandConnected(
            server_version=self._broker.server_version,
            protocol_version=protocol_version,
            max_message_size=self._broker.config.max_message_size,
        )
        connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
        if self.is_ours:
            connected.feature_flags.supports_broker_entry_metadata = True
        self.tell(connected)

    def _end(self, reason: str) -> None:
        """Read no more; what is queued is still sent, for a moment."""
        self._closing = True
        self._broker.log.info("a client is cut", peer=self.peer, why=reason)

    # -- what the client says

    def _dispatch(self, command: AnyCommand) -> None:
        """Carry out, or begin, what a command asks for."""
        if self._session.state is session.State.OPEN:
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
                    pass  # Only brokers send those.
        number = command.type if isinstance(command, Command) else _type_of(command)
        match self._session.admit(number):
            case Admission.SERVE:
                assert isinstance(command, Command)
                self._serve(command)
            case Admission.REFUSE:
                assert isinstance(command, Command)
                error = NotAllowedError("this broker does not offer that")
                self.refuse(command.type, command.body, error)
            case Admission.VIOLATION:
                self._feed_session(self._session.violation(number))

    def refuse(self, command: int, body: Any, error: BrokerError) -> None:  # noqa: ANN401
        """Answer a request with an error, in its own way."""
        self.tell(refusal(command, body, error.code, error.reason))

    def _on_send(self, send: Send) -> None:
        match self.producing.sending(send.producer_id, trio.current_time()):
            case Sending.TAKE:
                producer = self.producers[send.producer_id]
                producer.send(send)
                self._crowded[producer.topic.log] = None
            case Sending.IGNORE:
                pass
            case Sending.VIOLATION:
                reason = f"SEND for producer {send.producer_id}, which is not open"
                self._feed_session(session.Violated(reason))

    def _on_ack(self, ack: Ack) -> None:
        consumer = self.consumers.get(ack.consumer_id)
        if consumer is None:
            if ack.request_id is not None:
                error = RefusedError(pb.ConsumerNotFound, "there is no such consumer")
                self.refuse(T.ACK, ack, error)
            return
        try:
            consumer.subscription.ack(consumer, ack)
        except BrokerError as error:
            if ack.request_id is not None:
                self.refuse(T.ACK, ack, error)
            return
        if ack.request_id is not None:
            consumer.subscription.when_durable(self._ack_answer(ack))

    def _ack_answer(self, ack: Ack) -> Callable[[BrokerError | None], None]:
        def answer(error: BrokerError | None) -> None:
            if error is not None:
                self.refuse(T.ACK, ack, error)
                return
            assert ack.request_id is not None
            self.tell(pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id))

        return answer

    def _serve(self, command: Command) -> None:
        body = command.body
        match command.type:
            case T.FLOW:
                self._on_flow(body)
            case T.PING:
                self._frames.send((_PONG,))
            case T.PONG:
                pass
            case T.REDELIVER_UNACKNOWLEDGED_MESSAGES:
                self._on_redeliver(body)
            case T.CONNECT:
                self._on_connect(body)
            case T.PRODUCER:
                opened = producing.Open(body.producer_id, body.request_id, body.epoch)
                self._requests.feed_producing(opened, body)
            case T.SUBSCRIBE:
                asked = consuming.Open(body.consumer_id, body.request_id)
                self._requests.feed_consuming(asked, body)
            case T.CLOSE_PRODUCER:
                close = producing.CloseAsked(body.producer_id, body.request_id)
                self._requests.feed_producing(close)
            case T.CLOSE_CONSUMER:
                left = consuming.CloseAsked(body.consumer_id, body.request_id)
                self._requests.feed_consuming(left)
            case _:
                self.begin(self._requests.answer, command.type, body)

    def _on_connect(self, body: pb.CommandConnect) -> None:
        self._feed_session(
            session.Connect(
                body.client_version,
                body.protocol_version,
                body.feature_flags.supports_broker_entry_metadata,
                body.proxy_to_broker_url,
            )
        )
        self._heard.set()

    def _on_flow(self, body: pb.CommandFlow) -> None:
        if not body.messagePermits:
            self._feed_session(session.Violated("FLOW without permits"))
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

    # -- requests

    def begin(self, request: Callable[..., Any], *args: object) -> None:
        """Carry out a request in a task of its own."""
        if self._nursery is None or self._closing:
            return
        self._under_way += 1
        self._nursery.start_soon(self._carry_out, request, args)

    async def _carry_out(self, request: Callable[..., Any], args: tuple[object, ...]) -> None:
        try:
            await request(*args)
        finally:
            self._under_way -= 1
            self._fewer.set()

    # -- what topics say

    def forget_producer(self, producer: Producer) -> None:
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            dropped = producing.Dropped(producer.producer_id, trio.current_time())
            self._requests.feed_producing(dropped)

    def forget_consumer(self, consumer: Consumer) -> None:
        if self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
            self._requests.feed_consuming(consuming.Dropped(consumer.consumer_id))


def _type_of(command: AnyCommand) -> int:
    match command:
        case Send():
            return T.SEND
        case Ack():
            return T.ACK
        case Command():
            return command.type
        case _:
            return T.MESSAGE if hasattr(command, "payload") else T.SEND_RECEIPT
