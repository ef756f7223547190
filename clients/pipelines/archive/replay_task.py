"""Run a Spark task of a replay: encode the rows of a file as entries, and stage them.

No message is in the topic when a task ends: the driver commits what all tasks have staged.
"""

# pyright: basic
# (the libraries underneath have no types)

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import trio

from daybook.clients.pipelines.archive.checked import NamedFile, open_file
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.replay_plan import MARK, Mark, Piece
from daybook.clients.python.sink_requests import Batch, SinkRequests
from daybook.clients.python.tls import TlsOptions
from daybook.clients.python.topic_producer import COMPRESSION_ON_THE_WIRE
from daybook.clients.spark.credential_options import ANONYMOUS, QueryCredentials
from daybook.clients.spark.rows import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from daybook.clients.spark.short_errors import each_in_one_sentence
from daybook.clients.spark.stage import rotated
from daybook.managed_ledger.sinks.staging import staged_entry
from daybook.wire.compression import CompressionType, compress
from daybook.wire.fields import U32
from daybook.wire.proto import pulsar_pb2 as pb

RESULT = (
    "piece int, attempt string, ledger bigint, rows bigint, hash string, entries bigint,"
    " bytes bigint"
)
_RESULT = pa.schema(
    [
        ("piece", pa.int32()),
        ("attempt", pa.string()),
        ("ledger", pa.int64()),
        ("rows", pa.int64()),
        ("hash", pa.string()),
        ("entries", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_NEEDED = (
    "key",
    "value",
    "offset",
    "eventTime",
    "headers",
    "keyIsBytes",
    "orderingKey",
    "schemaVersion",
)
_READ_ROWS = 10_000
_BODY_BYTES = 1 << 20
_HASH_END = 1 << 64


@dataclass(slots=True)
class _Waiting:
    """The messages that do not fill an entry yet."""

    version: bytes | None = None
    parts: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    count: int = 0
    first: Mapping[str, Any] = field(default_factory=dict[str, Any])
    next: int = 0


class EntryEncoder:
    """Encodes the rows of one partition, in order, as staged entries.

    `versions` are those of the topic, by those of the archive; None leaves them out.  An entry ends
    where its size or the version of the schema says so.
    """

    def __init__(
        self,
        archive: str,
        versions: Mapping[bytes, bytes] | None,
        compression: CompressionType = CompressionType.NONE,
    ) -> None:
        self._archive = archive
        self._versions = versions
        self._compression = compression
        self._waiting = _Waiting()
        self.rows = 0
        self.hash = 0  # the sum of a hash of each message modulo 2**64

    def add(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Encode rows, and yield the entries that are full."""
        for row in batch.to_pylist():
            version = row["schemaVersion"]
            head, data = _message(row)
            size = len(head) + len(data)
            waiting = self._waiting
            if waiting.count and (
                waiting.version != version
                or waiting.count >= BATCH_MESSAGES_MAX
                or waiting.size + size > BATCH_BYTES_MAX
            ):
                yield self._take()
                waiting = self._waiting
            if not waiting.count:
                waiting.version, waiting.first = version, row
            waiting.parts += (head, data)
            waiting.size += size
            waiting.count += 1
            waiting.next = row["offset"] + 1
            self.rows += 1
            digest = blake2b(head + data, digest_size=8).digest()
            self.hash = (self.hash + int.from_bytes(digest)) % _HASH_END

    def rest(self) -> Iterator[bytes]:
        """Yield the entry that is not full, if there is one."""
        if self._waiting.count:
            yield self._take()

    def _take(self) -> bytes:
        waiting, self._waiting = self._waiting, _Waiting()
        first = waiting.first
        metadata = pb.MessageMetadata(num_messages_in_batch=waiting.count)
        metadata.properties.add(key=MARK, value=str(Mark(self._archive, waiting.next)))
        if first["key"] is not None:
            metadata.partition_key = _key_text(first)
            if first["keyIsBytes"]:
                metadata.partition_key_b64_encoded = True
        if first["orderingKey"] is not None:
            metadata.ordering_key = first["orderingKey"]
        if waiting.version is not None and self._versions is not None:
            metadata.schema_version = self._versions[waiting.version]
        body: Any = b"".join(waiting.parts)
        packed = compress(self._compression, body)
        if len(packed) < len(body):
            metadata.compression = COMPRESSION_ON_THE_WIRE[self._compression]
            metadata.uncompressed_size = len(body)
            body = packed
        return staged_entry(metadata, body)


def _message(row: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return the metadata of a message with their size in front, and its data."""
    data: bytes = row["value"] or b""
    single = pb.SingleMessageMetadata(payload_size=len(data))
    for header in row["headers"] or ():
        single.properties.add(key=header["key"], value=header["value"].decode())
    if row["key"] is not None:
        single.partition_key = _key_text(row)
        if row["keyIsBytes"]:
            single.partition_key_b64_encoded = True
    if row["orderingKey"] is not None:
        single.ordering_key = row["orderingKey"]
    if row["eventTime"] is not None:
        single.event_time = row["eventTime"] // 1000
    if row["value"] is None:
        single.null_value = True
    fields = single.SerializeToString()
    return U32.pack(len(fields)) + fields, data


def _key_text(row: Mapping[str, Any]) -> str:
    key: bytes = row["key"]
    return b64encode(key).decode() if row["keyIsBytes"] else key.decode()


def rows_of(named: NamedFile, start: int) -> Iterator[pa.RecordBatch]:
    """Return the rows of a file from an offset on, in order, with times as microseconds.

    Raise ArchiveError for a file that differs from its manifest.
    """
    with open_file(named) as opened:
        for batch in opened.rows(_NEEDED, start, named.file.next, _READ_ROWS):
            index = batch.schema.get_field_index("eventTime")
            yield batch.set_column(index, "eventTime", batch.column(index).cast(pa.int64()))


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """The common part of the tasks of a step.  It is sent to the workers of Spark."""

    files: ArchiveFiles
    pieces: Sequence[Piece]
    topics: Mapping[int, str]  # the topic that stores each partition
    archive: str
    versions: Mapping[bytes, bytes] | None
    admin_url: str
    sink: str
    batch: Batch
    compression: CompressionType
    tls: TlsOptions | None = None
    credentials: QueryCredentials = ANONYMOUS

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the pieces whose indexes are in the batches; this is what `mapInArrow` calls."""
        return each_in_one_sentence(self._run(batches))

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                row = trio.run(self._stage, index)
                yield pa.RecordBatch.from_pylist([row], schema=_RESULT)

    def _named(self, piece: Piece) -> NamedFile:
        return NamedFile(self.files, self.archive, piece.partition, piece.file)

    async def _stage(self, index: int) -> dict[str, Any]:
        piece = self.pieces[index]
        encoder = EntryEncoder(self.archive, self.versions, self.compression)
        topic = self.topics[piece.partition]
        requests = SinkRequests(
            rotated(self.admin_url, index),
            tls=self.tls,
            token=self.credentials.token,
            basic=self.credentials.basic,
        )
        attempt = await requests.begin(self.sink, self.batch)
        try:
            held: list[bytes] = []
            size = 0
            for batch in rows_of(self._named(piece), piece.start):
                for entry in encoder.add(batch):
                    held.append(entry)
                    size += len(entry)
                    if size >= _BODY_BYTES:
                        await attempt.append(topic, held)
                        held, size = [], 0
            held += encoder.rest()
            await attempt.append(topic, held)
            share = await attempt.close(rows=encoder.rows, hash_=encoder.hash)
        except Exception:
            await attempt.give_up()
            raise
        return {
            "piece": index,
            "attempt": share.attempt,
            "ledger": share.ledger_id,
            "rows": share.rows,
            "hash": str(share.hash),
            "entries": share.entries,
            "bytes": share.bytes,
        }
