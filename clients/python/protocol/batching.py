"""The next batch of a producer.  This is its hot path: no work is done twice here.

A message becomes two parts, its metadata and its data; all parts joined are the body of the entry.
The metadata depend only on the size and the key, unless the message has properties or an event
time, so they are cached.  (`wire.batch` describes the layout of a batch.)
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from daybook.wire.fields import U32, encode_varint
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer

T = TypeVar("T")

_KNOWN_MAX = 4096  # encoded metadata that are kept, by size and key


@dataclass(slots=True)
class Batch:
    """The messages of one entry, before compression."""

    body: bytes
    count: int
    sequence_id: int  # the first message's
    highest_sequence_id: int
    key: str | None  # the first message's
    key_is_base64: bool
    ordering_key: bytes | None = None  # the first message's


def text_key(key: str | bytes | None) -> tuple[str | None, bool]:
    """Return a key as text, and whether the text is base64."""
    if isinstance(key, bytes):
        return b64encode(key).decode(), True
    return key, False


class BatchBuilder:
    """Collects messages until `messages_max` or `bytes_max` is reached."""

    __slots__ = (
        "_first_key",
        "_first_ordering_key",
        "_first_sequence_id",
        "_known",
        "_parts",
        "bytes_max",
        "count",
        "messages_max",
        "size",
    )

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.count = 0
        self.size = 0
        self._parts: list[Buffer] = []
        self._known: dict[object, bytes] = {}
        self._first_key: str | bytes | None = None
        self._first_ordering_key: bytes | None = None
        self._first_sequence_id = 0

    def add(self, data: bytes, key: str | bytes | None, sequence_id: int) -> bool:
        """Add a message; return True if the batch is full.  The sequence ids have no gaps."""
        # No attribute is written before `_learn`, which may raise: then the batch is unchanged.
        size = len(data)
        known: object = size if key is None else (size, key)
        prefix = self._known.get(known)
        if prefix is None:
            prefix = self._learn(known, size, key)
        parts = self._parts
        if not parts:
            self._first_sequence_id = sequence_id
            self._first_key = key
            self._first_ordering_key = None
        parts.append(prefix)
        parts.append(data)
        self.count = count = self.count + 1
        self.size = size = self.size + size + len(prefix)
        return size >= self.bytes_max or count >= self.messages_max

    def add_special(
        self,
        data: bytes | None,
        key: str | bytes | None,
        properties: Mapping[str, str],
        event_time_ms: int | None,
        sequence_id: int,
        ordering_key: bytes | None = None,
    ) -> bool:
        """Add a message that has more than a key and a value, or no value."""
        text, is_base64 = text_key(key)
        content = data or b""
        single = pb.SingleMessageMetadata(
            payload_size=len(content),
            partition_key=text,
            partition_key_b64_encoded=is_base64 or None,
            event_time=event_time_ms,
            null_value=True if data is None else None,
            ordering_key=ordering_key,
        )
        for name, value in properties.items():
            single.properties.add(key=name, value=value)
        fields = single.SerializeToString()
        if not self._parts:
            self._first_sequence_id = sequence_id
            self._first_key = key
            self._first_ordering_key = ordering_key
        self._parts += (U32.pack(len(fields)), fields, content)
        self.count += 1
        self.size += len(content) + len(fields) + U32.size
        return self.size >= self.bytes_max or self.count >= self.messages_max

    def take(self) -> Batch:
        """Return the batch; the builder is empty after that."""
        assert self.count > 0
        body = b"".join(self._parts)
        text, is_base64 = text_key(self._first_key)
        first = self._first_sequence_id
        last, ordering_key = first + self.count - 1, self._first_ordering_key
        batch = Batch(body, self.count, first, last, text, is_base64, ordering_key)
        self._parts = []
        self.count = self.size = 0
        return batch

    def _learn(self, known: object, size: int, key: str | bytes | None) -> bytes:
        """Encode the metadata of a message of this size and key, with its size in front."""
        # Fields 2, 3 and 6 of SingleMessageMetadata: partition_key, payload_size, b64 flag.
        fields = b""
        text, is_base64 = text_key(key)
        if text is not None:
            encoded = text.encode()
            fields = b"\x12" + encode_varint(len(encoded)) + encoded
        fields += b"\x18" + encode_varint(size)
        if is_base64:
            fields += b"\x30\x01"
        prefix = U32.pack(len(fields)) + fields
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[known] = prefix
        return prefix


@dataclass(slots=True)
class _OfKey(Generic[T]):
    builder: BatchBuilder
    results: list[tuple[int, T]]


class KeyedBatches(Generic[T]):
    """Collects messages in a batch for each key, until all together reach a limit.

    The ordering key counts if a message has one, else the key.  All batches leave together, the one
    with the oldest message first.  Messages get their sequence ids when they leave, in that order,
    so the ids of each batch have no gaps.  `T` is what the caller wants to know messages by.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.count = 0
        self.size = 0
        self._first_sequence_id = 0
        self._batches: dict[bytes | None, _OfKey[T]] = {}

    def add(
        self,
        data: bytes | None,
        key: str | bytes | None,
        ordering_key: bytes | None,
        properties: Mapping[str, str],
        event_time_ms: int | None,
        sequence_id: int,
        result: T | None,
    ) -> bool:
        """Add a message; return True if the batches are full.  The sequence ids have no gaps."""
        text = key.encode() if isinstance(key, str) else key
        group = text if ordering_key is None else ordering_key
        batch = self._batches.get(group)
        if batch is None:
            batch = _OfKey[T](BatchBuilder(self.messages_max, self.bytes_max), [])
        builder, index, size = batch.builder, batch.builder.count, batch.builder.size
        if data is None or properties or event_time_ms is not None or ordering_key is not None:
            builder.add_special(data, key, properties, event_time_ms, sequence_id, ordering_key)
        else:
            builder.add(data, key, sequence_id)
        # From here on nothing raises: a message that was not taken leaves no trace.
        self._batches[group] = batch
        if not self.count:
            self._first_sequence_id = sequence_id
        if result is not None:
            batch.results.append((index, result))
        self.count += 1
        self.size += builder.size - size
        return self.size >= self.bytes_max or self.count >= self.messages_max

    def take(self) -> list[tuple[Batch, list[tuple[int, T]]]]:
        """Return the batches, each with the messages by which the caller knows some."""
        first, taken = self._first_sequence_id, list[tuple[Batch, list[tuple[int, T]]]]()
        for each in self._batches.values():
            batch = each.builder.take()
            batch.sequence_id, first = first, first + batch.count
            batch.highest_sequence_id = first - 1
            taken.append((batch, each.results))
        self._batches = {}
        self.count = self.size = 0
        return taken
