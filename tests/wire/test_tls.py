"""TLS over a stream: whatever the pieces, the same bytes; whatever a peer does, only it is cut."""

import random
import shutil
import ssl
import subprocess
import warnings
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError, NotTlsError, SpeaksTlsError, TlsError
from daybook.wire.logging import silent_log
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpNetwork
from daybook.wire.tls import TlsClient, TlsServer, TlsStream
from daybook.wire.tls_files import (
    ClientCertificates,
    ReloadedContext,
    TlsFiles,
    client_context,
    server_context,
)
from daybook.wire.transport import Stream
from tests.harness.certificates import Authority
from tests.harness.counted_stream import CountedStream
from tests.harness.pipe import PipeStream, pipe

PATIENCE_S = 60.0
ResultT = TypeVar("ResultT")


class Parties:
    """An authority, and a server and a client that trust it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.server_files = self.authority.files("server")
        self.alice = self.authority.files("alice")
        self.trusting = TlsFiles(trusted=self.authority.trusted)

    def server(
        self, client_certificates: ClientCertificates = "off", files: TlsFiles | None = None
    ) -> TlsServer:
        build = partial(server_context, client_certificates=client_certificates)
        return TlsServer(_contexts(files or self.server_files, build))

    def client(self, files: TlsFiles | None = None, *, verify_host: bool = True) -> TlsClient:
        build = partial(client_context, verify_host=verify_host)
        return TlsClient(_contexts(files or self.trusting, build))


def _contexts(files: TlsFiles, build: Callable[[TlsFiles], ssl.SSLContext]) -> ReloadedContext:
    return ReloadedContext(files, build, clock=SystemClock(), log=silent_log())


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties(tmp_path_factory.mktemp("tls"))


async def caught(call: Callable[[], Awaitable[ResultT]]) -> ResultT | ConnectionLostError:
    try:
        return await call()
    except ConnectionLostError as error:
        return error


async def shake(
    client: TlsClient, server: TlsServer, ends: tuple[Stream, Stream], host: str = "localhost"
) -> tuple[TlsStream | ConnectionLostError, TlsStream | ConnectionLostError]:
    """Return the client's and the server's stream, or how each has failed."""
    results: dict[str, TlsStream | ConnectionLostError] = {}

    async def run(name: str, call: Callable[[], Awaitable[TlsStream]]) -> None:
        results[name] = await caught(call)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "client", partial(client.connect, ends[0], host))
            nursery.start_soon(run, "server", partial(server.accept, ends[1]))
    return results["client"], results["server"]


async def connected(
    client: TlsClient, server: TlsServer, ends: tuple[Stream, Stream]
) -> tuple[TlsStream, TlsStream]:
    here, there = await shake(client, server, ends)
    assert isinstance(here, TlsStream), here
    assert isinstance(there, TlsStream), there
    return here, there


async def send_all(stream: Stream, pieces: list[bytes]) -> None:
    """Send pieces as connections do: what was not taken is offered again, with more behind it."""
    waiting = [memoryview(piece) for piece in pieces if piece]
    while waiting:
        sent = stream.try_send(waiting)
        while waiting and sent >= len(waiting[0]):
            sent -= len(waiting.pop(0))
        if waiting:
            waiting[0] = waiting[0][sent:]
            await stream.wait_writable()
    await trio.lowlevel.checkpoint()


async def receive(stream: Stream, count: int, size: Callable[[], int] = lambda: 4096) -> bytes:
    got = bytearray()
    while len(got) < count:
        buffer = memoryview(bytearray(max(1, min(size(), count - len(got)))))
        received = stream.try_recv_into(buffer)
        if received is None:
            await stream.wait_readable()
        elif not received:
            break
        else:
            got += buffer[:received]
    return bytes(got)


async def rest(stream: Stream) -> bytes:
    return await receive(stream, 1 << 40)


def raw(stream: TlsStream) -> PipeStream:
    inner = stream._stream
    assert isinstance(inner, PipeStream)
    return inner


# -- the same bytes


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), largest=st.sampled_from([1, 7, 600, 40_000, 1 << 20]))
def test_what_arrives_is_what_was_sent_in_whatever_pieces(
    parties: Parties, seed: int, largest: int
) -> None:
    rng = random.Random(seed)
    sizes = [0, 1, 5, 300, 16_384, 16_385, 70_000, 200_000]
    total = 2_000 if largest < 100 else 400_000

    def pieces() -> list[bytes]:
        made: list[bytes] = []
        while sum(map(len, made)) < total:
            made.append(rng.randbytes(min(rng.choice(sizes), total)))
        return made

    async def run() -> None:
        ends = pipe(lambda: rng.randint(1, largest), capacity=rng.choice([50_000, 1000]))
        here, there = await connected(parties.client(), parties.server(), ends)
        up, down = pieces(), pieces()
        got: dict[str, bytes] = {}

        async def reads(name: str, stream: Stream, wanted: list[bytes]) -> None:
            got[name] = await receive(stream, len(b"".join(wanted)), lambda: rng.randint(1, 30_000))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_all, here, up)
                nursery.start_soon(send_all, there, down)
                nursery.start_soon(reads, "up", there, up)
                nursery.start_soon(reads, "down", here, down)
        assert got == {"up": b"".join(up), "down": b"".join(down)}

    trio.run(run)


async def test_frames_and_tcp_do_not_notice_tls(parties: Parties) -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0)
    ends = await network.connect("127.0.0.1", listener.port), await listener.accept()
    listener.close()
    here, there = await connected(parties.client(), parties.server(), ends)
    rng = random.Random(1)
    bodies = [rng.randbytes(rng.choice([0, 1, 100, 5000, 70_000, 900_000])) for _ in range(60)]
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            flusher = Flusher()
            nursery.start_soon(flusher.run)
            sender, reader = (
                FrameConnection(s, arenas=ArenaPool(), flusher=flusher, frame_bytes_max=1 << 20)
                for s in (here, there)
            )
            for body in bodies:
                sender.send([len(body).to_bytes(4, "big"), body])
            got: list[bytes] = []
            while len(got) < len(bodies):
                got += [bytes(frame) for frame in await reader.receive()]
            assert got == bodies
            assert sender.pending_bytes == 0
            sender.send([b"\0\0\0\x09half"])
            await sender.aclose()
            assert await reader.receive() == []
            assert reader.close_reason == "the peer closed the connection in the middle of a frame"
            nursery.cancel_scope.cancel()


async def test_what_is_decrypted_already_is_readable_at_once(parties: Parties) -> None:
    ends = pipe()
    here, there = await connected(parties.client(), parties.server(), ends)
    await send_all(here, [b"two bytes and more"])
    assert await receive(there, 2, lambda: 2) == b"tw"
    assert not ends[1].inbox
    with trio.fail_after(PATIENCE_S):
        await there.wait_readable()
    assert await receive(there, 16) == b"o bytes and more"


async def test_bytes_count_as_sent_when_they_have_left(parties: Parties) -> None:
    ends = pipe(capacity=20_000)
    here, there = await connected(parties.client(), parties.server(), ends)
    data = bytes(range(250)) * 2000
    left = memoryview(data)
    taken = here.try_send([left])
    # The pipe has taken 20,000 bytes, so that less than that counts, and little more is encrypted.
    assert 0 < taken <= 20_000
    assert len(here._cipher) + taken < 70_000
    assert here.try_send([left[taken:]]) == 0
    got = bytearray()
    with trio.fail_after(PATIENCE_S):
        while len(got) < len(data):
            got += await receive(there, min(10_000, len(data) - len(got)))
            taken += here.try_send([left[taken:]] if taken < len(data) else [])
    assert bytes(got) == data
    assert taken == len(data)


async def test_a_peer_that_reads_nothing_costs_little_memory(parties: Parties) -> None:
    ends = pipe(capacity=1000)
    here, _ = await connected(parties.client(), parties.server(), ends)
    sent = sum(here.try_send([bytes(1 << 20)]) for _ in range(50))
    assert sent < 1000
    assert len(here._cipher) + here._outgoing.pending < 70_000


# -- the end


async def test_the_goodbye_is_the_end(parties: Parties) -> None:
    here, there = await connected(parties.client(), parties.server(), pipe())
    await send_all(here, [b"last"])
    here.close()
    assert await rest(there) == b"last"
    assert there.try_recv_into(memoryview(bytearray(9))) == 0
    with trio.fail_after(PATIENCE_S):
        await there.wait_readable()
    there.close()
    there.close()
    with pytest.raises(trio.ClosedResourceError):
        there.try_recv_into(memoryview(bytearray(9)))
    with pytest.raises(trio.ClosedResourceError):
        there.try_send([b"x"])


async def test_a_connection_that_is_cut_at_any_byte_gives_a_prefix_and_an_end(
    parties: Parties,
) -> None:
    data = b"0123456789" * 4
    for cut in range(0, 140, 3):
        ends = pipe()
        here, there = await connected(parties.client(), parties.server(), ends)
        await send_all(here, [data[:20]])
        await send_all(here, [data[20:]])
        inbox = ends[1].inbox
        del inbox[cut:]
        ends[1].ended = True
        got = await rest(there)
        assert got in (b"", data[:20], data)
        assert there.try_recv_into(memoryview(bytearray(9))) == 0


async def test_a_reset_breaks_the_connection(parties: Parties) -> None:
    ends = pipe()
    here, there = await connected(parties.client(), parties.server(), ends)
    await send_all(here, [b"lost"])
    ends[1].broken = True
    with pytest.raises(ConnectionLostError, match="reset"):
        there.try_recv_into(memoryview(bytearray(9)))
    there.close()


async def _data_or_error(stream: Stream) -> bytes | str:
    """Return what is read up to the end; "garbage" if TLS has refused it."""
    try:
        return await rest(stream)
    except TlsError as error:
        return "garbage" if "breaks the protocol of TLS" in str(error) else str(error)


async def test_garbage_at_any_point_ends_the_connection_with_a_sentence(parties: Parties) -> None:
    rng = random.Random(2)
    for at in range(0, 60, 2):
        ends = pipe()
        here, there = await connected(parties.client(), parties.server(), ends)
        await send_all(here, [b"0123456789"])
        inbox = ends[1].inbox
        inbox[at:at] = rng.randbytes(rng.randint(1, 50))
        ends[1].ended = True
        assert await _data_or_error(there) in (b"", b"0123456789", "garbage")
        there.close()


async def test_bytes_that_are_no_record_of_tls_are_a_breach_after_the_handshake(
    parties: Parties,
) -> None:
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x17\x00\x00\x00\x05hello", b"hello, world"):
        ends = pipe()
        _, there = await connected(parties.client(), parties.server(), ends)
        ends[1].inbox += garbage
        ends[1].ended = True
        assert await _data_or_error(there) == "garbage"


async def test_a_changed_byte_is_never_delivered(parties: Parties) -> None:
    for at in range(0, 40, 3):
        ends = pipe()
        here, there = await connected(parties.client(), parties.server(), ends)
        await send_all(here, [b"0123456789"])
        if at >= len(ends[1].inbox):
            break
        ends[1].inbox[at] ^= 1
        ends[1].ended = True
        assert await _data_or_error(there) in (b"", "garbage")


# -- handshakes


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400), server=st.booleans())
def test_garbage_instead_of_a_handshake_ends_it_with_a_sentence(
    parties: Parties, data: bytes, server: bool
) -> None:
    async def run() -> None:
        here, there = pipe()
        there.inbox += data
        there.ended = True
        accept = partial(parties.server().accept, there)
        connect = partial(parties.client().connect, there, "localhost")
        with pytest.raises(TlsError):
            await (accept if server else connect)()
        assert there.closed
        here.close()

    trio.run(run)


async def test_a_handshake_that_is_changed_or_cut_at_any_byte_fails_on_both_sides(
    parties: Parties,
) -> None:
    rng = random.Random(3)
    for end in (0, 1):
        for at in range(0, 1200, 60):
            ends = _spoiled(end, at, rng.randint(1, 255) if at % 120 else 0)
            results = await shake(parties.client(), parties.server(), ends)
            # A change behind the end of the handshake shows when it is read.
            if not any(isinstance(result, ConnectionLostError) for result in results):
                assert at > 300
            for result in results:
                if isinstance(result, TlsStream):
                    result.close()


def _spoiled(end: int, at: int, change: int) -> tuple[PipeStream, PipeStream]:
    """Return a pipe that changes byte `at` of what one end gets; with 0 it ends there."""
    ends = pipe()
    inner = ends[end].try_recv_into
    seen = 0

    def try_recv_into(buffer: memoryview) -> int | None:
        nonlocal seen
        count = inner(buffer)
        if count and seen <= at < seen + count:
            if change:
                buffer[at - seen] ^= change
            else:
                count = at - seen
                ends[end].inbox.clear()
                ends[end].ended = True
                ends[1 - end].ended = True
        seen += count or 0
        return count

    ends[end].try_recv_into = try_recv_into  # type: ignore[method-assign]
    return ends


async def test_a_silent_peer_is_given_up(
    parties: Parties, autojump_clock: trio.testing.MockClock
) -> None:
    _, there = pipe()
    with pytest.raises(TlsError, match="not complete after 10 s"):
        await parties.server().accept(there)
    assert there.closed


async def test_a_peer_that_sends_a_byte_now_and_then_is_given_up(
    parties: Parties, autojump_clock: trio.testing.MockClock
) -> None:
    _, there = pipe()

    async def dribble() -> None:
        for byte in b"\x16\x03\x01\x02\x00\x01" + bytes(500):
            there.inbox.append(byte)
            there.notify()
            await trio.sleep(1)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dribble)
        with pytest.raises(TlsError, match="not complete after 3 s"):
            await parties.server().accept(there, 3.0)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(3)


async def test_plain_text_on_a_port_of_tls_is_named(parties: Parties) -> None:
    for plain in (b"\0\0\0\x20\0\0\0\x1chello", b"GET / HTTP/1.1\r\n\r\n"):
        _, there = pipe()
        there.inbox += plain
        with pytest.raises(NotTlsError, match="connect with pulsar\\+ssl:// or https://"):
            await parties.server().accept(there)


async def test_a_client_without_tls_gets_an_answer(parties: Parties) -> None:
    here, there = pipe()
    seen: list[bytes] = []

    def answer(first: bytes) -> bytes:
        seen.append(first)
        return b"use TLS"

    there.inbox += b"GET /" + bytes(100)
    with pytest.raises(NotTlsError):
        await parties.server().accept(there, answer_plain=answer)
    assert seen == [b"GET /" + bytes(11)]
    assert bytes(here.inbox) == b"use TLS"


async def test_a_server_without_tls_is_named(parties: Parties) -> None:
    here, _ = pipe()
    here.inbox += b"\0\0\0\x08\0\0\0\x04\x08\x12\x01"
    with pytest.raises(NotTlsError, match="there:1 does not speak TLS: connect to its TLS port"):
        await parties.client().connect(here, "localhost")


async def test_tls_on_a_port_without_it_is_named(parties: Parties) -> None:
    here, there = pipe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caught, partial(parties.client().connect, here, "localhost"))
        reader = FrameConnection(
            there, arenas=ArenaPool(), flusher=Flusher(), frame_bytes_max=1 << 20
        )
        with pytest.raises(SpeaksTlsError, match="speaks TLS to a port without it: connect with"):
            await reader.receive()
        nursery.cancel_scope.cancel()


CertificateCase = tuple[str, Callable[[Parties], TlsFiles], str, str]
REFUSED: list[CertificateCase] = [
    (
        "another host",
        lambda p: p.authority.files("other", hosts=("other",)),
        "trusting",
        "not made",
    ),
    (
        "expired",
        lambda p: _expired(p, "old"),
        "trusting",
        "the certificate of localhost has expired: its operator has to renew it",
    ),
    (
        "unknown authority",
        lambda p: p.server_files,
        "stranger",
        "signed by nobody whom this client",
    ),
    (
        "authorities of the machine",
        lambda p: p.server_files,
        "default",
        "name the file of its auth",
    ),
]


def _expired(parties: Parties, name: str) -> TlsFiles:
    issued = parties.authority.issue(name, valid_for=timedelta(hours=-1))
    return TlsFiles(issued.certificate, issued.key, parties.authority.trusted)


@pytest.mark.parametrize("case", REFUSED, ids=[case[0] for case in REFUSED])
async def test_a_client_says_why_it_refuses_a_server(
    parties: Parties, case: CertificateCase
) -> None:
    _, files, trust, why = case
    trusted = {
        "trusting": parties.trusting,
        "stranger": TlsFiles(trusted=Authority(parties.directory, "stranger").trusted),
        "default": TlsFiles(),
    }[trust]
    client, server = parties.client(trusted), parties.server(files=files(parties))
    here, there = await shake(client, server, pipe())
    assert isinstance(here, TlsError)
    assert why in str(here)
    assert isinstance(there, TlsError)


async def test_a_client_need_not_check_the_name_of_the_host(parties: Parties) -> None:
    files = parties.authority.files("elsewhere", hosts=("elsewhere",))
    client = parties.client(verify_host=False)
    here, there = await shake(client, parties.server(files=files), pipe())
    assert isinstance(here, TlsStream)
    assert isinstance(there, TlsStream)


async def test_an_address_is_verified_as_one(parties: Parties) -> None:
    here, _ = await shake(parties.client(), parties.server(), pipe(), "127.0.0.1")
    assert isinstance(here, TlsStream)
    refused, _ = await shake(parties.client(), parties.server(), pipe(), "127.0.0.2")
    assert "not made out to 127.0.0.2" in str(refused)


async def test_the_certificate_of_a_client_is_known_to_the_server(parties: Parties) -> None:
    for mode in ("optional", "required"):
        here, there = await connected(parties.client(parties.alice), parties.server(mode), pipe())
        assert here.encrypted
        assert there.encrypted
        assert there.certificate is not None
        assert there.certificate.common_name == "alice"
        assert there.certificate.subject == "CN=alice"
        assert parties.alice.certificate is not None
        pem = ssl.DER_cert_to_PEM_cert(there.certificate.der)
        assert pem.split() == parties.alice.certificate.read_text().split()
    here, there = await connected(parties.client(parties.alice), parties.server("off"), pipe())
    assert there.certificate is None


async def test_a_certificate_with_two_names_has_no_common_name(parties: Parties) -> None:
    issued = parties.authority.issue("two", "alice", "admin")
    files = TlsFiles(issued.certificate, issued.key, parties.authority.trusted)
    _, there = await connected(parties.client(files), parties.server("required"), pipe())
    assert there.certificate is not None
    assert there.certificate.common_name == ""
    assert there.certificate.subject == "CN=admin,CN=alice"


async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    parties: Parties,
) -> None:
    _, there = await connected(parties.client(), parties.server("optional"), pipe())
    assert there.certificate is None
    here, there2 = await shake(parties.client(), parties.server("required"), pipe())
    assert "no certificate, and one is required" in str(there2)
    # In TLS 1.3 the client learns it behind its handshake.
    assert isinstance(here, TlsStream)
    with pytest.raises(TlsError, match="the server demands a certificate"):
        await rest(here)


async def test_a_certificate_of_an_unknown_authority_is_refused(parties: Parties) -> None:
    stranger = Authority(parties.directory, "stranger2")
    mallory = stranger.issue("alice-of-mallory", "alice")
    files = TlsFiles(mallory.certificate, mallory.key, parties.authority.trusted)
    for mode in ("optional", "required"):
        here, there = await shake(parties.client(files), parties.server(mode), pipe())
        assert "the certificate of the client is refused" in str(there)
        assert isinstance(here, TlsStream)
        with pytest.raises(TlsError, match="does not trust the authority"):
            await rest(here)
    expired = _expired(parties, "old-alice")
    _, there = await shake(parties.client(expired), parties.server("optional"), pipe())
    assert "certificate has expired" in str(there)


async def test_versions_before_1_2_are_refused(parties: Parties) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(parties.authority.trusted)
    with warnings.catch_warnings(action="ignore"):
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    client = parties.client()
    client.contexts._context = old
    _, there = await shake(client, parties.server(), pipe())
    assert "only versions of TLS before 1.2" in str(there)


async def test_tls_1_2_works(parties: Parties) -> None:
    client = parties.client(parties.alice)
    client.contexts.get().maximum_version = ssl.TLSVersion.TLSv1_2
    here, there = await connected(client, parties.server("required"), pipe())
    assert here.version == "TLSv1.2"
    await send_all(here, [b"ping"])
    assert await receive(there, 4) == b"ping"
    await send_all(there, [bytes(20_000)])
    assert await receive(here, 20_000) == bytes(20_000)
    here.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")
async def test_a_client_that_renegotiates_is_cut(parties: Parties) -> None:
    listener = await TcpNetwork().listen("127.0.0.1", 0)
    command = ["openssl", "s_client", "-tls1_2", "-legacy_renegotiation"]
    command += ["-connect", f"127.0.0.1:{listener.port}"]
    process = subprocess.Popen(  # noqa: ASYNC220
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with trio.fail_after(PATIENCE_S):
            there = await parties.server().accept(await listener.accept(), PATIENCE_S)
            assert process.stdin is not None
            process.stdin.write(b"hello\n")
            process.stdin.flush()
            assert await receive(there, 6) == b"hello\n"
            process.stdin.write(b"R\n")
            process.stdin.flush()
            with pytest.raises(TlsError, match="renegotiation"):
                await rest(there)
            there.close()
    finally:
        process.kill()
        process.wait()
        listener.close()


async def test_a_lone_frame_costs_one_call_of_the_stream_and_its_end_is_seen(
    parties: Parties,
) -> None:
    ends = pipe(lambda: 1 << 20)
    counted = CountedStream(ends[1])
    here, there = await connected(parties.client(), parties.server(), (ends[0], counted))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            flusher = Flusher()
            nursery.start_soon(flusher.run)
            reader = FrameConnection(
                there, arenas=ArenaPool(), flusher=flusher, frame_bytes_max=1 << 20
            )
            await send_all(here, [b"\0\0\0\1a"])
            assert [bytes(each) for each in await reader.receive()] == [b"a"]
            before = counted.asked
            for _ in range(10):
                await send_all(here, [b"\0\0\0\1a"])
                assert [bytes(each) for each in await reader.receive()] == [b"a"]
            assert counted.asked - before == 10
            await send_all(here, [b"\0\0\0\4last"])
            here.close()
            assert [bytes(each) for each in await reader.receive()] == [b"last"]
            assert await reader.receive() == []
            nursery.cancel_scope.cancel()


async def test_records_that_lie_inside_are_not_waited_for(parties: Parties) -> None:
    """Two records come at once, and the reader has room for one."""
    ends = pipe(lambda: 1 << 20)
    here, there = await connected(parties.client(), parties.server(), ends)
    with trio.fail_after(PATIENCE_S):
        await send_all(here, [bytes(10)])
        await send_all(here, [bytes(30)])
        small = memoryview(bytearray(10))
        assert there.try_recv_into(small) == 10
        await there.wait_readable()
        assert await receive(there, 30) == bytes(30)
