"""The rules of compaction: which messages are kept, and how a batch looks that loses some."""

import sys
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.broker.protocol import compaction
from daybook.broker.protocol.compaction import (
    ChangedError,
    Selection,
    TooManyKeysError,
    last_index,
)
from daybook.wire.batch import (
    broker_entry_metadata,
    encode_batch,
    encode_payload,
    iter_batch,
    parse_metadata,
    split_broker_metadata,
    verify_checksum,
)
from daybook.wire.compression import CompressionType, compress, decompress
from daybook.wire.proto import pulsar_pb2 as pb

KEYS_MAX = 100
ResultT = TypeVar("ResultT")


def single(value: str, *, sequence_id: int = 0, **metadata: Any) -> bytes:
    meta = pb.MessageMetadata(
        producer_name=metadata.pop("producer", "p"),
        sequence_id=sequence_id,
        publish_time=1,
        **metadata,
    )
    return encode_payload(meta, value.encode())


def keyed(key: str | None, value: str, **metadata: Any) -> bytes:
    if key is not None:
        metadata["partition_key"] = key
    return single(value, **metadata)


def batch(
    messages: Sequence[tuple[str | None, str]],
    compression: CompressionType = CompressionType.NONE,
    **metadata: Any,
) -> bytes:
    singles = []
    for index, (key, value) in enumerate(messages):
        each = pb.SingleMessageMetadata(payload_size=0, sequence_id=index, event_time=7)
        if key is not None:
            each.partition_key = key
        singles.append((each, value.encode()))
    plain = encode_batch(singles)
    meta = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=len(messages),
        uncompressed_size=len(plain),
        **metadata,
    )
    if compression is not CompressionType.NONE:
        meta.compression = int(compression)  # type: ignore[assignment]
    return encode_payload(meta, compress(compression, plain))


def chunk(uuid: str, number: int, count: int, **metadata: Any) -> bytes:
    return single(
        f"{uuid} {number}", uuid=uuid, chunk_id=number, num_chunks_from_msg=count, **metadata
    )


def whole(work: Generator[None, None, ResultT]) -> ResultT:
    """Carry out all slices of the work."""
    return sliced(work)[1]


def sliced(work: Generator[None, None, ResultT]) -> tuple[int, ResultT]:
    """Carry out the work, and count how often it let others work."""
    slices = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return slices, end.value
        slices += 1


def compacted(
    entries: Sequence[bytes], *, keys_max: int = KEYS_MAX, keyless: bool = False
) -> list[bytes | None]:
    """Return each entry as it is stored; None if it is not."""
    selection = Selection(keys_max=keys_max, salt=b"salt", retain_keyless=keyless)
    for entry in entries:
        whole(selection.add(memoryview(entry)))
    selection.forget_keys()
    found = [whole(selection.rewrite(memoryview(entry))) for entry in entries]
    selection.check_complete()
    return [None if data is None else bytes(data) for data in found]


def kept(entries: Sequence[bytes], **options: Any) -> list[bool]:
    found = compacted(entries, **options)
    for entry, data in zip(entries, found, strict=True):
        assert data is None or data == entry
    return [data is not None for data in found]


def messages_of(entry: bytes) -> list[tuple[str | None, str] | None]:
    """Return (key, value) of the messages of a batch; None for those that were removed."""
    verify_checksum(memoryview(entry))
    metadata, body = parse_metadata(memoryview(entry))
    plain = decompress(metadata.compression, body, metadata.uncompressed_size, 1 << 20)
    return [
        None if each.compacted_out else (each.key, data.decode())
        for each, data in iter_batch(plain, metadata.num_messages_in_batch)
    ]


def test_the_last_message_of_each_key_is_kept() -> None:
    entries = [keyed("a", "1"), keyed("b", "1"), keyed("a", "2")]
    assert kept(entries) == [False, True, True]


def test_a_tombstone_removes_its_key_and_is_removed() -> None:
    entries = [keyed("a", "1"), keyed("a", ""), keyed("b", "1"), keyed("c", "")]
    assert kept(entries) == [False, False, True, False]


def test_a_key_may_come_back_behind_its_tombstone() -> None:
    assert kept([keyed("a", "1"), keyed("a", ""), keyed("a", "2")]) == [False, False, True]


@pytest.mark.parametrize(
    "tombstone",
    [
        keyed("a", "", null_value=True),
        keyed("a", "\0" * 9, compression=pb.ZLIB, uncompressed_size=0),
        keyed(
            "a",
            "0123456789abcdef",
            encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
            uncompressed_size=0,
        ),
    ],
)
def test_a_tombstone_may_be_marked_compressed_or_encrypted(tombstone: bytes) -> None:
    assert kept([keyed("a", "1"), tombstone]) == [False, False]


def test_a_value_whose_size_is_stated_wrongly_is_no_tombstone() -> None:
    assert kept([keyed("a", "1"), keyed("a", "2", uncompressed_size=0)]) == [False, True]


@pytest.mark.parametrize("keyless", [False, True])
def test_messages_without_a_key_are_kept_only_on_request(keyless: bool) -> None:
    entries = [
        keyed(None, "1"),
        keyed(None, ""),
        single("2", partition_key="x", null_partition_key=True),
        batch([(None, "3")]),
    ]
    assert kept(entries, keyless=keyless) == [keyless] * 4


def test_an_empty_text_is_a_key() -> None:
    assert kept([keyed("", "1"), keyed("", "2"), keyed(None, "3")]) == [False, True, False]


def test_a_binary_key_is_not_the_text_of_its_base64_form() -> None:
    binary: dict[str, Any] = {"partition_key": "YQ==", "partition_key_b64_encoded": True}
    assert kept([single("1", **binary), keyed("YQ==", "2")]) == [True, True]
    assert kept([single("1", **binary), single("2", **binary)]) == [False, True]


def test_markers_are_removed() -> None:
    assert kept([single("", marker_type=1), keyed("a", "1")]) == [False, True]


# -- batches


@pytest.mark.parametrize("compression", list(CompressionType))
def test_a_batch_keeps_the_places_of_its_messages(compression: CompressionType) -> None:
    entry = batch([("a", "1"), ("b", "1"), (None, "x"), ("a", "2"), ("c", "")], compression)
    (data,) = compacted([entry])
    assert data is not None
    assert messages_of(data) == [None, ("b", "1"), None, ("a", "2"), None]
    before, after = (parse_metadata(memoryview(each))[0] for each in (entry, data))
    assert list(after.compacted_batch_indexes) == [1, 3]
    del after.compacted_batch_indexes[:]
    after.uncompressed_size = before.uncompressed_size
    assert before == after


def test_a_message_in_a_batch_keeps_its_metadata() -> None:
    (data,) = compacted([batch([("a", "1"), ("a", "2")])])
    assert data is not None
    metadata, body = parse_metadata(memoryview(data))
    _, (last, _) = iter_batch(bytes(body), metadata.num_messages_in_batch)
    assert (last.sequence_id, last.event_time_ms) == (1, 7)


def test_fields_that_are_not_known_here_survive() -> None:
    meta = pb.SingleMessageMetadata(payload_size=0, partition_key="a").SerializeToString()
    future = meta.replace(b"\x18\x00", b"\x18\x01") + b"\xfa\x3f\x01z"  # field 1023
    body = len(future).to_bytes(4, "big") + future + b"v"
    other = encode_batch([(pb.SingleMessageMetadata(payload_size=0, partition_key="b"), b"")])
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2
    )
    metadata.MergeFromString(b"\xfa\x3f\x01y")
    (data,) = compacted([encode_payload(metadata, body + other)])
    assert data is not None
    found, plain = parse_metadata(memoryview(data))
    assert bytes(plain).startswith(body)
    assert b"\xfa\x3f\x01y" in found.SerializeToString()


def test_a_batch_of_which_nothing_is_kept_is_removed() -> None:
    entries = [batch([("a", "1"), ("b", "1")]), batch([("a", "2"), ("b", "2")])]
    assert kept(entries) == [False, True]


def test_a_batch_is_compacted_again() -> None:
    first = compacted([batch([("a", "1"), ("b", "1"), ("c", "1")]), keyed("a", "2")])[0]
    assert first is not None
    # Nothing has changed for the batch, so it stays as it is.
    assert kept([first, keyed("d", "1")]) == [True, True]
    again = compacted([first, keyed("b", "2")])[0]
    assert again is not None
    assert messages_of(again) == [None, None, ("c", "1")]
    assert list(parse_metadata(memoryview(again))[0].compacted_batch_indexes) == [2]
    assert compacted([again, keyed("c", "")]) == [None, None]


def test_the_brokers_own_metadata_stay_in_front() -> None:
    head = broker_entry_metadata(123, 45)
    (data,) = compacted([head + batch([("a", "1"), ("a", "2")])])
    assert data is not None
    assert split_broker_metadata(memoryview(data))[:2] == (123, 45)
    assert messages_of(data) == [None, ("a", "2")]


def test_encrypted_batches_are_kept_whole() -> None:
    keys: dict[str, Any] = {"encryption_keys": [pb.EncryptionKeys(key="k", value=b"v")]}
    keys["partition_key"] = "a"
    entries = [batch([("a", "1"), ("b", "1")], **keys), batch([("a", "2")], **keys)]
    assert kept(entries) == [True, True]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\x0e\x01garbage",
        batch([("a", "1"), ("a", "2")])[:-1],
        encode_payload(
            pb.MessageMetadata(
                producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=9
            ),
            b"no batch",
        ),
        encode_payload(
            pb.MessageMetadata(
                producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=1 << 30
            ),
            b"",
        ),
        single("1", partition_key="a", num_messages_in_batch=2, compression=pb.LZ4),
    ],
)
def test_what_cannot_be_read_is_kept_whole(broken: bytes) -> None:
    assert kept([broken, keyed("a", "1"), broken]) == [True, True, True]


def test_an_entry_that_does_not_match_its_checksum_is_kept() -> None:
    damaged = bytearray(keyed("a", "12345"))
    damaged[-1] ^= 1
    assert kept([keyed("a", "1"), bytes(damaged), keyed("b", "1")]) == [True, True, True]


# -- chunks


def test_chunks_are_kept_or_removed_together() -> None:
    first = [chunk("p-1", n, 3, partition_key="a", sequence_id=1) for n in range(3)]
    second = [chunk("p-2", n, 2, partition_key="a", sequence_id=2) for n in range(2)]
    assert kept(first) == [True] * 3
    assert kept([*first, *second]) == [False] * 3 + [True] * 2
    assert kept([*first, keyed("a", "x", sequence_id=2)]) == [False] * 3 + [True]
    assert kept([keyed("a", "x"), *first]) == [False] + [True] * 3
    assert kept([*first, keyed("a", "", sequence_id=2)]) == [False] * 4


def test_chunks_without_a_key_follow_the_rule_of_keyless_messages() -> None:
    entries = [chunk("p-1", n, 2) for n in range(2)]
    assert kept(entries) == [False, False]
    assert kept(entries, keyless=True) == [True, True]


def test_chunks_of_an_unfinished_message_are_kept_and_replace_nothing() -> None:
    begun = [chunk("p-5", n, 3, partition_key="a", sequence_id=5) for n in range(2)]
    assert kept([keyed("a", "x", sequence_id=4), *begun]) == [True, True, True]
    # Another producer's message says nothing about them.
    assert kept([*begun, keyed("b", "x", sequence_id=9, producer="q")]) == [True] * 3
    # The end may come in a later compaction.
    end = chunk("p-5", 2, 3, partition_key="a", sequence_id=5)
    entries = [keyed("a", "x", sequence_id=4), *begun, end]
    assert kept(entries) == [False, True, True, True]


def test_chunks_that_their_producer_has_left_behind_are_removed() -> None:
    begun = [chunk("p-5", n, 3, partition_key="a", sequence_id=5) for n in range(2)]
    assert kept([*begun, keyed("b", "x", sequence_id=6)]) == [False, False, True]
    assert kept([*begun, batch([("b", "x")])]) == [True, True, True]  # an earlier sequence id


def test_a_message_that_lacks_a_chunk_replaces_nothing() -> None:
    entries = [keyed("a", "x"), *[chunk("p-5", n, 3, partition_key="a") for n in (0, 2)]]
    assert kept(entries) == [True, True, True]


def test_chunks_that_were_sent_again_are_kept_with_the_others() -> None:
    numbers = (0, 1, 0, 1, 2)
    entries = [chunk("p-5", n, 3, partition_key="a") for n in numbers]
    assert kept(entries) == [True] * 5
    assert kept([*entries, keyed("a", "x", sequence_id=6)]) == [False] * 5 + [True]


def test_many_unfinished_messages_cost_later_ones_nothing() -> None:
    n = 300
    begun = [chunk(f"p-{i}", 0, 2, partition_key="a", sequence_id=n + i) for i in range(n)]
    entries = [*begun, *(keyed("b", "x", sequence_id=i) for i in range(n))]
    looks = 0

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        nonlocal looks
        looks += event == "line"
        return trace if frame.f_code.co_filename == compaction.__file__ else None

    sys.settrace(trace)
    try:
        found = kept(entries, keys_max=2 * n)
    finally:
        sys.settrace(None)
    assert found == [True] * n + [False] * (n - 1) + [True]
    assert looks < 150 * len(entries)  # A look at each unfinished one would be 300 more.


# -- bounds


def test_more_keys_than_may_be_remembered_are_refused() -> None:
    entries = [keyed(str(n), "1") for n in range(4)]
    assert kept(entries, keys_max=4) == [True] * 4
    with pytest.raises(TooManyKeysError, match="compaction_keys_max"):
        compacted(entries, keys_max=3)


def test_keys_that_are_removed_do_not_count() -> None:
    entries = [entry for n in range(9) for entry in (keyed(str(n), "1"), keyed(str(n), ""))]
    assert kept(entries, keys_max=1) == [False] * 18


def test_chunks_count_as_keys() -> None:
    with pytest.raises(TooManyKeysError):
        compacted([chunk(f"p-{n}", 0, 2, partition_key="a") for n in range(4)], keys_max=3)


def test_a_second_pass_over_other_entries_is_an_error() -> None:
    selection = Selection(keys_max=9, salt=b"", retain_keyless=False)
    whole(selection.add(memoryview(keyed("a", "1"))))
    with pytest.raises(ChangedError):
        selection.check_complete()
    whole(selection.rewrite(memoryview(keyed("a", "1"))))
    selection.check_complete()
    with pytest.raises(ChangedError):
        whole(selection.rewrite(memoryview(keyed("b", "1"))))


def test_others_may_work_in_the_middle_of_a_large_batch() -> None:
    """A batch of 200,000 messages took 1.5 seconds, in which the broker did nothing else."""
    count = 10_000
    entry = memoryview(batch([("a" if n % 2 else f"b{n}", "1") for n in range(count)]))
    selection = Selection(keys_max=count, salt=b"", retain_keyless=False)
    slices, _ = sliced(selection.add(entry))
    assert slices >= 18  # parsing, and numbering
    selection.forget_keys()
    slices, found = sliced(selection.rewrite(entry))
    assert slices >= 9
    assert found is not None
    metadata, _ = parse_metadata(memoryview(found))
    assert [*metadata.compacted_batch_indexes] == [*range(0, count, 2), count - 1]


def test_the_number_of_removed_messages() -> None:
    selection = Selection(keys_max=9, salt=b"", retain_keyless=False)
    for key, value in [("a", "1"), ("a", "2"), ("b", "1"), ("b", ""), (None, "x")]:
        whole(selection.add(memoryview(keyed(key, value))))
    assert selection.removed == 4
    assert selection.keys == 1


@pytest.mark.parametrize(
    ("entry", "index"),
    [
        (keyed("a", "1"), -1),
        (batch([("a", "1"), ("b", "1")]), 1),
        (compacted([batch([("a", "1"), ("b", "1")]), keyed("b", "2")])[0], 0),
        (batch([("a", "1")], encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]), 0),
        (b"garbage", -1),
    ],
)
def test_the_index_of_the_last_message_that_is_left(entry: bytes, index: int) -> None:
    assert whole(last_index(memoryview(entry))) == index


def test_the_last_message_of_a_large_batch_is_looked_for_in_slices() -> None:
    entry = batch([("a", "")] * 10_000)
    assert len([*last_index(memoryview(entry))]) == 10


# -- a model


MESSAGES = st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["", "1", "2"]))
ENTRIES = st.lists(st.lists(MESSAGES, min_size=1, max_size=4), max_size=12)


@given(ENTRIES, st.integers(0, 12), st.booleans())
def test_compacting_once_or_twice_leaves_the_last_value_of_each_key_in_order(
    entries: list[list[tuple[str, str]]], cut: int, batched: bool
) -> None:
    """Compare with a dictionary; the second compaction begins with the result of the first."""
    raw = [batch(each) if len(each) > 1 or batched else keyed(*each[0]) for each in entries]
    before = [data for data in compacted(raw[:cut]) if data is not None]
    found: list[tuple[str | None, str]] = []
    for data in compacted([*before, *raw[cut:]]):
        if data is not None:
            metadata, body = parse_metadata(memoryview(data))
            if metadata.HasField("num_messages_in_batch"):
                found += [each for each in messages_of(data) if each is not None]
            else:
                found.append((metadata.partition_key, bytes(body).decode()))
    model: dict[str, str] = {}
    for key, value in (message for each in entries for message in each):
        model.pop(key, None)  # so that the order is that of the last messages
        if value:
            model[key] = value
    assert found == list(model.items())
