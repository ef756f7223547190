"""A real ZooKeeper for a test, as a process that can be killed, paused and restarted."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

import trio

from daybook.clients.cli.ports import PortChooser
from daybook.clients.cli.zookeeper import Server, ServerTls, find_server
from tests.harness.processes import PATIENCE_S


class ZooKeeperProcess:
    """The constructor returns when it serves."""

    def __init__(self, server: Server, log: Path) -> None:
        self.port = server.port
        self._server = server
        self._log = log
        server.prepare()
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *java_options: str) -> None:
        """Start it, also after `kill`, and wait until it serves."""
        java, *words = self._server.command()
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [java, *java_options, *words], stdout=log, stderr=subprocess.STDOUT
            )
        trio.run(self._wait_ready)

    async def _wait_ready(self) -> None:
        with trio.fail_after(PATIENCE_S):
            await self._server.wait_ready()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def run_zookeeper(directory: Path, tls: ServerTls | None = None) -> Iterator[ZooKeeperProcess]:
    """Run one on a free port, with its data and its log in `directory`."""
    with PortChooser(SystemRandom()) as ports:
        port = ports.any()
    server = find_server(directory, port, zookeeper_home=None, environ=os.environ, tls=tls)
    running = ZooKeeperProcess(server, directory / "log")
    try:
        yield running
    finally:
        running.kill()
