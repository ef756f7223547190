"""Messages as an application gets them, and the names of their places.

A message keeps its data and a reference to the entry it came in; what else is known about it is
looked up when asked for.  An *offset* is the number of a message in its topic, or in its partition
of the topic: exact, without gaps, the same for every reader.  The broker numbers entries; a broker
that does not gives messages without offset.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from weakref import ReferenceType

import msgspec
from google.protobuf.message import DecodeError

from daybook.wire.batch import SingleMetadata
from daybook.wire.errors import MalformedError
from daybook.wire.fields import signed
from daybook.wire.proto import pulsar_pb2 as pb

_LAST = (1 << 63) - 1
_U64 = (1 << 64) - 1


class MessageId(msgspec.Struct, frozen=True, order=True, gc=False):
    """Where a message is.  `batch_index` and `partition` are -1 where there is none.

    A structure of msgspec, as `Message`: every receipt of a message makes one.
    """

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    partition: int = -1

    def encode(self) -> bytes:
        """As bytes that other clients understand, too."""
        return self.to_proto().SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse of `encode`; raises MalformedError."""
        try:
            parsed = pb.MessageIdData.FromString(data)
        except DecodeError as error:
            raise MalformedError(f"not a message id: {error}") from None
        if not parsed.IsInitialized():
            raise MalformedError("not a message id: ledger or entry are missing")
        return cls.of_proto(parsed)

    @classmethod
    def of_proto(cls, data: pb.MessageIdData, *, partition: int | None = None) -> Self:
        where = data.partition if partition is None else partition
        return cls(signed(data.ledgerId), signed(data.entryId), data.batch_index, where)

    def to_proto(self) -> pb.MessageIdData:
        data = pb.MessageIdData(ledgerId=self.ledger_id & _U64, entryId=self.entry_id & _U64)
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
        return data

    def __str__(self) -> str:
        parts = [self.ledger_id, self.entry_id, self.partition]
        return ":".join(map(str, parts if self.batch_index < 0 else [*parts, self.batch_index]))


EARLIEST = MessageId(-1, -1)
"""The first message that is retained."""
LATEST = MessageId(_LAST, _LAST)
"""Behind the last message."""


@dataclass(frozen=True, order=True, slots=True)
class Offset:
    """A position by number: `create_reader(topic, start=Offset(1000))`."""

    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError(f"an offset is not negative: {self.value}")


@dataclass(slots=True)
class Entry:
    """What the messages of one entry have in common."""

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    redelivery_count: int
    publish_time_ms: int
    broker_time_ms: int | None
    producer_name: str
    sequence_id: int  # of the first message
    first_offset: int | None
    is_batch: bool
    source: ReferenceType[object]  # the consumer's end that it came to: weak, for `Message`
    generation: int  # of that end: seeks until it came


class Message(msgspec.Struct, eq=False, gc=False):
    """One message.  `data` is what was sent: bytes, or None for a tombstone (`send(None)`).

    A structure of msgspec, which the collector of cycles does not look at, because they are made by
    the hundred thousand a second.  So nothing that can be a part of a cycle may be held from here:
    it would never be freed.
    """

    data: bytes | None
    entry: Entry
    index: int  # in its entry
    _single: SingleMetadata

    @property
    def batch_index(self) -> int:
        """Its place in a batch; -1 if it was sent alone."""
        return self.index if self.entry.is_batch else -1

    @property
    def message_id(self) -> MessageId:
        entry = self.entry
        return MessageId(entry.ledger_id, entry.entry_id, self.batch_index, entry.partition)

    @property
    def offset(self) -> int | None:
        """Its number in the topic, or in this partition of it."""
        first = self.entry.first_offset
        return None if first is None else first + self.index

    @property
    def topic(self) -> str:
        """The full name of the topic, or of the partition."""
        return self.entry.topic

    @property
    def partition(self) -> int:
        return self.entry.partition

    @property
    def key(self) -> str | None:
        """The key; of a key that was given as bytes, its base64."""
        return self._single.key

    @property
    def key_bytes(self) -> bytes | None:
        key = self._single.key
        if key is None or not self._single.key_is_base64:
            return None if key is None else key.encode()
        try:
            return b64decode(key, validate=True)
        except (Base64Error, ValueError):
            return key.encode()

    @property
    def properties(self) -> Mapping[str, str]:
        return dict(self._single.properties)

    @property
    def publish_time_ms(self) -> int:
        """When its producer sent it, by the producer's clock."""
        return self.entry.publish_time_ms

    @property
    def broker_time_ms(self) -> int | None:
        """When the broker took it, by the broker's clock, if the broker says so."""
        return self.entry.broker_time_ms

    @property
    def event_time_ms(self) -> int | None:
        """The time that the application gave it."""
        return self._single.event_time_ms or None

    @property
    def producer_name(self) -> str:
        return self.entry.producer_name

    @property
    def sequence_id(self) -> int:
        own = self._single.sequence_id
        return self.entry.sequence_id + self.index if own is None else own

    @property
    def redelivery_count(self) -> int:
        return self.entry.redelivery_count

    @property
    def is_null(self) -> bool:
        """Whether it was sent without a value, to say that its key is gone."""
        return self._single.null_value

    @property
    def compacted_out(self) -> bool:
        """Whether compaction has removed it; such messages are not handed out."""
        return self._single.compacted_out

    def __repr__(self) -> str:
        size = "a tombstone" if self.data is None else f"{len(self.data)} bytes"
        return f"<Message {self.message_id} of {self.topic}, {size}>"
