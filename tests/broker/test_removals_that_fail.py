"""A subscription whose deletion failed still exists, with its cursor."""

import trio
from trio.testing import MockClock

from daybook.wire.metadata.store import MetadataError
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, open_broker

EARLIEST = pb.CommandSubscribe.Earliest


async def test_a_subscription_that_the_store_does_not_delete_is_served_again(
    autojump_clock: MockClock,
) -> None:
    """The cursor that was to be deleted records nothing more: the topic is loaded again.

    Seed 920740: the client was not told that its consumer is closed, and waited for messages.
    """
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        for n in range(3):
            client.send(n)
        await client.receipts(3)
        await client.subscribe(initialPosition=EARLIEST, permits=9)
        await client.deliveries(3)
        client.ack(0)
        await client.settle()
        log = cluster.broker.log()

        async def refuse(name: str) -> None:
            await trio.lowlevel.checkpoint()
            raise MetadataError("no permission")

        log.delete_cursor = refuse  # type: ignore[method-assign]
        error = await client.ask(pb.CommandUnsubscribe(consumer_id=1), pb.CommandSuccess)
        assert error.error == pb.ServiceNotReady
        await client.wait(pb.CommandCloseConsumer)
        await client.wait(pb.CommandCloseProducer)
        await trio.sleep(5)  # The topic is loaded again after a moment.
        await client.subscribe(permits=9)
        assert await client.entry_ids(2) == [1, 2]
        assert log is not cluster.broker.log()
        subscriptions = cluster.broker.topics.loaded[TOPIC].subscriptions
        assert subscriptions.get("sub").cursor is cluster.broker.log().by_name["sub"]
