"""A standalone cluster of real processes, whose connections lead through links.

What a client, a broker or a bookie connects to is at another loopback address than where it
listens; between them is a link:

    127.0.0.2           where clients find brokers, and brokers find bookies: a link for each
    127.0.0.11, .12..   where each broker and each bookie finds ZooKeeper: a link for each of them

The parts are told by their settings, which `daybook standalone` writes when it starts, and parts
read when they do.
"""

import json
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from daybook.clients.cli.errors import UserError
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError
from daybook.clients.testing.standalone import StandaloneProcess
from tests.real.parts import order
from tests.simulation.workloads.drain import LivenessError
from tests.soak.links import Address, Link, open_links

_HOST = "127.0.0.1"
_LINKED_HOST = "127.0.0.2"
_LOOKUP_S = 3.0
ZOOKEEPER = "zookeeper"


class Cluster:
    """Made by `open_cluster`."""

    def __init__(self, process: StandaloneProcess, links: Sequence[Link], asking: Client) -> None:
        self.process = process
        self.links = {link.name: link for link in links}
        self.starts: dict[str, int] = dict.fromkeys(self.names(), 0)  # that we have asked for
        self._asking = asking

    def names(self, kind: str = "") -> list[str]:
        """The parts; kind: broker, bookie, zookeeper."""
        ready = self.process.ready
        parts = [str(each["name"]) for each in (*ready["brokers"], *ready["bookies"])]
        return [name for name in (*parts, ZOOKEEPER) if name.startswith(kind)]

    def data(self, bookie: str) -> Path:
        return self.process.directory / bookie

    @property
    def service_url(self) -> str:
        brokers = self.process.ready["brokers"]
        host = _LINKED_HOST if self.links else _HOST
        return "pulsar://" + ",".join(f"{host}:{_port(each)}" for each in brokers)

    async def order(self, command: str, *names: str) -> None:
        """kill, stop, start, pause, resume: all at once; returns when all have.

        Raises LivenessError, in a group, if one does not.
        """
        async with trio.open_nursery() as nursery:
            for name in names:
                self.starts[name] += command == "start"
                nursery.start_soon(self._order, command, name)

    async def _order(self, command: str, name: str) -> None:
        try:
            await order(self.process, command, name)
        except UserError as error:
            raise LivenessError(f"{command} {name}: {error}") from error

    async def owner_of(self, topic: str) -> str | None:
        """The broker that serves a topic without partitions, or a partition; None: nobody says."""
        with trio.move_on_after(_LOOKUP_S):
            try:
                url = await self._asking.lookup(topic)
            except BrokerError:
                return None
            port = url.rpartition(":")[2]
            for broker in self.process.ready["brokers"]:
                if _port(broker) == int(port):
                    return str(broker["name"])
        return None

    def keep(self, directory: Path) -> None:
        """Copy its data and its logs there; they are gone when it ends."""
        ignore = shutil.ignore_patterns("control.sock")
        shutil.copytree(self.process.directory, directory, ignore=ignore)

    async def died_alone(self) -> dict[str, int]:
        """How often parts have ended though nobody asked for it."""
        parts = await trio.to_thread.run_sync(self.process.parts)
        counts = {str(part["name"]): int(part["restarts"]) for part in parts}
        return {name: count - self.starts[name] for name, count in counts.items()}


# A part that starts while there is no way to ZooKeeper waits for it, as it would be started again.
_PATIENT = ("--set", "broker.start_timeout_s=150", "--set", "bookie.connect_timeout_s=150")


@asynccontextmanager
async def open_cluster(*, bookies: int, brokers: int, linked: bool) -> AsyncGenerator[Cluster]:
    """Its connections lead through links if it is `linked`."""
    with StandaloneProcess(bookies=bookies, brokers=brokers, options=_PATIENT) as process:
        ready = process.ready
        links = _links(ready) if linked else []
        direct = "pulsar://" + ",".join(str(each["address"]) for each in ready["brokers"])
        async with open_links(links), connect(direct, timeout_s=None) as asking:
            cluster = Cluster(process, links, asking)
            if linked:
                parts = cluster.names("bookie") + cluster.names("broker")
                for name in parts:
                    _lead_through(process.directory, name, cluster.links[f"{name} to zookeeper"])
                await cluster.order("kill", *parts)
                await cluster.order("start", *parts)
            yield cluster


def _links(ready: dict[str, Any]) -> list[Link]:
    zookeeper = _address(ready["zookeeper"])
    parts = [*ready["brokers"], *ready["bookies"]]
    to_parts = [
        Link(f"to {part['name']}", (_LINKED_HOST, _port(part)), (_HOST, _port(part)))
        for part in parts
    ]
    to_zookeeper = [
        Link(f"{part['name']} to zookeeper", (f"127.0.0.{number}", zookeeper[1]), zookeeper)
        for number, part in enumerate(parts, 11)
    ]
    return [*to_parts, *to_zookeeper]


def _lead_through(directory: Path, name: str, to_zookeeper: Link) -> None:
    path = directory / "conf" / f"{name}.toml"
    host, port = to_zookeeper.listens
    lines = [each for each in path.read_text().splitlines() if not each.startswith("zookeeper ")]
    lines.append(f"zookeeper = {json.dumps(f'{host}:{port}')}")
    lines.append(f"advertised_host = {json.dumps(_LINKED_HOST)}")
    path.write_text("\n".join(lines) + "\n")


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _port(part: dict[str, Any]) -> int:
    return _address(part["address"])[1]
