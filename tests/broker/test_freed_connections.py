"""A connection that has ended is freed at once, and does not wait for the garbage collector.

The collector stops the whole process to find objects that only refer to each other.  So a flood of
strangers who come and go would hold up everybody else.
"""

import gc
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
from trio.testing import MockClock

from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import Client, open_broker
from tests.harness.garbage import collector_off, left_to_the_collector

_COUNT = 5


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off for a test."""
    with collector_off():
        yield


async def _silent(client: Client) -> None:
    await client.wait_closed()


async def _garbage(client: Client) -> None:
    client.frames.send([b"\0\0\0\5\1\2\3\4\5"])
    await client.wait_closed()


async def _half_a_frame(client: Client) -> None:
    client.frames.send([b"\0\0\0\5\1"])
    await client.wait_closed()


async def _polite(client: Client) -> None:
    await client.connect()
    await client.producer()
    client.send(0)
    await client.receipts(1)
    await client.subscribe(permits=10)
    await client.deliveries(0)
    await client.ask(pb.CommandLookupTopic(topic="t"), pb.CommandLookupTopicResponse)
    await client.ask(pb.CommandSeek(consumer_id=1), pb.CommandSuccess)  # This one is refused.
    client.frames.close()


@pytest.mark.parametrize("kind", [_silent, _garbage, _half_a_frame, _polite])
@pytest.mark.usefixtures("uncollected")
async def test_a_client_that_has_gone_is_freed(
    kind: Callable[[Client], Awaitable[None]], autojump_clock: MockClock
) -> None:
    async with open_broker() as cluster:

        async def come_and_go() -> None:
            client = await cluster.client(connect=False)
            await kind(client)
            client.frames.close()
            await trio.sleep(5.0)
            assert not cluster.broker.serving

        await come_and_go()
        gc.collect()
        for _ in range(_COUNT):
            await come_and_go()
        often = left_to_the_collector(_COUNT)
    assert not often
