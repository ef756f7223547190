"""A schema as a value, and the numbers and names of its types.

The types have the numbers of `pb.Schema.Type` here.  Pulsar's stored form has other numbers
(`broker.schemas.records`), and the REST has names.

The data of a key-value schema are those of its two parts: the length of the key's data (u32), the
key's data, the length of the value's data, the value's data.  The types of the parts, and their
properties as JSON, are properties of the whole.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from daybook.broker.errors import InvalidSchemaError
from daybook.wire.fields import U32
from daybook.wire.proto import pulsar_pb2 as pb

NO_SCHEMA: Final = int(pb.Schema.NoSchema)
STRING: Final = int(pb.Schema.String)
JSON: Final = int(pb.Schema.Json)
PROTOBUF: Final = int(pb.Schema.Protobuf)
AVRO: Final = int(pb.Schema.Avro)
KEY_VALUE: Final = int(pb.Schema.KeyValue)
PROTOBUF_NATIVE: Final = int(pb.Schema.ProtobufNative)
AUTO_CONSUME: Final = int(pb.Schema.AutoConsume)

NAMES: Final[Mapping[int, str]] = {
    NO_SCHEMA: "NONE",
    STRING: "STRING",
    JSON: "JSON",
    PROTOBUF: "PROTOBUF",
    AVRO: "AVRO",
    int(pb.Schema.Bool): "BOOLEAN",
    int(pb.Schema.Int8): "INT8",
    int(pb.Schema.Int16): "INT16",
    int(pb.Schema.Int32): "INT32",
    int(pb.Schema.Int64): "INT64",
    int(pb.Schema.Float): "FLOAT",
    int(pb.Schema.Double): "DOUBLE",
    int(pb.Schema.Date): "DATE",
    int(pb.Schema.Time): "TIME",
    int(pb.Schema.Timestamp): "TIMESTAMP",
    KEY_VALUE: "KEY_VALUE",
    int(pb.Schema.Instant): "INSTANT",
    int(pb.Schema.LocalDate): "LOCAL_DATE",
    int(pb.Schema.LocalTime): "LOCAL_TIME",
    int(pb.Schema.LocalDateTime): "LOCAL_DATE_TIME",
    PROTOBUF_NATIVE: "PROTOBUF_NATIVE",
}
TYPES: Final[Mapping[str, int]] = {name: number for number, name in NAMES.items()}
AVRO_BASED: Final = frozenset({JSON, PROTOBUF, AVRO})
STRUCTURED: Final = AVRO_BASED | {PROTOBUF_NATIVE, KEY_VALUE}
PRIMITIVE: Final = frozenset(NAMES) - STRUCTURED - {NO_SCHEMA}
UNTYPED: Final = frozenset({NO_SCHEMA, AUTO_CONSUME})  # they say nothing about the messages

_PARTS = ("key", "value")
# A part without a type is bytes, which have no number on the wire.
_BYTES = "BYTES"


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema.  Two that differ in their properties alone are the same schema."""

    type: int
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def type_name(self) -> str:
        return name_of(self.type)


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A schema that a topic has, or had.  A deletion is a version of its own, without a schema."""

    version: int
    schema: Schema
    timestamp_ms: int
    deleted: bool = False


def name_of(number: int) -> str:
    return NAMES.get(number, f"type {number}")


def version_bytes(version: int) -> bytes:
    """Return the version as clients know it: eight bytes."""
    return version.to_bytes(8, "big")


def version_of(data: bytes) -> int:
    """Return the version that a client names.  Raise InvalidSchemaError."""
    # Clients before Pulsar 2.4 sent 64 bytes, of which the first eight count.
    if len(data) not in (8, 64):
        raise InvalidSchemaError(
            f"a schema version has 8 bytes, not {len(data)}: leave it away for the latest version"
        )
    return int.from_bytes(data[:8], "big", signed=True)


# -- on the wire


def from_wire(schema: pb.Schema) -> Schema:
    found: Iterable[pb.KeyValue] = schema.properties
    pairs = {pair.key: pair.value for pair in found}
    return Schema(int(schema.type), bytes(schema.schema_data), pairs)


def to_wire(name: str, schema: Schema) -> pb.Schema:
    found = pb.Schema(name=name, schema_data=schema.data)
    found.type = schema.type  # type: ignore[assignment]
    for key, value in schema.properties.items():
        found.properties.add(key=key, value=value)
    return found


# -- key and value


@dataclass(frozen=True, slots=True)
class Part:
    """The key or the value of a key-value schema.  The type is None for bytes."""

    type: int | None
    schema: Schema


def split(schema: Schema) -> tuple[Part, Part]:
    """Return the key and the value of a key-value schema.  Raise InvalidSchemaError."""
    data, parts, at = schema.data, list[bytes](), 0
    for part in _PARTS:
        if len(data) < at + 4:
            raise InvalidSchemaError(f"the key-value schema ends before the length of its {part}")
        (size,) = U32.unpack_from(data, at)
        at += 4
        size = 0 if size == 0xFFFFFFFF else size  # -1: there are none
        if len(data) < at + size:
            raise InvalidSchemaError(
                f"the key-value schema announces {size} bytes of its {part}, and has"
                f" {len(data) - at}"
            )
        parts.append(data[at : at + size])
        at += size
    if at != len(data):
        raise InvalidSchemaError(f"the key-value schema has {len(data) - at} bytes too many")
    key, value = (_part(schema, part, found) for part, found in zip(_PARTS, parts, strict=True))
    return key, value


def join(key: bytes, value: bytes) -> bytes:
    return U32.pack(len(key)) + key + U32.pack(len(value)) + value


def _part(schema: Schema, part: str, data: bytes) -> Part:
    name = schema.properties.get(f"{part}.schema.type", _BYTES)
    number = None if name == _BYTES else TYPES.get(name)
    if number == KEY_VALUE or (number is None and name != _BYTES):
        raise InvalidSchemaError(f"the {part} of a key-value schema cannot have type {name[:32]!r}")
    return Part(number, Schema(number or NO_SCHEMA, data, _properties(schema, part)))


def _properties(schema: Schema, part: str) -> dict[str, str]:
    text = schema.properties.get(f"{part}.schema.properties", "")
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidSchemaError(
            f"the property {part}.schema.properties is not valid: {error}"
        ) from None


# -- in REST


def rest_text(schema: Schema) -> str:
    """Return the data as the REST shows them: the parts of a key-value schema as JSON."""
    if schema.type != KEY_VALUE:
        return schema.data.decode(errors="replace")
    parts = split(schema)
    shown = {name: _rest_part(part) for name, part in zip(_PARTS, parts, strict=True)}
    return msgspec.json.encode(shown).decode()


def _rest_part(part: Part) -> object:
    if part.type not in STRUCTURED:
        return ""
    try:
        return msgspec.json.decode(part.schema.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return part.schema.data.decode(errors="replace")


def from_rest(type_name: str, text: str, properties: Mapping[str, str]) -> Schema:
    """Return the schema that a REST call describes.  Raise InvalidSchemaError."""
    number = TYPES.get(type_name.upper())
    if number is None or number == NO_SCHEMA:
        raise InvalidSchemaError(
            f"{type_name[:32]!r} is not the type of a schema; the types are"
            f" {', '.join(name for name in TYPES if name != NAMES[NO_SCHEMA])}"
        )
    if number != KEY_VALUE:
        return Schema(number, text.encode(), dict(properties))
    try:
        parts = msgspec.json.decode(text, type=dict[str, Any])
        key, value = (_part_data(parts[name]) for name in _PARTS)
    except (msgspec.DecodeError, KeyError, RecursionError):
        raise InvalidSchemaError(
            'a key-value schema is written as {"key": ..., "value": ...}; the types of both are'
            " properties (key.schema.type, value.schema.type)"
        ) from None
    return Schema(number, join(key, value), dict(properties))


def _part_data(part: object) -> bytes:
    return b"" if part in ("", None) else msgspec.json.encode(part)
