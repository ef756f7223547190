"""A reader: reads a topic from any position on, without a subscription.

    reader = await client.create_reader("orders", start="earliest")
    while await reader.has_message_available():
        message = await reader.receive()

A reader acknowledges nothing, the broker remembers nothing for it, and it does not keep messages
from being trimmed.  A reader that loses its broker resumes behind the last entry that arrived.
"""

from dataclasses import dataclass, field

from daybook.clients.python.consumer import MessageSource
from daybook.clients.python.errors import CorruptMessageError, NotAllowedError
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.messages import Message, ValueT
from daybook.wire.proto import pulsar_pb2 as pb

_WHOLE_ENTRY = 1 << 31  # behind every message of a batch


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets that a topic holds: from `first` up to, and without, `next`.

    `created` is the number of the transaction that created the topic, and `instance` the id of its
    cluster.  A topic that was deleted and created again has a higher number.  Both are None if the
    broker does not know them.
    """

    first: int
    next: int
    # Two answers about the same offsets are equal, and print alike, whatever the broker knows.
    created: int | None = field(default=None, compare=False, repr=False)
    instance: str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SealedLedger:
    """A closed ledger of a topic, with the offsets of its messages: from `first` to before `next`.

    `bytes` is the size of its entries.
    """

    ledger_id: int
    first: int
    next: int
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicLedgers:
    """Where the messages of a topic, or of a partition, are stored.

    `url` is the address of the ledgers for `daybook.ledgers.connect`.  `sealed` are the closed
    ledgers in order; the messages behind them are in the ledger that is open.  A broker that is not
    Daybook's tells neither.
    """

    held: OffsetRange
    url: str | None = None
    sealed: tuple[SealedLedger, ...] = ()


@dataclass(frozen=True, slots=True)
class DeliveredEntry:
    """An entry as it is stored: the broker's metadata, then what the producer sent."""

    ledger_id: int
    entry_id: int
    data: bytes


class Reader(MessageSource[ValueT]):
    """A reader; `Client.create_reader` makes it."""

    _received: dict[int, tuple[int, int, int]] | None = None

    async def receive(self) -> Message[ValueT]:
        """Return the next message; raise EndOfTopicError behind the last of a terminated topic."""
        try:
            message = await super().receive()
        except CorruptMessageError as error:
            self._note_unreadable(error.message_id)
            raise
        self._note(message)
        return message

    async def receive_batch(self, count_max: int = 1000) -> list[Message[ValueT]]:
        """Wait for a message; return it and others that have arrived, or [] behind the last one."""
        try:
            messages = await super().receive_batch(count_max)
        except CorruptMessageError as error:
            self._note_unreadable(error.message_id)
            raise
        self._note_all(messages)
        return messages

    def receive_nowait(self, count_max: int = 1000) -> list[Message[ValueT]]:
        """Return as `MessageSource.receive_nowait`."""
        try:
            messages = super().receive_nowait(count_max)
        except CorruptMessageError as error:
            self._note_unreadable(error.message_id)
            raise
        self._note_all(messages)
        return messages

    async def __anext__(self) -> Message[ValueT]:
        try:
            message = await super().__anext__()
        except CorruptMessageError as error:
            self._note_unreadable(error.message_id)
            raise
        self._note(message)
        return message

    async def has_message_available(self) -> bool:
        """Return True if the topic has a message that was not received yet."""
        if self._queue.has_messages:
            return True
        received = self._received or {}
        for consumer in self._partition_consumers:
            last, answer = await consumer.last_message_id()
            if last.entry_id < 0:
                continue
            here = received.get(consumer.topic.partition)
            if here is None:
                start = MessageId.of_proto(answer.consumer_mark_delete_position)
                if not answer.HasField("consumer_mark_delete_position"):
                    start = MessageId(-1, -1)
                if (last.ledger_id, last.entry_id) > (start.ledger_id, start.entry_id):
                    return True
            elif (last.ledger_id, last.entry_id, last.batch_index) > here:
                return True
        return False

    async def receive_entries(self) -> list[DeliveredEntry]:
        """Wait for an entry; return it and others that have arrived, or [] behind the last one.

        The entries are those that hold the messages from the start position on, whole and not
        unpacked.  A reader is used for entries or for messages, not for both.
        """
        found = await self._queue.take_entries(self._partition_consumers)
        return [DeliveredEntry(e.delivery.ledger_id, e.delivery.entry_id, e.payload) for e in found]

    async def offset_ranges(self) -> list[OffsetRange]:
        """Return the offsets that each partition holds now."""
        return [
            _held((await consumer.last_message_id())[1]) for consumer in self._partition_consumers
        ]

    async def ledgers(self) -> list[TopicLedgers]:
        """Return the sealed ledgers of each partition, with their offsets."""
        found: list[TopicLedgers] = []
        for consumer in self._partition_consumers:
            _, answer = await consumer.last_message_id(with_ledgers=True)
            sealed = [
                SealedLedger(
                    each.ledger_id, each.first_offset, each.next_offset, each.entries, each.bytes
                )
                for each in answer.ledgers
            ]
            found.append(TopicLedgers(_held(answer), answer.ledgers_url or None, tuple(sealed)))
        return found

    def _note_unreadable(self, place: MessageId) -> None:
        """Note an entry whose error was raised: the application does not wait for it any more."""
        if self._received is None:
            self._received = {}
        self._received[place.partition] = (place.ledger_id, place.entry_id, _WHOLE_ENTRY)

    def _note_all(self, messages: list[Message[ValueT]]) -> None:
        if len(self._partition_consumers) == 1:
            messages = messages[-1:]  # The others are before it.
        for message in messages:
            self._note(message)

    def _note(self, message: Message[ValueT]) -> None:
        if self._received is None:
            self._received = {}
        entry = message.entry
        here = (entry.ledger_id, entry.entry_id, message.batch_index)
        self._received[entry.partition] = here


def _held(answer: pb.CommandGetLastMessageIdResponse) -> OffsetRange:
    if not answer.HasField("next_offset"):
        raise NotAllowedError(
            pb.NotAllowedError, "this broker does not number messages, so they have no offsets"
        )
    return OffsetRange(
        answer.first_offset,
        answer.next_offset,
        answer.created if answer.HasField("created") else None,
        answer.instance if answer.HasField("instance") else None,
    )
