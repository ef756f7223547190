"""The records of sinks in the metadata store, version 1, in JSON.

    /daybook/sinks/<name>                                   the sink: `protocol.sink.SinkRecord`
    /daybook/sinks-pending/<topic partition>/<sink id>-<batch id>
                                                            its batch that is not applied there yet
    /daybook/sinks-of-roles/<digest of the role>/<name>     counts a sink for the role that made it

Names are URL-encoded.  The pending nodes of a batch are created with the COMMITTED record in one
transaction, and deleted with the APPLIED one.  The owner of the topic partition marks its node when
the last entry of its share is durable.  With authorization the record of a sink is created and
deleted in one transaction with the node that counts it.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import TypeVar

import msgspec

from daybook.managed_ledger.errors import InvalidNameError
from daybook.managed_ledger.protocol.sink import (
    ManifestId,
    Share,
    SinkPartition,
    SinkRecord,
    SinkState,
    Source,
)
from daybook.managed_ledger.sinks.errors import SinkCorruptError
from daybook.wire.metadata.store import VALUE_BYTES_MAX
from daybook.wire.topics import url_encode

ROOT = "/daybook/sinks"
PENDING = "/daybook/sinks-pending"
OF_ROLES = "/daybook/sinks-of-roles"
VERSION = 1
_NAME_BYTES_MAX = 512
_NO_SOURCE = ""
_T = TypeVar("_T")


class _Manifest(msgspec.Struct, rename="camel"):
    ledger_id: int
    checksum: str
    shares: str


class _Partition(msgspec.Struct, rename="camel", omit_defaults=True):
    created: int
    next: int
    batch: int
    blocked: str = ""
    skipped: bool = False


class _Record(msgspec.Struct, rename="camel"):
    version: int
    sink_id: str
    state: SinkState
    query_id: str
    checkpoint: str
    batch_id: int
    manifest: _Manifest | None
    rows: int
    hash: int
    once: bool
    partitions: dict[str, _Partition]
    abandoned: list[str]
    role: str | msgspec.UnsetType = msgspec.UNSET  # without authorization there is none


class PendingBatch(msgspec.Struct, rename="camel", frozen=True):
    """The content of a pending node."""

    version: int
    sink: str
    batch_id: int
    ledger_id: int  # the manifest
    checksum: str
    created: int  # the transaction that created the topic's list of ledgers
    first: int  # the sequence id of the first entry of the share
    entries: int
    applied: bool = False

    @property
    def share(self) -> Share:
        return Share(self.first, self.entries)


def check_name(name: str) -> None:
    """Raise InvalidNameError if no sink can have that name."""
    try:
        size = len(url_encode(name))
    except UnicodeEncodeError:
        size = 0
    if name in (".", "..") or not name.strip() or not 0 < size <= _NAME_BYTES_MAX:
        raise InvalidNameError(
            f"a sink cannot be named {name[:64]!r}: use up to {_NAME_BYTES_MAX} letters and digits"
        )


def record_path(name: str) -> str:
    check_name(name)
    return f"{ROOT}/{url_encode(name)}"


def pending_root(topic: str) -> str:
    """Return the path below which a topic partition has its pending nodes."""
    return f"{PENDING}/{url_encode(topic)}"


def pending_path(topic: str, sink_id: str, batch_id: int) -> str:
    """Return the path of a pending node.

    It names the batch: a late mark of one batch, by an owner of earlier, must not find the node of
    the next batch, which would have the same version.
    """
    return f"{pending_root(topic)}/{sink_id}-{batch_id}"


def of_role_path(role: str) -> str:
    """Return the path whose children are the sinks that a role has made.

    It has the digest of the role, because a role may be a name that no path may have.
    """
    return f"{OF_ROLES}/{sha256(role.encode()).hexdigest()[:32]}"


def sink_id_of(node: str) -> str:
    """Return the sink id in the name of a pending node."""
    return node.rpartition("-")[0]


def encode_record(record: SinkRecord) -> bytes:
    """Return the stored form.  Raise SinkCorruptError if the metadata store would not take it."""
    source, manifest = record.source, record.manifest
    stored = _Record(
        version=VERSION,
        sink_id=record.sink_id,
        state=record.state,
        query_id=_NO_SOURCE if source is None else source.query_id,
        checkpoint="" if source is None else source.checkpoint,
        batch_id=record.batch_id,
        manifest=None
        if manifest is None
        else _Manifest(manifest.ledger_id, manifest.checksum, manifest.shares),
        rows=record.rows,
        hash=record.hash,
        once=record.once,
        partitions={
            topic: _Partition(p.created, p.following, p.batch, p.blocked, p.skipped)
            for topic, p in sorted(record.partitions.items())
        },
        abandoned=sorted(record.abandoned),
        role=record.role or msgspec.UNSET,
    )
    value = msgspec.json.encode(stored)
    if len(value) > VALUE_BYTES_MAX:
        raise SinkCorruptError(
            f"the record of the sink would have {len(value)} bytes, and the metadata store takes"
            f" {VALUE_BYTES_MAX}: use several sinks"
        )
    return value


def decode_record(value: bytes, name: str) -> SinkRecord:
    """Raise SinkCorruptError."""
    stored = _decode(value, _Record, f"the record of the sink {name}")
    manifest = stored.manifest
    return SinkRecord(
        sink_id=stored.sink_id,
        state=stored.state,
        source=Source(stored.query_id, stored.checkpoint) if stored.query_id else None,
        batch_id=stored.batch_id,
        manifest=None
        if manifest is None
        else ManifestId(manifest.ledger_id, manifest.checksum, manifest.shares),
        rows=stored.rows,
        hash=stored.hash,
        once=stored.once,
        partitions={
            topic: SinkPartition(p.created, p.next, p.batch, p.blocked, p.skipped)
            for topic, p in stored.partitions.items()
        },
        abandoned=frozenset(stored.abandoned),
        role="" if stored.role is msgspec.UNSET else stored.role,
    )


def pending_batches(
    name: str, record: SinkRecord, entries: Mapping[str, int]
) -> dict[str, PendingBatch]:
    """Return the pending nodes of a record that was just committed, by topic partition."""
    assert record.manifest is not None
    found: dict[str, PendingBatch] = {}
    for topic in record.in_batch:
        partition = record.partitions[topic]
        found[topic] = PendingBatch(
            VERSION,
            name,
            record.batch_id,
            record.manifest.ledger_id,
            record.manifest.checksum,
            partition.created,
            partition.following - entries[topic],
            entries[topic],
        )
    return found


def encode_pending(pending: PendingBatch) -> bytes:
    return msgspec.json.encode(pending)


def decode_pending(value: bytes, path: str) -> PendingBatch:
    """Raise SinkCorruptError."""
    return _decode(value, PendingBatch, path)


class _Version(msgspec.Struct):
    version: int


def _decode(value: bytes, kind: type[_T], what: str) -> _T:
    try:
        version = msgspec.json.decode(value, type=_Version).version
        if version != VERSION:
            raise SinkCorruptError(
                f"{what} has version {version}, and this process knows version {VERSION}: a newer"
                " release has written it. Use that release"
            )
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SinkCorruptError(f"{what} does not parse: {error}") from None
