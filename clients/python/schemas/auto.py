"""Values of whatever schema the messages of a topic have (Pulsar's AUTO_CONSUME).

Records come as dicts, JSON as what it says, single values as themselves, pairs as tuples, and
everything else as bytes.
"""

import json
from collections.abc import Callable
from typing import Any

from daybook.clients.python.schemas.avro_records import AvroSchema
from daybook.clients.python.schemas.json_records import AnyJson
from daybook.clients.python.schemas.key_value import (
    Decoder,
    is_separated,
    pair_decoder,
    parts_of,
    plain_decoder,
)
from daybook.clients.python.schemas.primitive import BY_TYPE
from daybook.clients.python.schemas.schema import Schema, SchemaInfo
from daybook.wire.proto import pulsar_pb2 as pb


class AutoSchema(Schema[Any]):
    """For consumers and readers only."""

    def __init__(self) -> None:
        self.info = SchemaInfo(pb.Schema.AutoConsume)

    @property
    def needs_writer(self) -> bool:
        return True

    def encode(self, value: Any) -> bytes:  # noqa: ANN401
        raise TypeError("a producer needs a schema of its own: AUTO is for consumers and readers")

    def decode(self, data: bytes) -> Any:  # noqa: ANN401
        return data  # The message has no version, so it has no schema.

    def decoder_of(self, writer: SchemaInfo) -> Decoder[Any]:
        if writer.type == pb.Schema.KeyValue:
            key, value = (self._decoder_of_part(part) for part in parts_of(writer))
            return pair_decoder(key, value, separated=is_separated(writer))
        return self._decoder_of_part(writer)

    def _decoder_of_part(self, writer: SchemaInfo) -> Callable[[bytes], Any]:
        if writer.type == pb.Schema.Avro:
            return AvroSchema[Any](json.loads(writer.data)).decode
        if writer.type == pb.Schema.Json:
            return AnyJson(writer).decode
        if writer.type == pb.Schema.KeyValue:
            return plain_decoder(self.decoder_of(writer))
        known = BY_TYPE.get(writer.type)
        return self.decode if known is None else known.decode
