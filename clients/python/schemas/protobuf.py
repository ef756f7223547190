"""Messages of Protobuf.  The broker gets their descriptor (Pulsar's PROTOBUF_NATIVE)."""

from base64 import b64encode
from typing import Any, TypeVar

import msgspec
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError, EncodeError, Message

from daybook.clients.python.schemas.schema import Schema, SchemaInfo
from daybook.wire.proto import pulsar_pb2 as pb

MessageT = TypeVar("MessageT", bound=Message)


class ProtobufSchema(Schema[MessageT]):
    """`cls` is a generated class.  Readers find fields by their numbers."""

    def __init__(self, cls: type[MessageT]) -> None:
        descriptor = cls.DESCRIPTOR
        files = FileDescriptorSet()
        _add(descriptor.file, files, set())
        data = msgspec.json.encode(
            {
                "fileDescriptorSet": b64encode(files.SerializeToString()).decode(),
                "rootMessageTypeName": descriptor.full_name,
                "rootFileDescriptorName": descriptor.file.name,
            }
        )
        self.info = SchemaInfo(pb.Schema.ProtobufNative, data, descriptor.name)
        self._class = cls

    def encode(self, value: MessageT) -> bytes:
        if not isinstance(value, self._class):
            raise TypeError(
                f"a value of this schema must be a {self._class.__name__}, not"
                f" {type(value).__name__}"
            )
        try:
            return value.SerializeToString()
        except EncodeError as error:
            raise ValueError(f"the value cannot be encoded: {error}") from None

    def decode(self, data: bytes) -> MessageT:
        try:
            return self._class.FromString(data)
        except DecodeError as error:
            raise ValueError(f"the message is no {self._class.__name__}: {error}") from None


def _add(file: Any, files: FileDescriptorSet, added: set[str]) -> None:  # noqa: ANN401
    """Add a file behind the files that it imports."""
    if file.name in added:
        return
    added.add(file.name)
    for needed in file.dependencies:
        _add(needed, files, added)
    file.CopyToProto(files.file.add())
