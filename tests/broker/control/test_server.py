"""Whole brokers on simulated seams, with bookies and our client: administered, stopped, killed."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from daybook.broker.admin.message_ids import Start
from daybook.broker.config import BrokerConfig
from daybook.broker.errors import (
    ConflictError,
    NotAllowedError,
    NotFoundError,
    PreconditionError,
    SubscriptionNotFoundError,
    UnavailableError,
)
from daybook.broker.namespaces.policy_table import RETENTION
from daybook.broker.namespaces.policy_types import Retention
from daybook.broker.namespaces.records import TenantInfo
from daybook.broker.server import RunningBroker, run_broker
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError as ClientError
from daybook.managed_ledger.entry_cache import KEPT_S
from daybook.wire.topics import TopicName
from tests.simulation.cluster import Cluster
from tests.simulation.scheduler import HOST, Scheduler, run
from tests.simulation.settings import BROKER_PORT

ORDERS = TopicName.parse("orders")


class World:
    """Three bookies, and the brokers that a test starts."""

    def __init__(self, cluster: Cluster, nursery: trio.Nursery) -> None:
        self.cluster = cluster
        self._nursery = nursery
        self._dead: list[str] = []

    async def broker(self, name: str) -> RunningBroker:
        async def live(*, task_status: trio.TaskStatus[RunningBroker]) -> None:
            HOST.set(name)
            async with self.cluster.metadata.open(name) as session:
                await run_broker(
                    BrokerConfig(name=name, host=name, port=BROKER_PORT, trim_interval_s=1.0),
                    store=session,
                    network=self.cluster.network.of(name),
                    clock=self.cluster.clock,
                    rng=Random(self.cluster.rng.random()),
                    task_status=task_status,
                )

        running: RunningBroker = await self._nursery.start(live)
        return running

    def kill(self, name: str) -> None:
        """Stop all tasks of the broker, without running a `finally`."""
        self._dead.append(name)
        self.cluster.run.hold(name)
        self.cluster.network.crash(name)
        self.cluster.metadata.crash(name)

    def bury(self) -> None:
        for name in self._dead:
            self.cluster.run.release(name)

    @asynccontextmanager
    async def client(self, *brokers: str) -> AsyncGenerator[Client]:
        hosts = ",".join(f"{name}:{BROKER_PORT}" for name in brokers)
        network = self.cluster.network.of("client")
        clock, rng = self.cluster.clock, Random(1)
        async with connect(f"pulsar://{hosts}", network=network, clock=clock, rng=rng) as client:
            yield client


def simulated(story: Callable[[World], Awaitable[None]]) -> None:
    async def main(scheduler: Scheduler) -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(scheduler, 1, nursery)
            for index in range(3):
                await cluster.start(f"bookie-{index + 1}")
            world = World(cluster, nursery)
            await story(world)
            world.bury()
            cluster.end()
            nursery.cancel_scope.cancel()

    run(main, seed=1)


async def send(client: Client, topic: str, count: int, first: int = 0) -> None:
    async with await client.create_producer(topic) as producer:
        for number in range(first, first + count):
            await producer.send(b"%d" % number)


async def backlog(broker: RunningBroker, topic: TopicName, subscription: str) -> int:
    stats: Any = await broker.operations.stats(topic)
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def test_topics_and_subscriptions_are_administered() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        ops = broker.operations
        await ops.create_topic(ORDERS, {"owner": "tests"})
        with pytest.raises(ConflictError):
            await ops.create_topic(ORDERS, {})
        await ops.create_subscription(ORDERS, "s", Start.latest())
        with pytest.raises(ConflictError):
            await ops.create_subscription(ORDERS, "s", Start.latest())
        async with world.client("one") as client:
            await send(client, ORDERS.full, 5)
            between = world.cluster.clock.now_ms() + 500
            await trio.sleep(1)
            await send(client, ORDERS.full, 5, first=5)
        await ops.create_subscription(ORDERS, "late", Start.latest())
        await ops.create_subscription(ORDERS, "early", Start.earliest())
        assert await ops.subscriptions(ORDERS) == ["early", "late", "s"]
        backlogs = [await backlog(broker, ORDERS, name) for name in ("early", "late", "s")]
        assert backlogs == [10, 0, 10]
        await ops.skip_all(ORDERS, "s")
        assert await backlog(broker, ORDERS, "s") == 0
        await ops.reset_to(ORDERS, "s", Start.earliest())
        assert await backlog(broker, ORDERS, "s") == 10
        await ops.reset_to_time(ORDERS, "s", between)
        assert await backlog(broker, ORDERS, "s") == 5
        last = await ops.last_message_id(ORDERS)
        at = await ops.message_id_at(ORDERS, between)
        assert (last.entry_id, at.entry_id) == (9, 5)
        await ops.reset_to(ORDERS, "s", Start(last.ledger_id, 7))
        assert await backlog(broker, ORDERS, "s") == 3
        await ops.reset_to(ORDERS, "s", Start(last.ledger_id, 7, is_excluded=True))
        assert await backlog(broker, ORDERS, "s") == 2
        await ops.delete_subscription(ORDERS, "s")
        with pytest.raises(SubscriptionNotFoundError):
            await ops.delete_subscription(ORDERS, "s")
        await ops.unload_topic(ORDERS)
        assert await ops.subscriptions(ORDERS) == ["early", "late"]
        assert (await ops.terminate(ORDERS)).entry_id == 9
        async with world.client("one") as client, await client.subscribe(ORDERS.full, "s"):
            with pytest.raises(PreconditionError):
                await ops.delete_topic(ORDERS, force=False)
        assert await ops.subscriptions(ORDERS) == ["early", "late", "s"]  # idle ones do not count
        await ops.delete_topic(ORDERS, force=False)
        with pytest.raises(NotFoundError):
            await ops.stats(ORDERS)
        assert await ops.topics("public/default") == []

    simulated(story)


def test_a_partitioned_topic_is_administered_as_one() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        ops = broker.operations
        await ops.create_partitioned(ORDERS, 3)
        await ops.create_subscription(ORDERS, "s", Start.earliest())
        async with world.client("one") as client, await client.create_producer("orders") as sender:
            with pytest.raises(PreconditionError):
                await ops.delete_partitioned(ORDERS, force=False)
            for number in range(30):
                await sender.send(b"x", key=str(number))
        with pytest.raises(NotAllowedError):
            await ops.stats(ORDERS)
        total = await ops.partitioned_stats(ORDERS)
        assert total["msgInCounter"] == 30
        await ops.update_partitions(ORDERS, 4)
        assert len(await ops.topics("public/default")) == 4
        internal = await ops.partitioned_internal_stats(ORDERS)
        assert isinstance(internal["partitions"], dict)
        assert len(internal["partitions"]) == 4
        await ops.unload_topic(ORDERS)
        await ops.delete_partitioned(ORDERS, force=True)
        assert await ops.topics("public/default") == []

    simulated(story)


def test_a_namespace_goes_with_all_its_topics() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await ops.tenancy.create_tenant("t", TenantInfo([], [ops.cluster]))
        await ops.tenancy.create_namespace("t/n")
        async with world.client("one") as client:
            await send(client, "persistent://t/n/plain", 3)
            await ops.create_partitioned(TopicName.parse("persistent://t/n/wide"), 2)
            await send(client, "persistent://t/n/wide", 3)
            with pytest.raises(ConflictError):
                await ops.delete_namespace("t/n", force=False)
            await ops.delete_namespace("t/n", force=True)
            with pytest.raises(ClientError):
                await client.create_producer("persistent://t/n/plain")
            await ops.tenancy.create_namespace("t/doomed")
            await ops.tenancy.mark_deleted("t/doomed", deleted=True)
            with pytest.raises(ClientError):
                await client.create_producer("persistent://t/doomed/x")
            with pytest.raises(ConflictError):
                await ops.create_topic(TopicName.parse("persistent://t/doomed/x"), {})
            await ops.delete_namespace("t/doomed", force=False)
        await ops.tenancy.delete_tenant("t")

    simulated(story)


def test_retention_of_the_namespace_reaches_loaded_topics() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        ops = broker.operations
        async with world.client("one") as client:
            await send(client, ORDERS.full, 5)
            await ops.unload_topic(ORDERS)  # the next owner begins a new ledger
            await send(client, ORDERS.full, 1)
            assert len(await ledgers(broker)) == 2
            await trio.sleep(5)
            assert len(await ledgers(broker)) == 2
            await ops.tenancy.set_policy("public/default", RETENTION, Retention(0, 0))
            await trio.sleep(5)
            assert len(await ledgers(broker)) == 1

    simulated(story)


def test_metrics_have_pulsars_names_and_parse() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        await broker.operations.create_subscription(ORDERS, "s", Start.earliest())
        async with world.client("one") as client:
            await send(client, ORDERS.full, 5)
        text = broker.metrics.exposition().decode()
        whose = ("broker", "cluster", "namespace", "version")
        values = {
            (
                sample.name,
                *(v for k, v in sorted(sample.labels.items()) if k not in whose),
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert len(values) == sum(not line.startswith("#") for line in text.splitlines())
        assert values["pulsar_broker_topics_count",] == 1
        assert values["pulsar_in_messages_total", ORDERS.full] == 5
        assert values["pulsar_msg_backlog", ORDERS.full] == 5
        assert values["pulsar_subscription_back_log", "s", ORDERS.full] == 5
        assert values["daybook_broker_in_contact",] == 1
        assert values["daybook_broker_commands_total", "PRODUCER"] == 1

    simulated(story)


def test_internal_statistics_name_the_ranges_that_are_acknowledged_as_pulsar_does() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        await broker.operations.create_subscription(ORDERS, "s", Start.earliest())
        async with world.client("one") as client:
            await send(client, ORDERS.full, 6)
            async with await client.subscribe(ORDERS.full, "s", type="shared") as consumer:
                messages = [await consumer.receive() for _ in range(6)]
                for index in (2, 3, 5):
                    await consumer.ack(messages[index])
                await consumer.flush_acks()
        found: Any = await broker.operations.internal_stats(ORDERS)
        cursor = found["cursors"]["s"]
        ledger = messages[0].message_id.ledger_id
        ranges = f"[({ledger}:1..{ledger}:3],({ledger}:4..{ledger}:5]]"
        assert cursor["individuallyDeletedMessages"] == ranges
        assert cursor["entriesAcknowledgedAbove"] == 3
        assert await backlog(broker, ORDERS, "s") == 3

    simulated(story)


async def ledgers(broker: RunningBroker) -> list[object]:
    found = (await broker.operations.internal_stats(ORDERS))["ledgers"]
    assert isinstance(found, list)
    return found


def test_a_planned_stop_costs_less_than_a_third_of_a_second() -> None:
    gaps = takeover_gaps(lambda _, running: running.stop())
    assert max(gaps) < 0.3


def test_a_killed_broker_is_replaced_within_a_second() -> None:
    """Its session would have lasted two seconds."""

    async def kill(world: World, running: RunningBroker) -> None:
        await trio.lowlevel.checkpoint()
        world.kill(running.name)

    assert max(takeover_gaps(kill)) < 1.0


def takeover_gaps(end: Callable[[World, RunningBroker], Awaitable[None]]) -> list[float]:
    """Return the longest times without a receipt, when a topic's owner is ended three times."""
    gaps: list[float] = []

    async def story(world: World) -> None:
        brokers = {name: await world.broker(name) for name in ("a", "b", "c", "d")}
        async with world.client(*brokers) as client, trio.open_nursery() as nursery:
            last = [trio.current_time()]
            gap = [0.0]

            async def produce() -> None:
                async with await client.create_producer("orders", send_timeout_s=None) as sender:
                    while True:
                        await sender.send(b"x")
                        gap[0] = max(gap[0], trio.current_time() - last[0])
                        last[0] = trio.current_time()
                        await trio.sleep(0.002)

            nursery.start_soon(produce)
            for _ in range(3):
                await trio.sleep(2)
                url = await client.lookup("orders")
                name = url.removeprefix("pulsar://").partition(":")[0]
                gap[0] = 0.0
                await end(world, brokers.pop(name))
                await trio.sleep(2)
                gaps.append(gap[0])
            nursery.cancel_scope.cancel()

    simulated(story)
    return gaps


def test_a_port_that_is_taken_is_said_in_a_sentence() -> None:
    async def story(world: World) -> None:
        network = world.cluster.network.of("one")
        await network.listen("one", BROKER_PORT)
        async with world.cluster.metadata.open("one") as store:
            with pytest.raises(OSError, match="cannot listen on one:6650"):
                await run_broker(
                    BrokerConfig(host="one", port=BROKER_PORT),
                    store=store,
                    network=network,
                    clock=world.cluster.clock,
                    rng=Random(1),
                )

    simulated(story)


@pytest.mark.parametrize("produces", [False, True])
def test_a_refused_deletion_deletes_no_partition(produces: bool) -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await ops.create_partitioned(ORDERS, 3)
        await ops.create_subscription(ORDERS, "s", Start.earliest())
        parts = [ORDERS.partition_name(index) for index in range(3)]
        async with world.client("one") as client:
            for part in parts:
                await send(client, part.full, 1)
            used = parts[1].full
            async with (
                await client.create_producer(used)
                if produces
                else await client.subscribe(used, "s")
            ):
                with pytest.raises(PreconditionError, match="orders-partition-1"):
                    await ops.delete_partitioned(ORDERS, force=False)
                assert [part.full for part in await ops.owned.stored("public/default")] == [
                    part.full for part in parts
                ]
        await ops.delete_partitioned(ORDERS, force=False)
        assert await ops.owned.stored("public/default") == []

    simulated(story)


def test_nothing_that_is_published_into_a_new_partition_is_missed() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await ops.create_partitioned(ORDERS, 1)
        await ops.create_subscription(ORDERS, "s", Start.latest())
        await ops.update_partitions(ORDERS, 3)
        new = TopicName.parse("orders-partition-2")
        async with world.client("one") as client:
            await send(client, new.full, 3)
            async with await client.subscribe(new.full, "s", type="shared") as consumer:
                messages = [await consumer.receive() for _ in range(3)]
                assert [message.data for message in messages] == [b"0", b"1", b"2"]
                # The cursor still stands before its first ledger when this is stored.
                await consumer.ack(messages[1])
                await consumer.flush_acks()
            await ops.unload_topic(new)
            async with await client.subscribe(new.full, "s", type="shared") as consumer:
                again = [await consumer.receive() for _ in range(2)]
                assert [message.data for message in again] == [b"0", b"2"]
        stats: Any = await ops.stats(new)
        assert stats["subscriptions"]["s"]["msgBacklog"] == 2

    simulated(story)


def test_a_subscription_that_comes_while_a_topic_grows_has_all_partitions() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        ops = broker.operations
        await ops.create_partitioned(ORDERS, 1)
        await ops.create_subscription(ORDERS, "s", Start.latest())
        store = broker.operations._store
        multi = store.multi

        async def late(operations: Any) -> Any:
            store.multi = multi  # type: ignore[method-assign]
            await ops.create_subscription(ORDERS, "late", Start.latest())
            return await multi(operations)

        store.multi = late  # type: ignore[method-assign]
        await ops.update_partitions(ORDERS, 2)
        assert await ops.subscriptions(TopicName.parse("orders-partition-1")) == ["late", "s"]

    simulated(story)


def grow_after_the_count(ops: Any) -> None:
    """Let the topic grow to three partitions when the next operation has read their number."""
    real = ops.policies.partitions

    async def counted(topic: TopicName) -> int:
        ops.policies.partitions = real
        count: int = await real(topic)
        await ops.update_partitions(ORDERS, 3)
        return count

    ops.policies.partitions = counted


def test_a_subscription_has_the_partitions_that_come_while_it_is_created() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await ops.create_partitioned(ORDERS, 1)
        grow_after_the_count(ops)
        await ops.create_subscription(ORDERS, "s", Start.latest())
        for index in range(3):
            assert await ops.subscriptions(ORDERS.partition_name(index)) == ["s"]

    simulated(story)


def test_a_subscription_is_deleted_in_partitions_that_come_meanwhile() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await ops.create_partitioned(ORDERS, 1)
        await ops.create_subscription(ORDERS, "s", Start.latest())
        grow_after_the_count(ops)
        await ops.delete_subscription(ORDERS, "s")
        assert await ops.subscriptions(ORDERS) == []

    simulated(story)


def test_partitions_that_come_while_a_topic_is_deleted_are_deleted() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await ops.create_partitioned(ORDERS, 1)
        await ops.create_subscription(ORDERS, "s", Start.latest())
        real = ops.policies.delete_partitioned

        async def after_the_growth(topic: TopicName, **options: Any) -> bool:
            ops.policies.delete_partitioned = real  # type: ignore[method-assign]
            await ops.update_partitions(ORDERS, 3)
            return await real(topic, **options)

        ops.policies.delete_partitioned = after_the_growth  # type: ignore[method-assign]
        await ops.delete_partitioned(ORDERS, force=True)
        assert await ops.owned.stored("public/default") == []
        await ops.create_partitioned(ORDERS, 1)
        await ops.update_partitions(ORDERS, 2)

    simulated(story)


def test_a_topic_that_becomes_a_partition_gets_the_subscriptions() -> None:
    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await ops.create_partitioned(ORDERS, 1)
        await ops.create_subscription(ORDERS, "s", Start.latest())
        await ops._topics.logs.create(TopicName.parse("orders-partition-1"), {})
        with pytest.raises(ConflictError):
            await ops.update_partitions(ORDERS, 2)
        await ops.update_partitions(ORDERS, 2, force=True)
        assert await ops.subscriptions(TopicName.parse("orders-partition-1")) == ["s"]

    simulated(story)


def test_an_administrator_hears_which_subscriptions_a_new_partition_lacks() -> None:
    """The partition is there, so nobody would add them later."""

    async def story(world: World) -> None:
        ops = (await world.broker("one")).operations
        await ops.create_partitioned(ORDERS, 1)
        for name in ("s", "t", "u"):
            await ops.create_subscription(ORDERS, name, Start.latest())
        await ops._topics.logs.create(TopicName.parse("orders-partition-1"), {})
        real = ops.owned.create_subscription

        async def fail(topic: TopicName, name: str, start: Start) -> None:
            if name != "t":
                raise UnavailableError("its bookies do not answer")
            await real(topic, name, start)

        ops.owned.create_subscription = fail  # type: ignore[method-assign]
        with pytest.raises(UnavailableError, match=r"2 subscriptions \(s, u\).*do not answer"):
            await ops.update_partitions(ORDERS, 2, force=True)
        assert await ops.subscriptions(TopicName.parse("orders-partition-1")) == ["t"]

    simulated(story)


def test_a_broker_keeps_entries_for_readers_for_half_a_minute() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        cache = broker.metrics._cache
        async with world.client("one") as client, await client.subscribe("orders", "s") as consumer:
            await send(client, "orders", 5)
            for _ in range(5):
                await consumer.receive()
            assert cache.bytes > 0
            await trio.sleep(KEPT_S + 11.0)
            assert cache.bytes == 0
        await broker.stop()

    simulated(story)
