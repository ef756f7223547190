"""One producer of a topic: its sends in order, and their receipts in the same order.

What is appended is the producer's own bytes.  Sends that cannot be appended are refused in their
turn: a client takes answers only in the order of its sends.  When the log fails, what is
outstanding is in doubt and gets no answer at all; the client finds out that the producer is closed,
looks the topic up, and sends again.

While the topic is being terminated sends are held: none is appended, none is answered.  When the
log has ended our own clients hear that the first of them is refused, and so are all behind it.  The
producers of all other clients are closed then: they come back, and are refused.  Go's client would
never tell its application of a refused send.

A send that is refused must cost its client this message only.  Clients take few codes for that; all
others make them close the connection, and send the same again, for ever.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from daybook.broker.protocol.access import ProducerKey
from daybook.broker.topics.topic_log import TopicLog
from daybook.managed_ledger.errors import EntryTooLargeError, ListFullError, TerminatedError
from daybook.managed_ledger.position import Position
from daybook.wire.batch import has_broker_metadata, num_messages, parse_metadata, verify_checksum
from daybook.wire.errors import ChecksumError
from daybook.wire.messages.client import Send, encode_send_receipts
from daybook.wire.messages.registry import encode, unsigned
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer

_CPP = "Pulsar-CPP"  # how C++ clients begin to introduce themselves, Python's and Node's, too


class ProducerConnection(Protocol):
    """What a producer needs of the client's connection."""

    @property
    def peer(self) -> str: ...

    @property
    def client_version(self) -> str: ...

    @property
    def connected_ms(self) -> int: ...

    @property
    def is_ours(self) -> bool: ...

    def send(self, buffers: Sequence[Buffer]) -> None: ...

    def note_refused_send(self, code: int, reason: str) -> None:
        """Somebody may want to know."""
        ...

    def call_at_flush(self, call: Callable[[], None]) -> None:
        """Call once, at the end of this turn of the event loop."""
        ...

    @property
    def forget_producer(self) -> Callable[["Producer"], None]:
        """Called when the topic has closed the producer."""
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

    @property
    def ending(self) -> bool:
        """True while it is being terminated: nobody knows yet if it will be."""
        ...

    async def wait_decided(self) -> None:
        """Return when it is not being terminated."""
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
        self._held: tuple[int, int | None] | None = None  # the ids of the first send that is held

    @property
    def outstanding(self) -> int:
        """How many answers are owed; one for all sends that are held."""
        return len(self._outstanding) + (self._held is not None)

    # -- sending

    def send(self, send: Send) -> None:
        """Append the entry.  Raises a WireError for one that makes no sense."""
        if not self.topic.serving:
            return
        if self._held is not None or self.topic.ending:
            self._hold(send)
            return
        refused = self._refusal(send)
        if refused is not None:
            self._refuse(send.sequence_id, send.highest_sequence_id, *refused)
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
            return pb.NotAllowedError, f"sequence ids from {send.sequence_id} to {highest}"
        return None

    def _refuse(self, sequence_id: int, highest: int | None, code: int, reason: str) -> None:
        """Refuse one send, in its turn."""
        self.connection.note_refused_send(code, reason)
        error = pb.CommandSendError(
            producer_id=self.producer_id,
            sequence_id=max(sequence_id, highest or 0),
            message=reason,
        )
        error.error = self._code_for_client(code)  # type: ignore[assignment]
        self._outstanding.append((sequence_id, highest, encode(error)))
        self._answer_refused()

    def _code_for_client(self, code: int) -> int:
        """C++ and Python give up one message for this code only."""
        if code == pb.NotAllowedError and self.connection.client_version.startswith(_CPP):
            return pb.ChecksumError
        return code

    # -- while the topic is being terminated

    @property
    def holds_sends(self) -> bool:
        return self._held is not None

    @property
    def is_told_of_the_end(self) -> bool:
        """Does its client take a refused send for the end of the topic?"""
        return self.connection.is_ours

    def _hold(self, send: Send) -> None:
        """The first one is enough: its answer is one to all that were sent behind it."""
        if self._held is None:
            self._held = (send.sequence_id, send.highest_sequence_id)

    def refuse_held(self) -> None:
        """The topic has ended."""
        held, self._held = self._held, None
        if held is not None:
            self._refuse(*held, pb.TopicTerminatedError, "the topic is terminated")

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
            self.connection.call_at_flush(self.flush_receipts)
        self._receipts.append((sequence_id, highest, position.ledger_id, position.entry_id))
        if self._outstanding:
            if self._outstanding[0][2] is not None:
                self._answer_refused()
        elif self._held is None:
            self._drained()

    def _not_stored(self, error: Exception | None) -> None:
        assert error is not None
        if isinstance(error, TerminatedError | ListFullError | EntryTooLargeError):
            # A log says so at once, of what was handed to it last; others may be waiting before it.
            sequence_id, highest, _ = self._outstanding.pop()
            ended = isinstance(error, TerminatedError)
            # A full log is opened anew by nobody; clients do not repeat what is not allowed.
            code = pb.TopicTerminatedError if ended else pb.NotAllowedError
            self._refuse(sequence_id, highest, code, str(error))
            return
        self.topic.append_failed(error)

    def _answer_refused(self) -> None:
        while self._outstanding and (frame := self._outstanding[0][2]) is not None:
            self._outstanding.popleft()
            self.flush_receipts()
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
        """Call back when nothing is outstanding, at once if that is so.  Several may ask."""
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

    def close(self) -> None:
        """Answer nothing any more, but for what is stored already."""
        if not self.closed:
            self.closed = True
            self.flush_receipts()
            self._drained()
            self._outstanding.clear()
            self._held = None

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
