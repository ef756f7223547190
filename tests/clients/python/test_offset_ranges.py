"""Reading which offsets a topic holds transfers no message, whatever is published meanwhile."""

import pytest

import daybook
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import fake_cluster


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
