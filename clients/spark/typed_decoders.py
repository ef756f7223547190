"""Decode messages of a version of a schema for the columns of a query.

Avro's rules map the fields of a message to those of the query: by fastavro for Avro, by the names
of fields for JSON.  Times and decimals stay numbers and bytes here (`typed_values` makes columns of
them).  So the two definitions must not count a time in different units.
"""

# pyright: basic
# (the libraries underneath have no types)

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from struct import Struct, error
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from daybook.clients.python.schemas.avro_records import load_fastavro
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.spark.typed_schema import (
    RECORDS,
    Field,
    Kind,
    Leaf,
    Listed,
    Mapped,
    Record,
    Refused,
    kind_of,
    parse_definition,
)
from daybook.clients.spark.typed_values import Getters, by_name, by_number
from daybook.wire.proto import pulsar_pb2 as pb

Decode: TypeAlias = Callable[[bytes], Any]
_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


@dataclass(frozen=True, slots=True)
class Part:
    """How a query reads one part of its messages: a record, or a single value.

    `fields` are the fields of a record that the query needs.
    """

    info: SchemaInfo
    kind: Kind

    @property
    def getters(self) -> Getters:
        return by_name if self.info.type == pb.Schema.Avro else by_number

    def decoder(self, writer: SchemaInfo) -> Decode:
        """Return the function that decodes what was written with a version.

        Both raise ValueError, with a reason, for what this part does not read.
        """
        if writer.type != self.info.type:
            raise ValueError(
                f"it was written with a schema of type {writer.type_name}, and the query reads"
                f" {self.info.type_name}"
            )
        if not isinstance(self.kind, Record):
            return _single(self.info.type)
        _check_units(self.kind, writer)
        if writer.type == pb.Schema.Avro:
            return _avro(self.info, self.kind, writer)
        return _json(self.kind)


def part_of(info: SchemaInfo, names: frozenset[str] | None = None) -> Part:
    """Return how to read a schema; `names` are the fields of a record that are needed."""
    if info.type not in RECORDS or names is None:
        return Part(info, kind_of(info))
    fields = (each for name, each in parse_definition(info) if name in names)
    return Part(info, Record(tuple(each for each in fields if isinstance(each, Field))))


# -- Avro


def _avro(reader: SchemaInfo, kind: Record, writer: SchemaInfo) -> Decode:
    fastavro = load_fastavro()
    try:
        written = _Plain(json.loads(writer.data)).record(None)
        names = frozenset(each.name for each in kind.fields)
        wanted = _Plain(json.loads(reader.data)).record(names)
        # The names of two records do not matter to Pulsar, and fastavro compares them.
        wanted["aliases"] = [written["name"], written["name"].rpartition(".")[2]]
        parsed: Any = fastavro.parse_schema(written)
        parsed_wanted: Any = fastavro.parse_schema(wanted)
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        raise ValueError(f"its schema cannot be parsed: {failure!r}") from None
    read = fastavro.schemaless_reader

    def decode(data: bytes) -> Any:  # noqa: ANN401
        buffer = BytesIO(data)
        try:
            found = read(buffer, parsed, parsed_wanted)
        except Exception as failure:
            # fastavro raises errors of many classes for bytes that are no message.
            raise ValueError(f"it is no Avro of its schema: {failure!r}") from None
        if buffer.tell() != len(data):
            raise ValueError("it is longer than a message of its schema")
        return found

    return decode


class _Plain:
    """Makes a definition without logical types, in which each type has its full name."""

    def __init__(self, definition: dict[str, Any]) -> None:
        self._definition = definition
        self._named: dict[str, tuple[dict[str, Any], str]] = {}
        self._defined: set[str] = set()
        self._collect(definition, "")

    def record(self, names: frozenset[str] | None) -> dict[str, Any]:
        """Return the definition of the record, with these fields only."""
        definition = self._definition
        if names is not None:
            fields = [each for each in definition["fields"] if each["name"] in names]
            definition = {**definition, "fields": fields}
        return self._record(definition, "")

    def _collect(self, found: Any, space: str) -> None:  # noqa: ANN401
        if isinstance(found, list):
            for each in found:
                self._collect(each, space)
        elif isinstance(found, dict):
            if found["type"] in ("record", "error", "enum", "fixed"):
                name = _full_name(found, space)
                self._named[name] = found, space
                space = name.rpartition(".")[0]
            for each in found.get("fields", ()):
                self._collect(each["type"], space)
            for inner in ("items", "values", "type"):
                if isinstance(found.get(inner), dict | list):
                    self._collect(found[inner], space)

    def _record(self, definition: dict[str, Any], space: str) -> dict[str, Any]:
        name = _full_name(definition, space)
        self._defined.add(name)
        space = name.rpartition(".")[0]
        fields = [
            {**each, "type": self._type(each["type"], space)} for each in definition["fields"]
        ]
        return {"type": "record", "name": name, "fields": fields}

    def _type(self, found: Any, space: str) -> Any:  # noqa: ANN401
        if isinstance(found, list):
            return [self._type(each, space) for each in found]
        if isinstance(found, str):
            return found if found in _PRIMITIVES else self._reference(found, space)
        kind = found["type"]
        if isinstance(kind, dict | list):
            return self._type(kind, space)
        match kind:
            case "record" | "error":
                return self._record(found, space)
            case "array":
                return {"type": "array", "items": self._type(found["items"], space)}
            case "map":
                return {"type": "map", "values": self._type(found["values"], space)}
            case "enum" | "fixed":
                name = _full_name(found, space)
                self._defined.add(name)
                kept = ("type", "symbols", "default", "size")
                return {"name": name, **{each: found[each] for each in kept if each in found}}
            case _:
                return self._type(kind, space)

    def _reference(self, name: str, space: str) -> Any:  # noqa: ANN401
        full = name if "." in name or not space else f"{space}.{name}"
        full = full if full in self._named else name
        if full in self._defined:
            return full
        definition, outer = self._named[full]
        return self._type(definition, outer)


def _full_name(definition: dict[str, Any], space: str) -> str:
    name = str(definition["name"])
    space = str(definition.get("namespace", space))
    return name if "." in name or not space else f"{space}.{name}"


# -- JSON

_BOUNDED = {
    "int": Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    "bigint": Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
}
_HINTS: dict[str, Any] = {
    "string": str,
    "binary": bytes,  # as base64
    "boolean": bool,
    **_BOUNDED,
    "float": float,
    "double": float,
    "date": _BOUNDED["int"],
    "timestamp": _BOUNDED["bigint"],
    "timestamp_ntz": _BOUNDED["bigint"],
    "decimal": Decimal,
}


def _json(kind: Record) -> Decode:
    decode = msgspec.json.Decoder(_hint(kind)).decode

    def checked(data: bytes) -> Any:  # noqa: ANN401
        try:
            return decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
            raise ValueError(f"it is no JSON of its schema: {failure}") from None

    return checked


def _hint(kind: Kind) -> Any:  # noqa: ANN401
    """Return the type of a value, for msgspec."""
    match kind:
        case Leaf():
            if kind.symbols and kind.otherwise is None:
                return Literal[kind.symbols]
            return _HINTS[kind.kind]
        case Listed():
            return list[_or_none(kind.item)]  # type: ignore[misc]
        case Mapped():
            return dict[str, _or_none(kind.value)]  # type: ignore[misc]
        case Record():
            fields = [
                (f"f{index}", _or_none(each), _member(each))
                for index, each in enumerate(kind.fields)
            ]
            return msgspec.defstruct("Record", fields, kw_only=True)


def _or_none(field: Field) -> Any:  # noqa: ANN401
    found = _hint(field.kind)
    return found | None if field.nullable else found


def _member(field: Field) -> Any:  # noqa: ANN401
    """Return the name and the default of a field.  Pulsar's Java client leaves nulls away."""
    if field.has_default and field.default is not None:
        default = field.default
        return msgspec.field(name=field.name, default_factory=lambda: _default(field.kind, default))
    if field.nullable:
        return msgspec.field(name=field.name, default=None)
    return msgspec.field(name=field.name)


def _default(kind: Kind, value: Any) -> Any:  # noqa: ANN401
    """Return the default of a definition as `decode` would; bytes are texts there."""
    if isinstance(kind, Leaf):
        return float(value) if kind.kind in ("float", "double") else value
    return msgspec.convert(value, _hint(kind))


# -- single values

_I64, _INSTANT, _PAIR = Struct(">q"), Struct(">qi"), Struct(">qq")
_DAY_US = 86_400_000_000


def _first(layout: str) -> Decode:
    unpack = Struct(layout).unpack
    return lambda data: unpack(data)[0]


def _instant(data: bytes) -> int:
    seconds, nanoseconds = _INSTANT.unpack(data)
    return int(seconds * 1_000_000 + nanoseconds // 1000)


def _date_time(data: bytes) -> int:
    days, nanoseconds = _PAIR.unpack(data)
    return int(days * _DAY_US + nanoseconds // 1000)


_SINGLE: dict[int, Decode] = {
    pb.Schema.String: bytes.decode,
    pb.Schema.Bool: _first(">?"),
    pb.Schema.Int8: _first(">b"),
    pb.Schema.Int16: _first(">h"),
    pb.Schema.Int32: _first(">i"),
    pb.Schema.Int64: _first(">q"),
    pb.Schema.Float: _first(">f"),
    pb.Schema.Double: _first(">d"),
    pb.Schema.Date: _first(">q"),
    pb.Schema.Timestamp: _first(">q"),
    pb.Schema.Instant: _instant,
    pb.Schema.LocalDate: _first(">q"),
    pb.Schema.LocalDateTime: _date_time,
}


def _single(type_: int) -> Decode:
    decode = _SINGLE[type_]

    def checked(data: bytes) -> Any:  # noqa: ANN401
        try:
            return decode(data)
        except (error, UnicodeDecodeError) as failure:
            raise ValueError(f"it is no value of its schema: {failure}") from None

    return checked


# -- units


def _check_units(kind: Record, writer: SchemaInfo) -> None:
    """Raise ValueError if a time or a decimal was written in other units than the query reads."""
    written = dict(parse_definition(writer))
    for each in kind.fields:
        other = written.get(each.name)
        if other is not None and not isinstance(other, Refused):
            _compare(each.name, each.kind, other.kind)


def _compare(where: str, wanted: Kind, written: Kind) -> None:
    match wanted, written:
        case Leaf(), Leaf():
            if _has_units(wanted) and _has_units(written) and _units(wanted) != _units(written):
                raise ValueError(
                    f"its field {where} counts in other units than that of the query:"
                    f" {_units(written)} and {_units(wanted)}"
                )
        case Record(), Record():
            others = {each.name: each.kind for each in written.fields}
            for each in wanted.fields:
                if each.name in others:
                    _compare(f"{where}.{each.name}", each.kind, others[each.name])
        case Listed(), Listed():
            _compare(f"{where}[]", wanted.item.kind, written.item.kind)
        case Mapped(), Mapped():
            _compare(f"{where}[]", wanted.value.kind, written.value.kind)
        case _:
            pass


def _has_units(leaf: Leaf) -> bool:
    return leaf.kind in ("date", "timestamp", "timestamp_ntz", "decimal")


def _units(leaf: Leaf) -> str:
    if leaf.kind == "decimal":
        return f"decimal with {leaf.digits[1]} digits behind the point"
    return leaf.kind if leaf.kind == "date" else f"{leaf.kind} of {leaf.micros} µs"
