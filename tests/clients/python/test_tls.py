"""TLS of the clients: what their options say, HTTP with TLS, and redirects that leave it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

import daybook
from daybook.clients.python.admin import Admin, parse_admin_url
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import (
    AdminError,
    ConnectionLostError,
    Remedy,
    TlsError,
    UnavailableError,
)
from daybook.clients.python.pool import parse_service_url
from daybook.clients.python.sink_requests import Batch, SinkRequests
from daybook.clients.python.tls import TlsOptions, network_for
from daybook.wire.clock import SystemClock
from daybook.wire.http import HttpPort
from daybook.wire.logging import silent_log
from daybook.wire.tcp import TcpNetwork
from daybook.wire.tls import TlsServer
from daybook.wire.tls_files import ReloadedContext, server_context
from tests.harness.certificates import Authority

PATIENCE_S = 60.0


class Site:
    """An HTTP server with TLS, and one without, that answer as brokers do."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.trusting = TlsOptions(trusted=self.authority.trusted)
        build = partial(server_context, client_certificates="off")
        contexts = ReloadedContext(
            self.authority.files("broker"), build, clock=SystemClock(), log=silent_log()
        )
        self._https = HttpPort("127.0.0.1", 0, tls=TlsServer(contexts))
        self._http = HttpPort("127.0.0.1", 0)
        self.https, self.http = self._https.port, self._http.port
        self.location = ""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        async def brokers(_: Request) -> Response:
            return JSONResponse(["one"])

        async def away(request: Request) -> Response:
            return RedirectResponse(f"{self.location}/admin/v2/brokers")

        async def attempts(_: Request) -> Response:
            return JSONResponse({"attempt": "a", "ledgerId": 1, "url": self.location})

        app = Starlette(
            routes=[
                Route("/admin/v2/brokers", brokers),
                Route("/admin/v2/clusters", away),
                Route("/admin/v2/daybook/sinks/s/attempts", attempts, methods=["POST"]),
            ]
        )
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(self._https.serve, app)
                await nursery.start(self._http.serve, app)
                yield
                nursery.cancel_scope.cancel()


async def test_administration_with_tls(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.opened():
        secure = Admin(f"https://localhost:{site.https}", tls=site.trusting)
        assert await secure.brokers() == ["one"]
        site.location = f"https://127.0.0.1:{site.https}"
        assert await secure.clusters() == ["one"]
        with pytest.raises(TlsError, match="signed by nobody whom this client trusts"):
            await Admin(f"https://localhost:{site.https}").brokers()
        with pytest.raises(TlsError, match=r"does not speak TLS: .* begin the URL with http://"):
            await Admin(f"https://localhost:{site.http}", tls=site.trusting).brokers()
        plain = Admin(f"http://localhost:{site.https}")
        with pytest.raises(AdminError, match="begin the URL with https://"):
            await plain.brokers()
        with pytest.raises(AdminError, match="begin the URL with https://"):
            await plain.call("DELETE", "/admin/v2/tenants/t")


_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"  # how other servers refuse bytes that are no TLS


@pytest.mark.parametrize("answer", [_ALERT, b""])
async def test_a_url_without_tls_at_a_port_of_another_server_with_tls(answer: bytes) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        await stream.aclose()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            serving = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
            (listener,) = await nursery.start(serving)
            where = f"127.0.0.1:{listener.socket.getsockname()[1]}"
            kinds = (TlsError, UnavailableError, ConnectionLostError)
            with pytest.raises(kinds, match=r"begin the URL with pulsar\+ssl://") as refused:
                async with connect(f"pulsar://{where}", timeout_s=0.5):
                    pass
            assert isinstance(refused.value, TlsError) is bool(answer)
            with pytest.raises(kinds, match="https://") as refused:
                await Admin(f"http://{where}").brokers()
            assert isinstance(refused.value, TlsError) is bool(answer)
            nursery.cancel_scope.cancel()


async def test_a_redirect_out_of_tls_is_not_followed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.opened():
        site.location = f"http://127.0.0.1:{site.http}"
        secure = Admin(f"https://localhost:{site.https}", tls=site.trusting)
        with pytest.raises(TlsError, match="which is without TLS: it is not followed"):
            await secure.clusters()
        site.location = f"https://127.0.0.1:{site.https}"
        with pytest.raises(TlsError, match="use an admin URL that begins with https://"):
            await Admin(f"http://localhost:{site.http}").clusters()


async def test_a_batch_is_not_staged_out_of_tls(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.opened():
        sinks = SinkRequests(f"https://localhost:{site.https}", tls=site.trusting)
        site.location = f"http://127.0.0.1:{site.http}"
        with pytest.raises(TlsError, match="and this client uses https:// alone"):
            await sinks.begin("s", Batch("q", 1))
        site.location = ""
        assert (await sinks.begin("s", Batch("q", 1))).attempt == "a"


def test_urls_with_tls_have_ports_of_their_own() -> None:
    assert parse_service_url("pulsar+ssl://a,b:1") == [("a", 6651), ("b", 1)]
    assert parse_service_url("pulsar://a") == [("a", 6650)]
    assert parse_admin_url("https://a,b:1") == [("a", 8443), ("b", 1)]


def test_options_without_a_use_are_errors(tmp_path: Path) -> None:
    network = TcpNetwork()
    assert network_for("pulsar://a", None, network) is network
    with pytest.raises(ValueError, match="is without TLS"):
        network_for("http://a", TlsOptions(), network)
    issued = Authority(tmp_path).issue("alice")
    with pytest.raises(TlsError, match=r"belong together: give both \(certificate=, key=\)"):
        network_for("https://a", TlsOptions(certificate=issued.certificate), network)
    with pytest.raises(TlsError, match=r"cannot be read: No such file or directory \(trusted=\)"):
        network_for("https://a", TlsOptions(trusted=tmp_path / "none.pem"), network)
    with pytest.raises(TlsError, match=r"cannot be read: No such file or directory \(key=\)"):
        network_for("https://a", TlsOptions(None, issued.certificate, "none.key"), network)


def test_the_public_names() -> None:
    assert daybook.TlsOptions is TlsOptions
    assert daybook.TlsError is TlsError
    assert TlsError.remedy is Remedy.LOOK_UP


def test_the_blocking_clients_take_tls(tmp_path: Path) -> None:
    wrong = TlsOptions(trusted=tmp_path / "none.pem")
    with pytest.raises(daybook.TlsError, match="cannot be read"):
        daybook.blocking.connect("pulsar+ssl://localhost:1", tls=wrong)
    with pytest.raises(daybook.TlsError, match="cannot be read"):
        daybook.blocking.connect_admin("https://localhost:1", tls=wrong)
