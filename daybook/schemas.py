"""Schemas: how the values of an application become messages, and what the broker checks.

    import daybook
    from daybook import schemas

    @dataclass
    class Order:
        customer: str
        amount: float
        note: str | None = None

    producer = client.create_producer("orders", schema=schemas.json(Order))
    producer.send(Order("anna", 12.5))
    consumer = client.subscribe("orders", "billing", schema=schemas.json(Order))
    consumer.receive().value.customer

`json`, `avro`, `protobuf` and `key_value` make schemas; STRING, INT64, ... are schemas.
"""

from typing import Any, TypeVar

from google.protobuf.message import Message

from daybook.clients.python.schemas.auto import AutoSchema
from daybook.clients.python.schemas.avro_records import AvroSchema
from daybook.clients.python.schemas.fields import Float32, Int32
from daybook.clients.python.schemas.json_records import JsonSchema
from daybook.clients.python.schemas.key_value import KeyValueSchema
from daybook.clients.python.schemas.primitive import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INSTANT,
    INT8,
    INT16,
    INT32,
    INT64,
    LOCAL_DATE,
    LOCAL_DATE_TIME,
    LOCAL_TIME,
    STRING,
    TIMESTAMP,
)
from daybook.clients.python.schemas.protobuf import ProtobufSchema
from daybook.clients.python.schemas.schema import Schema, SchemaInfo, SchemaVersion

__all__ = [
    "AUTO",
    "BOOLEAN",
    "DOUBLE",
    "FLOAT",
    "INSTANT",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "LOCAL_DATE",
    "LOCAL_DATE_TIME",
    "LOCAL_TIME",
    "STRING",
    "TIMESTAMP",
    "Float32",
    "Int32",
    "Schema",
    "SchemaInfo",
    "SchemaVersion",
    "avro",
    "avro_dict",
    "json",
    "key_value",
    "protobuf",
]

T = TypeVar("T")
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
MessageT = TypeVar("MessageT", bound=Message)

AUTO: Schema[Any] = AutoSchema()
"""Values of whatever schema the messages have, for consumers and readers."""


def json(cls: type[T], *, name: str | None = None, namespace: str | None = None) -> Schema[T]:
    """Return the schema of records as JSON; `cls` is a dataclass or a class of msgspec.Struct.

    `name` and `namespace` are those of the record, for classes that are called otherwise elsewhere.
    """
    return JsonSchema(cls, name=name, namespace=namespace)


def avro(cls: type[T], *, name: str | None = None, namespace: str | None = None) -> Schema[T]:
    """Return the schema of records as Avro, as `json` does.  Raise ImportError without fastavro."""
    return AvroSchema(cls, name=name, namespace=namespace)


def avro_dict(definition: dict[str, Any]) -> Schema[dict[str, Any]]:
    """Return the schema of dicts that an Avro schema describes."""
    return AvroSchema[dict[str, Any]](definition)


def protobuf(cls: type[MessageT]) -> Schema[MessageT]:
    """Return the schema of a generated class of Protobuf."""
    return ProtobufSchema(cls)


def key_value(
    key: Schema[KeyT], value: Schema[ValueT], *, separated: bool = False
) -> Schema[tuple[KeyT, ValueT]]:
    """Return the schema of pairs.

    `separated`: the key of a pair is the key of its message, and the value is its data.  Otherwise
    both are in the data.  A pair `(key, None)` is then a tombstone.
    """
    return KeyValueSchema(key, value, separated=separated)
