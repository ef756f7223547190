"""The base of all schemas.  `Schema[T]` turns values of type T into bytes, and back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from daybook.wire.proto import pulsar_pb2 as pb

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """The part of a schema that a broker stores.  The type is a number of `pb.Schema.Type`."""

    type: int
    data: bytes = b""
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def type_name(self) -> str:
        return pb.Schema.Type.Name(self.type)

    def to_wire(self) -> pb.Schema:
        found = pb.Schema(name=self.name, schema_data=self.data)
        found.type = self.type  # type: ignore[assignment]
        for key, value in self.properties.items():
            found.properties.add(key=key, value=value)
        return found

    @classmethod
    def from_wire(cls, found: pb.Schema) -> "SchemaInfo":
        pairs: Iterable[pb.KeyValue] = found.properties
        properties = {pair.key: pair.value for pair in pairs}
        return cls(int(found.type), found.schema_data, found.name, properties)


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of the schema of a topic, as its broker stores it.

    `version` is what messages name in `message.entry.schema_version`.
    """

    version: bytes
    info: SchemaInfo

    @property
    def number(self) -> int:
        """The version as a number, like `message.schema_version`."""
        return int.from_bytes(self.version, "big")


@dataclass(frozen=True, slots=True)
class PairDecoder(Generic[T]):
    """Decodes messages whose key is a part of their value."""

    decode_pair: Callable[[bytes | None, bytes | None], T]


class Schema(ABC, Generic[T]):
    """How values of one type become the bytes of messages.

    Instances do not change, and may be shared by producers and consumers of several topics.
    """

    info: SchemaInfo
    """The part that the broker is told."""

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """Return the bytes of a message.  Raise TypeError or ValueError for another value."""

    @abstractmethod
    def decode(self, data: bytes) -> T:
        """Return the value of bytes that were written with this schema.  Raise ValueError."""

    def decoder_of(self, writer: SchemaInfo) -> "Callable[[bytes], T] | PairDecoder[T]":
        """Return a function that decodes what was written with another version of the schema.

        Raise ValueError if this schema cannot read it.
        """
        del writer
        return self.decode

    def encoder(self) -> Callable[[T], bytes]:
        """Return the function that encodes messages of this schema."""
        return self.encode

    def decoder(self) -> "Callable[[bytes], T] | PairDecoder[T]":
        """Return the function that decodes messages of this schema."""
        return self.decode

    @property
    def separates_key(self) -> bool:
        """True if a part of each value is the key of its message, see `encode_pair`."""
        return False

    def encode_pair(self, value: T) -> tuple[bytes | None, bytes | None]:
        """Return the key and the data of a message, for a schema that separates the key."""
        raise NotImplementedError

    @property
    def needs_writer(self) -> bool:
        """True if `decoder_of` depends on the version: consumers then ask the broker for it."""
        return False

    def __repr__(self) -> str:
        name = f" {self.info.name}" if self.info.name else ""
        return f"<Schema {self.info.type_name}{name}>"


def check_schema(schema: object) -> None:
    """Raise TypeError unless it is a schema, or None."""
    if schema is None or isinstance(schema, Schema):
        return
    if isinstance(schema, type):
        name = schema.__name__
        raise TypeError(
            f"schema must be a schema, not the class {name}: write schemas.json({name}) or"
            f" schemas.avro({name}) for records, and schemas.STRING, INT64, ... for simple values"
        )
    raise TypeError(
        "schema must be one of daybook.schemas, such as schemas.STRING or schemas.json(Class), not"
        f" {schema!r:.80}"
    )
