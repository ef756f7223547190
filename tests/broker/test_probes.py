"""A client is probed once, however many of its consumers stand in the way."""

import trio
from trio.testing import MockClock

from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, open_broker

_SHARED = pb.CommandSubscribe.Shared
N = 20


async def _answer_pings(client: Client) -> None:
    await client.wait(pb.CommandPing)
    client.tell(pb.CommandPong())


async def test_a_client_is_asked_once_for_all_its_consumers(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        first, second = await cluster.client(), await cluster.client()
        for n in range(N):
            assert isinstance(await first.subscribe(n, kind=_SHARED), pb.CommandSuccess)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_pings, first)
            assert isinstance(await second.subscribe(), pb.CommandError)
            await first.settle()
            nursery.cancel_scope.cancel()
        assert not first.bodies(pb.CommandPing)  # Only the answered one was sent.


async def test_all_consumers_of_a_client_that_is_gone_make_way(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        first, second = await cluster.client(), await cluster.client()
        for n in range(N):
            assert isinstance(await first.subscribe(n, kind=_SHARED), pb.CommandSuccess)
        cluster.broker.network.block("client-1", "broker")
        assert isinstance(await second.subscribe(), pb.CommandSuccess)
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name["sub"]
        assert len(subscription.consumers) == 1


async def test_of_two_newcomers_one_gets_the_name_of_a_producer_that_is_gone(
    autojump_clock: MockClock,
) -> None:
    """Both ask the one that has the name for a sign of life, and both get none."""
    async with open_broker() as cluster:
        holder, *newcomers = [await cluster.client() for _ in range(3)]
        assert isinstance(await holder.producer(producer_name="p"), pb.CommandProducerSuccess)
        cluster.broker.network.block("client-1", "broker")
        answers, answered = [], trio.Event()

        async def ask(client: Client) -> None:
            answers.append(type(await client.producer(producer_name="p")))
            if len(answers) == 2:
                answered.set()

        async with trio.open_nursery() as nursery:
            for client in newcomers:
                nursery.start_soon(ask, client)
                nursery.start_soon(_answer_pings, client)
            await answered.wait()
            nursery.cancel_scope.cancel()
        assert set(answers) == {pb.CommandProducerSuccess, pb.CommandError}
        assert not any(client.frames.closed for client in newcomers)
