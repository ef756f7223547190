"""The columns of a frame, as the sink takes them: known by their names, with fixed types.

    value        binary or string     the content; null is a tombstone
    key          binary or string     the key; null is a message without a key
    properties   map<string,string>   the properties of the message
    headers      array<struct<key:string,value:binary>>   the same, as Spark's Kafka sink takes it
    eventTime    timestamp            the time that the application gives the message
    topic        string               the topic of the row
    partition    int                  the partition of the row; null leaves it to the key
    keyIsBytes   boolean              the key is given as bytes, or as a text; null leaves it to
                                      the type of the column `key`

With a value format, `value` is a struct, or all other columns together are the fields of a record.

Names are compared without case.  A frame is checked when its query is planned, so a wrong column is
refused before anything is sent.
"""

# pyright: basic
# (the libraries underneath have no types)

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TEXT_OR_BYTES = "binary or string"
_MAP = "map<string,string>"
_HEADERS = "array<struct<key:string,value:binary>>"
_WANTED = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "properties": _MAP,
    "headers": _HEADERS,
    "eventtime": "timestamp",
    "topic": "string",
    "partition": "int",
    "keyisbytes": "boolean",
}
_NAMES = ("value", "key", "properties", "headers", "eventTime", "topic", "partition", "keyIsBytes")


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The index of each column; None for one that the frame does not have."""

    value: int
    key: int | None = None
    properties: int | None = None
    headers: int | None = None
    event_time: int | None = None
    topic: int | None = None
    partition: int | None = None
    key_is_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns that are the record of each row, and the others."""

    struct: int | None  # the column that is the record
    fields: tuple[int, ...]  # without one: the columns that are its fields
    others: tuple[int, ...]
    type: StructType


def record_columns(schema: StructType) -> tuple[RecordColumns, StructType]:
    """Return the columns of typed rows, and the frame that remains when they are encoded."""
    names = [field.name.lower() for field in schema.fields]
    struct: int | None = None
    kind = StructType()
    if "value" in names:
        found = schema.fields[names.index("value")].dataType
        if isinstance(found, StructType):
            struct = names.index("value")
            kind = found
    meant = set(_WANTED) - {"value"}
    fields = [] if struct is not None else [i for i, name in enumerate(names) if name not in meant]
    if struct is None:
        kind = StructType([schema.fields[index] for index in fields])
    others = [index for index in range(len(names)) if index != struct and index not in fields]
    plain = StructType([StructField("value", BinaryType()), *(schema.fields[i] for i in others)])
    return RecordColumns(struct, tuple(fields), tuple(others), kind), plain


def row_columns(schema: StructType, *, topic: str | None) -> RowColumns:
    """Return the columns of a frame; raise ValueError with one sentence for a frame that is wrong.

    `topic` is the option: it takes the place of the column.
    """
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in _WANTED:
            raise ValueError(
                f"a message has no column {field.name!r}: drop it or make it a part of the value;"
                f" there are {', '.join(_NAMES)}"
            )
        if name in found:
            raise ValueError(f"the frame has two columns {name!r}: drop one of them")
        _check_type(name, field)
        found[name] = index
    if "value" not in found:
        raise ValueError("the frame has no column 'value', which is the content of the messages")
    if "properties" in found and "headers" in found:
        raise ValueError("the frame has the columns properties and headers: drop one of them")
    if topic is not None:
        found.pop("topic", None)
    elif "topic" not in found:
        raise ValueError("the option 'topic' is missing, and the frame has no column 'topic'")
    if "keyisbytes" in found and "key" not in found:
        raise ValueError("the frame has the column keyIsBytes, and no column key: drop it")
    event_time, key_is_bytes = found.pop("eventtime", None), found.pop("keyisbytes", None)
    return RowColumns(**found, event_time=event_time, key_is_bytes=key_is_bytes)


def _check_type(name: str, field: StructField) -> None:
    if not _fits(_WANTED[name], field.dataType):
        raise ValueError(
            f"the column {field.name!r} is {field.dataType.simpleString()} and must be"
            f" {_WANTED[name]}: cast it"
        )


def _fits(wanted: str, kind: DataType) -> bool:
    match wanted:
        case "binary or string":
            return isinstance(kind, BinaryType | StringType)
        case "map<string,string>":
            return (
                isinstance(kind, MapType)
                and isinstance(kind.keyType, StringType)
                and isinstance(kind.valueType, StringType)
            )
        case "array<struct<key:string,value:binary>>":
            element = kind.elementType if isinstance(kind, ArrayType) else None
            if not isinstance(element, StructType) or element.fieldNames() != ["key", "value"]:
                return False
            first, second = element.fields
            return isinstance(first.dataType, StringType) and isinstance(
                second.dataType, BinaryType
            )
        case "timestamp":
            return isinstance(kind, TimestampType)
        case "string":
            return isinstance(kind, StringType)
        case "boolean":
            return isinstance(kind, BooleanType)
        case _:
            return isinstance(kind, IntegerType)
