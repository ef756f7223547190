"""The cluster that a soak breaks: real processes, whose connections lead through links.

Every part connects to another loopback address than the one where its peer listens; between the two
is a link:

    127.0.0.2           links to each broker, for clients, and to each bookie, for all
    127.0.0.11, .12..   links to ZooKeeper, one for each bookie and each broker
    127.0.0.41, .42..   links to ZooKeeper, one for each process of clients

The servers are those of `daybook standalone`, kept by the same supervisor.  The disks of the
bookies have moods (`disk`).  Processes of clients start and end with a round.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom

import trio

from daybook.clients.cli.directory import Directory, open_directory
from daybook.clients.cli.plan import ClusterOptions, Plan, make_plan
from daybook.clients.cli.ports import HOST, PortChooser
from daybook.clients.cli.supervisor import Keeper, Part, PartFailedError, Supervisor
from daybook.clients.python.admin import Admin
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError
from tests.harness.links import Address, Link, open_links
from tests.soak.disk import MoodFile
from tests.soak.faults import BOOKIE, BROKER, CLIENT, ZOOKEEPER

_LINKED_HOST = "127.0.0.2"
_PARTS_FROM, _CLIENTS_FROM = 11, 41  # 127.0.0.*
_LOOKUP_S = 3.0
_GIVE_UP_S = 300.0
_START_S = 60.0
_RETRY_S = 0.2
_ROOT = Path(__file__).parents[2]
_BUG = 3  # the exit code of a server after an unexpected exception
_STOP_ORDER = (BROKER, BOOKIE, ZOOKEEPER)
# A part that starts while ZooKeeper cannot be reached waits for it.
_PATIENT = ("broker.start_timeout_s=150", "bookie.connect_timeout_s=150")
# Bookies audit, repair, compact and scrub all the time.
_BUSY = (
    "bookie.session_timeout_s=6",
    "bookie.reclaim_interval_s=10",
    "bookie.scrub_interval_s=40",
    "bookie.lost_bookie_delay_s=8",
)


@dataclass(frozen=True, slots=True)
class Shape:
    bookies: int
    brokers: int  # 0 if only ledgers are tested
    breakable: bool = True  # connections lead through links, disks have moods, bookies are busy


class Cluster:
    """A running cluster, which `open_cluster` starts."""

    def __init__(self, directory: Directory, plan: Plan, shape: Shape) -> None:
        self._asking: Client | None = None
        self.directory = directory
        self.zookeeper = plan.zookeeper  # the address without a link
        self.ended_alone: Counter[tuple[str, int]] = Counter()  # parts and their exit codes
        self._disk_failed: set[str] = set()
        self._ordered_down: set[str] = set()
        parts = [part for part in plan.parts if part.kind != BROKER or shape.brokers]
        self._brokers = {
            part.name: part.facts for part in parts if part.kind == BROKER and shape.brokers
        }
        self._linked = shape.breakable
        links = _links(parts, _address(plan.zookeeper)) if shape.breakable else []
        self.links = {link.name: link for link in links}
        if shape.breakable:
            parts = [self._make_breakable(part) for part in parts]
        self._servers = Supervisor([self._watched(part) for part in parts], _say_nothing)
        self._clients = Supervisor([], _say_nothing)

    # -- the parts

    def layers(self) -> list[str]:
        """Return the layers that have parts now."""
        return list(dict.fromkeys(keeper.part.kind for keeper in self._keepers()))

    def names(self, layer: str) -> list[str]:
        return [keeper.part.name for keeper in self._keepers() if keeper.part.kind == layer]

    def _keepers(self) -> list[Keeper]:
        return [*self._servers.keepers.values(), *self._clients.keepers.values()]

    def data(self, bookie: str) -> Path:
        return self.directory.part(bookie)

    def moods(self, bookie: str) -> MoodFile:
        return MoodFile(self.directory.part(f"{bookie}.mood"))

    # -- brokers

    @property
    def service_url(self) -> str:
        host = _LINKED_HOST if self._linked else HOST
        ports = [_address(facts["address"])[1] for facts in self._brokers.values()]
        return "pulsar://" + ",".join(f"{host}:{port}" for port in ports)

    @property
    def admin(self) -> Admin:
        """Return a client of all brokers, since one of them may be down."""
        urls = [str(facts["admin_url"]) for facts in self._brokers.values()]
        return Admin("http://" + ",".join(url.removeprefix("http://") for url in urls))

    async def owner_of(self, topic: str) -> str | None:
        """Return the broker that serves a topic or a partition; None if no broker says."""
        assert self._asking is not None, "there are no brokers"
        with trio.move_on_after(_LOOKUP_S):
            try:
                port = (await self._asking.lookup(topic)).rpartition(":")[2]
            except BrokerError:
                return None
            for name, facts in self._brokers.items():
                if _address(facts["address"])[1] == int(port):
                    return name
        return None

    # -- orders

    async def order(self, command: str, *names: str) -> None:
        """Kill, start, pause or resume all of them at once.

        Return when all have done so.  A part that does not start within a minute is restarted until
        it does.
        """
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self._order, command, self._keeper(name))

    async def _order(self, command: str, keeper: Keeper) -> None:
        async with keeper.lock:
            match command:
                case "kill":
                    self._ordered_down.add(keeper.part.name)
                    await keeper.kill()
                case "start":
                    self._ordered_down.discard(keeper.part.name)
                    with trio.move_on_after(_START_S), suppress(PartFailedError):
                        await keeper.start()
                case "pause":
                    with suppress(PartFailedError):  # The part does not run: nothing to stop.
                        keeper.pause()
                case _:
                    assert command == "resume", command
                    with suppress(PartFailedError):
                        keeper.resume()

    def _keeper(self, name: str) -> Keeper:
        found = self._servers.keepers.get(name)
        return self._clients.keepers[name] if found is None else found

    async def wait_running(self) -> None:
        """Wait until all servers run, however often they have to be started.

        Raise PartFailedError if one of them still does not start after five minutes.
        """
        give_up_at = trio.current_time() + _GIVE_UP_S
        for keeper in self._servers.keepers.values():
            while True:
                try:
                    await keeper.start()
                    await keeper.wait_ready()
                    break
                except PartFailedError:
                    if trio.current_time() > give_up_at:
                        raise
                    await trio.sleep(_RETRY_S)

    # -- unexpected ends

    def disk_failed(self, bookie: str) -> None:
        """Note that the bookie may end by itself from now on, as after a failure of its disk."""
        self._disk_failed.add(bookie)

    def deaths(self) -> list[str]:
        """Describe the parts that ended by themselves, without an order or another reason."""
        return [
            f"{name} ended by itself with code {code}, {count} times:"
            f" see {self.directory.log(name)}"
            for (name, code), count in sorted(self.ended_alone.items())
            if code == _BUG or name not in self._disk_failed
        ]

    def _watched(self, part: Part) -> Part:
        """Note when the part ends by itself, without an order."""

        def exited(code: int) -> None:
            part.exited(code)
            if part.name not in self._ordered_down:
                self.ended_alone[part.name, code] += 1

        return replace(part, exited=exited)

    # -- running it

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        async with open_links(list(self.links.values())), trio.open_nursery() as nursery:
            nursery.start_soon(self._servers.run)
            await self.wait_running()
            async with self._open_asking():
                yield
            self._ordered_down.update(self._servers.keepers)
            await self._servers.stop(_STOP_ORDER)
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _open_asking(self) -> AsyncGenerator[None]:
        """Keep the client that looks topics up, which uses no links."""
        if not self._brokers:
            yield
            return
        addresses = ",".join(str(facts["address"]) for facts in self._brokers.values())
        async with connect(f"pulsar://{addresses}", timeout_s=None) as client:
            self._asking = client
            yield

    @asynccontextmanager
    async def open_clients(
        self, names: Sequence[str], command: Callable[[str, str, int], Sequence[str]]
    ) -> AsyncGenerator[None]:
        """Run processes of clients until the end of the block, where they are killed.

        `command` gets the name of the process, its ZooKeeper, and how often it was started.
        """
        zookeeper = _address(self.zookeeper)
        parts: list[Part] = []
        links: list[Link] = []
        for number, name in enumerate(names, _CLIENTS_FROM):
            link = Link(f"{name} to zookeeper", (f"127.0.0.{number}", zookeeper[1]), zookeeper)
            links.append(link)
            self.links[link.name] = link
            parts.append(self._client(name, f"{link.listens[0]}:{link.listens[1]}", command))
        self._clients = Supervisor(parts, _say_nothing)
        async with open_links(links), trio.open_nursery() as nursery:
            nursery.start_soon(self._clients.run)
            await self._clients.wait_ready()
            yield
            await self.order("kill", *names)
            nursery.cancel_scope.cancel()
        self._clients = Supervisor([], _say_nothing)

    def _client(
        self, name: str, zookeeper: str, command: Callable[[str, str, int], Sequence[str]]
    ) -> Part:
        starts = 0

        def next_command() -> Sequence[str]:
            nonlocal starts
            starts += 1
            return command(name, zookeeper, starts)

        self._ordered_down.discard(name)
        part = Part(
            name=name,
            kind=CLIENT,
            command=next_command,
            log=self.directory.log(name),
            environ=_environ_of_tests(os.environ),
            facts={},
        )
        return self._watched(part)

    def _make_breakable(self, part: Part) -> Part:
        """Lead the part's connections through its links, and put a bookie on a disk with moods."""
        if part.kind == ZOOKEEPER:
            return part
        config = self.directory.path / "conf" / f"{part.name}.toml"
        host, port = self.links[f"{part.name} to zookeeper"].listens
        lines = [
            each
            for each in config.read_text().splitlines()
            if not each.startswith(("zookeeper ", "advertised_host "))
        ]
        lines.append(f"zookeeper = {json.dumps(f'{host}:{port}')}")
        lines.append(f"advertised_host = {json.dumps(_LINKED_HOST)}")
        config.write_text("\n".join(lines) + "\n")
        if part.kind != BOOKIE:
            return part
        mood = self.directory.part(f"{part.name}.mood")
        command = python("tests.soak.bookie", str(mood), "--config", str(config))
        return replace(part, command=lambda: command, environ=_environ_of_tests(part.environ))


@asynccontextmanager
async def open_cluster(path: Path, shape: Shape) -> AsyncGenerator[Cluster]:
    """Start a new cluster in that directory."""
    options = ClusterOptions(
        bookies=shape.bookies,
        brokers=max(1, shape.brokers),
        port=None,
        admin_port=None,
        zookeeper_port=None,
        zookeeper=None,
        zookeeper_home=None,
        ephemeral=True,
        settings=(*_PATIENT, *_BUSY) if shape.breakable else _PATIENT,
    )
    with open_directory(path) as directory, PortChooser(SystemRandom()) as ports:
        plan = make_plan(options, directory, os.environ, ports)
        ports.release()
        assert plan.server is not None
        plan.server.prepare()
        cluster = Cluster(directory, plan, shape)
        async with cluster.run():
            yield cluster


def _links(parts: Sequence[Part], zookeeper: Address) -> list[Link]:
    linked = [part for part in parts if part.kind != ZOOKEEPER]
    addresses = {part.name: _address(part.facts["address"]) for part in linked}
    to_parts = [
        Link(f"to {name}", (_LINKED_HOST, address[1]), address)
        for name, address in addresses.items()
    ]
    to_zookeeper = [
        Link(f"{name} to zookeeper", (f"127.0.0.{number}", zookeeper[1]), zookeeper)
        for number, name in enumerate(addresses, _PARTS_FROM)
    ]
    return [*to_parts, *to_zookeeper]


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of the product or of these tests."""
    return [sys.executable, "-m", module, *arguments]


def _environ_of_tests(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which these tests, which are not installed, can be imported."""
    paths = [str(_ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def _say_nothing(what: str) -> None:
    """Ignore the supervisor's reports: the logs have them."""
