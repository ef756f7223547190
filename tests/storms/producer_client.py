"""A producer's client in a storm: it does what `clients.python.topic_producer` does."""

from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING

from daybook.broker.protocol.access import AccessMode
from daybook.clients.python.protocol.sends import PendingSend, PendingSends, Surprise
from daybook.wire.batch import encode_payload
from daybook.wire.messages.client import Send, SendReceipt
from daybook.wire.proto import pulsar_pb2 as pb

if TYPE_CHECKING:
    from tests.storms.producer import ProducerStorm
    from tests.storms.producer_broker import Connection

PRODUCER_ID = 1


@lru_cache(maxsize=1024)
def send_of(name: str, sequence_id: int) -> Send:
    metadata = pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1)
    payload = memoryview(encode_payload(metadata, b"%d" % sequence_id))
    return Send(PRODUCER_ID, sequence_id, None, 1, False, False, None, payload)


@dataclass(frozen=True, slots=True)
class Open:
    request_id: int
    epoch: int
    mode: AccessMode
    topic_epoch: int | None


@dataclass(frozen=True, slots=True)
class Close:
    request_id: int


class ProducerClient:
    """Sends messages 0, 1, 2, ...; after a loss it reopens its producer and resends."""

    def __init__(self, storm: "ProducerStorm", name: str, host: int, mode: AccessMode) -> None:
        self.storm = storm
        self.name = name
        self.host = host
        self.mode = mode
        self.connection: Connection | None = None
        self.ended = ""  # the reason why nothing more is sent
        self.sent = 0
        self.times: dict[int, int] = {}  # how often each message was sent
        self.receipts: list[tuple[int, tuple[int, int]]] = []
        self._pending = PendingSends()
        self._attached = False
        self._request = -1  # the id of the request that opens the producer
        self._requests = 0
        self._epoch = 0
        self._topic_epoch: int | None = None

    @property
    def waiting(self) -> int:
        return len(self._pending)

    # -- the application

    def send(self) -> None:
        if self.ended:
            return
        sequence_id, self.sent = self.sent, self.sent + 1
        frame = (b"", b"")
        self._pending.push(PendingSend(sequence_id, sequence_id, 1, 1, frame, inf))
        if self._attached:
            self._put(sequence_id)

    def _put(self, sequence_id: int) -> None:
        assert self.connection is not None
        self.times[sequence_id] = self.times.get(sequence_id, 0) + 1
        self.connection.to_broker(send_of(self.name, sequence_id))

    # -- the connection

    def connect(self) -> None:
        """Connect if there is no connection; open the producer if nothing has opened it yet."""
        if self.ended:
            return
        if self.connection is None:
            self.connection = self.storm.new_connection(self)
        if not self._attached and self._request < 0:
            self._requests += 1
            self._request = self._requests
            opening = Open(self._request, self._epoch, self.mode, self._topic_epoch)
            self._epoch += 1
            self.connection.to_broker(opening)

    def lose(self) -> None:
        """Drop the connection; the broker learns of it later."""
        if self.connection is not None:
            self.storm.say(f"{self.name} loses its connection")
            self.connection.client_gone = True
            self.connection = None
        self._attached = False
        self._request = -1

    def start_over(self) -> None:
        """Close the producer, or give up opening it, and reopen it over the same connection."""
        if self.connection is not None and (self._attached or self._request >= 0):
            if not self._attached:
                self.storm.mark("gives up an opening")
            self._requests += 1
            self.connection.to_broker(Close(self._requests))
            self._attached = False
            self._request = -1

    # -- answers of the broker

    def hear(self, message: pb.BaseCommand | SendReceipt) -> None:
        if isinstance(message, SendReceipt):
            self._receipt(message)
            return
        match message.type:
            case pb.BaseCommand.PRODUCER_SUCCESS:
                self._opened(message.producer_success)
            case pb.BaseCommand.ERROR:
                self._refused(message.error)
            case pb.BaseCommand.CLOSE_PRODUCER:
                self._attached = False
                self._request = -1
            case _:
                pass

    def _opened(self, success: pb.CommandProducerSuccess) -> None:
        if success.request_id != self._request or not success.producer_ready:
            return
        self._request = -1
        self._attached = True
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch
        for send in self._pending.all():
            self._put(send.sequence_id)

    def _refused(self, error: pb.CommandError) -> None:
        if error.request_id == self._request:
            self._request = -1
            if error.error == pb.ProducerFenced:
                self.ended = "fenced"
            elif error.error == pb.NotAllowedError:
                self.storm.rule("P6", False, f"{self.name} breaks the protocol: {error.message}")

    def _receipt(self, receipt: SendReceipt) -> None:
        found = self._pending.receipt(receipt.sequence_id)
        if isinstance(found, PendingSend):
            position = (receipt.ledger_id, receipt.entry_id)
            self.storm.check_receipt(self, receipt.sequence_id, position)
            self.receipts.append((receipt.sequence_id, position))
        else:
            told = f"{self.name} gets a receipt for {receipt.sequence_id}, and one was lost"
            self.storm.rule("P1", found is not Surprise.LOST_ONE, told)
