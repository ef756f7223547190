"""Ports with TLS: floods, garbage and silence keep nobody out, and no answer leads out of TLS."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
from starlette.requests import Request

from daybook.broker.admin.handling import _redirect
from daybook.broker.connected_client import SuccessorUrls
from daybook.broker.errors import NotOwnerError, UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import BrokerRecord, OwnerRecord, Successor
from daybook.broker.ownership.membership import Identity
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.broker.ownership.peers import greeting, why_not_served
from daybook.broker.service.accept import ClientPort, Prove
from daybook.broker.service.lookup import LookupResult
from daybook.broker.service.places import Places
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError
from daybook.wire.logging import silent_log
from daybook.wire.messages.registry import encode
from daybook.wire.outbox import Flusher
from daybook.wire.probe import PortProbe
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tcp import TcpNetwork
from daybook.wire.tls import TlsClient, TlsServer
from daybook.wire.tls_files import ReloadedContext, TlsFiles, client_context, server_context
from daybook.wire.transport import Stream
from tests.harness.certificates import Authority

PATIENCE_S = 60.0


class EchoPort:
    """A service port that answers each frame with CONNECTED, with TLS alone."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.network = TcpNetwork()
        self.served = 0
        self._arenas, self._flusher = ArenaPool(), Flusher()
        build = partial(server_context, client_certificates="off")
        self._server = TlsServer(
            self._contexts(self.authority.files("broker", hosts=("localhost",)), build)
        )
        trusting = TlsFiles(trusted=self.authority.trusted)
        self.client = TlsClient(self._contexts(trusting, client_context))

    @staticmethod
    def _contexts(files: TlsFiles, build: object) -> ReloadedContext:
        return ReloadedContext(files, build, clock=SystemClock(), log=silent_log())  # type: ignore[arg-type]

    async def _serve(self, stream: Stream, prove: Prove) -> None:
        prove("")
        self.served += 1
        frames = FrameConnection(
            stream, arenas=self._arenas, flusher=self._flusher, frame_bytes_max=1000
        )
        while await frames.receive():
            frames.send([encode(pb.CommandConnected(server_version="x"))])

    @asynccontextmanager
    async def opened(
        self, *, connections_max: int = 8, handshake_s: float = 600.0
    ) -> AsyncGenerator[ClientPort]:
        listener = await self.network.listen("127.0.0.1", 0)
        self.port = listener.port
        self.probe = PortProbe("127.0.0.1", self.port, greeting, why_not_served)
        port = ClientPort(
            None,
            self._serve,
            places=Places(connections_max),
            log=silent_log(),
            reserved=self.probe.reserved,
            tls_listener=listener,
            tls=self._server,
            handshake_s=handshake_s,
        )
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._flusher.run)
                nursery.start_soon(port.run)
                yield port
                nursery.cancel_scope.cancel()

    async def connect(self) -> Stream:
        return await self.network.connect("127.0.0.1", self.port)

    async def connect_client(self) -> Stream:
        """Connect with TLS, and wait until the port serves the connection."""
        served = self.served
        stream = await self.client.connect(await self.connect(), "localhost")
        while self.served == served:  # noqa: ASYNC110
            await trio.sleep(0.001)
        return stream

    async def ask(self) -> None:
        """Connect with TLS, send a frame, and wait for the answer."""
        stream = await self.client.connect(await self.connect(), "localhost")
        frames = FrameConnection(
            stream, arenas=self._arenas, flusher=self._flusher, frame_bytes_max=1000
        )
        frames.send([greeting()])
        self._flusher.flush()
        assert len(await frames.receive()) == 1
        frames.close()


async def test_a_flood_of_half_open_handshakes_keeps_nobody_out(tmp_path: Path) -> None:
    echo = EchoPort(tmp_path)
    async with echo.opened(connections_max=8) as port:
        flood = [await echo.connect() for _ in range(50)]
        for index, stream in enumerate(flood):
            if index % 2:
                stream.try_send([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
        for _ in range(20):
            await echo.ask()
            flood.append(await echo.connect())
        assert port.handshakes <= 3
        assert port.connections <= 8
        assert port.bugs == 0
        assert echo.served == 20


async def test_handshakes_make_room_for_clients_when_all_connections_are_taken(
    tmp_path: Path,
) -> None:
    echo = EchoPort(tmp_path)
    async with echo.opened(connections_max=4) as port:
        clients = [await echo.connect_client() for _ in range(3)]
        silent = await echo.connect()
        while not port.handshakes:  # noqa: ASYNC110
            await trio.sleep(0.001)
        await echo.ask()
        await silent.wait_readable()
        assert silent.try_recv_into(memoryview(bytearray(1))) == 0
        clients.append(await echo.connect_client())
        with pytest.raises(ConnectionLostError):
            await echo.ask()
        assert port.refused == 1


async def test_a_silent_peer_is_cut_in_time(tmp_path: Path) -> None:
    echo = EchoPort(tmp_path)
    async with echo.opened(handshake_s=0.05) as port:
        silent = await echo.connect()
        await silent.wait_readable()
        assert silent.try_recv_into(memoryview(bytearray(1))) == 0
        while port.connections:  # noqa: ASYNC110
            await trio.sleep(0.001)
        assert port.handshakes_failed == 1
        await echo.ask()


async def test_garbage_before_the_handshake_ends_only_that_connection(tmp_path: Path) -> None:
    echo = EchoPort(tmp_path)
    rng = Random(5)
    hello = await _hello(echo)
    async with echo.opened(connections_max=500) as port:
        for round_ in range(200):
            stream = await echo.connect()
            data = bytearray(hello)
            match round_ % 4:
                case 0:
                    data = bytearray(rng.randbytes(rng.randint(1, 600)))
                case 1:
                    data[rng.randrange(len(data))] ^= rng.randint(1, 255)
                case 2:
                    del data[rng.randrange(len(data)) :]
                case _:
                    data[5:5] = rng.randbytes(rng.randint(1, 20))
            stream.try_send([data])
            if rng.random() < 0.7:
                stream.close()
        await echo.ask()
        assert (port.bugs, echo.served) == (0, 1)


async def _hello(echo: EchoPort) -> bytes:
    """Return the first record of a client."""
    listener = await echo.network.listen("127.0.0.1", 0)
    sent = b""

    async def connect() -> None:
        stream = await echo.network.connect("127.0.0.1", listener.port)
        await echo.client.connect(stream, "localhost", PATIENCE_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect)
        stream = await listener.accept()
        await stream.wait_readable()
        buffer = bytearray(4000)
        sent = bytes(buffer[: stream.try_recv_into(memoryview(buffer)) or 0])
        nursery.cancel_scope.cancel()
    listener.close()
    assert sent[0] == 0x16
    return sent


async def test_the_brokers_own_probe_needs_no_tls(tmp_path: Path) -> None:
    echo = EchoPort(tmp_path)
    async with echo.opened():
        assert await echo.probe.why_not_ready() == ""
        stranger = PortProbe("127.0.0.1", echo.port, greeting, why_not_served)
        assert await stranger.why_not_ready() != ""


async def test_brokers_are_called_with_tls_where_their_url_says_so(tmp_path: Path) -> None:
    echo = EchoPort(tmp_path)
    async with echo.opened():
        url = f"pulsar+ssl://localhost:{echo.port}"
        stream = await PeerNetwork(echo.network, echo.client).connect(url)
        assert stream.encrypted
        stream.close()
        with pytest.raises(ConnectionLostError, match="this broker has no tls_trusted"):
            await PeerNetwork(echo.network).connect(url)
        with pytest.raises(ConnectionLostError, match=r"not made out to 127\.0\.0\.1"):
            await PeerNetwork(echo.network, echo.client).connect(f"https://127.0.0.1:{echo.port}")


@pytest.mark.parametrize("requires", [True, False])
async def test_a_url_without_tls_leads_to_the_port_with_tls_of_the_same_broker(
    tmp_path: Path, *, requires: bool
) -> None:
    """A redirect names one URL only; the token must not go out without TLS all the same."""
    echo = EchoPort(tmp_path)
    async with echo.opened():
        network = PeerNetwork(echo.network, echo.client, prefers_tls=True, requires_tls=requires)
        plain, other = "http://localhost:1", f"http://localhost:{echo.port}"
        secure = f"https://localhost:{echo.port}"
        network.others = lambda: [BrokerRecord(None, plain, None, secure)]
        stream = await network.connect(plain)
        assert stream.encrypted
        stream.close()
        if requires:
            with pytest.raises(ConnectionLostError, match="which require_tls forbids"):
                await network.connect(other)
        else:
            (await network.connect(other)).close()


def test_the_url_under_which_a_broker_is_called() -> None:
    both = "http://a", "https://a"
    for prefers, first, second in ((True, "https://a", "http://a"), (False, *both)):
        network = PeerNetwork(TcpNetwork(), prefers_tls=prefers)
        assert network.url_of(*both) == first
        assert network.url_of(both[0], None) == "http://a"
        assert network.url_of(None, both[1]) == "https://a"
        assert network.url_of(None, None) is None
        assert second in both


# -- what clients are told

_BOTH = LookupResult(
    "pulsar://a:1",
    "http://a:2",
    redirect=False,
    authoritative=True,
    service_url_tls="pulsar+ssl://a:3",
    http_url_tls="https://a:4",
)


def test_a_lookup_with_tls_answers_no_url_without_it() -> None:
    urls = _BOTH.urls(encrypted=True)
    assert (urls.service, urls.service_tls) == ("", "pulsar+ssl://a:3")
    assert (urls.http, urls.http_tls) == ("", "https://a:4")
    urls = _BOTH.urls(encrypted=False)
    assert (urls.service, urls.service_tls) == ("pulsar://a:1", "pulsar+ssl://a:3")
    plain = LookupResult("pulsar://a:1", "http://a:2", redirect=False, authoritative=True)
    with pytest.raises(UnavailableError, match="pulsar://a:1 has no port with TLS"):
        plain.urls(encrypted=True)
    tls = LookupResult(
        None, None, redirect=False, authoritative=True, service_url_tls="pulsar+ssl://a:3"
    )
    with pytest.raises(UnavailableError, match="has only a port with TLS: connect with pulsar"):
        tls.urls(encrypted=False)
    assert tls.urls(encrypted=True).service == ""


def test_a_redirect_from_https_never_leads_to_http() -> None:
    def redirect(scheme: str, http: str | None, https: str | None) -> tuple[int, str | None]:
        scope = {
            "type": "http",
            "scheme": scheme,
            "path": "/admin/v2/x",
            "query_string": b"a=b",
            "headers": [],
        }
        error = NotOwnerError("ask another", http_url=http, http_url_tls=https)
        response = _redirect(Request(scope), error)
        return response.status_code, response.headers.get("Location")

    rest = "/admin/v2/x?a=b&authoritative=false"
    assert redirect("https", "http://a:1", "https://a:2") == (307, f"https://a:2{rest}")
    assert redirect("https", "http://a:1", None) == (503, None)
    assert redirect("https", None, None) == (503, None)
    assert redirect("http", "http://a:1", "https://a:2") == (307, f"http://a:1{rest}")
    assert redirect("http", None, "https://a:2") == (307, f"https://a:2{rest}")
    assert redirect("http", None, None) == (503, None)


def test_a_close_sends_a_client_with_tls_nowhere_else() -> None:
    both = SuccessorUrls("pulsar://a:1", "pulsar+ssl://a:2")
    closed = pb.CommandCloseProducer(producer_id=1, request_id=1)
    both.assign(closed, tls=True)
    assert not closed.HasField("assignedBrokerServiceUrl")
    assert closed.assignedBrokerServiceUrlTls == "pulsar+ssl://a:2"
    both.assign(closed, tls=False)
    assert closed.assignedBrokerServiceUrl == "pulsar://a:1"
    closed = pb.CommandCloseProducer(producer_id=1, request_id=1)
    SuccessorUrls("pulsar://a:1").assign(closed, tls=True)
    assert not closed.HasField("assignedBrokerServiceUrl")


def test_records_of_a_broker_with_tls_alone() -> None:
    identity = Identity("a:4", "x", None, None, "pulsar+ssl://a:3", "https://a:4")
    assert (identity.url, identity.call_url) == ("pulsar+ssl://a:3", "https://a:4")
    assert identity.owner_record == OwnerRecord(None, None, "pulsar+ssl://a:3", "https://a:4")
    assert LookupResult(
        None, None, redirect=False, authoritative=True, service_url_tls="pulsar+ssl://a:3"
    ).is_at(identity)
    assert not LookupResult(None, None, redirect=False, authoritative=True).is_at(identity)
    # A broker of Pulsar without ports that have no TLS writes null.
    written = b'{"pulsarServiceUrl":null,"pulsarServiceUrlTls":"pulsar+ssl://a:3"}'
    record = records.decode(BrokerRecord, written)
    assert record.service_url == "pulsar+ssl://a:3"
    assert record.http_url is None
    successor = Successor.from_broker(record)
    assert records.encode(successor) == (
        b'{"nativeUrl":null,"httpUrl":null,"nativeUrlTls":"pulsar+ssl://a:3"}'
    )
    assert successor.owner_record == OwnerRecord(None, None, "pulsar+ssl://a:3")
    plain = Successor.from_broker(BrokerRecord("pulsar://a:1", "http://a:2"))
    assert records.encode(plain) == b'{"nativeUrl":"pulsar://a:1","httpUrl":"http://a:2"}'
