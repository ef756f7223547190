"""Columns that are cut from entries have the same rows as messages of the Python client."""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.clients.python.entries import EntryReader
from daybook.clients.python.messages import Message
from daybook.clients.spark import columns
from daybook.clients.spark.columns import Place, RowBuilder, arrow_schema
from daybook.clients.spark.cutter import Cutter
from daybook.clients.spark.entry import unpack
from daybook.clients.spark.schema import TYPES, KeyType
from daybook.wire.batch import encode_payload
from daybook.wire.compression import CompressionType, compress
from daybook.wire.errors import WireError
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.spark.entries import Stored, batch, metadata, single, stored

ALL = tuple(TYPES)
TOPIC = "persistent://public/default/t-partition-3"


def rows_of(
    entries: Sequence[Stored], key_type: KeyType = "binary", names: Sequence[str] = ALL
) -> list[dict[str, Any]]:
    """Return the rows that are cut from whole entries."""
    rows = RowBuilder(names, key_type, "t", 3)
    for entry in entries:
        head = entry.head
        last = entry.split.last_offset
        assert last is not None
        first = last - head.messages + 1
        place = Place(entry.ledger_id, entry.entry_id, 3)
        rows.add(unpack(head.metadata, head.body), place, first, 0, head.messages)
    found = rows.take()
    found.validate(full=True)
    assert found.schema.equals(arrow_schema(names, key_type))
    return raw(found)


def raw(found: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows with times as microseconds."""
    for name in ("timestamp", "eventTime"):
        index = found.schema.get_field_index(name)
        if index >= 0:
            times = found.column(index).cast(pa.int64())
            found = found.set_column(index, name, times)
    return list(found.to_pylist())


def messages_of(entry: Stored) -> list[Message]:
    """Return the messages as a reader of the Python client has them."""

    class Source:
        pass

    source = Source()
    reader = EntryReader(TOPIC, 3, source, now_s=lambda: 0.0)
    assert ref(source)() is source
    delivery = Delivery(1, entry.ledger_id, entry.entry_id, 3, 0, None, None, memoryview(b""))
    unpacked = reader.unpack(delivery, entry.data, 0)
    assert unpacked is not None
    return [message for message in unpacked.messages if not message.compacted_out]


def is_base64(text: str) -> bool:
    try:
        b64decode(text.encode(), validate=True)
    except ValueError:
        return False
    return True


def expected_row(message: Message, key_type: KeyType) -> dict[str, Any]:
    single = message._single
    properties = list(message.properties.items())
    event_ms = message.event_time_ms
    is_bytes = message.key is not None and message.key_is_bytes
    if is_bytes and not is_base64(str(message.key)):
        is_bytes = False  # It is shown as the text that it is.
    return {
        "key": message.key if key_type == "string" else message.key_bytes,
        "value": None if message.is_null else message.data,
        "topic": "t",
        "partition": 3,
        "offset": message.offset,
        "timestamp": message.publish_time_ms * 1000,
        "eventTime": None if event_ms is None else event_ms * 1000,
        "properties": properties,
        "messageId": message.message_id.encode(),
        "headers": [{"key": name, "value": text.encode()} for name, text in single.properties],
        "keyIsBytes": None if message.key is None else is_bytes,
        "orderingKey": message.ordering_key,
        "schemaVersion": message.entry.schema_version or None,
    }


words = st.text(max_size=9)
own_fields = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": words,
        "partition_key_b64_encoded": st.booleans(),
        "null_partition_key": st.booleans(),
        "ordering_key": st.binary(max_size=3),
        "event_time": st.one_of(st.integers(1, 300), st.integers(0, 1 << 45)),
        "sequence_id": st.integers(0, 1 << 60),
        "null_value": st.booleans(),
        "compacted_out": st.booleans(),
        "properties": st.lists(
            st.builds(lambda k, v: pb.KeyValue(key=k, value=v), words, words), max_size=2
        ),
    },
)
values = st.binary(max_size=12)
irregular = st.lists(st.tuples(own_fields, values), min_size=1, max_size=12)


@st.composite
def regular(draw: st.DrawFn) -> list[tuple[dict[str, Any], bytes]]:
    """Messages of the same layout; the values of their fields differ."""
    count = draw(st.integers(1, 12))
    shared = draw(own_fields)
    size, key_size = draw(st.integers(0, 9)), draw(st.integers(0, 5))
    letters = draw(st.sampled_from(["abc", "a\N{LATIN SMALL LETTER E WITH ACUTE}"]))
    same = st.text(letters, min_size=key_size, max_size=key_size)
    found = []
    for _ in range(count):
        own = dict(shared)
        if "partition_key" in shared:
            own["partition_key"] = draw(same)
        if "event_time" in shared:
            own["event_time"] = draw(st.integers(1, 400))
        if "sequence_id" in shared:
            own["sequence_id"] = draw(st.integers(1, 400))
        found.append((own, draw(st.binary(min_size=size, max_size=size))))
    return found


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.one_of(irregular, regular()), st.sampled_from(CompressionType))),
    st.sampled_from(["binary", "string"]),
)
def test_rows_of_batches_are_those_of_the_client(
    batches: list[tuple[list[tuple[dict[str, Any], bytes]], CompressionType]], key_type: KeyType
) -> None:
    entries, last = [], 41
    for entry_id, (messages, compression) in enumerate(batches):
        last += len(messages)
        version = {"schema_version": b"%08d" % entry_id} if entry_id % 2 else {}
        entries.append(stored(batch(messages, compression, **version), last, entry_id))
    if not entries:
        return
    wanted = [expected_row(m, key_type) for entry in entries for m in messages_of(entry)]
    if wanted:
        assert rows_of(entries, key_type) == wanted


@pytest.mark.parametrize("names", [ALL, ("key",), ("value", "offset")])
def test_a_batch_of_the_same_size_has_a_layout_of_its_own(names: Sequence[str]) -> None:
    """The layout of the batch before fits the sizes of all of these, and not their content."""
    pair = pb.KeyValue(key="a", value="1")
    kinds: list[dict[str, Any]] = [
        {"partition_key": "ab"},
        {"partition_key": "cd"},
        {"partition_key": "\N{LATIN SMALL LETTER E WITH ACUTE}"},  # two bytes, too
        {"partition_key": "ef", "null_value": True},
        {"partition_key": "gh", "null_partition_key": True},
        {"ordering_key": b"ij"},
        {"partition_key": "kl", "event_time": 5},
        {"partition_key": "mn", "sequence_id": 5},
        {"partition_key": "op"},
        {"properties": [pair]},
        {"properties": [pb.KeyValue(key="a", value="2")]},
        {"event_time": 300},
        {"event_time": 301},
    ]
    entries, last = [], -1
    for entry_id, own in enumerate(kinds):
        last += 3
        entries.append(stored(batch([(own, b"x%d" % n) for n in range(3)]), last, entry_id))
    wanted = [expected_row(m, "binary") for entry in entries for m in messages_of(entry)]
    assert rows_of(entries, names=names) == [{name: row[name] for name in names} for row in wanted]


@settings(deadline=None, max_examples=50)
@given(st.data(), st.sampled_from(["binary", "string"]))
def test_rows_of_single_messages_are_those_of_the_client(
    data: st.DataObject, key_type: KeyType
) -> None:
    entries = []
    for index in range(3):
        own = data.draw(own_fields)
        for name in ("compacted_out", "sequence_id"):
            own.pop(name, None)
        body, kind = data.draw(values), data.draw(st.sampled_from(CompressionType))
        if kind is not CompressionType.NONE and body:
            own |= {"compression": int(kind), "uncompressed_size": len(body)}
            body = bytes(compress(kind, body))
        entries.append(stored(single(body, **own), 10 + index, index))
    wanted = [expected_row(m, key_type) for entry in entries for m in messages_of(entry)]
    assert rows_of(entries, key_type) == wanted


@pytest.mark.parametrize("name", ALL)
def test_a_column_alone_is_that_of_all_columns(name: str) -> None:
    messages: list[tuple[dict[str, Any], bytes]] = [
        ({"partition_key": "k", "event_time": 5}, b"one"),
        ({"properties": [pb.KeyValue(key="a", value="1")]}, b"three"),
    ]
    entry = stored(batch(messages), 1)
    assert rows_of([entry], names=(name,)) == [{name: r[name]} for r in rows_of([entry])]


@pytest.mark.parametrize("alone", [False, True])
def test_headers_keep_all_properties_and_their_order(alone: bool) -> None:
    pairs = [pb.KeyValue(key=text[0], value=text[1]) for text in ("b1", "a2", "b3")]
    payload = single(b"x", properties=pairs) if alone else batch([({"properties": pairs}, b"x")])
    (row,) = rows_of([stored(payload, 0)])
    assert [(each["key"], each["value"]) for each in row["headers"]] == [
        ("b", b"1"),
        ("a", b"2"),
        ("b", b"3"),
    ]
    assert row["properties"] == [("b", "3"), ("a", "2")]


def test_a_regular_batch_is_cut_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(*_: object) -> None:
        raise AssertionError("a regular batch was cut one by one")

    monkeypatch.setattr(Cutter, "_cut_one_by_one", loop)
    messages = [
        ({"partition_key": f"key-{n:03}", "event_time": 200 + n, "sequence_id": n}, b"%05d" % n)
        for n in range(100)
    ]
    rows = rows_of([stored(batch(messages), 99)])
    assert [row["key"] for row in rows] == [b"key-%03d" % n for n in range(100)]
    assert [row["value"] for row in rows] == [b"%05d" % n for n in range(100)]
    assert [row["eventTime"] for row in rows] == [(200 + n) * 1000 for n in range(100)]


def test_a_tag_that_is_longer_than_it_need_be_makes_no_other_time() -> None:
    plain = pb.SingleMessageMetadata(payload_size=1).SerializeToString()
    heads = [plain + b"\xa8\x00" + bytes((time,)) for time in (3, 4)]  # field 5 in two bytes
    body = b"".join(len(head).to_bytes(4, "big") + head + b"x" for head in heads)
    entry = stored(encode_payload(metadata(num_messages_in_batch=2), body), 1)
    assert [row["eventTime"] for row in rows_of([entry])] == [3000, 4000]


@pytest.mark.parametrize("at", [253_402_300_800_000, (1 << 63) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("count", [1, 3])
def test_a_time_that_spark_cannot_hold_is_null(at: int, count: int) -> None:
    messages: list[tuple[dict[str, Any], bytes]] = [({"event_time": at}, b"x")] * count
    for payload in (
        batch(messages, publish_time=at),
        single(b"x", event_time=at, publish_time=at),
        batch([*messages, ({"event_time": 7}, b"longer")], publish_time=at),
    ):
        rows = rows_of([stored(payload, 9)])
        assert rows[0]["eventTime"] is None
        assert rows[0]["timestamp"] is None
    assert rows[-1]["eventTime"] == 7000


def test_the_last_time_that_spark_holds_is_kept() -> None:
    at = 253_402_300_799_999
    (row,) = rows_of([stored(single(b"x", event_time=at, publish_time=at), 0)])
    assert row["eventTime"] == row["timestamp"] == at * 1000
    (shown,) = pa.array([at * 1000], columns.arrow_schema(["eventTime"]).types[0]).to_pylist()
    assert shown.year == 9999


LONG = "x" * (1 << 20)
PAIRS = [pb.KeyValue(key=LONG, value="")]
LARGE: dict[str, tuple[dict[str, Any], bytes]] = {
    "value": ({}, LONG.encode()),
    "key": ({"partition_key": LONG}, b""),
    "orderingKey": ({"ordering_key": LONG.encode()}, b""),
    "properties": ({"properties": PAIRS}, b""),
    "headers": ({"properties": PAIRS}, b""),
}


@pytest.mark.parametrize("form", ["alone", "batch", "several"])
@pytest.mark.parametrize("name", LARGE)
def test_rows_are_full_when_any_column_has_many_bytes(name: str, form: str) -> None:
    """Arrow's offsets have 32 bits, so 2,048 keys of 1 MB would overflow them."""
    own, data = LARGE[name]
    other: tuple[dict[str, Any], bytes] = ({"event_time": 5}, b"")
    payload = {
        "alone": lambda: single(data, **own),
        "batch": lambda: batch([(own, data)]),
        "several": lambda: batch([(own, data), other]),
    }[form]()
    assert entries_until_full([name], payload) == columns.BATCH_BYTES_MAX >> 20


def entries_until_full(names: Sequence[str], payload: bytes) -> int:
    """Return how many entries make the rows full; at most 20 are tried."""
    rows = RowBuilder(names, "binary", "t", 3)
    head = stored(payload, 50).head
    for count in range(1, 21):
        rows.add(unpack(head.metadata, head.body), Place(1, count, 3), 0, 0, head.messages)
        if rows.full:
            rows.take().validate(full=True)
            assert not rows.full
            return count
    return 0


def test_many_empty_properties_fill_rows_and_those_that_nobody_asks_for_do_not() -> None:
    payload = single(b"", properties=[pb.KeyValue(key="", value="")] * 200_000)
    assert 0 < entries_until_full(["properties"], payload) < 20
    assert entries_until_full(["offset"], payload) == 0


def test_versions_of_schemas_fill_rows_and_numbers_do_not() -> None:
    payload = batch([({}, b"")] * 500, schema_version=b"v" * 1024)
    assert entries_until_full(["schemaVersion"], payload) == 17
    assert entries_until_full(["offset", "timestamp"], payload) == 20  # 10,000 rows


def test_a_version_of_a_schema_that_is_too_long_is_an_error_of_the_wire() -> None:
    """It would be there once for each message of its batch."""
    payload = batch([({}, b"")] * 10, schema_version=b"v" * 1025)
    head = stored(payload, 9).head
    rows = RowBuilder(["schemaVersion"], "binary", "t", 3)
    messages = unpack(head.metadata, head.body)
    with pytest.raises(WireError, match="version of the schema has 1,025 bytes"):
        rows.add(messages, Place(1, 2, 3), 0, 0, 10)
    assert rows.rows == 0
    rows.add_nulls(head.metadata, Place(1, 2, 3), 0, 0, 1)
    assert rows.take().to_pylist() == [{"schemaVersion": None}]
    others = RowBuilder(["value"], "binary", "t", 3)
    others.add(messages, Place(1, 2, 3), 0, 0, 10)
    assert others.rows == 10


@settings(deadline=None, max_examples=80)
@given(st.one_of(irregular, regular()), st.data())
def test_a_damaged_batch_is_an_error_of_the_wire_or_rows_that_arrow_accepts(
    messages: list[tuple[dict[str, Any], bytes]], data: st.DataObject
) -> None:
    payload = batch(messages)
    head = stored(payload, 20).head
    body = bytearray(head.body)
    for _ in range(data.draw(st.integers(1, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body))) :]
    rows = RowBuilder(ALL, "string", "t", 3)
    try:
        rows.add(
            replace(unpack(head.metadata, head.body), body=memoryview(bytes(body))),
            Place(1, 2, 3),
            0,
            0,
            head.messages,
        )
    except WireError:
        assert rows.rows == 0
    if rows.rows:
        rows.take().validate(full=True)
