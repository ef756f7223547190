"""Typed rows become the bytes that the Python client's schemas read, and their schema is theirs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from daybook import schemas
from daybook.clients.python.schemas.fields import Int32
from daybook.clients.spark.records import RecordEncoder
from daybook.clients.spark.row_columns import record_columns
from daybook.clients.spark.sink_options import ValueFormat

FORMATS: list[ValueFormat] = ["json", "avro"]
WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


@dataclass
class Row_where:  # noqa: N801  the name that the sink gives
    city: str | None
    floor: Int32


@dataclass
class Row:
    name: str
    count: int
    ratio: float | None
    at: datetime | None
    day: date | None
    raw: bytes | None
    ok: bool
    where: Row_where | None
    tags: list[str | None]
    more: dict[str, int | None]


def field(name: str, kind: DataType, *, nullable: bool = True) -> StructField:
    return StructField(name, kind, nullable)


WHERE = StructType([field("city", StringType()), field("floor", IntegerType(), nullable=False)])
ROW = StructType(
    [
        field("name", StringType(), nullable=False),
        field("count", LongType(), nullable=False),
        field("ratio", DoubleType()),
        field("at", TimestampType()),
        field("day", DateType()),
        field("raw", BinaryType()),
        field("ok", BooleanType(), nullable=False),
        field("where", WHERE),
        field("tags", ArrayType(StringType()), nullable=False),
        field("more", MapType(StringType(), LongType()), nullable=False),
    ]
)
ARROW = pa.struct(
    [
        ("name", pa.string()),
        ("count", pa.int64()),
        ("ratio", pa.float64()),
        ("at", pa.timestamp("us", tz="Europe/Berlin")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("ok", pa.bool_()),
        ("where", pa.struct([("city", pa.string()), ("floor", pa.int32())])),
        ("tags", pa.list_(pa.string())),
        ("more", pa.map_(pa.string(), pa.int64())),
    ]
)
VALUES = [
    Row("a", 1, 0.5, WHEN, WHEN.date(), b"\xff", True, Row_where("x", 2), ["t", None], {"m": 1}),
    Row("b", -1, None, None, None, None, False, None, [], {"m": None}),
]


def arrow(values: Sequence[Row | None]) -> pa.Array:
    rows: list[Any] = []
    for value in values:
        if value is None:
            rows.append(None)
            continue
        where = None if value.where is None else vars(value.where)
        rows.append({**vars(value), "where": where, "more": list(value.more.items())})
    return pa.array(rows, ARROW)


@pytest.mark.parametrize("format_", FORMATS)
def test_columns_become_records_that_the_client_reads(format_: ValueFormat) -> None:
    frame = StructType([*ROW.fields, field("key", StringType())])
    columns, plain = record_columns(frame)
    assert plain.fieldNames() == ["value", "key"]
    encoder = RecordEncoder(columns, format_)
    arrays = [*arrow(VALUES).flatten(), pa.array(["k", None])]
    rows = pa.RecordBatch.from_arrays(arrays, names=frame.fieldNames())
    made = encoder.plain(rows)
    assert made.schema.names == ["value", "key"]
    assert made["key"].to_pylist() == ["k", None]
    client = getattr(schemas, format_)(Row)
    assert [client.decode(data) for data in made["value"].to_pylist()] == VALUES
    assert encoder.schema.info == client.info


@pytest.mark.parametrize("format_", FORMATS)
def test_a_struct_is_the_record_and_null_is_a_tombstone(format_: ValueFormat) -> None:
    columns, _ = record_columns(StructType([field("key", StringType()), field("Value", ROW)]))
    assert (columns.struct, columns.fields, columns.others) == (1, (), (0,))
    encoder = RecordEncoder(columns, format_)
    values = [VALUES[0], None, VALUES[1]]
    rows = pa.RecordBatch.from_arrays([pa.array(["a", "b", "c"]), arrow(values)], ["key", "Value"])
    found = encoder.plain(rows.slice(1))
    client = getattr(schemas, format_)(Row)
    assert found["key"].to_pylist() == ["b", "c"]
    first, second = found["value"].to_pylist()
    assert first is None
    assert client.decode(second) == VALUES[1]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (DecimalType(10, 2), r"'x' is decimal\(10,2\), which no schema describes: cast it"),
        (TimestampNTZType(), "'x' is timestamp_ntz"),
        (MapType(LongType(), StringType()), "'x' is map<bigint,string>"),
        (StructType([field("y", DecimalType(3, 0))]), "'x.y' is decimal"),
        (ArrayType(DecimalType(3, 0)), "'x' is decimal"),
        (StructType([field("a b", StringType())]), "'a b' cannot be a field of a record"),
        (StructType(), "a record needs a column"),
    ],
)
def test_a_type_without_a_schema_is_explained(
    format_: ValueFormat, kind: DataType, says: str
) -> None:
    columns, _ = record_columns(StructType([field("x", kind)]))
    with pytest.raises(ValueError, match=says):
        RecordEncoder(columns, format_)


@pytest.mark.parametrize("nested", [False, True])
def test_json_takes_no_nan(nested: bool) -> None:
    kind: Any = ArrayType(DoubleType()) if nested else DoubleType()
    value: Any = [[1.0], [float("nan")]] if nested else [1.0, float("nan")]
    columns, _ = record_columns(StructType([field("x", kind)]))
    rows = pa.RecordBatch.from_arrays([pa.array(value)], names=["x"])
    with pytest.raises(ValueError, match="NaN or infinity, which JSON does not have"):
        RecordEncoder(columns, "json").plain(rows)
    assert RecordEncoder(columns, "avro").plain(rows).num_rows == 2


def test_int_is_avros_int() -> None:
    assert Int32 == Annotated[int, *Int32.__metadata__]  # type: ignore[attr-defined]
    columns, _ = record_columns(StructType([field("x", IntegerType(), nullable=False)]))
    data = RecordEncoder(columns, "avro").schema.info.data
    assert data == b'{"type":"record","name":"Row","fields":[{"name":"x","type":"int"}]}'
