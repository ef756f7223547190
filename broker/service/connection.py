"""One client's connection: its life, what is open on it, and what goes out.

One task reads.  Most of what the client says is carried out at once, in that task
(`broker.service.commands`); what has to wait for something is a request in a task of its own
(`broker.service.requests`), and there is a limit to how many of those a client has under way.

Reading stops while a topic that this client sends to has too much to store, and while too much
waits to be sent to the client.  Requests never stop it: those that cannot be begun yet wait in a
queue (`broker.service.request_turns`), or are refused.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, assert_never

import trio
from google.protobuf.message import Message

from daybook.broker.connected_client import Call, ConnectedClient
from daybook.broker.context import BrokerContext
from daybook.broker.dispatch.subscription import Consumer
from daybook.broker.errors import BrokerError, RefusedError
from daybook.broker.protocol import consuming, producing, session
from daybook.broker.protocol.session import SessionProtocol
from daybook.broker.service.commands import Commands
from daybook.broker.service.refused_requests import RefusedRequests
from daybook.broker.service.requests import Requests
from daybook.broker.topics.producer import Producer
from daybook.broker.topics.topic_log import TopicLog
from daybook.wire.connection import FrameConnection, FramePace
from daybook.wire.errors import OversizeError, WireError
from daybook.wire.messages.registry import NO_ID, decode_frame, encode
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer, Stream

FRAME_PADDING_BYTES = 10 * 1024
# Clients compare `max_message_size` with the message, and not with its properties and key.  A frame
# that is read can be refused alone; one that is not read ends the connection of everybody on it.
_FRAME_MESSAGES = 2
_FRAMES_IN_A_TURN = 128  # of one connection; then others have theirs
_SIGN_OF_LIFE_S = 1.0  # clients of ours give up after 3 s without one
_PING = encode(pb.CommandPing())


async def serve_client(stream: Stream, broker: BrokerContext) -> None:
    """Serve one client until it leaves, breaks the protocol, or falls silent."""
    frames = FrameConnection(
        stream,
        arenas=broker.arenas,
        flusher=broker.flusher,
        frame_bytes_max=_FRAME_MESSAGES * broker.config.max_message_size + FRAME_PADDING_BYTES,
        newcomer_frame_bytes_max=broker.config.connect_bytes_max,
        pace=FramePace(broker.config.frame_stall_s, broker.config.frame_bytes_per_s),
    )
    connection = ClientConnection(frames, broker)
    try:
        await connection.run()
        if frames.cut_reason:
            broker.log.info("a client is cut", peer=frames.peer, why=frames.cut_reason)
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
        self._refusals = RefusedRequests(self, broker.refusal_log)
        self._requests = Requests(self, broker)
        self._commands = Commands(self, self._session, self._requests, broker.request_counts)
        self._reading = True
        self._client: ConnectedClient | None = None
        self._call_at_flush: list[Call] = []
        self._call_when_writable: dict[Call, None] = {}
        self._heard = trio.Event()
        self._closing = False

    # -- what is so

    @property
    def peer(self) -> str:
        return self._frames.peer

    @property
    def is_ours(self) -> bool:
        return self._session.is_ours

    @property
    def client(self) -> ConnectedClient:
        """The client as its producers and consumers see it, once it has introduced itself."""
        assert self._client is not None
        return self._client

    @property
    def closing(self) -> bool:
        return self._closing

    def _room_bytes(self) -> int:
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
        dispatch = self._commands.dispatch
        try:
            while not self._closing and (batch := await self._frames.receive()):
                self._heard.set()
                for count, frame in enumerate(batch, 1):
                    dispatch(decode_frame(frame), len(frame))
                    if self._closing:
                        return
                    if not count % _FRAMES_IN_A_TURN:
                        await self._wait_room()
                        await trio.lowlevel.checkpoint()
                await self._wait_room()
        except OversizeError as error:
            self.feed_session(session.Violated(str(error)))
        except WireError as error:
            self.feed_session(session.Violated(f"a frame makes no sense: {error}"))

    async def _wait_room(self) -> None:
        """Do not read on while what was read has nowhere to go."""
        self._reading = False
        crowded, self._commands.crowded = self._commands.crowded, {}
        for log in crowded:
            await self._wait_room_of(log)
        if self._frames.pending_bytes > self._limits.unread_bytes_max:
            await self._frames.wait_below(self._limits.unread_bytes_max // 2)
        self._reading = True

    async def _wait_room_of(self, log: TopicLog) -> None:
        """The pings of the client are not read meanwhile: it hears from us that we are there."""
        while True:
            with trio.move_on_after(_SIGN_OF_LIFE_S) as scope:
                await log.wait_room()
            if not scope.cancelled_caught:
                return
            self._frames.send((_PING,))

    async def _keep_alive(self) -> None:
        config = self._broker.config
        with trio.move_on_after(config.connect_timeout_s):
            while self._session.state is session.State.GREETING:
                await self._hear()
        self.feed_session(session.GreetingOverdue())
        while True:
            await trio.sleep(config.keep_alive_s)
            tick = session.Tick(self._frames.received_bytes, self._reading)
            self.feed_session(tick)

    def _leave(self) -> None:
        """Whatever this client had open is closed."""
        self._requests.close()
        self.feed_session(session.Ended())
        self._closing = True
        for producer in list(self.producers.values()):
            self._requests.detach_producer(producer)
        for consumer in list(self.consumers.values()):
            self._requests.detach_consumer(consumer)
        self.producers.clear()
        self.consumers.clear()

    async def _is_alive(self, within_s: float) -> bool:
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

    def refuse(self, command: int, body: Any, error: BrokerError) -> None:  # noqa: ANN401
        """Answer a request with an error, in its own way; later, if the client repeats it."""
        self._refusals.refuse(command, body, error)

    def _note_refused_send(self, code: int, reason: str) -> None:
        self._broker.refusal_log.refused(pb.BaseCommand.SEND, RefusedError(code, reason), self.peer)

    def _call_at_next_flush(self, call: Call) -> None:
        if not self._call_at_flush:
            self._broker.flusher.mark(self)
        self._call_at_flush.append(call)

    def flush(self) -> bool:
        """For the flusher: send the receipts that have gathered in this turn."""
        calls, self._call_at_flush = self._call_at_flush, []
        for call in calls:
            call()
        return True

    async def drain(self) -> None:
        """For the flusher; there is never a rest."""
        await trio.lowlevel.checkpoint()

    def _call_once_writable(self, call: Call) -> None:
        if not self._call_when_writable and self._nursery is not None and not self._closing:
            self._nursery.start_soon(self._wait_writable)
        self._call_when_writable[call] = None

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
        calls, self._call_when_writable = self._call_when_writable, {}
        for call in calls:
            call()

    # -- what the session says

    def feed_session(self, event: session.Event) -> None:
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

    def connect(self, body: pb.CommandConnect) -> None:
        """The client has introduced itself."""
        self.feed_session(
            session.Connect(
                body.client_version,
                body.protocol_version,
                body.feature_flags.supports_broker_entry_metadata,
                body.proxy_to_broker_url,
            )
        )
        self._heard.set()

    def _greet(self, protocol_version: int) -> None:
        self._frames.trust()
        self._client = ConnectedClient(
            self.peer,
            self._session.client_version,
            protocol_version,
            self.connected_ms,
            self.is_ours,
            self._session.sends_broker_metadata,
            send=self._frames.send,
            get_room_bytes=self._room_bytes,
            is_alive=self._is_alive,
            call_at_flush=self._call_at_next_flush,
            call_when_writable=self._call_once_writable,
            note_refused_send=self._note_refused_send,
            forget_producer=self.forget_producer,
            forget_consumer=self.forget_consumer,
        )
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
        self._requests.close()
        self._broker.log.info("a client is cut", peer=self.peer, why=reason)

    # -- requests

    def start_task(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run it for as long as the connection lasts."""
        assert self._nursery is not None
        self._nursery.start_soon(task, *args)

    @property
    def takes_answers(self) -> bool:
        return self._frames.pending_bytes <= self._limits.unread_bytes_max

    async def wait_takes_answers(self) -> None:
        await self._frames.wait_below(self._limits.unread_bytes_max // 2)

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
