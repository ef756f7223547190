"""The broker in a storm over producers: its connections, and the topic that admits producers.

The broker does, without tasks, what `broker.service.connection`, `.handlers` and
`broker.topics.topic` do for producers.  The producers themselves are real.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from daybook.broker.config import BrokerConfig
from daybook.broker.connected_client import NO_SUCCESSOR, ConnectedClient
from daybook.broker.namespaces.policy_table import defaults
from daybook.broker.protocol import access, producing
from daybook.broker.protocol.deduplication import DeduplicationState, EntryIds, Verdict
from daybook.broker.protocol.producing import Sending
from daybook.broker.topics.producer import Producer
from daybook.managed_ledger.errors import FencedError
from daybook.managed_ledger.position import Position
from daybook.wire.fields import U32
from daybook.wire.messages.client import Send, SendReceipt
from daybook.wire.messages.registry import Command, decode_frame
from daybook.wire.proto import pulsar_pb2 as pb
from tests.storms.producer_client import PRODUCER_ID, Close, Open, ProducerClient

if TYPE_CHECKING:
    from tests.storms.producer import ProducerStorm

IGNORE_S = 1000.0  # longer than any message is under way
SENDS_AT_ONCE = 3


class Connection:
    """Both ends of a connection.  Messages sent before the client lost it may still arrive."""

    def __init__(self, storm: "ProducerStorm", client: ProducerClient) -> None:
        self.storm = storm
        self.client = client
        self.client_gone = False
        self.closed = False
        self.producers: dict[int, Producer] = {}
        self.producing = producing.ProducingProtocol(producers_max=10, ignore_s=IGNORE_S)
        self._opening: dict[int, Open] = {}  # by attempt

    # -- the interface for producers

    def as_client(self) -> ConnectedClient:
        def not_refused(code: int, reason: str) -> None:
            raise AssertionError(f"nothing is refused in a storm of producers: {code} {reason}")

        return ConnectedClient(
            "client",
            "storm",
            0,
            0,
            encrypted=False,
            is_ours=True,
            sends_broker_metadata=False,
            send=self.send,
            get_room_bytes=lambda: 0,
            is_alive=cast("Any", None),  # here `Topic` checks that itself
            call_at_flush=self.call_at_flush,
            yield_soon=lambda: None,
            call_when_writable=cast("Any", None),
            note_refused_send=not_refused,
            forget_producer=self.forget_producer,
            forget_consumer=cast("Any", None),
            call_later=cast("Any", None),
        )

    def send(self, buffers: Any) -> None:
        data = b"".join(buffers)
        while data:
            size = U32.unpack_from(data)[0]
            decoded = decode_frame(memoryview(data)[U32.size : U32.size + size])
            data = data[U32.size + size :]
            if isinstance(decoded, SendReceipt):
                self._to_client(decoded)
            else:
                command = cast("Command", decoded)
                base = pb.BaseCommand(type=cast("Any", command.type))
                self._to_client(base)

    def call_at_flush(self, call: Callable[[], None]) -> None:
        self.storm.network.send(0, 0, call)

    def forget_producer(self, producer: Producer) -> None:
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            self._perform(self.producing.dropped(PRODUCER_ID, self.storm.now_s))

    def tell(self, base: pb.BaseCommand) -> None:
        self._to_client(base)

    def _to_client(self, message: pb.BaseCommand | SendReceipt) -> None:
        def arrive() -> None:
            if not self.client_gone:
                if self.storm.trace is not None:
                    self.storm.say(f"broker -> {self.client.name}: {_text(message)}")
                self.client.hear(message)

        if not self.closed:
            self.storm.network.send(0, self.client.host, arrive)

    # -- commands of the client

    def to_broker(self, message: Open | Close | Send) -> None:
        def arrive() -> None:
            if not self.closed:
                if self.storm.trace is not None:
                    self.storm.say(f"{self.client.name} -> broker: {_text(message)}")
                self._hear(message)

        self.storm.network.send(self.client.host, 0, arrive)

    def _hear(self, message: Open | Close | Send) -> None:
        match message:
            case Open(request_id, epoch):
                self._perform(self.producing.open(PRODUCER_ID, request_id, epoch), message)
            case Close(request_id):
                self._perform(self.producing.close(PRODUCER_ID, request_id))
            case Send():
                self._on_send(message)

    def _on_send(self, send: Send) -> None:
        match self.producing.sending(PRODUCER_ID, self.storm.now_s):
            case Sending.TAKE:
                self.producers[PRODUCER_ID].send(send)
            case Sending.IGNORE:
                self.storm.mark("ignored")
            case Sending.VIOLATION:
                self.storm.rule("P6", False, f"a SEND of {self.client.name} breaks the protocol")

    def _perform(self, effects: list[producing.Effect], opening: Open | None = None) -> None:
        for effect in effects:
            match effect:
                case producing.Attach(_, attempt):
                    assert opening is not None
                    self._opening[attempt] = opening
                    self.storm.network.send(0, 0, self.storm.load, self, attempt, opening)
                case producing.Abort(_, attempt):
                    self.storm.withdraw(self, attempt)
                    self.opened(attempt, None, pb.ServiceNotReady)
                case producing.Drain(producer_id):
                    producer = self.producers[producer_id]
                    producer.drain(lambda: self._perform(self.producing.drained(PRODUCER_ID)))
                case producing.Detach(producer_id):
                    producer = self.producers.pop(producer_id)
                    cast("Any", producer.topic).remove(producer)
                case producing.Confirm(request_id):
                    base = pb.BaseCommand(type=pb.BaseCommand.SUCCESS)
                    base.success.request_id = request_id
                    self.tell(base)
                case producing.Repeat(producer_id, request_id):
                    self.tell(_success(request_id, self.producers[producer_id]))
                case producing.Refuse(request_id, code, reason):
                    self.tell(_error(request_id, code, reason))

    def opens(self, attempt: int) -> bool:
        """Return True if the client has not given the attempt up."""
        return attempt in self._opening

    def opened(self, attempt: int, producer: Producer | None, code: int = 0) -> None:
        """Report the outcome of an attempt; the first one counts."""
        opening = self._opening.pop(attempt, None)
        if opening is None or self.closed or (producer is not None and producer.closed):
            if producer is not None:
                cast("Any", producer.topic).remove(producer)
            if opening is None:
                return
            producer = None
        if producer is None:
            self.tell(_error(opening.request_id, code or pb.ServiceNotReady, "not now"))
            self._perform(self.producing.open_failed(PRODUCER_ID, attempt))
            return
        self.producers[PRODUCER_ID] = producer
        self._perform(self.producing.opened(PRODUCER_ID, attempt))
        self.tell(_success(opening.request_id, producer))

    def close(self) -> None:
        """Close the broker's end, which has noticed the loss."""
        if not self.closed:
            self.storm.say(f"broker closes a connection of {self.client.name}")
            self.closed = True
            for producer in list(self.producers.values()):
                cast("Any", producer.topic).remove(producer)
            self.producers.clear()
            for attempt in list(self._opening):
                self.opened(attempt, None)


class Deduplicated:
    """Deduplication as in the broker, without its cursor and tasks; the state is real."""

    def __init__(self, state: DeduplicationState, count: int) -> None:
        self.state = state
        self.count = count  # entries of the log that the state contains
        self.repeats = 0

    def judge(self, ids: EntryIds) -> Verdict:
        return self.state.judge(ids)

    def appended(self, ids: EntryIds, size: int) -> None:
        self.state.appended(ids)

    def confirmed(self, position: Position) -> None:
        self.state.confirmed()
        self.count = position.entry_id + 1


_POLICIES = defaults(BrokerConfig())


class Topic:
    """One instance per load of the topic: from a takeover of its log to the next one."""

    def __init__(
        self,
        storm: "ProducerStorm",
        epoch: int | None,
        known: DeduplicationState | None,
        entries: int,
    ) -> None:
        self.storm = storm
        self.deduplication = None if known is None else Deduplicated(known, entries)
        # Producers that wait for the fate of what earlier ones of their names have sent.
        self._unsettled: list[tuple[Producer, Connection, int]] = []
        self.closing = False
        self.termination = None
        self.successor = NO_SUCCESSOR
        self.policies = _POLICIES
        self.log = cast("Any", None)  # Nobody reads here.
        self.by_name: dict[str, Producer] = {}
        self.access = access.AccessProtocol(epoch)
        self.pending: deque[tuple[Producer, Send]] = deque()
        self._by_key: dict[int, Producer] = {}
        self._connections: dict[int, Connection] = {}
        self._applicants: dict[int, tuple[Producer, Connection, int]] = {}
        self._asked: dict[int, int | None] = {}  # by producer: the epoch that it had before

    # -- producers

    def add(self, connection: Connection, attempt: int, opening: Open) -> None:
        name = connection.client.name
        holder = self._holder(name)
        if holder is not None:
            holding = self._connections[holder.key]
            if holding is connection or not holding.client_gone:
                connection.opened(attempt, None, pb.ProducerBusy)
                return
            holder.disconnect()
            self.remove(holder)
        key = self.storm.next_key()
        client, topic = connection.as_client(), cast("Any", self)
        producer = Producer(key, PRODUCER_ID, name, client, topic, on_left=self.remove)
        self._connections[key] = connection
        self._applicants[key] = (producer, connection, attempt)
        self._asked[key] = opening.topic_epoch
        self._perform(self.access.join(key, opening.mode, opening.topic_epoch))

    def _holder(self, name: str) -> Producer | None:
        waiting = (p for p, _, _ in self._applicants.values() if p.name == name)
        return self.by_name.get(name) or next(waiting, None)

    def remove(self, producer: Producer) -> None:
        producer.close()
        self._by_key.pop(producer.key, None)
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
        self._applicants.pop(producer.key, None)
        self._perform(self.access.left(producer.key))

    def withdraw(self, connection: Connection, attempt: int) -> None:
        """Remove a producer whose client gave the attempt up before it was admitted."""
        for producer, *whose in list(self._applicants.values()):
            if whose == [connection, attempt]:
                self.remove(producer)

    def _perform(self, effects: list[access.Effect]) -> None:
        for effect in effects:
            match effect:
                case access.Admit(key, epoch):
                    self._admit(key, epoch)
                case access.Wait():
                    self.storm.mark("waits to be exclusive")
                case access.Refuse(key, code, _):
                    if key in self._applicants:
                        _, connection, attempt = self._applicants.pop(key)
                        connection.opened(attempt, None, code)
                case access.Expel(key):
                    self.storm.mark("expelled")
                    producer = self._by_key.pop(key)
                    del self.by_name[producer.name]
                    producer.disconnect()
                case access.StoreEpoch(key, epoch):
                    self.storm.store_epoch(self, key, epoch)

    def epoch_stored(self, key: int, *, ok: bool) -> None:
        self._perform(self.access.epoch_stored(key) if ok else self.access.epoch_not_stored(key))

    def _admit(self, key: int, epoch: int | None) -> None:
        if key not in self._applicants:
            return
        producer, connection, attempt = self._applicants.pop(key)
        producer.epoch = epoch
        self.storm.check_admitted(self, producer, self._asked[key])
        self._by_key[key] = producer
        self.by_name[producer.name] = producer
        if self.deduplication is not None:
            self.deduplication.state.joined(producer.name, 0.0)
        self._unsettled.append((producer, connection, attempt))
        self._open_settled()

    def _open_settled(self) -> None:
        """Open the producers whose earlier sends are all settled, as `TopicProducers.add` does."""
        waiting, self._unsettled = self._unsettled, []
        for producer, connection, attempt in waiting:
            known = self.deduplication
            if known is not None and known.state.is_pending(producer.name):
                self.storm.mark("waits for its earlier sends")
                self._unsettled.append((producer, connection, attempt))
            else:
                connection.opened(attempt, producer)

    # -- the log

    def append(
        self, payload: memoryview, messages: int, producer: Producer, *, is_chunk: bool
    ) -> None:
        self.storm.check_append(self, producer)
        self.storm.append(self, producer, payload)

    def appended(self) -> None:
        pass

    def append_failed(self, error: Exception) -> None:
        self.let_go()

    def confirmed(self, producer: Producer, position: Position) -> None:
        if not self.closing:
            producer.stored(position, None)
            self._open_settled()

    def fenced(self, producer: Producer) -> None:
        producer.stored(None, FencedError("fenced"))

    def let_go(self) -> None:
        """Disconnect all producers: another broker owns the log, and clients connect again."""
        if not self.closing:
            self.closing = True
            self.storm.say("the topic is let go")
            for key in list(self._applicants):
                if key in self._applicants:
                    _, connection, attempt = self._applicants.pop(key)
                    connection.opened(attempt, None)
            for _, connection, attempt in self._unsettled:
                connection.opened(attempt, None)
            for producer in list(self.by_name.values()):
                producer.disconnect()
            self.by_name.clear()
            self._by_key.clear()


def _success(request_id: int, producer: Producer) -> pb.BaseCommand:
    base = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
    base.producer_success.request_id = request_id
    base.producer_success.producer_ready = True
    if producer.epoch is not None:
        base.producer_success.topic_epoch = producer.epoch
    return base


def _error(request_id: int, code: int, reason: str) -> pb.BaseCommand:
    base = pb.BaseCommand(type=pb.BaseCommand.ERROR)
    base.error.request_id = request_id
    base.error.error = cast("Any", code)
    base.error.message = reason
    return base


def _text(message: pb.BaseCommand | SendReceipt | Open | Close | Send) -> str:
    match message:
        case SendReceipt(_, sequence_id, _, ledger_id, entry_id):
            return f"receipt {sequence_id} at {ledger_id}:{entry_id}"
        case Send(sequence_id=sequence_id):
            return f"send {sequence_id}"
        case Open(request_id, epoch, mode, topic_epoch):
            return f"open ({request_id}), {mode.name}, epoch {epoch}, topic epoch {topic_epoch}"
        case Close(request_id):
            return f"close ({request_id})"
        case _:
            return pb.BaseCommand.Type.Name(message.type)
