"""Bodies of commands as objects of the broker, their checks, and the answers made of them."""

from collections.abc import Iterable
from typing import Any

from daybook.broker.errors import InvalidNameError, PreconditionError
from daybook.broker.limits import ConnectionLimits
from daybook.broker.protocol.dispatch.key_shared import KeyPolicy
from daybook.broker.security.grants import is_of_reader
from daybook.broker.security.resources import Resource, of_namespace, of_topic
from daybook.broker.topics.producer import Producer
from daybook.broker.topics.topic_subscriptions import ConsumerRequest
from daybook.managed_ledger.position import Position
from daybook.wire.errors import MalformedError
from daybook.wire.messages.client import Send
from daybook.wire.messages.consumer import Ack
from daybook.wire.messages.registry import RESUMES, AnyCommand, Command, signed, unsigned
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName, check_namespace

T = pb.BaseCommand


def resource_of(command: int, body: Any) -> Resource:  # noqa: ANN401  generated messages
    """Return the object of a command.  Raise InvalidNameError."""
    if command in (T.GET_TOPICS_OF_NAMESPACE, T.WATCH_TOPIC_LIST):
        try:
            return of_namespace(check_namespace(body.namespace))
        except MalformedError as error:
            raise InvalidNameError(str(error)) from None
    topic = topic_name(body.topic)
    if command != T.SUBSCRIBE:
        return of_topic(topic)
    name = body.subscription
    return of_topic(topic, name, of_reader=is_of_reader(name, durable=body.durable))


def topic_name(text: str) -> TopicName:
    """Parse a topic name.  Raise InvalidNameError."""
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
        position_of(body.start_message_id) if body.HasField("start_message_id") else None,
        body.start_offset if body.HasField("start_offset") else None,
        body.start_message_rollback_duration_sec,
        body.priority_level,
        body.consumer_epoch if body.HasField("consumer_epoch") else None,
        pairs_of(body.metadata),
        pairs_of(body.subscription_properties),
        body.read_compacted,
        body.read_compacted and any(pair.key == RESUMES for pair in body.metadata),
        int(body.schema.type) if body.HasField("schema") else int(pb.Schema.NoSchema),
        _key_policy(body),
        body.force_subscription_creation,
    )


def _key_policy(body: pb.CommandSubscribe) -> KeyPolicy | None:
    """Return how a key_shared consumer wants keys to be shared; None for other consumers."""
    if body.subType != pb.CommandSubscribe.Key_Shared:
        return None
    meta = body.keySharedMeta
    sticky = meta.keySharedMode == pb.STICKY
    ranges = tuple((each.start, each.end) for each in meta.hashRanges) if sticky else ()
    return KeyPolicy(sticky, meta.allowOutOfOrderDelivery, ranges)


def schema_of(body: pb.CommandProducer | pb.CommandSubscribe) -> pb.Schema | None:
    return body.schema if body.HasField("schema") else None


def position_of(message_id: pb.MessageIdData) -> Position:
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


def set_id(target: pb.MessageIdData, position: Position) -> None:
    target.ledgerId, target.entryId = unsigned(position.ledger_id), unsigned(position.entry_id)


def pairs_of(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value for pair in pairs}


def producer_success(request_id: int, producer: Producer) -> pb.CommandProducerSuccess:
    success = success_of(
        request_id, producer.name, producer.last_sequence_id, producer.schema_version
    )
    if producer.epoch is not None:
        success.topic_epoch = producer.epoch
    return success


def success_of(
    request_id: int, name: str, last_sequence_id: int, schema_version: bytes
) -> pb.CommandProducerSuccess:
    return pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
    )


def type_of(command: AnyCommand) -> int:
    match command:
        case Send():
            return T.SEND
        case Ack():
            return T.ACK
        case Command():
            return command.type
        case _:
            return T.MESSAGE if hasattr(command, "payload") else T.SEND_RECEIPT


def check_names(limits: ConnectionLimits, *names: str) -> None:
    """Raise PreconditionError if a name is too long."""
    for name in names:
        if len(name) > limits.names_chars_max:
            raise PreconditionError(
                f"a name has {len(name)} characters, and may have"
                f" {limits.names_chars_max}: {name[:32]!r}..."
            )


def check_metadata(limits: ConnectionLimits, what: str, metadata: Iterable[pb.KeyValue]) -> None:
    """Raise PreconditionError if the metadata, which are kept in memory, are too large."""
    size = sum(len(pair.key.encode()) + len(pair.value.encode()) for pair in metadata)
    most = limits.metadata_bytes_max
    if size > most:
        raise PreconditionError(
            f"the metadata of the {what} take {size} bytes, and may take {most}: shorten them"
        )
