"""Typed rows: the columns of a frame become records, as JSON or Avro with a schema of the topic.

The type of a record is made from the types of the columns, as if somebody had written a class with
these fields for `daybook.schemas` (`clients.python.schemas.fields` has the Avro types).  A column
that may be null becomes an optional field.

A batch of typed rows becomes a batch of plain ones, whose value is the encoded record.
"""

# pyright: basic, reportAttributeAccessIssue=false
# (the libraries underneath have no types)

from collections.abc import Callable, Sequence
from datetime import date, datetime
from types import GenericAlias
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from daybook.clients.python.schemas.avro_records import AvroSchema
from daybook.clients.python.schemas.fields import Float32, Int32
from daybook.clients.python.schemas.json_records import JsonSchema
from daybook.clients.python.schemas.schema import Schema
from daybook.clients.spark.row_columns import RecordColumns
from daybook.clients.spark.sink_options import ValueFormat

_Convert: TypeAlias = Callable[[Any], Any]
_SIMPLE: dict[type[DataType], Any] = {
    StringType: str,
    BinaryType: bytes,
    BooleanType: bool,
    ByteType: Int32,
    ShortType: Int32,
    IntegerType: Int32,
    LongType: int,
    FloatType: Float32,
    DoubleType: float,
    TimestampType: datetime,
    DateType: date,
}
_RECORD = "Row"


class RecordEncoder:
    """One instance per task: encodes the records of rows.

    The constructor raises ValueError for a frame whose types no schema can describe.
    """

    def __init__(self, columns: RecordColumns, format_: ValueFormat) -> None:
        self._columns = columns
        types = _Types()
        self._class, self._converters = types.record(columns.type, _RECORD)
        self.schema: Schema[Any]
        self._encode: Callable[[Any], bytes]
        if format_ == "json":
            self.schema = JsonSchema(self._class)
            # The schema's own `encode` checks each value against its class: these are made for it.
            self._encode = msgspec.json.Encoder().encode
        else:
            self.schema = AvroSchema(self._class)
            self._encode = self.schema.encoder()
        self._must_be_finite = format_ == "json"

    def plain(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the encoded records as their first column; null is a tombstone."""
        columns = self._columns
        if columns.struct is None:
            parts = [rows.column(index) for index in columns.fields]
            nulls = None
        else:
            struct = rows.column(columns.struct)
            parts = struct.flatten()
            nulls = struct.is_null().to_pylist() if struct.null_count else None
        if self._must_be_finite:
            for part in parts:
                _check_finite(part)
        values = self._values(parts, rows.num_rows, nulls)
        others = [rows.column(index) for index in columns.others]
        names = ["value", *(rows.schema.names[index] for index in columns.others)]
        return pa.RecordBatch.from_arrays(
            [pa.array(values, pa.large_binary()), *others], names=names
        )

    def _values(
        self, parts: Sequence[pa.Array], count: int, nulls: list[bool] | None
    ) -> list[bytes | None]:
        lists = [
            part.to_pylist() if convert is None else list(map(convert, part.to_pylist()))
            for part, convert in zip(parts, self._converters, strict=True)
        ]
        records = map(self._class, *lists)
        encode = self._encode
        if nulls is None:
            return [encode(record) for record in records]
        found: list[bytes | None] = []
        for record, is_null in zip(records, nulls, strict=True):
            found.append(None if is_null else encode(record))
        assert len(found) == count
        return found


class _Types:
    """Makes the classes of records from Spark's types."""

    def record(self, type_: StructType, name: str) -> tuple[type[Any], list[_Convert | None]]:
        """Return the class of a record, and what its values need to become those of the class."""
        if not type_.fields:
            raise ValueError("a record needs a column at least: add one, or send plain values")
        fields: list[tuple[str, Any]] = []
        converters: list[_Convert | None] = []
        for field in type_.fields:
            if not (field.name.isidentifier() and field.name.isascii()):
                raise ValueError(
                    f"the column {field.name!r} cannot be a field of a record, whose names have"
                    " letters, digits and _ only: rename it with withColumnRenamed"
                )
            hint, convert = self._type(field.dataType, f"{name}_{field.name}")
            fields.append((field.name, hint | None if field.nullable else hint))
            converters.append(convert)
        return msgspec.defstruct(name, fields), converters

    def _type(self, kind: DataType, name: str) -> tuple[Any, _Convert | None]:
        """Return the annotation of a type, and how Arrow's values of it become the class's."""
        simple = _SIMPLE.get(type(kind))
        if simple is not None:
            return simple, None
        if isinstance(kind, StructType):
            made, converters = self.record(kind, name)
            return made, _struct_converter(made, kind.fieldNames(), converters)
        if isinstance(kind, ArrayType):
            hint, convert = self._type(kind.elementType, name)
            several = GenericAlias(list, (hint | None if kind.containsNull else hint,))
            return several, None if convert is None else _list_converter(convert)
        if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
            hint, convert = self._type(kind.valueType, name)
            hint = hint | None if kind.valueContainsNull else hint
            return GenericAlias(dict, (str, hint)), _map_converter(convert)
        raise ValueError(
            f"the column {name.removeprefix(_RECORD + '_').replace('_', '.')!r} is"
            f" {kind.simpleString()}, which no schema describes: cast it, for example to string"
        )


def _struct_converter(
    made: type[Any], names: list[str], converters: list[_Convert | None]
) -> _Convert:
    def convert(value: dict[str, Any] | None) -> Any:  # noqa: ANN401
        if value is None:
            return None
        return made(
            *(
                value[name] if inner is None else inner(value[name])
                for name, inner in zip(names, converters, strict=True)
            )
        )

    return convert


def _list_converter(inner: _Convert) -> _Convert:
    return lambda value: None if value is None else [inner(each) for each in value]


def _map_converter(inner: _Convert | None) -> _Convert:
    """Arrow's maps are lists of pairs."""
    if inner is None:
        return lambda value: None if value is None else dict(value)
    return lambda value: None if value is None else {name: inner(each) for name, each in value}


def _check_finite(column: pa.Array) -> None:
    """Raise ValueError for NaN and infinity, which JSON does not have."""
    kind = column.type
    if pa.types.is_floating(kind):
        if pc.all(pc.is_finite(column)).as_py() is False:
            raise ValueError(
                "a row has NaN or infinity, which JSON does not have: use valueFormat=avro, or"
                " replace it by null"
            )
    elif pa.types.is_struct(kind):
        for each in column.flatten():
            _check_finite(each)
    elif pa.types.is_map(kind):
        _check_finite(column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _check_finite(column.flatten())
