"""Commands between clients and brokers: type number <-> message, versions, features; whole frames.

A frame, after its length (which `wire.connection` takes off):

    | command_size u32 | BaseCommand | payload ... |

Only SEND and MESSAGE have a payload, whose layout is in `wire.batch`.  `BaseCommand` holds the
number of the command's type, and the command itself in the field of that number.

`decode_frame` returns the four commands that cross the wire once per entry as objects of this
project (`Send`, `SendReceipt`, `Delivery`, `Ack`), and every other one as a `Command` around the
generated message.  The result can be read without errors: strings are valid, and required fields
are there.

`encode` returns the whole frame of a command, its length included.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError, Message

from daybook.wire.errors import MalformedError, TruncatedError
from daybook.wire.fields import U32
from daybook.wire.messages.client import Send, SendReceipt
from daybook.wire.messages.consumer import Ack, Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.protobuf import check_readable

BROKER_PROTOCOL_VERSION = 21
# From version 20 on a broker may ask its clients to migrate to other clusters.
CLIENT_PROTOCOL_VERSION = 19

# The features that a peer understands, by the protocol version that it announced.
VERSION_CLOSE_WITHOUT_DISCONNECT = 5
VERSION_END_OF_TOPIC = 9
VERSION_CHECKSUM = 11
VERSION_ACTIVE_CONSUMER = 12
VERSION_ACK_RECEIPT = 17
VERSION_BROKER_ENTRY_METADATA = 18

# In the metadata of a reader of a compacted topic that goes on where it was: it has to see each
# tombstone behind that, so it gets the topic itself if that still goes back so far.
RESUMES = "daybook.resumes"
CLIENT_NAME = "daybook"
"""The beginning of the `client_version` of our own clients.  Only these get broker entry metadata,
and commands at which other clients drop the connection."""

NO_ID = (1 << 64) - 1
"""An absent id in an unsigned field: -1."""

BaseType = pb.BaseCommand.Type


@dataclass(slots=True)
class Command:
    """A command that is not handled as slices; `body` is the generated message."""

    type: int
    body: Any
    payload: memoryview | None = None


AnyCommand: TypeAlias = Command | Send | SendReceipt | Delivery | Ack

_FIELD_BY_TYPE: dict[int, str] = {
    field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.number > 1
}
_TYPE_BY_NAME: dict[str, int] = {
    field.message_type.name: field.number
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}
_NAME_BY_TYPE: dict[int, str] = {number: name for name, number in BaseType.items()}
assert set(_FIELD_BY_TYPE) == set(_NAME_BY_TYPE)  # The number of a field is that of its type.

_TYPE_TAG = 1 << 3  # field 1 of BaseCommand, a varint
_HEAD_BYTES = 4  # command_size
# The head of a BaseCommand: tag of the type, type, tag of the command, its size.
_SLIM_HEAD_BYTES = 4


def signed(value: int) -> int:
    """Return an id that was sent in an unsigned field: 2**64 - 1 is -1."""
    return value - (1 << 64) if value >= 1 << 63 else value


def unsigned(value: int) -> int:
    """Return an id for an unsigned field: -1 becomes 2**64 - 1."""
    return value + (1 << 64) if value < 0 else value


def type_name(number: int) -> str:
    """Return the name of a type of command, for logs."""
    return _NAME_BY_TYPE.get(number, str(number))


def encode(message: Message) -> bytes:
    """Return the whole frame of a command without payload, its length included."""
    number = _TYPE_BY_NAME[message.DESCRIPTOR.name]
    base = pb.BaseCommand(type=_NAME_BY_TYPE[number])
    getattr(base, _FIELD_BY_TYPE[number]).MergeFrom(message)
    getattr(base, _FIELD_BY_TYPE[number]).SetInParent()
    command = base.SerializeToString()
    return U32.pack(_HEAD_BYTES + len(command)) + U32.pack(len(command)) + command


def decode_frame(frame: memoryview) -> AnyCommand:
    """Return the command in a frame without its length.  Raise WireError, and no other error."""
    if len(frame) < _HEAD_BYTES:
        raise TruncatedError(f"a frame has {len(frame)} bytes, too few for a command")
    (size,) = U32.unpack_from(frame)
    end = _HEAD_BYTES + size
    if end > len(frame):
        raise TruncatedError(f"a frame of {len(frame)} bytes announces a command of {size} bytes")
    try:
        if size > _SLIM_HEAD_BYTES and frame[4] == _TYPE_TAG and frame[7] == size - 4 <= 0x7F:
            # The head as every client writes it: what follows is the command and nothing else.
            decode = _SLIM.get(frame[5] << 8 | frame[6])
            if decode is not None:
                return decode(bytes(frame[8:end]), frame[end:])
        return _decode_base(pb.BaseCommand.FromString(bytes(frame[4:end])), frame[end:])
    except DecodeError as error:
        raise MalformedError(f"a command cannot be parsed: {error}") from None


def _send(command: bytes, payload: memoryview) -> AnyCommand:
    return Send.from_command(pb.CommandSend.FromString(command), payload)


def _send_receipt(command: bytes, _: memoryview) -> AnyCommand:
    return SendReceipt.from_command(pb.CommandSendReceipt.FromString(command))


def _message(command: bytes, payload: memoryview) -> AnyCommand:
    return Delivery.from_command(pb.CommandMessage.FromString(command), payload)


def _ack(command: bytes, _: memoryview) -> AnyCommand:
    return Ack.from_command(pb.CommandAck.FromString(command))


_SLIM: dict[int, Callable[[bytes, memoryview], AnyCommand]] = {
    0x0632: _send,  # the number of the type, the tag of the field
    0x073A: _send_receipt,
    0x094A: _message,
    0x0A52: _ack,
}


def _decode_base(base: pb.BaseCommand, payload: memoryview) -> AnyCommand:
    number = int(base.type)
    name = _FIELD_BY_TYPE.get(number)
    if name is None or not base.HasField("type"):
        raise MalformedError("a command has an unknown type")
    if not base.HasField(name):
        raise MalformedError(f"a {type_name(number)} has no content")
    body: Message = getattr(base, name)
    match body:
        case pb.CommandSend():
            return Send.from_command(body, payload)
        case pb.CommandSendReceipt():
            return SendReceipt.from_command(body)
        case pb.CommandMessage():
            return Delivery.from_command(body, payload)
        case pb.CommandAck():
            return Ack.from_command(body)
        case _:
            check_readable(body)
            return Command(number, body, payload if len(payload) else None)
