"""The content of a topic's entry: the broker's own block, a checksum, metadata, messages.

    | 0e02 | size u32 | BrokerEntryMetadata |     in front, by the broker; may be missing
    | 0e01 | crc32c u32 |                         may be missing
    | metadata_size u32 | MessageMetadata |
    | body ...                            |       compressed as a whole

The checksum covers everything behind it.  The broker writes its block in front of the producer's
bytes and never changes those.  The block is not covered by the checksum; it holds the time at which
the broker took the entry, and the offset of its *last* message.

The body is one message's data, or a batch: for each message

    | size u32 | SingleMessageMetadata | data, payload_size bytes |

The body is a batch if `num_messages_in_batch` is *present*, even if it is 1.  Stored metadata is
never serialised again, because it may have fields that this version does not know.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from crc32c import crc32c
from google.protobuf.message import DecodeError

from daybook.wire.errors import ChecksumError, MalformedError, TruncatedError
from daybook.wire.fields import U32, encode_varint
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer

_MAGIC_BYTES = 2
_MAGIC, _BROKER, _CHECKSUM = 0x0E, 0x02, 0x01
_BROKER_MAGIC = bytes((_MAGIC, _BROKER))
_CHECKSUM_MAGIC = bytes((_MAGIC, _CHECKSUM))
_CHECKSUM_END = 6  # magic, checksum
_BROKER_HEAD_BYTES = 6  # magic, size
_SIZE_BYTES = 4
_KNOWN_MAX = 4096
BATCH_MAX = 1 << 18  # messages in one entry
_MESSAGE_BYTES_MIN = _SIZE_BYTES + 2  # in a batch: the metadata hold at least the size of the data
# How far each compression can shrink equal bytes; zstd may write 128 KiB in 4 bytes.
_RATIO_MAX = {pb.LZ4: 255, pb.ZLIB: 1032, pb.ZSTD: 1 << 15, pb.SNAPPY: 64}
_STRINGS = {str}  # the type of a text that is UTF-8; protobuf returns others as bytes
_REPEATED_BYTES_MAX = 64  # Longer metadata are not compared across all messages of a batch.

# -- the broker's block


def broker_entry_metadata(timestamp_ms: int, index: int) -> bytes:
    """Return the block in front of an entry.  `index` is the offset of its last message."""
    fields = b"\x08" + encode_varint(timestamp_ms) + b"\x10" + encode_varint(index)
    return b"%b\x00\x00\x00%c%b" % (_BROKER_MAGIC, len(fields), fields)


def has_broker_metadata(entry: memoryview) -> bool:
    return entry[:_MAGIC_BYTES].tobytes() == _BROKER_MAGIC


def split_broker_metadata(entry: memoryview) -> tuple[int | None, int | None, memoryview]:
    """Return timestamp and index (None if absent), and the entry as its producer sent it."""
    if not has_broker_metadata(entry):
        return None, None, entry
    if len(entry) < _BROKER_HEAD_BYTES:
        raise TruncatedError("the broker metadata of an entry are cut off")
    end = _BROKER_HEAD_BYTES + U32.unpack_from(entry, _MAGIC_BYTES)[0]
    if end > len(entry):
        raise TruncatedError("the broker metadata of an entry are cut off")
    try:
        block = pb.BrokerEntryMetadata.FromString(bytes(entry[_BROKER_HEAD_BYTES:end]))
    except DecodeError as error:
        raise MalformedError(f"the broker metadata of an entry cannot be parsed: {error}") from None
    return (
        block.broker_timestamp if block.HasField("broker_timestamp") else None,
        block.index if block.HasField("index") else None,
        entry[end:],
    )


# -- checksum and metadata


def _producer_part(payload: memoryview) -> memoryview:
    """Return the entry without the broker's block."""
    return split_broker_metadata(payload)[2] if has_broker_metadata(payload) else payload


def verify_checksum(payload: memoryview) -> None:
    """Raise ChecksumError if the payload has a checksum and does not match it."""
    _verified(payload)


def verified_metadata(payload: memoryview) -> tuple[pb.MessageMetadata, memoryview]:
    """Verify the checksum, if there is one, and return the metadata and the body of an entry.

    This is `verify_checksum` and `parse_metadata` in one, for readers of many entries.
    """
    return _split_metadata(_verified(payload))


def _verified(payload: memoryview) -> memoryview:
    """Return what follows the checksum, if there is one and it matches."""
    payload = _producer_part(payload)
    if payload[:_MAGIC_BYTES].tobytes() != _CHECKSUM_MAGIC:
        return payload
    if len(payload) < _CHECKSUM_END:
        raise TruncatedError("the checksum of an entry is cut off")
    (checksum,) = U32.unpack_from(payload, _MAGIC_BYTES)
    rest = payload[_CHECKSUM_END:]
    if crc32c(rest) != checksum:
        raise ChecksumError("the entry does not match its checksum")
    return rest


def without_checksum(payload: memoryview) -> memoryview:
    """Return the payload for peers that are too old for checksums."""
    payload = _producer_part(payload)
    return (
        payload[_CHECKSUM_END:] if payload[:_MAGIC_BYTES].tobytes() == _CHECKSUM_MAGIC else payload
    )


def parse_metadata(payload: memoryview) -> tuple[pb.MessageMetadata, memoryview]:
    """Return the metadata of an entry and its body, without verifying the checksum.

    Raise MalformedError unless all strings are readable and `num_messages_in_batch` is at least 1.
    """
    return _split_metadata(without_checksum(payload))


def _split_metadata(payload: memoryview) -> tuple[pb.MessageMetadata, memoryview]:
    if len(payload) < _SIZE_BYTES:
        raise TruncatedError("an entry has no metadata")
    end = _SIZE_BYTES + U32.unpack_from(payload)[0]
    if end > len(payload):
        raise TruncatedError("the metadata of an entry are cut off")
    try:
        metadata = pb.MessageMetadata.FromString(bytes(payload[_SIZE_BYTES:end]))
    except DecodeError as error:
        raise MalformedError(f"the metadata of an entry cannot be parsed: {error}") from None
    check_metadata(metadata)
    return metadata, payload[end:]


def check_metadata(metadata: pb.MessageMetadata) -> None:
    """Raise MalformedError for metadata that consumers cannot read, or that lack a field."""
    if not metadata.IsInitialized():
        raise MalformedError(
            "the metadata of an entry lack the producer, the sequence id or the time"
        )
    if not 1 <= metadata.num_messages_in_batch <= BATCH_MAX:
        raise MalformedError(
            f"the metadata of an entry announce a batch of {metadata.num_messages_in_batch}"
            " messages"
        )
    texts: list[object] = [metadata.producer_name, metadata.partition_key, metadata.uuid]
    if metadata.properties:
        texts += _texts(metadata.properties)
    if metadata.replicate_to or metadata.replicated_from:
        texts += [*metadata.replicate_to, metadata.replicated_from]
    if {*map(type, texts)} != _STRINGS:
        raise MalformedError("the metadata of an entry have a text that is not UTF-8")


def _texts(properties: Iterable[pb.KeyValue]) -> list[object]:
    return [text for pair in properties for text in (pair.key, pair.value)]


def num_messages(metadata: pb.MessageMetadata) -> int:
    """Return how many messages the entry holds."""
    return metadata.num_messages_in_batch


def impossible_claim(metadata: pb.MessageMetadata, body_bytes: int) -> str | None:
    """Return a statement of the metadata that cannot be true of the entry; None if all can."""
    messages, chunks = metadata.num_messages_in_batch, metadata.num_chunks_from_msg
    room = body_bytes
    if metadata.compression != pb.NONE:
        unpacked = max(metadata.uncompressed_size, body_bytes)
        room = min(unpacked, body_bytes * _RATIO_MAX.get(metadata.compression, 1))
    if messages > 1 and messages * _MESSAGE_BYTES_MIN > room:
        return f"a batch of {messages} messages does not fit into {body_bytes} bytes"
    if chunks > 1 and not 0 <= metadata.chunk_id < chunks:
        return f"chunk {metadata.chunk_id} of a message of {chunks} chunks"
    if chunks > 1 and 0 < metadata.total_chunk_msg_size < chunks:
        return f"a message of {metadata.total_chunk_msg_size} bytes in {chunks} chunks"
    return None


def peek_metadata(entry: memoryview) -> tuple[int, pb.MessageMetadata]:
    """Return the offset of the producer's part, and the metadata, unchecked."""
    try:
        start = 0
        if entry[0] == _MAGIC and entry[1] == _BROKER:
            start = _BROKER_HEAD_BYTES + U32.unpack_from(entry, _MAGIC_BYTES)[0]
        at = start
        if entry[at] == _MAGIC and entry[at + 1] == _CHECKSUM:
            at += _CHECKSUM_END
        first = at + _SIZE_BYTES
        end = first + U32.unpack_from(entry, at)[0]
    except (IndexError, struct.error):
        raise TruncatedError("an entry is cut off") from None
    if end > len(entry):
        raise TruncatedError("the metadata of an entry are cut off")
    try:
        return start, pb.MessageMetadata.FromString(bytes(entry[first:end]))
    except DecodeError as error:
        raise MalformedError(f"the metadata of an entry cannot be parsed: {error}") from None


def messages_counted(metadata: pb.MessageMetadata) -> int:
    """Return how many messages, and so permits, an entry counts for, readable or not."""
    return max(1, metadata.num_messages_in_batch)


def count_messages(entry: memoryview) -> int:
    """Return `messages_counted` of a stored entry; 1 if its metadata do not parse."""
    try:
        return messages_counted(peek_metadata(entry)[1])
    except (TruncatedError, MalformedError):
        return 1


def is_batch(metadata: pb.MessageMetadata) -> bool:
    return metadata.HasField("num_messages_in_batch")


def publish_time(payload: memoryview) -> int:
    """Return the time at which the producer says it sent the entry, in ms since the epoch."""
    return parse_metadata(payload)[0].publish_time


def encode_payload_head(metadata: pb.MessageMetadata, body: Buffer) -> bytes:
    """Return checksum and metadata, to be sent in front of `body`, which is not copied."""
    fields = metadata.SerializeToString()
    head = U32.pack(len(fields)) + fields
    return _CHECKSUM_MAGIC + U32.pack(crc32c(body, crc32c(head))) + head


def encode_payload(metadata: pb.MessageMetadata, body: Buffer) -> bytes:
    """Return a whole entry as a producer sends it."""
    return encode_payload_head(metadata, body) + body


# -- the messages of a batch


@dataclass(slots=True, frozen=True)
class SingleMetadata:
    """The metadata of one message of a batch."""

    payload_size: int
    key: str | None
    key_is_base64: bool
    ordering_key: bytes | None
    properties: tuple[tuple[str, str], ...]
    event_time_ms: int  # 0: none
    sequence_id: int | None
    null_value: bool
    compacted_out: bool

    @classmethod
    def from_message(cls, single: pb.SingleMessageMetadata) -> "SingleMetadata":
        if not single.IsInitialized() or single.payload_size < 0:
            raise MalformedError("a message of a batch has no size")
        properties = tuple((pair.key, pair.value) for pair in single.properties)
        key = single.partition_key if single.HasField("partition_key") else None
        texts: list[object] = [key or "", *(text for pair in properties for text in pair)]
        if not all(isinstance(text, str) for text in texts):
            raise MalformedError(
                "the metadata of a message in a batch have a text that is not UTF-8"
            )
        return cls(
            single.payload_size,
            None if single.null_partition_key else key,
            single.partition_key_b64_encoded,
            single.ordering_key if single.HasField("ordering_key") else None,
            properties,
            single.event_time,
            single.sequence_id if single.HasField("sequence_id") else None,
            single.null_value,
            single.compacted_out,
        )


_SEQUENCE_ID_TAG = pb.SingleMessageMetadata.SEQUENCE_ID_FIELD_NUMBER << 3  # a varint
_SEQUENCE_ID_MAX = (1 << 64) - 1
_VARINT_BYTES_MAX = 10
_NO_METADATA = SingleMetadata(0, None, False, None, (), 0, None, False, False)


class BatchReader:
    """Splits batches.  It remembers parsed metadata, because most messages share theirs.

    Clients of Pulsar end the metadata of each message with its sequence id, which makes them all
    different.  So that field is looked at apart from the others (`_split_id`).
    """

    def __init__(self) -> None:
        self._known: dict[bytes, SingleMetadata] = {}  # by what precedes the sequence id
        self.met_compacted = False  # some message was removed by compaction
        self.met_null = False  # some message has no value

    def split(
        self, body: bytes, count: int, start: int = 0, first_id: int | None = None
    ) -> tuple[list[SingleMetadata], list[bytes]]:
        """Return metadata and data, copied, of the `count` messages in `body[start:]`.

        With `first_id`, metadata whose sequence id is `first_id` and the index of the message state
        none: most messages share their metadata then.

        Raise a WireError if the batch does not parse or is cut off.
        """
        if count < 1:
            return [], []
        first, single, id_bytes = self._metadata(body, start, first_id)
        stride = first - start + single.payload_size
        if _is_repeated(body, start, first - id_bytes, first, stride, count) and (
            not id_bytes or _counts_up(body, first - id_bytes, first, stride, count, first_id or 0)
        ):
            last = first + single.payload_size
            return [single] * count, [
                body[first + more : last + more] for more in range(0, stride * count, stride)
            ]
        return self._one_by_one(body, count, start, first_id)

    def _one_by_one(
        self, body: bytes, count: int, start: int, first_id: int | None
    ) -> tuple[list[SingleMetadata], list[bytes]]:
        singles: list[SingleMetadata] = []
        data: list[bytes] = []
        offset, end = start, len(body)
        head, head_bytes, single = b"", 0, _NO_METADATA
        for index in range(count):
            if head and body.startswith(head, offset):  # the same metadata as the one before
                first = offset + head_bytes
            else:
                expected = None if first_id is None else first_id + index
                first, single, id_bytes = self._metadata(body, offset, expected)
                # The same sequence id again would not be the one that is expected then.
                head = b"" if id_bytes else body[offset:first]
                head_bytes = first - offset
            offset = first + single.payload_size
            if offset > end:
                raise TruncatedError("a batch is cut off")
            singles.append(single)
            data.append(body[first:offset])
        return singles, data

    def singles(self, body: bytes, count: int) -> Iterator[SingleMetadata]:
        """Yield the metadata of the `count` messages in `body`, without their data.

        The caller may do other work in between.  Raise a WireError as `split` does.
        """
        offset, end = 0, len(body)
        for _ in range(count):
            first, single, _ = self._metadata(body, offset)
            offset = first + single.payload_size
            if offset > end:
                raise TruncatedError("a batch is cut off")
            yield single

    def _metadata(
        self, body: bytes, offset: int, expected_id: int | None = None
    ) -> tuple[int, SingleMetadata, int]:
        """Return where the data of the message at `offset` begin, and its metadata.

        The metadata state no sequence id if that is the expected one.  The third result is the
        number of bytes in front of the data that hold it then, and otherwise 0.
        """
        first = offset + _SIZE_BYTES
        if first > len(body):
            raise TruncatedError("a batch is cut off")
        last = first + int.from_bytes(body[offset:first], "big")
        if last > len(body):
            raise TruncatedError("a batch is cut off")
        raw = body[first:last]
        known = self._known.get(raw)
        if known is not None:
            return last, known, 0
        others, sequence_id = _split_id(raw)
        if sequence_id is None:
            return last, self._learn(raw), 0
        single = self._known.get(others) or self._try_to_learn(others)
        if single is None or single.sequence_id is not None:
            return last, self._learn(raw), 0
        if sequence_id != expected_id:
            return last, replace(single, sequence_id=sequence_id), 0
        return last, single, len(raw) - len(others) - 1

    def _try_to_learn(self, others: bytes) -> SingleMetadata | None:
        """Return the metadata without the sequence id; None if they are none without it."""
        try:
            return self._learn(others)
        except MalformedError:
            return None  # These bytes are the end of another field.

    def _learn(self, raw: bytes) -> SingleMetadata:
        try:
            single = SingleMetadata.from_message(pb.SingleMessageMetadata.FromString(raw))
        except DecodeError as error:
            raise MalformedError(
                f"the metadata of a message in a batch cannot be parsed: {error}"
            ) from None
        self.met_compacted |= single.compacted_out
        self.met_null |= single.null_value
        if single.sequence_id is None:  # Metadata with a sequence id are never repeated.
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[raw] = single
        return single


def _split_id(raw: bytes) -> tuple[bytes, int | None]:
    """Return the metadata of a message without the sequence id at their end, and that id.

    The id is None if they do not end with one.  If they do, and what precedes it parses alone, the
    whole says the same and that id: protobuf parses fields one after the other.
    """
    at = len(raw) - 1
    if at < 1 or raw[at] & 0x80:
        return raw, None
    sequence_id, at = raw[at], at - 1
    # A varint has its highest bits in its last byte.
    while at and raw[at] & 0x80:
        sequence_id, at = sequence_id << 7 | raw[at] & 0x7F, at - 1
    fits = sequence_id <= _SEQUENCE_ID_MAX and len(raw) - at <= _VARINT_BYTES_MAX + 1
    if raw[at] != _SEQUENCE_ID_TAG or not fits:
        return raw, None
    return raw[:at], sequence_id


def iter_batch(body: Buffer, count: int) -> Iterator[tuple[SingleMetadata, bytes]]:
    """Yield the messages of one batch.  A caller with many batches keeps a `BatchReader`."""
    yield from zip(*BatchReader().split(bytes(body), count), strict=True)


def highest_id(body: bytes, count: int, first_id: int) -> int:
    """Return the highest sequence id of the `count` messages in `body`.

    A message that states none has the id that follows from its place.  This reads nothing else of
    the metadata, so it takes a fraction of the time of `BatchReader.split`.  Raise a WireError if
    the batch does not parse or is cut off.
    """
    highest, offset, end = first_id, 0, len(body)
    for sequence_id in range(first_id, first_id + count):
        first = offset + _SIZE_BYTES
        last = first + int.from_bytes(body[offset:first], "big")
        if last > end:
            raise TruncatedError("a batch is cut off")
        try:
            single = pb.SingleMessageMetadata.FromString(body[first:last])
        except DecodeError as error:
            raise MalformedError(
                f"the metadata of a message in a batch cannot be parsed: {error}"
            ) from None
        size = single.payload_size
        if size < 0 or not single.IsInitialized():
            raise MalformedError("a message of a batch has no size")
        offset = last + size
        highest = max(
            highest, single.sequence_id if single.HasField("sequence_id") else sequence_id
        )
    if offset > end:
        raise TruncatedError("a batch is cut off")
    return highest


def _is_repeated(body: bytes, start: int, end: int, first: int, stride: int, count: int) -> bool:
    """Return True if all messages repeat the bytes `body[start:end]` of their metadata.

    `first` is where the data of the first message begin.  The messages must fill the body.  Each
    byte is compared once, for all messages at once.
    """
    if len(body) - start != stride * count or first - start > _REPEATED_BYTES_MAX:
        return False
    return all(body[at::stride] == body[at : at + 1] * count for at in range(start, end))


def _counts_up(body: bytes, start: int, end: int, stride: int, count: int, first_id: int) -> bool:
    """Return True if the varints at `body[start:end]`, and so on by `stride`, count up."""
    if (first_id + count - 1).bit_length() > min(7 * (end - start), 64):
        return False  # The last ones are longer.
    for place in range(end - start):
        more = 0x80 if start + place < end - 1 else 0
        if body[start + place :: stride] != _digits(first_id, count, 7 * place, more):
            return False
    return True


def _digits(first: int, count: int, shift: int, more: int) -> bytes:
    """Return the bits `shift` to `shift + 6` of `count` numbers from `first` on, and `more`."""
    if not shift:
        cycle = bytes(each | more for each in range(0x80))
        start = first & 0x7F
        return (cycle * (2 + count // 0x80))[start : start + count]
    runs: list[bytes] = []
    end = first + count
    while first < end:
        until = min(end, ((first >> shift) + 1) << shift)
        runs.append(bytes((first >> shift & 0x7F | more,)) * (until - first))
        first = until
    return b"".join(runs)


def encode_batch(messages: Iterable[tuple[pb.SingleMessageMetadata, Buffer]]) -> bytes:
    """Return the body of a batch, not compressed, and set the sizes in the metadata."""
    parts: list[Buffer] = []
    for single, data in messages:
        single.payload_size = len(data)
        fields = single.SerializeToString()
        parts += (U32.pack(len(fields)), fields, data)
    return b"".join(parts)
