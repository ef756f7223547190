"""Topics that Pulsar's brokers keep for themselves: who may publish there."""

import pytest

from daybook.broker.namespaces.system_topics import is_system
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.broker.security.test_rights import LOCKED, connected, refused, store_policies
from tests.harness.broker import open_broker

BOTH, NEITHER, PERSISTENT_ONLY = (True, True), (False, False), (True, False)
# These are the answers of `SystemTopicNames.isSystemTopic` of Pulsar 4.2.4, for both domains.
OF_PULSAR = {
    "public/default/__change_events": BOTH,
    "public/default/__change_events-partition-3": BOTH,
    "public/default/__transaction_buffer_snapshot": BOTH,
    "public/default/__transaction_buffer_snapshot_indexes": BOTH,
    "public/default/__transaction_buffer_snapshot_segments-partition-0": BOTH,
    "public/default/a-s__transaction_pending_ack": BOTH,
    "public/default/a-s__transaction_pending_ack-partition-0": BOTH,
    "pulsar/system/transaction_coordinator_assign-partition-1": PERSISTENT_ONLY,
    "pulsar/system/__transaction_log_7": PERSISTENT_ONLY,
    "public/default/transaction_coordinator_assign": NEITHER,
    "public/default/__transaction_log_7": NEITHER,
    "public/default/x__change_events": NEITHER,
    "public/default/__change_eventsx": NEITHER,
    "public/default/__other": NEITHER,
    "pulsar/system/other": NEITHER,
}
EVENTS = "persistent://public/default/__change_events"
GRANTS = {
    "auth_policies": {
        "namespace_auth": {"all": ["produce", "consume"]},
        "destination_auth": {EVENTS: {"all": ["produce", "consume"]}},
        "subscription_auth_roles": {},
    }
}


@pytest.mark.parametrize("name", OF_PULSAR)
def test_system_topics_are_those_of_pulsar(name: str) -> None:
    domains = ("persistent", "non-persistent")
    found = tuple(is_system(TopicName.parse(f"{domain}://{name}")) for domain in domains)
    assert found == OF_PULSAR[name]


async def test_only_a_super_user_publishes_to_a_system_topic() -> None:
    schema = pb.Schema(name="x", schema_data=b"", type=pb.Schema.String)
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session, GRANTS)
        for role, expected in [("all", True), ("owner", True), ("root", False)]:
            client = await connected(cluster, role)
            for topic in (EVENTS, f"{EVENTS}-partition-0".replace("persistent", "non-persistent")):
                answer = await client.producer(topic=topic)
                assert refused(answer) is expected, (role, topic)
                assert not expected or "the right 'super user'" in answer.message
            request = pb.CommandGetOrCreateSchema(topic=EVENTS, schema=schema)
            answer = await client.ask(request, pb.CommandGetOrCreateSchemaResponse)
            assert refused(answer) is expected
            # They are read as other topics are, and others are published to.
            answer = await client.subscribe(topic=EVENTS, kind=pb.CommandSubscribe.Shared)
            assert not refused(answer)
            answer = await client.producer(2, topic="public/default/__other")
            assert not refused(answer)


async def test_without_authorization_everybody_publishes_there() -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        assert isinstance(await client.producer(topic=EVENTS), pb.CommandProducerSuccess)
