"""The columns of a topic that has a schema (`schemaMode=topic`).  Pure.

A record has a column for each field; a single value is the column `value`; a pair is the columns
`key` and `value`.  Columns with the prefix `__`, such as `__offset`, have what a message has beside
its content.  With `mode=PERMISSIVE`, the column `_corrupt` has the bytes of messages that are not
of their schema.

    Avro                                    Spark
    string, enum, uuid                      string
    boolean, int, long, float, double       boolean, int, bigint, float, double
    bytes, fixed                            binary
    decimal                                 decimal, up to 38 digits
    date                                    date
    timestamp-millis, timestamp-micros      timestamp
    local-timestamp-millis, -micros         timestamp_ntz
    record, array, map                      struct, array, map
    a union with null                       the type of the other branch

Each column may be null.  A field that Spark cannot hold is refused unless the query leaves it out.
A definition of Avro whose messages have no limit has no columns, see `Names.check_bounded`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from pyspark.sql import types as spark

from daybook.clients.python.schemas.key_value import is_separated, parts_of
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.spark.schema import DEFAULT, TYPES, KeyType, Mode
from daybook.clients.spark.typed_names import (
    TYPES_MAX,
    Names,
    aliases_of,
    full_name,
    load_definition,
)
from daybook.wire.proto import pulsar_pb2 as pb

CORRUPT = "_corrupt"
META: Mapping[str, str] = {f"__{name}": name for name in TYPES if name != "value"}
"""The columns of `schemaMode=raw` that describe a message, by their names in `schemaMode=topic`."""

_DIGITS_MAX = 38
_DEPTH_MAX = 32
_STEPS_MAX = 10 * TYPES_MAX
_TYPES_SPARK: Mapping[str, spark.DataType] = {
    "string": spark.StringType(),
    "binary": spark.BinaryType(),
    "boolean": spark.BooleanType(),
    "tinyint": spark.ByteType(),
    "smallint": spark.ShortType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without parts.  `kind` is Spark's name of its type."""

    kind: str
    micros: int = 1  # in one unit of a time
    digits: tuple[int, int] = (0, 0)  # all digits of a decimal, and those behind the point
    symbols: tuple[str, ...] = ()  # only an enum has them
    otherwise: str | None = None  # the symbol for one that is not known


@dataclass(frozen=True, slots=True)
class Record:
    fields: "tuple[Field, ...]"


@dataclass(frozen=True, slots=True)
class Listed:
    item: "Field"


@dataclass(frozen=True, slots=True)
class Mapped:
    value: "Field"


Kind: TypeAlias = Leaf | Record | Listed | Mapped


@dataclass(frozen=True, slots=True)
class Refused:
    """A type that Spark cannot hold, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Field:
    """A named value; the name of an item of an array, or of a map, is empty."""

    name: str
    kind: Kind
    nullable: bool
    has_default: bool = False
    default: Any = None  # in the words of the definition
    aliases: tuple[str, ...] = ()  # Avro takes a field with such a name for this one


# -- Avro definitions


def parse_definition(info: SchemaInfo) -> tuple[tuple[str, "Field | Refused"], ...]:
    """Return the fields of a record.  Raise ValueError if it is not one."""
    found = _Parser(Names(load_definition(info.data))).columns()
    if not found:
        raise ValueError("the record has no fields: read the topic with schemaMode=raw")
    return tuple(found)


class _Parser:
    """Parses one definition.

    A type that is used again is parsed again, so the columns have a limit of their own.  A field
    beyond it is refused and leaves its place to others, up to `_STEPS_MAX`.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._open: list[int] = []  # the records that are being parsed
        self._types = 0  # those that the columns have
        self._steps = 0

    def columns(self) -> list[tuple[str, Field | Refused]]:
        """Return the fields of the record; one that is refused does not keep others out."""
        definition = self._names.definition
        space = full_name(definition, "").rpartition(".")[0]
        aliases = aliases_of(definition)
        found: list[tuple[str, Field | Refused]] = []
        for each in definition["fields"]:
            types, self._open = self._types, [id(definition)]
            try:
                found.append((each["name"], self._field(each, aliases, "", space, 0)))
            except RefusedTypeError as refused:
                found.append((each["name"], Refused(str(refused))))
                self._types = types
        return found

    def _field(
        self,
        found: dict[str, Any],
        aliases: Mapping[str, tuple[str, ...]],
        where: str,
        space: str,
        depth: int,
    ) -> Field:
        name = str(found["name"])
        kind, nullable = self._type(found["type"], f"{where}{name}", space, depth)
        return Field(name, kind, nullable, "default" in found, found.get("default"), aliases[name])

    def _type(self, found: Any, where: str, space: str, depth: int) -> tuple[Kind, bool]:  # noqa: ANN401
        """Return a type, and True if it may be null."""
        self._types += 1
        self._steps += 1
        if self._types > TYPES_MAX or self._steps > _STEPS_MAX:
            raise RefusedTypeError(f"{where} makes the columns have more than {TYPES_MAX:,} types")
        if depth > _DEPTH_MAX:
            raise RefusedTypeError(f"{where} has more than {_DEPTH_MAX} levels")
        if isinstance(found, list):
            return self._union(found, where, space, depth)  # pyright: ignore[reportUnknownArgumentType]
        is_plain = not isinstance(found, dict)
        definition = cast("dict[str, Any]", {"type": found} if is_plain else found)
        name = definition["type"]
        if isinstance(name, dict | list):  # {"type": {"type": ...}}
            return self._type(name, where, space, depth + 1)
        if name == "null":
            raise RefusedTypeError(f"{where} is always null")
        if name in ("record", "error"):
            return self._record(definition, where, space, depth), False
        if name == "array":
            kind, nullable = self._type(definition["items"], f"{where}[]", space, depth + 1)
            return Listed(Field("", kind, nullable)), False
        if name == "map":
            kind, nullable = self._type(definition["values"], f"{where}[]", space, depth + 1)
            return Mapped(Field("", kind, nullable)), False
        if name == "enum":
            symbols = tuple(map(str, definition["symbols"]))
            return Leaf("string", symbols=symbols, otherwise=definition.get("default")), False
        if name not in _PLAIN:
            return self._known(str(name), where, space, depth), False
        return leaf_of(str(name), definition, where), False

    def _union(self, branches: list[Any], where: str, space: str, depth: int) -> tuple[Kind, bool]:
        others = [each for each in branches if each != "null"]
        names = {str(each) for each in others}
        for wider, both in _WIDENED.items():
            if names == both:
                return Leaf(wider), len(others) < len(branches)
        if len(others) != 1:
            raise RefusedTypeError(f"{where} is a union of {len(others)} types")
        kind, _ = self._type(others[0], where, space, depth + 1)
        return kind, len(others) < len(branches)

    def _record(self, definition: dict[str, Any], where: str, space: str, depth: int) -> Kind:
        if id(definition) in self._open:
            raise RefusedTypeError(f"{where} is a record inside of itself")
        self._open.append(id(definition))
        inner = full_name(definition, space).rpartition(".")[0]
        aliases = aliases_of(definition)
        fields = [
            self._field(each, aliases, f"{where}.", inner, depth + 1)
            for each in definition["fields"]
        ]
        self._open.pop()
        if not fields:
            raise RefusedTypeError(f"{where} is a record without fields")
        return Record(tuple(fields))

    def _known(self, name: str, where: str, space: str, depth: int) -> Kind:
        known = self._names.find(name, space)
        if known is None:
            raise RefusedTypeError(f"{where} has the type {name!r}, which is not known")
        return self._type(known[0], where, known[1], depth + 1)[0]


class RefusedTypeError(Exception):
    """Spark has no type for this one."""


_PLAIN: Mapping[str, str] = {
    "string": "string",
    "bytes": "binary",
    "fixed": "binary",
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
}
_WIDENED: Mapping[str, set[str]] = {"bigint": {"int", "long"}, "double": {"float", "double"}}
_TIMES: Mapping[tuple[str, str], Leaf] = {
    ("int", "date"): Leaf("date"),
    ("long", "timestamp-millis"): Leaf("timestamp", 1000),
    ("long", "timestamp-micros"): Leaf("timestamp"),
    ("long", "local-timestamp-millis"): Leaf("timestamp_ntz", 1000),
    ("long", "local-timestamp-micros"): Leaf("timestamp_ntz"),
}
_WITHOUT_TYPE = {
    "time-millis": "a time of day",
    "time-micros": "a time of day",
    "timestamp-nanos": "a time in nanoseconds",
    "local-timestamp-nanos": "a time in nanoseconds",
    "duration": "a duration",
    "big-decimal": "a decimal without a scale",
}


def leaf_of(name: str, definition: Mapping[str, Any], where: str) -> Leaf:
    """Return a type without parts, by its name in Avro.  Raise RefusedTypeError."""
    logical = str(definition.get("logicalType", ""))
    if logical in _WITHOUT_TYPE:
        raise RefusedTypeError(f"{where} is {_WITHOUT_TYPE[logical]} ({logical})")
    if logical == "decimal" and name in ("bytes", "fixed"):
        digits, behind = definition.get("precision"), definition.get("scale", 0)
        if not isinstance(digits, int) or not isinstance(behind, int):
            raise RefusedTypeError(f"{where} is a decimal whose digits are no numbers")
        if not 0 < digits <= _DIGITS_MAX or not 0 <= behind <= digits:
            raise RefusedTypeError(f"{where} is a decimal with {digits} digits")
        return Leaf("decimal", digits=(digits, behind))
    return _TIMES.get((name, logical), Leaf(_PLAIN[name]))


# -- single values


_SINGLE: Mapping[int, Leaf] = {
    pb.Schema.String: Leaf("string"),
    pb.Schema.Bool: Leaf("boolean"),
    pb.Schema.Int8: Leaf("tinyint"),
    pb.Schema.Int16: Leaf("smallint"),
    pb.Schema.Int32: Leaf("int"),
    pb.Schema.Int64: Leaf("bigint"),
    pb.Schema.Float: Leaf("float"),
    pb.Schema.Double: Leaf("double"),
    pb.Schema.Date: Leaf("timestamp", 1000),  # a java.util.Date is a moment
    pb.Schema.Timestamp: Leaf("timestamp", 1000),
    pb.Schema.Instant: Leaf("timestamp"),
    pb.Schema.LocalDate: Leaf("date"),
    pb.Schema.LocalDateTime: Leaf("timestamp_ntz"),
}
RECORDS = (int(pb.Schema.Avro), int(pb.Schema.Json))


def kind_of(info: SchemaInfo) -> Kind:
    """Return the type of a part of a pair, or of a single value.  Raise ValueError."""
    if info.type in RECORDS:
        fields: list[Field] = []
        for _, each in parse_definition(info):
            if isinstance(each, Refused):
                raise ValueError(f"{each.why}, which Spark cannot hold: use schemaMode=raw")
            fields.append(each)
        return Record(tuple(fields))
    found = _SINGLE.get(info.type)
    if found is None:
        raise ValueError(
            f"messages of the schema type {_type_name(info)} have no columns in Spark: read the"
            " topic with schemaMode=raw"
        )
    return found


def _type_name(info: SchemaInfo) -> str:
    try:
        return info.type_name
    except ValueError:
        return str(info.type)


# -- the columns of a topic


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The schema with which a query reads, and its number in each topic (by full name)."""

    info: SchemaInfo
    versions: Mapping[str, int]

    @property
    def is_separated(self) -> bool:
        """True if the key of a pair is the key of its message."""
        return self.info.type == pb.Schema.KeyValue and is_separated(self.info)


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """The columns of a query, in order."""

    schema: TopicSchema
    names: tuple[str, ...]
    mode: Mode
    key_type: KeyType = "binary"  # the type of `__key`

    @property
    def raw_key_type(self) -> KeyType:
        """The type of the raw column `key`: a part of a pair is decoded from its bytes."""
        return "binary" if self.schema.is_separated else self.key_type

    @property
    def raw(self) -> tuple[str, ...]:
        """The columns of the message from which these are made; see `typed_rows`."""
        needed = ["value", "offset", "schemaVersion"]
        if self.schema.is_separated:
            needed.append("key")
        needed += [META[name] for name in self.names if name in META]
        return tuple(dict.fromkeys(needed))


def contents(info: SchemaInfo) -> tuple[tuple[str, Field | Refused], ...]:
    """Return the columns that messages of a schema have, without those about the message."""
    if info.type in RECORDS:
        return parse_definition(info)
    if info.type == pb.Schema.KeyValue:
        parts = zip(("key", "value"), parts_of(info), strict=True)
        return tuple((name, Field(name, kind_of(part), nullable=True)) for name, part in parts)
    return (("value", Field("value", kind_of(info), nullable=True)),)


def typed_columns(
    schema: TopicSchema,
    asked: Sequence[str] | None,
    mode: Mode,
    *,
    key_type: KeyType,
    headers: bool,
) -> TypedColumns:
    """Return the columns that the options ask for; None: all.  Raise ValueError with a remedy."""
    found = dict(contents(schema.info))
    usual = [f"__{name}" for name in DEFAULT if name != "value"]
    if asked is None:
        asked = [*found, *usual, *((CORRUPT,) if mode == "PERMISSIVE" else ())]
    names = tuple(dict.fromkeys([*asked, *(("__headers",) if headers else ())]))
    if schema.is_separated and key_type == "string":
        raise ValueError("keyType=string is not for pairs, whose keys have a type: leave it out")
    folded: dict[str, str] = {}
    for name in names:
        if name not in found and name not in META and name != CORRUPT:
            raise ValueError(f"there is no column {name!r}, only {', '.join([*found, *META])}")
        if name == CORRUPT and mode != "PERMISSIVE":
            raise ValueError(f"the column {CORRUPT} needs mode=PERMISSIVE")
        if name in found and (name in META or name == CORRUPT):
            raise ValueError(
                f"the schema has a field {name!r}, which is the name of a column about the"
                " message: leave it out with the option columns, or use schemaMode=raw"
            )
        if (other := folded.setdefault(name.lower(), name)) != name:
            raise ValueError(
                f"the columns {other!r} and {name!r} differ in case only, which Spark does not"
                " tell apart: leave one out with the option columns"
            )
        each = found.get(name)
        if isinstance(each, Refused):
            raise ValueError(
                f"{each.why}, which Spark cannot hold: leave {name} out with the option columns, or"
                " use schemaMode=raw"
            )
    if schema.info.type == pb.Schema.Avro and (found.keys() | {CORRUPT}) & set(names):
        Names(load_definition(schema.info.data)).check_bounded()
    return TypedColumns(schema, names, mode, key_type)


def check_given(columns: TypedColumns, given: spark.StructType) -> TypedColumns:
    """Return the columns in the order of a schema that a user gave.  Raise ValueError."""
    wanted = {each.name: each.dataType.simpleString() for each in spark_schema(columns)}
    for each in given.fields:
        kind = wanted.get(each.name)
        if kind != each.dataType.simpleString():
            what = "does not exist" if kind is None else f"has the type {kind}"
            raise ValueError(
                f"the schema says {each.name} {each.dataType.simpleString()}, but the column"
                f" {what}: read the topic as it is, and cast afterwards"
            )
    names = tuple(each.name for each in given.fields)
    return TypedColumns(columns.schema, names, columns.mode, columns.key_type)


def spark_schema(columns: TypedColumns) -> spark.StructType:
    """Return the columns in Spark's types."""
    found = dict(contents(columns.schema.info))
    fields: list[spark.StructField] = []
    for name in columns.names:
        each = found.get(name)
        if name == CORRUPT:
            kind: spark.DataType = spark.BinaryType()
        elif isinstance(each, Field):
            kind = spark_type(each.kind)
        elif META[name] == "key":
            kind = _TYPES_SPARK[columns.key_type]
        else:
            kind = _meta_type(META[name])
        fields.append(spark.StructField(name, kind))
    return spark.StructType(fields)


def _meta_type(name: str) -> spark.DataType:
    if name == "properties":
        return spark.MapType(spark.StringType(), spark.StringType())
    if name == "headers":
        pair = spark.StructType().add("key", spark.StringType()).add("value", spark.BinaryType())
        return spark.ArrayType(pair)
    return _TYPES_SPARK[TYPES[name]]


def spark_type(kind: Kind) -> spark.DataType:
    match kind:
        case Leaf():
            if kind.kind == "decimal":
                return spark.DecimalType(*kind.digits)
            return _TYPES_SPARK[kind.kind]
        case Record():
            return spark.StructType(
                [spark.StructField(each.name, spark_type(each.kind)) for each in kind.fields]
            )
        case Listed():
            return spark.ArrayType(spark_type(kind.item.kind))
        case Mapped():
            return spark.MapType(spark.StringType(), spark_type(kind.value.kind))
