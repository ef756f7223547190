"""The record of a topic's schemas, and the entry of one version, in Pulsar's formats.

    /schemas/<tenant>/<namespace>/<topic>    SchemaLocator: all versions, each with its ledger
    entry 0 of the ledger of a version       SchemaEntry: a SchemaInfo, and the versions before it

A version that has no hash is a deletion: the versions before it count no more.  Unknown fields of a
record are kept: a message is changed in place.  A ledger names its topic in its metadata, and the
tree of logs for which it was created (`managed_ledger.tree`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from google.protobuf.message import DecodeError

from daybook.broker.errors import StorageFailedError
from daybook.broker.protocol.schemas.schema import NO_SCHEMA, Schema, SchemaVersion
from daybook.broker.schemas.records_pb2 import IndexEntry, SchemaEntry, SchemaInfo, SchemaLocator
from daybook.managed_ledger.records import TREE
from daybook.wire.errors import WireError
from daybook.wire.protobuf import check_readable
from daybook.wire.topics import TopicName

ROOT: Final = "/schemas"
SCHEMA_ID: Final = "pulsar/schemaId"
_OURS: Final = {"application": b"pulsar", "component": b"schema"}
_NUMBERED: Final = 1  # Pulsar stores the number of a type plus one


def schema_id(topic: TopicName) -> str:
    """Return the id of a topic's schemas; all its partitions share it."""
    base = topic.base
    return f"{base.namespace}/{base.encoded}"


def locator_path(topic: TopicName) -> str:
    return f"{ROOT}/{schema_id(topic)}"


def custom_metadata(id_: str, tree: str | None) -> dict[str, bytes]:
    """Return the custom metadata of the ledger of a schema."""
    custom = {**_OURS, SCHEMA_ID: id_.encode()}
    if tree is not None:
        custom[TREE] = tree.encode()
    return custom


def schema_of(custom: Mapping[str, bytes]) -> str | None:
    """Return the id of the schemas to which a ledger belongs; None if it is no schema's."""
    if any(custom.get(key) != value for key, value in _OURS.items()) or SCHEMA_ID not in custom:
        return None
    try:
        return custom[SCHEMA_ID].decode()
    except UnicodeDecodeError:
        return None


def other_owner(custom: Mapping[str, bytes], id_: str) -> str | None:
    """Return the other owner that the metadata of a ledger name; None if they name none.

    A ledger without names passes, since old versions of Pulsar wrote none.
    """
    for key, value in _OURS.items():
        if custom.get(key, value) != value:
            return f"the {key} {custom[key].decode(errors='backslashreplace')}"
    found = custom.get(SCHEMA_ID, id_.encode())
    return None if found == id_.encode() else found.decode(errors="backslashreplace")


# -- the record of a topic


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version, and where it is stored.  A deletion has no hash."""

    version: int
    ledger_id: int
    entry_id: int
    hash: bytes

    @property
    def deleted(self) -> bool:
        return not self.hash


class Locator:
    """The versions of one topic, as the metadata store has them."""

    def __init__(self, message: SchemaLocator) -> None:
        self.all = [
            StoredVersion(each.version, each.position.ledgerId, each.position.entryId, each.hash)
            for each in message.index
        ]
        self._message = message

    @property
    def live(self) -> list[StoredVersion]:
        """The versions since the last deletion, ascending."""
        last = max((i for i, each in enumerate(self.all) if each.deleted), default=-1)
        return self.all[last + 1 :]

    @property
    def last(self) -> StoredVersion:
        info = self._message.info
        return StoredVersion(info.version, info.position.ledgerId, info.position.entryId, info.hash)

    @property
    def index(self) -> list[IndexEntry]:
        return list(self._message.index)

    def with_version(self, added: IndexEntry) -> bytes:
        """Return the record with one more version, which is the last one."""
        changed = SchemaLocator()
        changed.CopyFrom(self._message)
        changed.index.append(added)
        changed.info.CopyFrom(added)
        return changed.SerializeToString(deterministic=True)


def decode_locator(value: bytes, what: str) -> Locator:
    """Parse the record of a topic.  Raise StorageFailedError."""
    message = SchemaLocator()
    try:
        message.ParseFromString(value)
        check_readable(message)
    except (DecodeError, WireError) as error:
        raise StorageFailedError(
            f"the record of the schemas of {what} does not parse: {error}"
        ) from error
    return Locator(message)


def first_locator(added: IndexEntry) -> bytes:
    """Return the record of a topic with one version."""
    return SchemaLocator(info=added, index=[added]).SerializeToString(deterministic=True)


def index_entry(version: int, ledger_id: int, entry_id: int, hash_: bytes) -> IndexEntry:
    entry = IndexEntry(version=version, hash=hash_)
    entry.position.ledgerId, entry.position.entryId = ledger_id, entry_id
    return entry


def hash_of(schema: Schema | None) -> bytes:
    """Return the hash by which a record names a schema: "" for a deletion."""
    return b"" if schema is None else sha256(schema.data).digest()


# -- the entry of a version


def encode_entry(
    id_: str, schema: Schema | None, timestamp_ms: int, before: list[IndexEntry]
) -> bytes:
    """Return the entry of a version: of a schema, or of a deletion (None).

    `before` are the versions that the topic had.  Pulsar names one without a ledger in front of the
    first version.
    """
    info = SchemaInfo(
        schema_id=id_,
        user="",
        schema=b"" if schema is None else schema.data,
        timestamp=timestamp_ms,
        deleted=schema is None,
    )
    number = NO_SCHEMA if schema is None else schema.type
    info.type = number + _NUMBERED  # type: ignore[assignment]
    if schema is not None:
        for key, value in sorted(schema.properties.items()):
            info.props.add(key=key, value=value)
    before = before or [index_entry(0, -1, -1, hash_of(schema))]
    data = info.SerializeToString(deterministic=True)
    return SchemaEntry(schema_data=data, index=before).SerializeToString(deterministic=True)


def decode_entry(data: bytes, version: int, what: str) -> SchemaVersion:
    """Parse the entry of a version.  Raise StorageFailedError."""
    entry, info = SchemaEntry(), SchemaInfo()
    try:
        entry.ParseFromString(data)
        check_readable(entry)
        info.ParseFromString(entry.schema_data)
        check_readable(info)
    except (DecodeError, WireError) as error:
        raise StorageFailedError(
            f"version {version} of the schema of {what} does not parse: {error}"
        ) from error
    properties = {pair.key: pair.value for pair in info.props}
    schema = Schema(int(info.type) - _NUMBERED, info.schema, properties)
    return SchemaVersion(version, schema, info.timestamp, info.deleted)
