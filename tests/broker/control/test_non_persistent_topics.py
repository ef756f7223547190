"""Non-persistent topics of whole brokers: our client, partitions, administration, bundles."""

from contextlib import suppress
from typing import Any

import pytest
import trio

from daybook.broker.admin.message_ids import Start
from daybook.broker.errors import (
    ConflictError,
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
    PreconditionError,
    SubscriptionNotFoundError,
)
from daybook.clients.python.client import Client
from daybook.wire.topics import TopicName
from tests.broker.control.test_server import World, simulated

TOPIC = TopicName.parse("non-persistent://public/default/news")


async def received(consumer: Any, count: int) -> list[bytes]:
    with trio.fail_after(30):
        return [(await consumer.receive()).data for _ in range(count)]


async def exchange(client: Client, topic: str, kind: Any = "exclusive") -> None:
    async with (
        await client.subscribe(topic, "s", type=kind) as consumer,
        await client.create_producer(topic) as sender,
    ):
        for number in range(30):
            await sender.send(b"%d" % number, key=str(number))
        found = await received(consumer, 30)
        assert sorted(found, key=int) == [b"%d" % number for number in range(30)]


def test_our_client_sends_and_receives() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        async with world.client("one") as client:
            for kind in ("exclusive", "failover", "shared"):
                await exchange(client, TOPIC.full, kind)
            async with (
                await client.subscribe(TOPIC.full, "s") as consumer,
                await client.create_producer(TOPIC.full) as sender,
            ):
                message_id = await sender.send(b"x")
                assert (message_id.ledger_id, message_id.entry_id) == (0, 0)
                message = await consumer.receive()
                await consumer.ack(message)
                await consumer.flush_acks()
                await consumer.unsubscribe()
        assert await ops.topics("public/default") == []

    simulated(story)


def test_the_partitions_of_a_topic_work_together() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await ops.create_partitioned(TOPIC, 3)
        with pytest.raises(ConflictError):
            await ops.create_partitioned(TOPIC, 3)
        assert await ops.partitioned_topics("public/default") == []
        assert await ops.partitioned_topics("public/default", "non-persistent") == [TOPIC.full]
        async with world.client("one") as client:
            assert await client.partitions(TOPIC.full) == 3
            await exchange(client, TOPIC.full)
        await ops.update_partitions(TOPIC, 4)
        assert len(await ops.non_persistent_topics("public/default")) == 4
        total: Any = await ops.partitioned_stats(TOPIC)
        assert total["msgInCounter"] == 30
        with pytest.raises(ConflictError):
            await ops.delete_namespace("public/default", force=False)
        await ops.delete_partitioned(TOPIC, force=True)
        assert await ops.non_persistent_topics("public/default") == []

    simulated(story)


def test_a_topic_is_administered() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        with pytest.raises(NotFoundError):
            await ops.stats(TOPIC)
        await ops.create_topic(TOPIC, {})
        with pytest.raises(ConflictError):
            await ops.create_topic(TOPIC, {})
        async with (
            world.client("one") as client,
            await client.create_producer(TOPIC.full, batching=False) as sender,
            await client.subscribe(TOPIC.full, "s", receiver_queue_size=2),
        ):
            for number in range(10):
                sender.send_nowait(b"%d" % number)
            await sender.flush()
            stats: Any = await ops.stats(TOPIC)
            one = stats["subscriptions"]["s"]
            assert stats["msgInCounter"] == 10
            assert one["msgDropCounter"] > 0
            assert one["msgOutCounter"] + one["msgDropCounter"] == 10
            assert (one["msgBacklog"], one["durable"]) == (0, False)
            assert stats["msgDropRate"] == 0.0  # The first period has not ended yet.
            await trio.sleep(61)
            for number in range(10):
                sender.send_nowait(b"%d" % number)
            await trio.sleep(60)
            stats = await ops.stats(TOPIC)
            assert stats["msgDropRate"] > 0
            internal = await ops.internal_stats(TOPIC)
            assert internal["entriesAddedCounter"] == 20
            assert await ops.subscriptions(TOPIC) == ["s"]
            with pytest.raises(PreconditionError):
                await ops.delete_topic(TOPIC, force=False)
            with pytest.raises(PreconditionError):
                await ops.delete_subscription(TOPIC, "s")
            with pytest.raises(SubscriptionNotFoundError):
                await ops.delete_subscription(TOPIC, "other")
            for refused in (
                ops.create_subscription(TOPIC, "t", Start.latest()),
                ops.skip_all(TOPIC, "s"),
                ops.last_message_id(TOPIC),
                ops.terminate(TOPIC),
            ):
                with pytest.raises(NotAllowedError):
                    await refused
            await ops.unload_topic(TOPIC)
            await sender.send(b"again")  # The client has come back.
        await ops.delete_topic(TOPIC, force=True)
        assert await ops.non_persistent_topics("public/default") == []

    simulated(story)


def test_topics_of_all_brokers_are_listed_and_move_with_their_bundles() -> None:
    async def story(world: World) -> None:
        one, two = await world.broker("one"), await world.broker("two")
        names = [f"non-persistent://public/default/n{number}" for number in range(8)]
        async with world.client("one", "two") as client:
            senders = [await client.create_producer(name) for name in names]
            here = [set(each.topics.non_persistent.loaded) for each in (one, two)]
            assert here[0] | here[1] == set(names)
            assert not here[0] & here[1]
            for broker, names_here in zip((one, two), here, strict=True):
                for name in names_here:
                    bundle = await broker.operations.policies.bundle_of(TopicName.parse(name))
                    await broker.operations.bundles.unload(
                        "public/default", bundle.rpartition("/")[2]
                    )
            for sender in senders:
                await sender.send(b"moved")
            for sender in senders:
                await sender.aclose()

    simulated(story)


def test_nothing_is_invented_and_nothing_overtakes_while_topics_move() -> None:
    async def story(world: World) -> None:
        brokers = [await world.broker("one"), await world.broker("two")]
        names = [f"non-persistent://public/default/m{number}" for number in range(4)]
        got: dict[str, list[bytes | None]] = {name: [] for name in names}
        sent: dict[str, list[bytes]] = {name: [] for name in names}

        async def consume(client: Client, name: str) -> None:
            async with await client.subscribe(name, "s") as consumer:
                while True:
                    got[name].append((await consumer.receive()).data or b"")

        async def produce(client: Client, name: str) -> None:
            async with await client.create_producer(name) as sender:
                for number in range(200):
                    sent[name].append(b"%s %d" % (name.encode(), number))
                    sender.send_nowait(sent[name][-1])
                    await trio.sleep(0.01)

        async def move() -> None:
            for round_ in range(6):
                await trio.sleep(0.3)
                broker = brokers[round_ % 2]
                for name in list(broker.topics.non_persistent.loaded):
                    bundle = await broker.operations.policies.bundle_of(TopicName.parse(name))
                    with suppress(NotOwnerError):
                        await broker.operations.bundles.unload(
                            "public/default", bundle.rpartition("/")[2]
                        )

        async with world.client("one", "two") as client, trio.open_nursery() as consumers:
            for name in names:
                consumers.start_soon(consume, client, name)
            await trio.sleep(1)
            async with trio.open_nursery() as producers:
                producers.start_soon(move)
                for name in names:
                    producers.start_soon(produce, client, name)
            await trio.sleep(2)
            consumers.cancel_scope.cancel()
        for name in names:
            places = [sent[name].index(data or b"") for data in got[name]]  # every one was sent
            assert places == sorted(places), name
            assert len(set(places)) > 50, name

    simulated(story)
