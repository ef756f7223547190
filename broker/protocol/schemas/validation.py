"""Which schemas may be stored, and what makes a schema the same as another.

`examine` parses a schema.  The result is what the later comparisons need, so that each schema is
parsed once.  Old Java clients described JSON messages by a JSON Schema document instead of an Avro
schema.  Such a document is accepted for the type JSON, as Pulsar does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from daybook.broker.errors import InvalidSchemaError
from daybook.broker.protocol.schemas import avro, protobuf
from daybook.broker.protocol.schemas.avro import AvroSchema
from daybook.broker.protocol.schemas.schema import (
    AVRO_BASED,
    JSON,
    KEY_VALUE,
    NAMES,
    PRIMITIVE,
    PROTOBUF_NATIVE,
    STRING,
    Schema,
    name_of,
    split,
)

PROPERTIES_MAX = 1_000
PROPERTIES_BYTES_MAX = 64 << 10
_STRING_BYTES_MAX = 1 << 10  # some clients put a name there

_DOCUMENT_TYPES = frozenset(
    {"object", "array", "string", "number", "integer", "boolean", "null", "any"}
)


@dataclass(frozen=True, slots=True)
class Examined:
    """A schema that was parsed.

    `identity` is equal for two schemas that are the same.  `avro` is None for a type that is not
    based on Avro, and for an old JSON document, of which `document` is the id.
    """

    schema: Schema
    identity: bytes
    avro: AvroSchema | None = None
    document: str | None = None
    root: str = ""  # the root message of a Protobuf descriptor
    parts: tuple["Examined | None", "Examined | None"] | None = None  # None: bytes


def examine(schema: Schema) -> Examined:
    """Parse a schema.  Raise InvalidSchemaError if it cannot be stored."""
    _check_properties(schema.properties)
    return _examine(schema)


def _examine(schema: Schema) -> Examined:
    number = schema.type
    if number in AVRO_BASED:
        return _examine_avro(schema)
    plain = _identity(schema, schema.data)
    if number == KEY_VALUE:
        key, value = split(schema)
        parts = (
            None if key.type is None else _examine(key.schema),
            None if value.type is None else _examine(value.schema),
        )
        return Examined(schema, plain, parts=parts)
    if number == PROTOBUF_NATIVE:
        return Examined(schema, plain, root=protobuf.root_message(schema.data))
    if number not in PRIMITIVE:
        raise InvalidSchemaError(
            f"a schema of {name_of(number)} cannot be stored; the types are"
            f" {', '.join(NAMES[each] for each in NAMES if each)}"
        )
    size_max = _STRING_BYTES_MAX if number == STRING else 0
    if len(schema.data) > size_max:
        raise InvalidSchemaError(
            f"a schema of type {schema.type_name} has no data, and this one has"
            f" {len(schema.data)} bytes"
        )
    return Examined(schema, plain)


def _examine_avro(schema: Schema) -> Examined:
    try:
        parsed = avro.parse(schema.data)
    except InvalidSchemaError:
        document = _document_id(schema.data) if schema.type == JSON else None
        if document is None:
            raise
        return Examined(schema, _identity(schema, schema.data), document=document)
    return Examined(schema, _identity(schema, parsed.fingerprint), avro=parsed)


def _document_id(data: bytes) -> str | None:
    """Return the id of a JSON Schema document, "" if it has none; None if it is none."""
    try:
        content = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if content.get("type") not in _DOCUMENT_TYPES:
        return None
    found = content.get("id", "")
    return found if isinstance(found, str) else None


def _identity(schema: Schema, content: bytes) -> bytes:
    return sha256(schema.type.to_bytes(4, "big") + content).digest()


def _check_properties(properties: Mapping[str, str]) -> None:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
    if len(properties) > PROPERTIES_MAX or size > PROPERTIES_BYTES_MAX:
        raise InvalidSchemaError(
            f"the schema has {len(properties)} properties of {size} bytes; at most"
            f" {PROPERTIES_MAX} of {PROPERTIES_BYTES_MAX} bytes are stored"
        )
