"""A Spark task returns exactly its range from what a broker delivers, or raises an error."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.clients.python.message_id import MessageId, Offset
from daybook.clients.python.reader import DeliveredEntry
from daybook.clients.python.reader import OffsetRange as Held
from daybook.clients.spark import columns, worker
from daybook.clients.spark.entry import split_offset
from daybook.clients.spark.offsets import DataLossError, OffsetRange
from daybook.clients.spark.options import OnUnreadable, ReadTask
from daybook.clients.spark.read import ARROW_SCHEMA, read_task
from daybook.clients.spark.walk import UnreadableMessageError
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.spark.entries import Stored, batch, numbered, single, stored


@dataclass
class FakeReader:
    deliveries: Iterator[Stored]

    def receive_entries(self, timeout_s: float) -> list[DeliveredEntry]:
        assert timeout_s > 0
        found = next(self.deliveries, None)
        if found is None:
            raise TimeoutError
        return [DeliveredEntry(found.ledger_id, found.entry_id, found.data)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class FakeClient:
    """A partition that delivers whole entries, like a broker, from any offset on."""

    entries: Sequence[Stored]
    held: Held
    partition_count: int = 4
    asked: list[tuple[str, int]] = field(default_factory=list)

    def partitions(self, topic: str, *, create: bool) -> int:
        assert not create, "a task makes no topics"
        return self.partition_count

    def offsets(self, topic: str) -> Held:
        return self.held

    def create_reader(
        self, topic: str, *, start: Offset, receiver_queue_size: int = 1000
    ) -> FakeReader:
        self.asked.append((topic, receiver_queue_size))
        from_here = [
            each
            for each in self.entries
            if (last := split_offset(memoryview(each.data))[0]) is None or last >= start.value
        ]
        return FakeReader(iter(from_here))

    def close(self) -> None:
        pass


def task_of(start: int, end: int, **fields: Any) -> ReadTask:
    return ReadTask("pulsar://x", "t", OffsetRange(3, start, end), True, **fields)


def run(
    entries: Sequence[Stored],
    start: int,
    end: int,
    *,
    first: int = 0,
    fail: bool = True,
    on_unreadable: OnUnreadable = "fail",
) -> list[dict[str, Any]]:
    client = FakeClient(entries, Held(first, 10**6))
    task = ReadTask(
        "pulsar://x", "t", OffsetRange(3, start, end), fail, on_unreadable=on_unreadable
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "client_of", lambda url, patience_s, tls, who: client)
        batches = list(read_task(task))
    for each in batches:
        assert each.schema.equals(ARROW_SCHEMA)
        each.validate(full=True)
    wanted = "persistent://public/default/t-partition-3"
    assert all(topic == wanted for topic, _ in client.asked)
    assert all(size <= max(1000, end - start) for _, size in client.asked)
    return [row for each in batches for row in each.to_pylist()]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_the_range_is_read_exactly_however_entries_lie(
    sizes: list[int], data: st.DataObject
) -> None:
    """Spark 20836, 15820: gaps between offsets were taken for lost data."""
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    entries = [numbered(low, n, i) for i, (low, n) in enumerate(zip(edges, sizes, strict=False))]
    start = data.draw(st.integers(0, edges[-1] - 1))
    end = data.draw(st.integers(start + 1, edges[-1]))
    rows = run(entries, start, end)
    assert [row["offset"] for row in rows] == list(range(start, end))
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(start, end)]


def test_batches_are_cut_at_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BATCH_BYTES_MAX", 5)
    rows = run([numbered(n, 3, n) for n in range(0, 30, 3)], 0, 30)
    assert [row["offset"] for row in rows] == list(range(30))


def test_an_entry_that_comes_twice_is_read_once() -> None:
    entries = [numbered(0, 3, 0), numbered(3, 3, 1), numbered(3, 3, 1), numbered(6, 3, 2)]
    assert [row["offset"] for row in run(entries, 0, 9)] == list(range(9))


def test_every_column_is_what_the_message_says() -> None:
    full = {
        "partition_key": "k",
        "properties": [pb.KeyValue(key="a", value="1"), pb.KeyValue(key="b", value="2")],
        "event_time": 5,
    }
    entry = stored(batch([(full, b"40"), ({"null_value": True}, b"")], publish_time=1234), 41, 9)
    first, second, third = run([entry, numbered(42, 1, 300, alone=True)], 40, 43)
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


def test_long_batches_have_ids_of_more_than_a_byte() -> None:
    rows = run([numbered(0, 300)], 0, 300)
    assert [MessageId.decode(row["messageId"]).batch_index for row in rows] == list(range(300))


def test_a_gap_is_data_loss_unless_the_query_may_go_on() -> None:
    entries = [numbered(0, 5), numbered(7, 5, 1)]
    with pytest.raises(DataLossError, match="offsets 5 to 7 are no longer"):
        run(entries, 2, 10)
    rows = run(entries, 2, 10, fail=False)
    assert [row["offset"] for row in rows] == [2, 3, 4, 7, 8, 9]


def test_what_was_trimmed_since_the_plan_is_data_loss_and_nothing_is_waited_for() -> None:
    with pytest.raises(DataLossError, match="offsets 2 to 20 are no longer"):
        run([], 2, 10, first=20)
    assert run([], 2, 10, first=20, fail=False) == []
    rows = run([numbered(5, 9)], 2, 10, first=6, fail=False)
    assert [row["offset"] for row in rows] == [6, 7, 8, 9]


@pytest.mark.parametrize("fail", [True, False])
def test_offsets_of_a_topic_that_was_made_anew_since_the_plan_are_not_those_of_the_task(
    monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    client = FakeClient([numbered(0, 20)], Held(0, 20, created=9))
    monkeypatch.setattr(worker, "client_of", lambda url, patience_s, tls, who: client)

    def read(created: int | None) -> int:
        part = OffsetRange(3, 2, 10)
        task = ReadTask("pulsar://x", "t", part, fail, created=created)
        return sum(batch.num_rows for batch in read_task(task))

    assert read(9) == read(None) == 8
    if fail:
        with pytest.raises(DataLossError, match="offsets 2 to 10 are no longer"):
            read(7)
    else:
        assert read(7) == 0


def test_silence_is_an_error_and_not_an_end() -> None:
    with pytest.raises(TimeoutError, match="no message arrived from offset 5 on"):
        run([numbered(0, 5)], 0, 10)


def test_an_entry_that_nobody_numbered_is_refused_with_advice() -> None:
    with pytest.raises(UnreadableMessageError, match="behind offset 4 states no offset"):
        run([numbered(0, 5), stored(single(b"x"), None, 1)], 0, 6, on_unreadable="skip")


# -- messages that cannot be read

KEYS = [pb.EncryptionKeys(key="k", value=b"v")]


def damaged(entry: Stored) -> Stored:
    """Return the entry with another last byte, so that its checksum does not match."""
    data = entry.data[:-1] + bytes((entry.data[-1] ^ 1,))
    return Stored(entry.ledger_id, entry.entry_id, data)


def huge() -> bytes:
    return single(b"x", compression=pb.LZ4, uncompressed_size=1 << 30)


UNREADABLE = {
    "encrypted": stored(batch([({}, b"a"), ({}, b"b")], encryption_keys=KEYS), 6, 1),
    "damaged": damaged(numbered(5, 2, 1)),
    "no message": stored(b"\x00", 6, 1),
    "cut off": stored(single(b"\0\0\0", num_messages_in_batch=2), 6, 1),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("start", [0, 6])
def test_messages_that_cannot_be_read_end_no_topic(
    name: str, start: int, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [numbered(0, 5), UNREADABLE[name], numbered(7, 3, 2)]
    which = "messages at the offsets 5 to 6" if start == 0 else "message at offset 6"
    with pytest.raises(UnreadableMessageError, match=f"t-partition-3, partition 3: the {which}"):
        run(entries, start, 10)
    with caplog.at_level(logging.WARNING):
        rows = run(entries, start, 10, on_unreadable="skip")
    assert [row["offset"] for row in rows] == [*range(start, 5), 7, 8, 9]
    assert len(caplog.records) == 1
    rows = run(entries, start, 10, on_unreadable="null")
    assert [row["offset"] for row in rows] == list(range(start, 10))
    empty = [row for row in rows if 5 <= row["offset"] <= 6]
    assert {(row["key"], row["value"], row["eventTime"]) for row in empty} == {(None, None, None)}
    assert all(MessageId.decode(row["messageId"]).entry_id == 1 for row in empty)


def test_a_message_that_is_too_large_when_decompressed_says_so() -> None:
    with pytest.raises(UnreadableMessageError, match="1073741824 bytes when decompressed"):
        run([stored(huge(), 0)], 0, 1)
    assert run([stored(huge(), 0)], 0, 1, on_unreadable="skip") == []


# -- messages in chunks


def chunk(
    offset: int, number: int, count: int, body: bytes, *, uuid: str = "u", **fields: Any
) -> Stored:
    payload = single(
        body,
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=count,
        total_chunk_msg_size=count * len(body),
        partition_key=uuid,
        **fields,
    )
    return stored(payload, offset, offset)


CHUNKED = [
    numbered(0, 1, 0),
    chunk(1, 0, 3, b"ab"),
    numbered(2, 1, 2),
    chunk(3, 0, 2, b"12", uuid="other"),
    chunk(4, 1, 3, b"cd"),
    chunk(5, 2, 3, b"ef"),
    numbered(6, 1, 6),
    chunk(7, 1, 2, b"34", uuid="other"),
    numbered(8, 1, 8),
]


@pytest.mark.parametrize("end", range(1, 10))
@pytest.mark.parametrize("start", range(9))
def test_a_message_in_chunks_is_a_row_of_the_range_that_has_its_last_chunk(
    start: int, end: int
) -> None:
    if start >= end:
        return
    values = {0: b"0", 2: b"2", 5: b"abcdef", 6: b"6", 7: b"1234", 8: b"8"}
    found = {row["offset"]: row for row in run(CHUNKED, start, end)}
    assert {offset: row["value"] for offset, row in found.items()} == {
        offset: value for offset, value in values.items() if start <= offset < end
    }
    if 5 in found:
        assert found[5]["key"] == b"u"
        assert MessageId.decode(found[5]["messageId"]) == MessageId(7, 5, -1, 3)


@pytest.mark.parametrize("start", [0, 4, 5, 6])
def test_chunks_that_were_sent_twice_make_one_row(start: int) -> None:
    entries = [
        chunk(0, 0, 2, b"a"),
        chunk(1, 0, 2, b"a"),
        numbered(2, 1, 2),
        chunk(3, 1, 2, b"b"),
        chunk(4, 1, 2, b"b"),
        numbered(5, 2, 5),
        chunk(7, 1, 2, b"b"),
    ]
    rows = run(entries, start, 8)
    wanted = {2: b"2", 3: b"ab", 5: b"5", 6: b"6"}
    assert {row["offset"]: row["value"] for row in rows} == {
        offset: value for offset, value in wanted.items() if offset >= start
    }


def test_a_message_whose_first_chunks_are_gone_cannot_be_read() -> None:
    entries = [chunk(5, 1, 2, b"b"), numbered(6, 1, 6)]
    with pytest.raises(UnreadableMessageError, match="other chunks of it are missing"):
        run(entries, 5, 7, first=5)
    rows = run(entries, 5, 7, first=5, on_unreadable="skip")
    assert [row["offset"] for row in rows] == [6]


def test_a_message_of_which_the_end_was_never_sent_is_no_row() -> None:
    rows = run([chunk(0, 0, 3, b"a"), chunk(1, 1, 3, b"b"), numbered(2, 1, 2)], 0, 3)
    assert [row["offset"] for row in rows] == [2]


def test_a_chunk_that_cannot_be_one_is_unreadable() -> None:
    entries = [chunk(0, 5, 3, b"a"), numbered(1, 1, 1)]
    with pytest.raises(UnreadableMessageError, match="chunk 5 of 3"):
        run(entries, 0, 2)


def test_a_long_message_is_joined_from_far_before_the_range() -> None:
    entries = [chunk(0, 0, 2, b"a"), *(numbered(n, 1, n) for n in range(1, 700))]
    entries.append(chunk(700, 1, 2, b"b"))
    rows = run(entries, 700, 701)
    assert [row["value"] for row in rows] == [b"ab"]


def test_a_task_whose_client_failed_discards_it(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient([], Held(0, 9))
    discarded: list[object] = []
    monkeypatch.setattr(worker, "client_of", lambda url, patience_s, tls, who: client)
    monkeypatch.setattr(worker, "discard", discarded.append)
    with pytest.raises(TimeoutError):
        list(read_task(task_of(0, 5)))
    assert discarded == [client]
