"""Readiness, the watchdog, a lack of file descriptors: real brokers beside a whole cluster."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from daybook.clients.python import blocking
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.links import FINE, Link, open_link_to
from tests.harness.processes import ServerProcess, http_get

# Other processes say nothing when they change: we have to look again and again.

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]
PATIENCE_S = 180.0
FILES = 160  # the limit of the process


class BrokerProcess(ServerProcess):
    """A further broker of a cluster, which is asked over HTTP."""

    def get(self, path: str) -> tuple[int, str]:
        try:
            return http_get(f"{self.ready['admin_url']}{path}", 10)
        except OSError as error:
            return 0, str(error)

    async def wait_for(self, path: str, accepted: Callable[[tuple[int, str]], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not accepted(answer := await trio.to_thread.run_sync(self.get, path)):
                assert self.process.poll() is None, self.log.read_text()
                print(path, answer)
                await trio.sleep(0.2)

    async def wait_serving(self) -> None:
        await self.wait_for("/readyz", lambda answer: answer == (200, "ok"))


@contextmanager
def open_broker(
    cluster: StandaloneProcess,
    tmp_path: Path,
    *,
    module: str = "daybook.broker",
    zookeeper: str = "",
    files: int | None = None,
    **settings: object,
) -> Iterator[BrokerProcess]:
    running = BrokerProcess.broker(
        tmp_path / "broker.log",
        module=module,
        files=files,
        zookeeper=zookeeper or cluster.zookeeper,
        **settings,
    )
    try:
        yield running.read_ready()
    finally:
        running.kill()


@asynccontextmanager
async def behind_a_proxy(
    cluster: StandaloneProcess, tmp_path: Path, **settings: Any
) -> AsyncIterator[tuple[BrokerProcess, Link]]:
    """Run a broker that reaches ZooKeeper over a proxy, which can cut it off."""
    port = int(cluster.zookeeper.rpartition(":")[2])
    async with open_link_to(port) as proxy:
        address = f"127.0.0.1:{proxy.listens[1]}"
        running = BrokerProcess.broker(tmp_path / "broker.log", zookeeper=address, **settings)
        try:
            await running.wait_ready()
            yield running, proxy
        finally:
            running.kill()


async def topic_of(cluster: StandaloneProcess, client: Client, url: str, name: str) -> str:
    """Create a topic that the broker at `url` serves, in a new namespace without an owner."""
    namespace = f"public/{name}"
    with blocking.connect_admin(cluster.admin_url) as admin:
        await trio.to_thread.run_sync(admin.create_namespace, namespace)
    for number in range(100):
        topic = f"persistent://{namespace}/{number}"
        if await client.lookup(topic) == url:
            return topic
    raise AssertionError(f"none of 100 topics is served at {url}")


def flood(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    """Open connections that stay silent."""
    sockets: list[socket.socket] = []
    for _ in range(count):
        sock = stack.enter_context(socket.socket())
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        sockets.append(sock)
    return sockets


@contextmanager
def busy_processors() -> Iterator[None]:
    """Run three busy processes for each processor."""
    spin = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spin) for _ in range(3 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


async def test_idle_connections_leave_a_broker_its_descriptors(
    cluster: StandaloneProcess, topic: str, tmp_path: Path
) -> None:
    """Idle clients on both ports take no descriptor that the broker needs: it stays ready, keeps
    its session when ZooKeeper is cut off, serves its clients, and accepts others afterwards.
    """
    async with behind_a_proxy(
        cluster, tmp_path, files=FILES, session_timeout_s=30.0, connect_timeout_s=600.0
    ) as (victim, proxy):
        await victim.wait_serving()
        url = str(victim.ready["service_url"])
        async with connect(url) as client:
            mine = await topic_of(cluster, client, url, topic)
            async with await client.create_producer(mine) as producer:
                await producer.send(b"before")
                with ExitStack() as stack:
                    for port in (victim.port, victim.http_port):
                        flood(stack, port, 2 * FILES)
                    await victim.wait_for(
                        "/metrics", lambda answer: "connections_refused_total{" in answer[1]
                    )
                    proxy.refuse()
                    await producer.send(b"without ZooKeeper")
                    proxy.weather = FINE
                    await victim.wait_serving()
                    await producer.send(b"with it")
                    assert victim.open_files < FILES
                await victim.wait_serving()
                async with connect(url) as newcomer:
                    assert await newcomer.lookup(mine) == url
        log = victim.log.read_text()
        assert "session=LOST" not in log
        assert "Traceback" not in log
        assert len(log.splitlines()) < 50
        assert victim.process.poll() is None


async def test_a_broker_without_any_descriptor_lives_and_recovers(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    """Nothing can be opened, not even to reach ZooKeeper, until the session is lost."""
    async with behind_a_proxy(cluster, tmp_path, session_timeout_s=2.0) as (victim, proxy):
        await victim.wait_serving()
        with ExitStack() as stack:
            # One is left, so that ZooKeeper can report the end of the session.  A new session needs
            # two.
            victim.limit_files(victim.open_files)
            proxy.refuse()
            await trio.sleep(5.0)  # longer than the session
            for port in (victim.port, victim.http_port):
                flood(stack, port, 20)
            proxy.weather = FINE
            await trio.sleep(5.0)
            assert victim.process.poll() is None, victim.log.read_text()
        victim.limit_files(FILES)
        await victim.wait_serving()
        lines = victim.log.read_text().splitlines()
        assert not [line for line in lines if "Traceback" in line]
        assert len(lines) < 80  # ten seconds, one line a second for each shortage
        print("\n".join(lines))


async def test_a_broker_whose_connections_are_all_taken_is_ready(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    with open_broker(cluster, tmp_path, connections_max=3) as victim, ExitStack() as stack:
        flood(stack, victim.port, 20)
        await victim.wait_for("/metrics", lambda answer: "connections_refused_total{" in answer[1])
        assert await trio.to_thread.run_sync(victim.get, "/readyz") == (200, "ok")


async def test_a_broker_that_answers_nobody_is_not_ready_and_ends(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    """Once, /readyz reported 200."""
    with open_broker(
        cluster,
        tmp_path,
        module="tests.real.stuck_broker",
        watchdog_silent_s=6.0,
        watchdog_quiet_s=1.0,
    ) as victim:
        status, why = await trio.to_thread.run_sync(victim.get, "/readyz")
        assert (status, "did not answer in time" in why) == (503, True)
        assert await trio.to_thread.run_sync(victim.get, "/healthz") == (200, "ok")
        code = await trio.to_thread.run_sync(victim.process.wait, PATIENCE_S)
        assert code == 4
        log = victim.log.read_text()
        assert "answers nobody and ends" in log
        assert "answer_nobody" in log  # the stack of a connection that waits


async def test_a_stop_and_busy_processors_end_nobody(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    with open_broker(cluster, tmp_path, watchdog_silent_s=4.0, watchdog_quiet_s=0.5) as victim:
        await victim.wait_serving()
        victim.process.send_signal(signal.SIGSTOP)
        await trio.sleep(9.0)
        victim.process.send_signal(signal.SIGCONT)
        await victim.wait_serving()
        with busy_processors():
            await trio.sleep(12.0)
        await victim.wait_serving()
        assert victim.process.poll() is None
        assert "answers nobody" not in victim.log.read_text()
