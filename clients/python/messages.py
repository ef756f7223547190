"""Messages as an application gets them.

A message keeps its data and a reference to its entry; other properties are looked up when they are
used.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic
from weakref import ReferenceType

import msgspec

from daybook.clients.python.message_id import MessageId
from daybook.clients.python.schemas.versions import VersionDecoder
from daybook.wire.batch import SingleMetadata

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # The values of a consumer without a schema are bytes.
    ValueT = TypeVar("ValueT", default=bytes)
else:
    from typing import TypeVar

    ValueT = TypeVar("ValueT")


@dataclass(slots=True)
class Entry:
    """An entry, to which its messages refer."""

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    redelivery_count: int
    publish_time_ms: int
    broker_time_ms: int | None
    producer_name: str
    sequence_id: int  # the first message's
    first_offset: int | None
    is_batch: bool
    source: ReferenceType[object]  # the TopicConsumer that received it; weak, see `Message`
    generation: int  # the generation of that consumer when the entry arrived
    schema_version: bytes = b""
    decoder: VersionDecoder | None = None  # None: the consumer has no schema


class Message(msgspec.Struct, Generic[ValueT], eq=False, gc=False):
    """One message.  `data` is what was sent: bytes, or None for a tombstone (`send(None)`).

    `value` is what a producer with a schema sent.

    A structure of msgspec without garbage collection, because clients make hundreds of thousands a
    second.  So a message must not hold anything that can be part of a reference cycle: the cycle
    would never be freed.
    """

    data: bytes | None
    entry: Entry
    index: int  # in its entry
    _single: SingleMetadata

    @property
    def value(self) -> ValueT | None:
        """The data, decoded by the schema of the consumer; None for a tombstone.

        The value of a pair whose key is the key of the message (`schemas.key_value(...,
        separated=True)`) has None for what is not there.

        It is decoded each time.  Raise ValueError for data that are not of the schema, and
        UnavailableError if no broker could say with which version they were written.
        """
        # Without `cast`, which is a call: the application looks at each message.
        data, decoder = self.data, self.entry.decoder
        if decoder is None:
            return data  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
        found: ValueT
        if decoder.decode_pair is not None:
            found = decoder.decode_pair(self.key_bytes, data)
            return found
        if data is None:
            return None
        found = decoder.decode(data)
        return found

    @property
    def schema_version(self) -> int | None:
        """The version of the schema with which it was written; None if it names none."""
        version = self.entry.schema_version
        return int.from_bytes(version[:8], "big", signed=True) if version else None

    @property
    def batch_index(self) -> int:
        """The index of the message in its batch; -1 if it was sent alone."""
        return self.index if self.entry.is_batch else -1

    @property
    def message_id(self) -> MessageId:
        entry = self.entry
        return MessageId(
            entry.ledger_id, entry.entry_id, self.batch_index, entry.partition, entry.topic
        )

    @property
    def offset(self) -> int | None:
        """The number of the message in its topic or partition; None if the broker has none."""
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
        """The key; a key that was given as bytes is base64 here (see `key_bytes`)."""
        return self._single.key

    @property
    def key_is_bytes(self) -> bool:
        """True if the key was given as bytes."""
        return self._single.key_is_base64

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
    def ordering_key(self) -> bytes | None:
        """The key by which key_shared consumers share messages, if it is not `key`."""
        return self._single.ordering_key

    @property
    def properties(self) -> Mapping[str, str]:
        return dict(self._single.properties)

    @property
    def publish_time_ms(self) -> int:
        """The time at which the producer sent the message, by the producer's clock."""
        return self.entry.publish_time_ms

    @property
    def broker_time_ms(self) -> int | None:
        """The time at which the broker received the message, by its clock; None if unknown."""
        return self.entry.broker_time_ms

    @property
    def event_time_ms(self) -> int | None:
        """The time that the application gave to the message."""
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
        """True for a tombstone: a message without a value, which deletes its key."""
        return self._single.null_value

    @property
    def compacted_out(self) -> bool:
        """True if compaction has removed the message; the client does not hand it out."""
        return self._single.compacted_out

    def __repr__(self) -> str:
        size = "a tombstone" if self.data is None else f"{len(self.data)} bytes"
        return f"<Message {self.message_id} of {self.topic}, {size}>"
