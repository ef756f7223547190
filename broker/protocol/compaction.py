"""Which messages a compaction keeps, and how a batch looks that loses some of its messages.

A compaction reads the same entries twice.  The first pass (`Selection.add`) finds the last message
of each key.  The second pass (`Selection.rewrite`) returns each entry as it is to be stored: as it
was, without some of its messages, or not at all.  The rules are those of Pulsar's compactor:

- The last message of a key is kept.  If its value is empty (a tombstone), the key is removed.
- Messages without a key are removed, unless `retain_keyless`.
- A batch of which some messages are kept is built again: each other message leaves its metadata
  with the flag `compacted_out`, so the index of a message in its batch stays the same.  The batch
  lists the indexes that are left (`compacted_batch_indexes`).
- Markers of transactions and of replication are removed.

Three rules keep more than Pulsar's compactor does, which would lose messages there:

- Batches that are encrypted are kept whole.  Their messages cannot be read, and the key of the
  batch is only that of its first message.  Entries that do not parse, or do not match their
  checksum, are kept whole, too.
- The chunks of a message are kept or removed together.  Chunks whose message is not complete are
  kept, because the others may follow behind the horizon.  They are removed when a later message of
  the same producer is complete.
- A binary key is never mixed up with a text that happens to be its base64 form.

The memory of a selection is bounded: a dictionary entry for each key that has a value now and for
each chunk (at most `keys_max` together), whatever the length of the key, and one bit for each
message that was read.

A batch may have 262,144 messages, which take more than a second.  So both passes are generators,
which yield after `SLICE_MESSAGES` messages: other work may be done then.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush

from google.protobuf.message import DecodeError

from daybook.wire.batch import (
    BatchReader,
    SingleMetadata,
    encode_payload,
    is_batch,
    parse_metadata,
    split_broker_metadata,
    verify_checksum,
)
from daybook.wire.compression import CompressionType, compress, decompress
from daybook.wire.errors import MalformedError, TruncatedError, WireError
from daybook.wire.fields import U32
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer

BYTES_A_KEY = 160  # the memory of one key in CPython's dictionary, measured
_DIGEST_BYTES = 16
SLICE_MESSAGES = 1000  # some five milliseconds
_UNCOMPRESSED_BYTES_MAX = 64 << 20  # A batch that claims more is not read.
_OUT = pb.SingleMessageMetadata(compacted_out=True, payload_size=0).SerializeToString()
_REMOVED = U32.pack(len(_OUT)) + _OUT


class TooManyKeysError(Exception):
    """The entries have more keys than the selection may remember."""

    def __init__(self, keys_max: int) -> None:
        super().__init__(
            f"the topic has more than {keys_max} keys or chunks, which is the limit of this"
            f" broker: raise the setting `compaction_keys_max`; each key takes about {BYTES_A_KEY}"
            " bytes of memory while a compaction runs"
        )


class ChangedError(Exception):
    """The second pass read other entries than the first."""


@dataclass(slots=True)
class _Group:
    """The chunks of one message that have been read so far."""

    uuid: str
    sequence_id: int
    chunks: int
    numbers: set[int] = field(default_factory=set[int])
    messages: list[int] = field(default_factory=list[int])


class _Unfinished:
    """The messages of one producer of which chunks are missing, the oldest first.

    A client chooses its sequence ids, and may leave any number of messages unfinished.  So each
    message costs a heap operation, and no look at all the others.
    """

    def __init__(self) -> None:
        self._by_uuid: dict[str, _Group] = {}
        self._oldest: list[tuple[int, int, _Group]] = []  # a heap; finished ones stay for a while

    def __len__(self) -> int:
        return len(self._by_uuid)

    def get(self, metadata: pb.MessageMetadata, number: int) -> _Group:
        """Return the group of a chunk, a new one for the first; `number` is that of the chunk."""
        group = self._by_uuid.get(metadata.uuid)
        if group is None:
            group = _Group(metadata.uuid, metadata.sequence_id, metadata.num_chunks_from_msg)
            self._by_uuid[group.uuid] = group
            heappush(self._oldest, (group.sequence_id, number, group))
        return group

    def remove(self, group: _Group) -> None:
        del self._by_uuid[group.uuid]

    def pop_before(self, sequence_id: int) -> Iterator[_Group]:
        """Remove and return the groups with smaller sequence ids."""
        while self._oldest and self._oldest[0][0] < sequence_id:
            group = heappop(self._oldest)[2]
            if self._by_uuid.get(group.uuid) is group:
                self.remove(group)
                yield group


class Selection:
    """One instance per compaction.

    Messages are numbered in the order in which they are read; a bit for each number says whether
    the message is kept.  `salt` makes the digests of the keys unpredictable.
    """

    def __init__(self, *, keys_max: int, salt: bytes, retain_keyless: bool) -> None:
        self.removed = 0  # messages that later ones have replaced or removed, and keyless ones
        self.messages = 0
        self._keys_max = keys_max
        self._salt = salt
        self._retain_keyless = retain_keyless
        self._latest: dict[bytes, int] = {}
        self._kept = bytearray()
        self._unfinished: dict[str, _Unfinished] = {}  # messages in chunks, by producer
        self._chunks_seen = 0  # they take as much memory as keys
        self._chunks: dict[int, list[int]] = {}  # all chunks of a kept message, by its last one
        self._at = 0  # how far the second pass has come
        self._batches = BatchReader()

    @property
    def keys(self) -> int:
        return len(self._latest)

    # -- the first pass

    def add(self, data: memoryview) -> Generator[None]:
        """Read the next entry, in slices.  Raise TooManyKeysError."""
        metadata, body = _parse(data)
        if metadata is None:
            self._number(1, kept=True)
        elif metadata.HasField("marker_type"):
            self._number(1, kept=False)
        elif is_batch(metadata):
            yield from self._add_batch(metadata, body)
        elif metadata.num_chunks_from_msg > 1:
            self._add_chunk(metadata)
        else:
            self._finished(metadata)
            self._add_message(_key(metadata), is_empty=_is_empty(metadata, body))

    def _add_batch(self, metadata: pb.MessageMetadata, body: memoryview) -> Generator[None]:
        count = metadata.num_messages_in_batch
        self._finished(metadata)
        if metadata.encryption_keys:
            self._number(count, kept=True)
            return
        singles: list[SingleMetadata] = []
        try:
            for single in self._batches.singles(_plain(metadata, body), count):
                singles.append(single)
                if len(singles) % SLICE_MESSAGES == 0:
                    yield
        except WireError:
            self._number(count, kept=True)
            return
        for done, single in enumerate(singles):
            if done % SLICE_MESSAGES == SLICE_MESSAGES - 1:
                yield
            if single.compacted_out:
                # An earlier compaction removed the message.  It needs no other metadata now.
                self._number(1, kept=True)
            else:
                key = None if single.key is None else (single.key, single.key_is_base64)
                self._add_message(key, is_empty=not single.payload_size)

    def _add_message(self, key: tuple[str, bool] | None, *, is_empty: bool) -> None:
        if key is None:
            self._number(1, kept=self._retain_keyless)
            self.removed += not self._retain_keyless
            return
        number = self._number(1, kept=not is_empty)
        self._replace(self._digest(key), None if is_empty else number)
        self.removed += is_empty

    def _replace(self, key: bytes, number: int | None) -> None:
        """Set the last message of a key; None if the key has none any more."""
        if number is None:
            before = self._latest.pop(key, None)
        else:
            before = self._latest.get(key)
            if before is None and len(self._latest) >= self._keys_max:
                raise TooManyKeysError(self._keys_max)
            self._latest[key] = number
        if before is not None:
            self.removed += 1
            self._remove(self._chunks.pop(before, (before,)))

    def _digest(self, key: tuple[str, bool]) -> bytes:
        text, is_base64 = key
        return blake2b(
            text.encode(), digest_size=_DIGEST_BYTES, key=self._salt, person=b"b" * is_base64
        ).digest()

    # -- chunks

    def _add_chunk(self, metadata: pb.MessageMetadata) -> None:
        number = self._number(1, kept=True)
        self._chunks_seen += 1
        if len(self._latest) + self._chunks_seen > self._keys_max:
            raise TooManyKeysError(self._keys_max)
        groups = self._unfinished.get(metadata.producer_name)
        if groups is None:
            groups = self._unfinished[metadata.producer_name] = _Unfinished()
        group = groups.get(metadata, number)
        group.numbers.add(metadata.chunk_id)
        group.messages.append(number)
        if metadata.chunk_id != group.chunks - 1:
            return
        groups.remove(group)
        if len(group.numbers) < group.chunks:
            return  # No client can read the message, so it replaces none.
        self._finished(metadata)
        key = _key(metadata)
        if key is not None:
            self._chunks[number] = group.messages
            self._replace(self._digest(key), number)
        elif not self._retain_keyless:
            self.removed += 1
            self._remove(group.messages)

    def _finished(self, metadata: pb.MessageMetadata) -> None:
        """Remove the chunks that a producer has left behind: a later message of it is complete."""
        if not self._unfinished:
            return
        groups = self._unfinished.get(metadata.producer_name)
        if groups is None:
            return
        for group in groups.pop_before(metadata.sequence_id):
            self._remove(group.messages)
        if not groups:
            del self._unfinished[metadata.producer_name]

    # -- the bits

    def _number(self, count: int, *, kept: bool) -> int:
        """Number the next messages; return the first number."""
        first = self.messages
        self.messages += count
        missing = (self.messages + 7) // 8 - len(self._kept)
        if missing > 0:
            self._kept += bytes(missing)
        if kept:
            for number in range(first, first + count):
                self._kept[number >> 3] |= 1 << (number & 7)
        return first

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._kept[number >> 3] &= ~(1 << (number & 7))

    def _bits(self, first: int, count: int) -> int:
        """Return the bits of so many messages; bit 0 is that of the first one."""
        start, end = first >> 3, (first + count + 7) >> 3
        bits = int.from_bytes(self._kept[start:end], "little") >> (first & 7)
        return bits & ((1 << count) - 1)

    # -- the second pass

    def forget_keys(self) -> None:
        """Free the memory of the first pass: the bits say all."""
        self._latest = {}
        self._unfinished.clear()
        self._chunks.clear()

    def rewrite(self, data: memoryview) -> Generator[None, None, Buffer | None]:
        """Return the next entry as it is to be stored, in slices; None if nothing of it is kept.

        Raise ChangedError if there are more messages than in the first pass.
        """
        metadata, body = _parse(data)
        batch = metadata is not None and is_batch(metadata)
        count = metadata.num_messages_in_batch if metadata is not None and batch else 1
        first, self._at = self._at, self._at + count
        if self._at > self.messages:
            raise ChangedError("the second pass has read more messages than the first")
        bits = self._bits(first, count)
        if not bits:
            return None
        if metadata is None or not batch or bits == (1 << count) - 1:
            # A batch whose messages are all gone may come from an earlier compaction.
            return data
        return (yield from _rebuild(data, metadata, body, bits))

    def check_complete(self) -> None:
        """Raise ChangedError if the second pass has read fewer messages than the first."""
        if self._at != self.messages:
            raise ChangedError(
                f"the second pass has read {self._at} messages, and the first one {self.messages}"
            )


# -- entries


def last_index(data: memoryview) -> Generator[None, None, int]:
    """Return the index of the last message of an entry that was not removed, in slices.

    It is -1 if the entry is no batch.
    """
    metadata, body = _parse(data)
    if metadata is None or not is_batch(metadata):
        return -1
    count = metadata.num_messages_in_batch
    if not metadata.encryption_keys:
        with suppress(WireError):
            last = -1
            for index, single in enumerate(BatchReader().singles(_plain(metadata, body), count)):
                if not single.compacted_out:
                    last = index
                if index % SLICE_MESSAGES == SLICE_MESSAGES - 1:
                    yield
            return last
    return count - 1


def _parse(data: memoryview) -> tuple[pb.MessageMetadata | None, memoryview]:
    """Return metadata and body of an entry; None if it cannot be read."""
    try:
        verify_checksum(data)
        return parse_metadata(data)
    except WireError:
        return None, data


def _key(metadata: pb.MessageMetadata) -> tuple[str, bool] | None:
    if not metadata.HasField("partition_key") or metadata.null_partition_key:
        return None
    return metadata.partition_key, metadata.partition_key_b64_encoded


def _is_empty(metadata: pb.MessageMetadata, body: memoryview) -> bool:
    """Return True for a tombstone.

    An empty value that was compressed or encrypted is not empty any more; its size before is in the
    metadata.
    """
    if metadata.null_value or not body:
        return True
    changed = metadata.compression != pb.NONE or metadata.encryption_keys
    return (
        bool(changed)
        and metadata.HasField("uncompressed_size")
        and not (metadata.uncompressed_size)
    )


def _plain(metadata: pb.MessageMetadata, body: memoryview) -> bytes:
    size = metadata.uncompressed_size
    return bytes(decompress(metadata.compression, body, size, _UNCOMPRESSED_BYTES_MAX))


def _rebuild(
    data: memoryview, metadata: pb.MessageMetadata, body: memoryview, bits: int
) -> Generator[None, None, Buffer | None]:
    """Return the batch with only those messages whose bits are set; None if that is none."""
    plain = memoryview(_plain(metadata, body))
    parts: list[Buffer] = []
    left: list[int] = []
    offset = 0
    count = metadata.num_messages_in_batch
    # A shift of the number would copy all of its bits, for each message.
    kept = bits.to_bytes((count + 7) // 8, "little")
    for index in range(count):
        if index % SLICE_MESSAGES == SLICE_MESSAGES - 1:
            yield
        end, is_out = _end_of_message(plain, offset)
        if is_out or not kept[index >> 3] >> (index & 7) & 1:
            parts.append(_REMOVED)
        else:
            # The bytes are taken over, because metadata may have fields that are not known here.
            parts.append(plain[offset:end])
            left.append(index)
        offset = end
    if not left:
        return None
    whole = b"".join(parts)
    metadata.uncompressed_size = len(whole)
    metadata.compacted_batch_indexes[:] = left
    payload = encode_payload(metadata, compress(CompressionType(metadata.compression), whole))
    head = len(data) - len(split_broker_metadata(data)[2])
    return bytes(data[:head]) + payload


def _end_of_message(plain: memoryview, offset: int) -> tuple[int, bool]:
    """Return where a message of a batch ends, and whether it was removed before."""
    first = offset + U32.size
    if first > len(plain):
        raise TruncatedError("a batch is cut off")
    last = first + U32.unpack_from(plain, offset)[0]
    try:
        single = pb.SingleMessageMetadata.FromString(bytes(plain[first:last]))
    except DecodeError as error:
        raise MalformedError(f"the metadata of a message do not parse: {error}") from None
    return last + single.payload_size, single.compacted_out
