"""A broker as a function of its seams.  The process and the simulator both run it.

    store ----+-- policies -- ownership -- lookups -- leader, balancer
              |                   |           |
              +-- peers           |        operations -- HTTP
              |                   |           |
    network --+-- ledgers ----- topics -------+-- clients

`parts` puts these together.  The order at the start: open the ports, answer peers, join (which
announces the broker), serve.  The order at the end: withdraw the registration, release the bundles,
leave, close the ports.  A broker that dies without this end loses nothing that it has acknowledged.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

import trio

from daybook.bookie.ledger.client import open_ledger_client
from daybook.bookie.ledger.security import BookieSecurity
from daybook.bookie.registry.paths import LedgerPaths
from daybook.broker.admin.access import Access
from daybook.broker.admin.app import create_app
from daybook.broker.admin.operations import Operations
from daybook.broker.admin.sink_operations import SinkOperations
from daybook.broker.config import BrokerConfig
from daybook.broker.context import BrokerContext
from daybook.broker.errors import PreconditionError
from daybook.broker.formats import READABLE, Formats
from daybook.broker.joining import bind_to_ledgers, check_bookies, prepare_cluster
from daybook.broker.limits import BrokerLimits
from daybook.broker.metrics import BrokerMetrics
from daybook.broker.own_certificate import check_own_certificate
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.membership import Identity
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.ownership.peers import Peers
from daybook.broker.parts import (
    Foundation,
    HttpServer,
    Ports,
    make_access_parts,
    make_admin_parts,
    make_client_parts,
    make_cluster_parts,
    make_identity,
    make_stored_parts,
)
from daybook.broker.quarantine_log import QuarantineLog
from daybook.broker.security.configured import check_own_token, watch_own_token
from daybook.broker.service.accept import ClientPort
from daybook.broker.service.request_turns import ClientTurns
from daybook.broker.tls import BrokerTls
from daybook.broker.topics.topics import Topics
from daybook.managed_ledger.open import open_managed_ledgers
from daybook.managed_ledger.sinks.staging import BODY_BYTES_MAX
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import WallClock
from daybook.wire.http import CutClients
from daybook.wire.logging import Log, silent_log
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.outbox import Flusher
from daybook.wire.probe import PortProbe
from daybook.wire.transport import Listener, Network


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A running broker.  `stop` ends it in order; cancelling `run_broker` ends it at once."""

    name: str
    identity: Identity
    port: int | None
    tls_port: int | None
    http_port: int | None
    https_port: int | None
    operations: Operations
    sinks: SinkOperations
    topics: Topics
    ownership: Ownership
    peers: Peers
    leader: Leader
    clients: ClientPort
    metrics: BrokerMetrics
    context: BrokerContext
    probe: PortProbe  # probes the broker's own service port
    stop: Callable[[], Awaitable[None]]


async def run_broker(
    config: BrokerConfig,
    *,
    store: MetadataStore,
    network: Network,
    clock: WallClock,
    rng: Random,
    http: HttpServer | None = None,
    https: HttpServer | None = None,
    tls: BrokerTls | None = None,
    cut_http_clients: CutClients | None = None,
    bookie_security: BookieSecurity | None = None,
    log: Log | None = None,
    readable: Sequence[str] = READABLE,
    limits: BrokerLimits | None = None,
    task_status: trio.TaskStatus[RunningBroker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until stopped or cancelled.  Raise OSError if the port is in use.

    `tls` and `bookie_security` belong to the settings (`broker.tls.open_tls`,
    `bookie.ledger.security.open_bookie_security`), and `https` is a port with its TLS.
    `cut_http_clients` are those of both ports for HTTP.
    `readable` are the new formats that this broker announces.  Tests pass fewer, to act as an older
    version.
    """
    lots = Random(rng.getrandbits(64))  # noqa: S311  nothing secret, and many for each new ledger
    arenas, flusher = ArenaPool(total_bytes_max=config.arena_bytes_max), Flusher()
    formats = Formats(store, readable)
    async with _open_ports(config, network, http, https) as ports, trio.open_nursery() as io:
        io.start_soon(flusher.run)
        async with (
            open_ledger_client(
                store=store,
                network=network,
                rng=lots,
                clock=clock,
                arenas=arenas,
                flusher=flusher,
                root=config.ledgers_root,
                security=bookie_security,
            ) as client,
            open_managed_ledgers(
                client=client, store=store, clock=clock, rng=lots, allows=formats.allows
            ) as ledgers,
            trio.open_nursery() as nursery,
        ):
            foundation = Foundation(
                config=config,
                limits=limits or BrokerLimits(),
                store=store,
                network=network,
                clock=clock,
                rng=rng,
                log=log or silent_log(),
                arenas=arenas,
                flusher=flusher,
                ports=ports,
                tls=tls,
                client=client,
                ledgers=ledgers,
                formats=formats,
                turns=ClientTurns((limits or BrokerLimits()).connections),
            )
            broker = _Broker(foundation)
            if cut_http_clients is not None:
                cut_http_clients.listeners.append(broker.note_cut_http_client)
            task_status.started(await broker.start(nursery))
        io.cancel_scope.cancel()


@asynccontextmanager
async def _open_ports(
    config: BrokerConfig, network: Network, http: HttpServer | None, https: HttpServer | None
) -> AsyncGenerator[Ports]:
    """Open the ports for clients that the settings name, and close them at the end."""
    opened: list[Listener] = []

    async def listen(port: int) -> Listener | None:
        if port < 0:
            return None
        opened.append(await network.listen(config.host, port))
        return opened[-1]

    try:
        yield Ports(await listen(config.port), await listen(config.tls_port), http, https)
    finally:
        for listener in opened:
            listener.close()


class _Broker:
    """One broker: the tasks of its parts, from the start to the end."""

    def __init__(self, foundation: Foundation) -> None:
        self.on = on = foundation
        quarantine_log = QuarantineLog(on.log, on.client.context.nursery)
        on.client.directory.on_quarantine = quarantine_log.note
        self.identity = make_identity(on.config, on.ports, on.rng)
        self.stored = make_stored_parts(on, self.identity)
        self.cluster = make_cluster_parts(on, self.identity, self.stored)
        self.access = make_access_parts(on, self.stored)
        self.admin = make_admin_parts(on, self.identity, self.stored, self.cluster, self.access)
        self.clients = make_client_parts(
            on, self.identity, self.stored, self.cluster, self.access, self.admin
        )

    def note_cut_http_client(self, peer: str, why: str) -> None:
        """Note a client of HTTP that was cut, because it is too slow or breaks the protocol."""
        self.clients.context.request_counts.cut["http"] += 1
        refused = PreconditionError(why)
        self.access.audit.note("HTTP", peer, None, refused=refused, with_credentials=False)

    async def start(self, nursery: trio.Nursery) -> RunningBroker:
        on, stored, cluster, access = self.on, self.stored, self.cluster, self.access
        self._warn_of_plain_ports()
        check_own_certificate(on.config, self.identity, on.tls, on.log)
        await check_own_token(on.config, access.authentication, cluster.token, on.log)
        await bind_to_ledgers(on.config, on.store, on.rng, on.ledgers, cluster.ownership, on.log)
        await prepare_cluster(on.config, on.store, self.identity, stored.tenancy, on.log)
        await check_bookies(on.client, on.store, LedgerPaths(on.config.ledgers_root))
        await nursery.start(on.formats.run)
        await nursery.start(stored.schemas.registry.run)
        await nursery.start(stored.topics.run)
        nursery.start_soon(self.clients.context.run)
        if access.authentication is not None and on.config.broker_token_file:
            nursery.start_soon(
                watch_own_token, on.config, access.authentication, cluster.token, on.log
            )
        nursery.start_soon(access.revocation.run)
        if on.config.audit_file:
            nursery.start_soon(access.audit.run)
        # The port answers before the join: peers that see the registration connect at once.
        nursery.start_soon(self.clients.port.run)
        await nursery.start(cluster.ownership.run)
        nursery.start_soon(cluster.peers.run)
        nursery.start_soon(cluster.lead)
        nursery.start_soon(self.admin.attempts.run)
        nursery.start_soon(self.admin.sink_sweep.run)
        if on.config.orphan_removal:
            nursery.start_soon(self.admin.orphans.run)
        if on.tls is not None:
            nursery.start_soon(on.tls.run)
        if on.ports.for_http:
            await self._serve_http(nursery)
            nursery.start_soon(cluster.balancer.run)
            nursery.start_soon(cluster.load_reports.run)
        nursery.start_soon(on.ledgers.cache.run)
        on.log.info(
            "the broker serves clients",
            url=" ".join(self.identity.service_urls),
            admin=" ".join(filter(None, (self.identity.http_url, self.identity.http_url_tls))),
        )
        return self._running(nursery)

    def _warn_of_plain_ports(self) -> None:
        """Warn if credentials may cross the network in the clear."""
        plain = (self.identity.service_url, self.identity.http_url)
        if self.on.config.authentication and any(plain):
            self.on.log.warning(
                "clients may send their credentials over ports without TLS: whoever sees the"
                " traffic can use them; require_tls forbids such ports",
                urls=" ".join(filter(None, plain)),
            )

    async def _serve_http(self, nursery: trio.Nursery) -> None:
        config, access = self.on.config, self.access
        app = create_app(
            self.admin.operations,
            self.clients.metrics.scrape,
            why_not_ready=self._why_not_ready,
            body_bytes_max=config.http_body_bytes_max,
            of_sinks=self.admin.sinks,
            staged_bytes_max=max(BODY_BYTES_MAX, config.max_message_size),
            access=Access(config, access.authentication, access.authorization, access.audit),
            metrics_need_credentials=config.metrics_need_credentials,
            message_bytes_max=config.max_message_size,
            pace=self.clients.context.refusal_pace,
            log=self.on.log,
        )
        for port in self.on.ports.for_http:
            await nursery.start(port.serve, app)

    async def _why_not_ready(self) -> str:
        """Return "" if this broker can serve topics, else what prevents it."""
        if why := await self.clients.probe.why_not_ready():
            return f"the service port does not serve: {why}"
        if why := self.on.client.refused_by_all():
            return f"every bookie refuses this broker: {why}"
        return ""

    def _running(self, nursery: trio.Nursery) -> RunningBroker:
        ports, clients = self.on.ports, self.clients
        return RunningBroker(
            name=self.on.config.name or self.identity.broker_id,
            identity=self.identity,
            port=_port(ports.plain),
            tls_port=_port(ports.tls),
            http_port=_port(ports.http),
            https_port=_port(ports.https),
            operations=self.admin.operations,
            sinks=self.admin.sinks,
            topics=self.stored.topics,
            ownership=self.cluster.ownership,
            peers=self.cluster.peers,
            leader=self.cluster.leader,
            clients=clients.port,
            metrics=clients.metrics,
            context=clients.context,
            probe=clients.probe,
            stop=partial(self._stop, nursery.cancel_scope),
        )

    async def _stop(self, scope: trio.CancelScope) -> None:
        # Withdraw first: otherwise lookups would place bundles here while they are released.
        self.cluster.leading.cancel()
        await self.cluster.ownership.withdraw()
        await self.cluster.hand_overs.drain()
        await self.cluster.ownership.release_all()
        await self.stored.topics.close_all()
        await self.cluster.ownership.leave()
        scope.cancel()


def _port(listener: Listener | HttpServer | None) -> int | None:
    return None if listener is None else listener.port
