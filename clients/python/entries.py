"""Unpacks entries as the broker delivers them into messages."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from weakref import ref

import trio

from daybook.clients.python.limits import ConsumerLimits
from daybook.clients.python.messages import Entry, Message
from daybook.clients.python.protocol.acks_in_doubt import EntryKey
from daybook.clients.python.protocol.chunks import Chunks, Joined
from daybook.clients.python.schemas.versions import SchemaVersions, VersionDecoder
from daybook.wire.batch import (
    BatchReader,
    SingleMetadata,
    count_messages,
    is_batch,
    num_messages,
    parse_metadata,
    split_broker_metadata,
    verify_checksum,
)
from daybook.wire.compression import decompress
from daybook.wire.errors import MalformedError
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

_DECOMPRESSED_MAX = 64 << 20  # or more, if messages in chunks may have more
_MESSAGE: type[Message[bytes]] = Message
_LIMITS = ConsumerLimits()


@dataclass(slots=True)
class Unpacked:
    entry: Entry
    messages: list[Message]
    permits: int  # the number of permits that the entry took
    earlier: tuple[EntryKey, ...] = ()  # the other entries of a message in chunks


class EntryReader:
    """Unpacks the entries of one topic consumer."""

    def __init__(
        self,
        topic: str,
        partition: int,
        source: object,
        versions: SchemaVersions | None = None,
        limits: ConsumerLimits = _LIMITS,
        now_s: Callable[[], float] = trio.current_time,
    ) -> None:
        self._now_s = now_s
        self.chunks = Chunks(
            limits.chunked_bytes_max,
            limits.chunked_messages_max,
            limits.expire_incomplete_chunks_s,
        )
        self._whole_bytes_max = limits.chunked_bytes_max
        self._topic = topic
        self._partition = partition
        self._source = ref(source)
        self._versions = versions
        self._whole_topic = TopicName.parse(topic).base.full
        self._batches = BatchReader()

    @property
    def met_compacted(self) -> bool:
        """True once an entry had messages that compaction has removed."""
        return self._batches.met_compacted

    def unpack(self, delivery: Delivery, payload: bytes, generation: int) -> Unpacked | None:
        """Return all messages of an entry, also acknowledged ones.  Raise a WireError.

        Return None for a chunk of a message that is not whole yet.
        """
        broker_time_ms, index, rest = split_broker_metadata(memoryview(payload))
        verify_checksum(rest)
        metadata, body = parse_metadata(rest)
        if metadata.encryption_keys:
            raise MalformedError("the message is encrypted, and this client has no keys")
        if metadata.num_chunks_from_msg > 1:
            joined = self._chunk(delivery, metadata, bytes(body))
            if joined is None:
                return None
            whole, earlier, start = joined.body, joined.earlier, 0
        else:
            whole, earlier, start = payload, (), len(payload) - len(body)
        count = num_messages(metadata)
        entry = Entry(
            self._topic,
            self._partition,
            delivery.ledger_id,
            delivery.entry_id,
            delivery.redelivery_count,
            metadata.publish_time,
            broker_time_ms,
            metadata.producer_name,
            metadata.sequence_id,
            None if index is None else index - count + 1,
            is_batch(metadata),
            self._source,
            generation,
            metadata.schema_version,
            self._decoder(metadata.schema_version),
        )
        if metadata.compression != pb.NONE and metadata.uncompressed_size:
            most = max(_DECOMPRESSED_MAX, self._whole_bytes_max)
            whole, start = _decompressed(metadata, memoryview(whole)[start:], most), 0
        messages = self._messages(entry, metadata, whole, start, count)
        return Unpacked(entry, messages, _permits(count, delivery.ack_set), earlier)

    def _chunk(
        self, delivery: Delivery, metadata: pb.MessageMetadata, body: bytes
    ) -> Joined | None:
        """Return the message that is whole with this chunk; None if it is not."""
        count, total = metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
        if not 0 <= metadata.chunk_id < count or total > self._whole_bytes_max:
            raise MalformedError(
                f"chunk {metadata.chunk_id} of {count}, of a message of {total} bytes, cannot be"
                f" joined: messages in chunks may have {self._whole_bytes_max} bytes"
            )
        key = (delivery.ledger_id, delivery.entry_id)
        return self.chunks.add(metadata.uuid, metadata.chunk_id, count, key, body, self._now_s())

    def _decoder(self, version: bytes) -> VersionDecoder | None:
        versions = self._versions
        return None if versions is None else versions.decoder(self._whole_topic, version)

    def _messages(
        self, entry: Entry, metadata: pb.MessageMetadata, whole: bytes, start: int, count: int
    ) -> list[Message]:
        """Return the messages in `whole`, from `start` on."""
        if entry.is_batch:
            singles, data = self._batches.split(whole, count, start, metadata.sequence_id)
            if self._batches.met_null:
                values = [None if s.null_value else d for s, d in zip(singles, data, strict=True)]
                return list(map(_MESSAGE, values, repeat(entry), range(count), singles))
            return list(map(_MESSAGE, data, repeat(entry), range(count), singles))
        single = _single_of(metadata, len(whole) - start)
        return [Message(None if single.null_value else whole[start:], entry, 0, single)]


def permits_of(delivery: Delivery, payload: bytes | memoryview) -> int:
    """Return the permits that the broker has counted for an entry, even an unreadable one."""
    return _permits(count_messages(memoryview(payload)), delivery.ack_set)


def _permits(count: int, ack_set: int | None) -> int:
    """Return the permits of an entry: acknowledged messages of a batch take none."""
    return count if ack_set is None else (ack_set & ((1 << count) - 1)).bit_count()


def _decompressed(metadata: pb.MessageMetadata, body: memoryview, bytes_max: int) -> bytes:
    kind, size = int(metadata.compression), metadata.uncompressed_size
    return bytes(decompress(kind, body, size, bytes_max))


def _single_of(metadata: pb.MessageMetadata, size: int) -> SingleMetadata:
    """Return the metadata of a message that is alone in its entry, in the form of a batch."""
    return SingleMetadata(
        size,
        metadata.partition_key
        if metadata.HasField("partition_key") and not metadata.null_partition_key
        else None,
        metadata.partition_key_b64_encoded,
        metadata.ordering_key if metadata.HasField("ordering_key") else None,
        tuple((pair.key, pair.value) for pair in metadata.properties),
        metadata.event_time,
        None,
        metadata.null_value,
        False,
    )
