"""Rows become exactly the messages that a producer would make, in order within a partition."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.clients.python.protocol.batching import Batch, BatchBuilder
from daybook.clients.python.protocol.routing import Router
from daybook.clients.spark import rows as rows_module
from daybook.clients.spark.row_columns import RowColumns
from daybook.clients.spark.rows import RowEncoder, Target
from daybook.wire.batch import BatchReader, SingleMetadata

ALL = RowColumns(value=0, key=1, properties=2, event_time=3, topic=4, partition=5)
TYPES = [
    pa.binary(),
    pa.string(),
    pa.map_(pa.string(), pa.string()),
    pa.timestamp("us", tz="UTC"),
    pa.string(),
    pa.int32(),
]
TOPICS = {"one": 3, "two": 0}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def arrow(rows: list[tuple[Any, ...]], types: list[pa.DataType]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[str(index) for index in range(len(types))])


def encode(encoder: RowEncoder, *batches: pa.RecordBatch) -> dict[Target, list[Batch]]:
    found: defaultdict[Target, list[Batch]] = defaultdict(list)
    for batch in batches:
        for topic in encoder.unknown_topics(batch):
            encoder.add_topic(topic, TOPICS.get(topic, 0))
        for target, made in encoder.add(batch):
            found[target].append(made)
    for target, made in encoder.rest():
        found[target].append(made)
    return dict(found)


def messages(batches: list[Batch]) -> list[tuple[SingleMetadata, bytes]]:
    reader = BatchReader()
    return [
        each
        for batch in batches
        for each in zip(*reader.split(batch.body, batch.count), strict=True)
    ]


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
row = st.tuples(
    st.none() | st.binary(max_size=300),
    st.none() | texts,
    st.none() | st.dictionaries(texts, texts, max_size=3).map(lambda each: list(each.items())),
    st.none() | st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.sampled_from(list(TOPICS)),
    st.none() | st.just(0),
)


@settings(deadline=None)  # the first run loads pyarrow
@given(st.lists(row, max_size=30), st.lists(row, max_size=30), st.integers(0, 5))
def test_every_row_is_one_message_and_its_partition_keeps_the_order(
    first: list[Any], second: list[Any], skipped: int
) -> None:
    # A slice has the buffers of the whole batch.
    batches = [arrow(first, TYPES).slice(skipped), arrow(second, TYPES)]
    given_rows = [*first[skipped:], *second]
    found = encode(RowEncoder(ALL, None), *batches)
    left: defaultdict[str, list[Any]] = defaultdict(list)
    for each in given_rows:
        left[each[4]].append(each)
    for target, made in found.items():
        router = Router(max(1, TOPICS[target.topic]))
        waiting = left[target.topic]
        for single, data in messages(made):
            # The first row that is left and may be in this partition is this message.
            index = next(
                i for i, each in enumerate(waiting) if may_be_in(each, target.partition, router)
            )
            value, key, properties, when, _, _ = waiting.pop(index)
            assert data == (value or b"")
            assert single.null_value == (value is None)
            assert (single.key, single.key_is_base64) == (key, False)
            assert dict(single.properties) == dict(properties or ())
            ms = 0 if when is None else (when - EPOCH) // timedelta(milliseconds=1)
            assert single.event_time_ms == ms
    assert not any(left.values())


def may_be_in(each: tuple[Any, ...], partition: int, router: Router) -> bool:
    """A row has its partition, or that of its key, or any."""
    if each[5] is not None:
        return bool(each[5] == partition)
    return each[1] is None or router.for_key(each[1]) == partition


def test_the_bytes_are_those_of_a_producer() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    types = [pa.binary(), pa.binary(), TYPES[2], TYPES[3]]
    rows = [
        (b"1", b"\xff", [("a", "b")], when),
        (None, None, [], None),
        (b"x" * 200, b"k", [], when),
    ]
    builder = BatchBuilder(100, 1 << 20)
    for number, (value, key, properties, time) in enumerate(rows):
        ms = None if time is None else round(time.timestamp() * 1000)
        builder.add_special(value, key, dict(properties), ms, number)
    columns = RowColumns(value=0, key=1, properties=2, event_time=3)
    made = encode(RowEncoder(columns, "two"), arrow(rows, types))
    assert made == {Target("two", 0): [builder.take()]}


def test_strings_are_their_bytes_and_headers_are_properties() -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = [
        ("ä", [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}]),
        ("b", None),
        ("c", []),
    ]
    columns = RowColumns(value=0, headers=1)
    (made,) = encode(RowEncoder(columns, "two"), arrow(rows, [pa.string(), headers])).values()
    assert [data for _, data in messages(made)] == ["ä".encode(), b"b", b"c"]
    assert [single.properties for single, _ in messages(made)] == [
        (("h", "1"), ("h", "2")),
        (),
        (),
    ]


def test_batches_end_at_their_limits_and_a_large_message_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows_module, "BATCH_MESSAGES_MAX", 4)
    monkeypatch.setattr(rows_module, "BATCH_BYTES_MAX", 100)
    sizes = [10, 10, 10, 10, 10, 200, 10, 70, 1, 1, 1]
    rows = [(b"x" * size,) for size in sizes]
    encoder = RowEncoder(RowColumns(0), "two")
    ((_, made),) = encode(encoder, *[arrow([each], [pa.binary()]) for each in rows]).items()
    assert [len(data) for _, data in messages(made)] == sizes
    assert [batch.count for batch in made] == [4, 1, 1, 3, 2]
    assert encoder.rows == len(rows)


def test_rows_without_a_key_take_turns_of_about_a_batch() -> None:
    count = 3000
    rows = arrow([(b"x" * 1000,)] * count, [pa.binary()])
    found = encode(RowEncoder(RowColumns(0), "one", 1), rows.slice(0, 100), rows.slice(100))
    counts = {target.partition: sum(b.count for b in made) for target, made in found.items()}
    assert set(counts) == {0, 1, 2}
    assert sum(counts.values()) == count
    assert max(counts.values()) - min(counts.values()) < 300
    only = encode(RowEncoder(RowColumns(0), "one", 4), rows.slice(0, 1))
    assert list(only) == [Target("one", 1)]


@pytest.mark.parametrize(
    ("columns", "types", "row", "says"),
    [
        (
            RowColumns(0, topic=1),
            [pa.binary(), pa.string()],
            (b"", None),
            "'topic' of a row is null",
        ),
        (RowColumns(0, partition=1), [pa.binary(), pa.int32()], (b"", 3), "is 3, and one has the"),
        (RowColumns(0, partition=1), [pa.binary(), pa.int32()], (b"", -1), "is -1, and one has"),
        (
            RowColumns(0, event_time=1),
            [pa.binary(), TYPES[3]],
            (b"", datetime(1969, 12, 31, tzinfo=UTC)),
            "before 1970",
        ),
        (
            RowColumns(0, properties=1),
            [pa.binary(), TYPES[2]],
            (b"", [("a", None)]),
            "'a' of a row",
        ),
        (
            RowColumns(0, headers=1),
            [pa.binary(), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))],
            (b"", [{"key": "h", "value": b"\xff"}]),
            "'h' of a row is not UTF-8",
        ),
    ],
)
def test_a_row_that_cannot_be_a_message_is_explained(
    columns: RowColumns, types: list[pa.DataType], row: tuple[Any, ...], says: str
) -> None:
    topic = None if columns.topic is not None else "one"
    with pytest.raises(ValueError, match=says):
        encode(RowEncoder(columns, topic), arrow([row], types))


def test_a_text_key_that_is_not_utf_8_is_refused() -> None:
    key = pa.array([b"\xff"]).view(pa.string())
    rows = pa.RecordBatch.from_arrays([pa.array([b""]), key], names=["value", "key"])
    with pytest.raises(ValueError, match="is not UTF-8: cast the column 'key' to binary"):
        encode(RowEncoder(RowColumns(0, 1), "two"), rows)


def test_each_row_may_say_whether_its_key_is_bytes() -> None:
    types = [pa.binary(), pa.binary(), pa.bool_()]
    kinds = [(b"a", True), (b"a", False), (b"\xff", True), (b"\xff", None), (None, False)]
    columns = RowColumns(0, key=1, key_is_bytes=2)
    rows = arrow([(b"", *kind) for kind in kinds], types)
    (made,) = encode(RowEncoder(columns, "two"), rows).values()
    assert [(single.key, single.key_is_base64) for single, _ in messages(made)] == [
        ("YQ==", True),
        ("a", False),
        ("/w==", True),
        ("/w==", True),
        (None, False),
    ]
    assert (made[0].key, made[0].key_is_base64) == ("YQ==", True)
    later = arrow([(b"", b"b", False), (b"", b"b", True)], types)
    (made,) = encode(RowEncoder(columns, "two"), later).values()
    assert (made[0].key, made[0].key_is_base64) == ("b", False)
    texts = arrow([(b"", "c", None), (b"", "c", True)], [pa.binary(), pa.string(), pa.bool_()])
    (made,) = encode(RowEncoder(columns, "two"), texts).values()
    assert [single.key for single, _ in messages(made)] == ["c", "Yw=="]
    with pytest.raises(ValueError, match="is not UTF-8"):
        encode(RowEncoder(columns, "two"), arrow([(b"", b"\xff", False)], types))
