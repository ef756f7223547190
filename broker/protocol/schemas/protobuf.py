"""The descriptor of a Protobuf schema (PROTOBUF_NATIVE): which message the topic has.

The data are a JSON object with a serialized FileDescriptorSet, in base64, and the names of the root
message and of the file that defines it.  Pulsar compares the names of the root messages alone.
"""

from base64 import b64decode
from collections.abc import Iterable

import msgspec
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from daybook.broker.errors import InvalidSchemaError


class _Data(msgspec.Struct, rename="camel"):
    file_descriptor_set: str
    root_message_type_name: str
    root_file_descriptor_name: str


def root_message(data: bytes) -> str:
    """Return the full name of the root message.  Raise InvalidSchemaError."""
    try:
        found = msgspec.json.decode(data, type=_Data)
        content = b64decode(found.file_descriptor_set, validate=True)
        files = FileDescriptorSet.FromString(content)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, DecodeError) as error:
        raise InvalidSchemaError(f"the Protobuf descriptor is not valid: {error}") from None
    for file in files.file:
        if file.name == found.root_file_descriptor_name:
            prefix = f"{file.package}." if file.package else ""
            if found.root_message_type_name in _names(file.message_type, prefix):
                return found.root_message_type_name
    raise InvalidSchemaError(
        f"the Protobuf descriptor does not define {found.root_message_type_name[:80]!r} in"
        f" {found.root_file_descriptor_name[:80]!r}"
    )


def _names(messages: Iterable[DescriptorProto], prefix: str) -> Iterable[str]:
    for message in messages:
        name = f"{prefix}{message.name}"
        yield name
        yield from _names(message.nested_type, f"{name}.")
