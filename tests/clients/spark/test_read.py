"""A Spark task returns exactly its range from what a broker delivers, or raises an error."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from daybook.clients.python import blocking
from daybook.clients.python.messages import Entry, Message, MessageId, Offset
from daybook.clients.python.reader import OffsetRange as Held
from daybook.clients.spark import read
from daybook.clients.spark.offsets import DataLossError, OffsetRange
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.read import ARROW_SCHEMA, read_task
from daybook.clients.spark.schema import TYPES, Columns, KeyType
from daybook.wire.batch import SingleMetadata

TOPIC = "persistent://public/default/t"
NOWHERE = ref[object](object)  # the destination of entries, which no task asks for


def message(entry: Entry, index: int, **single: Any) -> Message:
    fields = {
        "payload_size": 1,
        "key": None,
        "key_is_base64": False,
        "ordering_key": None,
        "properties": (),
        "event_time_ms": 0,
        "sequence_id": None,
        "null_value": False,
        "compacted_out": False,
    }
    first = entry.first_offset or 0
    return Message(b"%d" % (first + index), entry, index, SingleMetadata(**(fields | single)))


def entry_of(first: int, count: int, *, entry_id: int = 0, is_batch: bool = True) -> list[Message]:
    entry = Entry(TOPIC, 3, 7, entry_id, 0, 1000 + first, None, "p", 0, first, is_batch, NOWHERE, 0)
    return [message(entry, index) for index in range(count)]


@dataclass
class FakeReader:
    deliveries: Iterator[list[Message]]

    def receive_batch(self, count_max: int, timeout_s: float) -> list[Message]:
        assert count_max == read.BATCH_ROWS_MAX
        assert timeout_s > 0
        return next(self.deliveries, [])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class FakeClient:
    """A partition that delivers whole entries, like a broker, from any offset on."""

    deliveries: Sequence[list[Message]]
    held: Held
    partition_count: int = 4
    asked: list[tuple[str, int]] = field(default_factory=list)

    def partitions(self, topic: str, *, create: bool) -> int:
        assert not create, "a task makes no topics"
        return self.partition_count

    def offsets(self, topic: str) -> Held:
        return self.held

    def create_reader(self, topic: str, *, start: Offset, receiver_queue_size: int) -> FakeReader:
        self.asked.append((topic, receiver_queue_size))
        from_here = [
            d for d in self.deliveries if d[-1].offset is None or d[-1].offset >= start.value
        ]
        return FakeReader(iter(from_here))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def run(
    deliveries: Sequence[list[Message]], start: int, end: int, *, first: int = 0, fail: bool = True
) -> list[dict[str, Any]]:
    client = FakeClient(deliveries, Held(first, 10**6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocking, "connect", lambda _, **__: client)
        batches = list(read_task(ReadTask("pulsar://x", "t", OffsetRange(3, start, end), fail)))
    for batch in batches:
        assert batch.schema.equals(ARROW_SCHEMA)
        batch.validate(full=True)
    assert all(topic == "t-partition-3" and size <= end - start for topic, size in client.asked)
    return [row for batch in batches for row in batch.to_pylist()]


@settings(deadline=None)  # the first run loads pyarrow
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_the_range_is_read_exactly_however_entries_lie(
    sizes: list[int], data: st.DataObject
) -> None:
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    entries = [
        entry_of(low, n, entry_id=i) for i, (low, n) in enumerate(zip(edges, sizes, strict=False))
    ]
    start = data.draw(st.integers(0, edges[-1] - 1))
    end = data.draw(st.integers(start + 1, edges[-1]))
    rows = run(entries, start, end)
    assert [row["offset"] for row in rows] == list(range(start, end))
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(start, end)]


def test_batches_are_cut_at_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "BATCH_BYTES_MAX", 5)
    rows = run([entry_of(n, 3, entry_id=n) for n in range(0, 30, 3)], 0, 30)
    assert [row["offset"] for row in rows] == list(range(30))


def test_every_column_is_what_the_message_says() -> None:
    entry = Entry(TOPIC, 3, 7, 9, 0, 1234, None, "p", 0, 40, True, NOWHERE, 0)
    full = message(entry, 0, key="k", properties=(("a", "1"), ("b", "2")), event_time_ms=5)
    empty = message(entry, 1, null_value=True)
    alone = entry_of(42, 1, entry_id=300, is_batch=False)
    first, second, third = run([[full, empty], alone], 40, 43)
    assert (first["key"], first["value"], first["topic"], first["partition"]) == (
        b"k",
        b"40",
        "t",
        3,
    )
    assert first["timestamp"].timestamp() == pytest.approx(1.234)
    assert first["eventTime"].timestamp() == pytest.approx(0.005)
    assert first["properties"] == [("a", "1"), ("b", "2")]
    assert (second["key"], second["value"], second["eventTime"]) == (None, None, None)
    assert second["properties"] == []
    ids = [MessageId.decode(row["messageId"]) for row in (first, second, third)]
    assert ids == [MessageId(7, 9, 0, 3), MessageId(7, 9, 1, 3), MessageId(7, 300, -1, 3)]
    assert [row["messageId"] for row in (first, third)] == [ids[0].encode(), ids[2].encode()]


def test_only_the_columns_that_a_task_names_are_computed_in_its_order() -> None:
    entry = Entry(TOPIC, 3, 7, 9, 0, 1234, None, "p", 0, 40, True, NOWHERE, 0)
    text = message(entry, 0, key="k", properties=(("a", "1"), ("b", "2")))
    binary = message(entry, 1, key="/wA=", key_is_base64=True)
    none = message(entry, 2)
    part = OffsetRange(3, 40, 43)
    task = ReadTask("pulsar://x", "t", part, True, ("offset", "key", "headers"))
    batch = read.record_batch([text, binary, none], [40, 41, 42], task)
    assert batch.schema.equals(read.arrow_schema(("offset", "key", "headers")))
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]
    assert batch.to_pylist() == [
        {"offset": 40, "key": b"k", "headers": headers},
        {"offset": 41, "key": b"\xff\x00", "headers": []},
        {"offset": 42, "key": None, "headers": []},
    ]
    as_text = replace(task, columns=("key",), key_type="string")
    batch = read.record_batch([text, binary, none], [40, 41, 42], as_text)
    assert batch.to_pylist() == [{"key": "k"}, {"key": "/wA="}, {"key": None}]


@pytest.mark.parametrize("key_type", ["binary", "string"])
def test_the_arrow_types_are_those_of_the_schema(key_type: KeyType) -> None:
    """Spark compares them, and refuses a batch whose types differ."""
    from pyspark.sql.pandas.types import to_arrow_schema

    fields = {
        "binary": BinaryType(),
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "timestamp": TimestampType(),
        "map<string,string>": MapType(StringType(), StringType()),
        "array<struct<key:string,value:binary>>": ArrayType(
            StructType().add("key", StringType()).add("value", BinaryType())
        ),
    }
    columns = Columns(tuple(TYPES), key_type)
    schema = StructType()
    for name in columns.names:
        schema = schema.add(name, fields[columns.type_of(name)])
    found = read.arrow_schema(columns.names, key_type)
    assert to_arrow_schema(schema, timezone="UTC").equals(found)


def test_long_batches_have_ids_of_more_than_a_byte() -> None:
    rows = run([entry_of(0, 300)], 0, 300)
    assert [MessageId.decode(row["messageId"]).batch_index for row in rows] == list(range(300))


def test_a_gap_is_data_loss_unless_the_query_may_go_on() -> None:
    entries = [entry_of(0, 5), entry_of(7, 5, entry_id=1)]
    with pytest.raises(DataLossError, match="offsets 5 to 7 are no longer"):
        run(entries, 2, 10)
    rows = run(entries, 2, 10, fail=False)
    assert [row["offset"] for row in rows] == [2, 3, 4, 7, 8, 9]


def test_what_was_trimmed_since_the_plan_is_data_loss_and_nothing_is_waited_for() -> None:
    with pytest.raises(DataLossError, match="offsets 2 to 20 are no longer"):
        run([], 2, 10, first=20)
    assert run([], 2, 10, first=20, fail=False) == []
    assert [row["offset"] for row in run([entry_of(5, 9)], 2, 10, first=6, fail=False)] == [
        6,
        7,
        8,
        9,
    ]


def test_silence_is_an_error_and_not_an_end() -> None:
    with pytest.raises(TimeoutError, match="no message arrived from offset 5 on"):
        run([entry_of(0, 5)], 0, 10)
