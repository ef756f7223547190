"""Acknowledgements in random order survive an unload, a hand-over, and a kill of the broker.

`python -m tests.real.acks_are_kept` does the same with real processes and a million and a half
messages.
"""

from collections.abc import Sequence
from random import Random

import pytest
import trio

from daybook.clients.python.messages import Message
from tests.broker.control.test_server import ORDERS, World, backlog, simulated

_MESSAGES = 450


async def receive(world: World, count: int) -> list[Message]:
    """Receive so many messages, and what comes soon after them."""
    found: list[Message] = []
    async with (
        world.client("one", "two") as client,
        await client.subscribe(ORDERS.full, "sub", initial_position="earliest") as consumer,
    ):
        while True:
            with trio.move_on_after(5 if len(found) >= count else 120) as scope:
                found += await consumer.receive_batch()
            if scope.cancelled_caught:
                return found


async def acknowledge(world: World, messages: Sequence[Message], *, receipts: bool) -> None:
    async with (
        world.client("one", "two") as client,
        await client.subscribe(ORDERS.full, "sub", ack_receipts=receipts) as consumer,
    ):
        for first in range(0, len(messages), 50):
            await consumer.ack([each.message_id for each in messages[first : first + 50]])


@pytest.mark.parametrize("end", ["unload", "hand over", "kill"])
def test_no_acknowledged_message_comes_again(end: str) -> None:
    async def story(world: World) -> None:
        one = await world.broker("one")
        async with (
            world.client("one") as client,
            await client.create_producer(ORDERS.full, batching=False) as producer,
        ):
            async with await client.subscribe(ORDERS.full, "sub", initial_position="earliest"):
                pass
            for number in range(_MESSAGES):
                producer.send_nowait(b"%d" % number)
            await producer.flush()
        messages = await receive(world, _MESSAGES)
        assert len(messages) == _MESSAGES
        acked = [each for number, each in enumerate(messages) if number % 3]
        Random(1).shuffle(acked)
        # With a receipt an acknowledgement is durable at once, so a kill changes nothing.
        await acknowledge(world, acked, receipts=end == "kill")
        left = [each.data for number, each in enumerate(messages) if not number % 3]
        two = one
        if end == "unload":
            await one.operations.unload_topic(ORDERS)
        else:
            two = await world.broker("two")
            if end == "kill":
                world.kill("one")
            else:
                await one.stop()
        again = [each.data for each in await receive(world, len(left))]
        assert again == left
        assert await backlog(two, ORDERS, "sub") == len(left)

    simulated(story)


def test_a_kill_brings_back_at_most_what_was_acknowledged_in_the_flush_interval() -> None:
    async def story(world: World) -> None:
        await world.broker("one")
        async with (
            world.client("one") as client,
            await client.create_producer(ORDERS.full, batching=False) as producer,
        ):
            async with await client.subscribe(ORDERS.full, "sub", initial_position="earliest"):
                pass
            for number in range(90):
                producer.send_nowait(b"%d" % number)
            await producer.flush()
        messages = await receive(world, 90)
        early, late = messages[1:60:2], messages[61:90:2]
        await acknowledge(world, early, receipts=False)
        await trio.sleep(1.5)  # more than the flush interval
        await acknowledge(world, late, receipts=False)
        await world.broker("two")
        world.kill("one")
        again = {each.data for each in await receive(world, 45)}
        assert not again.intersection(each.data for each in early)
        holes = {each.data for each in messages[0:90:2]}
        assert holes <= again

    simulated(story)
