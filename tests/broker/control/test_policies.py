"""Policies of namespaces and topics: REST, inheritance, caching, and values that are wrong."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.admin import policies as rest
from daybook.broker.admin.replica_limit import ReplicaLimit
from daybook.broker.config import parse
from daybook.broker.errors import (
    NotAllowedError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.namespaces import policy_table as table
from daybook.broker.namespaces.policy_table import EffectivePolicies, Layer, OnInvalid, defaults
from daybook.broker.namespaces.policy_types import DispatchRate, Retention
from daybook.broker.namespaces.records import (
    PARTITIONED_TOPICS,
    policies_path,
    topic_policies_path,
)
from daybook.broker.security.identity import CALLER, Caller, Identity
from daybook.wire.metadata.memory import Request
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import ControlPlane, open_cluster
from tests.broker.control.test_admin import (
    NAMESPACES,
    TOPICS,
    WHOLE_POLICIES,
    owner_and_other,
    two_brokers,
)

NAMESPACE = f"{NAMESPACES}/public/default"
TOPIC = TopicName.parse("public/default/t")
BELOW = defaults(parse({"cluster": "test"}))

# A valid value of each policy, another one, and one that is not valid.
_DISPATCH_RATES: tuple[object, object, object] = (
    {
        "dispatchThrottlingRateInMsg": 5,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    },
    {
        "dispatchThrottlingRateInMsg": 0,
        "dispatchThrottlingRateInByte": 1 << 40,
        "relativeToPublishRate": True,
        "ratePeriodInSecond": 60,
    },
    {"dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": 0},
)
VALUES: dict[str, tuple[object, object, object]] = {
    "retention": (
        {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2},
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": 2},
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 2},
    ),
    "persistence": (
        {
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 2,
            "bookkeeperAckQuorum": 2,
            "managedLedgerMaxMarkDeleteRate": 0.0,
        },
        {
            "bookkeeperEnsemble": 1,
            "bookkeeperWriteQuorum": 1,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 1.0,
        },
        {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2},
    ),
    "subscription_types": (["Failover", "Shared"], ["Exclusive"], ["Sometimes"]),
    "delayed_delivery": (
        {"tickTime": 1000, "active": False, "maxDeliveryDelayInMillis": 0},
        {"tickTime": 1, "active": True, "maxDeliveryDelayInMillis": 5},
        {"tickTime": 0, "active": True},
    ),
    "auto_topic_creation": (
        {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 3,
        },
        {
            "allowAutoTopicCreation": False,
            "topicType": None,
            "defaultNumPartitions": None,
        },
        {"allowAutoTopicCreation": True, "topicType": "partitioned"},
    ),
    "auto_subscription_creation": (
        {"allowAutoSubscriptionCreation": False},
        {"allowAutoSubscriptionCreation": True},
        {"allowAutoSubscriptionCreation": 5},
    ),
    "publish_rate": (
        {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
        {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 7},
        {"publishThrottlingRateInMsg": "many"},
    ),
    "dispatch_rate": _DISPATCH_RATES,
    "subscription_dispatch_rate": _DISPATCH_RATES,
    "subscribe_rate": (
        {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30},
        {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 1},
        {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 0},
    ),
    "of_subscriptions": (
        {"s": {"dispatchRate": _DISPATCH_RATES[0]}},
        {"s": {"dispatchRate": _DISPATCH_RATES[1]}, "other": {"dispatchRate": None}},
        {"s": {"dispatchRate": 5}},
    ),
    "size_quota": (
        {"limitSize": 5, "limitTime": -1, "policy": "producer_exception"},
        {"limitSize": 7, "limitTime": -1, "policy": "producer_request_hold"},
        {"limitSize": 5, "policy": "sometimes"},
    ),
    "age_quota": (
        {"limitSize": -1, "limitTime": 5, "policy": "consumer_backlog_eviction"},
        {"limitSize": -1, "limitTime": 7, "policy": "producer_request_hold"},
        {"limitTime": "long"},
    ),
    "inactive_topics": (
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        },
        {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 5,
            "deleteWhileInactive": True,
        },
        {"maxInactiveDurationSeconds": 0},
    ),
    "schema_compatibility": ("FULL", "BACKWARD", "SOMETIMES"),
    "schema_auto_update": ("Full", "Backward", "FULL"),
}
_BOOLEANS = ("deduplication", "schema_auto_update_allowed", "schema_validation_enforced")


def values_of(policy: table.Policy) -> tuple[object, object, object]:
    if policy.name in VALUES:
        return VALUES[policy.name]
    return (True, False, "perhaps") if policy.name in _BOOLEANS else (5, 0, -7)


def test_the_table_has_a_row_for_each_policy() -> None:
    assert [p.name for p in table.TABLE] == [f.name for f in fields(EffectivePolicies)]
    for paths, level in ((rest.NAMESPACE, "namespace"), (rest.TOPIC, "topic")):
        of_level = {p.name for p in table.TABLE if getattr(p, level) is not None}
        with_path = {each.policy.name for each in paths.values()}
        others = {p.name for p in table.QUOTAS.values()}
        if level == "topic":
            others.add(table.OF_SUBSCRIPTIONS.name)  # It has paths for single subscriptions.
        assert with_path | others == of_level


@pytest.mark.parametrize("path", rest.NAMESPACE)
async def test_a_policy_of_a_namespace_is_set_shown_and_removed(path: str) -> None:
    async with two_brokers() as (one, two):
        each = rest.NAMESPACE[path]
        url = f"{NAMESPACE}/{path}"
        unset = await one("GET", url)
        first, second, wrong = values_of(each.policy)
        for method, value in (("PUT", first), ("POST", second)):
            await one(method, url, value)
            assert await two("GET", url) == value
            in_force = await two.broker.policies.effective_in("public/default")
            assert each.policy.shown(in_force) == value
        with pytest.raises(PreconditionError, match=str(each.policy)):
            await one("POST", url, wrong)
        assert await one("GET", url) == second
        await two("DELETE", url)
        assert await one("GET", url) == unset
        assert await one.broker.policies.effective_in("public/default") == BELOW
        with pytest.raises(NotFoundError):
            await one("GET", f"{NAMESPACES}/public/none/{path}")
        with pytest.raises(NotFoundError):
            await one("POST", f"{NAMESPACES}/public/none/{path}", first)


@pytest.mark.parametrize("path", rest.TOPIC)
async def test_a_policy_of_a_topic_goes_over_that_of_its_namespace(path: str) -> None:
    async with two_brokers() as admins:
        one, two = await owner_and_other(admins, "t")
        each = rest.TOPIC[path]
        policy, url = each.policy, f"{TOPICS}/t/{path}"
        with pytest.raises(NotFoundError):
            await one("GET", url)
        await one("PUT", f"{TOPICS}/t")
        default = policy.shown(BELOW)
        assert await one("GET", url) is None
        assert await one("GET", url, applied="true") == default
        first, second, wrong = values_of(policy)
        below = default
        if policy.namespace is not None:
            await two.broker.tenancy.set_policy("public/default", policy, first)
            assert await one("GET", url) is None
            assert await one("GET", url, applied="true") == first
            below = first
        await one("POST", url, second)
        assert await two("GET", url) == second
        assert await two("GET", url, applied="true") == second
        assert policy.shown(await two.broker.policies.effective(TOPIC)) == second
        partition = TopicName.parse("public/default/t-partition-3")
        assert policy.shown(await two.broker.policies.effective(partition)) == second
        other = TopicName.parse("public/default/other")
        assert policy.shown(await two.broker.policies.effective(other)) == below
        with pytest.raises(PreconditionError, match=str(policy)):
            await one("POST", url, wrong)
        with pytest.raises(NotAllowedError, match="isGlobal"):
            await one("POST", url, second, isGlobal="true")
        await two("DELETE", url)
        assert await one("GET", url) is None
        assert await one("GET", url, applied="true") == below


@pytest.mark.parametrize("kind", table.QUOTAS)
async def test_backlog_quotas_of_each_type_are_set_shown_and_removed(kind: str) -> None:
    async with two_brokers() as admins:
        one, two = await owner_and_other(admins, "t")
        await one("PUT", f"{TOPICS}/t")
        first, second, wrong = values_of(table.QUOTAS[kind])
        query = {"backlogQuotaType": kind}
        for base in (NAMESPACE, f"{TOPICS}/t"):
            assert await one("GET", f"{base}/backlogQuotaMap") == {}
            await one("POST", f"{base}/backlogQuota", first, **query)
            assert await two("GET", f"{base}/backlogQuotaMap") == {kind: first}
            with pytest.raises(PreconditionError):
                await one("POST", f"{base}/backlogQuota", wrong, **query)
        await one("POST", f"{NAMESPACE}/backlogQuota", second, **query)
        for quota in (first, second):
            applied: Any = await one("GET", f"{TOPICS}/t/backlogQuotaMap", applied="true")
            assert applied[kind] == quota
            await one("DELETE", f"{TOPICS}/t/backlogQuota", **query)
        await one("DELETE", f"{NAMESPACE}/backlogQuota", **query)
        assert await two("GET", f"{NAMESPACE}/backlogQuotaMap") == {}
        with pytest.raises(PreconditionError, match="message_age"):
            await one("POST", f"{NAMESPACE}/backlogQuota", first, backlogQuotaType="mood")


async def test_a_quota_of_one_type_leaves_the_other_alone() -> None:
    async with two_brokers() as (one, _):
        size, age = VALUES["size_quota"][0], VALUES["age_quota"][0]
        await one("POST", f"{NAMESPACE}/backlogQuota", size)
        await one("POST", f"{NAMESPACE}/backlogQuota", age, backlogQuotaType="message_age")
        both = {"destination_storage": size, "message_age": age}
        assert await one("GET", f"{NAMESPACE}/backlogQuotaMap") == both
        await one("PUT", f"{NAMESPACES}/public/q", {**WHOLE_POLICIES, "backlog_quota_map": both})
        assert await one("GET", f"{NAMESPACES}/public/q/backlogQuotaMap") == both
        await one("DELETE", f"{NAMESPACE}/backlogQuota")
        assert await one("GET", f"{NAMESPACE}/backlogQuotaMap") == {"message_age": age}


async def test_retention_and_quotas_have_to_fit_together() -> None:
    async with two_brokers() as admins:
        one, _ = await owner_and_other(admins, "t")
        await one("PUT", f"{TOPICS}/t")
        retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
        quota = {"limitSize": 10 << 20, "policy": "producer_exception"}
        for base in (NAMESPACE, f"{TOPICS}/t"):
            await one("POST", f"{base}/retention", retention)
            with pytest.raises(PreconditionError, match="10 MB"):
                await one("POST", f"{base}/backlogQuota", quota)
            with pytest.raises(PreconditionError, match="10 minutes"):
                await one(
                    "POST",
                    f"{base}/backlogQuota",
                    {"limitTime": 600, "policy": "producer_exception"},
                    backlogQuotaType="message_age",
                )
            await one("POST", f"{base}/backlogQuota", {**quota, "limitSize": 9 << 20})
            with pytest.raises(PreconditionError, match="9 MB"):
                await one("POST", f"{base}/retention", {**retention, "retentionSizeInMB": 9})
            await one("POST", f"{base}/retention", {**retention, "retentionSizeInMB": -1})


@pytest.mark.parametrize("value", [-1, -2, 10**30])
async def test_a_limit_is_neither_negative_nor_beyond_what_pulsar_can_read(value: int) -> None:
    async with two_brokers() as admins:
        one, _ = await owner_and_other(admins, "t")
        await one("PUT", f"{TOPICS}/t")
        for base, paths in ((NAMESPACE, rest.NAMESPACE), (f"{TOPICS}/t", rest.TOPIC)):
            limits = [path for path, each in paths.items() if -1 in each.policy.unset]
            assert {"messageTTL", "compactionThreshold", "maxConsumersPerSubscription"} < {*limits}
            for path in limits:
                with pytest.raises(PreconditionError, match=f"{paths[path].policy} "):
                    await one("POST", f"{base}/{path}", value)
                assert await one("GET", f"{base}/{path}") is None
        with pytest.raises(PreconditionError, match="message_ttl"):
            await one("POST", f"{TOPICS}/t/messageTTL", messageTTL=str(value))


@pytest.mark.parametrize(
    ("path", "field", "wrong"),
    [
        ("retention", "retentionTimeInMinutes", 10**30),
        ("retention", "retentionTimeInMinutes", 1 << 31),
        ("retention", "retentionTimeInMinutes", -2),
        ("retention", "retentionSizeInMB", 1 << 63),
        ("delayedDelivery", "tickTime", 10**30),
        ("publishRate", "publishThrottlingRateInMsg", 10**30),
        ("backlogQuota", "limitSize", 10**30),
        ("backlogQuota", "limitTime", 1 << 31),
        ("inactiveTopicPolicies", "maxInactiveDurationSeconds", 1 << 31),
    ],
)
async def test_a_number_beyond_what_pulsar_can_read_is_refused(
    path: str, field: str, wrong: int
) -> None:
    rest_of_it = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}
    value = {**(rest_of_it if path == "retention" else {}), field: wrong}
    async with two_brokers() as (one, _):
        with pytest.raises(PreconditionError, match=rf"Expected `int` [<>]= .*{field}"):
            await one("POST", f"{NAMESPACE}/{path}", value)


async def test_the_ttl_of_a_topic_is_a_parameter_of_the_request() -> None:
    async with two_brokers() as admins:
        one, _ = await owner_and_other(admins, "t")
        await one("PUT", f"{TOPICS}/t")
        await one("POST", f"{TOPICS}/t/messageTTL", messageTTL="90")
        assert await one("GET", f"{TOPICS}/t/messageTTL") == 90
        with pytest.raises(PreconditionError, match="messageTTL"):
            await one("POST", f"{TOPICS}/t/messageTTL", messageTTL="soon")


async def test_the_dispatch_rate_of_a_single_subscription() -> None:
    async with two_brokers() as admins:
        one, two = await owner_and_other(admins, "t")
        await one("PUT", f"{TOPICS}/t")
        own, topics = f"{TOPICS}/t/a%2Fb/dispatchRate", f"{TOPICS}/t/subscriptionDispatchRate"
        rate, general = ({"dispatchThrottlingRateInMsg": count} for count in (5, 9))
        assert await one("GET", own) is None
        await one("POST", topics, general)
        await one("POST", own, rate)
        await one("POST", f"{TOPICS}/t/other/dispatchRate", general)
        found: Any = await two("GET", own)
        assert found["dispatchThrottlingRateInMsg"] == 5
        in_force = await one.broker.policies.effective(TopicName.parse("t"))
        rates = {name: each.dispatch_rate for name, each in in_force.of_subscriptions.items()}
        assert rates == {"a/b": DispatchRate(5), "other": DispatchRate(9)}
        shown: Any = await one("GET", f"{TOPICS}/t/none/dispatchRate", applied="true")
        assert shown["dispatchThrottlingRateInMsg"] == 9
        await two("DELETE", own)
        assert await one("GET", own) is None
        await two("DELETE", f"{TOPICS}/t/other/dispatchRate")
        assert not (await two.broker.policies.effective(TopicName.parse("t"))).of_subscriptions
        for wrong in ({"dispatchThrottlingRateInMsg": "x"}, {"ratePeriodInSecond": 0}):
            with pytest.raises(PreconditionError):
                await one("POST", own, wrong)


async def test_what_pulsars_tools_send_is_kept_and_shown() -> None:
    async with two_brokers() as (one, _):
        sent = {
            **WHOLE_POLICIES,
            "max_producers_per_topic": 3,
            "properties": {"team": "billing"},
            "publishMaxMessageRate": {"test": {"publishThrottlingRateInMsg": 9}},
        }
        await one("PUT", f"{NAMESPACES}/public/whole", sent)
        found: Any = await one("GET", f"{NAMESPACES}/public/whole")
        for key in ("offload_threshold", "subscription_auth_mode", "properties"):
            assert found[key] == sent[key]
        assert found["max_producers_per_topic"] == 3
        in_force = await one.broker.policies.effective_in("public/whole")
        assert in_force.max_producers == 3
        assert in_force.publish_rate.publish_throttling_rate_in_msg == 9


@pytest.mark.parametrize(
    ("path", "shown", "harmless", "refused"),
    [
        ("encryptionRequired", False, False, True),
        ("offloadThreshold", -1, -1, 0),
        ("replicatorDispatchRate", None, {}, {"dispatchThrottlingRateInMsg": 5}),
        ("replication", ["test"], ["test"], ["test", "elsewhere"]),
    ],
)
async def test_a_policy_without_a_use_takes_only_what_asks_for_nothing(
    path: str, shown: object, harmless: object, refused: object
) -> None:
    async with two_brokers() as (one, _):
        url = f"{NAMESPACE}/{path}"
        assert await one("GET", url) == shown
        await one("POST", url, harmless)
        with pytest.raises(NotAllowedError, match="this broker"):
            await one("POST", url, refused)
        assert await one("GET", url) in (shown, harmless)


async def test_policies_that_this_broker_does_not_know_are_refused() -> None:
    async with two_brokers() as (one, _):
        for method in ("GET", "POST", "DELETE"):
            with pytest.raises(NotAllowedError, match="sunshine"):
                await one(method, f"{NAMESPACE}/sunshine", 5)
        with pytest.raises(PreconditionError, match="sunshine"):
            await one("PUT", f"{NAMESPACES}/public/x", {"sunshine": 5})
        with pytest.raises(NotAllowedError, match="sunshine"):
            await one("POST", f"{TOPICS}/some/sunshine", 5)


async def test_properties_of_a_namespace() -> None:
    async with two_brokers() as (one, two):
        url = f"{NAMESPACE}/properties"
        assert await one("GET", url) == {}
        await one("PUT", url, {"a": "1", "b": "2"})
        await two("PUT", f"{NAMESPACE}/property/c/3")
        assert await one("GET", url) == {"a": "1", "b": "2", "c": "3"}
        assert await one("DELETE", f"{NAMESPACE}/property/a") == "1"
        assert await one("GET", f"{NAMESPACE}/property/b") == "2"
        assert await one("GET", f"{NAMESPACE}/property/a") is None
        await one("DELETE", url)
        assert await one("GET", url) == {}
        for number in range(17):
            await one("PUT", url, {f"large{number}": "x" * 3800})
        with pytest.raises(PreconditionError, match="bytes"):
            await one("PUT", url, {"one more": "x" * 3800})


async def test_a_namespace_has_no_more_topics_than_it_may_have() -> None:
    async with two_brokers() as (one, _):
        await one("POST", f"{NAMESPACE}/maxTopicsPerNamespace", 3)
        await one("PUT", f"{TOPICS}/two/partitions", 2)
        with pytest.raises(PreconditionError, match="maxTopicsPerNamespace"):
            await one("PUT", f"{TOPICS}/more/partitions", 2)
        await one("PUT", f"{TOPICS}/more/partitions", 1)


# -- records


async def put(broker: ControlPlane, path: str, content: object) -> None:
    value = json.dumps(content).encode()
    if await broker.session.get(path) is None:
        await broker.session.create(path, value, make_parents=True)
    else:
        await broker.session.set(path, value, -1)


@pytest.mark.parametrize("policy", table.TABLE, ids=str)
async def test_a_wrong_value_in_a_record_does_the_least_harm(
    policy: table.Policy, autojump_clock: MockClock
) -> None:
    """Only policies whose default could lose or repeat messages make a topic unavailable."""
    slot = policy.topic
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        record: dict[str, object] = {"maxProducerPerTopic": 77}
        wrong = values_of(policy)[2]
        if slot is None:
            slot, path = policy.namespace, policies_path("public/default")
        else:
            path = topic_policies_path(TOPIC)
        assert slot is not None
        if policy is table.DELAYED_DELIVERY:
            record["delayedDeliveryTickTimeMillis"] = 0
        else:
            slot.put(record, wrong, "test")
        await put(one, path, record)
        match policy.on_invalid:
            case OnInvalid.REFUSE:
                with pytest.raises(UnavailableError, match=str(policy)):
                    await one.policies.effective(TOPIC)
                if policy.namespace is not None:
                    assert (await one.policies.namespace("public/default")).bundles.count == 16
            case OnInvalid.NOTHING:
                found = await one.policies.effective(TOPIC)
                assert getattr(found, policy.name) == policy.nothing
            case OnInvalid.INHERIT:
                found = await one.policies.effective(TOPIC)
                assert getattr(found, policy.name) == getattr(BELOW, policy.name)
                if policy.topic is not None and policy is not table.MAX_PRODUCERS:
                    assert found.max_producers == 77


def test_the_unsafe_policies_are_those_that_could_lose_or_repeat() -> None:
    refused = {str(p) for p in table.TABLE if p.on_invalid is OnInvalid.REFUSE}
    assert refused == {"retention_policies", "persistence", "deduplicationEnabled"}


async def test_topics_without_policies_share_one_object_and_cost_no_read(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.policies.set_topic_policy(TOPIC, table.MAX_PRODUCERS, 3)
        first = await one.policies.effective(TopicName.parse("public/default/first"))
        asked: list[str] = []
        get, children = one.session.get, one.session.get_children

        async def counted(path: str, watch: Any = None) -> Any:
            asked.append(path)
            return await get(path, watch)

        async def counted_children(path: str, watch: Any = None) -> Any:
            asked.append(path)
            return await children(path, watch)

        one.session.get = counted  # type: ignore[method-assign]
        one.session.get_children = counted_children  # type: ignore[method-assign]
        for number in range(10):
            topic = TopicName.parse(f"public/default/other-{number}")
            assert await one.policies.effective(topic) is first
        assert not asked
        own = await one.policies.effective(TOPIC)
        assert own == replace(first, max_producers=3)
        assert await one.policies.effective(TOPIC) is own


async def test_topics_of_a_namespace_without_partitioned_ones_share_a_read(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        topics = [TopicName.parse(f"public/default/other-{number}") for number in range(50)]
        found: list[int] = []
        asked: list[str] = []
        request = one.session.link.request

        async def counted(sent: Request, execute: Callable[[], None]) -> None:
            if sent.path.startswith(PARTITIONED_TOPICS):
                asked.append(sent.path)
            await request(sent, execute)

        async def look(topic: TopicName) -> None:
            found.append(await one.policies.partitions(topic))

        one.session.link.request = counted  # type: ignore[method-assign,assignment]
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(look, topic)
        assert found == [0] * 50
        assert 1 <= len(asked) <= 2
        await two.policies.create_partitioned(TOPIC, 3)
        assert await one.policies.partitions(TOPIC) == 3
        assert await one.policies.partitions(topics[0]) == 0


async def test_a_namespace_without_topic_policies_hears_of_the_first_one(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.start("one"), await cluster.start("two")
        assert (await one.policies.effective(TOPIC)).max_producers == 0
        await two.policies.set_topic_policy(TOPIC, table.MAX_PRODUCERS, 3)
        with trio.fail_after(1):
            assert await one.policies.wait_changed() == {"public/default"}
        assert (await one.policies.effective(TOPIC)).max_producers == 3
        await two.policies.set_topic_policy(TOPIC, table.MAX_PRODUCERS, 4)
        with trio.fail_after(1):
            assert await one.policies.wait_changed() == {"public/default"}
        assert (await one.policies.effective(TOPIC)).max_producers == 4
        await two.tenancy.set_policy("public/default", table.MAX_CONSUMERS, 5)
        with trio.fail_after(1):
            assert await one.policies.wait_changed() == {"public/default"}
        assert (await one.policies.effective(TOPIC)).max_consumers == 5


async def test_a_broker_does_not_wait_to_hear_of_its_own_changes(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.policies.set_topic_policy(TOPIC, table.MAX_PRODUCERS, 3)
        assert (await one.policies.effective(TOPIC)).max_producers == 3
        one.session.link.notify = lambda _: None  # type: ignore[method-assign,assignment]
        await one.policies.set_topic_policy(TOPIC, table.MAX_PRODUCERS, 4)
        assert (await one.policies.effective(TOPIC)).max_producers == 4
        await one.tenancy.set_policy("public/default", table.MAX_CONSUMERS, 5)
        assert (await one.policies.effective(TOPIC)).max_consumers == 5


async def test_out_of_contact_the_last_known_policies_of_a_topic_count(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        other = TopicName.parse("public/default/other")
        await one.policies.set_topic_policy(TOPIC, table.MAX_PRODUCERS, 3)
        await one.policies.set_topic_policy(other, table.MAX_PRODUCERS, 4)
        known = await one.policies.effective(TOPIC)
        cluster.store.suspend()
        with pytest.raises(UnavailableError):
            await one.policies.set_topic_policy(TOPIC, table.MAX_PRODUCERS, 9)
        began = trio.current_time()
        assert await one.policies.effective(TOPIC) == known
        assert trio.current_time() == began, "nobody waits for the store"
        with pytest.raises(UnavailableError):  # It has a record, which was never read.
            await one.policies.effective(other)
        with trio.move_on_after(5):
            await one.policies.wait_changed()
        cluster.store.resume()
        assert (await one.policies.effective(other)).max_producers == 4


def test_a_layer_sets_only_what_it_says() -> None:
    layer = Layer({"max_producers_per_topic": -1, "message": 5}, "test", of_topic=False)
    assert layer.over(BELOW) is BELOW
    layer = Layer(
        {"retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}},
        "test",
        of_topic=False,
    )
    found = layer.over(BELOW)
    assert found == replace(BELOW, retention=Retention(1, 1))
    assert layer.over(BELOW) is found


def persistence(ensemble: int) -> dict[str, int]:
    return {"bookkeeperEnsemble": ensemble, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}


async def test_a_policy_asks_for_no_more_copies_than_the_operator_allows() -> None:
    async with two_brokers() as admins:
        owner, _ = await owner_and_other(admins, TOPIC.full)
        await owner("PUT", f"{TOPICS}/t")
        for path in (f"{NAMESPACE}/persistence", f"{TOPICS}/t/persistence"):
            await owner("POST", path, persistence(5))
            with pytest.raises(PreconditionError, match=r"at most 5 .*ensemble_max"):
                await owner("POST", path, persistence(6))
            assert (await owner("GET", path))["bookkeeperEnsemble"] == 5  # type: ignore[index]
        with pytest.raises(PreconditionError, match="ensemble_max"):
            await owner("PUT", f"{NAMESPACES}/public/many", {"persistence": persistence(6)})
        await owner("PUT", f"{NAMESPACES}/public/some", {"persistence": persistence(5)})


async def test_a_super_user_may_ask_for_more_copies() -> None:
    limit = ReplicaLimit(5, ["root"])
    admin, root = Identity("admin", "token"), Identity("root", "token")
    for caller in (Caller(admin), Caller(root, "admin"), Caller(admin, "root"), None):
        CALLER.set(caller)
        with pytest.raises(PreconditionError, match="super user"):
            limit.check(table.PERSISTENCE, persistence(6))
    CALLER.set(Caller(root))
    limit.check(table.PERSISTENCE, persistence(6))
    limit.check_all({"persistence": persistence(6)})
