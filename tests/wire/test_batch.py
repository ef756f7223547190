"""The contents of an entry: golden bytes, round trips, and invalid input."""

from contextlib import suppress
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire.batch import (
    BatchReader,
    SingleMetadata,
    broker_entry_metadata,
    encode_batch,
    encode_payload,
    highest_id,
    is_batch,
    iter_batch,
    num_messages,
    parse_metadata,
    publish_time,
    split_broker_metadata,
    verified_metadata,
    verify_checksum,
    without_checksum,
)
from daybook.wire.errors import ChecksumError, MalformedError, TruncatedError, WireError
from daybook.wire.proto import pulsar_pb2 as pb

GOLDEN = bytes.fromhex(
    "0e01 ae21f2e5 0000000c 0a0170 1002 1880d095ffbc31 68656c6c6f".replace(" ", "")
)
GOLDEN_BLOCK = bytes.fromhex("0e02 00000009 0880d095ffbc31 1009".replace(" ", ""))
NOW = 1_700_000_000_000

single = st.builds(
    lambda key, properties, event_time, sequence_id, data: (
        pb.SingleMessageMetadata(
            partition_key=key,
            properties=[pb.KeyValue(key=k, value=v) for k, v in properties],
            event_time=event_time,
            sequence_id=sequence_id,
            payload_size=0,
        ),
        data,
    ),
    st.none() | st.text(max_size=8),
    st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=2),
    st.none() | st.integers(0, NOW),
    st.none() | st.integers(0, 1 << 40),
    st.binary(max_size=300),
)


def metadata(**fields: int) -> pb.MessageMetadata:
    made = pb.MessageMetadata(producer_name="p", sequence_id=2, publish_time=NOW)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@given(st.lists(single, min_size=1, max_size=8), st.integers(0, 100))
def test_the_highest_id_is_that_of_the_messages(
    messages: list[tuple[pb.SingleMessageMetadata, bytes]], first: int
) -> None:
    body = encode_batch(messages)
    singles = [single for single, _ in iter_batch(body, len(messages))]
    ids = (
        first + index if single.sequence_id is None else single.sequence_id
        for index, single in enumerate(singles)
    )
    assert highest_id(body, len(messages), first) == max(first, *ids)


@given(st.binary(max_size=40), st.integers(1, 5))
def test_the_highest_id_of_bytes_that_are_no_batch(body: bytes, count: int) -> None:
    with suppress(WireError):
        assert highest_id(body, count, 7) >= 7


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_batch_that_is_cut_off_has_no_highest_id(cut: int) -> None:
    body = encode_batch([(pb.SingleMessageMetadata(payload_size=0), b"x")])
    with pytest.raises(WireError):
        highest_id(body[:-cut], 1, 7)


def test_an_entry_is_that_of_other_implementations() -> None:
    assert encode_payload(metadata(), b"hello") == GOLDEN
    verify_checksum(memoryview(GOLDEN))
    assert verified_metadata(memoryview(GOLDEN)) == parse_metadata(memoryview(GOLDEN))
    parsed, body = parse_metadata(memoryview(GOLDEN))
    assert (parsed, bytes(body)) == (metadata(), b"hello")
    assert publish_time(memoryview(GOLDEN)) == NOW
    assert (num_messages(parsed), is_batch(parsed)) == (1, False)


def test_the_brokers_block_is_that_of_other_implementations() -> None:
    assert broker_entry_metadata(NOW, 9) == GOLDEN_BLOCK
    entry = memoryview(GOLDEN_BLOCK + GOLDEN)
    timestamp, index, rest = split_broker_metadata(entry)
    assert (timestamp, index, bytes(rest)) == (NOW, 9, GOLDEN)
    assert split_broker_metadata(memoryview(GOLDEN)) == (None, None, memoryview(GOLDEN))
    verify_checksum(entry)
    assert verified_metadata(entry) == parse_metadata(entry)
    assert parse_metadata(entry)[0] == metadata()
    assert bytes(without_checksum(entry)) == GOLDEN[6:]


@pytest.mark.parametrize("index", range(len(GOLDEN)))
def test_a_changed_byte_is_noticed(index: int) -> None:
    changed = bytearray(GOLDEN)
    changed[index] ^= 0x10
    if index < 2:  # Without its magic there is no checksum to compare; the rest does not parse.
        with pytest.raises(WireError):
            parse_metadata(memoryview(changed))
    else:
        for verify in (verify_checksum, verified_metadata):
            with pytest.raises(ChecksumError):
                verify(memoryview(changed))


def test_a_batch_of_one_is_a_batch() -> None:
    parsed, _ = parse_metadata(memoryview(encode_payload(metadata(num_messages_in_batch=1), b"")))
    assert is_batch(parsed)


@pytest.mark.parametrize("count", [0, -1, 1 << 20])
def test_a_batch_of_none_or_too_many_is_malformed(count: int) -> None:
    payload = encode_payload(metadata(num_messages_in_batch=count), b"")
    with pytest.raises(MalformedError):
        parse_metadata(memoryview(payload))


@given(st.lists(single, max_size=8))
def test_batches_survive(messages: list[tuple[pb.SingleMessageMetadata, bytes]]) -> None:
    body = encode_batch(messages)
    reader = BatchReader()
    for _ in range(2):  # The second round uses cached results.
        out = list(zip(*reader.split(body, len(messages)), strict=True))
        assert [data for _, data in out] == [data for _, data in messages]
        for (got, _), (sent, data) in zip(out, messages, strict=True):
            assert got.payload_size == len(data)
            assert got.key == (sent.partition_key if sent.HasField("partition_key") else None)
            assert got.properties == tuple((p.key, p.value) for p in sent.properties)
            assert got.event_time_ms == sent.event_time
    assert list(iter_batch(body, len(messages))) == out


@given(st.lists(single, min_size=1, max_size=4), st.data())
def test_a_batch_that_is_cut_off_is_truncated(
    messages: list[tuple[pb.SingleMessageMetadata, bytes]], data: st.DataObject
) -> None:
    body = encode_batch(messages)
    reader = BatchReader()
    reader.split(body, len(messages))
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(WireError):
        reader.split(body[:cut], len(messages))
    with pytest.raises(TruncatedError):
        reader.split(body, len(messages) + 1)


@given(st.binary(max_size=60), st.integers(1, 4))
def test_garbage_is_a_wire_error_or_messages(body: bytes, count: int) -> None:
    with suppress(WireError):
        singles, data = BatchReader().split(body, count)
        assert len(singles) == len(data) == count


def read_plainly(body: bytes, count: int) -> list[tuple[int, bytes]] | None:
    """Return metadata sizes and data of the messages, read one by one; None if it is no batch."""
    found: list[tuple[int, bytes]] = []
    at = 0
    for _ in range(count):
        size = int.from_bytes(body[at : at + 4], "big")
        first = at + 4 + size
        try:
            said = SingleMetadata.from_message(
                pb.SingleMessageMetadata.FromString(body[at + 4 : first])
            )
        except (DecodeError, WireError):
            return None
        at = first + said.payload_size
        if at > len(body):
            return None
        found.append((said.payload_size, body[first:at]))
    return found


@given(
    single,
    st.integers(1, 6),
    st.binary(max_size=3),
    st.none() | st.tuples(st.integers(0, 400), st.integers(1, 255)),
)
def test_batches_of_one_metadata_are_read_as_others_are(
    message: tuple[pb.SingleMessageMetadata, bytes],
    count: int,
    behind: bytes,
    flip: tuple[int, int] | None,
) -> None:
    body = bytearray(encode_batch([message] * count) + behind)
    if flip is not None:
        body[flip[0] % len(body)] ^= flip[1]
    expected = read_plainly(bytes(body), count)
    try:
        found = [(said.payload_size, data) for said, data in iter_batch(bytes(body), count)]
    except WireError:
        assert expected is None
    else:
        assert found == expected


def ids_read_plainly(
    body: bytes, count: int, first_id: int
) -> list[tuple[SingleMetadata, int, bytes]] | None:
    """Return metadata without ids, ids, and data, each message parsed by protobuf; None if bad."""
    found: list[tuple[SingleMetadata, int, bytes]] = []
    at = 0
    for index in range(count):
        first = at + 4 + int.from_bytes(body[at : at + 4], "big")
        try:
            parsed = pb.SingleMessageMetadata.FromString(body[at + 4 : first])
            said = SingleMetadata.from_message(parsed)
        except (DecodeError, WireError):
            return None
        at = first + said.payload_size
        if at > len(body):
            return None
        own = first_id + index if said.sequence_id is None else said.sequence_id
        found.append((replace(said, sequence_id=None), own, body[first:at]))
    return found


def ids_of(body: bytes, count: int, first_id: int) -> list[tuple[SingleMetadata, int, bytes]]:
    reader = BatchReader()
    for _ in range(2):  # The second round uses remembered metadata.
        singles, data = reader.split(body, count, 0, first_id)
    return [
        (
            replace(said, sequence_id=None),
            first_id + index if said.sequence_id is None else said.sequence_id,
            each,
        )
        for index, (said, each) in enumerate(zip(singles, data, strict=True))
    ]


NUMBERS = st.sampled_from([0, 1, 63, 126, 127, 128, 16_382, (1 << 35) - 2, (1 << 64) - 3])


@given(
    NUMBERS,
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3)), max_size=2),
    st.sampled_from([b"", b"k", b"@\x05", b"@\x7f"]),
    st.none() | st.tuples(st.integers(0, 4000), st.integers(1, 255)),
    st.booleans(),
)
def test_messages_with_sequence_ids_are_read_as_protobuf_reads_them(
    first_id: int,
    count: int,
    odd: list[tuple[int, int]],
    ordering_key: bytes,
    flip: tuple[int, int] | None,
    equal: bool,
) -> None:
    ids = [(first_id + index) % (1 << 64) for index in range(count)]
    for at, id_ in odd:  # messages whose ids are others
        ids[at % count] = id_
    messages = [
        (pb.SingleMessageMetadata(payload_size=0, sequence_id=id_), b"x" * (3 if equal else i % 5))
        for i, id_ in enumerate(ids)
    ]
    for sent, _ in messages:
        if ordering_key:
            sent.ordering_key = ordering_key
    body = bytearray(encode_batch(messages))
    if flip is not None:
        body[flip[0] % len(body)] ^= flip[1]
    expected = ids_read_plainly(bytes(body), count, first_id)
    try:
        found = ids_of(bytes(body), count, first_id)
    except WireError:
        assert expected is None
    else:
        assert found == expected


@pytest.mark.parametrize(
    "tail",
    [
        b"\x3a\x02@%c",  # an ordering key that ends like a sequence id
        b"\x22\x02@%c",  # a field that nobody knows
        b"\x40\x09\x40%c",  # two sequence ids: the last one counts
        b"\x40%c\x48\x00",  # a field behind the sequence id
        b"\x40\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80%c",  # longer than a varint may be
        b"\x40\x80%c",
    ],
)
def test_what_looks_like_a_sequence_id_is_none(tail: bytes) -> None:
    heads = [b"\x18\x01" + tail % index for index in range(3)]
    body = b"".join(len(head).to_bytes(4, "big") + head + b"v" for head in heads)
    expected = ids_read_plainly(body, 3, 0)
    if expected is None:
        with pytest.raises(MalformedError):
            ids_of(body, 3, 0)
    else:
        assert ids_of(body, 3, 0) == expected


def test_sequence_ids_that_do_not_count_up_are_stated() -> None:
    for ids in ([1, 1], [5, 6, 9, 8], [300, 301, 302, 431]):
        messages = [(pb.SingleMessageMetadata(payload_size=0, sequence_id=i), b"x") for i in ids]
        found = ids_of(encode_batch(messages), len(ids), ids[0])
        assert [id_ for _, id_, _ in found] == ids


def test_messages_that_count_up_share_their_metadata() -> None:
    messages = [(pb.SingleMessageMetadata(payload_size=0, sequence_id=i), b"x") for i in range(900)]
    singles, data = BatchReader().split(encode_batch(messages), 900, 0, 0)
    assert data == [b"x"] * 900
    # Those before 128 have shorter ids, and so another layout than the others.
    assert len({*map(id, singles)}) == 1


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x0e\x01", b"\x0e\x02", GOLDEN_BLOCK]))
def test_a_garbage_entry_is_a_wire_error_or_metadata(garbage: bytes, head: bytes) -> None:
    entry = memoryview(head + garbage)
    for decode in (
        verify_checksum,
        verified_metadata,
        parse_metadata,
        split_broker_metadata,
        publish_time,
    ):
        with suppress(WireError):
            decode(entry)


def test_metadata_that_are_not_utf8_are_malformed() -> None:
    payload = encode_payload(metadata(), b"").replace(b"\x0a\x01p", b"\x0a\x01\xff")
    with pytest.raises(MalformedError):
        parse_metadata(memoryview(payload))
