"""A Spark task returns exactly its range from what a broker delivers, or raises an error."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.clients.python import blocking
from daybook.clients.python.messages import Entry, Message, MessageId, Offset
from daybook.clients.python.reader import OffsetRange as Held
from daybook.clients.spark import read
from daybook.clients.spark.offsets import DataLossError, OffsetRange
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.read import ARROW_SCHEMA, read_task
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
        "k",
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
