"""Run a Spark task that writes: send its rows to their partitions, and wait for all receipts.

Each task opens its own client and a producer for each partition that it meets.  A task that fails
is repeated by Spark from its first row, so rows may be stored twice; no row of a task that ended is
missing.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import trio

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.producer import Producer
from daybook.clients.python.protocol.batching import Batch
from daybook.clients.python.schemas.schema import Schema
from daybook.clients.spark.records import RecordEncoder
from daybook.clients.spark.rows import RowEncoder, Target
from daybook.clients.spark.sink_options import SinkOptions
from daybook.clients.spark.write_plan import WritePlan

SEND_TIMEOUT_S = 120.0  # Takeovers are over in that time; then the task fails and is repeated.


def send_rows(plan: WritePlan, batches: Iterator[pa.RecordBatch], *, task: int) -> int:
    """Send all rows; return their number when all of them are stored.  Raise BrokerError.

    `task` is the number of the Spark task: tasks begin with different partitions.
    """
    schema: Schema[Any] | None = None
    if plan.record is not None:
        records = RecordEncoder(plan.record, plan.options.value_format)
        schema, batches = records.schema, map(records.plain, batches)
    encoder = RowEncoder(plan.columns, plan.options.topic, task)
    return trio.run(_send_rows, plan.options, schema, encoder, batches)


async def _send_rows(
    options: SinkOptions,
    schema: Schema[Any] | None,
    encoder: RowEncoder,
    batches: Iterator[pa.RecordBatch],
) -> int:
    who = options.credentials
    async with connect(
        options.service_url, timeout_s=None, tls=options.tls, token=who.token, basic=who.basic
    ) as client:
        sending = _Sending(client, options, schema)
        # The thread waits for Spark's next rows; receipts and pings are handled meanwhile.
        while (rows := await trio.to_thread.run_sync(next, batches, None)) is not None:
            for topic in encoder.unknown_topics(rows):
                encoder.add_topic(topic, await sending.find(topic))
            await sending.send(encoder.add(rows))
        await sending.send(encoder.rest())
        await sending.finish()
    return encoder.rows


class _Sending:
    """The producers of one task."""

    def __init__(self, client: Client, options: SinkOptions, schema: Schema[Any] | None) -> None:
        self._client = client
        self._options = options
        self._schema = schema
        self._partitions: dict[str, int] = {}
        self._producers: dict[Target, Producer[Any]] = {}

    async def find(self, topic: str) -> int:
        """Return the number of partitions of a topic, which is created if it does not exist."""
        self._partitions[topic] = found = await self._client.partitions(topic)
        return found

    async def send(self, batches: Iterable[tuple[Target, Batch]]) -> None:
        """Hand batches over to their producers."""
        for target, batch in batches:
            producer = self._producers.get(target)
            if producer is None:
                producer = self._producers[target] = await self._open(target)
            await producer.wait_room()
            producer.send_batch_nowait(batch)

    async def finish(self) -> None:
        """Return when everything is stored.  Raise the first failure."""
        for producer in self._producers.values():
            await producer.aclose()

    async def _open(self, target: Target) -> Producer[Any]:
        topic = target.topic
        if self._partitions[topic]:
            topic = f"{topic}-partition-{target.partition}"
        return await self._client.create_producer(
            topic,
            schema=self._schema,
            compression=self._options.compression,
            send_timeout_s=SEND_TIMEOUT_S,
        )
