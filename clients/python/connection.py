"""One connection to a broker: greeting, requests and their answers, keep-alive, dispatch.

Producers and consumers register under their ids.  Their methods are called in the receiving task,
and must not wait; when the connection ends, each is told once.  A request waits for its answer; if
the connection ends first, the request is in doubt.

A broker that was silent for `keep_alive_s` is sent a ping; if it stays silent for as long again,
the connection is closed.  While a request or a send waits for the broker, `keep_alive_waiting_s`
applies instead: the client leaves a host that fell silent about when the broker's session ends.
"""

from typing import Any, Protocol

import trio
from google.protobuf.message import Message

from daybook.clients.python.credentials import NOBODY, Credentials
from daybook.clients.python.errors import (
    BrokerError,
    ConnectionLostError,
    CredentialsError,
    RequestTimedOutError,
    TlsError,
    WrongProtocolError,
    refusal,
)
from daybook.clients.python.limits import ClientLimits
from daybook.wire import errors as wire_errors
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import SpeaksTlsError, WireError
from daybook.wire.messages.client import SendReceipt
from daybook.wire.messages.consumer import Delivery
from daybook.wire.messages.registry import (
    CLIENT_NAME,
    CLIENT_PROTOCOL_VERSION,
    AnyCommand,
    Command,
    decode_frame,
    encode,
    type_name,
)
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer
from daybook.wire.version import __version__

CLIENT_VERSION = f"{CLIENT_NAME}-python-{__version__}"
_MESSAGE_BYTES_MAX = 5 << 20  # if the broker does not say
_LATE_S = 1.0  # An answer that took so long waited for others.
_PING = encode(pb.CommandPing())
_PONG = encode(pb.CommandPong())
_LOOKS = 4  # looks at the received bytes in the shortest time of silence before a ping
_T = pb.BaseCommand
_SUCCESS: dict[type[Message], type[Message]] = {
    pb.CommandLookupTopic: pb.CommandLookupTopicResponse,
    pb.CommandPartitionedTopicMetadata: pb.CommandPartitionedTopicMetadataResponse,
    pb.CommandGetTopicsOfNamespace: pb.CommandGetTopicsOfNamespaceResponse,
    pb.CommandGetLastMessageId: pb.CommandGetLastMessageIdResponse,
    pb.CommandProducer: pb.CommandProducerSuccess,
    pb.CommandGetSchema: pb.CommandGetSchemaResponse,
    pb.CommandWatchTopicList: pb.CommandWatchTopicListSuccess,
}
"""The answers to requests that are not answered with SUCCESS.  ERROR may answer any request."""


class ConnectionEnd(Protocol):
    """A producer, a consumer or a watcher of topics, as its connection sees it."""

    @property
    def waiting(self) -> bool:
        """Return True while it waits for something from the broker."""
        ...

    def handle(self, command: AnyCommand) -> None:
        """Handle a command that the broker sent to it."""
        ...

    def on_detached(self, reason: str) -> None:
        """Handle the end of the connection, or that the broker closed it."""
        ...

    def on_assigned(self, url: str) -> None:
        """Note which broker serves the topic next; "" if that is not known."""
        ...


class _Answer:
    """The answer to one request, or its error, as soon as there is one."""

    __slots__ = ("_arrived", "asked_s", "kind", "value")

    def __init__(self, kind: type[Message]) -> None:
        self.kind = kind
        self.asked_s = trio.current_time()
        self._arrived = trio.Event()
        self.value: Any = None

    def give(self, value: Any) -> None:  # noqa: ANN401  (one of many messages, or an exception)
        self.value = value
        self._arrived.set()

    async def wait(self) -> None:
        await self._arrived.wait()


class BrokerConnection:
    """The pool makes it, starts `run` in the client's nursery, and calls `greet`."""

    def __init__(
        self, frames: FrameConnection, limits: ClientLimits, credentials: Credentials = NOBODY
    ) -> None:
        self._credentials = credentials
        self.max_message_bytes = _MESSAGE_BYTES_MAX
        self.server_version = ""
        self.producers: dict[int, ConnectionEnd] = {}
        self.consumers: dict[int, ConnectionEnd] = {}
        self.watchers: dict[int, ConnectionEnd] = {}
        self.follows_topics = False  # True if the broker tells of topics that come and go
        self._frames = frames
        self._limits = limits
        self._answers: dict[int, _Answer] = {}
        self._worked_off_s = float("-inf")  # the time of the last answer that came late
        self._greeting = _Answer(pb.CommandConnected)
        self._next_request = 1
        self._ended = False

    @property
    def peer(self) -> str:
        return self._frames.peer

    @property
    def closed(self) -> bool:
        return self._ended or self._frames.closed

    # -- for producers, consumers and the client

    def send(self, buffers: tuple[Buffer, ...]) -> None:
        """Queue a frame; it is dropped if the connection has ended."""
        self._frames.send(buffers)

    def send_command(self, message: Message) -> None:
        """Queue a command that has no answer, or whose answer is ignored."""
        self._frames.send((encode(message),))

    def next_request_id(self) -> int:
        request_id = self._next_request
        self._next_request += 1
        return request_id

    async def request(self, message: Any) -> Any:  # noqa: ANN401  (any request, any answer)
        """Set the `request_id` of a request, send it, and return the answer.

        Raise the refusal of the broker, or ConnectionLostError or RequestTimedOutError if there was
        no answer.
        """
        message.request_id = self.next_request_id()
        kind: type[Message] = _SUCCESS.get(type(message), pb.CommandSuccess)  # pyright: ignore[reportUnknownArgumentType]
        return await self._answer(message.request_id, encode(message), kind)

    async def ack_answer(self, request_id: int, frame: bytes) -> None:
        """Send an acknowledgement with a request id in its frame; return when it is answered."""
        await self._answer(request_id, frame, pb.CommandAckResponse)

    async def _answer(self, request_id: int, frame: bytes, kind: type[Message]) -> Any:  # noqa: ANN401
        if self.closed:
            # A send may notice the end before the receiving task does.  The producers and consumers
            # must hear of it first, or the caller would retry on this connection.
            self._end()
            raise ConnectionLostError(f"{self.peer}: {self._frames.close_reason}")
        answer = self._answers[request_id] = _Answer(kind)
        self._frames.send((frame,))
        try:
            while answer.value is None and (patience_s := self._patience_s(answer)) > 0:
                with trio.move_on_after(patience_s):
                    await answer.wait()
        finally:
            self._answers.pop(request_id, None)
        if answer.value is None:
            raise RequestTimedOutError(f"the broker {self.peer} did not answer in time")
        if isinstance(answer.value, Exception):
            raise answer.value
        return answer.value

    def _patience_s(self, answer: _Answer) -> float:
        """Return how much longer an answer is worth waiting for.

        A broker that takes thousands of topics over answers late, and one request after the other.
        A request that is sent again waits again, behind all others.  So the time begins anew with
        each answer that came late, for as long as an operation may take.  Prompt answers tell
        nothing.
        """
        began_s = max(answer.asked_s, self._worked_off_s)
        until_s = min(
            began_s + self._limits.request_timeout_s,
            answer.asked_s + max(self._limits.request_timeout_s, self._limits.operation_timeout_s),
        )
        return until_s - trio.current_time()

    def _give(self, answer: _Answer, value: Any) -> None:  # noqa: ANN401  (any answer, or an error)
        now_s = trio.current_time()
        if now_s - answer.asked_s >= _LATE_S:
            self._worked_off_s = now_s
        answer.give(value)

    def close(self, reason: str) -> None:
        """Close the connection, and tell its producers and consumers."""
        self._frames.close(reason)
        self._end()

    # -- greeting and receiving

    async def greet(self, proxy_to: str | None) -> None:
        """Exchange greetings with the broker.

        Raise BrokerError if it refuses, or if the credentials cannot be read.
        """
        connect = pb.CommandConnect(
            client_version=CLIENT_VERSION,
            auth_method_name=self._credentials.method,
            auth_data=self._credentials.data(),
            protocol_version=CLIENT_PROTOCOL_VERSION,
            feature_flags=pb.FeatureFlags(
                supports_auth_refresh=True,
                supports_broker_entry_metadata=True,
                supports_topic_watchers=True,
            ),
        )
        if proxy_to is not None:
            connect.proxy_to_broker_url = proxy_to
        self._frames.send((encode(connect),))
        await self._greeting.wait()
        connected = self._greeting.value
        if isinstance(connected, Exception):
            raise connected
        self.server_version = connected.server_version
        self.follows_topics = connected.feature_flags.supports_topic_watchers
        if connected.max_message_size > 0:
            self.max_message_bytes = connected.max_message_size

    async def run(self) -> None:
        """Receive until the connection ends."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_alive)
                await self._receive()
                nursery.cancel_scope.cancel()
        finally:
            self.close("closed")

    async def _receive(self) -> None:
        try:
            while frames := await self._frames.receive():
                with self._frames.together():  # the next batches, and permits
                    for frame in frames:
                        self._dispatch(decode_frame(frame))
        except WireError as error:
            if self._greeting.value is None:
                self._greeting.give(self._other_protocol(error))
            self._frames.close(f"the broker sent nonsense: {error}")

    def _other_protocol(self, error: WireError) -> BrokerError:
        """Return the error for an answer to the greeting that is none."""
        if isinstance(error, SpeaksTlsError):
            return TlsError(f"{self.peer} is a port with TLS: begin the URL with pulsar+ssl://")
        return WrongProtocolError(
            f"{self.peer} is not the service port of a broker: it answers in another protocol.  A"
            " service URL names the binary port (6650), not HTTP, a bookie or ZooKeeper"
        )

    async def _keep_alive(self) -> None:
        """Close the connection when the broker is silent.

        The task counts its own sleeps, not the clock: time in which this process was stopped does
        not count as silence of the broker.
        """
        idle_s, waiting_s = self._limits.keep_alive_s, self._limits.keep_alive_waiting_s
        look_s = min(idle_s, waiting_s) / _LOOKS
        heard, silent_s, asked_s = -1, 0.0, -1.0
        while True:
            await trio.sleep(look_s)
            silent_s += look_s
            if self._frames.received_bytes != heard:
                heard, silent_s, asked_s = self._frames.received_bytes, 0.0, -1.0
            patience_s = min(idle_s, waiting_s) if self._waiting() else idle_s
            if asked_s < 0:
                if silent_s >= patience_s:
                    asked_s = silent_s
                    self._frames.send((_PING,))
            elif silent_s - asked_s >= patience_s:
                self.close(f"silent for {silent_s:g} s")
                return

    def _waiting(self) -> bool:
        return bool(self._answers) or any(each.waiting for each in self.producers.values())

    def _end(self) -> None:
        """Fail all requests, and tell all producers and consumers, once."""
        if self._ended:
            return
        self._ended = True
        reason = f"{self.peer}: {self._frames.close_reason}"
        if self._greeting.value is None:
            # ZooKeeper and TLS servers close like this on bytes that they do not understand.
            advice = ", before any greeting: is that the service port of a broker?"
            if not self._frames.encrypted:
                advice += " If it is a port with TLS, begin the URL with pulsar+ssl://"
            self._greeting.give(ConnectionLostError(f"{reason}{advice}"))
        for answer in self._answers.values():
            if answer.value is None:
                answer.give(ConnectionLostError(reason))
        self._answers.clear()
        ends: list[ConnectionEnd] = [
            *self.producers.values(),
            *self.consumers.values(),
            *self.watchers.values(),
        ]
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        for end in ends:
            end.on_detached(reason)

    # -- what arrives

    def _dispatch(self, command: AnyCommand) -> None:
        match command:
            case Delivery():
                consumer = self.consumers.get(command.consumer_id)
                if consumer is not None:
                    consumer.handle(command)
            case SendReceipt():
                producer = self.producers.get(command.producer_id)
                if producer is not None:
                    producer.handle(command)
            case Command():
                self._dispatch_other(command)
            case _:
                raise wire_errors.MalformedError("the peer sent a command that only clients send")

    def _assigned(self, closed: pb.CommandCloseProducer | pb.CommandCloseConsumer) -> str:
        """Return the URL at which the client goes on, if the broker has named one for it."""
        if self._frames.encrypted:
            return closed.assignedBrokerServiceUrlTls
        return closed.assignedBrokerServiceUrl

    def _dispatch_other(self, command: Command) -> None:
        body = command.body
        match command.type:
            case _T.PING:
                self._frames.send((_PONG,))
            case _T.PONG:
                pass
            case _T.CONNECTED:
                self._greeting.give(body)
            case _T.AUTH_CHALLENGE:
                self._renew_credentials()
            case _T.ERROR:
                self._refused(body)
            case _T.SEND_ERROR:
                producer = self.producers.get(body.producer_id)
                if producer is not None:
                    producer.handle(command)
            case _T.CLOSE_PRODUCER:
                producer = self.producers.pop(body.producer_id, None)
                if producer is not None:
                    producer.on_assigned(self._assigned(body))
                    producer.on_detached("the broker closed the producer")
            case _T.CLOSE_CONSUMER:
                consumer = self.consumers.pop(body.consumer_id, None)
                if consumer is not None:
                    consumer.on_assigned(self._assigned(body))
                    consumer.on_detached("the broker closed the consumer")
            case _T.ACTIVE_CONSUMER_CHANGE | _T.REACHED_END_OF_TOPIC:
                consumer = self.consumers.get(body.consumer_id)
                if consumer is not None:
                    consumer.handle(command)
            case _T.WATCH_TOPIC_UPDATE:
                watcher = self.watchers.get(body.watcher_id)
                if watcher is not None:
                    watcher.handle(command)
            case _:
                self._answered(command)

    def _renew_credentials(self) -> None:
        """Send the credentials as they are now, because those that the broker knows expire."""
        try:
            data = self._credentials.data()
        except CredentialsError as error:
            self._frames.close(str(error))
            return
        response = pb.AuthData(auth_method_name=self._credentials.method, auth_data=data)
        self.send_command(pb.CommandAuthResponse(response=response))

    def _answered(self, command: Command) -> None:
        request_id = getattr(command.body, "request_id", None)
        if request_id is None:
            raise wire_errors.MalformedError(
                f"the broker sent {type_name(command.type)}, which is not expected here"
            )
        answer = self._answers.get(request_id)
        if answer is None:
            return  # The caller has given up.
        if not isinstance(command.body, answer.kind):
            raise wire_errors.MalformedError(
                f"the broker sent {type_name(command.type)}, which is no answer to the request"
            )
        body = command.body
        if isinstance(body, pb.CommandProducerSuccess) and not body.producer_ready:
            return  # The producer waits for access; the broker answers again, under the same id.
        if isinstance(body, pb.CommandAckResponse) and body.HasField("error"):
            self._give(answer, refusal(body.error, body.message))
        elif isinstance(body, pb.CommandGetSchemaResponse) and body.HasField("error_code"):
            self._give(answer, refusal(body.error_code, body.error_message))
        else:
            self._give(answer, body)

    def _refused(self, error: pb.CommandError) -> None:
        answer = self._answers.get(error.request_id)
        failure = refusal(error.error, error.message)
        if answer is not None:
            self._give(answer, failure)
        elif self._greeting.value is None:
            self._greeting.give(failure)
