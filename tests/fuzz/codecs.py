"""Targets: messages between clients and brokers, and the contents of entries."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from daybook.broker.dispatch.entries import EntryHead, delivered_head, entry_head
from daybook.clients.python.entries import EntryReader, permits_of
from daybook.managed_ledger.offsets import facts
from daybook.wire.batch import (
    encode_batch,
    has_broker_metadata,
    iter_batch,
    num_messages,
    parse_metadata,
    publish_time,
    split_broker_metadata,
    verify_checksum,
    without_checksum,
)
from daybook.wire.compression import CompressionType, compress, decompress
from daybook.wire.errors import WireError
from daybook.wire.fields import U32, decode_varint, encode_varint, iter_fields, signed
from daybook.wire.messages.bookie import FRAME_BYTES_MAX
from daybook.wire.messages.client import Send, SendReceipt, encode_send, encode_send_receipts
from daybook.wire.messages.consumer import (
    Ack,
    Delivery,
    encode_ack,
    encode_message,
    encode_message_id,
)
from daybook.wire.messages.registry import Command, decode_frame, encode, type_name
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName, check_namespace, url_decode, url_encode
from tests import strategies
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target, require

WIRE_ERRORS = (WireError,)
_LENGTH = U32.size

# -- commands


def run_frame(data: bytes) -> None:
    command = decode_frame(memoryview(data))
    match command:
        case Command():
            type_name(command.type)
            match decode_frame(memoryview(encode(command.body))[_LENGTH:]):
                case Command(body=body):
                    require(body == command.body, "a command changes when it is encoded again")
                case _:
                    require(False, "a command becomes another kind")
        case Send():
            _same_send(command)
        case SendReceipt():
            _same_receipt(command)
        case Delivery():
            _same_delivery(command)
        case Ack():
            _same_ack(command)


def _same_send(send: Send) -> None:
    head = encode_send(
        send.producer_id,
        send.sequence_id,
        len(send.payload),
        num_messages=send.num_messages,
        highest_sequence_id=send.highest_sequence_id,
    )
    again = decode_frame(memoryview(head + send.payload)[_LENGTH:])
    rest: dict[str, Any] = {"is_chunk": send.is_chunk, "marker": send.marker, "txn": send.txn}
    if send.highest_sequence_id == send.sequence_id:
        rest["highest_sequence_id"] = send.sequence_id
    same = isinstance(again, Send) and replace(again, **rest) == send
    require(same, "a SEND changes when it is encoded again")


def _same_receipt(receipt: SendReceipt) -> None:
    highest = receipt.highest_sequence_id
    ids = (receipt.sequence_id, highest, receipt.ledger_id, receipt.entry_id)
    frame = encode_send_receipts(receipt.producer_id, [ids])
    require(
        decode_frame(memoryview(frame)[_LENGTH:]) == receipt,
        "a SEND_RECEIPT changes when it is encoded again",
    )


def _same_delivery(delivery: Delivery) -> None:
    frame = encode_message(
        delivery.consumer_id,
        encode_message_id(delivery.ledger_id, delivery.entry_id, delivery.partition),
        delivery.redelivery_count,
        delivery.ack_set,
        len(delivery.payload),
        delivery.consumer_epoch,
    )
    again = decode_frame(memoryview(frame + delivery.payload)[_LENGTH:])
    require(again == delivery, "a MESSAGE changes when it is encoded again")


def _same_ack(ack: Ack) -> None:
    frame = encode_ack(
        ack.consumer_id,
        [(each.ledger_id, each.entry_id, each.ack_set) for each in ack.ids],
        cumulative=ack.cumulative,
        request_id=ack.request_id,
        validation_error=ack.validation_error,
    )
    again = decode_frame(memoryview(frame)[_LENGTH:])
    rest: dict[str, Any] = {"properties": ack.properties, "txn": ack.txn}
    same = isinstance(again, Ack) and replace(again, **rest) == ack
    require(same, "an ACK changes when it is encoded again")


def frame_seeds() -> Mapping[str, bytes]:
    seeds = {
        type(message).__name__.removeprefix("Command"): encode(message)[_LENGTH:]
        for message in strategies.COMMANDS
    }
    send = encode_send(1, 7, len(strategies.ENTRY), num_messages=2, highest_sequence_id=8)
    seeds["Send"] = (send + strategies.ENTRY)[_LENGTH:]
    seeds["SendReceipt"] = encode_send_receipts(1, [(7, 8, 5, 0)])[_LENGTH:]
    message = encode_message(1, encode_message_id(5, 0, -1), 1, 6, len(strategies.ENTRY), 3)
    seeds["Message"] = (message + strategies.ENTRY)[_LENGTH:]
    ids = [(5, 0, None), (5, 1, 1 << 70)]
    seeds["Ack"] = encode_ack(1, ids, request_id=9, validation_error=1)[_LENGTH:]
    return seeds


# -- entries


def run_entry(data: bytes) -> None:
    """Decode an entry like the broker, the managed ledger and the client."""
    entry = memoryview(data)
    delivery = Delivery(1, 5, 0, -1, 0, None, None, entry)
    counted = delivered_head(entry).messages
    require(permits_of(delivery, data) == counted, "the client gives other permits back")
    reader = EntryReader("t", -1, run_entry, now_s=lambda: 0.0)  # the callback is not used
    errors: list[WireError] = []
    for look in (_look_as_broker, _look_as_log):
        try:
            look(entry)
        except WireError as error:
            errors.append(error)
    unpacked = reader.unpack(delivery, data, 0)
    if unpacked is None:
        return  # A chunk of a message that is not whole.
    if has_broker_metadata(split_broker_metadata(entry)[2]):
        return  # No broker of ours stores an entry with two blocks.
    require(not errors, f"a client reads an entry that others refuse: {errors}")
    metadata, _ = parse_metadata(entry)
    require(len(unpacked.messages) == num_messages(metadata), "messages are missing")
    head = entry_head(entry)
    require(head.messages == len(unpacked.messages), "the broker counts other messages")
    require(isinstance(head, EntryHead) and 0 <= head.start <= len(data), "no place in the entry")
    for message in unpacked.messages:
        _ = (message.data, message.key, message.properties, message.key_bytes, repr(message))


def _look_as_broker(entry: memoryview) -> None:
    _, _, rest = split_broker_metadata(entry)
    verify_checksum(entry)
    plain = without_checksum(entry)
    require(len(plain) <= len(rest) <= len(entry), "an entry grows")
    publish_time(entry)
    entry_head(entry)


def _look_as_log(entry: memoryview) -> None:
    found = facts(entry)
    require(found.messages >= 1, "an entry without messages")


def entry_seeds() -> Mapping[str, bytes]:
    return {"single": strategies.ENTRY, **strategies.ENTRIES}


def run_batch(data: bytes) -> None:
    choices = Choices(data)
    count = choices.below(1 << 10)
    body = choices.rest()
    messages = list(iter_batch(body, count))
    again = encode_batch(
        (
            pb.SingleMessageMetadata(
                partition_key=single.key,
                properties=[pb.KeyValue(key=k, value=v) for k, v in single.properties],
                event_time=single.event_time_ms,
                sequence_id=single.sequence_id,
                null_value=single.null_value,
                null_partition_key=single.key is None,
                compacted_out=single.compacted_out,
                ordering_key=single.ordering_key,
                partition_key_b64_encoded=single.key_is_base64,
            ),
            data,
        )
        for single, data in messages
    )
    require(list(iter_batch(again, count)) == messages, "a batch changes when encoded again")


def batch_seeds() -> Mapping[str, bytes]:
    return {
        f"{count}": count.to_bytes(2, "big") + strategies.batch_body(count) for count in (1, 2, 5)
    }


# -- compression


def run_compression(data: bytes) -> None:
    """Decode: the first byte selects the codec, and whether the rest is compressed already."""
    choices = Choices(data)
    kind = choices.below(6)
    if choices.flag():
        plain = choices.rest()
        codec = CompressionType(kind % len(CompressionType))
        packed = compress(codec, plain)
        again = bytes(decompress(codec, packed, len(plain), FRAME_BYTES_MAX))
        require(again == plain, "compression loses something")
        return
    size = choices.below(1 << 16) * (257 if choices.one_in(16) else 1)
    packed = choices.rest()
    plain = bytes(decompress(kind, packed, size, FRAME_BYTES_MAX))
    require(kind == CompressionType.NONE or len(plain) == size, "another size than announced")


def compression_seeds() -> Mapping[str, bytes]:
    plain = b"to be compressed, " * 9
    return {
        codec.name: bytes((codec, 0))
        + len(plain).to_bytes(2, "big")
        + b"\0"
        + compress(codec, plain)
        for codec in CompressionType
    }


# -- fields, names


def run_fields(data: bytes) -> None:
    value, end = decode_varint(data)
    require(decode_varint(encode_varint(value)) == (value, len(encode_varint(value))), "a varint")
    require(decode_varint(encode_varint(signed(value)))[0] == value, "a negative varint")
    require(end >= len(encode_varint(value)), "a varint that is shorter than it can be")
    at = end
    for _number, wire_type, first, last in iter_fields(data, end):
        require(at < last <= len(data), "a field that does not lead on")
        require(wire_type == 0 or at < first <= last, "a field that begins nowhere")
        at = last


def field_seeds() -> Mapping[str, bytes]:
    message = pb.MessageMetadata(producer_name="p", sequence_id=1 << 63, publish_time=1)
    return {
        "metadata": b"\x01" + message.SerializeToString(),
        "kinds": encode_varint(-1)
        + b"\x09"
        + bytes(8)
        + b"\x15"
        + bytes(4)
        + b"\x1a\x02ab\x20\x07",
    }


def run_topics(data: bytes) -> None:
    choices = Choices(data)
    kind = choices.below(8)
    text = choices.rest().decode("latin-1" if kind & 4 else "utf-8", "replace")
    match kind & 3:
        case 0:
            name = TopicName.parse(text)
        case 1:
            name = TopicName.of_managed_ledger(text)
        case 2:
            check_namespace(text)
            return
        case _:
            decoded = url_decode(text)
            require(url_decode(url_encode(decoded)) == decoded, "a name changes when encoded")
            return
    require(TopicName.parse(name.full) == name, "a topic has another name")
    require(TopicName.of_managed_ledger(name.managed_ledger_name) == name, "a log's name")
    require(0 <= name.bundle_hash < 1 << 32, "a hash out of range")
    if name.partition >= 0:
        require(name.base.partition_name(name.partition) == name, "a partition of another topic")


def topic_seeds() -> Mapping[str, bytes]:
    return {
        "short": b"\0t",
        "middle": b"\0tenant/ns/t",
        "full": b"\0persistent://public/default/t-partition-7",
        "other": b"\0non-persistent://p/d/a%20b",
        "log": b"\1public/default/persistent/a%E2%82%ACb+c%7E*",
        "namespace": b"\2public/default",
        "encoded": b"\3%E2%82%AC+a%2Fb",
    }


TARGETS = (
    Target(
        name="pulsar.frame",
        run=run_frame,
        errors=WIRE_ERRORS,
        seeds=frame_seeds,
        valid=strategies.frames,
        weight=3.0,
    ),
    Target(
        name="pulsar.entry",
        run=run_entry,
        errors=WIRE_ERRORS,
        seeds=entry_seeds,
        valid=strategies.entries,
        memory_bytes_max=64 << 20,  # a client's limit for decompressed data
        weight=2.0,
    ),
    Target(
        name="pulsar.batch",
        run=run_batch,
        errors=WIRE_ERRORS,
        seeds=batch_seeds,
        memory_a_byte=1024,
    ),
    Target(name="compression", run=run_compression, errors=WIRE_ERRORS, seeds=compression_seeds),
    Target(name="fields", run=run_fields, errors=WIRE_ERRORS, seeds=field_seeds),
    Target(name="topics", run=run_topics, errors=WIRE_ERRORS, seeds=topic_seeds),
)
