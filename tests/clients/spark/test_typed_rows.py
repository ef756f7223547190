"""Typed rows: messages of all versions in the columns of one, and those of no schema."""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.clients.python.errors import TopicNotFoundError, UnavailableError
from daybook.clients.python.schemas.avro_records import AvroSchema
from daybook.clients.python.schemas.key_value import KeyValueSchema
from daybook.clients.python.schemas.primitive import BY_TYPE, INT64, STRING
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.spark import typed_rows
from daybook.clients.spark.schema import Mode
from daybook.clients.spark.typed_rows import TypedRows
from daybook.clients.spark.typed_schema import TopicSchema, TypedColumns
from daybook.clients.spark.walk import UnreadableMessageError
from daybook.wire.proto import pulsar_pb2 as pb

T = "persistent://public/default/t"


def defined(fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    """Return the definition of a record; a field is a type, or a type and a default."""
    listed = [
        {"name": field, "type": kind[0], "default": kind[1]}
        if isinstance(kind, tuple)
        else {"name": field, "type": kind}
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "fields": listed}


def avro(fields: dict[str, Any], name: str = "R") -> SchemaInfo:
    return SchemaInfo(pb.Schema.Avro, json.dumps(defined(fields, name)).encode())


def as_json(fields: dict[str, Any]) -> SchemaInfo:
    return SchemaInfo(pb.Schema.Json, json.dumps(defined(fields)).encode())


def encoded(info: SchemaInfo, value: dict[str, Any]) -> bytes:
    return AvroSchema[Any](json.loads(info.data)).encode(value)


class Versions(dict[int, SchemaInfo]):
    """The answers of a broker: version 404 was deleted, and for 503 it does not answer."""

    def ask(self, version: bytes) -> SchemaInfo:
        number = int.from_bytes(version, "big")
        if number == 404:
            raise TopicNotFoundError(0, "no version 404")
        if number == 503:
            raise UnavailableError("no broker")
        return self[number]


Message = tuple[int | None, bytes | None] | tuple[int | None, bytes | None, bytes | None]


def read(
    messages: Sequence[Message],
    names: str,
    *versions: SchemaInfo,
    mode: Mode = "FAILFAST",
    query: int = -1,
) -> list[dict[str, Any]]:
    """Return the rows of messages: each has the number of its version, its data and its key."""
    known = Versions(enumerate(versions))
    info = versions[query]
    wanted = TypedColumns(TopicSchema(info, {T: len(versions) - 1}), tuple(names.split(",")), mode)
    raw = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([each[1] for each in messages], pa.binary()),
            "offset": pa.array(range(7, 7 + len(messages)), pa.int64()),
            "schemaVersion": pa.array(
                [None if each[0] is None else each[0].to_bytes(8, "big") for each in messages],
                pa.binary(),
            ),
            "key": pa.array([each[2] if len(each) > 2 else None for each in messages], pa.binary()),
        }
    )
    found = TypedRows(wanted, T, "t", known.ask).typed(raw)
    found.validate(full=True)
    return [dict(row) for row in found.to_pylist()]


OLD = avro({"id": "int", "gone": "string"})
NEW = avro({"id": "long", "more": (["null", "string"], None), "rate": ("double", 2.5)}, "Renamed")


def test_messages_of_all_versions_have_the_columns_of_the_newest() -> None:
    messages = [
        (0, encoded(OLD, {"id": 1, "gone": "x"})),
        (1, encoded(NEW, {"id": 2, "more": "y", "rate": 1.0})),
        (0, encoded(OLD, {"id": 3, "gone": "x"})),
    ]
    assert read(messages, "more,id,rate,__offset", OLD, NEW) == [
        {"more": None, "id": 1, "rate": 2.5, "__offset": 7},
        {"more": "y", "id": 2, "rate": 1.0, "__offset": 8},
        {"more": None, "id": 3, "rate": 2.5, "__offset": 9},
    ]


def test_a_newer_version_is_read_with_that_of_the_query_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed_rows, "_told", set())
    newer = avro({"id": "int", "gone": ("string", "-"), "more": ("int", 0)})
    versions = Versions(enumerate([OLD, newer]))
    wanted = TypedColumns(TopicSchema(OLD, {T: 0}), ("id", "gone"), "FAILFAST")
    message = encoded(newer, {"id": 4, "gone": "g", "more": 5})
    raw = pa.RecordBatch.from_pydict(
        {"value": [message], "offset": [0], "schemaVersion": [(1).to_bytes(8, "big")]}
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # two tasks of one process
            rows = TypedRows(wanted, T, "t", versions.ask).typed(raw).to_pylist()
            assert rows == [{"id": 4, "gone": "g"}]
    (told,) = caplog.messages
    assert "version 1 of its schema, and this query began with version 0" in told
    assert "without more" in told


WRONG = [
    ("no Avro", 0, b"\xff\xff\xff"),
    ("longer than a message of its schema", 0, encoded(OLD, {"id": 1, "gone": "x"}) + b"x"),
    ("version 404 of the schema, which was deleted", 404, b""),
    ("schema of type Json, and the query reads Avro", 1, b"{}"),
]


@pytest.mark.parametrize(("why", "version", "data"), WRONG)
def test_a_wrong_message_fails_or_goes_to_its_column(why: str, version: int, data: bytes) -> None:
    good = (0, encoded(OLD, {"id": 1, "gone": "x"}))
    messages: list[Message] = [good, (version, data), (0, None)]
    versions = (OLD, as_json({"id": "int"}))
    with pytest.raises(UnreadableMessageError, match=rf"t: .* offset 8 .*{why}.*mode=PERMISSIVE"):
        read(messages, "id,gone", *versions, query=0)
    assert read(messages, "id,_corrupt,gone", *versions, mode="PERMISSIVE", query=0) == [
        {"id": 1, "_corrupt": None, "gone": "x"},
        {"id": None, "_corrupt": data, "gone": None},
        {"id": None, "_corrupt": None, "gone": None},
    ]


def test_a_broker_that_does_not_answer_makes_no_message_wrong() -> None:
    with pytest.raises(UnavailableError):
        read([(503, b"")], "id", OLD, mode="PERMISSIVE")


def test_a_message_without_a_version_is_read_as_the_newest() -> None:
    assert read([(None, encoded(NEW, {"id": 2}))], "id", OLD, NEW) == [{"id": 2}]


def test_a_time_in_other_units_is_wrong_and_not_a_thousand_times_too_early() -> None:
    millis = avro({"at": {"type": "long", "logicalType": "timestamp-millis"}})
    micros = avro({"at": {"type": "long", "logicalType": "timestamp-micros"}})
    message = encoded(millis, {"at": datetime(2020, 1, 1, tzinfo=UTC)})
    with pytest.raises(UnreadableMessageError, match="field at counts in other units"):
        read([(0, message)], "at", millis, micros)
    assert read([(0, message)], "at", millis) == [{"at": datetime(2020, 1, 1, tzinfo=UTC)}]


def test_a_value_that_does_not_fit_its_column_is_a_wrong_message() -> None:
    """A decimal has as many digits as its bytes; the schema says how many there may be."""
    info = avro({"d": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}})
    messages = [(0, b"\x04\x04\xd2"), (0, b"\x08\x7f\xff\xff\xff"), (0, b"\x02\xff")]
    rows = read(messages, "d,_corrupt", info, mode="PERMISSIVE")
    assert rows == [
        {"d": Decimal("12.34"), "_corrupt": None},
        {"d": None, "_corrupt": messages[1][1]},
        {"d": Decimal("-0.01"), "_corrupt": None},
    ]


EVERY = {
    "i": "int",
    "l": "long",
    "s": "string",
    "b": "bytes",
    "o": ["null", "boolean"],
    "e": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    "e2": ["null", "E"],
    "day": {"type": "int", "logicalType": "date"},
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "ms": {"type": "long", "logicalType": "timestamp-millis"},
    "n": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
    "a": {"type": "array", "items": ["null", defined({"x": "long"}, "In")]},
    "m": {"type": "map", "values": {"type": "array", "items": "string"}},
    "r": ["null", "In"],
}
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
NEW_YEAR = datetime(2200, 1, 1)  # noqa: DTZ001  Hypothesis adds the zone
MOMENT = st.datetimes(max_value=NEW_YEAR, timezones=st.just(UTC))
INNER = st.fixed_dictionaries({"x": LONG})
SYMBOLS = st.sampled_from("AB")
VALUES = st.fixed_dictionaries(
    {
        "i": st.integers(-(1 << 31), (1 << 31) - 1),
        "l": LONG,
        "s": st.text(st.characters(exclude_categories=["Cs"])),
        "b": st.binary(),
        "o": st.none() | st.booleans(),
        "e": SYMBOLS,
        "e2": st.none() | SYMBOLS,
        "day": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
        "at": MOMENT,
        "ms": MOMENT.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
        "n": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-10")),
        "a": st.lists(st.none() | INNER, max_size=3),
        "m": st.dictionaries(st.text("xyz"), st.lists(st.text("xyz"), max_size=2), max_size=3),
        "r": st.none() | INNER,
    }
)


@settings(deadline=None, max_examples=40)
@given(st.lists(VALUES, min_size=1, max_size=4), st.data())
def test_every_type_is_what_fastavro_says(
    records: list[dict[str, Any]], data: st.DataObject
) -> None:
    info = avro(EVERY)
    schema = AvroSchema[Any](json.loads(info.data))
    messages = [(0, schema.encode(each)) for each in records]
    names = data.draw(st.lists(st.sampled_from(list(EVERY)), min_size=1, unique=True))
    rows = read(messages, ",".join(names), info)
    assert len(rows) == len(records)
    for row, (_, message) in zip(rows, messages, strict=True):
        wanted = schema.decode(message)
        if row.get("m") is not None:
            row["m"] = dict(row["m"])
        assert row == {name: wanted[name] for name in names}


def test_json_is_strict_and_fills_what_is_missing() -> None:
    fields: dict[str, Any] = {
        "n": "int",
        "o": ["null", "string"],
        "d": ("long", 5),
        "b": ("bytes", "\u00ff"),
        "class": (["null", defined({"x": ("float", 1)}, "In")], None),
        "e": ({"type": "enum", "name": "E", "symbols": ["A", "Z"], "default": "Z"}, "A"),
    }
    info = as_json(fields)
    names = "n,o,d,b,class,e,_corrupt"
    good = b'{"n": 1, "unknown": [1], "class": {"x": 2}, "e": "Q", "b": "AAE="}'
    wrong = [
        b'{"n": 1.5}',
        b'{"n": true}',
        b'{"n": "1"}',
        b'{"n": 4294967296}',
        b"{}",
        b"[]",
        b'{"n": 1, "b": "no base64"}',
        b'{"n": 1} x',
        b"",
    ]
    rows = read(
        [(0, good), (0, b'{"n":2}'), *((0, each) for each in wrong)], names, info, mode="PERMISSIVE"
    )
    assert rows[:2] == [
        {"n": 1, "o": None, "d": 5, "b": b"\0\1", "class": {"x": 2.0}, "e": "Z", "_corrupt": None},
        {"n": 2, "o": None, "d": 5, "b": b"\xff", "class": None, "e": "A", "_corrupt": None},
    ]
    assert [row["_corrupt"] for row in rows[2:]] == wrong
    assert all(row[name] is None for row in rows[2:] for name in fields)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pb.Schema.String, "é"),
        (pb.Schema.Bool, True),
        (pb.Schema.Int8, -3),
        (pb.Schema.Int16, -300),
        (pb.Schema.Int32, 70000),
        (pb.Schema.Int64, 1 << 40),
        (pb.Schema.Float, 0.5),
        (pb.Schema.Double, 0.1),
        (pb.Schema.Timestamp, datetime(2020, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)),
        (pb.Schema.Instant, datetime(1960, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        (pb.Schema.LocalDate, date(1960, 1, 2)),
        (pb.Schema.LocalDateTime, datetime(1960, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001
    ],
)
def test_single_values_are_those_of_the_python_client(type_: int, value: Any) -> None:
    schema = BY_TYPE[type_]
    rows = read([(0, schema.encode(value)), (0, None)], "value", schema.info)
    assert rows == [{"value": value}, {"value": None}]
    wrong = b"\xff" * 3
    rows = read([(0, wrong)], "value,_corrupt", schema.info, mode="PERMISSIVE")
    assert rows == [{"value": None, "_corrupt": wrong}]


def test_pairs_in_the_data_and_with_the_key_of_the_message() -> None:
    inner = AvroSchema[Any](defined({"x": "int"}))
    together = KeyValueSchema(STRING, inner)
    rows = read(
        [(0, together.encode(("k", {"x": 1}))), (0, b"\0")],
        "value,key,_corrupt",
        together.info,
        mode="PERMISSIVE",
    )
    assert rows == [
        {"value": {"x": 1}, "key": "k", "_corrupt": None},
        {"value": None, "key": None, "_corrupt": b"\0"},
    ]
    apart = KeyValueSchema(STRING, INT64, separated=True)
    key, data = apart.encode_pair(("k", 5))
    rows = read([(0, data, key), (0, None, key), (0, data, None)], "key,value", apart.info)
    assert rows == [
        {"key": "k", "value": 5},
        {"key": "k", "value": None},
        {"key": None, "value": 5},
    ]
    with pytest.raises(UnreadableMessageError, match="another kind of pair"):
        read([(0, data, key)], "key,value", together.info, apart.info)


def test_columns_about_the_message_alone_look_at_no_content() -> None:
    assert read([(404, b"x")], "__offset", OLD) == [{"__offset": 7}]
    rows = read(
        [(0, b"\xff"), (0, encoded(OLD, {"id": 1, "gone": ""}))], "_corrupt", OLD, mode="PERMISSIVE"
    )
    assert rows == [{"_corrupt": b"\xff"}, {"_corrupt": None}]


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
TIME = {"type": "long", "logicalType": "time-micros"}


def money(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def renamed(kind: Any, alias: str) -> dict[str, Any]:
    """Return the definition of a record whose field `t` has an alias."""
    field = {"name": "t", "type": kind, "aliases": [alias]}
    return {"type": "record", "name": "R", "fields": [field]}


SIX = b"\xc0\xc4\x07"  # 61,728 as Avro has it
OTHER_UNITS = [
    ({"t": NANOS}, {"t": MICROS}, SIX),
    ({"t": TIME}, {"t": MICROS}, SIX),
    ({"t": "long"}, {"t": MICROS}, SIX),
    ({"t": MICROS}, {"t": "long"}, SIX),
    ({"t": money(40, 2)}, {"t": money(20, 4)}, b"\x04\x04\xd2"),
    ({"t": money(20, 2)}, {"t": money(20, 4)}, b"\x04\x04\xd2"),
    ({"t": "bytes"}, {"t": money(20, 4)}, b"\x04\x04\xd2"),
    ({"t": ["null", MILLIS, "string"]}, {"t": ["null", MICROS]}, b"\x02" + SIX),
    ({"t": ["null", MILLIS]}, {"t": ["null", MICROS]}, b"\x02" + SIX),
    ({"t": {"type": MILLIS}}, {"t": MICROS}, SIX),
    (
        {"t": defined({"u": ["int", "string"], "at": MILLIS}, "In")},
        {"t": defined({"at": MICROS}, "In")},
        b"\x00\x02" + SIX,
    ),
    (
        {"u": defined({"at": MILLIS}, "In"), "t": {"type": "array", "items": ["null", "In"]}},
        {"t": {"type": "array", "items": ["null", defined({"at": MICROS}, "In")]}},
        SIX + b"\x02\x02" + SIX + b"\x00",
    ),
    ({"old": MILLIS}, renamed(MICROS, "old"), SIX),
]


@pytest.mark.parametrize(("written", "wanted", "data"), OTHER_UNITS)
def test_units_that_are_not_those_of_the_query_make_a_message_wrong(
    written: dict[str, Any], wanted: dict[str, Any], data: bytes
) -> None:
    reader = wanted if "fields" in wanted else defined(wanted)
    query = SchemaInfo(pb.Schema.Avro, json.dumps(reader).encode())
    with pytest.raises(UnreadableMessageError, match="its field t"):
        read([(0, data)], "t", avro(written), query)
    rows = read([(0, data)], "t,_corrupt", avro(written), query, mode="PERMISSIVE")
    assert rows == [{"t": None, "_corrupt": data}]


@pytest.mark.parametrize("unit", [NANOS, TIME, MILLIS, "long", ["null", MILLIS, "string"]])
def test_json_in_other_units_is_wrong(unit: Any) -> None:
    data = b'{"t": 5}'
    rows = read(
        [(0, data)],
        "t,_corrupt",
        as_json({"t": unit}),
        as_json({"t": MICROS}),
        mode="PERMISSIVE",
    )
    assert rows == [{"t": None, "_corrupt": data}]


def test_versions_with_other_names_and_branches_in_the_same_units_are_read() -> None:
    old = avro({"old": ["null", MICROS], "left": NANOS, "u": ["int", "string"]})
    query = SchemaInfo(pb.Schema.Avro, json.dumps(renamed(["null", MICROS], "old")).encode())
    at = datetime(1970, 1, 1, 0, 0, 0, 61728, tzinfo=UTC)
    assert read([(0, b"\x02" + SIX + SIX + b"\x00\x02")], "t", old, query) == [{"t": at}]


def test_an_alias_that_is_the_name_of_another_field_means_that_field() -> None:
    fields = [
        {"name": "t", "type": MICROS, "aliases": ["old"]},
        {"name": "old", "type": MILLIS, "default": 0},
    ]
    definition = {"type": "record", "name": "R", "fields": fields}
    query = SchemaInfo(pb.Schema.Avro, json.dumps(definition).encode())
    written = avro({"t": MICROS, "old": MILLIS})
    at = datetime(1970, 1, 1, 0, 0, 0, 61728, tzinfo=UTC)
    for names in ("t", "t,old"):
        assert read([(0, SIX + b"\x02")], names, written, query)[0]["t"] == at


def test_two_fields_that_are_one_by_an_alias_are_wrong() -> None:
    query = SchemaInfo(pb.Schema.Avro, json.dumps(renamed(MICROS, "old")).encode())
    with pytest.raises(UnreadableMessageError, match="two of its fields are t of the query"):
        read([(0, SIX + b"\x02")], "t", avro({"t": MICROS, "old": MICROS}), query)


@pytest.mark.parametrize("info", [avro, as_json])
def test_a_record_with_a_thousand_fields_is_read(info: Any) -> None:
    wide = info({f"f{number}": "int" for number in range(1000)})
    names = ",".join(f"f{number}" for number in range(1000))
    values = {f"f{number}": number for number in range(1000)}
    data = json.dumps(values).encode() if info is as_json else encoded(wide, values)
    assert read([(0, data)], names, wide) == [values]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.34", Decimal("12.34")),
        ('"12.34"', Decimal("12.34")),
        ("-5", Decimal(-5)),
        ("1.2e1", Decimal(12)),
        ("null", None),
        ('"1_0"', ...),
        ('" 1 "', ...),
        ('"+1"', ...),
        ('"NaN"', ...),
        ('"٣"', ...),
        ("1.239", ...),
        ("true", ...),
        ("[1]", ...),
        ("0E-99", Decimal(0)),
        ("1.2000", Decimal("1.2")),
        ("-1.2" + "0" * 90, Decimal("-1.2")),
        ("12" + "0" * 40 + "e-40", Decimal(12)),
        ("99999999.99", Decimal("99999999.99")),
        ("100000000", ...),
        ("1e-99", ...),
        ("1e999", ...),
        ("1e-999", ...),
        ("1e-999999999", ...),
        ("1e999999999", ...),
        ('"0E-999999"', ...),
        ("9" * 5000, ...),
        ("9" * 99, ...),
        ("0." + "1" * 5000, ...),
    ],
)
def test_a_decimal_in_json_is_a_plain_numeral_that_fits(text: str, value: Any) -> None:
    info = as_json({"t": ["null", money(10, 2)]})
    data = f'{{"t": {text}}}'.encode()
    (row,) = read([(0, data)], "t,_corrupt", info, mode="PERMISSIVE")
    assert row == (
        {"t": None, "_corrupt": data} if value is ... else {"t": value, "_corrupt": None}
    )


def test_a_number_that_is_too_large_for_its_float_is_wrong() -> None:
    info = as_json({"f": ("float", 1e39), "d": "double"})
    good = b'{"f": 3.4028235e38, "d": 1e39}'
    wrong = [b'{"f": 1e39, "d": 1}', b'{"f": 1, "d": 1e400}', b'{"d": 1}']
    rows = read([(0, each) for each in (good, *wrong)], "f,d,_corrupt", info, mode="PERMISSIVE")
    assert rows[0]["f"] == pytest.approx(3.4028235e38)
    assert [row["_corrupt"] for row in rows] == [None, *wrong]
    infinite = avro({"f": "float"})
    assert read([(0, b"\0\0\x80\x7f")], "f", infinite) == [{"f": float("inf")}]


def varint(number: int) -> bytes:
    found, number = b"", number << 1
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


EMPTY = {"type": "record", "name": "E", "fields": []}
NOTHING = {"type": "fixed", "name": "F", "size": 0}
FOUR = {"type": "fixed", "name": "F", "size": 4}


@pytest.mark.parametrize("left_out", [True, False])
@pytest.mark.parametrize(
    "items",
    ["null", EMPTY, NOTHING, defined({"a": NOTHING}, "N"), "boolean", "float", "double", FOUR],
)
def test_an_array_that_claims_more_items_than_it_has_bytes_is_wrong(
    items: Any, left_out: bool
) -> None:
    """These would be read for days: what has no bytes, and what fastavro skips blindly."""
    written = avro({"x": "int", "a": {"type": "array", "items": items}})
    wanted = avro({"x": "int"}) if left_out else written
    data = b"\x02" + varint(10**12) + b"\x00"
    rows = read([(0, data)], "x,_corrupt", written, wanted, mode="PERMISSIVE")
    assert rows == [{"x": None, "_corrupt": data}]


def test_arrays_that_are_left_out_are_skipped() -> None:
    written = avro({"a": {"type": "array", "items": "float"}, "x": "int"})
    assert read([(0, b"\x02" + b"\0" * 4 + b"\0\x02")], "x", written) == [{"x": 1}]


@pytest.mark.parametrize("kind", ["string", "bytes", "double", "boolean", FOUR])
def test_a_message_that_is_cut_off_in_a_field_that_is_left_out_is_wrong(kind: Any) -> None:
    written = avro({"x": "int", "a": kind})
    whole = encoded(
        written,
        {"x": 1, "a": {"string": "text", "double": 1.0, "boolean": True}.get(str(kind), b"four")},
    )
    cut = [whole[:-1], b"\x02"]
    if kind in ("string", "bytes"):
        cut += [b"\x02" + varint(10**12), b"\x02" + varint(10**12) + b"xyz"]
    rows = read([(0, each) for each in (whole, *cut)], "x,_corrupt", written, mode="PERMISSIVE")
    assert rows == [{"x": 1, "_corrupt": None}, *({"x": None, "_corrupt": each} for each in cut)]


PART = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("double", [1]),
        pytest.param("float", 10**400, id="huge"),
        ("float", "x"),
        ("string", 5),
        ("bytes", "\u1234"),
        (PART, {}),
        (defined({"m": {"type": "map", "values": "int"}}, "I"), {"m": 5}),
        (defined({"l": {"type": "array", "items": "int"}}, "I"), {"l": 5}),
        ({"type": "array", "items": PART}, [{}]),
    ],
)
@pytest.mark.parametrize("info", [avro, as_json])
def test_a_default_that_its_column_does_not_hold_makes_messages_wrong(
    info: Any, kind: Any, default: Any
) -> None:
    data = b"\x02" if info is avro else b'{"x": 1}'
    query = info({"x": "int", "t": (kind, default)})
    rows = read([(0, data)], "x,t,_corrupt", info({"x": "int"}), query, mode="PERMISSIVE")
    assert rows == [{"x": None, "t": None, "_corrupt": data}]


@pytest.mark.parametrize("link", [["null", "R"], {"type": "array", "items": "R"}, "R"])
def test_a_version_with_a_record_inside_of_itself_is_wrong(link: Any) -> None:
    written = avro({"x": "int", "n": link})
    data = b"\x02\x02" * 100_000 + b"\x02\x00"
    rows = read([(0, data)], "x,_corrupt", written, avro({"x": "int"}), mode="PERMISSIVE")
    assert rows == [{"x": None, "_corrupt": data}]
    with pytest.raises(UnreadableMessageError, match="the record R inside of itself"):
        read([(0, data)], "x", written, avro({"x": "int"}))


def bomb(levels: int) -> Any:
    """Return a record that has 2 to the power of `levels` fields when names are expanded."""
    found = defined({"x": "int"}, f"L{levels}")
    for level in reversed(range(levels)):
        found = defined({"a": found, "b": f"L{level + 1}"}, f"L{level}")
    return found


def chained(count: int, leaf: str, *, forward: bool) -> dict[str, Any]:
    """Return the fields of a record: each is a record with two of the one before or behind it."""
    found: dict[str, Any] = {}
    for number in range(count):
        other = number + 1 if forward else number - 1
        kind = f"N{other}" if 0 <= other < count else leaf
        found[f"f{number}"] = defined({"a": kind, "b": kind}, f"N{number}")
    return found


@pytest.mark.parametrize("left_out", [True, False])
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize(("count", "leaf"), [(3000, "int"), (3000, "null"), (40, "null")])
def test_a_version_whose_names_hide_many_levels_or_values_is_wrong(
    count: int, leaf: str, forward: bool, left_out: bool
) -> None:
    written = avro({**chained(count, leaf, forward=forward), "x": "int"})
    wanted = avro({"x": "int"} | ({} if left_out else {"f0": ("int", 0)}))
    data = b"\x02" * 20_000
    rows = read([(0, data)], "x,_corrupt", written, wanted, mode="PERMISSIVE")
    assert rows == [{"x": None, "_corrupt": data}]


@pytest.mark.parametrize("info", [avro, as_json])
@pytest.mark.parametrize("wrap", ["arrays", "types"])
def test_names_below_many_levels_are_wrong(info: Any, wrap: str) -> None:
    """The levels of each definition are few; with names expanded there are thousands."""

    def wrapped(kind: Any) -> Any:
        for _ in range(50):
            kind = {"type": "array", "items": kind} if wrap == "arrays" else {"type": kind}
        return kind

    def read_as(levels: int) -> Any:
        return "int" if levels == 0 else defined({"a": read_as(levels - 1)}, f"N{30 - levels}")

    names = [f"N{number + 1}" if number < 29 else "int" for number in range(30)]
    kinds = [defined({"a": wrapped(name)}, f"N{number}") for number, name in enumerate(names)]
    written = info({f"f{number}": kind for number, kind in enumerate(kinds)})
    data = b"\x02" * 40
    rows = read([(0, data)], "f0,_corrupt", written, info({"f0": read_as(30)}), mode="PERMISSIVE")
    assert rows == [{"f0": None, "_corrupt": data}]


def test_items_with_many_values_in_a_byte_are_wrong() -> None:
    """Five megabytes of such items would be billions of values."""
    many = defined({"i": "boolean"} | {f"n{number}": "null" for number in range(200)}, "N")
    written = avro({"x": "int", "a": {"type": "array", "items": many}})
    with pytest.raises(UnreadableMessageError, match="more than 64 values in a byte"):
        read([(0, b"\x02\x02\x01\x00")], "x", written)


def test_values_that_take_no_bytes_are_read_where_they_are_few() -> None:
    empty = {"type": "map", "values": {"type": "fixed", "name": "F", "size": 0}}
    kinds = {"x": "int", "m": empty, "e": ["null", EMPTY], "n": "null"}
    assert read([(0, b"\x02\x02\x02k\x00\x02")], "x,m", avro(kinds)) == [
        {"x": 1, "m": [("k", b"")]}
    ]


def nested(levels: int) -> bytes:
    head, tail = b'{"type":"array","items":' * levels, b"}" * levels
    field = b'{"name":"x","type":' + head + b'"int"' + tail + b"}"
    return b'{"type":"record","name":"R","fields":[' + field + b"]}"


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (json.dumps(defined({"x": bomb(30)})).encode(), "its field x"),
        (nested(3000), "more than 64 levels"),
        (nested(100), "more than 64 levels"),
        (json.dumps(defined({f"f{i}": "int" for i in range(10_001)})).encode(), "10,000 types"),
        (json.dumps(defined({"x": {"type": "array"}})).encode(), "array without right items"),
        (json.dumps(defined({"x": "Nothing"})).encode(), "'Nothing', which is not known"),
    ],
)
@pytest.mark.parametrize("type_", [pb.Schema.Avro, pb.Schema.Json])
def test_a_version_whose_definition_is_too_large_or_wrong_makes_its_messages_wrong(
    definition: bytes, why: str, type_: int
) -> None:
    query = SchemaInfo(type_, json.dumps(defined({"x": "int"})).encode())
    written = SchemaInfo(type_, definition)
    with pytest.raises(UnreadableMessageError, match=why):
        read([(0, b"\x02")], "x", written, query)


def test_a_union_of_many_records_is_not_compared_without_end() -> None:
    def records(level: int) -> Any:
        return "int" if level == 20 else defined({"a": records(level + 1)}, f"A{level}")

    def branches(level: int) -> Any:
        if level == 20:
            return "int"
        first = defined({"a": branches(level + 1)}, f"A{level}")
        names = [f"A{level + 1}", f"B{level + 1}"] if level < 19 else "int"
        return [first, defined({"a": names}, f"B{level}")]

    written, query = avro({"x": branches(0)}), avro({"x": records(0)})
    with pytest.raises(UnreadableMessageError, match="too large to be compared"):
        read([(0, b"\0")], "x", written, query)
