"""Filters of Spark that narrow what is read: no row is lost, whatever the filters are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from daybook.clients.python.reader import TopicLedgers
from daybook.clients.spark import frames, load, push_down
from daybook.clients.spark.cutter import Cutter
from daybook.clients.spark.entry import StoredEntry, unpack
from daybook.clients.spark.filters import Condition, conditions_of, narrow
from daybook.clients.spark.offsets import DataLossError, OffsetRange, Partition, Progress, Retained
from daybook.clients.spark.options import ReadTask, parse_options
from daybook.clients.spark.push_down import BOUNDS, FrameBounds, FrameDataSource, PushDownReader
from daybook.clients.spark.schema import TYPES, KeyType
from daybook.clients.spark.selection import Selection
from daybook.clients.spark.topics import Held
from daybook.clients.spark.walk import RangeWalk
from daybook.wire.compression import CompressionType
from tests.clients.spark.entries import batch, single, stored

T, U = "persistent://public/default/t", "persistent://public/default/u"
SHOWN = {T: "t", U: "shop/u"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = {name: name for name in TYPES}
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
TIMES_MS = (0, 1000, 1001, 1_764_000_000_123, 253_402_300_800_000)  # the last one is shown as null
KEYS = ("a", "b", "bb", "YQ==", "\u00e9", "")
Row = Mapping[str, Any]


# -- what Spark means, in the logic of SQL: True, False, or None for null

ORDERS: Mapping[type, Callable[[Any, Any], bool]] = {
    spark.EqualTo: lambda a, b: a == b,
    spark.LessThan: lambda a, b: a < b,
    spark.LessThanOrEqual: lambda a, b: a <= b,
    spark.GreaterThan: lambda a, b: a > b,
    spark.GreaterThanOrEqual: lambda a, b: a >= b,
    spark.StringStartsWith: lambda a, b: a.startswith(b),
    spark.StringEndsWith: lambda a, b: a.endswith(b),
    spark.StringContains: lambda a, b: b in a,
}


def truth(each: Any, row: Row) -> bool | None:
    if isinstance(each, spark.Not):
        inner = truth(each.child, row)
        return None if inner is None else not inner
    value = row[each.attribute[0]]
    if isinstance(each, spark.IsNull):
        return value is None
    if isinstance(each, spark.IsNotNull):
        return value is not None
    if isinstance(each, spark.EqualNullSafe):
        return bool(value == each.value)
    if isinstance(each, spark.In):
        if value is None:
            return None
        return True if value in each.value else None if None in each.value else False
    if value is None or each.value is None:
        return None
    return ORDERS[type(each)](value, each.value)


def micros(value: Any) -> Any:
    """Return a time in microseconds, and any other value as it is."""
    return (value - EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value


def kept(filters: Sequence[Any], rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if all(truth(each, row) is True for each in filters)]


# -- filters

numbers = st.integers(-2, 3) | st.integers(-1, 40)
times = st.builds(
    lambda ms, us, hours: (EPOCH + timedelta(milliseconds=ms, microseconds=us)).astimezone(
        timezone(timedelta(hours=hours))
    ),
    st.sampled_from(TIMES_MS[:-1]),
    st.integers(-1, 1),
    st.integers(-12, 12),
)
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "partition": numbers,
    "offset": numbers,
    "timestamp": times,
    "topic": st.sampled_from(["t", "shop/u", "u", "", "op"]),
    "key": st.sampled_from([*(key.encode() for key in KEYS), b"\xff"]),
}
TEXTS = [spark.StringStartsWith, spark.StringEndsWith, spark.StringContains]
BINARY = [spark.EqualTo, spark.EqualNullSafe, *list(ORDERS)[1:5]]


@st.composite
def filters(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(sorted(VALUES)))
    value = VALUES[column]
    kinds = [*BINARY, spark.In, spark.IsNull, *(TEXTS if column == "topic" else [])]
    kind: Any = draw(st.sampled_from(kinds))
    if kind is spark.IsNull:
        found = draw(st.sampled_from([spark.IsNull, spark.IsNotNull]))((column,))
    elif kind is spark.In:
        found = spark.In((column,), tuple(draw(st.lists(value | st.none(), max_size=20))))
    else:
        found = kind((column,), draw(value if kind in TEXTS else value | st.none()))
    return spark.Not(found) if draw(st.booleans()) else found


@settings(max_examples=200, deadline=None)
@given(filters(), st.data())
def test_a_condition_holds_exactly_where_the_filter_does(each: Any, data: st.DataObject) -> None:
    inner: Any = each.child if isinstance(each, spark.Not) else each
    column = inner.attribute[0]
    for condition in conditions_of([each], NAMES, "binary"):
        found = data.draw(VALUES[column] | st.none())
        assert condition.holds(micros(found)) == (truth(each, {column: found}) is True)


def test_conditions_are_made_of_what_is_known_only() -> None:
    def condition(each: Any, key_type: str | None = "binary") -> tuple[Condition, ...]:
        return conditions_of([each], NAMES, key_type)

    now = datetime(2026, 11, 29, 1, 2, 3, 456789, tzinfo=timezone(timedelta(hours=5)))
    us = 1_795_896_123_456_789
    assert condition(spark.GreaterThan(("timestamp",), now)) == (
        Condition("timestamp", ">", frozenset([us])),
    )
    assert condition(spark.EqualTo(("key",), "a"), "string") == (
        Condition("key", "=", frozenset([b"a"])),
    )
    for unknown in (
        spark.EqualTo(("key",), "a"),  # the key is in bytes here
        spark.Not(spark.EqualTo(("key",), b"a")),
        spark.EqualTo(("value",), b"a"),
        spark.EqualTo(("partition", "x"), 1),
        spark.EqualTo(("partition",), True),
        spark.EqualTo(("offset",), 1.0),
        spark.EqualTo(("offset",), None),
        spark.In(("offset",), (1, "2")),
        spark.Not(spark.In(("partition",), (1, None))),
        spark.Not(spark.EqualNullSafe(("partition",), 1)),
        spark.EqualTo(("timestamp",), now.replace(tzinfo=None)),
        spark.EqualTo(("topic",), b"t"),
    ):
        assert condition(unknown) == (), unknown
    assert condition(spark.EqualTo(("key",), b"a"), None) == ()
    for each in (spark.EqualTo(("partition",), 1), spark.Not(spark.EqualTo(("partition",), 1))):
        (found,) = condition(each)
        assert not found.holds(None)


# -- narrowing and dropping rows, against all rows


@st.composite
def partitions(draw: st.DrawFn) -> dict[Partition, list[StoredEntry]]:
    found: dict[Partition, list[StoredEntry]] = {}
    for topic in (T, U):
        for number in range(draw(st.integers(1, 3))):
            entries, offset = list[StoredEntry](), 0
            for index, size in enumerate(draw(st.lists(st.integers(1, 6), max_size=5))):
                payload = draw(st.builds(entry, st.just(size), st.randoms(use_true_random=False)))
                offset += size if payload[0] else 1
                entries.append(stored(payload[1], offset - 1, index).split)
            found[Partition(topic, number)] = entries
    return found


def entry(size: int, random: Any) -> tuple[bool, bytes]:
    """Return True for a batch, and its bytes."""
    fields: dict[str, Any] = {"publish_time": random.choice(TIMES_MS)}
    if random.random() < 0.2:
        if random.random() < 0.7:
            fields["partition_key"] = random.choice(KEYS)
        return False, single(b"x", **fields)
    regular = random.random() < 0.5
    messages: list[tuple[dict[str, Any], bytes]] = []
    for n in range(size):
        own: dict[str, Any] = {}
        if regular or random.random() < 0.8:
            own["partition_key"] = random.choice(KEYS[:2] if regular else KEYS)
            if not regular and own["partition_key"] == "YQ==":
                own["partition_key_b64_encoded"] = random.random() < 0.5
        if not regular and random.random() < 0.1:
            own["compacted_out"] = True
        messages.append((own, b"%d" % n))
    kind = random.choice([CompressionType.NONE, CompressionType.ZLIB])
    return True, batch(messages, kind, **fields)


def read(
    stored_in: Mapping[Partition, Sequence[StoredEntry]],
    begin: Mapping[Partition, Progress],
    until: Mapping[Partition, Progress],
    conditions: tuple[Condition, ...],
    key_type: KeyType = "binary",
) -> list[Row]:
    rows: list[Row] = []
    for (topic, number), end in until.items():
        part = OffsetRange(number, begin[Partition(topic, number)].next, end.next, topic)
        task = ReadTask("x", SHOWN[topic], part, True, COLUMNS, key_type, conditions=conditions)
        walk = RangeWalk(task, topic, lambda offset, until: ())
        for each in stored_in[Partition(topic, number)]:
            if not walk.done:
                walk.take(each)
        assert walk.expected == max(part.start, part.end)
        rows += walk.rows.take().to_pylist() if walk.rows.rows else []
    return rows


@settings(max_examples=80, deadline=None)
@given(partitions(), st.lists(filters(), max_size=4), st.sampled_from(["binary", "string"]))
def test_reading_less_and_filtering_gives_the_rows_of_reading_all_and_filtering(
    stored_in: dict[Partition, list[StoredEntry]], given_filters: list[Any], key_type: KeyType
) -> None:
    if key_type == "string":
        given_filters = [each for each in map(as_text, given_filters) if each is not None]
    begin = {partition: Progress(0, 1) for partition in stored_in}
    until = {
        partition: Progress((entries[-1].last_offset or 0) + 1 if entries else 0, 1)
        for partition, entries in stored_in.items()
    }
    everything = read(stored_in, begin, until, (), key_type)
    conditions = conditions_of(given_filters, NAMES, key_type)
    narrowed = narrow(begin, until, conditions, SHOWN.__getitem__)
    rows = read(stored_in, *narrowed, conditions, key_type)
    assert kept(given_filters, rows) == kept(given_filters, everything)
    # Each condition is used, too.
    for row in rows:
        key = row["key"]
        values = {name: micros(value) for name, value in row.items()}
        values["key"] = key.encode() if isinstance(key, str) else key
        for each in conditions:
            in_hull = each.column == "offset" and (each.negated or each.operator == "in")
            assert in_hull or each.holds(values[each.column])


def as_text(each: Any) -> Any:
    """Return a filter with text in place of the bytes of a key; None if they are none."""
    if isinstance(each, spark.Not):
        inner = as_text(each.child)
        return None if inner is None else spark.Not(inner)
    if each.attribute != ("key",) or isinstance(each, spark.IsNull | spark.IsNotNull):
        return each
    if isinstance(each, spark.In):
        texts = tuple(value if value is None else value.decode("latin-1") for value in each.value)
        return spark.In(each.attribute, texts)
    return type(each)(each.attribute, None if each.value is None else each.value.decode("latin-1"))


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (spark.EqualTo(("offset",), 15), (15, 16)),
        (spark.EqualNullSafe(("offset",), 15), (15, 16)),
        (spark.GreaterThan(("offset",), 15), (16, 60)),
        (spark.GreaterThanOrEqual(("offset",), 15), (15, 60)),
        (spark.GreaterThanOrEqual(("offset",), 3), (10, 60)),
        (spark.LessThan(("offset",), 15), (10, 15)),
        (spark.LessThan(("offset",), 99), (10, 60)),
        (spark.LessThanOrEqual(("offset",), 15), (10, 16)),
        (spark.In(("offset",), (40, 15, 20, None)), (15, 41)),
        (spark.In(("offset",), (None,)), None),
        (spark.EqualTo(("offset",), 60), None),
        (spark.LessThan(("offset",), -1), None),
        (spark.Not(spark.EqualTo(("offset",), 15)), (10, 60)),
        (spark.Not(spark.EqualTo(("partition",), 0)), None),
        (spark.EqualTo(("topic",), "shop/u"), None),
        (spark.StringStartsWith(("topic",), "t"), (10, 60)),
    ],
)
def test_filters_narrow_the_offsets(each: Any, expected: tuple[int, int] | None) -> None:
    partition = Partition(T, 0)
    begin, until = narrow(
        {partition: Progress(10, 7)},
        {partition: Progress(60, 7)},
        conditions_of([each], NAMES, "binary"),
        SHOWN.__getitem__,
    )
    if expected is None:
        assert begin == until == {}
    else:
        assert begin == {partition: Progress(expected[0], 7)}
        assert until == {partition: Progress(expected[1], 7)}


def test_an_entry_outside_of_the_times_is_not_even_decompressed() -> None:
    broken = stored(single(b"x", compression=2, uncompressed_size=9, publish_time=1000), 0).split
    task = ReadTask("x", "t", OffsetRange(0, 0, 1, T), True, COLUMNS)
    late = Condition("timestamp", ">", frozenset([1_000_000]))
    walk = RangeWalk(replace(task, conditions=(late,)), T, lambda offset, until: ())
    walk.take(broken)
    assert walk.done
    assert walk.rows.rows == 0


def test_a_message_without_content_has_no_key() -> None:
    broken = stored(single(b"x", compression=2, uncompressed_size=9, partition_key="k"), 0).split
    part = OffsetRange(0, 0, 1, T)
    task = ReadTask("x", "t", part, True, COLUMNS, on_unreadable="null")
    for conditions, count in (((), 1), ((Condition("key", "=", frozenset([b"k"])),), 0)):
        walk = RangeWalk(replace(task, conditions=conditions), T, lambda offset, until: ())
        walk.take(broken)
        assert walk.rows.rows == count
        assert walk.done


def test_a_message_in_chunks_has_the_time_of_its_last_chunk() -> None:
    chunks = [
        stored(
            single(
                b"%d" % n,
                uuid="p-1",
                chunk_id=n,
                num_chunks_from_msg=2,
                total_chunk_msg_size=2,
                publish_time=1000 + n,
            ),
            n,
            n,
        ).split
        for n in range(2)
    ]
    for at_us, count in ((1_000_000, 0), (1_001_000, 1)):
        condition = Condition("timestamp", "=", frozenset([at_us]))
        part = OffsetRange(0, 0, 2, T)
        task = ReadTask("x", "t", part, True, COLUMNS, conditions=(condition,))
        walk = RangeWalk(task, T, lambda offset, until: ())
        for each in chunks:
            walk.take(each)
        assert walk.rows.rows == count
        assert walk.done


@pytest.mark.parametrize("step", [3, 30])  # many keys, and few
def test_keys_are_looked_for_in_a_whole_batch(step: int) -> None:
    wanted = frozenset(b"%03d" % n for n in range(0, 100, step)) | {b"", b"0"}
    cutter = Cutter(("key", "value", "properties", "orderingKey", "keyIsBytes"), "binary", wanted)
    messages: list[tuple[dict[str, Any], bytes]] = [
        ({"partition_key": f"{n:03}", "ordering_key": b"o"}, b"%03d" % n) for n in range(100)
    ]
    head = stored(batch(messages), 99).head
    cut = cutter.cut(unpack(head.metadata, head.body), 10, 95)
    assert [int(i) for i in cut.indexes] == [n for n in range(10, 95) if n % step == 0]


# -- the reader, as Spark calls it

OPTIONS = {"service.url": "pulsar://x", "subscribe": "t,shop/eu/u"}
FULL_U = "persistent://shop/eu/u"
BEGIN = {Partition(T, 0): Progress(0, 5), Partition(T, 1): Progress(3, 6)}
UNTIL = {Partition(T, 0): Progress(90, 5), Partition(T, 1): Progress(40, 6)}
BEGIN[Partition(FULL_U, 0)], UNTIL[Partition(FULL_U, 0)] = Progress(0, 7), Progress(10, 7)

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("key", "binary"), ("value", "binary"), ("offset", "long"))
    ],
}


class Asked:
    """Answers for brokers, and keeps the topics that were asked for."""

    def __init__(self, first: int = 0) -> None:
        self.selections: list[Selection] = []
        self.first = first

    @contextmanager
    def asking(self, options: Any) -> Iterator["Asked"]:
        self.selections.append(options.selection)
        yield self

    def held_by(self, options: Any, topics: "Asked") -> Held:
        wanted = options.selection.assigned or dict.fromkeys([T, FULL_U], (0, 1))
        held = {
            partition: Retained(self.first, end.next + 1000, end.created)
            for partition, end in UNTIL.items()
            if partition.number in wanted.get(partition.topic, ())
        }
        return Held(held, {each: f"{each.topic}-partition-{each.number}" for each in held})

    def ledgers(self, topic: str) -> TopicLedgers:
        raise AssertionError("there are too few offsets for ledgers")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(push_down, "asking", found.asking)
    monkeypatch.setattr(push_down, "held_by", found.held_by)
    return found


def reader(**more: str) -> PushDownReader:
    given = OPTIONS | more | {BOUNDS: FrameBounds(BEGIN, UNTIL).encoded()}
    source = FrameDataSource(given)
    return source.reader(StructType.fromJson(SCHEMA))


def parts(each: PushDownReader) -> list[tuple[str, int, int, int]]:
    tasks = [partition.value for partition in each.partitions()]
    return [(t.topic, t.part.partition, t.part.start, t.part.end) for t in tasks]


def test_a_scan_without_filters_reads_the_bounds_of_its_frame(asked: Asked) -> None:
    assert parts(reader(pushDown="true")) == [
        ("t", 0, 0, 90),
        ("t", 1, 3, 40),
        ("shop/eu/u", 0, 0, 10),
    ]
    assert isinstance(reader(), spark.DataSourceReader)


def test_a_scan_asks_for_the_partitions_in_its_filters_and_spark_tests_all_filters_again(
    asked: Asked,
) -> None:
    scan = reader(pushDown="true")
    pushed: list[Any] = [
        spark.EqualTo(("topic",), "t"),
        spark.GreaterThan(("partition",), 0),
        spark.LessThan(("offset",), 30),
        spark.EqualTo(("key",), b"k"),
        spark.EqualTo(("value",), b"v"),
    ]
    assert scan.pushFilters(pushed) is pushed
    assert parts(scan) == [("t", 1, 3, 30)]
    assert asked.selections == [Selection({T: "t"}, {T: (1,)})]
    (task,) = (each.value for each in scan.partitions())
    assert task.conditions[-1] == Condition("key", "=", frozenset([b"k"]))


def test_a_scan_whose_filters_leave_nothing_asks_nobody(asked: Asked) -> None:
    scan = reader(pushDown="true")
    scan.pushFilters([spark.EqualTo(("topic",), "elsewhere")])
    assert list(scan.partitions()) == []
    assert asked.selections == []


def test_offsets_that_are_gone_are_lost_only_if_the_filters_want_them(asked: Asked) -> None:
    asked.first = 20
    scan = reader(pushDown="true")
    with pytest.raises(DataLossError, match="are no longer retained"):
        scan.partitions()
    scan.pushFilters([spark.GreaterThanOrEqual(("offset",), 20)])
    assert parts(scan) == [("t", 0, 20, 90), ("t", 1, 20, 40)]


def test_an_archive_is_asked_for_with_all_partitions_of_its_topic(asked: Asked) -> None:
    options = parse_options(OPTIONS | {"pushDown": "true"}, streaming=False, by_load=True)
    scan = PushDownReader(replace(options, archive="/archive"), FrameBounds(BEGIN, UNTIL))
    scan.pushFilters([spark.EqualTo(("partition",), 1)])
    assert parts(scan) == [("t", 1, 3, 40)]
    assert asked.selections == [options.selection]


def test_typed_columns_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_options(
        OPTIONS | {"schemaMode": "topic", "pushDown": "true"}, streaming=False, by_load=True
    )
    scan = PushDownReader(options, FrameBounds(BEGIN, UNTIL))
    found: list[Any] = []

    def narrow_to_nothing(begin: Any, until: Any, these: Any, name: Any) -> Any:
        found.extend(these)
        return {}, {}

    monkeypatch.setattr(push_down, "narrow", narrow_to_nothing)
    scan.pushFilters(
        [
            spark.EqualTo(("__partition",), 1),
            spark.EqualTo(("partition",), 2),  # a field of the record
            spark.EqualTo(("__key",), b"k"),
        ]
    )
    assert scan.partitions() == []
    assert found == [Condition("partition", "=", frozenset([1]))]


# -- loading


def test_push_down_is_for_frames_of_load() -> None:
    for plain in ("true", "TRUE"):
        with pytest.raises(ValueError, match=r"needs daybook\.spark\.load\(spark, \*\*options\)"):
            parse_options(OPTIONS | {"pushDown": plain}, streaming=False)
    parse_options(OPTIONS | {"pushDown": "false"}, streaming=False)
    parse_options(OPTIONS | {"pushDown": "false"}, streaming=True)
    with pytest.raises(ValueError, match="Spark hands no filters to streams"):
        parse_options(OPTIONS | {"pushDown": "true"}, streaming=True)
    with pytest.raises(ValueError, match="pushDown"):
        parse_options(OPTIONS | {"pushDown": "perhaps"}, streaming=False)


class FakeReading:
    """`spark.read`, as far as `load` calls it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.read = self
        for name in ("format", "schema"):
            setattr(self, name, partial(self._note, name))

    def _note(self, name: str, value: Any) -> "FakeReading":
        self.calls.append((name, value))
        return self

    def options(self, **given: Any) -> "FakeReading":
        return self._note("options", given)

    def load(self) -> str:
        return "a frame"


def test_load_without_push_down_is_what_spark_does() -> None:
    session: Any = FakeReading()
    found: Any = load(session, schema="value binary", pushDown=False, minPartitions=3, **OPTIONS)
    assert found == "a frame"
    given = {**OPTIONS, "pushDown": "false", "minPartitions": "3"}
    assert session.calls == [("format", "daybook"), ("options", given), ("schema", "value binary")]


def test_load_needs_a_session_with_a_jvm() -> None:
    session: Any = FakeReading()
    with pytest.raises(ValueError, match="one of Spark Connect"):
        load(session, pushDown=True, **OPTIONS)
    with pytest.raises(ValueError, match="unknown option 'starting'"):
        load(session, pushDown=True, starting="x", **OPTIONS)
    assert frames.load is load


def test_the_bounds_of_a_frame_are_kept_with_the_creations_of_its_topics() -> None:
    frame = FrameBounds(BEGIN, {**UNTIL, Partition(T, 2): Progress(1)})
    assert FrameBounds.decode(frame.encoded()) == frame
