"""Run the command line in this process, with real file descriptors, against fakes in a thread."""

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import trio
import trio.testing

from daybook.clients.cli.main import main
from tests.clients.python.fake_broker import FakeCluster, fake_cluster

PATIENCE_S = 120.0
_MOMENT_S = 0.03
Daybook = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_contexts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the contexts of whoever runs the tests away from them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    monkeypatch.delenv("DAYBOOK_CONTEXT", raising=False)


@pytest.fixture
def daybook(capfd: pytest.CaptureFixture[str]) -> Daybook:
    """Runs a command; returns the exit code and what it wrote to standard output and error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments), prog_name="daybook")
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands wait in virtual time: it jumps when nothing has happened for a moment."""
    run = trio.run

    def run_hurried(function: Callable[[], Awaitable[object]]) -> object:
        return run(function, clock=trio.testing.MockClock(autojump_threshold=_MOMENT_S))

    monkeypatch.setattr("daybook.clients.cli.run.trio.run", run_hurried)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers, as a frozen process does."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@dataclass(frozen=True)
class FakeHost:
    cluster: FakeCluster
    token: trio.lowlevel.TrioToken


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread while a command runs; if it fails, the command is interrupted."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    assert not failures, failures


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def read_pipe(fd: int, size: int) -> bytes:
    """Wait for data, and return as much as there is."""
    assert select.select([fd], [], [], PATIENCE_S)[0]
    return os.read(fd, size)


@pytest.fixture
def fake_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHost]:
    """A broker in a thread; commands find it through the environment."""
    started: Future[FakeCluster] = Future()
    done = trio.Event()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def run() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        async with fake_cluster() as made:
            started.set_result(made)
            await done.wait()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    cluster = started.result()
    monkeypatch.setenv("DAYBOOK_SERVICE_URL", cluster.url)
    yield FakeHost(cluster, tokens[0])
    tokens[0].run_sync_soon(done.set)
    thread.join()


@pytest.fixture
def fake(fake_host: FakeHost) -> FakeCluster:
    return fake_host.cluster


class FakeAdmin:
    """Answers by method and path, with 404 for everything else, and records the requests.

    An answer is an object that is sent as JSON, or a pair of bytes and headers.  Answers `in_turn`
    come first, once each.
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.in_turn: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, str, Any]] = []


@pytest.fixture
def fake_admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdmin]:
    fake = FakeAdmin()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            asked = json.loads(body) if body else None
            fake.asked.append((self.command, self.path, asked))
            missing = 404, {"reason": "no such topic"}
            key = self.command, self.path
            once = fake.in_turn.get(key)
            status, answer = once.pop(0) if once else fake.answers.get(key, missing)
            self.send_response(status)
            if isinstance(answer, tuple):
                content, headers = answer
                for name, value in headers.items():
                    self.send_header(name, value)
            else:
                content = b"" if answer is None else json.dumps(answer).encode()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("DAYBOOK_ADMIN_URL", f"http://127.0.0.1:{server.server_address[1]}")
        yield fake
        server.shutdown()
        thread.join()
