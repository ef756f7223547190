"""The parts of one broker, and what each of them is given.

    StoredParts      policies, topics and schemas, in the metadata store and in ledgers
    ClusterParts     who owns which bundle, who leads, how brokers ask each other
    AccessParts      who may come in and do what, and the record of it
    AdminParts       what the admin REST does, and the work of the leader in the background
    ClientParts      the port for clients, and the metrics

Each group is made from those before it.  Nothing runs here and nothing is written: `server` starts
the parts, in the order in which a broker joins its cluster.
"""

from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

import trio
from starlette.types import ASGIApp

from daybook.bookie.ledger.client import LedgerClient
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.registry.paths import LedgerPaths
from daybook.broker.admin.broker_operations import BrokerOperations
from daybook.broker.admin.bundle_operations import BundleOperations
from daybook.broker.admin.operations import Operations
from daybook.broker.admin.owned_topics import OwnedTopics
from daybook.broker.admin.replica_limit import ReplicaLimit
from daybook.broker.admin.sink_operations import SinkOperations
from daybook.broker.config import BrokerConfig
from daybook.broker.context import BrokerContext
from daybook.broker.formats import SINKS, Formats
from daybook.broker.limits import BrokerLimits
from daybook.broker.metrics import BrokerMetrics
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import INCARNATION, BrokerRecord
from daybook.broker.namespaces.tenancy import Tenancy
from daybook.broker.namespaces.topic_lists import TopicLists
from daybook.broker.ownership.balancer import Balancer
from daybook.broker.ownership.hand_over import HandOvers
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.load_report import LoadReports
from daybook.broker.ownership.membership import Identity, Member
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
from daybook.broker.part_settings import balance_settings, shown_settings, topic_limits
from daybook.broker.schemas.admission import SchemaAdmission
from daybook.broker.schemas.ledgers import SchemaLedgers
from daybook.broker.schemas.orphans import SchemaOrphans
from daybook.broker.schemas.registry import SchemaRegistry
from daybook.broker.security.audit import Audit
from daybook.broker.security.authentication import Authentication
from daybook.broker.security.authorization import Authorization
from daybook.broker.security.broker_token import BrokerToken
from daybook.broker.security.configured import authentication_of
from daybook.broker.service.accept import ClientPort
from daybook.broker.service.handlers import serve_client
from daybook.broker.service.lookup import Lookups
from daybook.broker.service.places import Places
from daybook.broker.service.request_turns import ClientTurns
from daybook.broker.sinks.attempts import StagingAttempts
from daybook.broker.sinks.sweep import SinkSweep
from daybook.broker.tls import BrokerTls
from daybook.broker.topics.managed_ledger_factory import LogConfigs, ManagedLedgerFactory
from daybook.broker.topics.orphans import OrphanRemoval
from daybook.broker.topics.revocation import Revocation
from daybook.broker.topics.topics import Topics
from daybook.managed_ledger.open import ManagedLedgers
from daybook.managed_ledger.orphans import RemoveOther
from daybook.managed_ledger.sinks.cleaning import StagingCleaner
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.managed_ledger.sinks.ledgers import SinkLedgers, sink_ledger_of
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.outbox import Flusher
from daybook.wire.probe import PortProbe
from daybook.wire.transport import Listener, Network
from daybook.wire.version import __version__


class HttpServer(Protocol):
    """SEAM: a port for HTTP.  `wire.http.HttpPort`, or a simulated one."""

    port: int

    async def serve(
        self, app: ASGIApp, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The open ports of a broker, for clients and for HTTP; one of those for clients is there."""

    plain: Listener | None
    tls: Listener | None
    http: HttpServer | None
    https: HttpServer | None

    @property
    def any(self) -> Listener:
        listener = self.plain or self.tls
        assert listener is not None
        return listener

    @property
    def for_http(self) -> list[HttpServer]:
        return [port for port in (self.http, self.https) if port is not None]


@dataclass(frozen=True, slots=True)
class Foundation:
    """The things that a broker is given: settings, seams, open ports, and clients of ledgers."""

    config: BrokerConfig
    limits: BrokerLimits
    store: MetadataStore
    network: Network
    clock: WallClock
    rng: Random
    log: Log
    arenas: ArenaPool
    flusher: Flusher
    ports: Ports
    tls: BrokerTls | None
    client: LedgerClient
    ledgers: ManagedLedgers
    formats: Formats
    turns: ClientTurns


def make_identity(config: BrokerConfig, ports: Ports, rng: Random) -> Identity:
    """Return the identity of a new run of a broker: its addresses, and a random incarnation."""
    host = config.public_host
    shown = f"[{host}]" if ":" in host else host

    def url(scheme: str, listener: Listener | HttpServer | None) -> str | None:
        return None if listener is None else f"{scheme}://{shown}:{listener.port}"

    return Identity(
        broker_id=f"{host}:{(ports.http or ports.https or ports.any).port}",
        incarnation=f"{rng.getrandbits(64):016x}",
        service_url=url("pulsar", ports.plain),
        http_url=url("http", ports.http),
        service_url_tls=url("pulsar+ssl", ports.tls),
        http_url_tls=url("https", ports.https),
    )


# -- what is stored


@dataclass(frozen=True, slots=True)
class StoredParts:
    """Policies, topics and schemas."""

    policies: Policies
    tenancy: Tenancy
    configs: LogConfigs
    topics: Topics
    schemas: SchemaAdmission


def make_stored_parts(on: Foundation, identity: Identity) -> StoredParts:
    config, store = on.config, on.store
    policies = Policies(store, config)
    configs = LogConfigs(
        store,
        LedgerPaths(config.ledgers_root),
        policies,
        config,
        on.log,
        base=on.limits.logs,
    )
    topics = Topics(
        ManagedLedgerFactory(on.ledgers, configs),
        policies,
        clock=on.clock,
        rng=on.rng,
        log=on.log,
        name_prefix=f"{config.cluster}-{identity.incarnation}",
        maintain_interval_s=config.trim_interval_s,
        policy_check_interval_s=config.policy_check_interval_s,
        idle_unload_s=config.topic_idle_unload_s,
        limits=topic_limits(on.limits, config),
    )
    schema_ledgers = SchemaLedgers(
        on.client, configs.quorums, lambda: on.ledgers.tree, on.limits.schemas, on.log
    )
    registry = SchemaRegistry(
        store,
        schema_ledgers,
        on.clock,
        versions_max=config.schema_versions_max,
        schema_bytes_max=config.schema_bytes_max,
        limits=on.limits.schemas,
    )
    tenancy = Tenancy(store, policies, config)
    return StoredParts(policies, tenancy, configs, topics, SchemaAdmission(registry))


# -- the cluster


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """Ownership of bundles, the leader and its work, and the requests between brokers."""

    token: BrokerToken
    ownership: Ownership
    peers: Peers
    peer_calls: PeerCalls
    leader: Leader
    leading: trio.CancelScope  # cancelled when this broker must not lead any more
    lookups: Lookups
    hand_overs: HandOvers
    balancer: Balancer
    load_reports: LoadReports

    async def lead(self) -> None:
        """Stand for election, and do the work of the leader, until `leading` is cancelled."""
        with self.leading:
            await self.leader.run()

    async def leads(self) -> bool:
        """Return True if this broker is the leader."""
        return (await self.leader.view()).is_us


def make_cluster_parts(on: Foundation, identity: Identity, stored: StoredParts) -> ClusterParts:
    config, store, log = on.config, on.store, on.log
    policies, topics = stored.policies, stored.topics
    registration = _registration(identity, on.clock)
    token = BrokerToken(config.broker_token_file, log)
    peer_network = PeerNetwork(
        on.network,
        None if on.tls is None else on.tls.client,
        prefers_tls=config.prefers_tls,
        requires_tls=config.require_tls,
    )
    probe = PeerProbe(peer_network, on.arenas, on.flusher, token)
    ownership = _make_ownership(on, identity, registration, stored, probe)
    peers = Peers(store, identity, probe, log)
    peer_network.others = lambda: [member.record for member in peers.registered]
    leader = Leader(store, identity, peers, log)
    peer_calls = PeerCalls(peer_network, token)
    hand_overs = HandOvers(store, ownership, peers, peer_calls, log)
    balancer = Balancer(
        store,
        hand_overs,
        leader,
        peer_calls,
        clock=on.clock,
        interval_s=config.balance_interval_s,
        settings=balance_settings(config),
        dry_run=config.balance_dry_run,
        log=log,
    )
    load_reports = LoadReports(
        store, registration, ownership, policies, topics, clock=on.clock, log=log
    )
    return ClusterParts(
        token=token,
        ownership=ownership,
        peers=peers,
        peer_calls=peer_calls,
        leader=leader,
        leading=trio.CancelScope(),
        lookups=Lookups(store, ownership, leader, policies),
        hand_overs=hand_overs,
        balancer=balancer,
        load_reports=load_reports,
    )


def _make_ownership(
    on: Foundation,
    identity: Identity,
    registration: BrokerRecord,
    stored: StoredParts,
    probe: PeerProbe,
) -> Ownership:
    """Return the ownership, which loads and unloads the topics of its bundles."""

    async def is_dead(member: Member) -> bool:
        return (await probe.probe(member)).verdict is Verdict.DEAD

    async def why_not_reached(member: Member) -> str:
        return (await probe.probe(member)).why

    ownership = Ownership(
        on.store,
        identity,
        registration,
        stored.policies,
        stored.topics,
        formats=on.formats.readable,
        is_dead=is_dead,
        why_not_reached=why_not_reached,
        log=on.log,
    )
    stored.topics.attach(
        owns=ownership.owns,
        may_load=ownership.may_load,
        wait_handed_over=ownership.wait_handed_over,
    )
    return ownership


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


# -- access


@dataclass(frozen=True, slots=True)
class AccessParts:
    """Authentication and authorization, with their record."""

    authentication: Authentication | None
    authorization: Authorization
    audit: Audit
    revocation: Revocation


def make_access_parts(on: Foundation, stored: StoredParts) -> AccessParts:
    config, clock, log = on.config, on.clock, on.log
    authorization = Authorization(on.store, stored.policies, config)
    return AccessParts(
        authentication=authentication_of(config, clock=clock, rng=on.rng, log=log),
        authorization=authorization,
        audit=Audit(
            config.audit_file,
            clock,
            log,
            bytes_max=config.audit_file_bytes_max,
            files_max=config.audit_files_max,
        ),
        revocation=Revocation(stored.topics, authorization, log),
    )


# -- administration


@dataclass(frozen=True, slots=True)
class AdminParts:
    """The operations of the admin REST, and the leader's work in the background."""

    operations: Operations
    sinks: SinkOperations
    attempts: StagingAttempts
    sink_sweep: SinkSweep
    orphans: OrphanRemoval


def make_admin_parts(
    on: Foundation,
    identity: Identity,
    stored: StoredParts,
    cluster: ClusterParts,
    access: AccessParts,
) -> AdminParts:
    config, log = on.config, on.log
    operations = _make_operations(on, identity, stored, cluster, access)
    sink_ledgers = SinkLedgers(on.client, lambda: on.ledgers.tree)
    sinks = Sinks(on.store, sink_ledgers, on.rng, stored.configs.default_quorums)
    stored.topics.sinks = sinks
    attempts = StagingAttempts(
        sink_ledgers,
        stored.configs.default_quorums,
        sinks.records.new_id,
        lambda: min(config.max_message_size, on.client.entry_bytes_max()),
        log,
    )
    of_sinks = SinkOperations(
        sinks,
        attempts,
        operations,
        stored.topics,
        lambda: on.formats.allows(SINKS),
        identity.http_url,
        identity.http_url_tls,
        by_role=config.authorization,
    )
    cleaner = StagingCleaner(sinks, on.clock)
    orphans = OrphanRemoval(
        on.ledgers,
        cluster.leads,
        _removal_of_others(SchemaOrphans(on.store, on.client, on.clock), cleaner),
        interval_s=config.orphan_interval_s,
        age_s=config.orphan_age_s,
        log=log,
    )
    sweep = SinkSweep(sinks, cleaner, of_sinks.sweep, cluster.leads, log)
    return AdminParts(operations, of_sinks, attempts, sweep, orphans)


def _make_operations(
    on: Foundation,
    identity: Identity,
    stored: StoredParts,
    cluster: ClusterParts,
    access: AccessParts,
) -> Operations:
    store, policies, topics = on.store, stored.policies, stored.topics
    ownership, hand_overs = cluster.ownership, cluster.hand_overs
    return Operations(
        cluster=on.config.cluster,
        partitions_max=on.config.partitions_max,
        replicas=ReplicaLimit(on.config.ensemble_max, frozenset(on.config.super_users)),
        store=store,
        tenancy=stored.tenancy,
        policies=policies,
        ownership=ownership,
        lookups=cluster.lookups,
        leader=cluster.leader,
        topics=topics,
        owned=OwnedTopics(topics, identity.broker_id, access.authorization),
        schemas=stored.schemas.registry,
        peer_calls=cluster.peer_calls,
        settings=shown_settings(on.config),
        bundles=BundleOperations(
            store,
            policies,
            ownership,
            topics,
            hand_overs,
            cluster.peer_calls,
            bundles_max=on.config.namespace_bundles_max,
        ),
        of_brokers=BrokerOperations(
            store,
            ownership,
            hand_overs,
            cluster.leader,
            cluster.load_reports,
            cluster.balancer,
            on.client.directory,
            topics=topics,
            turns=on.turns,
            stop_leading=cluster.leading.cancel,
            trust=None if access.authentication is None else access.authentication.trust,
        ),
    )


def _removal_of_others(schemas: SchemaOrphans, cleaner: StagingCleaner) -> RemoveOther:
    """Return the removal of orphans among the ledgers of schemas and sinks."""

    async def remove(ledger_id: int, stored: StoredMetadata, tree: str, age_ms: int) -> bool:
        if sink_ledger_of(stored.metadata.custom) is not None:
            return await cleaner.remove(ledger_id, stored, tree)
        return await schemas.remove(ledger_id, stored, tree, age_ms)

    return remove


# -- clients


@dataclass(frozen=True, slots=True)
class ClientParts:
    """The port for clients with what its handlers share, and the metrics."""

    context: BrokerContext
    port: ClientPort
    probe: PortProbe  # probes the broker's own service port
    metrics: BrokerMetrics


def make_client_parts(
    on: Foundation,
    identity: Identity,
    stored: StoredParts,
    cluster: ClusterParts,
    access: AccessParts,
    admin: AdminParts,
) -> ClientParts:
    config = on.config
    probed = on.ports.any
    probe = PortProbe(probed.host, probed.port, partial(greeting, cluster.token), why_not_served)
    context = _make_context(on, identity, stored, cluster, access, own_probes=probe.reserved)
    port = ClientPort(
        on.ports.plain,
        lambda stream, prove: serve_client(stream, context, prove),
        places=Places(
            config.connections_max,
            of_address_max=config.connections_per_address_max,
            of_role_max=config.connections_per_role_max,
        ),
        log=on.log,
        audit=access.audit,
        reserved=probe.reserved,
        tls_listener=on.ports.tls,
        tls=None if on.tls is None else on.tls.server,
        handshake_s=config.connect_timeout_s,
    )
    metrics = BrokerMetrics(
        config.cluster,
        stored.topics,
        cluster.ownership,
        port,
        on.arenas,
        context.request_counts,
        admin.orphans,
        on.ledgers,
        on.client.directory,
        cluster.balancer,
        cluster.load_reports,
        topics_max=config.metrics_topics_max,
        authentication=access.authentication,
        audit=access.audit,
    )
    return ClientParts(context, port, probe, metrics)


def _make_context(
    on: Foundation,
    identity: Identity,
    stored: StoredParts,
    cluster: ClusterParts,
    access: AccessParts,
    *,
    own_probes: Container[str],
) -> BrokerContext:
    return BrokerContext(
        config=on.config,
        clock=on.clock,
        arenas=on.arenas,
        flusher=on.flusher,
        topics=stored.topics,
        lookups=cluster.lookups,
        policies=stored.policies,
        topic_lists=TopicLists(on.store, on.log),
        schemas=stored.schemas,
        ledgers_url=f"zk://{on.config.zookeeper}{on.config.ledgers_root}",
        server_version=server_version(identity.incarnation),
        own_urls=identity.service_urls,
        log=on.log,
        stored_bytes_max=on.client.entry_bytes_max,
        limits=on.limits.connections,
        turns=on.turns,
        authentication=access.authentication,
        authorization=access.authorization,
        audit=access.audit,
        own_probes=own_probes,
    )
