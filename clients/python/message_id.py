"""Positions in a topic: the id of a message, and an offset.

An *offset* is the number of a message in its topic, or in its partition of the topic: exact,
without gaps, the same for every reader.  The broker numbers the entries; messages of a broker that
does not have no offset.
"""

from dataclasses import dataclass
from typing import Self

import msgspec
from google.protobuf.message import DecodeError

from daybook.wire.errors import MalformedError
from daybook.wire.fields import signed
from daybook.wire.proto import pulsar_pb2 as pb

_LAST = (1 << 63) - 1
_U64 = (1 << 64) - 1


class MessageId(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The place of a message.  `batch_index` and `partition` are -1 where there is none.

    `topic` is the full name of the topic, or of the partition; it is None for an id that was
    decoded from bytes without it.  Ids are compared without their topics: a ledger belongs to one
    topic only.

    A structure of msgspec, like `Message`: every receipt of a message makes one.
    """

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    partition: int = -1
    topic: str | None = None

    @property
    def _place(self) -> tuple[int, int, int, int]:
        return self.ledger_id, self.entry_id, self.batch_index, self.partition

    def __eq__(self, other: object) -> bool:
        return self._place == other._place if isinstance(other, MessageId) else NotImplemented

    def __ne__(self, other: object) -> bool:
        # The base class has a comparison of its own here, which does not ask `__eq__`.
        return not self == other

    def __lt__(self, other: "MessageId") -> bool:
        return self._place < other._place

    def __le__(self, other: "MessageId") -> bool:
        return self._place <= other._place

    def __gt__(self, other: "MessageId") -> bool:
        return self._place > other._place

    def __ge__(self, other: "MessageId") -> bool:
        return self._place >= other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def stored_before(self) -> bool:
        """True for a send that was not stored again, because the topic had the message already.

        The id then tells no place.  Only topics with deduplication answer so.
        """
        return self.ledger_id < 0

    def encode(self) -> bytes:
        """Return the id as bytes, in the format of other Pulsar clients, which lacks the topic."""
        return self.to_proto().SerializeToString()

    @classmethod
    def decode(cls, data: bytes, topic: str | None = None) -> Self:
        """Return the id that `encode` made these bytes of; raise MalformedError.

        `topic`: the full name of its topic, which a consumer of several topics needs.
        """
        try:
            parsed = pb.MessageIdData.FromString(data)
        except DecodeError as error:
            raise MalformedError(f"the bytes are not a message id: {error}") from None
        if not parsed.IsInitialized():
            raise MalformedError(
                "the bytes are not a message id: the ledger or the entry is missing"
            )
        return cls.of_proto(parsed, topic=topic)

    @classmethod
    def of_proto(
        cls, data: pb.MessageIdData, *, partition: int | None = None, topic: str | None = None
    ) -> Self:
        where = data.partition if partition is None else partition
        return cls(signed(data.ledgerId), signed(data.entryId), data.batch_index, where, topic)

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
"""The position behind the last message."""


@dataclass(frozen=True, order=True, slots=True)
class Offset:
    """A position by number: `create_reader(topic, start=Offset(1000))`."""

    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError(f"an offset must not be negative: {self.value}")
