"""The leak check of idle brokers finds what it should."""

from typing import cast

import trio
from trio.testing import MockClock

from daybook.broker.dispatch.subscription import Target
from daybook.broker.server import RunningBroker
from daybook.managed_ledger.position import Position
from tests.harness.broker import TOPIC, Cluster, open_broker
from tests.harness.fake_log import FakeCursor
from tests.simulation.rest import leaks


def found(cluster: Cluster) -> list[str]:
    return leaks("broker", cast("RunningBroker", cluster.broker), {"": 1000}, 0)


async def test_a_cursor_without_a_subscription_is_found(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.subscribe(permits=9)
        await client.settle()
        log = cluster.broker.log()
        assert not found(cluster)
        for name in ("hidden", "pulsar.dedup"):
            log.by_name[name] = FakeCursor(log, name, Position(5, -1))
        (text,) = found(cluster)
        assert text.startswith(f"broker has of {TOPIC} the cursor hidden")
        del log.by_name["hidden"], log.by_name["sub"]
        assert found(cluster) == [
            f"broker has of {TOPIC} the subscription sub, which has no cursor"
        ]


async def test_a_move_that_does_not_end_is_found(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.subscribe(permits=9)
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")

        async def find() -> Target:
            await trio.sleep_forever()
            raise AssertionError

        with trio.move_on_after(1):
            await subscription.move(find)
        assert found(cluster) == [
            f"broker has of {TOPIC} the subscription sub, whose move does not end"
        ]
