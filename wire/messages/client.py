"""Connect, look up, produce: the commands of an entry's way in, and helpers for the rest.

SEND and SEND_RECEIPT cross the wire once per entry.  They are written by slices: a frame is the
lengths, two bytes of type and a few varints, put together without a protobuf object.

    SEND          | total u32 | command_size u32 | 08 06 32 size | CommandSend | payload ... |
    SEND_RECEIPT  | total u32 | command_size u32 | 08 07 3a size | CommandSendReceipt        |

A payload is never copied: `encode_send` returns the bytes in front of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from daybook.wire.errors import MalformedError
from daybook.wire.fields import U32, encode_varint
from daybook.wire.proto import pulsar_pb2 as pb

_MESSAGES_MAX = (1 << 31) - 1
_ABSENT = (1 << 64) - 1
_NO_LEDGER = b"\x08" + encode_varint(_ABSENT) + b"\x10"


@dataclass(slots=True)
class Send:
    """An entry to store.  `payload` is stored as it is: checksum, metadata, messages."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int | None
    num_messages: int
    is_chunk: bool
    marker: bool
    txn: tuple[int, int] | None  # least, most significant bits
    payload: memoryview

    @classmethod
    def from_command(cls, command: pb.CommandSend, payload: memoryview) -> Self:
        if not command.IsInitialized():
            raise MalformedError("a SEND lacks the producer id or the sequence id")
        count = command.num_messages
        if count < 0:
            raise MalformedError(f"a SEND announces {count} messages")
        least, most = command.txnid_least_bits, command.txnid_most_bits
        return cls(
            command.producer_id,
            command.sequence_id,
            command.highest_sequence_id or None,  # Some clients send 0 if there is none.
            count or 1,
            command.is_chunk,
            command.marker,
            (least, most) if command.HasField("txnid_most_bits") or least else None,
            payload,
        )


@dataclass(slots=True)
class SendReceipt:
    """The entry is stored under these ids; both are -1 for a duplicate that was dropped."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    ledger_id: int
    entry_id: int

    @classmethod
    def from_command(cls, command: pb.CommandSendReceipt) -> Self:
        if not command.IsInitialized():
            raise MalformedError("a SEND_RECEIPT lacks the producer id or the sequence id")
        ledger_id, entry_id = _ABSENT, _ABSENT
        if command.HasField("message_id"):
            ledger_id, entry_id = command.message_id.ledgerId, command.message_id.entryId
        return cls(
            command.producer_id,
            command.sequence_id,
            command.highest_sequence_id,
            ledger_id - (1 << 64) if ledger_id >> 63 else ledger_id,
            entry_id - (1 << 64) if entry_id >> 63 else entry_id,
        )


def encode_send(
    producer_id: int,
    sequence_id: int,
    payload_bytes: int,
    *,
    num_messages: int = 1,
    highest_sequence_id: int | None = None,
    is_chunk: bool = False,
) -> bytes:
    """Return the frame of an entry up to its payload, which the caller sends behind it."""
    command = b"\x08" + encode_varint(producer_id) + b"\x10" + encode_varint(sequence_id)
    if num_messages != 1:
        command += b"\x18" + encode_varint(num_messages)
    if highest_sequence_id is not None and highest_sequence_id != sequence_id:
        command += b"\x30" + encode_varint(highest_sequence_id)
    if is_chunk:
        command += b"\x38\x01"
    size = len(command) + 4  # at most 48: one byte is enough for the size of the command
    return b"%b%b\x08\x06\x32%c%b" % (
        U32.pack(4 + size + payload_bytes),
        U32.pack(size),
        len(command),
        command,
    )


def encode_send_receipts(
    producer_id: int, receipts: Iterable[tuple[int, int | None, int, int]]
) -> bytes:
    """Return the frames of these receipts, in the order of the sends.

    Each receipt is (sequence id, highest sequence id or None, ledger id, entry id); the sequence
    ids are those of the SEND.  Ledger and entry -1 mean a duplicate that was not stored again.
    """
    frames = bytearray()
    prefix = b"\x08" + encode_varint(producer_id) + b"\x10"
    last_ledger, ledger = -1, _NO_LEDGER
    for sequence_id, highest, ledger_id, entry_id in receipts:
        if ledger_id != last_ledger:
            last_ledger, ledger = ledger_id, b"\x08" + encode_varint(ledger_id) + b"\x10"
        message_id = ledger + encode_varint(entry_id)
        command = b"%b%b\x1a%c%b" % (
            prefix,
            encode_varint(sequence_id),
            len(message_id),
            message_id,
        )
        if highest is not None:
            command += b"\x20" + encode_varint(highest)
        size = len(command)  # at most 57
        frames += b"\x00\x00\x00%c\x00\x00\x00%c\x08\x07\x3a%c" % (size + 8, size + 4, size)
        frames += command
    return bytes(frames)
