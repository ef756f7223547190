"""Rates of dispatch and of subscribing at work, through a whole broker."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.config import parse
from daybook.broker.dispatch.explain import explain
from daybook.broker.errors import TooManyRequestsError
from daybook.broker.namespaces.policy_table import defaults
from daybook.broker.namespaces.policy_types import DispatchRate, SubscribeRate, SubscriptionPolicies
from daybook.broker.protocol.dispatch_rate import DispatchRates, Room
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.test_policies import broker_with, change
from tests.harness.broker import TOPIC, Client, Cluster

SHARED = pb.CommandSubscribe.Shared
EARLIEST = pb.CommandSubscribe.Earliest
TEN = DispatchRate(dispatch_throttling_rate_in_msg=10)
OFF = DispatchRate()


@asynccontextmanager
async def backlog_of(count: int, **policies: Any) -> AsyncGenerator[tuple[Cluster, Client]]:
    async with broker_with(**policies) as (cluster, client):
        await client.producer()
        for number in range(count):
            client.send(number, b"x" * 1_000)
        await client.receipts(count)
        yield cluster, client


async def subscribe(client: Client, consumer_id: int = 1, **options: Any) -> None:
    options = {"initialPosition": EARLIEST, "permits": 1_000, **options}
    assert isinstance(await client.subscribe(consumer_id, **options), pb.CommandSuccess)


def got(client: Client) -> int:
    return len(client.bodies(Delivery))


@pytest.mark.parametrize("policy", ["dispatch_rate", "subscription_dispatch_rate"])
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
async def test_a_consumer_gets_a_second_at_once_and_then_the_rate(
    autojump_clock: MockClock, policy: str, kind: str
) -> None:
    async with backlog_of(60, **{policy: TEN}) as (_, client):
        began = trio.current_time()
        await subscribe(client, kind=pb.CommandSubscribe.SubType.Value(kind))
        await client.settle()
        assert 10 <= got(client) <= 12
        found = await client.deliveries(60)
        assert 4.5 < trio.current_time() - began < 6.5
        assert len({(each.ledger_id, each.entry_id) for each in found}) == 60


async def test_a_dispatch_rate_counts_bytes(autojump_clock: MockClock) -> None:
    rate = DispatchRate(dispatch_throttling_rate_in_byte=2_000)
    async with backlog_of(12, dispatch_rate=rate) as (_, client):
        began = trio.current_time()
        await subscribe(client)
        await client.deliveries(12)
        assert 4 < trio.current_time() - began < 7


async def test_a_batch_counts_as_its_messages(autojump_clock: MockClock) -> None:
    async with broker_with(dispatch_rate=TEN) as (_, client):
        await client.producer()
        for number in range(6):
            client.send_batch(number * 10, 10)
        await client.receipts(6)
        began = trio.current_time()
        await subscribe(client)
        await client.settle()
        assert got(client) == 1
        await client.deliveries(6)
        assert 4 < trio.current_time() - began < 6.5


async def test_subscriptions_share_the_rate_of_their_topic_and_none_starves(
    autojump_clock: MockClock,
) -> None:
    async with backlog_of(40, dispatch_rate=TEN) as (cluster, one):
        two = await cluster.client()
        began = trio.current_time()
        await subscribe(one, name="a")
        await subscribe(two, name="b")
        await one.deliveries(40)
        await two.deliveries(40)
        assert 6 < trio.current_time() - began < 9
    own = {"subscription_dispatch_rate": TEN}
    async with backlog_of(40, **own) as (cluster, one):
        two = await cluster.client()
        began = trio.current_time()
        await subscribe(one, name="a")
        await subscribe(two, name="b")
        await one.deliveries(40)
        await two.deliveries(40)
        assert 2.5 < trio.current_time() - began < 4.5


async def test_a_single_subscription_may_have_a_rate_of_its_own(
    autojump_clock: MockClock,
) -> None:
    own = {"slow": SubscriptionPolicies(TEN), "fast": SubscriptionPolicies(OFF)}
    rates = {"subscription_dispatch_rate": DispatchRate(20), "of_subscriptions": own}
    async with backlog_of(40, **rates) as (cluster, client):
        others = [await cluster.client() for _ in range(2)]
        began, took = trio.current_time(), dict[str, float]()

        async def take(name: str, each: Client) -> None:
            await each.deliveries(40)
            took[name] = trio.current_time() - began

        names = {"slow": client, "fast": others[0], "like all": others[1]}
        for name, each in names.items():
            await subscribe(each, name=name)
        async with trio.open_nursery() as nursery:
            for name, each in names.items():
                nursery.start_soon(take, name, each)
        assert took["fast"] < 0.5 < took["like all"] < 1.7
        assert 2.5 < took["slow"] < 4


@pytest.mark.parametrize("other", [OFF, DispatchRate(1_000), DispatchRate(0, 0)])
async def test_a_limit_that_is_raised_or_removed_counts_at_once(
    autojump_clock: MockClock, other: DispatchRate
) -> None:
    hourly = DispatchRate(10, rate_period_in_second=3600)
    async with backlog_of(50, dispatch_rate=hourly) as (cluster, client):
        await subscribe(client)
        await client.settle(60)
        assert got(client) == 10
        began = trio.current_time()
        await change(cluster, dispatch_rate=other)
        await client.deliveries(50)
        assert trio.current_time() - began < 2


async def test_another_policy_that_changes_leaves_the_balance_alone(
    autojump_clock: MockClock,
) -> None:
    hourly = DispatchRate(10, rate_period_in_second=3600)
    own = {"dispatch_rate": hourly, "subscription_dispatch_rate": hourly}
    async with backlog_of(50, **own) as (cluster, client):
        await subscribe(client)
        await client.settle()
        await change(cluster, max_producers=9)
        await client.settle()
        assert got(client) == 10


async def test_redeliveries_count(autojump_clock: MockClock) -> None:
    hourly = DispatchRate(10, rate_period_in_second=3600)
    async with backlog_of(8, subscription_dispatch_rate=hourly) as (_, client):
        await subscribe(client, kind=SHARED)
        assert len(await client.deliveries(8)) == 8
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        await client.settle(30)
        assert 2 <= got(client) <= 3, "the rest of the hour's ten"
        await client.settle(3600)
        assert len(await client.deliveries(8)) == 8


async def test_redelivered_batches_that_do_not_fit_come_later(autojump_clock: MockClock) -> None:
    async with broker_with(subscription_dispatch_rate=TEN) as (_, client):
        await client.producer()
        for number in range(5):
            client.send_batch(number * 8, 8)
        await client.receipts(5)
        await subscribe(client, kind=SHARED)
        await client.deliveries(5)
        began = trio.current_time()
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        found = await client.deliveries(5)
        assert trio.current_time() - began > 2
        assert len({(each.ledger_id, each.entry_id) for each in found}) == 5


async def test_a_relative_rate_adds_what_producers_sent(autojump_clock: MockClock) -> None:
    rate = DispatchRate(1, relative_to_publish_rate=True)
    async with broker_with(dispatch_rate=rate) as (cluster, client):
        await client.producer()
        topic = cluster.broker.topics.loaded[TOPIC]
        topic.tick_rates(0.0)
        for number in range(600):
            client.send(number)
        await client.receipts(600)
        topic.tick_rates(60.0)
        await subscribe(client)
        began = trio.current_time()
        await client.deliveries(100)
        assert 6 < trio.current_time() - began < 12


async def test_a_relative_rate_that_rises_counts_at_once(autojump_clock: MockClock) -> None:
    rate = DispatchRate(1, rate_period_in_second=3600, relative_to_publish_rate=True)
    async with broker_with(dispatch_rate=rate) as (cluster, client):
        await client.producer()
        topic = cluster.broker.topics.loaded[TOPIC]
        topic.tick_rates(0.0)
        for number in range(600):
            client.send(number)
        await client.receipts(600)
        await subscribe(client)
        await client.settle(5)
        assert got(client) == 1
        topic.tick_rates(60.0)
        with trio.fail_after(30):
            await client.deliveries(50)


async def test_a_limit_that_opens_while_it_is_looked_at_is_no_sleep_for_ever(
    autojump_clock: MockClock,
) -> None:
    class Opening(DispatchRates):
        """The limit is open as soon as the dispatcher has seen that it is closed."""

        def room(self, now_s: float) -> Room:
            found = super().room(now_s)
            if found.is_closed:
                autojump_clock.jump(self.wait_s(now_s) + 0.001)
            return found

    async with backlog_of(20, dispatch_rate=TEN) as (cluster, client):
        await subscribe(client, permits=0)
        topic = cluster.broker.topics.loaded[TOPIC]
        limit = topic.rate_limits.dispatch.limit
        assert limit is not None
        topic.subscriptions.get("sub").dispatcher.rates = Opening([limit])
        client.flow(1_000)
        with trio.fail_after(30):
            await client.deliveries(20)


async def test_it_says_which_limit_a_subscription_waits_for_and_that_is_no_stall(
    autojump_clock: MockClock,
) -> None:
    rate = DispatchRate(10, rate_period_in_second=1_000)
    async with backlog_of(50, subscription_dispatch_rate=rate) as (cluster, client):
        await subscribe(client)
        await client.settle()
        await trio.sleep(40)
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")
        found = explain(subscription, cluster.broker.clock.now_ms(), trio.current_time())
        (blocker,) = found.blockers
        assert blocker.cause == "dispatchRate"
        assert "subscriptionDispatchRate is 10 messages in 1000 s" in found.summary
        assert blocker.since is not None
        assert blocker.until is not None
        assert "for 40" in found.summary
        assert found.stalled_s is None
        watch = cluster.broker.topics.watch
        assert (watch.stalls, dict(watch.stalled)) == (0, {})


async def test_no_limit_leaves_the_dispatcher_without_one(autojump_clock: MockClock) -> None:
    async with backlog_of(5, dispatch_rate=TEN) as (cluster, client):
        await subscribe(client)
        dispatcher = cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub").dispatcher
        assert dispatcher.rates is not None
        await change(cluster, dispatch_rate=OFF)
        assert dispatcher.rates is None


async def test_a_consumer_that_subscribes_too_often_is_told_when_to_come_again(
    autojump_clock: MockClock,
) -> None:
    rate = SubscribeRate(3, 30)
    async with broker_with(subscribe_rate=rate) as (cluster, client):

        async def once(consumer_id: int = 1, name: str = "c") -> Any:
            answer = await client.subscribe(consumer_id, kind=SHARED, consumer_name=name)
            if isinstance(answer, pb.CommandSuccess):
                await client.ask(
                    pb.CommandCloseConsumer(consumer_id=consumer_id), pb.CommandSuccess
                )
            return answer

        for _ in range(3):
            assert isinstance(await once(), pb.CommandSuccess)
        refused = await once()
        assert refused.error == pb.TooManyRequests
        assert "subscribeRate" in refused.message
        assert isinstance(await once(2), pb.CommandSuccess), "another consumer may"
        assert isinstance(await once(1, "d"), pb.CommandSuccess), "another name may"
        await client.settle(10)
        assert isinstance(await once(), pb.CommandSuccess)
        assert (await once()).error == pb.TooManyRequests
        await change(cluster, max_consumers=9)
        assert (await once()).error == pb.TooManyRequests
        await change(cluster, subscribe_rate=SubscribeRate())
        assert isinstance(await once(), pb.CommandSuccess)


async def test_a_client_that_comes_again_has_the_same_balance(autojump_clock: MockClock) -> None:
    """The port differs: the host, the name and the id are what counts."""
    async with broker_with(subscribe_rate=SubscribeRate(2, 30)) as (cluster, client):
        await client.subscribe(1, kind=SHARED, consumer_name="c")
        topic = cluster.broker.topics.loaded[TOPIC]
        (consumer,) = topic.subscriptions.get("sub").consumers.values()
        host = consumer.connection.peer.rpartition(":")[0]
        again = replace(consumer.connection, peer=f"{host}:4711")
        topic.rate_limits.check_subscribe(again, "c", 1)
        with pytest.raises(TooManyRequestsError, match="try again in 15"):
            topic.rate_limits.check_subscribe(again, "c", 1)
        elsewhere = replace(consumer.connection, peer="10.1.2.3:4711")
        topic.rate_limits.check_subscribe(elsewhere, "c", 1)


async def test_the_end_of_the_log_is_noticed_while_the_limit_is_closed(
    autojump_clock: MockClock,
) -> None:
    hourly = DispatchRate(10, rate_period_in_second=3600)
    async with backlog_of(10, dispatch_rate=hourly) as (cluster, client):
        await subscribe(
            client, durable=False, start_message_id=pb.MessageIdData(ledgerId=0, entryId=0)
        )
        await client.deliveries(10)
        await client.settle()
        dispatcher = cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub").dispatcher
        assert dispatcher.rates is not None
        assert dispatcher.rates.room(trio.current_time()).is_closed
        assert dispatcher.at_end


def test_the_settings_of_a_broker_count_where_no_policy_does() -> None:
    config = parse(
        {
            "zookeeper": "z:1",
            "dispatch_messages_per_s": 5,
            "subscription_dispatch_bytes_per_s": 7,
            "subscribes_per_consumer": 3,
            "subscribes_period_s": 9,
        }
    )
    found = defaults(config)
    assert found.dispatch_rate == DispatchRate(5, -1)
    assert found.subscription_dispatch_rate == DispatchRate(-1, 7)
    assert found.subscribe_rate == SubscribeRate(3, 9)
