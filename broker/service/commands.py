"""What a client says, command by command, in the order in which it comes.

What comes once per entry (SEND, ACK, FLOW) is carried out at once, and so is all else that has to
wait for nothing; for the rest a request is begun (`requests`).  What the session does not
admit is refused, or ends the connection: `broker.protocol.session` decides.
"""

from collections.abc import Callable
from typing import Protocol

import trio

from daybook.broker.errors import BrokerError, NotAllowedError, RefusedError
from daybook.broker.protocol import consuming, producing, session
from daybook.broker.protocol.producing import Sending
from daybook.broker.protocol.session import Admission, SessionProtocol
from daybook.broker.service.request_counts import RequestCounts
from daybook.broker.service.requests import RequestConnection, Requests
from daybook.broker.topics.topic_log import TopicLog
from daybook.wire.messages.client import Send
from daybook.wire.messages.consumer import Ack
from daybook.wire.messages.registry import AnyCommand, Command, encode, signed
from daybook.wire.proto import pulsar_pb2 as pb

T = pb.BaseCommand

_PONG = encode(pb.CommandPong())


class CommandConnection(RequestConnection, Protocol):
    """What commands need of the connection that they come on."""

    def connect(self, body: pb.CommandConnect) -> None: ...

    def feed_session(self, event: session.Event) -> None: ...


class Commands:
    """Of one connection."""

    def __init__(
        self,
        connection: CommandConnection,
        protocol: SessionProtocol,
        requests: Requests,
        counts: RequestCounts,
    ) -> None:
        self.crowded: dict[TopicLog, None] = {}  # was appended to since the connection last looked
        self._connection = connection
        self._producers = connection.producers
        self._consumers = connection.consumers
        self._producing = connection.producing
        self._session = protocol
        self._requests = requests
        self._counts = counts

    def dispatch(self, command: AnyCommand, frame_bytes: int = 0) -> None:
        """Carry out, or begin, what a command asks for.  `frame_bytes`: how large its frame was."""
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
        self._counts.came[number] += 1
        match self._session.admit(number):
            case Admission.SERVE:
                assert isinstance(command, Command)
                self._serve(command, frame_bytes)
            case Admission.REFUSE:
                assert isinstance(command, Command)
                error = NotAllowedError("this broker does not offer that")
                self._connection.refuse(command.type, command.body, error)
            case Admission.VIOLATION:
                self._connection.feed_session(self._session.violation(number))

    # -- once per entry

    def _on_send(self, send: Send) -> None:
        match self._producing.sending(send.producer_id, trio.current_time()):
            case Sending.TAKE:
                producer = self._producers[send.producer_id]
                producer.send(send)
                self.crowded[producer.topic.log] = None
            case Sending.IGNORE:
                pass
            case Sending.VIOLATION:
                reason = f"SEND for producer {send.producer_id}, which is not open"
                self._connection.feed_session(session.Violated(reason))

    def _on_ack(self, ack: Ack) -> None:
        consumer = self._consumers.get(ack.consumer_id)
        if consumer is None:
            if ack.request_id is not None:
                error = RefusedError(pb.ConsumerNotFound, "there is no such consumer")
                self._connection.refuse(T.ACK, ack, error)
            return
        try:
            consumer.subscription.ack(consumer, ack)
        except BrokerError as error:
            if ack.request_id is not None:
                self._connection.refuse(T.ACK, ack, error)
            else:
                consumer.refused_ack = error
            return
        if ack.request_id is None:
            return
        refused, consumer.refused_ack = consumer.refused_ack, None
        if refused is not None:
            # A receipt is taken for one of all that the consumer acknowledged before it.
            self._connection.refuse(T.ACK, ack, refused)
        else:
            consumer.subscription.when_durable(self._ack_answer(ack))

    def _ack_answer(self, ack: Ack) -> Callable[[BrokerError | None], None]:
        connection = self._connection

        def answer(error: BrokerError | None) -> None:
            if error is not None:
                connection.refuse(T.ACK, ack, error)
                return
            assert ack.request_id is not None
            connection.tell(
                pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
            )

        return answer

    # -- all else

    def _serve(self, command: Command, frame_bytes: int) -> None:
        body = command.body
        match command.type:
            case T.FLOW:
                self._on_flow(body)
            case T.PING:
                self._connection.send((_PONG,))
            case T.PONG:
                pass
            case T.REDELIVER_UNACKNOWLEDGED_MESSAGES:
                self._on_redeliver(body)
            case T.CONNECT:
                self._connection.connect(body)
            case T.PRODUCER:
                opened = producing.Open(body.producer_id, body.request_id, body.epoch)
                self._requests.feed_producing(opened, body, frame_bytes)
            case T.SUBSCRIBE:
                asked = consuming.Open(body.consumer_id, body.request_id)
                self._requests.feed_consuming(asked, body, frame_bytes)
            case T.CLOSE_PRODUCER:
                close = producing.CloseAsked(body.producer_id, body.request_id)
                self._requests.feed_producing(close)
            case T.CLOSE_CONSUMER:
                left = consuming.CloseAsked(body.consumer_id, body.request_id)
                self._requests.feed_consuming(left)
            case T.GET_SCHEMA:
                # Clients take this code for "it has none", and any other one for a failure.
                none = RefusedError(pb.TopicNotFound, f"{body.topic[:1024]} has no schema")
                self._connection.refuse(command.type, body, none)
            case T.GET_OR_CREATE_SCHEMA:
                self._on_new_schema(body)
            case _:
                self._requests.ask(command.type, body, frame_bytes)

    def _on_new_schema(self, body: pb.CommandGetOrCreateSchema) -> None:
        """A topic has no schema: that is what an untyped producer wants, and no other one."""
        if body.schema.type == pb.Schema.NoSchema:
            answer = pb.CommandGetOrCreateSchemaResponse(
                request_id=body.request_id, schema_version=b""
            )
            self._connection.tell(answer)
            return
        # Java's client repeats the request for ever, without a pause, at any other code.
        error = RefusedError(pb.IncompatibleSchema, "this broker has no schemas: send bytes")
        self._connection.refuse(T.GET_OR_CREATE_SCHEMA, body, error)

    def _on_flow(self, body: pb.CommandFlow) -> None:
        if not body.messagePermits:
            self._connection.feed_session(session.Violated("FLOW without permits"))
            return
        consumer = self._consumers.get(body.consumer_id)
        if consumer is not None:
            consumer.subscription.flow(consumer, body.messagePermits)

    def _on_redeliver(self, body: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self._consumers.get(body.consumer_id)
        if consumer is not None:
            places = [(signed(each.ledgerId), signed(each.entryId)) for each in body.message_ids]
            epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
            consumer.subscription.redeliver(consumer, places, epoch)


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
