"""ZooKeeper, bookies with moody disks, and processes of clients; their connections lead through
links.

    127.0.0.2           where everybody finds bookies: a link for each
    127.0.0.11, .12..   where each bookie finds ZooKeeper
    127.0.0.41, .42..   where each process of clients does

The parts are those of `daybook standalone`, kept by the same supervisor; there are no brokers.
Clients come and go: those of a round are started with it, and end with it.
"""

import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import SystemRandom

import trio

from daybook.clients.cli.directory import Directory, open_directory
from daybook.clients.cli.ports import HOST, PortChooser
from daybook.clients.cli.supervisor import Keeper, Part, PartFailedError, Supervisor
from daybook.clients.cli.zookeeper import find_server
from tests.soak.ledgers.moods import MoodFile
from tests.soak.links import Link, open_links

ZOOKEEPER = "zookeeper"
_LINKED_HOST = "127.0.0.2"
_BOOKIES_FROM, _WORKERS_FROM = 11, 41  # 127.0.0.*
_ROOT = Path(__file__).parents[3]
_START_S = 60.0
_BUG_CODES = {"bookie": 3, "worker": 1}  # an exception that nobody expected
_SETTINGS = {
    "session_timeout_s": 6.0,
    "reclaim_interval_s": 10.0,
    "scrub_interval_s": 40.0,
    "lost_bookie_delay_s": 8.0,
    "exit_with_parent": True,
}


class Cluster:
    """Made by `open_cluster`."""

    def __init__(self, directory: Directory, supervisor: Supervisor, links: Sequence[Link]) -> None:
        self.directory = directory
        self.links = {link.name: link for link in links}
        self.codes: Counter[tuple[str, int]] = Counter()  # with which parts have ended
        self._supervisor = supervisor
        self._clients = Supervisor([], _say_nothing)

    @property
    def zookeeper(self) -> str:
        """Past all links."""
        host, port = self.links["bookie-1 to zookeeper"].leads_to
        return f"{host}:{port}"

    def names(self, kind: str) -> list[str]:
        """bookie, zookeeper; worker: of this round."""
        keepers = (*self._supervisor.keepers.values(), *self._clients.keepers.values())
        return [keeper.part.name for keeper in keepers if keeper.part.kind == kind]

    def moods(self, bookie: str) -> MoodFile:
        return MoodFile(self.directory.part(f"{bookie}.mood"))

    def data(self, bookie: str) -> Path:
        return self.directory.part(bookie)

    async def order(self, command: str, *names: str) -> None:
        """kill, start, pause, resume: all at once.  What does not start now is tried on."""
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self._order, command, self._keeper(name))

    async def _order(self, command: str, keeper: Keeper) -> None:
        async with keeper.lock:
            match command:
                case "kill":
                    await keeper.kill()
                case "start":
                    with trio.move_on_after(_START_S), suppress(PartFailedError):
                        await keeper.start()
                case "pause":
                    with suppress(PartFailedError):  # It is not up: then it stands still, too.
                        keeper.pause()
                case _:
                    with suppress(PartFailedError):
                        keeper.resume()

    async def wait_running(self) -> None:
        """All servers are; however often they have to try."""
        for keeper in self._supervisor.keepers.values():
            while True:
                try:
                    await keeper.start()
                    await keeper.wait_ready()
                    break
                except PartFailedError:
                    await trio.sleep(0.2)

    def _keeper(self, name: str) -> Keeper:
        found = self._supervisor.keepers.get(name)
        return self._clients.keepers[name] if found is None else found

    @asynccontextmanager
    async def open_clients(
        self, names: Sequence[str], command: Callable[[str, str, int], Sequence[str]]
    ) -> AsyncGenerator[None]:
        """Processes of clients; `command` of a name, its ZooKeeper, and how often it was started.

        They are killed at the end of the block.
        """
        links = [self._link_of_client(index) for index in range(len(names))]
        parts: list[Part] = []
        for name, link in zip(names, links, strict=True):
            self.links[f"{name} to zookeeper"] = link
            parts.append(self._client(name, f"{link.listens[0]}:{link.listens[1]}", command))
        self._clients = Supervisor(parts, _say_nothing)
        async with open_links(links), trio.open_nursery() as nursery:
            nursery.start_soon(self._clients.run)
            await self._clients.wait_ready()
            yield
            await self.order("kill", *names)
            nursery.cancel_scope.cancel()
        self._clients = Supervisor([], _say_nothing)

    def _link_of_client(self, index: int) -> Link:
        zookeeper = self.links["bookie-1 to zookeeper"].leads_to
        listens = (f"127.0.0.{_WORKERS_FROM + index}", zookeeper[1])
        return Link(f"client {index} to zookeeper", listens, zookeeper)

    def _client(
        self, name: str, zookeeper: str, command: Callable[[str, str, int], Sequence[str]]
    ) -> Part:
        starts = 0

        def next_command() -> Sequence[str]:
            nonlocal starts
            starts += 1
            return command(name, zookeeper, starts)

        return Part(
            name=name,
            kind="worker",
            command=next_command,
            log=self.directory.log(name),
            environ=_environ(),
            facts={},
            exited=partial(self.note_exit, "worker"),
        )

    def note_exit(self, kind: str, code: int) -> None:
        self.codes[kind, code] += 1

    @property
    def failures(self) -> list[str]:
        """What ended in a way that is a bug."""
        return [
            f"a {kind} ended with code {code}, {count} times: see {self.directory.path}/logs"
            for (kind, code), count in sorted(self.codes.items())
            if _BUG_CODES.get(kind) == code
        ]


@asynccontextmanager
async def open_cluster(path: Path, *, bookies: int) -> AsyncGenerator[Cluster]:
    """A new one in that directory."""
    with open_directory(path) as directory, PortChooser(SystemRandom()) as ports:
        server = find_server(
            directory.part(ZOOKEEPER), ports.any(), zookeeper_home=None, environ=os.environ
        )
        server.prepare()
        names = [f"bookie-{number}" for number in range(1, bookies + 1)]
        listen = {name: (HOST, ports.any()) for name in names}
        links = [
            link
            for number, name in enumerate(names, _BOOKIES_FROM)
            for link in (
                Link(f"to {name}", (_LINKED_HOST, listen[name][1]), listen[name]),
                Link(
                    f"{name} to zookeeper",
                    (f"127.0.0.{number}", server.port),
                    (HOST, server.port),
                ),
            )
        ]
        ports.release()
        cluster: Cluster | None = None

        def note_exit(kind: str, code: int) -> None:
            assert cluster is not None
            cluster.note_exit(kind, code)

        zookeeper = Part(
            name=ZOOKEEPER,
            kind=ZOOKEEPER,
            command=server.command,
            log=directory.log(ZOOKEEPER),
            environ=os.environ,
            facts={},
            probe=server.wait_ready,
            exited=server.exited,
            lone_stop=server.lone_stop,
        )
        parts = [
            _bookie(name, listen[name][1], f"127.0.0.{number}:{server.port}", directory, note_exit)
            for number, name in enumerate(names, _BOOKIES_FROM)
        ]
        supervisor = Supervisor([zookeeper, *parts], _say_nothing)
        cluster = Cluster(directory, supervisor, links)
        async with open_links(links), trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await supervisor.wait_ready()
            yield cluster
            await supervisor.stop(("bookie", ZOOKEEPER))
            nursery.cancel_scope.cancel()


def _bookie(
    name: str,
    port: int,
    zookeeper: str,
    directory: Directory,
    note_exit: Callable[[str, int], None],
) -> Part:
    settings = {
        "directories": [str(directory.part(name))],
        "host": HOST,
        "advertised_host": _LINKED_HOST,
        "port": port,
        "zookeeper": zookeeper,
        **_SETTINGS,
    }
    config = directory.write_config(name, settings)
    mood = directory.part(f"{name}.mood")
    return Part(
        name=name,
        kind="bookie",
        command=lambda: python("tests.soak.ledgers.bookie", str(mood), "--config", str(config)),
        log=directory.log(name),
        environ=_environ(),
        facts={},
        exited=partial(note_exit, "bookie"),
    )


def python(module: str, *arguments: str) -> list[str]:
    """The command for a module of these tests."""
    return [sys.executable, "-m", module, *arguments]


def _environ() -> dict[str, str]:
    """These tests are not installed: they are found from the root."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DAYBOOK_BOOKIE_")}
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def _say_nothing(what: str) -> None:
    """It is in the logs."""
