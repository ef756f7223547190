"""One producer of a topic: its sends in order, and their receipts in the same order.

What is appended is the producer's own bytes.  Sends that cannot be appended are refused in their
turn: a client takes answers only in the order of its sends.  When the log fails, what is
outstanding is in doubt and gets no answer at all; the client finds out that the producer is closed,
looks the topic up, and sends again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from broker.protocol.access import ProducerKey
from broker.topic_log import TopicLog
from managed_ledger.errors import ListFullError, TerminatedError
from managed_ledger.position import Position
from wire.batch import has_broker_metadata, num_messages, parse_metadata, verify_checksum
from wire.errors import ChecksumError
from wire.messages.client import Send, encode_send_receipts
from wire.messages.registry import encode, unsigned
from wire.proto import pulsar_pb2 as pb
from wire.transport import Buffer


class ProducerConnection(Protocol):
    """What a producer needs of the client's connection."""

    @property
    def peer(self) -> str: ...

    @property
    def client_version(self) -> str: ...

    @property
    def connected_ms(self) -> int: ...

    def send(self, buffers: Sequence[Buffer]) -> None: ...

    def receipts_ready(self, producer: "Producer") -> None:
        """Call `flush_receipts` soon; once for all that is confirmed in this turn."""
        ...

    def forget_producer(self, producer: "Producer") -> None:
        """The topic has closed it."""
        ...

    async def is_alive(self, within_s: float) -> bool: ...


class ProducerTopic(Protocol):
    """What it needs of its topic."""

    @property
    def log(self) -> TopicLog: ...

    @property
    def serving(self) -> bool:
        """False while it is being closed: what comes now has to be sent again."""
        ...

    def append(
        self, payload: memoryview, messages: int, producer: "Producer", *, is_chunk: bool
    ) -> None: ...

    def append_failed(self, error: Exception) -> None:
        """The log is of no use any more."""
        ...


class Producer:
    """See the module."""

    def __init__(
        self,
        key: ProducerKey,
        producer_id: int,
        name: str,
        connection: ProducerConnection,
        topic: ProducerTopic,
        *,
        access_mode: int = pb.Shared,
        metadata: dict[str, str] | None = None,
    ) -> None:
        self.key = key
        self.producer_id = producer_id
        self.name = name
        self.connection = connection
        self.access_mode = access_mode
        self.metadata = metadata or {}
        self.epoch: int | None = None  # the topic's
        self.closed = False
        self.messages = 0
        self.bytes = 0
        self.chunks = 0
        self._on_drained: list[Callable[[], None]] = []
        self.topic = topic
        # Sequence id, highest one; and for a send that is refused, the frame that says so.
        self._outstanding: deque[tuple[int, int | None, bytes | None]] = deque()
        self._receipts: list[tuple[int, int | None, int, int]] = []

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    # -- sending

    def send(self, send: Send) -> None:
        """Append the entry.  Raises a WireError for one that makes no sense."""
        if not self.topic.serving:
            return
        refused = self._refusal(send)
        if refused is not None:
            code, reason = refused
            self._refuse(send, code, reason)
            return
        # The offsets of a topic are counted by what the entry itself says.
        metadata, _ = parse_metadata(send.payload)
        messages = num_messages(metadata)
        self.messages += messages
        self.bytes += len(send.payload)
        self.chunks += send.is_chunk
        self._outstanding.append((send.sequence_id, send.highest_sequence_id, None))
        self.topic.append(send.payload, messages, self, is_chunk=send.is_chunk)

    def _refusal(self, send: Send) -> tuple[int, str] | None:
        try:
            verify_checksum(send.payload)
        except ChecksumError as error:
            return pb.ChecksumError, str(error)
        if has_broker_metadata(send.payload):
            return pb.NotAllowedError, "the broker's part of an entry is not for clients to send"
        if send.txn is not None:
            return pb.NotAllowedError, "this broker has no transactions"
        if send.marker:
            return pb.NotAllowedError, "markers are not for clients to send"
        highest = send.highest_sequence_id
        if highest is not None and highest < send.sequence_id:
            return pb.MetadataError, f"sequence ids from {send.sequence_id} to {highest}"
        return None

    def _refuse(self, send: Send, code: int, reason: str) -> None:
        error = pb.CommandSendError(
            producer_id=self.producer_id,
            sequence_id=max(send.sequence_id, send.highest_sequence_id or 0),
            message=reason,
        )
        error.error = code  # type: ignore[assignment]
        self._outstanding.append((send.sequence_id, send.highest_sequence_id, encode(error)))
        self._answer_refused()

    def stored(self, position: Position | None, error: Exception | None) -> None:
        """The log's word on the oldest send that waits, or a refusal of the one just appended."""
        if self.closed:
            if error is not None:
                self.topic.append_failed(error)
            return
        if position is None:
            self._not_stored(error)
            return
        sequence_id, highest, _ = self._outstanding.popleft()
        if not self._receipts:
            self.connection.receipts_ready(self)
        self._receipts.append((sequence_id, highest, position.ledger_id, position.entry_id))
        if self._outstanding:
            if self._outstanding[0][2] is not None:
                self._answer_refused()
        else:
            self._drained()

    def _not_stored(self, error: Exception | None) -> None:
        assert error is not None
        if isinstance(error, TerminatedError | ListFullError):
            full = isinstance(error, ListFullError)
            # A log says so at once, of what was handed to it last; others may be waiting before it.
            sequence_id, highest, _ = self._outstanding.pop()
            refused = pb.CommandSendError(
                producer_id=self.producer_id,
                sequence_id=max(sequence_id, highest or 0),
                # A full log is opened anew by nobody; clients do not repeat what is not allowed.
                error=pb.NotAllowedError if full else pb.TopicTerminatedError,
                message=str(error),
            )
            self._outstanding.append((sequence_id, highest, encode(refused)))
            self._answer_refused()
            return
        self.topic.append_failed(error)

    def _answer_refused(self) -> None:
        while self._outstanding and (frame := self._outstanding[0][2]) is not None:
            self._outstanding.popleft()
            self.flush_receipts()
            self.connection.send((frame,))
        if not self._outstanding:
            self._drained()

    def flush_receipts(self) -> None:
        """Send the receipts that have gathered."""
        if self._receipts:
            receipts, self._receipts = self._receipts, []
            self.connection.send((encode_send_receipts(self.producer_id, receipts),))

    # -- the end

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Call back when nothing is outstanding, at once if that is so.  Several may ask."""
        self._on_drained.append(on_drained)
        if not self._outstanding:
            self._drained()

    def _drained(self) -> None:
        if not self._on_drained:
            return
        calls, self._on_drained = self._on_drained, []
        self.flush_receipts()
        for call in calls:
            call()

    async def wait_drained(self) -> None:
        while self._outstanding and not self.closed:
            done = trio.Event()
            self.drain(done.set)
            await done.wait()

    def close(self) -> None:
        """Answer nothing any more, but for what is stored already."""
        if not self.closed:
            self.closed = True
            self.flush_receipts()
            self._drained()
            self._outstanding.clear()

    def disconnect(self) -> None:
        """The broker closes it: the client is told, and looks the topic up again."""
        if not self.closed:
            self.close()
            self.connection.send(
                (
                    encode(
                        pb.CommandCloseProducer(
                            producer_id=self.producer_id, request_id=unsigned(-1)
                        )
                    ),
                )
            )
            self.connection.forget_producer(self)
