"""What several partitions share: messages that have arrived, taken while others arrive or go."""

from collections.abc import Callable
from typing import cast
from weakref import ref

import trio

from clients.python.consumer import MessageQueue
from clients.python.messages import Entry, Message
from clients.python.topic_consumer import TopicConsumer, Waiting
from wire.batch import SingleMetadata
from wire.messages.consumer import Delivery

COUNT = 50


class Partition:
    """A partition whose entries have one message; says when one of them is taken apart."""

    def __init__(self, name: bytes, on_unpack: Callable[[], None]) -> None:
        self.name = name
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
    """A refusal in one partition drops what waits of it, while a batch of another one is taken
    apart: every message of that comes once."""
    queue = MessageQueue()
    async with trio.open_nursery() as nursery:
        gone = Partition(b"gone", lambda: None)
        kept = Partition(b"kept", lambda: nursery.start_soon(drop))
        found: list[bytes] = []

        async def drop() -> None:
            queue.drop(gone.end)

        for number in range(COUNT):
            queue.put(kept.waiting(number))
        while queue.has_messages:
            batch = await queue.take_many(COUNT * 2, [kept.end, gone.end])
            found += [message.data for message in batch]
    assert found == [b"kept%d" % number for number in range(COUNT)]
