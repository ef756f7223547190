"""Subscribe, permits, deliver, acknowledge: the commands of an entry's way out.

MESSAGE and ACK cross the wire once per entry.  MESSAGE is written by slices in front of a payload
that is passed on as it was stored:

    | total u32 | command_size u32 | 08 09 4a size | CommandMessage | payload ... |

An acknowledgement set is the bits of a batch that are still *pending*, in words of 64 bits, the
first messages in the lowest bits.  An empty set means the whole entry.  Words are signed on the
wire, and trailing zero words are left out.  In this module a set is one `int` (bit i: message i is
pending), and `None` is the whole entry.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from daybook.wire.ack_sets import decode_ack_set, encode_ack_set
from daybook.wire.errors import MalformedError
from daybook.wire.fields import U32, encode_varint
from daybook.wire.proto import pulsar_pb2 as pb


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


@dataclass(slots=True)
class Delivery:
    """MESSAGE: an entry for a consumer.

    `ack_set` has the messages that are still pending; None means all of them.
    """

    consumer_id: int
    ledger_id: int
    entry_id: int
    partition: int
    redelivery_count: int
    ack_set: int | None
    consumer_epoch: int | None
    payload: memoryview

    @classmethod
    def from_command(cls, command: pb.CommandMessage, payload: memoryview) -> Self:
        if not command.IsInitialized():
            raise MalformedError("a MESSAGE lacks the consumer id or the message id")
        message_id = command.message_id
        return cls(
            command.consumer_id,
            _signed(message_id.ledgerId),
            _signed(message_id.entryId),
            message_id.partition,
            command.redelivery_count,
            decode_ack_set(command.ack_set) if command.ack_set else None,
            command.consumer_epoch if command.HasField("consumer_epoch") else None,
            payload,
        )


class AckedId(NamedTuple):
    """The id of an acknowledged entry.

    `ack_set` has the messages of the batch that stay pending; None acknowledges the whole entry.
    """

    ledger_id: int
    entry_id: int
    ack_set: int | None = None


@dataclass(slots=True)
class Ack:
    """ACK of single entries, or of everything up to one.  `request_id` asks for an ACK_RESPONSE."""

    consumer_id: int
    cumulative: bool
    ids: list[AckedId]
    request_id: int | None
    properties: dict[str, int]
    validation_error: int | None
    txn: tuple[int, int] | None

    @classmethod
    def from_command(cls, command: pb.CommandAck) -> Self:
        if not command.IsInitialized():
            raise MalformedError("an ACK lacks the consumer id or a message id")
        properties = {pair.key: pair.value for pair in command.properties}
        keys: list[object] = list(properties)
        if not all(isinstance(key, str) for key in keys):
            raise MalformedError("an ACK has a property that is not UTF-8")
        return cls(
            command.consumer_id,
            command.ack_type == pb.CommandAck.Cumulative,
            [
                AckedId(
                    _signed(each.ledgerId),
                    _signed(each.entryId),
                    decode_ack_set(each.ack_set) if each.ack_set else None,
                )
                for each in command.message_id
            ],
            command.request_id if command.HasField("request_id") else None,
            properties,
            int(command.validation_error) if command.HasField("validation_error") else None,
            (command.txnid_least_bits, command.txnid_most_bits)
            if command.HasField("txnid_most_bits") or command.txnid_least_bits
            else None,
        )


def encode_message_id(ledger_id: int, entry_id: int, partition: int) -> bytes:
    """Return the id of an entry as MESSAGE has it, the same for all consumers."""
    # The partition is always sent, even -1: old clients misread its absence.
    return b"\x08%b\x10%b\x18%b" % (
        encode_varint(ledger_id),
        encode_varint(entry_id),
        encode_varint(partition),
    )


def encode_message(
    consumer_id: int,
    message_id: bytes,
    redelivery_count: int,
    ack_set: int | None,
    payload_bytes: int,
    consumer_epoch: int | None = None,
) -> bytes:
    """Return the frame of MESSAGE up to its payload, which the caller sends behind it."""
    command = b"\x08%b\x12%c%b" % (encode_varint(consumer_id), len(message_id), message_id)
    if redelivery_count:
        command += b"\x18" + encode_varint(redelivery_count)
    if ack_set is not None:
        command += b"".join(b"\x20" + encode_varint(word) for word in encode_ack_set(ack_set))
    if consumer_epoch is not None:
        command += b"\x28" + encode_varint(consumer_epoch)
    size = len(command)
    base = b"\x08\x09\x4a" + encode_varint(size) + command
    return U32.pack(4 + len(base) + payload_bytes) + U32.pack(len(base)) + base


def encode_ack(
    consumer_id: int,
    ids: Iterable[tuple[int, int, int | None]],
    *,
    cumulative: bool = False,
    request_id: int | None = None,
    validation_error: int | None = None,
) -> bytes:
    """Return the whole frame of an ACK.

    Each acknowledged entry is (ledger id, entry id, pending messages or None).
    """
    command = bytearray(b"\x08%b\x10%c" % (encode_varint(consumer_id), cumulative))
    for ledger_id, entry_id, pending in ids:
        each = b"\x08%b\x10%b" % (encode_varint(ledger_id), encode_varint(entry_id))
        if pending is not None:
            each += b"".join(b"\x28" + encode_varint(word) for word in encode_ack_set(pending))
        command += b"\x1a" + encode_varint(len(each)) + each
    if validation_error is not None:
        command += b"\x20" + encode_varint(validation_error)
    if request_id is not None:
        command += b"\x40" + encode_varint(request_id)
    base = b"\x08\x0a\x52" + encode_varint(len(command)) + command
    return U32.pack(4 + len(base)) + U32.pack(len(base)) + base
