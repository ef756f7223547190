"""The memory of answers with messages is bounded, and held until they are sent."""

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.admin.answer_memory import AnswerMemory
from daybook.broker.admin.handling import Content, answer
from daybook.broker.admin.subscription_operations import SubscriptionOperations
from daybook.broker.errors import PreconditionError, UnavailableError
from daybook.wire.topics import TopicName
from tests.broker.control.test_server import ORDERS, World, simulated
from tests.broker.control.test_subscription_admin import start


async def test_a_request_beyond_the_bound_is_refused(autojump_clock: MockClock) -> None:
    memory = AnswerMemory(10)
    held = [await memory.hold() for _ in range(6)]
    with pytest.raises(UnavailableError, match="try again"):
        await memory.hold()
    held[0].release()
    held[0].release()
    await memory.hold()
    assert memory.taken == memory.bytes_max == 60


async def test_a_request_waits_for_an_answer_that_turns_out_to_be_small(
    autojump_clock: MockClock,
) -> None:
    memory = AnswerMemory(10)
    held = [await memory.hold() for _ in range(6)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.hold)
        await trio.sleep(1)
        held[0].shrink(5)
        await trio.sleep(1)
        assert memory.taken == 55, "the memory of a whole answer is needed"
        held[1].shrink(5)
    assert memory.taken == 60


async def test_the_memory_is_held_until_the_client_has_gone(autojump_clock: MockClock) -> None:
    done = trio.Event()
    response = answer(Content(b"x", [], on_done=done.set))

    async def receive() -> dict[str, object]:
        return await trio.sleep_forever()

    async def never_sent(_: object) -> None:
        await trio.sleep_forever()

    with trio.move_on_after(5):
        await response({"type": "http"}, receive, never_sent)
        assert not done.is_set()
    assert done.is_set()


def test_an_entry_that_becomes_too_large_is_refused() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        shown = SubscriptionOperations(rest.broker.operations, 5_000)

        async def examine(topic: TopicName, number: int) -> Content:
            return await shown.examine(topic, earliest=False, number=number, authoritative=True)

        content = await examine(ORDERS, 1)
        assert shown.answers.taken == len(content.data)
        content.on_done()
        async with (
            world.client("one") as client,
            await client.create_producer(ORDERS.full, compression="zstd") as producer,
        ):
            await producer.send(bytes(6_000))
        with pytest.raises(PreconditionError, match="read it with a consumer"):
            await examine(ORDERS, 1)
        assert shown.answers.taken == 0

    simulated(story)
