"""The same messages in topics of both systems, in batches that are full, and how they are stored.

A producer of Daybook sends a batch at once when none of its sends waits for a receipt.  Its batches
would therefore be as large as it was quick to get messages, and those of Kafka, whose producer
waits for `linger.ms`, would be full.  So the batches are built here.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from daybook.clients.python.connect import connect
from daybook.clients.python.protocol.batching import BatchBuilder
from daybook.clients.python.reader import TopicLedgers

_HEAD = Struct(">qi")  # the first offset of a batch of Kafka, and the size of the rest


@dataclass(frozen=True, slots=True)
class Stored:
    """The room that a topic takes in one system."""

    batches: int
    bytes: int

    def __str__(self) -> str:
        mean = self.bytes / max(1, self.batches)
        return f"{self.bytes / 1e6:,.1f} MB in {self.batches:,} batches of {mean / 1e3:,.1f} KB"


async def fill_daybook(
    service_url: str,
    topic: str,
    *,
    partitions: int,
    rows: int,
    key_of: Callable[[int], str],
    value: bytes,
    batch_bytes: int,
) -> None:
    """Send the rows 0 to `rows` - 1; each goes to the partition that is its rest.

    The batches of all partitions are sent in turns, so that they lie beside each other in the logs
    of bookies, as those of a producer do.
    """
    async with connect(service_url) as client, AsyncExitStack() as stack:
        builders = [BatchBuilder(rows, batch_bytes) for _ in range(partitions)]
        producers = [
            await stack.enter_async_context(
                await client.create_producer(f"{topic}-partition-{partition}")
            )
            for partition in range(partitions)
        ]
        for number in range(rows):
            partition = number % partitions
            if builders[partition].add(value, key_of(number), number // partitions):
                await producers[partition].wait_room()
                producers[partition].send_batch_nowait(builders[partition].take())
        for builder, producer in zip(builders, producers, strict=True):
            if builder.count:
                await producer.wait_room()
                producer.send_batch_nowait(builder.take())
            await producer.flush()


def stored_in_daybook(ledgers: Sequence[TopicLedgers]) -> Stored:
    """Return what the sealed ledgers of all partitions hold, once: without the replicas."""
    sealed = [ledger for each in ledgers for ledger in each.sealed]
    return Stored(sum(each.entries for each in sealed), sum(each.bytes for each in sealed))


def stored_in_kafka(data: Path, topic: str) -> Stored:
    """Return what the files of all partitions hold."""
    batches = size = 0
    for file in data.glob(f"{topic}-[0-9]*/*.log"):
        with file.open("rb") as log:
            while len(head := log.read(_HEAD.size)) == _HEAD.size:
                left = _HEAD.unpack(head)[1]
                if left <= 0:  # A file may be longer than what it holds.
                    break
                batches += 1
                size += _HEAD.size + left
                log.seek(left, 1)
    return Stored(batches, size)
