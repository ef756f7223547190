"""Records as JSON.  The broker gets an Avro definition of them, as from Pulsar's clients.

Readers find fields by their names, so the version of the writer does not matter.
"""

from typing import Any, TypeVar

import msgspec

from daybook.clients.python.schemas.fields import avro_definition
from daybook.clients.python.schemas.schema import Schema, SchemaInfo
from daybook.wire.proto import pulsar_pb2 as pb

T = TypeVar("T")


class JsonSchema(Schema[T]):
    """`cls` is a dataclass, or a class of msgspec.Struct."""

    def __init__(
        self, cls: type[T], *, name: str | None = None, namespace: str | None = None
    ) -> None:
        definition = avro_definition(cls, name=name, namespace=namespace, times=False)
        data = msgspec.json.encode(definition)
        self.info = SchemaInfo(pb.Schema.Json, data, definition["name"])
        self._class = cls
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(cls)

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._class):
            raise TypeError(
                f"a value of this schema must be a {self._class.__name__}, not"
                f" {type(value).__name__}"
            )
        data = self._encoder.encode(value)
        try:
            # The fields of an object may have any type.  No consumer could read a wrong one, and it
            # would stay in the topic.  That costs half a microsecond for a small record.
            self._decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise TypeError(
                f"the {self._class.__name__} does not fit its schema, so no consumer could read it:"
                f" {error}"
            ) from None
        return data

    def decode(self, data: bytes) -> T:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"the message is no {self._class.__name__}: {error}") from None


class AnyJson(Schema[Any]):
    """Objects without a class, for consumers of any schema."""

    def __init__(self, info: SchemaInfo) -> None:
        self.info = info

    def encode(self, value: Any) -> bytes:  # noqa: ANN401
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:  # noqa: ANN401
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"the message is not JSON: {error}") from None
