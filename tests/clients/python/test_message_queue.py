"""The queue shared by several partitions: messages are taken while others arrive or go."""

from collections.abc import Callable
from typing import cast
from weakref import ref

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from daybook.clients.python.errors import BrokerError, ClosedError
from daybook.clients.python.message_queue import MessageQueue, Waiting
from daybook.clients.python.messages import Entry, Message
from daybook.clients.python.topic_consumer import TopicConsumer
from daybook.wire.batch import SingleMetadata
from daybook.wire.messages.consumer import Delivery

COUNT = 50


class Partition:
    """A partition of one-message entries that reports when one of them is unpacked."""

    def __init__(self, name: bytes, on_unpack: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.failure: BrokerError | None = None
        self.end_of_topic = False
        self._on_unpack = on_unpack

    @property
    def end(self) -> TopicConsumer:
        return cast("TopicConsumer", self)

    def waiting(self, number: int) -> Waiting:
        payload = b"%s%d" % (self.name, number)
        delivery = Delivery(0, 1, number, 0, 0, None, None, memoryview(payload))
        return Waiting(self.end, delivery, payload)

    def unpack(self, waiting: Waiting) -> list[Message]:
        self._on_unpack()
        single = SingleMetadata(len(waiting.payload), None, False, None, (), 0, None, False, False)
        number = waiting.delivery.entry_id
        entry = Entry("t", 0, 1, number, 0, 0, None, "p", number, None, False, ref(self), 0)
        return [Message(waiting.payload, entry, 0, single)]


async def test_a_partition_that_starts_over_takes_nothing_of_another_with_it() -> None:
    """A negative acknowledgement in one partition drops its waiting messages, while a batch of
    another partition is unpacked: each of those messages comes once.
    """
    queue = MessageQueue()
    async with trio.open_nursery() as nursery:
        gone = Partition(b"gone")
        kept = Partition(b"kept", lambda: nursery.start_soon(drop))
        found: list[bytes] = []

        async def drop() -> None:
            queue.drop(gone.end)

        for number in range(COUNT):
            queue.put(kept.waiting(number))
        while queue.has_messages:
            batch = await queue.take_many(COUNT * 2, [kept.end, gone.end])
            found += [message.data or b"" for message in batch]
    assert found == [b"kept%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("many", [False, True])
async def test_as_many_tasks_get_a_message_as_there_are(
    many: bool,
    autojump_clock: MockClock,
) -> None:
    """Some tasks wait, and messages come one by one and together: no task stays asleep while there
    is a message that no task has taken.
    """
    queue, partition = MessageQueue(), Partition(b"p")
    found: list[bytes | None] = []

    async def take() -> None:
        if many:
            found.extend(message.data for message in await queue.take_many(1, [partition.end]))
        else:
            message = await queue.take([partition.end])
            assert message is not None
            found.append(message.data)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for waiting in range(6):
                nursery.start_soon(take)
                if waiting % 2:
                    await wait_all_tasks_blocked()
            for number in range(6):
                queue.put(partition.waiting(number))
                if number in (0, 3):
                    await wait_all_tasks_blocked()
                    assert len(found) == number + 1
    assert len(found) == 6
    assert set(found) == {b"p%d" % number for number in range(6)}


@pytest.mark.parametrize("failed", [False, True])
async def test_all_who_wait_hear_of_the_end(
    failed: bool,
    autojump_clock: MockClock,
) -> None:
    queue, partition = MessageQueue(), Partition(b"p")
    heard: list[str] = []

    async def take() -> None:
        try:
            heard.append(str(await queue.take([partition.end])))
        except ClosedError:
            heard.append("closed")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(take)
                await wait_all_tasks_blocked()
            queue.wake()  # A spurious wake-up: they wait on.
            await wait_all_tasks_blocked()
            assert not heard
            partition.failure = ClosedError("t: closed") if failed else None
            partition.end_of_topic = not failed
            queue.wake()
    assert heard == (["closed"] * 3 if failed else ["None"] * 3)
