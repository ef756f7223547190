"""The HTTP requests of an operator to a bookie."""

import json
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.requests import Request
from trio.abc import Clock

from daybook.bookie.registry.registrations import readonly_bookies, writable_bookies
from daybook.bookie.server.__main__ import _open_metadata
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.entrance import Door, Mode
from daybook.bookie.server.host import RunningBookie
from daybook.bookie.server.http import _body, create_app, serve_http_ports
from daybook.wire.clock import SystemClock
from daybook.wire.logging import log_to_stderr, silent_log
from daybook.wire.messages.bookie import Status
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.tls import TlsServer
from daybook.wire.tls_files import ReloadedContext, TlsFiles, client_context, server_context
from tests.bookie.server.peer import PATIENCE_S, connect
from tests.bookie.server.test_host import PATHS, Cluster
from tests.harness.certificates import Authority


class Admin:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/bookie"

    async def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> Any:
        """Return the JSON of the answer, or the status of a refusal."""

        def ask() -> Any:
            request = urllib.request.Request(f"{self._url}/{path}", body, method=method)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        return await trio.to_thread.run_sync(ask)


async def serve_http(app: Starlette, nursery: trio.Nursery, port: int = 0) -> int:
    config = BookieConfig(directories=("/unused",), http_port=port)
    http_port, https_port = await nursery.start(serve_http_ports, app, config, None, silent_log())
    assert https_port is None
    return int(http_port)


@asynccontextmanager
async def administered(running: RunningBookie) -> AsyncGenerator[Admin]:
    async with trio.open_nursery() as nursery:
        app = create_app(running, nursery)
        port = await serve_http(app, nursery)
        yield Admin(port)
        nursery.cancel_scope.cancel()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """Return the condition's value as soon as it is true."""
    with trio.fail_after(PATIENCE_S):
        while not (found := await condition()):  # noqa: ASYNC110  over HTTP there are no events
            await trio.sleep(0.01)
    return found


async def until_announced(cluster: Cluster, *, read_only: bool) -> None:
    look = readonly_bookies if read_only else writable_bookies

    async def announced() -> bool:
        return await look(cluster.looking, PATHS) == ["b1"]

    await until(announced)


async def test_read_only_by_command_across_a_restart_and_back(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running, administered(running) as admin:
        assert await admin.ask("state/readonly") == {"readOnly": False}
        wanted = b'{"readOnly": true}'
        assert await admin.ask("state/readonly", "PUT", wanted) == {"readOnly": True}
        state = await admin.ask("state")
        assert (state["readOnly"], state["availableForHighPriorityWrites"]) == (True, True)
        await until_announced(cluster, read_only=True)
        assert running.why_unhealthy() == ""
    async with cluster.run(cluster.config()) as running, administered(running) as admin:
        await until_announced(cluster, read_only=True)
        async with connect(running.port) as peer:
            assert await peer.add(7, 0) is Status.READ_ONLY
        wanted = b'{"readOnly": false}'
        assert await admin.ask("state/readonly", "PUT", wanted) == {"readOnly": False}
        await until_announced(cluster, read_only=False)
        async with connect(running.port) as peer:
            assert await peer.add(7, 0) is Status.OK
    async with cluster.run(cluster.config()) as running:
        assert running.store.writable


@pytest.mark.parametrize("body", [b"", b"[]", b'{"readOnly": 1}', b"{}", b"\xff", b"null"])
async def test_what_makes_no_sense_is_refused_and_changes_nothing(
    cluster: Cluster, body: bytes
) -> None:
    async with cluster.run(cluster.config()) as running, administered(running) as admin:
        assert await admin.ask("state/readonly", "PUT", body) == 400
        assert running.store.writable


NESTED = b'{"readOnly": ' + b"[" * 3000 + b"]" * 1000


@pytest.mark.parametrize(
    ("body", "answer"), [(NESTED, 400), (b" " * 5000 + b'{"readOnly": true}', 413)]
)
async def test_a_body_that_is_hostile_is_refused(
    cluster: Cluster, body: bytes, answer: int
) -> None:
    async with cluster.run(cluster.config()) as running, administered(running) as admin:
        assert await admin.ask("state/readonly", "PUT", body) == answer
        assert running.store.writable
        assert await admin.ask("state/readonly") == {"readOnly": False}


async def test_a_body_that_does_not_come_is_not_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sent = 0

    async def receive() -> Any:
        nonlocal sent
        sent += 1
        await trio.sleep(1)
        return {"type": "http.request", "body": b"{", "more_body": True}

    with trio.fail_after(60):
        assert await _body(Request({"type": "http", "method": "PUT"}, receive)) is None
    assert sent <= 11


async def test_room_is_made_when_asked_for(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running, administered(running) as admin:
        assert await admin.ask("gc") == {"is_in_force_gc": "false"}
        await admin.ask("gc", "PUT")

        async def collected() -> bool:
            return bool((await admin.ask("gc_details"))["collections"])

        await until(collected)
        assert (await admin.ask("gc_details"))["segments_removed"] == 0


def damage_first_batch(cluster: Cluster) -> Path:
    path = next(Path(cluster.config().directories[0], "log").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    return path


async def test_a_look_at_everything_when_asked_for(cluster: Cluster) -> None:
    async with cluster.run(cluster.config()) as running, administered(running) as admin:
        async with connect(running.port) as peer:
            assert await peer.add(7, 0) is Status.OK
        path = damage_first_batch(cluster)
        await admin.ask("scrub", "PUT")
        findings = await until(lambda: admin.ask("scrub"))
        assert findings[0]["path"] == str(path)


async def test_a_port_of_http_that_is_taken_is_named() -> None:
    app = Starlette()
    async with trio.open_nursery() as nursery:
        port = await serve_http(app, nursery)
        with pytest.raises((OSError, BaseExceptionGroup)) as caught:
            await serve_http(app, nursery, port)
        error: BaseException = caught.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert f"HTTP cannot listen on 127.0.0.1:{port}" in str(error)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("connect_s", "said"), [(1.0, 0), (5.0, 1)])
async def test_that_it_waits_for_zookeeper_is_said(
    autojump_clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    connect_s: float,
    said: int,
) -> None:
    @asynccontextmanager
    async def open_late(*_: object, **__: object) -> AsyncGenerator[MetadataStore]:
        await trio.sleep(connect_s)
        yield MemoryStore(SystemClock()).session("bookie")

    monkeypatch.setattr("daybook.bookie.server.__main__.open_zookeeper", open_late)
    config = BookieConfig(directories=("/d0",), zookeeper="zk:1")
    async with _open_metadata(config, log_to_stderr()):
        await trio.sleep(10)
    assert capsys.readouterr().err.count("waiting for ZooKeeper") == said


async def test_http_with_tls_alone(cluster: Cluster, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.files("bookie")
    build = partial(server_context, client_certificates="off")
    tls = TlsServer(ReloadedContext(files, build, clock=SystemClock(), log=silent_log()))
    config = BookieConfig(
        directories=("/unused",),
        http_port=-1,
        https_port=0,
        tls_certificate=str(files.certificate),
        tls_key=str(files.key),
    )
    context = client_context(TlsFiles(trusted=authority.trusted))

    def health(url: str) -> bytes:
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as answer:
            content: bytes = answer.read()
            return content

    async with cluster.run(cluster.config()) as running, trio.open_nursery() as nursery:
        app = create_app(running, nursery)
        ports = await nursery.start(serve_http_ports, app, config, tls, silent_log())
        assert ports[0] is None
        url = f"https://127.0.0.1:{ports[1]}/healthz"
        assert await trio.to_thread.run_sync(health, url) == b"ok"
        with pytest.raises((OSError, HTTPException)):
            await trio.to_thread.run_sync(health, url.replace("https", "http"))
        nursery.cancel_scope.cancel()


async def test_nobody_changes_a_locked_bookie_without_an_allowed_certificate(
    cluster: Cluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    files = authority.files("bookie")
    build = partial(server_context, client_certificates="optional")
    tls = TlsServer(ReloadedContext(files, build, clock=SystemClock(), log=silent_log()))
    config = BookieConfig(
        directories=("/unused",),
        https_port=0,
        tls_certificate=str(files.certificate),
        tls_key=str(files.key),
        tls_trusted=str(files.trusted),
        tls_client_certificates="optional",
    )
    door = Door(mode="require", allowed_certificates=("operator",))

    def put(url: str, who: TlsFiles | None) -> int:
        context = None if who is None else client_context(who)
        body = b'{"readOnly": true}'
        request = urllib.request.Request(f"{url}/api/v1/bookie/state/readonly", body, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    async with cluster.run(cluster.config()) as running, trio.open_nursery() as nursery:
        app = create_app(running, nursery, door)
        plain, encrypted = await nursery.start(serve_http_ports, app, config, tls, silent_log())
        urls = f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{encrypted}"

        async def asked(url: str, who: TlsFiles | None) -> int:
            return await trio.to_thread.run_sync(put, url, who)

        assert await asked(urls[0], None) == 403
        assert await asked(urls[1], TlsFiles(trusted=authority.trusted)) == 403
        assert await asked(urls[1], authority.files("mallory")) == 403
        assert running.store.writable
        assert await Admin(plain).ask("state") != 403
        assert await asked(urls[1], authority.files("operator")) == 200
        assert not running.store.writable
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mode", ["off", "permit"])
def test_where_clients_need_no_credentials_changes_need_none(mode: Mode) -> None:
    assert Door(mode=mode).may_change(None)
