"""Rows become exactly the messages that a producer would make, in order within a partition."""

from base64 import b64encode
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from daybook.clients.python.protocol.batching import Batch, BatchBuilder
from daybook.clients.python.protocol.routing import Router
from daybook.clients.spark import rows as rows_module
from daybook.clients.spark.row_columns import RowColumns
from daybook.clients.spark.rows import RowEncoder, Target
from daybook.wire.batch import BatchReader, SingleMetadata
from daybook.wire.fields import U32
from daybook.wire.proto import pulsar_pb2 as pb

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


def test_lists_that_are_null_may_have_elements() -> None:
    # Arrow allows that, and the elements of such a list count for nothing.
    elements = pa.array([{"key": name, "value": b""} for name in "abcd"], HEADERS.value_type)
    mask = pa.array([False, True, False])
    headers = pa.ListArray.from_arrays(pa.array([1, 2, 3, 4], pa.int32()), elements, mask=mask)
    rows = pa.RecordBatch.from_arrays([pa.array([b""] * 3), headers], names=["value", "headers"])
    for first, expected in [(0, [(("b", ""),), (), (("d", ""),)]), (1, [(), (("d", ""),)])]:
        encoder = RowEncoder(RowColumns(0, headers=1), "two")
        (made,) = encode(encoder, rows.slice(first)).values()
        assert [single.properties for single, _ in messages(made)] == expected


def test_a_property_that_is_not_utf_8_is_refused() -> None:
    for name, value in [(b"n", b"\xff"), (b"\xff", b"v")]:
        column = pa.MapArray.from_arrays(
            [0, 1], pa.array([name]).view(pa.string()), pa.array([value]).view(pa.string())
        )
        rows = pa.RecordBatch.from_arrays([pa.array([b""]), column], names=["value", "properties"])
        with pytest.raises(ValueError, match="of a row is not UTF-8, and properties are texts"):
            encode(RowEncoder(RowColumns(0, properties=1), "two"), rows)


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


# -- the bytes are those of a plain encoder, which takes one row after the other

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SMALL_MESSAGES_MAX, SMALL_BYTES_MAX = 6, 500
BYTES_TYPES = [pa.binary(), pa.large_binary()]
TEXT_TYPES = [pa.string(), pa.large_string()]


@dataclass(frozen=True)
class Row:
    value: bytes | None
    key: bytes | None
    key_is_bytes: bool | None
    pairs: list[tuple[str, str]] | None
    event_time_ms: int | None
    topic: str
    partition: int | None

    def message(self, *, key_is_text: bool) -> tuple[bytes, str | None, bool]:
        """Return the message, and its key."""
        is_text = key_is_text if self.key_is_bytes is None else not self.key_is_bytes
        is_base64 = self.key is not None and not is_text
        key = None
        if self.key is not None:
            key = self.key.decode() if is_text else b64encode(self.key).decode()
        value = self.value or b""
        single = pb.SingleMessageMetadata(
            payload_size=len(value),
            partition_key=key,
            partition_key_b64_encoded=is_base64 or None,
            event_time=self.event_time_ms,
            null_value=True if self.value is None else None,
        )
        for name, text in self.pairs or ():
            single.properties.add(key=name, value=text)
        fields = single.SerializeToString()
        return U32.pack(len(fields)) + fields + value, key, is_base64


@dataclass(frozen=True)
class Frame:
    """Rows, the columns that they have, and where they are cut into Arrow batches."""

    rows: list[Row]
    value_type: pa.DataType
    key_type: pa.DataType
    has: frozenset[str]
    cuts: list[int]

    @property
    def columns(self) -> RowColumns:
        return RowColumns(0, **{name: index for index, name in enumerate(self._names, 1)})

    @property
    def _names(self) -> list[str]:
        return sorted(self.has)

    def arrow(self) -> list[pa.RecordBatch]:
        """Return slices of one Arrow batch."""
        lists: dict[str, tuple[pa.DataType, list[Any]]] = {
            "key": (self.key_type, [each.key for each in self.rows]),
            "key_is_bytes": (pa.bool_(), [each.key_is_bytes for each in self.rows]),
            "properties": (TYPES[2], [each.pairs for each in self.rows]),
            "headers": (HEADERS, [as_headers(each.pairs) for each in self.rows]),
            "event_time": (TYPES[3], [as_microseconds(each.event_time_ms) for each in self.rows]),
            "topic": (pa.string(), [each.topic for each in self.rows]),
            "partition": (pa.int32(), [each.partition for each in self.rows]),
        }
        arrays = [bytes_array([each.value for each in self.rows], self.value_type)]
        for name in self._names:
            kind, values = lists[name]
            arrays.append(bytes_array(values, kind) if name == "key" else pa.array(values, kind))
        whole = pa.RecordBatch.from_arrays(arrays, names=["value", *self._names])
        bounds = [0, *self.cuts, len(self.rows)]
        return [whole.slice(a, b - a) for a, b in pairwise(bounds)]

    def expected(self, first_turn: int) -> tuple[dict[Target, list[Batch]], int]:
        """Return the batches of each partition, and the hash of all rows."""
        turn_bytes: defaultdict[str, int] = defaultdict(int)
        found: defaultdict[Target, list[tuple[bytes, str | None, bool]]] = defaultdict(list)
        for row in self.rows:
            topic = row.topic if "topic" in self.has else "one"
            router = Router(max(1, TOPICS[topic]))
            if "partition" in self.has and row.partition is not None:
                partition = row.partition
            elif row.key is not None:
                partition = router.for_key(row.key)
            else:
                turn_bytes[topic] += len(row.value or b"") + SMALL_BYTES_MAX // 2000
                turn = first_turn + turn_bytes[topic] // SMALL_BYTES_MAX
                partition = turn % router.partitions
            key_is_text = self.key_type in TEXT_TYPES
            found[Target(topic, partition)].append(row.message(key_is_text=key_is_text))
        messages = [message for each in found.values() for message, _, _ in each]
        hash_ = sum(map(xxh3_64_intdigest, messages)) % (1 << 64)
        return {target: batches_of(each) for target, each in found.items()}, hash_


def batches_of(messages: Sequence[tuple[bytes, str | None, bool]]) -> list[Batch]:
    """Return messages in batches: each takes what fits, and one message at least."""
    batches: list[Batch] = []
    body, count = b"", 0
    first: tuple[str | None, bool] = (None, False)
    for message, key, is_base64 in messages:
        full = count == SMALL_MESSAGES_MAX or len(body) + len(message) > SMALL_BYTES_MAX
        if count and full:
            batches.append(Batch(body, count, 0, count - 1, *first))
            body, count = b"", 0
        if not count:
            first = key, is_base64
        body, count = body + message, count + 1
    batches.append(Batch(body, count, 0, count - 1, *first))
    return batches


def bytes_array(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.large_binary()).cast(kind)


def as_headers(pairs: list[tuple[str, str]] | None) -> list[dict[str, object]] | None:
    if pairs is None:
        return None
    return [{"key": name, "value": text.encode()} for name, text in pairs]


def as_microseconds(ms: int | None) -> int | None:
    """Return a time that has more than the milliseconds which a message can say."""
    return None if ms is None else ms * 1000 + 999


some_bytes = st.binary(max_size=20) | st.sampled_from(
    [b"", b"v" * 127, b"v" * 128, b"v" * 480, b"v" * 20_000]
)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    has = draw(
        st.sets(st.sampled_from(["key", "key_is_bytes", "event_time", "topic", "partition"]))
    )
    has |= draw(st.sampled_from([set(), {"properties"}, {"headers"}]))
    if "key" not in has:
        has.discard("key_is_bytes")
    value_type = draw(st.sampled_from([*BYTES_TYPES, *TEXT_TYPES]))
    key_type = draw(st.sampled_from([*BYTES_TYPES, *TEXT_TYPES]))
    as_text = texts.map(str.encode)
    pairs = st.dictionaries(texts, texts, max_size=3).map(lambda each: list(each.items()))

    @st.composite
    def rows(draw: st.DrawFn) -> Row:
        is_bytes = draw(st.none() | st.booleans()) if "key_is_bytes" in has else None
        must_be_text = is_bytes is False or key_type in TEXT_TYPES
        key = st.none() | (as_text if must_be_text else st.binary(max_size=9))
        ms = st.sampled_from([0, 1, 127, 128, 1_767_225_600_000, 200_000_000_000_000])
        return Row(
            draw(st.none() | (as_text if value_type in TEXT_TYPES else some_bytes)),
            draw(key) if "key" in has else None,
            is_bytes,
            draw(st.none() | pairs) if has & {"properties", "headers"} else None,
            draw(st.none() | ms) if "event_time" in has else None,
            draw(st.sampled_from(list(TOPICS))),
            draw(st.none() | st.just(0)),
        )

    made = draw(st.lists(rows(), max_size=25))
    cuts = sorted(draw(st.lists(st.integers(0, len(made)), max_size=4)))
    return Frame(made, value_type, key_type, frozenset(has), cuts)


@settings(deadline=None)
@given(frames(), st.integers(0, 3))
def test_the_batches_are_those_of_a_plain_encoder(frame: Frame, first_turn: int) -> None:
    topic = None if "topic" in frame.has else "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "BATCH_MESSAGES_MAX", SMALL_MESSAGES_MAX)
        patch.setattr(rows_module, "BATCH_BYTES_MAX", SMALL_BYTES_MAX)
        encoder = RowEncoder(frame.columns, topic, first_turn, hashes_rows=True)
        found = encode(encoder, *frame.arrow())
    assert (found, encoder.hash) == frame.expected(first_turn)
    assert encoder.rows == len(frame.rows)
