"""Targets: our clients, when their servers answer otherwise than they should.

A client of brokers publishes, consumes, seeks and asks, while the broker answers as a script says:
the right answer, the same twice, other commands with the same request id, nothing, nonsense, the
end of the connection.  A ledger client writes, recovers and reads while its bookies do so.
Calls end with a result or an error of the client's own, in bounded time, whatever the answers are;
and nothing of a closed client remains.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import trio
from trio.testing import MockClock

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.client import LedgerClient, Quorums, open_ledger_client
from daybook.bookie.registry.cookies import Cookie, create_cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo, register_bookie
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.message_id import EARLIEST
from daybook.clients.python.messages import Message
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import WireError
from daybook.wire.fields import U32
from daybook.wire.messages import bookie
from daybook.wire.messages.bookie import Add, BatchRead, Read
from daybook.wire.messages.client import Send, encode_send_receipts
from daybook.wire.messages.consumer import Ack, encode_message, encode_message_id
from daybook.wire.messages.registry import Command, decode_frame, encode
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.metadata.store import MetadataError
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Listener, Stream
from tests import strategies
from tests.fuzz.choices import EDGES, Choices
from tests.fuzz.filling import fill
from tests.fuzz.target import Target, require
from tests.harness.clocks import VirtualClock
from tests.harness.network import SimulatedNetwork

_PORT = 6650
_CALL_S = 100.0
_ALL_S = 5_000.0
_BOOKIES = ("b1", "b2", "b3")
_FRAME_BYTES_MAX = 8 << 20


async def _accept(
    listener: Listener, serve: Callable[[Stream], Awaitable[None]], nursery: trio.Nursery
) -> None:
    while True:
        nursery.start_soon(serve, await listener.accept())


async def _bounded(call: Awaitable[Any]) -> Any:
    """Check that a call of a client ends in time, or when its caller gives up."""
    with trio.move_on_after(_CALL_S), suppress(BrokerError, LedgerError, MetadataError):
        return await call
    return None


# -- a broker that cannot be trusted


class OddBroker:
    """A broker that answers as the choices say; when they are used up, as it should."""

    def __init__(self, choices: Choices, arenas: ArenaPool, flusher: Flusher) -> None:
        self._choices = choices
        self._arenas = arenas
        self._flusher = flusher
        self._entries = 0

    async def serve(self, stream: Stream) -> None:
        frames = FrameConnection(
            stream, arenas=self._arenas, flusher=self._flusher, frame_bytes_max=_FRAME_BYTES_MAX
        )
        while batch := await frames.receive():
            for frame in batch:
                for answer in self._answers(decode_frame(frame)):
                    frames.send([answer])
                if self._choices.one_in(64):
                    frames.close("the script says so")

    def _answers(self, command: object) -> list[bytes]:
        choices = self._choices
        right = self._right(command)
        match choices.below(16):
            case 12:
                return right + right
            case 13:
                return []
            case 14:
                return right + self._odd(command)
            case 15:
                return self._odd(command)
            case _:
                return right

    def _right(self, command: object) -> list[bytes]:
        match command:
            case Send():
                self._entries += 1
                ids = [(command.sequence_id, None, 5, self._entries)]
                return [encode_send_receipts(command.producer_id, ids)]
            case Ack():
                answer = pb.CommandAckResponse(consumer_id=command.consumer_id)
                if command.request_id is None:
                    return []
                answer.request_id = command.request_id
                return [encode(answer)]
            case Command():
                return self._right_answer(command.body)
            case _:
                return []

    def _right_answer(self, body: Any) -> list[bytes]:
        match body:
            case pb.CommandConnect():
                return [encode(pb.CommandConnected(server_version="odd", protocol_version=19))]
            case pb.CommandLookupTopic():
                answer: Any = pb.CommandLookupTopicResponse(
                    brokerServiceUrl="pulsar://broker:6650",
                    response=pb.CommandLookupTopicResponse.Connect,
                )
            case pb.CommandPartitionedTopicMetadata():
                answer = pb.CommandPartitionedTopicMetadataResponse(partitions=0)
            case pb.CommandProducer():
                answer = pb.CommandProducerSuccess(producer_name="p")
            case pb.CommandGetTopicsOfNamespace():
                answer = pb.CommandGetTopicsOfNamespaceResponse(topics=["t"])
            case pb.CommandGetLastMessageId():
                answer = pb.CommandGetLastMessageIdResponse()
                answer.last_message_id.ledgerId = answer.last_message_id.entryId = 3
            case pb.CommandFlow():
                return [self._delivery(body.consumer_id)]
            case pb.CommandPing():
                return [encode(pb.CommandPong())]
            case _:
                answer = pb.CommandSuccess()
        if not hasattr(body, "request_id"):
            return []
        answer.request_id = body.request_id
        return [encode(answer)]

    def _delivery(self, consumer_id: int) -> bytes:
        choices = self._choices
        names = sorted(strategies.ENTRIES)
        payload = bytearray(strategies.ENTRIES[choices.pick(names)])
        if choices.one_in(4):
            payload[choices.below(len(payload))] ^= 1 << choices.below(8)
        self._entries += 1
        ack_set = choices.number() & 0xFF if choices.one_in(4) else None
        ids = (5, self._entries) if not choices.one_in(8) else (choices.pick(EDGES), 0)
        size = len(payload)
        return encode_message(consumer_id, encode_message_id(*ids, -1), 0, ack_set, size) + payload

    def _odd(self, command: object) -> list[bytes]:
        choices = self._choices
        if choices.one_in(4):
            body = choices.blob(30)
            return [U32.pack(len(body)) + body]
        message: Any = choices.pick(strategies.COMMANDS).__class__()
        fill(message, choices)
        request_id = getattr(getattr(command, "body", None), "request_id", 1)
        if "request_id" in message.DESCRIPTOR.fields_by_name:
            message.request_id = request_id
        return [encode(message)]


def run_client(data: bytes) -> None:
    trio.run(_use_client, Choices(data), clock=MockClock(autojump_threshold=0))


async def _use_client(choices: Choices) -> None:
    plan = [choices.below(8) for _ in range(8)]
    network = SimulatedNetwork(Random(1), delay_s=(0.0001, 0.0001))
    with trio.fail_after(_ALL_S):
        async with trio.open_nursery() as nursery:
            flusher = Flusher()
            nursery.start_soon(flusher.run)
            broker = OddBroker(choices, ArenaPool(), flusher)
            listener = await network.of("broker").listen("broker", _PORT)
            nursery.start_soon(_accept, listener, broker.serve, nursery)
            with suppress(BrokerError):
                async with connect(
                    "pulsar://broker:6650",
                    network=network.of("client"),
                    clock=VirtualClock(),
                    rng=Random(2),
                    limits=ClientLimits(),
                ) as client:
                    for what in plan:
                        await _bounded(_call(client, what))
            await trio.sleep(1)
            left = [stream for stream in network.open_streams if stream.host == "client"]
            require(not left, "a connection of the client is left over")
            nursery.cancel_scope.cancel()


async def _call(client: Client, what: int) -> None:
    match what:
        case 0:
            await client.partitions("t")
        case 1:
            await client.lookup("t")
            await client.topics()
        case 2:
            await client.last_message_id("t")
        case 3:
            await client.offset_ranges("t")
        case 4:
            async with await client.create_reader("t", start=EARLIEST) as reader:
                await _bounded(reader.receive_batch(3))
        case 5 | 6:
            async with await client.create_producer("t", send_timeout_s=5.0) as producer:
                for number in range(3):
                    await _bounded(producer.send(b"%d" % number))
        case _:
            async with await client.subscribe("t", "s", receiver_queue_size=10) as consumer:
                for _ in range(3):
                    message: Message | None = await _bounded(consumer.receive())
                    if message is not None:
                        _ = (message.data, message.key, message.properties, message.offset)
                        await _bounded(consumer.ack(message))
                await _bounded(consumer.seek(EARLIEST))


def client_seeds() -> Mapping[str, bytes]:
    plans = (bytes(range(8)), bytes((5, 7, 5, 7, 4, 4, 0, 1)))
    return {
        "right": plans[0],
        "mixed": plans[1] + bytes(range(0, 256, 3)),
        "twice": plans[1] + b"\x0c\0" * 60,
        "silent": plans[0] + b"\x0d\0" * 20,
        "odd": plans[1] + b"\x0e\1\2\3\4\5\6\7" * 12,
    }


# -- bookies that cannot be trusted


class OddBookie:
    """A bookie that stores entries and answers as the choices say; then as it should."""

    def __init__(self, choices: Choices, arenas: ArenaPool, flusher: Flusher) -> None:
        self._choices = choices
        self._arenas = arenas
        self._flusher = flusher
        self._entries: dict[tuple[int, int], bytes] = {}

    async def serve(self, stream: Stream) -> None:
        frames = FrameConnection(
            stream, arenas=self._arenas, flusher=self._flusher, frame_bytes_max=_FRAME_BYTES_MAX
        )
        while batch := await frames.receive():
            for frame in batch:
                for answer in self._answers(bookie.decode_request(frame)):
                    frames.send([answer])
                if self._choices.one_in(64):
                    frames.close("the script says so")

    def _answers(self, request: bookie.Request) -> list[bytes]:
        choices = self._choices
        match choices.below(16):
            case 11:
                return self._right(request) * 2
            case 12:
                return []
            case 13:
                return self._right(request, status=choices.pick(_STATUSES))
            case 14:
                return self._right(request, shift=choices.pick((1, -1, 7, 1 << 40)))
            case 15:
                body = choices.blob(60)
                return [U32.pack(len(body)) + body]
            case _:
                return self._right(request)

    def _right(self, request: bookie.Request, *, status: int = 0, shift: int = 0) -> list[bytes]:
        match request:
            case Add():
                self._entries[request.ledger_id, request.entry_id] = bytes(request.entry)
                entry_id = request.entry_id + shift
                return [
                    bookie.encode_add_answer(request.header, status, request.ledger_id, entry_id)
                ]
            case Read():
                entry_id = request.entry_id
                if entry_id == bookie.LAST_ENTRY:
                    mine = [e for ledger, e in self._entries if ledger == request.ledger_id]
                    entry_id = max(mine, default=-1)
                entry = self._entries.get((request.ledger_id, entry_id + shift), b"")
                if not entry and not status:
                    status = bookie.Status.NO_ENTRY
                if self._choices.one_in(16) and entry:
                    damaged = bytearray(entry)
                    damaged[self._choices.below(len(damaged))] ^= 1
                    entry = bytes(damaged)
                head = bookie.encode_read_answer(
                    request.header, status, request.ledger_id, request.entry_id, len(entry)
                )
                return [head + entry]
            case BatchRead():
                return [bookie.encode_batch_answer_header(request, bookie.Status.BAD_REQUEST)]
            case _:
                return []


_STATUSES = (0, 1, 2, 100, 101, 102, 103, 104, 105, 106, 107, 7, 0xFFFFFFFF)


@asynccontextmanager
async def _ledger_client(choices: Choices) -> AsyncGenerator[LedgerClient]:
    network, store = (
        SimulatedNetwork(Random(1), delay_s=(0.0001, 0.0001)),
        MemoryStore(VirtualClock()),
    )
    session, paths = store.session("bookies"), LedgerPaths()
    await ensure_layout(session, paths, Random(2))
    async with trio.open_nursery() as nursery:
        flusher, arenas = Flusher(), ArenaPool()
        nursery.start_soon(flusher.run)
        for name in _BOOKIES:
            bookie_id = f"{name}:{_PORT}"
            odd = OddBookie(choices, arenas, flusher)
            listener = await network.of(name).listen(name, _PORT)
            nursery.start_soon(_accept, listener, _tolerant(odd.serve), nursery)
            await create_cookie(session, paths, Cookie(bookie_id, ("d",), ("d",), "id"))
            await register_bookie(session, paths, BookieInfo(bookie_id, name, _PORT))
        async with open_ledger_client(
            store=store.session("client"),
            network=network.of("client"),
            rng=Random(3),
            clock=VirtualClock(),
            arenas=arenas,
            flusher=flusher,
        ) as client:
            yield client
        await trio.sleep(1)
        left = [stream for stream in network.open_streams if stream.host == "client"]
        require(not left, "a connection of the client is left over")
        nursery.cancel_scope.cancel()


def _tolerant(serve: Callable[[Stream], Awaitable[None]]) -> Callable[[Stream], Awaitable[None]]:
    async def served(stream: Stream) -> None:
        with suppress(WireError):
            await serve(stream)

    return served


def run_ledger_client(data: bytes) -> None:
    trio.run(_use_ledger_client, Choices(data), clock=MockClock(autojump_threshold=0))


async def _use_ledger_client(choices: Choices) -> None:
    count = 1 + choices.below(6)
    with trio.fail_after(_ALL_S):
        async with _ledger_client(choices) as client:
            await _bounded(_write_and_read(client, count))


async def _write_and_read(client: LedgerClient, count: int) -> None:
    writer = await client.create(Quorums(3, 2, 2))
    payloads = [b"payload %d" % number for number in range(count)]
    for payload in payloads:
        entry_id = writer.append([payload])
        await _bounded(writer.wait_confirmed(entry_id))
    await _bounded(writer.read(0, 0, max_bytes=1))
    if count % 2:
        await _bounded(writer.close())
    writer.abandon()
    reader = await client.open(writer.ledger_id, recover=True)
    if reader.last_add_confirmed >= 0:
        for entry in await reader.read(0, reader.last_add_confirmed, max_bytes=1 << 20):
            require(bytes(entry.payload) == payloads[entry.entry_id], "another entry is read")
    await _bounded(reader.refresh())


def ledger_client_seeds() -> Mapping[str, bytes]:
    return {
        "right": b"\4",
        "twice": b"\5" + b"\x0b\0" * 40,
        "silent": b"\4" + b"\x0c\0" * 30,
        "statuses": b"\5" + b"".join(bytes((13, i % 13, 0)) for i in range(40)),
        "shifted": b"\4" + b"\x0e\1\0\0" * 30,
        "any": b"\5" + bytes(range(256)),
    }


TARGETS = (
    Target(
        name="session.client",
        run=run_client,
        errors=(),
        seeds=client_seeds,
        input_bytes_max=500,
        steps_max=5_000_000,
        memory_bytes_max=32 << 20,
        examples=40,
        weight=4.0,
    ),
    Target(
        name="session.ledger_client",
        run=run_ledger_client,
        errors=(),
        seeds=ledger_client_seeds,
        input_bytes_max=500,
        steps_max=5_000_000,
        memory_bytes_max=32 << 20,
        examples=40,
        weight=4.0,
    ),
)
