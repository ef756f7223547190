"""Target: whole sessions with a broker, of clients that send valid commands in any order, and
worse.

A script opens up to three connections and sends on them: every command with fields of its choice,
invalid entries, half frames, oversized ones, nothing for a while; and between that an administrator
unloads, deletes and terminates the topics in use.  The broker is whole, and keeps its logs on a
whole bookie.

Beside it a client publishes to a topic and consumes it, and must not notice.  In the end every
connection is closed or answers PING, every request that has an answer got one, and nothing remains
of clients that are gone.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
import trio.lowlevel
from google.protobuf.message import Message

from daybook.broker.errors import BrokerError
from daybook.wire.batch import encode_payload
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError
from daybook.wire.fields import U32
from daybook.wire.messages.client import SendReceipt, encode_send
from daybook.wire.messages.consumer import Delivery, encode_ack
from daybook.wire.messages.registry import Command, decode_frame, encode
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests import strategies
from tests.fuzz.choices import EDGES, Choices
from tests.fuzz.filling import fill
from tests.fuzz.target import Target, require
from tests.fuzz.world import BROKER, BROKER_PORT, World, play, settle, until

CONNECTIONS_MAX = 3
_STEP_S = 0.002
_TOPICS = ("t", "u")
_KINDS = [kind for kind in strategies.command_kinds() if kind is not pb.CommandConnect]
_USUAL = (
    pb.CommandProducer,
    pb.CommandSubscribe,
    pb.CommandFlow,
    pb.CommandSeek,
    pb.CommandUnsubscribe,
    pb.CommandCloseProducer,
    pb.CommandCloseConsumer,
    pb.CommandRedeliverUnacknowledgedMessages,
    pb.CommandGetLastMessageId,
    pb.CommandConsumerStats,
    pb.CommandLookupTopic,
    pb.CommandPartitionedTopicMetadata,
    pb.CommandGetTopicsOfNamespace,
)
_ANSWERED = tuple(kind for kind in _USUAL if "request_id" in kind.DESCRIPTOR.fields_by_name)


@dataclass(slots=True, eq=False)
class Talker:
    """A client that sends what the script chooses."""

    frames: FrameConnection
    greeted: bool = False
    torn: bool = False  # half a frame was sent: later bytes are parsed differently
    pongs: int = 0
    requests: int = 1000
    open_requests: set[int] = field(default_factory=set[int])
    seen: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    # Messages to send after an answer, by request.
    afterwards: dict[int, Message] = field(default_factory=dict[int, Message])

    async def listen(self) -> None:
        """Check that everything from the broker parses, and that it answers a request once."""
        while batch := await self.frames.receive():
            for frame in batch:
                self._heard(decode_frame(frame))

    def _heard(self, command: object) -> None:
        match command:
            case Delivery():
                self.seen.append((command.ledger_id, command.entry_id))
            case Command():
                body = command.body
                self.pongs += isinstance(body, pb.CommandPong)
                request_id = getattr(body, "request_id", 0)
                if request_id > 1000 and request_id <= self.requests:
                    if isinstance(body, pb.CommandProducerSuccess) and not body.producer_ready:
                        self.open_requests.discard(request_id)  # The producer may wait forever now.
                        return
                    self.open_requests.discard(request_id)
                    if (following := self.afterwards.pop(request_id, None)) is not None:
                        self.say(following)

    def say(self, message: Message) -> None:
        self.frames.send([encode(message)])

    def ask(self, message: Any) -> None:
        """Send a request and expect an answer."""
        self.requests += 1
        message.request_id = self.requests
        if self.greeted and not self.torn:
            self.open_requests.add(message.request_id)
        self.say(message)


class Script:
    """Carries out one input."""

    def __init__(self, world: World, choices: Choices) -> None:
        self._world = world
        self._choices = choices
        self.talkers: list[Talker] = []
        self.sequence = 0

    async def step(self) -> None:
        choices = self._choices
        kind = choices.below(24)
        if kind == 0 or not self.talkers:
            await self._open(greet=kind < 20)
            return
        talker = choices.pick(self.talkers)
        match kind:
            case 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8:
                self._usual(talker, choices.pick(_USUAL))
            case 9 | 10 | 11 | 12 | 13:
                self._send(talker)
            case 14 | 15 | 16:
                self._ack(talker)
            case 17 if choices.one_in(2):
                message = choices.pick(_KINDS)()
                fill(message, choices)
                talker.say(message)
            case 18 if choices.one_in(2):
                self._nonsense(talker)
            case 19:
                talker.frames.close("the script says so")
                self.talkers.remove(talker)
            case 20:
                await self._administrate()
            case 21:
                await trio.sleep(choices.pick((0.05, 0.5, 31.0)))
            case 22 if choices.one_in(4):
                self._connect(talker)
            case _:
                await trio.lowlevel.checkpoint()

    async def _open(self, *, greet: bool) -> None:
        if len(self.talkers) == CONNECTIONS_MAX:
            return
        talker = Talker(await self._world.connect(BROKER, BROKER_PORT))
        self._world.nursery.start_soon(talker.listen)
        self.talkers.append(talker)
        if greet:
            self._connect(talker)
            if not self._choices.one_in(3):
                self._fit_out(talker)

    def _fit_out(self, talker: Talker) -> None:
        """Open what most clients begin with: a producer, and a consumer with permits."""
        choices = self._choices
        topic = choices.pick(_TOPICS)
        talker.ask(pb.CommandProducer(topic=topic, producer_id=0))
        subscribe = pb.CommandSubscribe(topic=topic, subscription="sub", consumer_id=0)
        subscribe.subType = choices.below(3)  # type: ignore[assignment]
        subscribe.initialPosition = pb.CommandSubscribe.Earliest
        talker.ask(subscribe)
        permits = pb.CommandFlow(consumer_id=0, messagePermits=9 + choices.below(200))
        talker.afterwards[talker.requests] = permits

    def _connect(self, talker: Talker) -> None:
        choices = self._choices
        connect = pb.CommandConnect(client_version="fuzz", protocol_version=19)
        if choices.one_in(3):
            connect.client_version = "daybook-fuzz"
            connect.feature_flags.supports_broker_entry_metadata = True
        if choices.one_in(8):
            fill(connect, choices)
        talker.greeted = True
        talker.say(connect)

    def _usual(self, talker: Talker, kind: Callable[[], Any]) -> None:
        choices, message = self._choices, kind()
        wild = choices.one_in(4)
        if wild:
            fill(message, choices)
        for name, value in (
            ("topic", choices.pick(_TOPICS)),
            ("subscription", "sub"),
            ("producer_id", choices.below(2)),
            ("consumer_id", choices.below(2)),
            ("messagePermits", 1 + choices.below(9)),
            ("namespace", "public/default"),
        ):
            if name in message.DESCRIPTOR.fields_by_name and not (wild and message.HasField(name)):
                setattr(message, name, value)
        if isinstance(message, pb.CommandSubscribe):
            message.subType = choices.below(4)  # type: ignore[assignment]
            message.initialPosition = choices.below(2)  # type: ignore[assignment]
            message.durable = not choices.one_in(4)
        if isinstance(message, pb.CommandSeek) and not wild:
            message.message_id.ledgerId, message.message_id.entryId = self._place(talker)
        if isinstance(message, _ANSWERED) and not choices.one_in(8):
            talker.ask(message)
        else:
            fill(message, Choices(b"")) if not message.IsInitialized() else None
            talker.say(message)

    def _place(self, talker: Talker) -> tuple[int, int]:
        """Return the position of a known entry, one beside it, or any position."""
        choices = self._choices
        ledger_id, entry_id = choices.pick(talker.seen or [(0, 0)])
        if choices.one_in(4):
            entry_id = choices.pick(EDGES)
        if choices.one_in(4):
            ledger_id = choices.pick((0, 1, 2, ledger_id + 1, *EDGES))
        return ledger_id % (1 << 64), entry_id % (1 << 64)

    def _send(self, talker: Talker) -> None:
        choices = self._choices
        producer_id = int(choices.one_in(12))
        count, payload = 1, strategies.ENTRY
        match choices.below(6):
            case 0:
                count, payload = 3, strategies.ENTRIES["batch"]
            case 1:
                payload = strategies.ENTRIES[choices.pick(sorted(strategies.ENTRIES))]
            case 2:
                payload = choices.blob(60)
            case 3:
                damaged = bytearray(payload)
                damaged[choices.below(len(damaged))] ^= 1 << choices.below(8)
                payload = bytes(damaged)
            case _:
                pass
        if choices.one_in(8):
            count = choices.number() & 0x7FFFFFFF
        self.sequence += 1
        head = encode_send(producer_id, self.sequence, len(payload), num_messages=count)
        talker.frames.send([head, payload])

    def _ack(self, talker: Talker) -> None:
        choices = self._choices
        ids = [
            (*self._place(talker), choices.below(8) if choices.one_in(3) else None)
            for _ in range(1 + choices.below(3))
        ]
        request_id = None
        if choices.flag():
            talker.requests += 1
            request_id = talker.requests
            if talker.greeted and not talker.torn:
                talker.open_requests.add(request_id)
        talker.frames.send(
            [encode_ack(choices.below(2), ids, cumulative=choices.one_in(3), request_id=request_id)]
        )

    def _nonsense(self, talker: Talker) -> None:
        choices = self._choices
        match choices.below(4):
            case 0:
                talker.frames.send([U32.pack(choices.number() & 0xFFFFFFFF)])
            case 1:
                body = choices.blob(40)
                talker.frames.send([U32.pack(len(body)) + body])
            case 2:
                frame = encode(pb.CommandPing())
                talker.frames.send([frame[: choices.below(len(frame))]])
            case _:
                talker.frames.send([choices.blob(40)])
        talker.torn = True
        talker.open_requests.clear()

    async def _administrate(self) -> None:
        broker = self._world.broker
        assert broker is not None
        topic = TopicName.parse(self._choices.pick(_TOPICS))
        with suppress(BrokerError):
            match self._choices.below(5):
                case 0:
                    await broker.operations.unload_topic(topic)
                case 1:
                    await broker.operations.delete_topic(topic, force=True)
                case 2:
                    await broker.operations.terminate(topic)
                case 3:
                    await broker.operations.delete_subscription(topic, "sub", force=True)
                case _:
                    await broker.operations.skip_all(topic, "sub")


class Bystander:
    """A healthy client beside the script: publishes and consumes, in order and without a gap."""

    def __init__(self, frames: FrameConnection) -> None:
        self.sent = 0
        self.receipts: list[int] = []
        self.delivered: list[int] = []
        self._frames = frames
        self._answers = 0
        self._answered = trio.Event()

    async def start(self, nursery: trio.Nursery) -> None:
        """Look all topics up, so that the broker owns them; open the producer and the consumer."""
        nursery.start_soon(self._listen)
        producer = pb.CommandProducer(topic="well", producer_id=1, request_id=1)
        subscribe = pb.CommandSubscribe(topic="well", subscription="s", consumer_id=1, request_id=2)
        subscribe.subType = pb.CommandSubscribe.Exclusive
        await self._ask(pb.CommandConnect(client_version="well", protocol_version=19))
        for name in ("well", *_TOPICS):
            await self._ask(pb.CommandLookupTopic(topic=name, request_id=3, authoritative=True))
        await self._ask(producer)
        await self._ask(subscribe)
        self._frames.send([encode(pb.CommandFlow(consumer_id=1, messagePermits=10_000))])

    async def _ask(self, message: Message) -> None:
        wanted = self._answers + 1
        self._frames.send([encode(message)])
        while self._answers < wanted:
            await self._answered.wait()

    async def _listen(self) -> None:
        while batch := await self._frames.receive():
            for frame in batch:
                self._heard(decode_frame(frame))
        require(False, f"the bystander is cut: {self._frames.close_reason}")

    def _heard(self, command: object) -> None:
        match command:
            case SendReceipt():
                self.receipts.append(command.sequence_id)
            case Delivery():
                self.delivered.append(len(command.payload))
                ids = [(command.ledger_id, command.entry_id, None)]
                self._frames.send([encode_ack(1, ids)])
            case Command(body=pb.CommandPing()):
                self._frames.send([encode(pb.CommandPong())])
            case Command(
                body=pb.CommandSuccess()
                | pb.CommandConnected()
                | pb.CommandProducerSuccess()
                | pb.CommandLookupTopicResponse()
            ):
                self._answers += 1
                self._answered.set()
                self._answered = trio.Event()
            case _:
                require(False, f"the bystander is told {command}")

    def publish(self) -> None:
        self.sent += 1
        payload = encode_payload(strategies.metadata(), bytes(self.sent))
        self._frames.send([encode_send(1, self.sent, len(payload)), payload])

    async def check(self) -> None:
        self.publish()
        await until(lambda: len(self.delivered) == self.sent, "the bystander waits")
        require(self.receipts == list(range(1, self.sent + 1)), "receipts out of order")
        require(self.delivered == sorted(self.delivered), "the bystander gets another order")
        require(len(set(self.delivered)) == self.sent, "the bystander gets something twice")


async def _scenario(world: World, data: bytes) -> None:
    choices = Choices(data)
    bystander = Bystander(await world.connect(BROKER, BROKER_PORT))
    await bystander.start(world.nursery)
    script = Script(world, choices)
    while choices:
        await script.step()
        await trio.sleep(_STEP_S)
        bystander.publish()
        world.check_log()
    await _check_talkers(script)
    for talker in script.talkers:
        talker.frames.close("the script is over")
    await settle(world)
    assert world.broker is not None
    require(world.broker.clients.connections == 1, "a connection is left over")
    for topic in world.broker.topics.loaded.values():
        if topic.name.local != "well":
            require(not topic.producers.by_name, "a producer is left over")
            for subscription in topic.subscriptions.by_name.values():
                require(not subscription.consumers, "a consumer is left over")
    await bystander.check()


async def _check_talkers(script: Script) -> None:
    """Check that connected clients are served, and that requests were answered."""
    await trio.sleep(6)
    for talker in script.talkers:
        if talker.torn or not talker.greeted:
            continue
        before = talker.pongs
        with suppress(ConnectionLostError):
            talker.say(pb.CommandPing())
        await until(partial(_has_answered, talker, before), "a session is stuck")
        require(talker.frames.closed or not talker.open_requests, "a request is never answered")


def _has_answered(talker: Talker, pongs_before: int) -> bool:
    return talker.frames.closed or talker.pongs > pongs_before


def run_broker_session(data: bytes) -> None:
    play(lambda world: _scenario(world, data))


def broker_session_seeds() -> Mapping[str, bytes]:
    connect, send, ack = bytes(7), b"\x09\0\0\4\0", b"\x0e\0\0\0\0\0\0\1\0\0"
    every = b"".join(bytes((1, 0, number, *([0] * 12))) for number in range(len(_USUAL)))
    return {
        "publish": connect + send * 4,
        "consume": connect + send * 4 + (ack + send) * 4,
        "every command": connect + send + every,
        "administrated": connect + b"".join(send + bytes((20, 0, n)) + ack for n in range(5)),
        "two": connect + b"\0\0\0\0\0\1\x09" + send * 2 + (b"\x0e\1" + ack[2:]) * 3,
        "any": bytes(range(256)),
    }


TARGETS = (
    Target(
        name="session.broker",
        run=run_broker_session,
        errors=(),
        seeds=broker_session_seeds,
        input_bytes_max=500,
        steps_max=1_500_000,
        steps_a_byte=10_000,
        memory_bytes_max=64 << 20,  # arenas of both hosts and their clients, and the cluster itself
        examples=25,
        weight=8.0,
    ),
)
