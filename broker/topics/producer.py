"""One producer of a topic: its sends in order, and their receipts in the same order.

A producer appends the bytes of its client unchanged.  A send that cannot be appended is refused in
its turn, because clients accept answers only in the order of their sends.  When the log fails, the
outstanding sends are in doubt and get no answer at all.  The client then finds out that its
producer is closed, looks the topic up again, and repeats them.

While the topic is being terminated, sends are held: they are neither appended nor answered.  Once
the log has ended, a client of ours is told that the first held send is refused, which covers all
sends behind it.  The producers of all other clients are closed instead: they come back and are
refused.  Go's client would never tell its application about a refused send.

If the topic is deduplicated, a send that the topic has already is not appended.  Its receipt names
no position, and waits for the receipts of all earlier sends.

A refused send must cost its client this one message only.  Clients accept few error codes for that.
Any other code makes them close the connection and send the same message again, forever.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import trio

from daybook.broker.connected_client import ConnectedClient, SuccessorUrls
from daybook.broker.limits import TopicLimits
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.access import ProducerKey
from daybook.broker.protocol.deduplication import (
    CHUNKS_MAX,
    ID_MAX,
    NOTHING,
    PIPE,
    EntryIds,
    Verdict,
)
from daybook.broker.topics.deduplication import Deduplication, entry_ids
from daybook.managed_ledger.errors import EntryTooLargeError, ListFullError, TerminatedError
from daybook.managed_ledger.position import Position
from daybook.wire.batch import (
    has_broker_metadata,
    impossible_claim,
    is_batch,
    num_messages,
    parse_metadata,
    verify_checksum,
)
from daybook.wire.clock import WallClock
from daybook.wire.errors import ChecksumError
from daybook.wire.messages.client import Send, encode_send_receipts
from daybook.wire.messages.registry import encode, unsigned
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

_NO_POSITION = (-1, -1)  # the ledger and the entry in the receipt of a repeat
_CPP = "Pulsar-CPP"  # the prefix of the version of C++ clients, and of Python's and Node's


class ProducedTopic(Protocol):
    """The topic of a producer: a `Topic`, or a `NonPersistentTopic`."""

    @property
    def name(self) -> TopicName: ...
    @property
    def clock(self) -> WallClock: ...
    @property
    def limits(self) -> TopicLimits: ...
    @property
    def policies(self) -> EffectivePolicies: ...
    @property
    def keys(self) -> Iterator[int]: ...
    @property
    def successor(self) -> SuccessorUrls: ...
    @property
    def closing(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def termination(self) -> object | None: ...
    @property
    def deduplication(self) -> Deduplication | None: ...
    @property
    def stored_epoch(self) -> int | None: ...
    @property
    def start_task(self) -> Callable[..., None]: ...
    def check_open(self) -> None: ...
    def has_bug(self, doing: str, bug: Exception) -> None: ...
    def append_failed(self, error: Exception) -> None: ...
    def append(
        self, payload: memoryview, messages: int, producer: "Producer", *, is_chunk: bool
    ) -> None: ...
    @property
    def has_room(self) -> bool:
        """True if `wait_room` certainly has nothing to wait for."""
        ...

    async def wait_room(self) -> None: ...
    async def wait_termination_decided(self) -> None: ...
    async def store_epoch(self, epoch: int) -> None: ...


class Producer:
    """One instance per producer that a client opened.

    `on_left` takes it off its topic.
    """

    def __init__(
        self,
        key: ProducerKey,
        producer_id: int,
        name: str,
        connection: ConnectedClient,
        topic: ProducedTopic,
        *,
        on_left: Callable[["Producer"], None],
        access_mode: int = pb.Shared,
        metadata: dict[str, str] | None = None,
        schema_version: bytes = b"",
    ) -> None:
        self.key = key
        self.producer_id = producer_id
        self.name = name
        self.connection = connection
        self.topic = topic
        self.access_mode = access_mode
        self.metadata = metadata or {}
        self.schema_version = schema_version  # empty if it has no schema
        self.epoch: int | None = None  # the topic's, when this producer was admitted
        self.last_sequence_id = NOTHING  # the last stored one, when this producer was admitted
        self.closed = False
        self.stopping = False  # It takes no more sends, and is closed when all are stored.
        self.messages = 0
        self.bytes = 0
        self.chunks = 0
        self._on_left = on_left
        self._on_drained: list[Callable[[], None]] = []
        # One item per send without an answer, in the order of the sends: its sequence id, its
        # highest sequence id, and for a send that was not appended the frame that answers it.
        # Such answers wait here for the receipts in front of them.
        self._outstanding: deque[tuple[int, int | None, bytes | None]] = deque()
        # Receipts that are sent at the next flush: both ids, ledger id, entry id.
        self._receipts: list[tuple[int, int | None, int, int]] = []
        self._held: tuple[int, int | None] | None = None  # the ids of the first held send
        self._refused = ""  # why a pipe may send no more until its producer is opened again

    @property
    def outstanding(self) -> int:
        """The number of answers that are owed.  All held sends together are owed one."""
        return len(self._outstanding) + (self._held is not None)

    # -- sending

    def send(self, send: Send) -> None:
        """Append the entry.  Raise a WireError if its bytes are not an entry."""
        topic = self.topic
        if topic.closing or self.stopping:
            return  # The client will be told that its producer is closed, and sends again.
        # A send behind a held one has to be held too: appending it would change the order.
        if self._held is not None or topic.termination is not None:
            self._hold(send)
            return
        if self._refused:
            self._refuse(
                send.sequence_id, send.highest_sequence_id, pb.NotAllowedError, self._refused
            )
            return
        refused = self._refusal(send)
        if refused is not None:
            self._refuse(send.sequence_id, send.highest_sequence_id, *refused)
            return
        # Offsets count the messages that the entry's own metadata name, not those that SEND names.
        metadata, body = parse_metadata(send.payload)
        impossible = impossible_claim(metadata, len(body))
        if impossible is not None:
            self._refuse(send.sequence_id, send.highest_sequence_id, pb.NotAllowedError, impossible)
            return
        messages = num_messages(metadata)
        forbidden = self._forbidden(send, metadata)
        if forbidden is not None:
            self._refuse(send.sequence_id, send.highest_sequence_id, pb.NotAllowedError, forbidden)
            return
        deduplication = topic.deduplication
        if deduplication is not None and not self._is_new(send, metadata, body, deduplication):
            return
        self.messages += messages
        self.bytes += len(send.payload)
        self.chunks += send.is_chunk
        # This comes before `append`, because the log may refuse the entry from within that call.
        self._outstanding.append((send.sequence_id, send.highest_sequence_id, None))
        topic.append(send.payload, messages, self, is_chunk=send.is_chunk)

    def _is_new(
        self,
        send: Send,
        metadata: pb.MessageMetadata,
        body: memoryview,
        deduplication: Deduplication,
    ) -> bool:
        """Return True if the entry has to be appended.  Otherwise it gets its answer here."""
        ids = entry_ids(metadata, body)
        if is_batch(metadata) and not metadata.highest_sequence_id:
            # The batch was opened for its last id, which takes 4 ms if it has 4,000 messages.
            self.connection.yield_soon()
        reason = self._bad_ids(ids)
        if reason is None:
            verdict = deduplication.judge(ids)
            if verdict is Verdict.NEW:
                deduplication.appended(ids, len(send.payload))
                return True
            if verdict is Verdict.REPEAT:
                deduplication.repeats += 1
                self._answer_repeat(send.sequence_id, send.highest_sequence_id)
                return False
            reason = self._why_neither(verdict, ids)
        self._refuse(send.sequence_id, send.highest_sequence_id, pb.NotAllowedError, reason)
        return False

    def _why_neither(self, verdict: Verdict, ids: EntryIds) -> str:
        if verdict is Verdict.GAP:
            assert ids.chunk is not None
            return (
                f"the chunk {ids.chunk.number} of the message {ids.first} of the producer"
                f" {self.name} came, and the chunk before it is not stored: send the message again"
            )
        assert verdict is Verdict.TORN
        return (
            f"the topic has some of the messages {ids.first} to {ids.last} of the producer"
            f" {self.name}, and some not: send them in the batches in which they were sent before"
        )

    def _forbidden(self, send: Send, metadata: pb.MessageMetadata) -> str | None:
        """Return the reason if a policy of the topic forbids the message."""
        policies = self.topic.policies
        limit = policies.max_message_bytes
        # A chunk is as large as the broker allows, whatever the topic does, as in Pulsar.
        if limit and len(send.payload) > limit and metadata.num_chunks_from_msg < 2:
            return (
                f"the message has {len(send.payload)} bytes, and {self.topic.name} takes at most"
                f" {limit} (maxMessageSize)"
            )
        delayed = policies.delayed_delivery
        delay_max_ms = delayed.max_delivery_delay_in_millis
        if delay_max_ms and delayed.active and metadata.deliver_at_time:
            delay_ms = metadata.deliver_at_time - self.topic.clock.now_ms()
            if delay_ms > delay_max_ms:
                return (
                    f"the message is to be delivered in {delay_ms} ms, and {self.topic.name} allows"
                    f" {delay_max_ms} ms (maxDeliveryDelayInMillis)"
                )
        return None

    def _bad_ids(self, ids: EntryIds) -> str | None:
        """Return the reason if the ids of an entry cannot be compared with others."""
        if ids.producer != self.name:
            return (
                f"the message names the producer {ids.producer[:64]}, and {self.name} sent it: the"
                " messages of this topic are deduplicated by that name"
            )
        if not 0 <= ids.first <= ids.last <= ID_MAX:
            return f"the sequence ids {ids.first} to {ids.last} are not in order"
        if ids.chunk is not None and not 0 <= ids.chunk.number < CHUNKS_MAX:
            return f"no chunk has the number {ids.chunk.number}"
        return None

    def _refusal(self, send: Send) -> tuple[int, str] | None:
        """Return the code and the reason if the send is not acceptable."""
        try:
            verify_checksum(send.payload)
        except ChecksumError as error:
            return pb.ChecksumError, str(error)
        if has_broker_metadata(send.payload):
            return pb.NotAllowedError, "the message begins with metadata of a broker"
        if send.txn is not None:
            return pb.NotAllowedError, "this broker does not offer transactions"
        if send.marker:
            return pb.NotAllowedError, "the message is a marker, which only a broker may send"
        highest = send.highest_sequence_id
        if highest is not None and highest < send.sequence_id:
            return pb.NotAllowedError, f"the sequence ids fall from {send.sequence_id} to {highest}"
        return None

    def _refuse(self, sequence_id: int, highest: int | None, code: int, reason: str) -> None:
        """Refuse one send.  The refusal goes out behind the receipts of all earlier sends."""
        self.connection.note_refused_send(code, reason)
        if self.name.startswith(PIPE) and not self._refused:
            # A pipe takes the last sequence id that is stored for proof that everything before it
            # is.  So its sends behind the refused message must not be stored.
            self._refused = f"an earlier message of this pipe was refused: {reason}"
        error = pb.CommandSendError(
            producer_id=self.producer_id,
            sequence_id=max(sequence_id, highest or 0),
            message=reason,
        )
        error.error = self._code_for_client(code)  # type: ignore[assignment]
        self._outstanding.append((sequence_id, highest, encode(error)))
        self._send_answers()

    def _code_for_client(self, code: int) -> int:
        """Return the code at which this client gives up one message and nothing else."""
        if code == pb.NotAllowedError and self.connection.client_version.startswith(_CPP):
            return pb.ChecksumError  # C++ and Python give up one message for this code only.
        return code

    # -- while the topic is being terminated

    @property
    def holds_sends(self) -> bool:
        return self._held is not None

    @property
    def understands_end_of_topic(self) -> bool:
        """True if the client takes a refused send for the end of the topic."""
        return self.connection.is_ours

    def _hold(self, send: Send) -> None:
        """Remember the first held send.  Its answer covers all sends behind it."""
        if self._held is None:
            self._held = (send.sequence_id, send.highest_sequence_id)

    def refuse_held(self) -> None:
        """Refuse the held sends, because the topic has ended."""
        held, self._held = self._held, None
        if held is not None:
            self._refuse(*held, pb.TopicTerminatedError, "the topic is terminated")

    # -- what the log reports

    def stored(self, position: Position | None, error: Exception | None) -> None:
        """Handle the result of an append.

        The log confirms appends in order, so a position belongs to the oldest outstanding send.  A
        refusal belongs to the newest one: the log raises it from within `append`.
        """
        deduplication = self.topic.deduplication
        if deduplication is not None and position is not None:
            deduplication.confirmed(position)
        if self.closed:
            # Its client sends again without a receipt.  A failed log concerns all producers.
            if error is not None:
                self.topic.append_failed(error)
            return
        if position is None:
            self._not_stored(error)
            return
        sequence_id, highest, answer = self._outstanding.popleft()
        # Sends that were not appended leave the head of the queue as soon as they reach it.
        assert answer is None, "this send was never appended"
        self._add_receipt((sequence_id, highest, position.ledger_id, position.entry_id))
        if self._outstanding:
            if self._outstanding[0][2] is not None:
                self._send_answers()
        elif self._held is None:
            self._drained()

    def _not_stored(self, error: Exception | None) -> None:
        assert error is not None
        if isinstance(error, TerminatedError | ListFullError | EntryTooLargeError):
            # The log refuses the newest send at once, while earlier ones may still be pending.
            sequence_id, highest, _ = self._outstanding.pop()
            if self.topic.deduplication is not None:
                self.topic.deduplication.refused()
            ended = isinstance(error, TerminatedError)
            # Opening a full log again would not help, so clients must not repeat the send.
            code = pb.TopicTerminatedError if ended else pb.NotAllowedError
            self._refuse(sequence_id, highest, code, str(error))
            return
        # Everything outstanding is in doubt now, and gets neither a receipt nor an error.
        self.topic.append_failed(error)

    def _answer_repeat(self, sequence_id: int, highest: int | None) -> None:
        """Send the receipt of a message that the topic has, behind those of all earlier sends.

        The receipt of the message itself is one of those if it is still being stored.
        """
        receipt = (sequence_id, highest, *_NO_POSITION)
        if self._outstanding:
            frame = encode_send_receipts(self.producer_id, [receipt])
            self._outstanding.append((sequence_id, highest, frame))
        else:
            self._add_receipt(receipt)

    def _add_receipt(self, receipt: tuple[int, int | None, int, int]) -> None:
        if not self._receipts:
            self.connection.call_at_flush(self.flush_receipts)
        self._receipts.append(receipt)

    def _send_answers(self) -> None:
        """Send the answers that no pending append is in front of."""
        while self._outstanding and (frame := self._outstanding[0][2]) is not None:
            self._outstanding.popleft()
            self.flush_receipts()  # They belong to earlier sends, so they go out first.
            self.connection.send((frame,))
        if not self.outstanding:
            self._drained()

    def flush_receipts(self) -> None:
        """Send the receipts that have gathered."""
        if self._receipts:
            receipts, self._receipts = self._receipts, []
            self.connection.send((encode_send_receipts(self.producer_id, receipts),))

    # -- the end

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Call back when nothing is outstanding, or the producer is closed; now if that is so now.

        Several callers may wait at the same time.
        """
        self._on_drained.append(on_drained)
        if not self.outstanding:
            self._drained()

    def _drained(self) -> None:
        if not self._on_drained:
            return
        calls, self._on_drained = self._on_drained, []
        self.flush_receipts()
        for call in calls:
            call()

    async def wait_drained(self) -> None:
        while self.outstanding and not self.closed:
            done = trio.Event()
            self.drain(done.set)
            await done.wait()

    async def stop(self, at_most_s: float) -> None:
        """Store what is outstanding, for so long at most, then close the producer and tell it."""
        self.stopping = True
        with trio.move_on_after(at_most_s):
            await self.wait_drained()
        self.disconnect()

    def leave(self) -> None:
        """Take the producer off its topic: its client has closed it, or is gone."""
        self._on_left(self)

    def close(self) -> None:
        """Send the receipts of what is stored.  Sends that are still outstanding get no answer."""
        if not self.closed:
            # Set first: a callback of `_drained` may take this producer off its topic, which
            # closes it again.
            self.closed = True
            self.flush_receipts()
            self._drained()
            self._outstanding.clear()
            self._held = None

    def disconnect(self) -> None:
        """Close the producer and tell its client, which then looks the topic up again."""
        if not self.closed:
            self.close()
            closed = pb.CommandCloseProducer(producer_id=self.producer_id, request_id=unsigned(-1))
            self.topic.successor.assign(closed, tls=self.connection.encrypted)
            self.connection.send((encode(closed),))
            self.connection.forget_producer(self)
