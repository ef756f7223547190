"""A consumer that has sought a position leaves out what lies before it, and nothing else."""

from datetime import UTC, datetime

import pytest
import trio

import daybook
from daybook.clients.python.arguments import SubscriptionTypeName
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import PATIENCE_S, fake_cluster
from tests.clients.python.test_consumer import QUICK, acked, fill

FOUR = [[b"0"], [b"1", b"2"], [b"3"]]


@pytest.mark.parametrize("kind", ["failover", "shared"])
async def test_what_another_consumer_goes_back_to_is_delivered_and_not_acknowledged(
    kind: SubscriptionTypeName,
) -> None:
    """Seed 577: one consumer seeks and gets nothing, and another one seeks back: the first one left
    out, and acknowledged, all messages before its own position.
    """
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        first = await client.subscribe("t", "s", type=kind)
        second = await client.subscribe("t", "s", type=kind)
        await fill(client, FOUR)
        with trio.fail_after(PATIENCE_S):
            await first.seek(4)  # there is no message
            await second.seek("earliest")
            got = [(await first.receive()).data for _ in range(4)]
        assert got == [b"0", b"1", b"2", b"3"]
        await first.flush_acks()
        assert acked(cluster) == set()


async def test_the_rest_of_a_batch_is_left_out_only_until_somebody_else_seeks() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        first = await client.subscribe("t", "s", type="shared", receiver_queue_size=1)
        second = await client.subscribe("t", "s", type="shared", receiver_queue_size=1)
        with trio.fail_after(PATIENCE_S):
            await first.seek(1)  # the second message of a batch that does not exist yet
            await second.seek("earliest")
            await fill(client, [[b"0", b"1"]])
            got = [(await first.receive()).data for _ in range(2)]
        assert got == [b"0", b"1"]
        assert acked(cluster) == set()


@pytest.mark.parametrize("place", [3, datetime.fromtimestamp(1 << 32, UTC)])
async def test_a_seek_that_fails_leaves_out_nothing(place: datetime | int) -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe("t", "s")
        await fill(client, FOUR)
        cluster.brokers["b1"].refusals[28] = [(pb.NotAllowedError, "no")]
        with pytest.raises(daybook.NotAllowedError):
            await consumer.seek(place)
        with trio.fail_after(PATIENCE_S):
            got = [(await consumer.receive()).data for _ in range(4)]
        assert got == [b"0", b"1", b"2", b"3"]
        await consumer.flush_acks()
        assert acked(cluster) == set()
