"""A producer of one topic or one partition: batches, the queue of sends, receipts.

Messages gather in a batch.  A full batch is sent at once; otherwise a batch is sent at the next
turn of the event loop if no send waits for a receipt, and after `batch_delay_s` if one does.  So a
single message does not wait, and many share a batch.

An entry that was sent stays in the queue until its receipt comes, through takeovers too (see
`protocol.sends`).  After `send_timeout_s` the send fails; if the entry was ever on the wire, it is
unknown whether it is stored.  An entry that was not, because the broker refuses the producer, fails
with that refusal; a quota with the policy producer_exception lets it fail at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import TypeAlias

import trio

from daybook.clients.python.arguments import (
    Batching,
    check_key,
    check_ordering_key,
    check_properties,
)
from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.connection_handler import ConnectionHandler
from daybook.clients.python.errors import (
    BrokerError,
    InDoubtError,
    MessageRejectedError,
    MessageTooLargeError,
    NotAllowedError,
    RefusedError,
    RequestTimedOutError,
    TopicTerminatedError,
    UnavailableError,
    is_quota_exception,
    is_refused_for_now,
    refusal,
)
from daybook.clients.python.limits import ClientLimits, ProducerLimits
from daybook.clients.python.lookup import Lookups
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.protocol.batching import (
    Batch,
    BatchBuilder,
    KeyedBatches,
    text_key,
)
from daybook.clients.python.protocol.sends import PendingSend, PendingSends, Surprise
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.python.statistics import SendCounts
from daybook.wire.batch import encode_payload_head
from daybook.wire.clock import WallClock
from daybook.wire.compression import CompressionType, compress
from daybook.wire.messages.client import SendReceipt, encode_send
from daybook.wire.messages.registry import AnyCommand, Command
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from daybook.wire.transport import Buffer

OnResult: TypeAlias = Callable[[MessageId | None, BrokerError | None], None]
"""Called once for a message: with its id, or with what went wrong."""

_KEY_CHARS = 256  # A longer key counts, like properties, when the size of a message is checked.
_PROPERTY_BYTES = 16  # bytes of a property in a frame, besides its name and value
_CHUNK_FIELDS = 512  # bytes of metadata that are set when an entry is queued, at most
_NO_PROPERTIES: Mapping[str, str] = {}
COMPRESSION_ON_THE_WIRE = {
    CompressionType.LZ4: pb.LZ4,
    CompressionType.ZLIB: pb.ZLIB,
    CompressionType.ZSTD: pb.ZSTD,
    CompressionType.SNAPPY: pb.SNAPPY,
}


class SendBudget:
    """The bytes that all partitions of one producer hold, and an event for tasks that wait."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.failure: Exception | None = None  # the first of a message without `on_result`
        self.failed_messages = 0  # how many of them failed
        self._changed: trio.Event | None = None

    def raise_failure(self) -> None:
        """Raise the first failure, once."""
        failure, self.failure, self.failed_messages = self.failure, None, 0
        if failure is not None:
            raise failure

    def changed(self) -> None:
        """Wake the tasks that wait: an entry got its receipt or failed."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def wait_changed(self) -> None:
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer was opened: the same for all its partitions."""

    name: str | None  # None: the broker chooses one
    limits: ProducerLimits
    compression: CompressionType
    batching: Batching
    initial_sequence_id: int | None
    initial_subscription: str | None
    chunking: bool
    schema: SchemaInfo | None
    budget: SendBudget  # shared by all its partitions, and so are the counts
    counts: SendCounts = field(default_factory=SendCounts)


def _size_beside(key: str | bytes | None, properties: Mapping[str, str] | None) -> int:
    """Return the bytes that a key and properties take in a frame, at most; raise TypeError.

    They count like the data: the broker closes a connection whose frame is above its limit.
    """
    check_key(key)
    size = 2 * len(key.encode() if isinstance(key, str) else key or b"")  # base64 takes a third
    for name, value in check_properties(properties):
        size += len(name.encode()) + len(value.encode()) + _PROPERTY_BYTES
    return size


class TopicProducer(ConnectionHandler):
    """One instance per topic, or per partition, of a producer."""

    def __init__(
        self,
        topic: TopicName,
        *,
        lookups: Lookups,
        limits: ClientLimits,
        rng: Random,
        clock: WallClock,
        producer_id: int,
        settings: ProducerSettings,
        on_batch: Callable[[], None],
    ) -> None:
        super().__init__(topic, lookups=lookups, limits=limits, rng=rng)
        self.name = settings.name or ""
        self._clock = clock
        self._id = producer_id
        self._epoch = 0
        self.deduplicated = False  # True if the broker says that it stores each message once
        self._settings = settings
        self._compression = settings.compression
        self._batching = settings.batching is not False
        self._budget = settings.budget
        self._counts = settings.counts
        self._on_batch = on_batch
        self.schema_version = b""
        self._chunking = settings.chunking
        self._next_sequence_id: int = settings.initial_sequence_id or 0
        # The broker has the messages before this id.  No batch spans it: it would be refused.
        self._first_new_id = 0
        self._max_bytes = 0
        self._partition = topic.partition
        batch_limits = settings.limits.batch_messages_max, settings.limits.batch_bytes_max
        by_key = settings.batching == "by_key"
        self._keyed: KeyedBatches[OnResult] | None = KeyedBatches(*batch_limits) if by_key else None
        self._plain = BatchBuilder(*batch_limits)  # used unless messages are batched by key
        self._builder = self._keyed or self._plain
        self._fills_plain_batches = self._batching and not by_key
        self._results: list[tuple[int, OnResult]] = []
        self._metadata = pb.MessageMetadata()
        self._pending = PendingSends()
        self._begun = trio.Event()  # the batch has its first message
        self._idle = trio.Event()  # no send waits for a receipt
        self._idle.set()
        self._shipped = 0  # entries so far: `_ship_in_time` sees whether its batch is gone

    @property
    def now_ms(self) -> int:
        """The present time, by the clock of this client."""
        return self._clock.now_ms()

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last message that was sent; -1 before the first."""
        return self._next_sequence_id - 1

    @property
    def pending_messages(self) -> int:
        """The number of messages that have neither a receipt nor an error yet."""
        return self._builder.count + self._pending.messages

    @property
    def waiting(self) -> bool:
        return not self._idle.is_set()

    def is_resolved(self, sequence_id: int) -> bool:
        """Return True if all entries shipped up to this sequence id are stored or have failed."""
        oldest = self._pending.oldest
        return oldest is None or oldest > sequence_id

    # -- the hot path

    def send_plain(self, data: bytes, key: str | None) -> bool:
        """Put a message of bytes, which may have a key, into the batch, if nothing is special.

        Return False if something is; then nothing was done, and the caller calls `send`.  Most
        messages come this way, which makes a third of the decisions of `send`.
        """
        plain, sequence_id, size = self._plain, self._next_sequence_id, len(data)
        index = plain.count
        if (
            size >= plain.bytes_max
            or plain.size + size > self._max_bytes
            or not self._fills_plain_batches
            or sequence_id == self._first_new_id
            or self.failure is not None
            or (key is not None and (type(key) is not str or len(key) > _KEY_CHARS))
        ):
            return False
        full = plain.add(data, key, sequence_id)
        # After `add`, which may raise: a message that was not taken must leave no trace.
        self._next_sequence_id = sequence_id + 1
        if full:
            self.ship()
        elif not index:
            self._begun.set()
        return True

    def send(
        self,
        data: bytes | None,
        key: str | bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int | None,
        sequence_id: int | None,
        on_result: OnResult | None,
        deliver_at_ms: int | None = None,
        ordering_key: bytes | None = None,
    ) -> None:
        """Put a message into the batch.  If this raises, the message was not taken."""
        builder = self._builder
        size = 0 if data is None else len(data)
        if ordering_key is not None:
            check_ordering_key(ordering_key)
            size += len(ordering_key)
        if properties or (key is not None and (type(key) is not str or len(key) > _KEY_CHARS)):
            size += _size_beside(key, properties)
        # A delayed message is alone in its entry, for which the broker keeps one time.
        alone = size >= builder.bytes_max or not self._batching or deliver_at_ms is not None
        if size > self._max_bytes and not self._takes_chunks(data, size):
            raise MessageTooLargeError(self._too_large(size))
        if self.failure is not None:
            raise self.failure
        numbered = sequence_id is not None
        if sequence_id is None:
            sequence_id = self._next_sequence_id
        elif sequence_id < self._next_sequence_id:
            raise ValueError(
                f"the sequence id {sequence_id} must be above {self.last_sequence_id}, the last one"
            )
        elif sequence_id > self._next_sequence_id:
            self.ship()  # The sequence ids of a batch have no gaps.
        if sequence_id == self._first_new_id:
            self.ship()
        if builder.size + size > self._max_bytes:
            self.ship()  # With this message the entry would be too large for the broker.
        if alone:
            self.ship()  # The messages before this one are sent before it.
            self._ship_single(
                data,
                key,
                properties,
                event_time_ms,
                sequence_id,
                on_result,
                deliver_at_ms,
                ordering_key,
            )
            self._next_sequence_id = sequence_id + 1
            return
        if self._keyed is not None:
            if numbered:
                self.ship()  # It is alone in its batch, because others would change its number.
            index, extras = self._keyed.count, properties or _NO_PROPERTIES
            full = self._keyed.add(
                data, key, ordering_key, extras, event_time_ms, sequence_id, on_result
            )
            self._next_sequence_id = sequence_id + 1
            if full or numbered:
                self.ship()
            elif not index:
                self._begun.set()
            return
        plain = self._plain
        index = plain.count
        beside = properties is not None or event_time_ms is not None or ordering_key is not None
        if data is not None and not beside:
            full = plain.add(data, key, sequence_id)
        else:
            full = plain.add_special(
                data, key, properties or _NO_PROPERTIES, event_time_ms, sequence_id, ordering_key
            )
        # After `add`, which may raise: a message that was not taken must leave no trace.
        self._next_sequence_id = sequence_id + 1
        if on_result is not None:
            self._results.append((index, on_result))
        if full:
            self.ship()
        elif not index:
            self._begun.set()

    def send_batch(self, batch: Batch) -> None:
        """Send messages that are a batch already.  If this raises, none of them was taken."""
        if len(batch.body) > self._max_bytes:
            raise MessageTooLargeError(
                f"a batch of {batch.count} messages has {len(batch.body)} bytes, and the broker"
                f" takes at most {self._max_bytes}"
            )
        if self.failure is not None:
            raise self.failure
        self.ship()  # The messages before these are sent before them.
        first = self._next_sequence_id
        assert first >= self._first_new_id, "the batch would span an id that the broker has"
        self._next_sequence_id = first + batch.count
        numbered = replace(batch, sequence_id=first, highest_sequence_id=first + batch.count - 1)
        self._ship_batch(numbered, [])
        self._on_batch()

    def ship(self) -> None:
        """Send the batch with the messages that it has, or the batch of each key."""
        if not self._builder.count:
            return
        if self._keyed is not None:
            for batch, results in self._keyed.take():
                self._ship_batch(batch, results)
        else:
            results, self._results = self._results, []
            self._ship_batch(self._plain.take(), results)
        self._on_batch()

    def _ship_batch(self, batch: Batch, results: list[tuple[int, OnResult]]) -> None:
        metadata = self._metadata
        metadata.num_messages_in_batch = batch.count
        if batch.key is None:
            metadata.ClearField("partition_key")
        else:
            metadata.partition_key = batch.key
        if batch.key_is_base64:
            metadata.partition_key_b64_encoded = True
        else:
            metadata.ClearField("partition_key_b64_encoded")
        if batch.ordering_key is None:
            metadata.ClearField("ordering_key")
        else:
            metadata.ordering_key = batch.ordering_key
        self._push(metadata, batch, results)

    def _ship_single(
        self,
        data: bytes | None,
        key: str | bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int | None,
        sequence_id: int,
        on_result: OnResult | None,
        deliver_at_ms: int | None,
        ordering_key: bytes | None,
    ) -> None:
        text, is_base64 = text_key(key)
        metadata = pb.MessageMetadata(
            partition_key=text,
            event_time=event_time_ms,
            deliver_at_time=deliver_at_ms,
            ordering_key=ordering_key,
        )
        if is_base64:
            metadata.partition_key_b64_encoded = True
        if data is None:
            metadata.null_value = True
        for name, value in (properties or _NO_PROPERTIES).items():
            metadata.properties.add(key=name, value=value)
        batch = Batch(data or b"", 1, sequence_id, sequence_id, text, is_base64)
        results = [] if on_result is None else [(-1, on_result)]
        beside = len(metadata.SerializePartialToString()) if self._chunking else 0
        if self._chunking and len(batch.body) + beside > self._max_bytes:
            self._push_chunks(metadata, batch, results)
        else:
            self._push(metadata, batch, results)
        self._on_batch()

    def _too_large(self, size: int) -> str:
        text = f"the message has {size} bytes with its key and properties, and"
        waiting = self._settings.limits.pending_bytes_max
        if self._chunking and size > waiting:
            return (
                f"{text} a producer holds at most {waiting} bytes that have no receipt, also in"
                " chunks: open it with a larger pending_bytes_max"
            )
        text += f" the broker takes at most {self._max_bytes}"
        if not self._chunking:
            return f"{text}: with chunking=True the producer sends it in parts"
        return f"{text}: the key and the properties, which are not cut, have too much of it"

    def _takes_chunks(self, data: bytes | None, size: int) -> bool:
        """Return True if the message may be sent in chunks, each with its key and properties."""
        beside = size - len(data or b"")
        return (
            self._chunking
            and beside <= self._max_bytes // 2
            and size <= self._settings.limits.pending_bytes_max
        )

    def _push_chunks(
        self, metadata: pb.MessageMetadata, batch: Batch, results: list[tuple[int, OnResult]]
    ) -> None:
        """Send a message in entries of its own, of which only the last one is the message."""
        body: Buffer = batch.body
        if self._compression is not CompressionType.NONE:
            body = self._compressed(metadata, body)
        room = self._max_bytes - len(metadata.SerializePartialToString()) - _CHUNK_FIELDS
        whole = bytes(body)
        parts = [whole[at : at + room] for at in range(0, len(whole), room)]
        if len(parts) > 1:
            metadata.uuid = f"{self.name}-{batch.sequence_id}"
            metadata.num_chunks_from_msg = len(parts)
            metadata.total_chunk_msg_size = len(whole)
        # One deadline for all: without one of its chunks the rest of a message is of no use, and a
        # receipt for a chunk that was given up would count for the next one, which has its id.
        deadline = self._deadline()
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            if len(parts) > 1:
                metadata.chunk_id = index
            self._queue_entry(
                metadata,
                part,
                replace(batch, body=part, count=int(is_last)),
                results if is_last else [],
                deadline,
                is_chunk=len(parts) > 1,
            )

    def _push(
        self, metadata: pb.MessageMetadata, batch: Batch, results: list[tuple[int, OnResult]]
    ) -> None:
        body: Buffer = batch.body
        if self._compression is not CompressionType.NONE:
            body = self._compressed(metadata, body)
        self._queue_entry(metadata, body, batch, results, self._deadline())

    def _deadline(self) -> float:
        """Return the time at which an entry that is queued now is given up."""
        timeout_s = self._settings.limits.send_timeout_s
        return inf if timeout_s is None else trio.current_time() + timeout_s

    def _queue_entry(
        self,
        metadata: pb.MessageMetadata,
        body: Buffer,
        batch: Batch,
        results: list[tuple[int, OnResult]],
        deadline: float,
        *,
        is_chunk: bool = False,
    ) -> None:
        """Put an entry into the queue, and send it if a broker is attached."""
        metadata.producer_name = self.name
        metadata.sequence_id = batch.sequence_id
        metadata.publish_time = self._clock.now_ms()
        if self.schema_version:
            metadata.schema_version = self.schema_version
        highest = batch.highest_sequence_id if batch.count > 1 else None
        if highest is not None:
            metadata.highest_sequence_id = highest
        else:
            metadata.ClearField("highest_sequence_id")
        head = encode_payload_head(metadata, body)
        frame = encode_send(
            self._id,
            batch.sequence_id,
            len(head) + len(body),
            num_messages=batch.count or 1,
            highest_sequence_id=highest,
            is_chunk=is_chunk,
        )
        now = trio.current_time()
        send = PendingSend(
            batch.sequence_id,
            batch.highest_sequence_id,
            batch.count,
            len(batch.body),
            (frame + head, body),
            deadline,
            results,
            queued_at=now,
        )
        self._counts.entry_queued(send.count, send.size)
        # In the queue before it is sent: a receipt is matched with the head of the queue.
        self._pending.push(send)
        self._budget.used += send.size
        self._shipped += 1
        if self._idle.is_set():
            self._idle = trio.Event()
        if self.connection is not None:
            send.sent = True
            self.connection.send(send.frame)

    def _compressed(self, metadata: pb.MessageMetadata, body: Buffer) -> Buffer:
        packed = compress(self._compression, body)
        if len(packed) >= len(body):
            metadata.ClearField("compression")
            metadata.ClearField("uncompressed_size")
            return body
        metadata.compression = COMPRESSION_ON_THE_WIRE[self._compression]
        metadata.uncompressed_size = len(body)
        return packed

    # -- its tasks

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ship_in_time)
            if self._settings.limits.send_timeout_s is not None:
                nursery.start_soon(self._give_up_in_time, self._settings.limits.send_timeout_s)
            await super().run()
            nursery.cancel_scope.cancel()

    async def _ship_in_time(self) -> None:
        while True:
            await self._begun.wait()
            self._begun = trio.Event()
            shipped = self._shipped
            if len(self._pending) and self._settings.limits.batch_delay_s > 0:
                with trio.move_on_after(self._settings.limits.batch_delay_s):
                    await self._idle.wait()
            # A full batch left during the delay.  The next one has set `_begun`, and gets a delay
            # of its own.
            if self._shipped == shipped:
                self.ship()

    async def _give_up_in_time(self, timeout_s: float) -> None:
        while True:
            deadline = self._pending.deadline
            # An entry that is queued meanwhile expires `timeout_s` from now at the earliest.
            await trio.sleep_until(
                trio.current_time() + timeout_s if deadline is None else deadline
            )
            for send in self._pending.expired(trio.current_time()):
                self._fail(send, self._timed_out(send, timeout_s))

    def _timed_out(self, send: PendingSend, timeout_s: float) -> BrokerError:
        """Return the error of an entry whose time is over, with the reason that is known."""
        reason = "" if self._trouble is None else f": {self._trouble}"
        if send.sent:
            return RequestTimedOutError(
                f"{self.topic}: the broker sent no receipt in {timeout_s:g} s, so the message may"
                f" be stored or not{reason}"
            )
        if self._trouble is not None and is_refused_for_now(self._trouble):
            return _not_stored(self._trouble)
        return UnavailableError(
            f"{self.topic}: no broker took the message in {timeout_s:g} s, so it is not"
            f" stored{reason}"
        )

    # -- what the connection handler calls

    async def _register(self, connection: BrokerConnection) -> None:
        request = pb.CommandProducer(
            topic=self.topic.full,
            producer_id=self._id,
            epoch=self._epoch,
            user_provided_producer_name=self._settings.name is not None,
        )
        if self.name:
            request.producer_name = self.name
        if self._settings.schema is not None:
            request.schema.CopyFrom(self._settings.schema.to_wire())
        if self._settings.initial_subscription is not None:
            request.initial_subscription_name = self._settings.initial_subscription
        self._epoch += 1  # With a larger epoch the broker replaces the producer that it may have.
        connection.producers[self._id] = self
        success = await connection.request(request)
        if not self._ever_attached:
            self._first_new_id = success.last_sequence_id + 1
            if self._settings.initial_sequence_id is None:
                self._next_sequence_id = max(0, self._first_new_id)
        self.name = success.producer_name
        self.schema_version = success.schema_version
        self.deduplicated = success.deduplicated
        self._max_bytes = connection.max_message_bytes
        self._builder.bytes_max = min(self._settings.limits.batch_bytes_max, self._max_bytes // 2)

    def _attached(self, connection: BrokerConnection) -> None:
        # The whole queue, in order, before any new send: this method has no checkpoint.
        for send in self._pending.all():
            send.sent_before, send.sent = send.sent, True
            connection.send(send.frame)

    def _unregister(self, connection: BrokerConnection) -> None:
        if connection.producers.get(self._id) is self:
            del connection.producers[self._id]

    async def _close_at_broker(self, connection: BrokerConnection) -> None:
        await connection.request(pb.CommandCloseProducer(producer_id=self._id))

    def _take_back(self, connection: BrokerConnection) -> None:
        request_id = connection.next_request_id()
        connection.send_command(
            pb.CommandCloseProducer(producer_id=self._id, request_id=request_id)
        )

    def _note_trouble(self, error: BrokerError) -> None:
        super()._note_trouble(error)
        # The policy of the quota says that applications hear of it at once.  An entry that was sent
        # may be stored, so it keeps its place in the queue, as do all entries of a producer whose
        # messages wait without end.
        if is_quota_exception(error) and self._settings.limits.send_timeout_s is not None:
            for send in self._pending.take_unsent():
                self._fail(send, _not_stored(error))

    def _ended(self, failure: BrokerError) -> None:
        if self._builder.count:
            self.ship()
        self._fail_all(failure, in_doubt=lambda send: send.sent)

    def on_forked(self, error: BrokerError) -> None:
        super().on_forked(error)
        self._builder.count = 0  # The parent has these messages, and sends them.
        self._pending.clear()

    def _fail_all(self, failure: BrokerError, in_doubt: Callable[[PendingSend], bool]) -> None:
        doubt = InDoubtError(
            f"{failure}; the message had no receipt yet, so it may be stored or not"
        )
        for send in self._pending.clear():
            self._fail(send, doubt if in_doubt(send) else failure)
        self._budget.changed()

    # -- what the connection calls

    def handle(self, command: AnyCommand) -> None:
        """Handle a receipt or a send error."""
        if isinstance(command, SendReceipt):
            self.on_receipt(command)
        else:
            assert isinstance(command, Command)
            assert command.type == pb.BaseCommand.SEND_ERROR
            self.on_send_error(command.body)

    def on_receipt(self, receipt: SendReceipt) -> None:
        send = self._pending.receipt(receipt.sequence_id)
        if isinstance(send, PendingSend):
            self._resolved(send)
            self._counts.entry_stored(send.count, send.size, send.queued_at)
            if send.results:
                ledger_id, entry_id = receipt.ledger_id, receipt.entry_id
                partition, topic = self._partition, self.topic.full
                for index, on_result in send.results:
                    try:
                        on_result(MessageId(ledger_id, entry_id, index, partition, topic), None)
                    except Exception as error:
                        self._note_failure(error)
            self._budget.changed()
        elif send is Surprise.LOST_ONE and self.connection is not None:
            self.connection.close(f"{self.topic}: a receipt was lost")

    def on_send_error(self, error: pb.CommandSendError) -> None:
        failure = refusal(error.error, error.message)
        if isinstance(failure, TopicTerminatedError):
            # This broker stores nothing more, and has sent the receipts of what it stored.  Only
            # an entry that went to an earlier connection, too, may be stored without a receipt.
            self._fail_all(failure, in_doubt=lambda send: send.sent_before)
            self._end(failure)
        elif isinstance(failure, (MessageRejectedError, NotAllowedError)):
            # A message in chunks has several entries; without one of them the rest is of no use.
            while (send := self._pending.refused(error.sequence_id)) is not None:
                self._fail(send, failure)
                self._budget.changed()
        else:
            self._start_over(f"a send failed: {failure}")

    def _start_over(self, reason: str) -> None:
        """Register again, and send the whole queue again, in order."""
        connection = self.connection
        if connection is None:
            return
        # First close the producer at the broker: it must not store later entries of the queue
        # before it has seen the head again.
        self._take_back(connection)
        self.on_detached(reason)

    def _resolved(self, send: PendingSend) -> None:
        self._budget.used -= send.size
        assert self._budget.used >= 0
        if not len(self._pending):
            self._idle.set()

    def _fail(self, send: PendingSend, failure: BrokerError) -> None:
        self._resolved(send)
        self._counts.failed += send.count
        if len(send.results) < send.count:
            self._budget.failure = self._budget.failure or failure
            self._budget.failed_messages += send.count - len(send.results)
        for _, on_result in send.results:
            try:
                on_result(None, failure)
            except Exception as error:
                self._note_failure(error)
        self._budget.changed()

    def _note_failure(self, error: Exception) -> None:
        """Keep an error of the application's `on_result`, for `flush` to raise."""
        if self._budget.failure is None:
            self._budget.failure = error


def _not_stored(why: BrokerError) -> RefusedError:
    """Return the error of a message that was not sent, because the producer was refused."""
    assert isinstance(why, RefusedError)
    return type(why)(why.code, f"the message is not stored: {why}")
