"""A pair of two schemas in one message (Pulsar's KEY_VALUE).

INLINE       the data of the message has both, each behind its length
SEPARATED    the key of the pair is the key of the message, so it chooses the partition, and
             compaction keeps the last value of each key
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from daybook.clients.python.schemas.schema import PairDecoder, Schema, SchemaInfo
from daybook.wire.fields import U32
from daybook.wire.proto import pulsar_pb2 as pb

T = TypeVar("T")
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

Decoder: TypeAlias = Callable[[bytes], T] | PairDecoder[T]

_ENCODING, _INLINE, _SEPARATED = "kv.encoding.type", "INLINE", "SEPARATED"
_REST_NAMES = {
    int(pb.Schema.Bool): "BOOLEAN",
    int(pb.Schema.ProtobufNative): "PROTOBUF_NATIVE",
    int(pb.Schema.LocalDate): "LOCAL_DATE",
    int(pb.Schema.LocalTime): "LOCAL_TIME",
    int(pb.Schema.LocalDateTime): "LOCAL_DATE_TIME",
}
_NONE = 0xFFFFFFFF  # the length of what is not there


class KeyValueSchema(Schema[tuple[KeyT, ValueT]]):
    """`separated`: the key is the key of the message, and the value is its data."""

    def __init__(
        self, key: Schema[KeyT], value: Schema[ValueT], *, separated: bool = False
    ) -> None:
        self._key, self._value = key, value
        self._separated = separated
        properties = {_ENCODING: _SEPARATED if separated else _INLINE}
        for part, info in (("key", key.info), ("value", value.info)):
            properties[f"{part}.schema.name"] = info.name
            properties[f"{part}.schema.type"] = _rest_name(info)
            own = msgspec.json.encode(dict(info.properties))
            properties[f"{part}.schema.properties"] = own.decode()
        data = _join(key.info.data, value.info.data)
        self.info = SchemaInfo(pb.Schema.KeyValue, data, "KeyValue", properties)

    @property
    def separates_key(self) -> bool:
        return self._separated

    def encode(self, value: tuple[KeyT, ValueT]) -> bytes:
        _check_pair(value)
        return _join(self._key.encode(value[0]), self._value.encode(value[1]))

    def encode_pair(self, value: tuple[KeyT, ValueT]) -> tuple[bytes | None, bytes | None]:
        _check_pair(value)
        key, data = cast("tuple[KeyT | None, ValueT | None]", value)
        return (
            None if key is None else self._key.encode(key),
            None if data is None else self._value.encode(data),
        )

    def decode(self, data: bytes) -> tuple[KeyT, ValueT]:
        key, value = split(data)
        return self._key.decode(key), self._value.decode(value)

    def decoder(self) -> "Decoder[tuple[KeyT, ValueT]]":
        return pair_decoder(self._key.decode, self._value.decode, separated=self._separated)

    @property
    def needs_writer(self) -> bool:
        return self._key.needs_writer or self._value.needs_writer

    def decoder_of(self, writer: SchemaInfo) -> "Decoder[tuple[KeyT, ValueT]]":
        if writer.type != pb.Schema.KeyValue:
            raise ValueError(
                f"the message was written with a schema of type {writer.type_name}, not KeyValue"
            )
        key_info, value_info = parts_of(writer)
        return pair_decoder(
            plain_decoder(self._key.decoder_of(key_info)),
            plain_decoder(self._value.decoder_of(value_info)),
            separated=is_separated(writer),
        )


def pair_decoder(
    decode_key: Callable[[bytes], KeyT],
    decode_value: Callable[[bytes], ValueT],
    *,
    separated: bool,
) -> "Decoder[tuple[KeyT, ValueT]]":
    """Return the decoder of pairs, from those of their parts."""

    def decode(data: bytes) -> tuple[KeyT, ValueT]:
        key, value = split(data)
        return decode_key(key), decode_value(value)

    def decode_pair(key: bytes | None, data: bytes | None) -> tuple[KeyT, ValueT]:
        return cast(
            "tuple[KeyT, ValueT]",
            (
                None if key is None else decode_key(key),
                None if data is None else decode_value(data),
            ),
        )

    return PairDecoder(decode_pair) if separated else decode


def is_separated(info: SchemaInfo) -> bool:
    """Return True if the key of such a pair is the key of its message."""
    return info.properties.get(_ENCODING) == _SEPARATED


def plain_decoder(decode: "Decoder[T]") -> Callable[[bytes], T]:
    if isinstance(decode, PairDecoder):
        raise ValueError("a pair inside of a pair cannot have the key of the message")
    return decode


def _check_pair(value: object) -> None:
    if not isinstance(value, tuple) or len(cast("tuple[object, ...]", value)) != 2:
        raise TypeError(f"a value of this schema must be a pair, not {value!r}")


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
