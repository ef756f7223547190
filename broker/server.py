"""A broker as a function of its seams.  The process and the simulator both run it.

    store ----+-- policies -- ownership -- lookups -- leader, balancer
              |                   |           |
              +-- peers           |        operations -- HTTP
              |                   |           |
    network --+-- ledgers ----- topics -------+-- clients

The order at the start: open the ports, answer peers, join (which announces the broker), serve.  The
order at the end: withdraw the registration, release the bundles, leave, close the ports.  A broker
that dies without this end loses nothing that it has acknowledged.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Protocol

import msgspec
import trio
from starlette.types import ASGIApp

from daybook.bookie.errors import RegistryError
from daybook.bookie.ledger.client import LedgerClient, open_ledger_client
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.security import BookieSecurity
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.paths import LedgerPaths
from daybook.broker.admin.access import Access
from daybook.broker.admin.app import create_app
from daybook.broker.admin.broker_operations import BrokerOperations
from daybook.broker.admin.bundle_operations import BundleOperations
from daybook.broker.admin.operations import Operations
from daybook.broker.admin.owned_topics import OwnedTopics
from daybook.broker.admin.sink_operations import SinkOperations
from daybook.broker.config import BrokerConfig
from daybook.broker.context import BrokerContext
from daybook.broker.errors import CannotJoinError, PreconditionError, UnavailableError
from daybook.broker.formats import READABLE, SINKS, Formats
from daybook.broker.limits import (
    BrokerLimits,
    CompactionLimits,
    PublishLimit,
    TopicLimits,
    UnackedLimits,
)
from daybook.broker.metrics import BrokerMetrics
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import INCARNATION, BrokerRecord, ClusterData
from daybook.broker.namespaces.tenancy import Tenancy
from daybook.broker.namespaces.topic_lists import TopicLists
from daybook.broker.ownership.balancer import Balancer
from daybook.broker.ownership.hand_over import HandOvers
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.load_report import LoadReports
from daybook.broker.ownership.membership import Identity, Member, check_others
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.broker.ownership.peers import (
    PeerProbe,
    Peers,
    Verdict,
    greeting,
    server_version,
    why_not_served,
)
from daybook.broker.protocol.balance import BalanceSettings
from daybook.broker.schemas.admission import SchemaAdmission
from daybook.broker.schemas.ledgers import SchemaLedgers
from daybook.broker.schemas.orphans import SchemaOrphans
from daybook.broker.schemas.registry import SchemaRegistry
from daybook.broker.security.audit import Audit
from daybook.broker.security.authorization import Authorization
from daybook.broker.security.broker_token import BrokerToken
from daybook.broker.security.configured import (
    SECRETS,
    authentication_of,
    check_own_token,
    watch_own_token,
)
from daybook.broker.service.accept import ClientPort
from daybook.broker.service.handlers import serve_client
from daybook.broker.service.lookup import Lookups
from daybook.broker.service.places import Places
from daybook.broker.sinks.attempts import StagingAttempts
from daybook.broker.sinks.sweep import SinkSweep
from daybook.broker.tls import BrokerTls
from daybook.broker.topics.managed_ledger_factory import (
    LogConfigs,
    ManagedLedgerFactory,
)
from daybook.broker.topics.orphans import OrphanRemoval
from daybook.broker.topics.revocation import Revocation
from daybook.broker.topics.topics import Topics
from daybook.managed_ledger.binding import bind
from daybook.managed_ledger.errors import ForeignListsError
from daybook.managed_ledger.open import ManagedLedgers, open_managed_ledgers
from daybook.managed_ledger.orphans import RemoveOther
from daybook.managed_ledger.sinks.cleaning import StagingCleaner
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.managed_ledger.sinks.ledgers import SinkLedgers, sink_ledger_of
from daybook.managed_ledger.sinks.staging import BODY_BYTES_MAX
from daybook.managed_ledger.tree import tree_id
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import WallClock
from daybook.wire.http import CutClients
from daybook.wire.logging import Log, silent_log
from daybook.wire.metadata.store import MetadataError, MetadataStore
from daybook.wire.outbox import Flusher
from daybook.wire.probe import PortProbe
from daybook.wire.transport import Listener, Network
from daybook.wire.version import __version__

_HIDDEN = "(not shown)"
_RETRY_S = 0.2
_BOOKIES_WANTED = 3
_BOOKIES_SETTLE_S = 2.0
_BOOKIES_NONE_S = 10.0


class HttpServer(Protocol):
    """SEAM: a port for HTTP.  `wire.http.HttpPort`, or a simulated one."""

    port: int

    async def serve(
        self, app: ASGIApp, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None: ...


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
    arenas, flusher = ArenaPool(total_bytes_max=config.arena_bytes_max), Flusher()
    formats = Formats(store, readable)
    listeners = await _listen(config, network)
    try:
        async with trio.open_nursery() as io:
            io.start_soon(flusher.run)
            async with (
                open_ledger_client(
                    store=store,
                    network=network,
                    rng=rng,
                    clock=clock,
                    arenas=arenas,
                    flusher=flusher,
                    root=config.ledgers_root,
                    security=bookie_security,
                ) as client,
                open_managed_ledgers(
                    client=client, store=store, clock=clock, rng=rng, allows=formats.allows
                ) as ledgers,
                trio.open_nursery() as nursery,
            ):
                broker = _Broker(
                    config,
                    store=store,
                    network=network,
                    clock=clock,
                    rng=rng,
                    http=http,
                    https=https,
                    tls=tls,
                    log=log or silent_log(),
                    arenas=arenas,
                    flusher=flusher,
                    listeners=listeners,
                    client=client,
                    ledgers=ledgers,
                    formats=formats,
                    limits=limits or BrokerLimits(),
                )
                if cut_http_clients is not None:
                    cut_http_clients.listeners.append(broker.note_cut_http_client)
                task_status.started(await broker.start(nursery))
            io.cancel_scope.cancel()
    finally:
        listeners.close()


@dataclass(frozen=True, slots=True)
class _Listeners:
    """The service ports of a broker; at least one of them is there."""

    plain: Listener | None
    tls: Listener | None

    @property
    def any(self) -> Listener:
        listener = self.plain or self.tls
        assert listener is not None
        return listener

    def close(self) -> None:
        for listener in (self.plain, self.tls):
            if listener is not None:
                listener.close()


async def _listen(config: BrokerConfig, network: Network) -> _Listeners:
    plain = await network.listen(config.host, config.port) if config.port >= 0 else None
    try:
        tls = await network.listen(config.host, config.tls_port) if config.tls_port >= 0 else None
    except BaseException:
        if plain is not None:
            plain.close()
        raise
    return _Listeners(plain, tls)


class _Broker:
    """The parts of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MetadataStore,
        network: Network,
        clock: WallClock,
        rng: Random,
        http: HttpServer | None,
        https: HttpServer | None,
        tls: BrokerTls | None,
        log: Log,
        arenas: ArenaPool,
        flusher: Flusher,
        listeners: _Listeners,
        client: LedgerClient,
        ledgers: ManagedLedgers,
        formats: Formats,
        limits: BrokerLimits,
    ) -> None:
        self.config = config
        self.store = store
        self.rng = rng
        self.ledgers = ledgers
        self.http = http
        self.https = https
        self.tls = tls
        self.log = log
        self.listeners = listeners
        self.formats = formats
        self.paths = LedgerPaths(config.ledgers_root)
        self.identity = identity = _identity(config, listeners, (http, https), rng)
        self.policies = Policies(store, config)
        self.tenancy = Tenancy(store, self.policies, config)
        self.configs = LogConfigs(store, self.paths, self.policies, config, log, base=limits.logs)
        self.topics = Topics(
            ManagedLedgerFactory(ledgers, self.configs),
            self.policies,
            clock=clock,
            rng=rng,
            log=log,
            name_prefix=f"{config.cluster}-{identity.incarnation}",
            maintain_interval_s=config.trim_interval_s,
            policy_check_interval_s=config.policy_check_interval_s,
            idle_unload_s=config.topic_idle_unload_s,
            limits=topic_limits(limits, config),
        )
        self.schemas = SchemaAdmission(
            SchemaRegistry(
                store,
                SchemaLedgers(
                    client, self.configs.quorums, lambda: ledgers.tree, limits.schemas, log
                ),
                clock,
                versions_max=config.schema_versions_max,
                schema_bytes_max=config.schema_bytes_max,
                limits=limits.schemas,
            )
        )
        registration = _registration(identity, clock)
        self.token = BrokerToken(config.broker_token_file, log)
        peer_network = PeerNetwork(
            network,
            None if tls is None else tls.client,
            prefers_tls=config.prefers_tls,
            requires_tls=config.require_tls,
        )
        self.peer_probe = PeerProbe(peer_network, arenas, flusher, self.token)
        self.ownership = Ownership(
            store,
            identity,
            registration,
            self.policies,
            self.topics,
            formats=formats.readable,
            is_dead=self._is_dead,
            log=log,
        )
        self.topics.attach(
            owns=self.ownership.owns,
            may_load=self.ownership.may_load,
            wait_handed_over=self.ownership.wait_handed_over,
        )
        self.peers = Peers(store, identity, self.peer_probe, log)
        peer_network.others = lambda: [member.record for member in self.peers.registered]
        self.leader = Leader(store, identity, self.peers, log)
        self._leading = trio.CancelScope()
        self.lookups = Lookups(store, self.ownership, self.leader, self.policies)
        self.peer_calls = PeerCalls(peer_network, self.token)
        self.hand_overs = HandOvers(store, self.ownership, self.peers, self.peer_calls, log)
        self.balancer = Balancer(
            store,
            self.hand_overs,
            self.leader,
            self.peer_calls,
            clock=clock,
            interval_s=config.balance_interval_s,
            settings=_balance(config),
            dry_run=config.balance_dry_run,
            log=log,
        )
        self.load_reports = LoadReports(
            store,
            registration,
            self.ownership,
            self.policies,
            self.topics,
            clock=clock,
            log=log,
        )
        self.operations = Operations(
            cluster=config.cluster,
            partitions_max=config.partitions_max,
            store=store,
            tenancy=self.tenancy,
            policies=self.policies,
            ownership=self.ownership,
            lookups=self.lookups,
            leader=self.leader,
            topics=self.topics,
            owned=OwnedTopics(self.topics, identity.broker_id),
            schemas=self.schemas.registry,
            peer_calls=self.peer_calls,
            settings=_shown(config),
            bundles=BundleOperations(
                store,
                self.policies,
                self.ownership,
                self.topics,
                self.hand_overs,
                self.peer_calls,
                bundles_max=config.namespace_bundles_max,
            ),
            of_brokers=BrokerOperations(
                store,
                self.ownership,
                self.hand_overs,
                self.leader,
                self.load_reports,
                self.balancer,
                stop_leading=self._leading.cancel,
            ),
        )
        self.sink_operations, self.sink_sweep, cleaner = self._make_sinks(client, clock)
        self.audit = Audit(
            config.audit_file,
            clock,
            log,
            bytes_max=config.audit_file_bytes_max,
            files_max=config.audit_files_max,
        )
        self.authorization = Authorization(store, self.policies, config)
        self.revocation = Revocation(self.topics, self.authorization, log)
        self.authentication = authentication_of(config, clock=clock, rng=rng, log=log)
        self.context = context = BrokerContext(
            config=config,
            clock=clock,
            arenas=arenas,
            flusher=flusher,
            topics=self.topics,
            lookups=self.lookups,
            policies=self.policies,
            topic_lists=TopicLists(store, log),
            schemas=self.schemas,
            ledgers_url=f"zk://{config.zookeeper}{config.ledgers_root}",
            server_version=server_version(identity.incarnation),
            own_urls=identity.service_urls,
            log=log,
            stored_bytes_max=client.entry_bytes_max,
            limits=limits.connections,
            authentication=self.authentication,
            authorization=self.authorization,
            audit=self.audit,
        )
        probed = listeners.any
        self.probe = PortProbe(probed.host, probed.port, greeting(self.token), why_not_served)
        self.clients = ClientPort(
            listeners.plain,
            lambda stream, prove: serve_client(stream, context, prove),
            places=Places(
                config.connections_max,
                of_address_max=config.connections_per_address_max,
                of_role_max=config.connections_per_role_max,
            ),
            log=log,
            audit=self.audit,
            reserved=self.probe.reserved,
            tls_listener=listeners.tls,
            tls=None if tls is None else tls.server,
            handshake_s=config.connect_timeout_s,
        )
        self.orphans = OrphanRemoval(
            ledgers,
            self._leads,
            _removal_of_others(SchemaOrphans(store, client, clock), cleaner),
            interval_s=config.orphan_interval_s,
            age_s=config.orphan_age_s,
            log=log,
        )
        self.metrics = BrokerMetrics(
            config.cluster,
            self.topics,
            self.ownership,
            self.clients,
            arenas,
            context.request_counts,
            self.orphans,
            ledgers,
            self.balancer,
            self.load_reports,
            topics_max=config.metrics_topics_max,
            authentication=self.authentication,
            audit=self.audit,
        )

    def _make_sinks(
        self, client: LedgerClient, clock: WallClock
    ) -> tuple[SinkOperations, SinkSweep, StagingCleaner]:
        ledgers = SinkLedgers(client, lambda: self.ledgers.tree)
        sinks = Sinks(self.store, ledgers, self.rng, self.configs.default_quorums)
        self.topics.sinks = sinks
        self.attempts = StagingAttempts(
            ledgers,
            self.configs.default_quorums,
            sinks.new_id,
            lambda: min(self.config.max_message_size, client.entry_bytes_max()),
            self.log,
        )
        operations = SinkOperations(
            sinks,
            self.attempts,
            self.operations,
            self.topics,
            lambda: self.formats.allows(SINKS),
            self.identity.http_url,
            self.identity.http_url_tls,
            by_role=self.config.authorization,
        )
        cleaner = StagingCleaner(sinks, clock)
        sweep = SinkSweep(sinks, cleaner, operations.sweep, self._leads, self.log)
        return operations, sweep, cleaner

    def note_cut_http_client(self, peer: str, why: str) -> None:
        """Note a client of HTTP that was cut, because it is too slow or breaks the protocol."""
        self.context.request_counts.cut["http"] += 1
        self.audit.note("HTTP", peer, None, refused=PreconditionError(why))

    def _warn_of_plain_ports(self) -> None:
        """Warn if credentials may cross the network in the clear."""
        plain = (self.identity.service_url, self.identity.http_url)
        if self.config.authentication and any(plain):
            self.log.warning(
                "clients may send their credentials over ports without TLS: whoever sees the"
                " traffic can use them; require_tls forbids such ports",
                urls=" ".join(filter(None, plain)),
            )

    async def start(self, nursery: trio.Nursery) -> RunningBroker:
        self._warn_of_plain_ports()
        await check_own_token(self.config, self.authentication, self.token, self.log)
        await self._bind()
        await self._prepare_cluster()
        await nursery.start(self.formats.run)
        await nursery.start(self.schemas.registry.run)
        await nursery.start(self.topics.run)
        nursery.start_soon(self.context.run)
        if self.authentication is not None and self.config.broker_token_file:
            nursery.start_soon(
                watch_own_token, self.config, self.authentication, self.token, self.log
            )
        nursery.start_soon(self.revocation.run)
        if self.config.audit_file:
            nursery.start_soon(self.audit.run)
        # The port answers before the join: peers that see the registration connect at once.
        nursery.start_soon(self.clients.run)
        await nursery.start(self.ownership.run)
        nursery.start_soon(self.peers.run)
        nursery.start_soon(self._lead)
        nursery.start_soon(self.attempts.run)
        nursery.start_soon(self.sink_sweep.run)
        if self.config.orphan_removal:
            nursery.start_soon(self.orphans.run)
        if self.tls is not None:
            nursery.start_soon(self.tls.run)
        http_ports = [port for port in (self.http, self.https) if port is not None]
        if http_ports:
            app = create_app(
                self.operations,
                self.metrics.scrape,
                why_not_ready=self.probe.why_not_ready,
                body_bytes_max=self.config.http_body_bytes_max,
                of_sinks=self.sink_operations,
                staged_bytes_max=max(BODY_BYTES_MAX, self.config.max_message_size),
                access=Access(self.config, self.authentication, self.authorization, self.audit),
                metrics_need_credentials=self.config.metrics_need_credentials,
                log=self.log,
            )
            for port in http_ports:
                await nursery.start(port.serve, app)
            nursery.start_soon(self.balancer.run)
            nursery.start_soon(self.load_reports.run)
        self.log.info(
            "the broker serves clients",
            url=" ".join(self.identity.service_urls),
            admin=" ".join(filter(None, (self.identity.http_url, self.identity.http_url_tls))),
        )
        return RunningBroker(
            name=self.config.name or self.identity.broker_id,
            identity=self.identity,
            port=_port(self.listeners.plain),
            tls_port=_port(self.listeners.tls),
            http_port=_port(self.http),
            https_port=_port(self.https),
            operations=self.operations,
            sinks=self.sink_operations,
            topics=self.topics,
            ownership=self.ownership,
            peers=self.peers,
            leader=self.leader,
            clients=self.clients,
            metrics=self.metrics,
            context=self.context,
            probe=self.probe,
            stop=partial(self._stop, nursery.cancel_scope),
        )

    async def _lead(self) -> None:
        with self._leading:
            await self.leader.run()

    async def _leads(self) -> bool:
        return (await self.leader.view()).is_us

    async def _stop(self, scope: trio.CancelScope) -> None:
        # Withdraw first: otherwise lookups would place bundles here while they are released.
        self._leading.cancel()
        await self.ownership.withdraw()
        await self.hand_overs.drain()
        await self.ownership.release_all()
        await self.topics.close_all()
        await self.ownership.leave()
        scope.cancel()

    async def _bind(self) -> None:
        """Check that our ledgers are those of the topics.  Raise CannotJoinError.

        This comes before this broker writes anything, so after the error nothing has changed.
        """
        where = f"{self.config.zookeeper} below {self.config.ledgers_root}"
        while True:
            try:
                bound = await bind(self.store, self.paths, self.rng, where)
                if bound is not None:
                    await check_others(self.store, bound)
                self.ledgers.name_tree(await tree_id(self.store, self.rng))
                break
            except (RegistryError, ForeignListsError) as error:
                raise CannotJoinError(f"this broker cannot join the cluster: {error}") from error
            except MetadataError as error:
                self.log.warning(
                    "the broker cannot check yet that the topics belong to its ledgers; it tries"
                    " again",
                    why=str(error),
                )
                await trio.sleep(_RETRY_S)
        if bound is None:
            self.log.warning(
                "the ledgers have no INSTANCEID, because an old BookKeeper made them: if another"
                " broker has a wrong ledgers_root, only the names in ledgers show that",
                root=self.config.ledgers_root,
            )
            return
        self.ledgers.bind(bound.instance_id)
        self.ownership.bind(bound)

    async def _warn_of_new_cluster(self) -> None:
        """Warn if the cluster name is new beside others: that may be a mistake."""
        names = await self.tenancy.clusters()
        if names and self.config.cluster not in names:
            self.log.warning(
                "the setting `cluster` of this broker is new in this ZooKeeper: correct it if it is"
                " a mistake. The broker serves the same topics as the others, and namespaces"
                " created through it belong to this cluster name",
                cluster=self.config.cluster,
                others=", ".join(names),
            )

    async def _prepare_cluster(self) -> None:
        """Create the first namespace; wait for bookies, so that first topics get all copies."""
        identity = self.identity
        data = ClusterData(
            service_url=identity.http_url,
            service_url_tls=identity.http_url_tls,
            broker_service_url=identity.service_url,
            broker_service_url_tls=identity.service_url_tls,
        )
        while True:
            try:
                await self._warn_of_new_cluster()
                await self.tenancy.bootstrap(data)
                break
            except (MetadataError, UnavailableError) as error:
                self.log.warning(
                    "the broker cannot create the first namespace yet; it tries again",
                    why=str(error),
                )
                await trio.sleep(_RETRY_S)
        if self.config.quorums == "auto":
            await self._wait_for_bookies()

    async def _wait_for_bookies(self) -> None:
        """Return when there are three bookies, or when no more appear for a while.

        Bookies that start at the same time as this broker take a moment to register.
        """
        known, since = 0, trio.current_time()
        while known < _BOOKIES_WANTED:
            try:
                found = len(await known_bookies(self.store, self.paths))
            except MetadataError:
                found = known
            if found != known:
                known, since = found, trio.current_time()
            patience_s = _BOOKIES_SETTLE_S if known else _BOOKIES_NONE_S
            if trio.current_time() - since >= patience_s:
                return
            await trio.sleep(_RETRY_S)

    async def _is_dead(self, member: Member) -> bool:
        return await self.peer_probe.probe(member) is Verdict.DEAD


def _removal_of_others(schemas: SchemaOrphans, cleaner: StagingCleaner) -> RemoveOther:
    """Return the removal of orphans among the ledgers of schemas and sinks."""

    async def remove(ledger_id: int, stored: StoredMetadata, tree: str, age_ms: int) -> bool:
        if sink_ledger_of(stored.metadata.custom) is not None:
            return await cleaner.remove(ledger_id, stored, tree)
        return await schemas.remove(ledger_id, stored, tree, age_ms)

    return remove


def _shown(config: BrokerConfig) -> dict[str, str]:
    """Return the settings as texts, without secrets."""
    found = msgspec.structs.asdict(config)
    return {
        name: _HIDDEN if name in SECRETS and value else str(value) for name, value in found.items()
    }


def _balance(config: BrokerConfig) -> BalanceSettings:
    return BalanceSettings(
        threshold_percent=config.balance_threshold_percent,
        threshold=config.balance_threshold,
        bundle_cool_down_s=config.balance_bundle_cool_down_s,
        broker_cool_down_s=config.balance_broker_cool_down_s,
        quiet_s=config.balance_interval_s,
        topics_max=config.bundle_topics_max,
        clients_max=config.bundle_clients_max,
        messages_max=config.bundle_messages_max,
        bytes_max=config.bundle_megabytes_max * 1024 * 1024,
        bundles_max=config.namespace_bundles_max,
    )


def _compaction(config: BrokerConfig, limits: TopicLimits) -> CompactionLimits:
    return replace(
        limits.compaction,
        keys_max=config.compaction_keys_max,
        bytes_per_s=config.compaction_bytes_per_s,
        retain_keyless=config.compaction_retain_keyless,
    )


def _port(listener: Listener | HttpServer | None) -> int | None:
    return None if listener is None else listener.port


def _identity(
    config: BrokerConfig,
    listeners: _Listeners,
    http_ports: tuple[HttpServer | None, HttpServer | None],
    rng: Random,
) -> Identity:
    host = config.public_host
    shown = f"[{host}]" if ":" in host else host
    http, https = http_ports

    def url(scheme: str, listener: Listener | HttpServer | None) -> str | None:
        return None if listener is None else f"{scheme}://{shown}:{listener.port}"

    return Identity(
        broker_id=f"{host}:{(http or https or listeners.any).port}",
        incarnation=f"{rng.getrandbits(64):016x}",
        service_url=url("pulsar", listeners.plain),
        http_url=url("http", http),
        service_url_tls=url("pulsar+ssl", listeners.tls),
        http_url_tls=url("https", https),
    )


def topic_limits(limits: BrokerLimits, config: BrokerConfig) -> TopicLimits:
    """Return the limits of topics: the settings, and what is no setting."""
    dispatch = replace(limits.topics.dispatch, key_shared_points=config.key_shared_points)
    return replace(
        limits.topics,
        compaction=_compaction(config, limits.topics),
        dispatch=dispatch,
        unacked=UnackedLimits(
            config.max_unacked_messages_per_broker,
            config.max_unacked_messages_per_subscription_on_broker_blocked,
        ),
        published=PublishLimit(
            config.broker_publish_messages_per_s, config.broker_publish_bytes_per_s
        ),
        stalled_s=config.dispatch_stalled_s,
    )


def _registration(identity: Identity, clock: WallClock) -> BrokerRecord:
    return BrokerRecord(
        pulsar_service_url=identity.service_url,
        web_service_url=identity.http_url,
        pulsar_service_url_tls=identity.service_url_tls,
        web_service_url_tls=identity.http_url_tls,
        start_timestamp=clock.now_ms(),
        broker_version_string=__version__,
        protocols={INCARNATION: identity.incarnation},
    )
