"""Decode messages of a version of a schema for the columns of a query.

Avro's rules map the fields of a message to those of the query: by fastavro for Avro, by the names
of fields for JSON.  Times and decimals stay numbers and bytes here (`typed_values` makes columns of
them).  So the two definitions must not count a time in different units (`typed_units`).

A message must not end its reader or keep it busy either: a version of Avro whose messages have no
limit is refused, see `Names.check_bounded`.
"""

# pyright: basic
# (the libraries underneath have no types)

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from struct import Struct, error
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from daybook.clients.python.schemas.avro_records import load_fastavro
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.spark.typed_names import (
    PRIMITIVES,
    Names,
    aliases_of,
    full_name,
    load_definition,
    skips_blindly,
)
from daybook.clients.spark.typed_schema import (
    RECORDS,
    Field,
    Kind,
    Leaf,
    Listed,
    Mapped,
    Record,
    kind_of,
    parse_definition,
)
from daybook.clients.spark.typed_units import check_units
from daybook.clients.spark.typed_values import Getters, by_name, by_number
from daybook.wire.proto import pulsar_pb2 as pb

Decode: TypeAlias = Callable[[bytes], Any]


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
        written = Names(load_definition(writer.data))
        if writer.type == pb.Schema.Json:
            check_units(self.kind, written, aliases=False)
            return _json(self.kind)
        written.check_bounded()
        check_units(self.kind, written, aliases=True)
        return _avro(self.info, self.kind, written)


def part_of(info: SchemaInfo, names: frozenset[str] | None = None) -> Part:
    """Return how to read a schema; `names` are the fields of a record that are needed."""
    if info.type not in RECORDS or names is None:
        return Part(info, kind_of(info))
    fields = (each for name, each in parse_definition(info) if name in names)
    return Part(info, Record(tuple(each for each in fields if isinstance(each, Field))))


# -- Avro


def _avro(reader: SchemaInfo, kind: Record, writer: Names) -> Decode:
    fastavro = load_fastavro()
    try:
        written = _Plain(writer).record(None)
        names = frozenset(each.name for each in kind.fields)
        wanted = _Plain(Names(load_definition(reader.data))).record(names)
        # The names of two records do not matter to Pulsar, and fastavro compares them.
        wanted["aliases"] = [written["name"], written["name"].rpartition(".")[2]]
        parsed: Any = fastavro.parse_schema(written)
        parsed_wanted: Any = fastavro.parse_schema(wanted)
        is_blind = skips_blindly(writer)
    except Exception as failure:
        # fastavro raises errors of many classes for definitions that are not right.
        raise ValueError(f"its schema cannot be parsed: {failure!r}") from None
    read = fastavro.schemaless_reader

    def decode(data: bytes) -> Any:  # noqa: ANN401
        # The byte at the end is skipped too if a field that is skipped is cut off.
        buffer = BytesIO(data + b"\0")
        try:
            if is_blind:  # Read all of it first, which notices where it ends.
                read(BytesIO(data), parsed)
            found = read(buffer, parsed, parsed_wanted)
        except Exception as failure:
            # fastavro raises errors of many classes for bytes that are no message.
            raise ValueError(f"it is no Avro of its schema: {failure!r}") from None
        if buffer.tell() > len(data):
            raise ValueError("it is cut off")
        if buffer.tell() < len(data):
            raise ValueError("it is longer than a message of its schema")
        return found

    return decode


class _Plain:
    """Makes a definition without logical types, in which each type has its full name."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._defined: set[str] = set()

    def record(self, names: frozenset[str] | None) -> dict[str, Any]:
        """Return the definition of the record, with these fields only."""
        return self._record(self._names.definition, "", names)

    def _record(
        self, definition: dict[str, Any], space: str, names: frozenset[str] | None = None
    ) -> dict[str, Any]:
        name = full_name(definition, space)
        self._defined.add(name)
        space = name.rpartition(".")[0]
        aliases = aliases_of(definition)  # those of all fields: one that is left out has its name
        fields = [
            {**each, "type": self._type(each["type"], space), "aliases": [*aliases[each["name"]]]}
            for each in definition["fields"]
            if names is None or each["name"] in names
        ]
        return {"type": "record", "name": name, "fields": fields}

    def _type(self, found: Any, space: str) -> Any:  # noqa: ANN401
        if isinstance(found, list):
            return [self._type(each, space) for each in found]
        if isinstance(found, str):
            return found if found in PRIMITIVES else self._reference(found, space)
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
                name = full_name(found, space)
                self._defined.add(name)
                kept = ("type", "symbols", "default", "size")
                return {"name": name, **{each: found[each] for each in kept if each in found}}
            case _:
                return self._type(kind, space)

    def _reference(self, name: str, space: str) -> Any:  # noqa: ANN401
        found = self._names.find(name, space)
        if found is None:
            raise ValueError(f"the type {name!r} is not known")
        definition, outer = found
        full = full_name(definition, outer)
        return full if full in self._defined else self._type(definition, outer)


# -- JSON

_BOUNDED = {
    "int": Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    "bigint": Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
}
_NUMERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_INT_END = 10**99
_NUMERAL_CHARS_MAX = 100  # Arrow and Decimal do much work, or fail, for longer ones


class _Numeral(Decimal):
    """A decimal in JSON: a number, or a text that is one."""

    __slots__ = ()


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
    "decimal": _Numeral,
}


def _json(kind: Record) -> Decode:
    # Numbers with a fraction stay texts (`str`), so that a decimal loses no digit.
    decode = msgspec.json.Decoder(_hint(kind), dec_hook=_numeral, float_hook=str).decode

    def checked(data: bytes) -> Any:  # noqa: ANN401
        try:
            return decode(data)
        except (ValueError, RecursionError) as failure:
            raise ValueError(f"it is no JSON of its schema: {failure}") from None

    return checked


def _numeral(_: type, found: Any) -> _Numeral:  # noqa: ANN401
    """Return a decimal of JSON.  Raise ValueError."""
    text = found
    if isinstance(found, int) and not isinstance(found, bool):
        text = str(found) if abs(found) < _INT_END else None
    if not isinstance(text, str):
        raise ValueError("it is no decimal")
    if len(text) > _NUMERAL_CHARS_MAX or not _NUMERAL.fullmatch(text):
        raise ValueError(f"{text!r:.40} is no decimal, or has too many digits")
    return _Numeral(text)


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
    """Return the default of a definition as `decode` would; bytes are texts there.

    Raise ValueError if the type does not hold it.
    """
    if isinstance(kind, Leaf):
        if kind.kind not in ("float", "double"):
            return value
        try:
            return float(value)
        except (TypeError, OverflowError):
            raise ValueError(f"the default {value!r:.40} is no {kind.kind}") from None
    return msgspec.convert(value, _hint(kind), dec_hook=_numeral)


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
