"""The admin REST API over real HTTP, of two brokers that share a store; the topics are fakes."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.admin.app import create_app
from daybook.broker.admin.broker_operations import BrokerOperations
from daybook.broker.admin.bundle_operations import BundleOperations
from daybook.broker.admin.message_ids import MessageIdData, Start
from daybook.broker.admin.operations import Operations
from daybook.broker.admin.owned_topics import OwnedTopics
from daybook.broker.admin.replica_limit import ReplicaLimit
from daybook.broker.errors import (
    BrokerError,
    ConflictError,
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.limits import ConnectionLimits
from daybook.broker.namespaces.records import BrokerRecord
from daybook.broker.ownership.balancer import Balancer
from daybook.broker.ownership.hand_over import HandOvers
from daybook.broker.ownership.load_report import LoadReports
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.broker.service.request_turns import ClientTurns
from daybook.clients.python.http import http_request
from daybook.wire.http import HttpPort
from daybook.wire.logging import silent_log
from daybook.wire.tcp import TcpNetwork
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import Cluster, ControlPlane, open_cluster

NAMESPACES = "/admin/v2/namespaces"
TOPICS = "/admin/v2/persistent/public/default"


class MadeUpTopics(OwnedTopics):
    """Topics without data; `shared` is the state that all brokers see."""

    def __init__(self, shared: set[str], broker: ControlPlane) -> None:
        super().__init__(broker.topics, broker.identity.broker_id, cast("Any", None))
        self.shared = shared
        self.done: list[tuple[str, ...]] = []
        self.subscribed: dict[str, list[str]] = {}

    async def stored(self, namespace: str) -> list[TopicName]:
        names = [TopicName.parse(name) for name in sorted(self.shared)]
        return [name for name in names if name.namespace == namespace]

    async def exists(self, topic: TopicName) -> bool:
        return topic.full in self.shared

    async def create(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        self.shared.add(topic.full)

    async def delete(self, topic: TopicName, *, force: bool) -> None:
        self._check_there(topic)
        if "busy" in topic.local and not force:
            raise PreconditionError(f"{topic} is in use")
        self.done.append(("delete", topic.full))
        self.shared.discard(topic.full)

    async def unload(self, topic: TopicName) -> None:
        self._check_there(topic)
        self.done.append(("unload", topic.full))

    async def stats(self, topic: TopicName) -> dict[str, object]:
        self._check_there(topic)
        one = {"msgBacklog": 2, "type": "Shared", "consumers": [{"name": "c"}]}
        return {"msgInCounter": 10, "averageMsgSize": 4.0, "subscriptions": {"s": one}}

    async def internal_stats(self, topic: TopicName) -> dict[str, object]:
        self._check_there(topic)
        return {"state": "LedgerOpened"}

    async def last_message_id(self, topic: TopicName) -> MessageIdData:
        self._check_there(topic)
        return MessageIdData(3, 4, topic.partition)

    async def message_id_at(self, topic: TopicName, publish_time_ms: int) -> MessageIdData:
        return MessageIdData(3, publish_time_ms)

    async def terminate(self, topic: TopicName) -> MessageIdData:
        return MessageIdData(3, 4)

    async def subscriptions(self, topic: TopicName) -> list[str]:
        self._check_there(topic)
        return self.subscribed.get(topic.full, [])

    async def create_subscription(self, topic: TopicName, name: str, start: Start) -> None:
        names = self.subscribed.setdefault(topic.full, [])
        if name in names:
            raise ConflictError(f"{name} exists already")
        names.append(name)
        self.done.append(("subscribe", name, str(start.ledger_id)))

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool) -> None:
        if name not in self.subscribed.get(topic.full, []):
            raise NotFoundError(f"no subscription {name}")
        self.subscribed[topic.full].remove(name)

    async def skip_all(self, topic: TopicName, name: str) -> None:
        self.done.append(("skip_all", topic.full, name))

    async def reset_to(self, topic: TopicName, name: str, start: Start) -> None:
        self.done.append(("reset", name, str(start.entry_id)))

    async def reset_to_time(self, topic: TopicName, name: str, publish_time_ms: int) -> None:
        self.done.append(("reset", name, str(publish_time_ms)))

    async def compact(self, topic: TopicName) -> None:
        self._check_there(topic)
        if "busy" in topic.local:
            raise ConflictError(f"a compaction of {topic} is running already")
        self.done.append(("compact", topic.full))

    async def compaction(self, topic: TopicName) -> dict[str, object]:
        self._check_there(topic)
        started = ("compact", topic.full) in self.done
        return {"status": "RUNNING" if started else "NOT_RUN", "lastError": ""}

    def _check_there(self, topic: TopicName) -> None:
        if topic.full not in self.shared and topic.partition < 0:
            raise NotFoundError(f"the topic {topic} does not exist")


class Admin:
    """One broker's REST API, and a client of it that follows no redirects."""

    def __init__(self, broker: ControlPlane, topics: MadeUpTopics, url: str) -> None:
        self.broker = broker
        self.topics = topics
        self.url = url
        self.calls = PeerCalls(PeerNetwork(TcpNetwork()))
        self.why_not_ready = ""  # the reason that its service port would give

    async def __call__(self, method: str, path: str, body: object = None, **query: str) -> object:
        return await self.calls.call(self.url, method, path, query=query, body=body)


def balancer(broker: ControlPlane, hand_overs: HandOvers) -> Balancer:
    return Balancer(
        broker.session,
        hand_overs,
        broker.leader,
        PeerCalls(PeerNetwork(TcpNetwork())),
        clock=broker.cluster.clock,
        interval_s=60,
        log=silent_log(),
    )


def load_reports(broker: ControlPlane) -> LoadReports:
    return LoadReports(
        broker.session,
        BrokerRecord(broker.identity.service_url, broker.identity.http_url),
        broker.ownership,
        broker.policies,
        broker.topics,
        clock=broker.cluster.clock,
        log=silent_log(),
    )


async def serve(cluster: Cluster, host: str, shared: set[str]) -> Admin:
    port = HttpPort("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port.port}"
    broker = await cluster.start(host, http_url=url)
    hand_overs = HandOvers(
        broker.session,
        broker.ownership,
        broker.peers,
        PeerCalls(PeerNetwork(TcpNetwork())),
        silent_log(),
    )
    owned = MadeUpTopics(shared, broker)
    operations = Operations(
        cluster="test",
        partitions_max=16,
        replicas=ReplicaLimit(5, ["root"]),
        store=broker.session,
        tenancy=broker.tenancy,
        policies=broker.policies,
        ownership=broker.ownership,
        lookups=broker.lookups,
        leader=broker.leader,
        topics=broker.topics,
        owned=owned,
        schemas=broker.schemas,
        peer_calls=PeerCalls(PeerNetwork(TcpNetwork())),
        bundles=BundleOperations(
            broker.session,
            broker.policies,
            broker.ownership,
            broker.topics,
            hand_overs,
            PeerCalls(PeerNetwork(TcpNetwork())),
            bundles_max=20,
        ),
        of_brokers=BrokerOperations(
            broker.session,
            broker.ownership,
            hand_overs,
            broker.leader,
            load_reports(broker),
            balancer(broker, hand_overs),
            broker.directory,
            topics=broker.topics,
            turns=ClientTurns(ConnectionLimits()),
            stop_leading=broker.leader_scope.cancel,
        ),
    )
    admin = Admin(broker, owned, url)

    async def why_not_ready() -> str:
        await trio.lowlevel.checkpoint()
        return admin.why_not_ready

    async def metrics() -> bytes:
        await trio.lowlevel.checkpoint()
        return b"up 1\n"

    app = create_app(
        operations,
        metrics,
        why_not_ready=why_not_ready,
        body_bytes_max=4000,
        log=silent_log(),
    )
    await cluster.nursery.start(port.serve, app)
    return admin


@asynccontextmanager
async def two_brokers() -> AsyncGenerator[tuple[Admin, Admin]]:
    async with open_cluster() as cluster:
        shared: set[str] = set()
        yield await serve(cluster, "one", shared), await serve(cluster, "two", shared)


async def owner_and_other(admins: tuple[Admin, Admin], topic: str) -> tuple[Admin, Admin]:
    name = TopicName.parse(topic)
    await admins[0].broker.lookups.lookup(name, authoritative=True)
    return admins


async def test_clusters_tenants_and_namespaces() -> None:
    async with two_brokers() as (one, two):
        assert await one("GET", "/admin/v2/clusters") == ["test"]
        await one("PUT", "/admin/v2/tenants/t", {"allowedClusters": ["test"]})
        assert await two("GET", "/admin/v2/tenants") == ["public", "t"]
        await one("PUT", f"{NAMESPACES}/t/ns")
        await one("PUT", f"{NAMESPACES}/t/eight", {"bundles": {"numBundles": 8}})
        assert await two("GET", f"{NAMESPACES}/t") == ["t/eight", "t/ns"]
        bundles = await two("GET", f"{NAMESPACES}/t/eight/bundles")
        assert isinstance(bundles, dict)
        assert bundles["numBundles"] == 8
        for path, error in (
            (f"{NAMESPACES}/t/ns", ConflictError),
            (f"{NAMESPACES}/none/ns", NotFoundError),
            (f"{NAMESPACES}/t/a%20b", PreconditionError),
        ):
            with pytest.raises(error):
                await one("PUT", path)
        await one("DELETE", f"{NAMESPACES}/t/ns")
        with pytest.raises(NotFoundError):
            await one("GET", f"{NAMESPACES}/t/ns")


async def test_retention_is_set_and_removed() -> None:
    async with two_brokers() as (one, two):
        path = f"{NAMESPACES}/public/default/retention"
        default = {"retentionTimeInMinutes": 10080, "retentionSizeInMB": -1}
        assert await one("GET", path) == default
        wanted = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}
        await one("POST", path, wanted)
        assert await two("GET", path) == wanted
        await two("DELETE", path)
        assert await one("GET", path) == default
        with pytest.raises(PreconditionError):
            await one("POST", path, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 20})


# `pulsar-admin namespaces create` of Pulsar 4.x sends this: all existing policies.
WHOLE_POLICIES: dict[str, object] = {
    "auth_policies": {
        "namespace_auth": {},
        "destination_auth": {},
        "subscription_auth_roles": {},
    },
    "replication_clusters": ["test"],
    "allowed_clusters": [],
    "bundles": {"boundaries": None, "numBundles": 2},
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "persistence": None,
    "deduplicationEnabled": None,
    "autoTopicCreationOverride": None,
    "autoSubscriptionCreationOverride": None,
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "message_ttl_in_seconds": None,
    "subscription_expiration_time_minutes": None,
    "retention_policies": None,
    "deleted": False,
    "encryption_required": False,
    "delayed_delivery_policies": None,
    "inactive_topic_policies": None,
    "subscription_auth_mode": "None",
    "max_producers_per_topic": None,
    "max_consumers_per_topic": None,
    "max_consumers_per_subscription": None,
    "max_unacked_messages_per_consumer": None,
    "max_unacked_messages_per_subscription": None,
    "max_subscriptions_per_topic": None,
    "compaction_threshold": None,
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "offload_deletion_lag_ms": None,
    "max_topics_per_namespace": None,
    "schema_auto_update_compatibility_strategy": None,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": None,
    "schema_validation_enforced": False,
    "offload_policies": None,
    "deduplicationSnapshotIntervalSeconds": None,
    "subscription_types_enabled": [],
    "properties": {},
    "resource_group_name": None,
    "migrated": False,
    "dispatcherPauseOnAckStatePersistentEnabled": None,
    "entryFilters": None,
    "antiAffinityGroup": "",  # sent by Go's tools and older ones of Pulsar
}


async def test_a_namespace_is_made_of_the_policies_that_pulsars_tools_send() -> None:
    async with two_brokers() as (one, two):
        await one("PUT", f"{NAMESPACES}/public/whole", WHOLE_POLICIES)
        found = await two("GET", f"{NAMESPACES}/public/whole")
        assert isinstance(found, dict)
        assert found["bundles"]["numBundles"] == 2


@pytest.mark.parametrize(
    ("policy", "value"),
    [
        ("message_ttl_in_seconds", -5),
        ("schema_compatibility_strategy", "SOMETIMES"),
        ("offload_threshold", 0),
        ("encryption_required", True),
        ("subscription_auth_mode", "Prefix"),
        ("auth_policies", {"namespace_auth": {"role": ["produce"]}}),
        ("max_producers_per_topic", True),
        ("properties", {"a": 1}),
        ("nonsense", 1),
        ("allowed_clusters", ["elsewhere"]),
    ],
)
async def test_a_policy_that_asks_for_what_is_not_done_is_refused_by_name(
    policy: str, value: object
) -> None:
    async with two_brokers() as (one, _):
        with pytest.raises(BrokerError, match=policy):
            await one("PUT", f"{NAMESPACES}/public/whole", {**WHOLE_POLICIES, policy: value})
        with pytest.raises(NotFoundError):
            await one("GET", f"{NAMESPACES}/public/whole")


async def test_the_default_retention_is_written_into_a_namespace() -> None:
    """Without it, a Pulsar broker that takes over would at once delete acknowledged messages."""
    async with two_brokers() as (one, _):
        default = {"retentionTimeInMinutes": 10080, "retentionSizeInMB": -1}
        await one("PUT", f"{NAMESPACES}/public/fresh")
        for namespace in ("public/default", "public/fresh"):
            found = await one("GET", f"{NAMESPACES}/{namespace}")
            assert isinstance(found, dict)
            assert found["retention_policies"] == default
        wanted = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}
        await one("PUT", f"{NAMESPACES}/public/said", {"retention_policies": wanted})
        await one("POST", f"{NAMESPACES}/public/fresh/retention", wanted)
        for name in ("said", "fresh"):
            found = await one("GET", f"{NAMESPACES}/public/{name}")
            assert isinstance(found, dict)
            assert found["retention_policies"] == wanted
        await one("DELETE", f"{NAMESPACES}/public/said/retention")
        found = await one("GET", f"{NAMESPACES}/public/said")
        assert isinstance(found, dict)
        assert found["retention_policies"] == default


async def test_a_topic_is_served_by_its_owner_only() -> None:
    async with two_brokers() as admins:
        one, two = await owner_and_other(admins, "orders")
        with pytest.raises(NotOwnerError):
            await two("PUT", f"{TOPICS}/orders")
        await one("PUT", f"{TOPICS}/orders")
        with pytest.raises(ConflictError):
            await one("PUT", f"{TOPICS}/orders")
        assert await two("GET", TOPICS) == ["persistent://public/default/orders"]
        await one("GET", f"{TOPICS}/orders/stats", getPreciseBacklog="true")
        with pytest.raises(NotOwnerError):
            await two("GET", f"{TOPICS}/orders/stats")
        await one("DELETE", f"{TOPICS}/orders")
        with pytest.raises(NotFoundError):
            await one("GET", f"{TOPICS}/orders/stats")


async def test_a_redirect_names_the_same_path_on_the_owner() -> None:
    async with two_brokers() as admins:
        one, two = await owner_and_other(admins, "a b%")
        stream = await trio.open_tcp_stream("127.0.0.1", int(two.url.rpartition(":")[2]))
        await stream.send_all(
            f"GET {TOPICS}/a+b%25/stats?x=1 HTTP/1.1\r\n"
            "Host: x\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b""
        async for data in stream:
            answer += data
        assert answer.startswith(b"HTTP/1.1 307")
        location = f"{one.url}{TOPICS}/a+b%25/stats?x=1&authoritative=true"
        assert f"location: {location}\r\n".encode() in answer
        assert b"ask that one, as the header Location says (curl -L does)" in answer


async def test_a_path_that_is_not_offered_is_named() -> None:
    """The reason was "Not Found" before, as if an object were missing."""
    async with two_brokers() as (one, _):
        with pytest.raises(NotFoundError, match="does not offer GET /admin/v2/bookies/all: check"):
            await one("GET", "/admin/v2/bookies/all")


async def test_a_partitioned_topic_is_asked_on_all_its_owners() -> None:
    async with two_brokers() as (one, two):
        await one("PUT", f"{TOPICS}/wide/partitions", 8)
        for error, body in ((ConflictError, 8), (PreconditionError, 0), (PreconditionError, 17)):
            with pytest.raises(error):
                await one("PUT", f"{TOPICS}/{'wide' if body == 8 else 'other'}/partitions", body)
        assert await two("GET", f"{TOPICS}/partitioned") == ["persistent://public/default/wide"]
        names = await two("GET", TOPICS)
        assert isinstance(names, list)
        assert len(names) == 8
        await one("PUT", f"{TOPICS}/wide/subscription/s%2F1", {"ledgerId": -1, "entryId": -1})
        assert len(one.topics.subscribed) + len(two.topics.subscribed) == 8
        assert one.topics.subscribed
        assert two.topics.subscribed
        assert await two("GET", f"{TOPICS}/wide/subscriptions") == ["s/1"]
        total = await two("GET", f"{TOPICS}/wide/partitioned-stats")
        assert isinstance(total, dict)
        assert total["msgInCounter"] == 80
        assert total["averageMsgSize"] == 4.0
        assert total["subscriptions"]["s"]["msgBacklog"] == 16
        assert len(total["subscriptions"]["s"]["consumers"]) == 8
        assert len(total["partitions"]) == 8
        await one("POST", f"{TOPICS}/wide/partitions", 9)
        with pytest.raises(PreconditionError):
            await one("POST", f"{TOPICS}/wide/partitions", 4)
        with pytest.raises(NotAllowedError):
            await one("GET", f"{TOPICS}/wide/stats")
        await two("PUT", f"{TOPICS}/wide/unload")
        await two("DELETE", f"{TOPICS}/wide/partitions", force="true")
        deleted = [d for a in (one, two) for d in a.topics.done if d[0] == "delete"]
        assert len(deleted) == 9
        with pytest.raises(NotFoundError):
            await one("GET", f"{TOPICS}/wide/partitions")


async def test_a_topic_without_partitions_says_that_it_gets_none() -> None:
    async with two_brokers() as admins:
        one, _ = await owner_and_other(admins, "plain")
        one.topics.shared.add("persistent://public/default/plain")
        with pytest.raises(NotFoundError, match="of this name has no partitions"):
            await one("POST", f"{TOPICS}/plain/partitions", 4)
        with pytest.raises(NotFoundError, match=r"nothing does not exist$"):
            await one("POST", f"{TOPICS}/nothing/partitions", 4)


async def test_partitions_in_use_keep_their_topic() -> None:
    async with two_brokers() as (one, two):
        await one("PUT", f"{TOPICS}/busy/partitions", 4)
        with pytest.raises(PreconditionError, match="no partition was deleted"):
            await two("DELETE", f"{TOPICS}/busy/partitions")
        assert not [d for a in (one, two) for d in a.topics.done if d[0] == "delete"]
        metadata = await one("GET", f"{TOPICS}/busy/partitions")
        assert isinstance(metadata, dict)
        assert metadata["partitions"] == 4
        await two("DELETE", f"{TOPICS}/busy/partitions", force="true")


async def test_subscriptions() -> None:
    async with two_brokers() as admins:
        one, _ = await owner_and_other(admins, "orders")
        await one("PUT", f"{TOPICS}/orders")
        await one("PUT", f"{TOPICS}/orders/subscription/s")
        with pytest.raises(ConflictError):
            await one("PUT", f"{TOPICS}/orders/subscription/s")
        await one("POST", f"{TOPICS}/orders/subscription/s/skip_all")
        await one("POST", f"{TOPICS}/orders/subscription/s/resetcursor/1234")
        await one(
            "POST", f"{TOPICS}/orders/subscription/s/resetcursor", {"ledgerId": 3, "entryId": 4}
        )
        assert [done[-1] for done in one.topics.done] == [str((1 << 63) - 1), "s", "1234", "4"]
        await one("DELETE", f"{TOPICS}/orders/subscription/s")
        with pytest.raises(NotFoundError):
            await one("DELETE", f"{TOPICS}/orders/subscription/s")
        last = await one("GET", f"{TOPICS}/orders/lastMessageId")
        assert last == {"ledgerId": 3, "entryId": 4, "partitionIndex": -1, "batchIndex": -1}


async def test_a_bundle_is_unloaded_where_it_is() -> None:
    async with two_brokers() as admins:
        one, two = await owner_and_other(admins, "orders")
        (bundle,) = one.broker.ownership.owned
        range_ = bundle.rpartition("/")[2]
        with pytest.raises(NotOwnerError):
            await two("PUT", f"{NAMESPACES}/public/default/{range_}/unload")
        await two("PUT", f"{NAMESPACES}/public/default/unload")
        assert one.broker.topics.closed == [bundle]
        assert one.broker.ownership.owned == []
        with pytest.raises(NotFoundError):
            await one("PUT", f"{NAMESPACES}/public/default/0x0_0x1/unload")


async def test_a_namespace_is_unloaded_to_the_broker_that_is_named() -> None:
    async with two_brokers() as admins:
        one, two = await owner_and_other(admins, "orders")
        (bundle,) = one.broker.ownership.owned
        unload = f"{NAMESPACES}/public/default/unload"
        for admin in (one, two):
            for path in (unload, unload.replace("default/", f"default/{bundle.split('/')[2]}/")):
                with pytest.raises(PreconditionError, match="name another live broker"):
                    await admin("PUT", path, destinationBroker="evil.example:80")
        await one("PUT", f"{NAMESPACES}/public/idle")  # No broker owns a bundle of it.
        with pytest.raises(PreconditionError, match="name another live broker"):
            await one(
                "PUT", f"{NAMESPACES}/public/idle/unload", destinationBroker="evil.example:80"
            )
        assert one.broker.ownership.owned == [bundle]
        here, there = (each.broker.identity.broker_id for each in (one, two))
        await two("PUT", unload, destinationBroker=here)
        assert one.broker.topics.closed == []
        await two("PUT", unload, destinationBroker=there)
        assert two.broker.ownership.owned == [bundle]


async def test_a_namespace_with_topics_is_deleted_only_by_force() -> None:
    async with two_brokers() as (one, two):
        await one("PUT", f"{NAMESPACES}/public/doomed")
        await two("PUT", "/admin/v2/persistent/public/doomed/wide/partitions", 4)
        one.topics.shared.add("persistent://public/doomed/plain")
        with pytest.raises(ConflictError):
            await one("DELETE", f"{NAMESPACES}/public/doomed")
        assert not (await two.broker.policies.namespace("public/doomed")).deleted
        await one("DELETE", f"{NAMESPACES}/public/doomed", force="true")
        assert one.topics.shared == set()
        with pytest.raises(NotFoundError):
            await two("GET", f"{NAMESPACES}/public/doomed")


async def test_lookup_brokers_health_and_metrics() -> None:
    async with two_brokers() as admins:
        one, two = await owner_and_other(admins, "orders")
        for admin in admins:
            found = await admin("GET", "/lookup/v2/topic/persistent/public/default/orders")
            assert isinstance(found, dict)
            assert found["brokerUrl"] == one.broker.identity.service_url
            assert found["brokerUrlTls"] == ""
        assert await one("GET", "/admin/v2/brokers/test") == ["one:8080", "two:8080"]
        leader = await two("GET", "/admin/v2/brokers/leaderBroker")
        assert isinstance(leader, dict)
        assert leader["brokerId"] == "one:8080"
        owned = await two("GET", "/admin/v2/brokers/test/one:8080/ownedNamespaces")
        assert isinstance(owned, dict)
        assert len(owned) == 1
        assert await text(one, "/admin/v2/brokers/health") == "ok"
        assert await text(one, "/readyz") == "ok"
        assert await text(one, "/metrics") == "up 1\n"
        one.why_not_ready = "no answer"
        assert "no answer" in await text(one, "/readyz")
        assert await text(one, "/healthz") == "ok"
        one.why_not_ready = ""
        one.broker.session.suspend()
        assert "no contact with the metadata store" in await text(one, "/readyz")
        assert await text(one, "/healthz") == "ok"


async def test_a_refusal_says_if_nothing_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: object, **__: object) -> None:
        raise UnavailableError("the metadata store has not answered")

    async with two_brokers() as (one, _):
        url = one.url.rpartition("/")[2]
        host, port = url.split(":")

        async def applied(method: str, path: str) -> object:
            found = await http_request(
                TcpNetwork(), host, int(port), method, path, None, timeout_s=60
            )
            assert found.status == 503, found
            return json.loads(found.body).get("applied")

        await one("PUT", f"{TOPICS}/t", authoritative="true")  # This broker owns a bundle.
        monkeypatch.setattr(one.topics, "delete", lost)
        monkeypatch.setattr(one.topics, "stored", lost)
        assert await applied("DELETE", f"{TOPICS}/t") is None, "it may have been deleted"
        assert await applied("GET", TOPICS) is False, "a question changes nothing"
        one.broker.session.suspend()
        assert await applied("PUT", f"{TOPICS}/u") is False, "its owner is not known"
        assert await applied("DELETE", f"{TOPICS}/u") is False


@pytest.mark.parametrize(
    ("method", "path", "body", "error"),
    [
        ("GET", "/admin/v2/nothing", None, NotFoundError),
        ("GET", "/nothing", None, NotFoundError),
        ("PATCH", "/admin/v2/clusters", None, NotAllowedError),
        ("POST", f"{NAMESPACES}/public/default/retention", "no", BrokerError),
        ("POST", f"{NAMESPACES}/public/default/retention", {"a": "x" * 5000}, BrokerError),
        ("GET", "/admin/v2/persistent/public/default/%FF/stats", None, PreconditionError),
        ("GET", "/admin/v2/persistent/pub%2Flic/default/x/stats", None, PreconditionError),
        ("GET", f"{TOPICS}/x/messageid/soon", None, PreconditionError),
        ("DELETE", f"{TOPICS}/x?force=maybe", None, PreconditionError),
    ],
)
async def test_requests_that_make_no_sense(
    method: str, path: str, body: object, error: type[BrokerError]
) -> None:
    async with two_brokers() as admins:
        one, _ = await owner_and_other(admins, "x")
        with pytest.raises(error):
            await one(method, path, body)
        assert await one("GET", "/admin/v2/clusters") == ["test"]


async def test_a_broker_that_is_gone_is_unavailable() -> None:
    calls = PeerCalls(PeerNetwork(TcpNetwork()))
    with HttpPort("127.0.0.1", 0) as taken:
        port = taken.port
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            HttpPort("127.0.0.1", port)
    with pytest.raises(UnavailableError):
        await calls.call(f"http://127.0.0.1:{port}", "GET", "/")


async def text(admin: Admin, path: str) -> str:
    stream = await trio.open_tcp_stream("127.0.0.1", int(admin.url.rpartition(":")[2]))
    await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = b""
    async for data in stream:
        answer += data
    return answer.partition(b"\r\n\r\n")[2].decode()


async def test_the_leader_evens_out_what_brokers_own(autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = 0.005  # Bytes between sockets may be on their way.
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        for index in range(100):
            await one.lookups.lookup(TopicName.parse(f"topic-{index}"), authoritative=True)
        assert len(one.ownership.owned) == 16
        two = await cluster.start("two")
        for broker in (one, two):
            hand_overs = HandOvers(
                broker.session,
                broker.ownership,
                broker.peers,
                PeerCalls(PeerNetwork(TcpNetwork())),
                silent_log(),
            )
            cluster.nursery.start_soon(balancer(broker, hand_overs).run)
        await trio.sleep(61)
        assert len(one.ownership.owned) == 16  # A new broker has just joined.
        for minutes in range(1, 20):
            await trio.sleep(60)
            for index in range(100):
                await cluster.lookup([one, two], TopicName.parse(f"topic-{index}"))
            if minutes == 1:
                assert len(two.ownership.owned) == 1
        assert len(one.ownership.owned) == len(two.ownership.owned) == 8
        assert len(one.topics.closed) == 8


GARBAGE = [
    b"\x00\xff" * 2000,
    b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 70_000 + b"\r\n\r\n",
    b"GET " + b"/x" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /admin/v2/clusters/c HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /admin/v2/tenants/c HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{",
    b"PUT /admin/v2/tenants/c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 200,
    b"GET /lookup/v2/topic/persistent/a/b/%00%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
]


async def test_garbage_on_the_http_port_harms_nobody() -> None:
    async with two_brokers() as (one, _):
        port = int(one.url.rpartition(":")[2])
        for bytes_ in GARBAGE:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            with suppress(trio.BrokenResourceError):
                await stream.send_all(bytes_)
                await stream.send_eof()
                with trio.move_on_after(0.5):
                    while await stream.receive_some():
                        pass
            await stream.aclose()
            assert await one("GET", "/admin/v2/clusters") == ["test"]


async def test_a_flood_of_http_connections_harms_nobody() -> None:
    async with two_brokers() as (one, _):
        port = int(one.url.rpartition(":")[2])
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(300)]
        for stream in streams[::2]:
            await stream.send_all(b"GET /admin/v2/clus")
        assert await one("GET", "/admin/v2/clusters") == ["test"]
        for stream in streams:
            await stream.aclose()


async def test_deduplication_of_a_namespace_and_of_a_topic() -> None:
    """The policy of a topic overrides that of its namespace; both are gone when removed."""
    async with two_brokers() as (one, two):
        namespace = f"{NAMESPACES}/public/default/deduplication"
        topic = f"{TOPICS}/invoices"
        await one("PUT", topic)
        assert await one("GET", namespace) is None
        await one("POST", namespace, True)
        assert await two("GET", namespace) is True
        own = f"{topic}/deduplicationEnabled"
        assert await two("GET", own) is None
        assert await two("GET", f"{own}?applied=true") is True
        await two("POST", own, False)
        assert await one("GET", own) is False
        assert await one("GET", f"{own}?applied=true") is False
        await one("DELETE", namespace)
        await one("DELETE", own)
        assert await two("GET", f"{own}?applied=true") is False
        await one("POST", own, True)
        await one("DELETE", topic)
        await one("PUT", topic)
        assert await one("GET", own) is None, "the policies of a topic are deleted with it"
        with pytest.raises(NotFoundError):
            await one("POST", f"{TOPICS}/nothing/deduplicationEnabled", True)


async def test_the_compaction_of_a_topic_is_started_and_asked_for() -> None:
    async with two_brokers() as (one, two):
        await one("PUT", f"{TOPICS}/invoices")
        path = f"{TOPICS}/invoices/compaction"
        state = {"status": "NOT_RUN", "lastError": "", "horizon": None, "ledgerId": -1}
        assert await one("GET", path) == {**state, "progress": None}
        with pytest.raises(NotOwnerError):
            await two("PUT", path)
        await one("PUT", path)
        found = await one("GET", path)
        assert isinstance(found, dict)
        assert found["status"] == "RUNNING"
        await one("PUT", f"{TOPICS}/busy/partitions", 2)
        with pytest.raises(ConflictError):
            await one("PUT", f"{TOPICS}/busy/compaction")
        with pytest.raises(NotFoundError):
            await one("PUT", f"{TOPICS}/invoices-2/compaction")


async def test_all_partitions_are_compacted() -> None:
    async with two_brokers() as (one, two):
        await one("PUT", f"{TOPICS}/parts/partitions", 3)
        await one("PUT", f"{TOPICS}/parts/compaction")
        done = sorted([*one.topics.done, *two.topics.done])
        name = "persistent://public/default/parts-partition-"
        assert done == [("compact", f"{name}{index}") for index in range(3)]
        found = await two("GET", f"{TOPICS}/parts/compaction")
        assert isinstance(found, dict)
        assert found["status"] == "RUNNING"


async def test_a_new_namespace_may_be_deduplicated() -> None:
    async with two_brokers() as (one, two):
        await one("PUT", f"{NAMESPACES}/public/once", {"deduplicationEnabled": True})
        assert await two("GET", f"{NAMESPACES}/public/once/deduplication") is True
        policies = await two("GET", f"{NAMESPACES}/public/once")
        assert isinstance(policies, dict)
        assert policies["deduplicationEnabled"] is True
