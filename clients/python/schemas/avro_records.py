"""Records as Avro, by fastavro (`pip install daybook-mq[avro]`).

Records of a class are encoded and decoded by functions that are made for the class
(`avro_codec.py`), five times as fast.  fastavro is asked about what these functions do not know.

A message has no field names, so a reader needs the definition with which it was written.  Consumers
ask the broker for the version of a message once, and Avro's rules map it to the reader's own.
"""

import json
from collections.abc import Callable
from datetime import date, datetime
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from daybook.clients.python.schemas.avro_codec import Codec, compiled
from daybook.clients.python.schemas.fields import avro_definition
from daybook.clients.python.schemas.schema import Schema, SchemaInfo
from daybook.wire.proto import pulsar_pb2 as pb

if TYPE_CHECKING:
    from types import ModuleType

T = TypeVar("T")
_KEPT = (bytes, datetime, date)


class AvroSchema(Schema[T]):
    """`cls` is a dataclass, a class of msgspec.Struct, or an Avro schema of dicts."""

    def __init__(
        self,
        cls: "type[T] | dict[str, Any]",
        *,
        name: str | None = None,
        namespace: str | None = None,
    ) -> None:
        self._fastavro = load_fastavro()
        definition: dict[str, Any]
        self._class: type[Any] | None = None
        self._codec: Codec[T] | None = None
        if isinstance(cls, dict):
            definition = cls
        else:
            definition = avro_definition(cls, name=name, namespace=namespace, times=True)
            self._class = cls
            self._codec = compiled(cls, self._encode, self._decode)
        self._definition = definition
        self._parsed: Any = self._fastavro.parse_schema(definition)
        data = json.dumps(definition, separators=(",", ":")).encode()
        self.info = SchemaInfo(pb.Schema.Avro, data, str(definition.get("name", "")))
        self._write = self._fastavro.schemaless_writer
        self._read = self._fastavro.schemaless_reader
        self._mismatch: type[Exception] = import_module("fastavro.read").SchemaResolutionError

    def encode(self, value: T) -> bytes:
        return self.encoder()(value)

    def encoder(self) -> Callable[[T], bytes]:
        return self._encode if self._codec is None else self._codec.encode

    def _encode(self, value: T) -> bytes:
        plain: Any = value
        if self._class is not None:
            if not isinstance(value, self._class):
                raise TypeError(
                    f"a value of this schema must be a {self._class.__name__}, not"
                    f" {type(value).__name__}"
                )
            plain = _plain(value)
        buffer = BytesIO()
        try:
            self._write(buffer, self._parsed, plain)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"the value is not of this schema: {error!r}") from None
        return buffer.getvalue()

    def decode(self, data: bytes) -> T:
        return self.decoder()(data)

    def decoder(self) -> Callable[[bytes], T]:
        return self._decode if self._codec is None else self._codec.decode

    def _decode(self, data: bytes) -> T:
        return self._value(self._fields(data, self._parsed, None))

    @property
    def needs_writer(self) -> bool:
        return True

    def decoder_of(self, writer: SchemaInfo) -> Callable[[bytes], T]:
        if writer.type != pb.Schema.Avro:
            raise ValueError(
                f"the message was written with a schema of type {writer.type_name}, not Avro"
            )
        if writer.data == self.info.data:
            return self.decoder()
        try:
            definition = json.loads(writer.data)
            if definition == self._definition:  # The same in another layout.
                return self.decoder()
            written: Any = self._fastavro.parse_schema(definition)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the schema of the message cannot be parsed: {error!r}") from None
        wanted = _renamed(self._parsed, written)
        return lambda data: self._value(self._fields(data, written, wanted))

    def _fields(self, data: bytes, written: Any, wanted: Any) -> Any:  # noqa: ANN401
        try:
            return self._read(BytesIO(data), written, wanted)
        except (ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError) as error:
            raise ValueError(f"the message is not of its schema: {error!r}") from None
        except self._mismatch as error:
            raise ValueError(f"this schema does not read the message: {error}") from None

    def _value(self, fields: Any) -> T:  # noqa: ANN401
        if self._class is None:
            return cast("T", fields)
        try:
            return cast("T", msgspec.convert(fields, self._class))
        except msgspec.ValidationError as error:
            raise ValueError(f"the message is no {self._class.__name__}: {error}") from None


def _renamed(wanted: Any, written: Any) -> Any:  # noqa: ANN401  parsed schemas
    """Return the schema of the reader, so that it reads a record of another name.

    The names of two records do not matter to Pulsar, and fastavro compares them.
    """
    if not isinstance(wanted, dict) or not isinstance(written, dict):
        return cast("Any", wanted)
    reader, writer = cast("dict[str, Any]", wanted), cast("dict[str, Any]", written)
    if reader.get("type") != "record" or writer.get("type") != "record":
        return reader
    return {**reader, "aliases": [*reader.get("aliases", ()), writer["name"]]}


def _plain(value: object) -> Any:  # noqa: ANN401
    """Return a record as a dict; times stay what they are, for fastavro."""
    return msgspec.to_builtins(value, builtin_types=_KEPT)


def load_fastavro() -> "ModuleType":
    try:
        import fastavro
    except ImportError:
        raise ImportError(
            "Avro needs fastavro: install it with `pip install daybook-mq[avro]`"
        ) from None
    return fastavro
