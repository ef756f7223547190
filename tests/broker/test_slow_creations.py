"""One client's change of a subscription, while the store is slow, and the waiting requests."""

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.limits import TopicLimits
from daybook.managed_ledger.position import Position
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.slow_store import SlowStore, hold_resets
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

SHARED = pb.CommandSubscribe.Shared
EARLIEST = pb.CommandSubscribe.Earliest
BOUND_S = TopicLimits().change_s


async def with_entries(cluster: Cluster, count: int) -> Client:
    client = await cluster.client()
    await client.producer()
    for n in range(count):
        client.send(n)
    await client.receipts(count)
    return client


def subscribe(name: str, rollback_s: int = 0) -> pb.CommandSubscribe:
    request = pb.CommandSubscribe(
        topic=TOPIC,
        subscription=name,
        consumer_id=7,
        request_id=70,
        start_message_rollback_duration_sec=rollback_s,
    )
    request.subType = SHARED
    return request


@pytest.mark.parametrize("durable", [True, False], ids=["existing", "reader"])
@pytest.mark.parametrize("rollback_s", [0, 3600], ids=["the store", "bookies"])
async def test_nobody_waits_for_the_new_subscription_of_another(
    autojump_clock: MockClock, nursery: trio.Nursery, rollback_s: int, durable: bool
) -> None:
    async with open_broker() as cluster:
        one, two = await with_entries(cluster, 3), await cluster.client()
        await one.subscribe(name="old", kind=SHARED, initialPosition=EARLIEST)
        SlowStore(cluster.broker.log(), nursery)
        if rollback_s:
            hold_searches(cluster)
        two.tell(subscribe("new", rollback_s))
        await two.settle()
        assert not two.got
        name = "old" if durable else "reader"
        with trio.fail_after(1):
            answer = await one.subscribe(
                2, name=name, kind=SHARED, durable=durable, initialPosition=EARLIEST, permits=9
            )
            assert isinstance(answer, pb.CommandSuccess)
            assert isinstance(
                await one.producer(2, initial_subscription_name="old"), pb.CommandProducerSuccess
            )
        assert not two.got
        nursery.cancel_scope.cancel()


async def test_two_that_search_their_place_at_the_same_time_get_one_subscription(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with open_broker() as cluster:
        one, two = await with_entries(cluster, 3), await cluster.client()
        store = SlowStore(cluster.broker.log(), nursery)
        gate = hold_searches(cluster)
        for client in (one, two):
            client.tell(subscribe("new", 3600))
        await two.settle()
        gate.set()
        store.gate.set()
        for client in (one, two):
            await client.wait(pb.CommandSuccess)
        assert store.asked == 1
        subscriptions = cluster.broker.topics.loaded[TOPIC].subscriptions
        assert len(subscriptions.get("new").consumers) == 2


async def test_who_wants_a_subscription_that_is_created_for_long_is_told(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with open_broker() as cluster:
        one, two = await with_entries(cluster, 3), await cluster.client()
        store = SlowStore(cluster.broker.log(), nursery)
        two.tell(subscribe("new"))
        await two.settle()
        error = await told_in_time(one, "new")
        assert error.error == pb.ServiceNotReady
        store.gate.set()
        await two.wait(pb.CommandSuccess)
        assert isinstance(await one.subscribe(name="new", kind=SHARED), pb.CommandSuccess)


async def test_who_wants_a_subscription_that_is_deleted_for_long_is_told(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with open_broker() as cluster:
        one, two = await with_entries(cluster, 3), await cluster.client()
        await two.subscribe(name="old", kind=SHARED)
        store = SlowStore(cluster.broker.log(), nursery)
        two.tell(pb.CommandUnsubscribe(consumer_id=1, request_id=71))
        await two.settle()
        error = await told_in_time(one, "old")
        assert error.error == pb.ServiceNotReady
        store.gate.set()
        await two.wait(pb.CommandSuccess)
        assert isinstance(await one.subscribe(name="old", kind=SHARED), pb.CommandSuccess)


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "volatile"])
async def test_who_wants_a_subscription_that_is_moved_for_long_is_told(
    autojump_clock: MockClock, durable: bool
) -> None:
    """The client that began the reset may be gone: others get an error, not a closed connection."""
    async with open_broker() as cluster:
        one, two = await with_entries(cluster, 3), await cluster.client()
        for client in (one, two):
            await client.subscribe(name="old", kind=SHARED, durable=durable)
        if durable:
            gate = hold_resets(cluster.broker.log().by_name["old"])
        else:
            gate = hold_searches(cluster)
        two.tell(pb.CommandSeek(consumer_id=1, request_id=71, message_publish_time=1))
        await one.wait(pb.CommandCloseConsumer)
        two.frames.close()
        error = await told_in_time(one, "old", durable=durable)
        assert error.error == pb.ServiceNotReady
        gate.set()
        answer = await one.subscribe(name="old", kind=SHARED, durable=durable, permits=9)
        assert isinstance(answer, pb.CommandSuccess)
        assert await one.entry_ids(3) == [0, 1, 2]


async def told_in_time(client: Client, name: str, *, durable: bool = True) -> pb.CommandError:
    """Return the error that comes when the bound is over, and not before."""
    began = trio.current_time()
    error = await client.subscribe(name=name, kind=SHARED, durable=durable)
    assert isinstance(error, pb.CommandError)
    assert BOUND_S <= trio.current_time() - began < BOUND_S + 1
    return error


def hold_searches(cluster: Cluster) -> trio.Event:
    """Let the bookies answer only when the event is set."""
    logs, gate = cluster.broker.logs, trio.Event()
    find = logs.position_of_time

    async def slow(log: object, publish_ms: int) -> Position:
        await gate.wait()
        return await find(log, publish_ms)  # type: ignore[arg-type]

    logs.position_of_time = slow  # type: ignore[method-assign]
    return gate
