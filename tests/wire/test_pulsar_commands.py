"""Commands between clients and brokers: golden bytes, round trips, and invalid input."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire.ack_sets import decode_ack_set, encode_ack_set
from daybook.wire.errors import MalformedError, TruncatedError, WireError
from daybook.wire.messages.client import Send, SendReceipt, encode_send, encode_send_receipts
from daybook.wire.messages.consumer import (
    Ack,
    AckedId,
    Delivery,
    encode_ack,
    encode_message,
    encode_message_id,
)
from daybook.wire.messages.registry import (
    NO_ID,
    BaseType,
    Command,
    decode_frame,
    encode,
    signed,
    type_name,
    unsigned,
)
from daybook.wire.proto import pulsar_pb2 as pb

U64 = st.integers(0, (1 << 64) - 1)
ID = st.one_of(st.integers(0, 300), st.integers(-1, (1 << 63) - 1))
INT31 = st.integers(1, (1 << 31) - 1)


def body(frame: bytes) -> memoryview:
    """Return the frame as a connection delivers it: without its length, which must be right."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return memoryview(frame)[4:]


@pytest.mark.parametrize(
    ("message", "golden"),
    [
        (pb.CommandPing(), "0000000900000005 0812 920100"),
        (pb.CommandPong(), "0000000900000005 0813 9a0100"),
        (pb.CommandSuccess(request_id=7), "0000000a00000006 080d 6a020807"),
        (
            pb.CommandGetLastMessageIdResponse(
                request_id=1,
                last_message_id=pb.MessageIdData(
                    ledgerId=unsigned(-1), entryId=unsigned(-1), partition=-1
                ),
            ),
            "0000003900000035 081e f20130 0a2c 08ffffffffffffffffff01 10ffffffffffffffffff01"
            " 18ffffffffffffffffff01 20ffffffffffffffffff01 1001",
        ),
    ],
)
def test_frames_are_those_of_other_implementations(message: Any, golden: str) -> None:
    if isinstance(message, pb.CommandGetLastMessageIdResponse):
        message.last_message_id.batch_index = -1
    frame = encode(message)
    assert frame == bytes.fromhex(golden)
    command = decode_frame(body(frame))
    assert isinstance(command, Command)
    assert command.body == message


def test_a_send_is_that_of_other_implementations() -> None:
    payload = bytes.fromhex(
        "0e01 ae21f2e5 0000000c 0a0170 1002 1880d095ffbc31".replace(" ", "") + b"hello".hex()
    )
    frame = encode_send(1, 2, len(payload)) + payload
    assert frame == bytes.fromhex("00000027 00000008 0806 320408011002") + payload
    assert decode_frame(body(frame)) == Send(1, 2, None, 1, False, False, None, memoryview(payload))


def test_every_type_has_the_field_of_its_number() -> None:
    for name, number in BaseType.items():
        field = pb.BaseCommand.DESCRIPTOR.fields_by_number[number]
        assert field.message_type is not None
        assert type_name(number) == name


@given(U64, U64, st.none() | st.integers(1, NO_ID), INT31, st.binary(max_size=20))
def test_send_parses_as_the_runtime_parses_it(
    producer_id: int, sequence_id: int, highest: int | None, count: int, payload: bytes
) -> None:
    head = encode_send(
        producer_id,
        sequence_id,
        len(payload),
        num_messages=count,
        highest_sequence_id=highest,
    )
    frame = body(head + payload)
    size = int.from_bytes(frame[:4], "big")
    send = pb.BaseCommand.FromString(bytes(frame[4 : 4 + size])).send
    assert (send.producer_id, send.sequence_id) == (producer_id, sequence_id)
    assert send.num_messages == count
    expected_highest = None if highest == sequence_id else highest
    assert (send.highest_sequence_id or None) == expected_highest
    assert decode_frame(frame) == Send.from_command(send, memoryview(payload))


@given(U64, st.lists(st.tuples(U64, st.none() | st.integers(0, NO_ID), ID, ID), max_size=5))
def test_receipts_parse_as_the_runtime_parses_them(
    producer_id: int, receipts: list[tuple[int, int | None, int, int]]
) -> None:
    data = encode_send_receipts(producer_id, receipts)
    got: list[SendReceipt] = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        command = decode_frame(memoryview(data)[4:end])
        base = pb.BaseCommand.FromString(data[8:end])
        assert command == SendReceipt.from_command(base.send_receipt)
        assert isinstance(command, SendReceipt)
        got.append(command)
        data = data[end:]
    assert got == [SendReceipt(producer_id, s, h or 0, le, e) for s, h, le, e in receipts]


@given(
    U64,
    ID,
    ID,
    st.integers(-1, 1000),
    st.integers(0, 1000),
    st.none() | st.integers(0, 1 << 200),
    st.none() | U64,
    st.binary(max_size=20),
)
def test_message_parses_as_the_runtime_parses_it(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    redelivered: int,
    ack_set: int | None,
    epoch: int | None,
    payload: bytes,
) -> None:
    message_id = encode_message_id(ledger_id, entry_id, partition)
    head = encode_message(consumer_id, message_id, redelivered, ack_set, len(payload), epoch)
    frame = body(head + payload)
    size = int.from_bytes(frame[:4], "big")
    base = pb.BaseCommand.FromString(bytes(frame[4 : 4 + size]))
    assert base.message.message_id.partition == partition
    command = decode_frame(frame)
    assert command == Delivery.from_command(base.message, memoryview(payload))
    assert command == Delivery(
        consumer_id,
        ledger_id,
        entry_id,
        partition,
        redelivered,
        ack_set,
        epoch,
        memoryview(payload),
    )


@given(
    U64,
    st.lists(st.tuples(ID, ID, st.none() | st.integers(0, 1 << 130)), max_size=20),
    st.booleans(),
    st.none() | U64,
)
def test_ack_parses_as_the_runtime_parses_it(
    consumer_id: int,
    ids: list[tuple[int, int, int | None]],
    cumulative: bool,
    request_id: int | None,
) -> None:
    frame = body(encode_ack(consumer_id, ids, cumulative=cumulative, request_id=request_id))
    command = decode_frame(frame)
    assert command == Ack.from_command(pb.BaseCommand.FromString(bytes(frame[4:])).ack)
    expected = [AckedId(*each) for each in ids]
    assert command == Ack(consumer_id, cumulative, expected, request_id, {}, None, None)


@given(st.integers(0, 1 << 300))
def test_ack_sets_survive(pending: int) -> None:
    words = encode_ack_set(pending)
    assert decode_ack_set(words) == pending
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
    assert len(words) == 1 or words[-1] != 0  # Trailing zero words are left out.


def test_an_empty_ack_set_is_the_whole_entry_and_a_zero_word_is_nothing_pending() -> None:
    assert decode_ack_set([]) is None
    assert encode_ack_set(None) == []
    assert decode_ack_set([0]) == 0
    assert encode_ack_set(0) == [0]
    assert encode_ack_set(1 << 63) == [-(1 << 63)]


def test_minus_one_travels_as_the_highest_id() -> None:
    assert unsigned(-1) == NO_ID
    assert signed(NO_ID) == -1
    assert signed(5) == unsigned(5) == 5


@given(st.binary(max_size=80))
def test_garbage_is_a_wire_error_or_a_command(frame: bytes) -> None:
    with suppress(WireError):
        decode_frame(memoryview(frame))


@given(st.integers(2, 81), st.binary(max_size=40), st.binary(max_size=5))
def test_garbage_with_a_good_head_is_a_wire_error_or_a_command(
    number: int, inner: bytes, payload: bytes
) -> None:
    tag = number << 3 | 2
    tags = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    base = bytes([8, number]) + tags + bytes([len(inner)]) + inner
    try:
        command = decode_frame(memoryview(len(base).to_bytes(4, "big") + base + payload))
    except WireError:
        return
    if isinstance(command, Command):
        assert command.body.IsInitialized()


def test_a_string_that_is_not_utf8_is_malformed() -> None:
    good = encode(pb.CommandProducer(topic="abc", producer_id=1, request_id=2))
    with pytest.raises(MalformedError, match="UTF-8"):
        decode_frame(body(good.replace(b"abc", b"\xff\xfe\xfd")))


@pytest.mark.parametrize(
    "frame",
    ["", "000000", "00000005", "00000006 0812 920100", "ffffffff 0812 920100"],
)
def test_a_command_that_is_cut_off_is_truncated(frame: str) -> None:
    with pytest.raises(TruncatedError):
        decode_frame(memoryview(bytes.fromhex(frame)))


@pytest.mark.parametrize(
    "frame",
    [
        "00000000",  # no type
        "00000002 0812",  # a type without its command
        "00000005 0863 920100",  # an unknown type
        "00000005 0806 320108",  # a varint without an end
        "00000006 0806 32020801",  # a SEND without a sequence id
        "00000008 0806 3206 080110021800"[:-4] + "18",  # cut inside
    ],
)
def test_a_command_that_does_not_parse_is_malformed(frame: str) -> None:
    with pytest.raises(WireError):
        decode_frame(memoryview(bytes.fromhex(frame)))


def test_a_negative_count_is_malformed_and_zero_is_one() -> None:
    one = pb.CommandSend(producer_id=1, sequence_id=1, num_messages=0)
    assert Send.from_command(one, memoryview(b"")).num_messages == 1
    with pytest.raises(MalformedError):
        Send.from_command(
            pb.CommandSend(producer_id=1, sequence_id=1, num_messages=-1), memoryview(b"")
        )
