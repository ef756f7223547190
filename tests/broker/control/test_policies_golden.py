"""The policies of a namespace, byte by byte: ours, and those that a Pulsar broker may have left."""

import json

import trio
from trio.testing import MockClock

from daybook.broker.namespaces import policy_table
from daybook.broker.namespaces.policy_table import PERSISTENCE as PERSISTENCE_POLICY
from daybook.broker.namespaces.policy_table import RETENTION as RETENTION_POLICY
from daybook.broker.namespaces.policy_types import (
    DelayedDelivery,
    DispatchRate,
    Persistence,
    PublishRate,
    Retention,
    SubscribeRate,
)
from daybook.broker.namespaces.records import policies_path, topic_policies_path
from daybook.broker.protocol.bundles import Bundles
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import ControlPlane, open_cluster
from tests.broker.control.test_records import GOLDEN

RETENTION, PERSISTENCE = Retention(60, 100), Persistence(3, 3, 2)


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes().rstrip(b"\n")


async def stored(broker: ControlPlane, namespace: str) -> bytes:
    record = await broker.session.get(policies_path(namespace))
    assert record is not None
    return record.value


async def test_policies_are_written_and_read_as_they_were_released(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.tenancy.create_namespace(
            "public/golden",
            bundles=Bundles.equal(2),
            policies={
                "retention_policies": RETENTION_POLICY.to_json(RETENTION),
                "persistence": PERSISTENCE_POLICY.to_json(PERSISTENCE),
            },
        )
        assert await stored(one, "public/golden") == golden("policies")
        found = await one.policies.effective_in("public/golden")
        assert (found.retention, found.persistence) == (RETENTION, PERSISTENCE)
        namespace = await one.policies.namespace("public/golden")
        assert namespace.bundles == Bundles.equal(2)
        await one.tenancy.mark_deleted("public/golden", deleted=True)
        assert await stored(one, "public/golden") == golden("policies_deleted")


async def test_what_is_not_ours_stays_when_policies_are_changed(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        path = policies_path("public/theirs")
        await one.session.create(path, golden("policies_of_others"), make_parents=True)
        with trio.fail_after(5):
            assert (await one.policies.effective_in("public/theirs")).retention == Retention(5, 6)
            await one.tenancy.set_policy("public/theirs", RETENTION_POLICY, RETENTION)
        assert await stored(one, "public/theirs") == golden("policies_of_others_changed")


async def test_policies_of_a_topic_are_written_and_read_as_they_were_released(
    autojump_clock: MockClock,
) -> None:
    topic = TopicName.parse("public/default/golden")
    values: dict[policy_table.Policy, object] = {
        policy_table.MAX_PRODUCERS: 3,
        policy_table.RETENTION: RETENTION,
        policy_table.SUBSCRIPTION_TYPES: {"Shared", "Failover"},
        policy_table.DELAYED_DELIVERY: DelayedDelivery(max_delivery_delay_in_millis=5000),
        policy_table.PUBLISH_RATE: PublishRate(publish_throttling_rate_in_msg=10),
    }
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        path = topic_policies_path(topic)
        await one.session.create(path, b'{"theirs":5}', make_parents=True)
        for policy, value in values.items():
            await one.policies.set_topic_policy(topic, policy, value)
        record = await one.session.get(path)
        assert record is not None
        assert json.loads(record.value) == json.loads(golden("topic_policies"))
        await one.session.set(path, golden("topic_policies"), -1)
        found = await one.policies.effective(topic)
        assert (found.max_producers, found.retention) == (3, RETENTION)
        assert found.subscription_types == {"Shared", "Failover"}
        assert found.delayed_delivery.max_delivery_delay_in_millis == 5000
        assert found.publish_rate.publish_throttling_rate_in_msg == 10


async def test_rates_are_written_and_read_as_they_were_released(autojump_clock: MockClock) -> None:
    topic = TopicName.parse("public/golden/rates")
    values: dict[policy_table.Policy, object] = {
        policy_table.DISPATCH_RATE: DispatchRate(10, 20, rate_period_in_second=3),
        policy_table.SUBSCRIPTION_DISPATCH_RATE: DispatchRate(4, relative_to_publish_rate=True),
        policy_table.SUBSCRIBE_RATE: SubscribeRate(5),
    }
    async with open_cluster() as cluster:
        one = await cluster.start("one")
        await one.tenancy.create_namespace("public/golden", bundles=Bundles.equal(2))
        path = topic_policies_path(topic)
        await one.session.create(path, b"{}", make_parents=True)
        for policy, value in values.items():
            await one.tenancy.set_policy("public/golden", policy, value)
            await one.policies.set_topic_policy(topic, policy, value)
        record = await one.session.get(path)
        assert record is not None
        assert record.value == golden("topic_policies_rates")
        of_namespace = json.loads(await stored(one, "public/golden"))
        expected = json.loads(golden("policies_rates"))
        assert {key: of_namespace[key] for key in expected} == expected
        found = await one.policies.effective(topic)
        assert [getattr(found, policy.name) for policy in values] == list(values.values())
