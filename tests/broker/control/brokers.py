"""Brokers reduced to their control plane, several in one trio program, over the store in memory."""

import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from daybook.bookie.ledger.ensemble import BookieDirectory, DirectoryLimits
from daybook.bookie.registry.paths import LedgerPaths
from daybook.broker.config import BrokerConfig, parse
from daybook.broker.connected_client import NO_SUCCESSOR, SuccessorUrls
from daybook.broker.formats import READABLE, Formats
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import BrokerRecord
from daybook.broker.namespaces.tenancy import Tenancy
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.membership import Identity, Member
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.broker.ownership.peers import PeerProbe, Peers, Verdict, server_version
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.service.lookup import LookupResult, Lookups
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topics import Topics
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError
from daybook.wire.logging import Log, silent_log
from daybook.wire.messages.registry import encode
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from daybook.wire.transport import Stream
from tests.harness.clocks import EPOCH_MS, FixedClock
from tests.harness.network import SimulatedNetwork
from tests.harness.schemas import registry

PORT = 6650
CONFIG = parse({"cluster": "test"})


class RecordedNonPersistent:
    """Topics that store nothing, reduced in the same way."""

    def __init__(self) -> None:
        self.loaded: dict[str, object] = {}
        self.closed: list[tuple[BundleName, str]] = []

    def close_bundle(self, bundle: BundleName, to: SuccessorUrls = NO_SUCCESSOR) -> None:
        self.closed.append((bundle, to.plain))


@dataclass
class RecordedTopics(Topics):
    """Topics, reduced to what ownership needs."""

    closed: list[BundleName] = field(default_factory=list)
    dropped: list[BundleName] = field(default_factory=list)
    sent_to: list[str] = field(default_factory=list)
    closing_takes_s: float = 0.0
    served: list[TopicName] = field(default_factory=list)
    closed_names: list[list[str]] = field(default_factory=list)
    _loaded: dict[str, Topic] = field(default_factory=dict)
    non_persistent: Any = field(default_factory=RecordedNonPersistent)

    def with_hashes(self, bundle: BundleName) -> list[tuple[str, int]]:
        return [(name.full, name.bundle_hash) for name in self.served]

    def in_use(self, names: Iterable[str]) -> list[str]:
        return list(names)

    async def close_names(self, names: Sequence[str], to: SuccessorUrls = NO_SUCCESSOR) -> None:
        await trio.sleep(self.closing_takes_s)
        self.closed_names.append(list(names))
        self.sent_to.append(to.plain)

    async def close_bundle(self, bundle: BundleName, to: SuccessorUrls = NO_SUCCESSOR) -> None:
        await trio.sleep(self.closing_takes_s)
        self.closed.append(bundle)
        self.sent_to.append(to.plain)

    def drop_bundle(self, bundle: BundleName) -> None:
        self.dropped.append(bundle)


class ControlPlane:
    """One broker: the parts that decide where topics are served, and a port that identifies it."""

    def __init__(
        self,
        cluster: "Cluster",
        host: str,
        life: int,
        config: BrokerConfig,
        http_url: str | None = None,
        readable: Sequence[str] = READABLE,
        log: Log | None = None,
    ) -> None:
        self.cluster = cluster
        self.log = silent_log() if log is None else log
        self.host = host
        self.session: MemorySession = cluster.store.session(host)
        self.network = cluster.network.of(host)
        self.flusher = Flusher()
        self.arenas = ArenaPool()
        self.topics = RecordedTopics()
        service_url = f"pulsar://{host}:{PORT}"
        self.identity = Identity(f"{host}:8080", f"{host}-life-{life}", service_url, http_url)
        registration = BrokerRecord(
            service_url, http_url, protocols={"daybook": self.identity.incarnation}
        )
        self.peer_probe = PeerProbe(PeerNetwork(self.network), self.arenas, self.flusher)
        self.policies = Policies(self.session, config)
        self.schemas = registry(self.session, cluster.clock)
        self.tenancy = Tenancy(self.session, self.policies, config)
        self.formats = Formats(self.session, readable)
        self.ownership = Ownership(
            self.session,
            self.identity,
            registration,
            self.policies,
            self.topics,
            formats=self.formats.readable,
            is_dead=self.is_dead,
            why_not_reached=self.why_not_reached,
            log=self.log,
        )
        self.peers = Peers(self.session, self.identity, self.peer_probe, self.log)
        self.leader = Leader(self.session, self.identity, self.peers, silent_log())
        self.lookups = Lookups(self.session, self.ownership, self.leader, self.policies)
        self.scope = trio.CancelScope()
        self.leader_scope = trio.CancelScope()
        self.directory = BookieDirectory(
            self.session, LedgerPaths(), random.Random(1), DirectoryLimits()
        )

    async def is_dead(self, member: Member) -> bool:
        return (await self.peer_probe.probe(member)).verdict is Verdict.DEAD

    async def why_not_reached(self, member: Member) -> str:
        return (await self.peer_probe.probe(member)).why

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.flusher.run)
                await nursery.start(self._listen)
                await nursery.start(self.schemas.run)
                await self.tenancy.bootstrap()
                await nursery.start(self.formats.run)
                await nursery.start(self.ownership.run)
                nursery.start_soon(self.peers.run)
                nursery.start_soon(self._lead)
                task_status.started()

    async def _lead(self) -> None:
        with self.leader_scope:
            await self.leader.run()

    async def _listen(self, *, task_status: trio.TaskStatus[None]) -> None:
        listener = await self.network.listen(self.host, PORT)
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._greet, await listener.accept())

    async def _greet(self, stream: Stream) -> None:
        connection = FrameConnection(
            stream, arenas=self.arenas, flusher=self.flusher, frame_bytes_max=1 << 16
        )
        try:
            while await connection.receive():
                version = server_version(self.identity.incarnation)
                connection.send([encode(pb.CommandConnected(server_version=version))])
        except ConnectionLostError:
            pass

    def kill(self) -> None:
        """Kill the process: ports refuse, connections break; the session lives until it expires."""
        self.session.crash()
        self.cluster.network.crash(self.host)
        self.scope.cancel()

    @property
    def session_id(self) -> int:
        return self.session.session_id


class Cluster:
    def __init__(self, nursery: trio.Nursery, config: BrokerConfig) -> None:
        self.nursery = nursery
        self.config = config
        self.clock = FixedClock(EPOCH_MS)
        self.store = MemoryStore(self.clock)
        self.network = SimulatedNetwork(random.Random(7))
        self.lives = 0

    async def start(
        self, host: str, http_url: str | None = None, *, readable: Sequence[str] = READABLE
    ) -> ControlPlane:
        self.lives += 1
        broker = ControlPlane(self, host, self.lives, self.config, http_url, readable)
        await self.nursery.start(broker.run)
        return broker

    async def lookup(
        self, brokers: list[ControlPlane], topic: TopicName, hops_max: int = 2
    ) -> tuple[LookupResult, int]:
        """Look a topic up like a client: ask the first broker, follow redirects."""
        asked, authoritative = brokers[0], False
        for hop in range(hops_max + 1):
            result = await asked.lookups.lookup(topic, authoritative=authoritative)
            if not result.redirect:
                return result, hop
            authoritative = result.authoritative
            asked = next(b for b in brokers if b.identity.service_url == result.service_url)
        raise AssertionError("the lookup went in circles")


@asynccontextmanager
async def open_cluster(config: BrokerConfig = CONFIG) -> AsyncGenerator[Cluster]:
    async with trio.open_nursery() as nursery:
        yield Cluster(nursery, config)
        nursery.cancel_scope.cancel()
