"""The findings of fuzzing: each input, and the promise that it broke."""

import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import trio
from google.protobuf.message import Message
from trio.testing import MockClock, memory_stream_pair

from daybook.bookie.errors import MalformedMetadataError, MalformedRecordError
from daybook.bookie.ledger.metadata import decode_metadata
from daybook.bookie.registry.cookies import Cookie
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo, parse_address
from daybook.bookie.server.cookie_validation import StartError, validate_cookies
from daybook.bookie.storage.index import (
    Checkpoint,
    IndexDamagedError,
    block_number_of_key,
    ledger_of_key,
)
from daybook.bookie.storage.ledger_state import decode_row
from daybook.bookie.storage.records import UnsupportedVersionError
from daybook.bookie.storage.write_cache import Block
from daybook.broker.errors import UnavailableError as PeerUnavailableError
from daybook.broker.namespaces.records import GuardRecord, decode
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.clients.cli.control_server import serve_stream
from daybook.clients.python.admin import Admin
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import AdminInDoubtError, BrokerError, UnavailableError
from daybook.clients.spark.offsets import parse_offsets
from daybook.managed_ledger.cursor_ledger import recover
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.records import parse
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.arena import ArenaPool
from daybook.wire.batch import broker_entry_metadata
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import MalformedError
from daybook.wire.messages.client import SendReceipt
from daybook.wire.messages.registry import Command, decode_frame, encode
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.proto.bookkeeper_metadata_pb2 import BookieServiceInfoFormat, LedgerMetadataFormat
from daybook.wire.topics import TopicName, check_namespace
from tests import strategies
from tests.fuzz.control import MadeUpSupervisor
from tests.fuzz.http import FixedNetwork, ask
from tests.fuzz.streams import ScriptedStream
from tests.fuzz.world import World, play
from tests.harness.broker import open_broker
from tests.harness.clocks import VirtualClock
from tests.harness.disk import Platter
from tests.harness.network import SimulatedNetwork

NOT_UTF8 = b"\xff\xfe"


def with_bad_text(message: Message, text: str) -> bytes:
    """Encode the message with invalid UTF-8 in place of `text`."""
    data = message.SerializeToString()
    assert data.count(text.encode()) == 1
    assert len(text) == len(NOT_UTF8)
    return data.replace(text.encode(), NOT_UTF8)


# -- frames and entries


def test_a_receipt_without_a_message_id_is_that_of_a_dropped_duplicate() -> None:
    receipt = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
    receipt.send_receipt.producer_id, receipt.send_receipt.sequence_id = 1, 2
    body = receipt.SerializeToString()
    found = decode_frame(memoryview(len(body).to_bytes(4, "big") + body))
    assert isinstance(found, SendReceipt)
    assert (found.ledger_id, found.entry_id) == (-1, -1)


async def test_a_producer_does_not_write_the_broker_s_part_of_an_entry(
    autojump_clock: MockClock,
) -> None:
    """Readers would take it for the broker's part, and the entry for a senseless one."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        client.send_payload(0, broker_entry_metadata(1, 1000) + strategies.ENTRY)
        (error,) = await client.wait(pb.CommandSendError)
        assert error.error == pb.NotAllowedError
        client.send(1)
        assert [sequence_id for sequence_id, _, _ in await client.receipts(1)] == [1]
        assert len(cluster.broker.log().entries) == 1


@pytest.mark.parametrize("frame", [bytes(4), b"\0\0\0\4abcd"])
async def test_many_small_frames_cost_no_more_than_a_large_one(frame: bytes) -> None:
    """A view of a frame costs fifty times what an empty frame does."""
    sent = frame * ((1 << 20) // len(frame))
    connection = FrameConnection(
        ScriptedStream([sent]), arenas=ArenaPool(), flusher=Flusher(), frame_bytes_max=1 << 20
    )
    received, most = 0, 0
    while frames := await connection.receive():
        received += len(frames)
        most = max(most, len(frames))
    assert received == len(sent) // len(frame)
    assert most <= 1 << 13


# -- names


@pytest.mark.parametrize("name", [".", ".."])
def test_nothing_is_called_what_no_path_can_hold(name: str) -> None:
    for topic in (name, f"persistent://{name}/n/t", f"persistent://t/{name}/t", f"t/n/{name}"):
        with pytest.raises(MalformedError):
            TopicName.parse(topic)
    for namespace in (f"{name}/n", f"t/{name}"):
        with pytest.raises(MalformedError):
            check_namespace(namespace)
    assert TopicName.parse("t/n/...").local == "..."
    assert check_namespace("t.u/..n") == "t.u/..n"


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v2/namespaces/public/%2F",
        "/admin/v2/namespaces/../default/bundles",
        "/admin/v2/namespaces/public/./topics",
        "/admin/v2/namespaces/public/%2F/retention",
        "/admin/v2/persistent/public/..",
        "/admin/v2/persistent/public/default/../stats",
    ],
)
def test_the_rest_refuses_names_that_no_path_can_hold(path: str) -> None:
    answers: list[int] = []

    async def scenario(world: World) -> None:
        answers.append((await ask(world, "GET", path.encode()))[0])

    play(scenario)
    assert answers == [412]


# -- JSON

DEEP = b"[" * 100_000


@pytest.mark.parametrize("body", [DEEP, b'{"allowedClusters": [], "x": %b' % DEEP])
def test_a_body_that_is_nested_too_deeply_is_refused(body: bytes) -> None:
    answers: list[int] = []

    async def scenario(world: World) -> None:
        answers.append((await ask(world, "PUT", b"/admin/v2/tenants/t", body=body))[0])

    play(scenario)
    assert answers == [400]


def test_a_record_that_is_nested_too_deeply_is_malformed() -> None:
    with pytest.raises(MalformedError):
        decode(GuardRecord, b'{"x": %b' % DEEP)


@pytest.mark.parametrize("status", [b"200 OK", b"500 Internal Server Error"])
async def test_what_another_broker_answers_is_nested_too_deeply(status: bytes) -> None:
    network = FixedNetwork([ScriptedStream([http(status, b'{"x": %b' % DEEP)])])
    with pytest.raises(PeerUnavailableError):
        await PeerCalls(PeerNetwork(network)).call("http://b:8080", "GET", "/x")


def test_start_offsets_that_are_nested_too_deeply() -> None:
    with pytest.raises(ValueError, match="write 'earliest'"):
        parse_offsets(DEEP.decode(), "t", "startingOffsets")


# -- records


def test_metadata_of_a_ledger_whose_bookies_have_no_readable_names() -> None:
    message = LedgerMetadataFormat(
        quorumSize=1, ensembleSize=1, length=0, state=LedgerMetadataFormat.OPEN, lastEntryId=-1
    )
    message.segment.add(ensembleMember=["b1"], firstEntryId=0)
    body = with_bad_text(message, "b1")
    head = b"BookieMetadataFormatVersion\t3\n" + bytes((len(body),))
    with pytest.raises(MalformedMetadataError):
        decode_metadata(head + body)


@pytest.mark.parametrize("text", ["h1", "p1", "v1"], ids=["host", "property", "its value"])
def test_a_registration_that_is_not_text(text: str) -> None:
    info = BookieServiceInfoFormat()
    info.endpoints.add(id="bookie", host="h1", port=1, protocol="bookie-rpc")
    info.properties["p1"] = "v1"
    with pytest.raises(MalformedRecordError):
        BookieInfo.decode("b:1", with_bad_text(info, text))


async def test_a_directory_whose_cookie_names_nobody_is_refused_and_not_written_to() -> None:
    platter, store = Platter(Random(1)), MemoryStore(VirtualClock()).session("bookie")
    disk = platter.mount()
    await disk.make_directory("d0")
    text = Cookie("*b:1", ("d0",), ("d0",), "id").encode()
    await disk.write_file("d0/VERSION", text)
    with pytest.raises(StartError, match="cannot be the id"):
        await validate_cookies(
            disk, ["d0"], store, LedgerPaths(), instance_id="id", wanted_id="", default_id="b:1"
        )
    assert await disk.read_file("d0/VERSION") == text


def test_numbers_that_are_too_long_to_be_numbers() -> None:
    digits = "9" * 5000
    with pytest.raises(MalformedRecordError):
        parse_address(f"host:{digits}")
    with pytest.raises(MalformedRecordError):
        Cookie.decode(f"3\nb:1\nj\n{digits}\tl\n".encode())


def test_the_list_of_a_log_with_a_property_that_is_not_text() -> None:
    info = ManagedLedgerInfo()
    info.properties.add(key="index", value="99")
    with pytest.raises(LogCorruptError):
        parse(ManagedLedgerInfo(), with_bad_text(info, "99"), "the list")


def test_a_cursor_with_a_property_that_is_not_text() -> None:
    info = ManagedCursorInfo(cursorsLedgerId=-1)
    info.properties.add(name="p1", value=7)
    with pytest.raises(LogCorruptError):
        parse(ManagedCursorInfo(), with_bad_text(info, "p1"), "the cursor")
    snapshot = b"\x08\x05\x10\x06" + b"\x22\x06\x0a\x02" + NOT_UTF8 + b"\x10\x07"
    with pytest.raises(LogCorruptError):
        recover([snapshot], {})


@pytest.mark.parametrize(
    "decode",
    [
        lambda data: decode_row(7, data),
        Block.decode,
        Checkpoint.decode,
        ledger_of_key,
        block_number_of_key,
    ],
)
@pytest.mark.parametrize("data", [b"", b"\0", b"\0\2abc", bytes(33), b"\xff" * 40])
def test_an_index_that_is_damaged_is_an_error_of_the_disk(
    decode: Callable[[bytes], object], data: bytes
) -> None:
    """A bookie that cannot read it says so; it neither dies nor calls an entry absent."""
    with pytest.raises((IndexDamagedError, UnsupportedVersionError)):
        decode(data)


# -- the control socket


@pytest.mark.parametrize(
    "request_",
    [
        b'{"command": "kill", "name": ["broker-1"]}',
        b'{"command": "status", "name": {}}',
        b'{"command": "stop", "name": 7}',
        b"[" * 5000,
    ],
)
async def test_an_order_that_makes_no_sense_does_not_end_the_cluster(request_: bytes) -> None:
    supervisor: Any = MadeUpSupervisor()
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, supervisor, theirs)
        await ours.send_all(request_ + b"\n")
        answer = await ours.receive_some()
    assert "error" in json.loads(answer)
    assert not any(keeper.orders for keeper in supervisor.keepers.values())


# -- answers to our clients


def http(status: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers, b"", body]
    return b"\r\n".join(lines)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda admin: admin.partitions("t"), b"{}"),
        (lambda admin: admin.partitions("t"), b"7"),
        (lambda admin: admin.partitions("t"), b'{"partitions": "x"}'),
        (lambda admin: admin.topics(), b"{}"),
        (lambda admin: admin.topics(), b"[1]"),
        (lambda admin: admin.topics(), b"[" * 5000),
        (lambda admin: admin.last_message_id("t"), b'{"ledgerId": 1}'),
    ],
)
async def test_an_admin_answer_that_makes_no_sense_leaves_it_in_doubt(
    call: Callable[[Admin], Awaitable[object]], answer: bytes
) -> None:
    network = FixedNetwork([ScriptedStream([http(b"200 OK", answer)])])
    with pytest.raises(AdminInDoubtError):
        await call(Admin("http://b:8080", network=network, rng=Random(1)))


@pytest.mark.parametrize(
    ("location", "error"),
    [
        (b"http://[::1", AdminInDoubtError),
        (b"http://b:99999/x", AdminInDoubtError),
        (b"http://b:8080/a b", UnavailableError),
        (b"http://b:8080/\x80", UnavailableError),
    ],
)
async def test_a_redirect_that_leads_nowhere(
    location: bytes, error: type[Exception], autojump_clock: MockClock
) -> None:
    first = http(b"307 Temporary Redirect", b"", b"Location: " + location)
    network = FixedNetwork([ScriptedStream([first])])
    with pytest.raises(error):
        await Admin("http://b:8080", network=network, rng=Random(1)).topics()


async def test_an_answer_of_another_kind_ends_the_connection_and_not_the_client(
    autojump_clock: MockClock,
) -> None:
    network = SimulatedNetwork(Random(1))

    async def serve(frames: FrameConnection) -> None:
        while batch := await frames.receive():
            for frame in batch:
                command = decode_frame(frame)
                assert isinstance(command, Command)
                if isinstance(command.body, pb.CommandConnect):
                    frames.send([encode(pb.CommandConnected(server_version="odd"))])
                else:
                    frames.send([encode(pb.CommandSuccess(request_id=command.body.request_id))])

    async with trio.open_nursery() as nursery:
        flusher = Flusher()
        nursery.start_soon(flusher.run)
        listener = await network.of("b").listen("b", 6650)

        async def accept() -> None:
            while True:
                stream = await listener.accept()
                frames = FrameConnection(
                    stream, arenas=ArenaPool(), flusher=flusher, frame_bytes_max=1 << 20
                )
                nursery.start_soon(serve, frames)

        nursery.start_soon(accept)
        async with connect(
            "pulsar://b:6650", network=network.of("c"), clock=VirtualClock(), rng=Random(2)
        ) as client:
            for call in (client.partitions, client.lookup, client.create_producer):
                with pytest.raises(BrokerError):
                    await call("t")
        nursery.cancel_scope.cancel()
