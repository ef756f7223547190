"""A pair of two schemas in one message (Pulsar's KEY_VALUE with the encoding INLINE).

The message has both, each behind its length.  A pair whose key is the key of the message (the
encoding SEPARATED) is read and written by other clients only.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from daybook.clients.python.schemas.schema import Schema, SchemaInfo
from daybook.wire.fields import U32
from daybook.wire.proto import pulsar_pb2 as pb

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_REST_NAMES = {
    int(pb.Schema.Bool): "BOOLEAN",
    int(pb.Schema.ProtobufNative): "PROTOBUF_NATIVE",
    int(pb.Schema.LocalDate): "LOCAL_DATE",
    int(pb.Schema.LocalTime): "LOCAL_TIME",
    int(pb.Schema.LocalDateTime): "LOCAL_DATE_TIME",
}
_NONE = 0xFFFFFFFF  # the length of what is not there


class KeyValueSchema(Schema[tuple[KeyT, ValueT]]):
    def __init__(self, key: Schema[KeyT], value: Schema[ValueT]) -> None:
        self._key, self._value = key, value
        properties = {"kv.encoding.type": "INLINE"}
        for part, info in (("key", key.info), ("value", value.info)):
            properties[f"{part}.schema.name"] = info.name
            properties[f"{part}.schema.type"] = _rest_name(info)
            own = msgspec.json.encode(dict(info.properties))
            properties[f"{part}.schema.properties"] = own.decode()
        data = _join(key.info.data, value.info.data)
        self.info = SchemaInfo(pb.Schema.KeyValue, data, "KeyValue", properties)

    def encode(self, value: tuple[KeyT, ValueT]) -> bytes:
        if not isinstance(value, tuple) or len(value) != 2:  # pyright: ignore[reportUnnecessaryIsInstance, reportUnnecessaryComparison]
            raise TypeError(f"a value of this schema must be a pair, not {value!r}")
        return _join(self._key.encode(value[0]), self._value.encode(value[1]))

    def decode(self, data: bytes) -> tuple[KeyT, ValueT]:
        key, value = split(data)
        return self._key.decode(key), self._value.decode(value)

    @property
    def needs_writer(self) -> bool:
        return self._key.needs_writer or self._value.needs_writer

    def decoder_of(self, writer: SchemaInfo) -> Callable[[bytes], tuple[KeyT, ValueT]]:
        if writer.type != pb.Schema.KeyValue:
            raise ValueError(
                f"the message was written with a schema of type {writer.type_name}, not KeyValue"
            )
        key_info, value_info = parts_of(writer)
        decode_key = self._key.decoder_of(key_info)
        decode_value = self._value.decoder_of(value_info)

        def decode(data: bytes) -> tuple[KeyT, ValueT]:
            key, value = split(data)
            return decode_key(key), decode_value(value)

        return decode


def _rest_name(info: SchemaInfo) -> str:
    return _REST_NAMES.get(info.type, info.type_name.upper())


def parts_of(info: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo]:
    """Return the schemas of the key and the value.  Raise ValueError."""
    by_name: dict[str, int] = {name: number for number, name in _REST_NAMES.items()}
    by_name |= {name.upper(): number for name, number in pb.Schema.Type.items()}
    found: list[Any] = []
    for part, data in zip(("key", "value"), split(info.data), strict=True):
        name = info.properties.get(f"{part}.schema.type", "BYTES")
        found.append(SchemaInfo(by_name.get(name, pb.Schema.NoSchema), data))
    return found[0], found[1]


def _join(key: bytes, value: bytes) -> bytes:
    return U32.pack(len(key)) + key + U32.pack(len(value)) + value


def split(data: bytes) -> tuple[bytes, bytes]:
    """Return the two parts of a pair.  Raise ValueError."""
    parts: list[bytes] = []
    at = 0
    for _ in range(2):
        if len(data) < at + 4:
            raise ValueError("the message is no pair of key and value: it is too short")
        (size,) = U32.unpack_from(data, at)
        size = 0 if size == _NONE else size
        at += 4
        if len(data) < at + size:
            raise ValueError("the message is no pair of key and value: it is too short")
        parts.append(data[at : at + size])
        at += size
    return parts[0], parts[1]
