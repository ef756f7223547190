"""Reading which offsets a topic holds transfers no message, whatever is published meanwhile."""

import pytest

import daybook
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.clients.python.fake_broker import fake_cluster
from tests.clients.python.real_broker import client_of, real_broker

TOPIC = TopicName.parse("persistent://public/default/t")


async def test_offsets_of_all_partitions_are_told_without_permits() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        cluster.partitions["persistent://public/default/t"] = 2
        async with await client.create_producer("t") as producer:
            for n in range(30):
                await producer.send(b"%d" % n)
        held = await client.offset_ranges("t")
        assert [each.first for each in held] == [0, 0]
        assert sum(each.next for each in held) == 30
        assert await client.offsets("t-partition-1") == held[1]
        with pytest.raises(ValueError, match="t has partitions, and each has its own offsets"):
            await client.offsets("t")
        await client.last_message_id("t-partition-0")
        (broker,) = cluster.brokers.values()
        assert len(broker.commands(pb.CommandSubscribe)) == 4
        assert broker.commands(pb.CommandFlow) == []


async def test_the_creation_of_a_topic_is_told_and_differs_when_it_is_made_anew() -> None:
    async with real_broker() as cluster, client_of(cluster, "c") as client:
        async with await client.create_producer("t") as producer:
            await producer.send(b"1")
        before = await client.offsets("t")
        assert before.created is not None
        assert before.instance == "an-instance"
        assert (await client.offsets("t")) == before
        await cluster.broker.topics.delete(TOPIC, force=True)
        async with await client.create_producer("t") as producer:
            await producer.send(b"1")
        after = await client.offsets("t")
        assert (after.first, after.next) == (before.first, before.next)
        assert after.created is not None
        assert after.created > before.created


async def test_a_creation_that_the_broker_does_not_know_is_none() -> None:
    async with real_broker() as cluster, client_of(cluster, "c") as client:
        async with await client.create_producer("t") as producer:
            await producer.send(b"1")
        log = cluster.broker.logs.by_name[TOPIC]
        log.created, log.instance = 0, None
        found = await client.offsets("t")
        assert (found.created, found.instance) == (None, None)


async def test_offsets_of_several_topics_are_told_in_the_order_of_their_names() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        cluster.partitions["persistent://public/default/t"] = 2
        for topic, count in (("t-partition-1", 3), ("u", 5)):
            async with await client.create_producer(topic) as producer:
                for n in range(count):
                    await producer.send(b"%d" % n)
        found = await client.offsets_of(["u", "t-partition-0", "t-partition-1"])
        assert [each.next for each in found] == [5, 0, 3]
        assert await client.offsets_of([]) == []
        (broker,) = cluster.brokers.values()
        assert broker.commands(pb.CommandFlow) == []
