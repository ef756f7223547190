"""The columns of a frame, as the sink takes them: known by their names, with fixed types.

    value        binary or string     the content; null is a tombstone
    key          binary or string     the key; null is a message without a key
    properties   map<string,string>   the properties of the message
    headers      array<struct<key:string,value:binary>>   the same, as Spark's Kafka sink takes it
    eventTime    timestamp            the time that the application gives the message
    topic        string               the topic of the row
    partition    int                  the partition of the row; null leaves it to the key

Names are compared without case.  A frame is checked when its query is planned, so a wrong column is
refused before anything is sent.
"""

# pyright: basic
# (the libraries underneath have no types)

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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
}
_NAMES = ("value", "key", "properties", "headers", "eventTime", "topic", "partition")


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
    event_time = found.pop("eventtime", None)
    return RowColumns(**found, event_time=event_time)


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
        case _:
            return isinstance(kind, IntegerType)
