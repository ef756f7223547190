"""Run a Spark task that writes exactly once: stage its rows for the driver's commit.

No row is in the topic when a task ends: its rows are in a staging ledger of their own, and the
driver commits the ledgers of all tasks, or none.  The brokers delete what failed tasks have staged.
`daybook.managed_ledger.sinks` has the protocol.

While a body with entries is under way to the broker, the task encodes the next rows.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa
import trio

from daybook.clients.python import blocking
from daybook.clients.python.arguments import compression_type, topic_name
from daybook.clients.python.protocol.batching import Batch as EncodedBatch
from daybook.clients.python.schemas.schema import Schema
from daybook.clients.python.sink_requests import Batch, Share, SinkRequests, StagingAttempt
from daybook.clients.python.topic_producer import COMPRESSION_ON_THE_WIRE
from daybook.clients.spark.records import RecordEncoder
from daybook.clients.spark.rows import RowEncoder, Target
from daybook.clients.spark.write_plan import WritePlan
from daybook.managed_ledger.sinks.staging import staged_entry
from daybook.wire.compression import CompressionType, compress
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

_BODY_BYTES = 3 << 20  # entries of one partition are staged together up to this size
_HELD_BYTES_MAX = 32 << 20  # limit for the entries of all partitions that wait
_VERSION_BYTES = 8

NextRows: TypeAlias = Callable[[], Awaitable[pa.RecordBatch | None]]


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """The topic of a batch, as the driver found it before the tasks began."""

    name: str  # the full name
    partitions: int
    schema_version: bytes = b""

    @classmethod
    def find(cls, plan: WritePlan) -> "PlannedTopic":
        """Ask for the number of partitions, and make sure that the topic takes messages.

        The producer creates the topic if it does not exist, and registers the schema of typed rows.
        """
        assert plan.options.topic is not None
        name = topic_name(plan.options.topic).full
        schema: Schema[Any] | None = None
        if plan.record is not None:
            schema = RecordEncoder(plan.record, plan.options.value_format).schema
        who = plan.options.credentials
        with blocking.connect(
            plan.options.service_url,
            timeout_s=None,
            tls=plan.options.tls,
            token=who.token,
            basic=who.basic,
        ) as client:
            topic = cls(name, client.partitions(name))
            with client.create_producer(topic.partition(0), schema=schema) as producer:
                version = producer.schema_version
        if version is None:
            return topic
        return replace(topic, schema_version=version.to_bytes(_VERSION_BYTES, "big"))

    def partition(self, number: int) -> str:
        """Return the name of a partition; a topic without partitions is partition 0."""
        if not self.partitions:
            return self.name
        return TopicName.parse(self.name).partition_name(number).full


@dataclass(slots=True)
class _Held:
    """The staged entries of a partition that are not sent yet."""

    entries: list[bytes] = field(default_factory=list[bytes])
    size: int = 0


class _UnderWay:
    """A body that is sent while the next one is made."""

    def __init__(self, attempt: StagingAttempt, topic: str, held: _Held) -> None:
        self.held = held
        self._attempt = attempt
        self._topic = topic
        self._done = trio.Event()
        self._error: Exception | None = None

    async def send(self) -> None:
        try:
            await self._attempt.append(self._topic, self.held.entries)
        except Exception as error:  # The next step of the task raises it.
            self._error = error
        finally:
            self._done.set()

    async def arrived(self) -> None:
        """Return when the entries are durable, and raise the error if they may not be."""
        await self._done.wait()
        if self._error is not None:
            raise self._error


def stage_rows(
    plan: WritePlan,
    topic: PlannedTopic,
    sink: str,
    batch: Batch,
    batches: Iterator[pa.RecordBatch],
    *,
    task: int,
) -> Share | None:
    """Stage all rows; return what the driver has to commit, None without rows.

    Raise BrokerError; Spark repeats the task then.
    """
    once = plan.options.once
    assert once is not None
    if plan.record is not None:
        batches = map(RecordEncoder(plan.record, plan.options.value_format).plain, batches)
    encoder = RowEncoder(plan.columns, topic.name, task, hashes_rows=True)
    encoder.add_topic(topic.name, topic.partitions)

    async def next_rows() -> pa.RecordBatch | None:
        return await trio.to_thread.run_sync(next, batches, None)

    who = once.credentials
    url = rotated(once.admin_url, task)
    staging = Staging(
        SinkRequests(url, tls=once.tls, token=who.token, basic=who.basic),
        sink,
        batch,
        topic,
        compression_type(plan.options.compression),
    )
    return trio.run(staging.run, encoder, next_rows)


def rotated(admin_url: str, task: int) -> str:
    """Return the admin URL with another broker first for each task, so that they share the work."""
    scheme, _, rest = admin_url.partition("://")
    brokers = rest.rstrip("/").split(",")
    first = task % len(brokers)
    return f"{scheme}://{','.join([*brokers[first:], *brokers[:first]])}"


class Staging:
    """The staging of one task.  An attempt begins with the first rows."""

    def __init__(
        self,
        requests: SinkRequests,
        sink: str,
        batch: Batch,
        topic: PlannedTopic,
        compression: CompressionType,
    ) -> None:
        self._requests = requests
        self._sink = sink
        self._batch = batch
        self._topic = topic
        self._compression = compression
        self._attempt: StagingAttempt | None = None
        self._held: dict[Target, _Held] = {}
        self._held_bytes = 0  # with those of the body under way
        self._under_way: _UnderWay | None = None

    async def run(self, encoder: RowEncoder, next_rows: NextRows) -> Share | None:
        """Stage what `next_rows` returns until it returns None."""
        failed: Exception | None = None
        share: Share | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    share = await self._stage(encoder, next_rows, nursery)
                except Exception as error:  # A nursery would raise it in a group.
                    failed = error
                    nursery.cancel_scope.cancel()  # the body that is under way
            if failed is None:
                return share
            if self._attempt is not None:
                await self._attempt.give_up()
            raise failed
        finally:
            if self._attempt is not None:
                self._attempt.disconnect()

    async def _stage(
        self, encoder: RowEncoder, next_rows: NextRows, nursery: trio.Nursery
    ) -> Share | None:
        while (rows := await next_rows()) is not None:
            await self._add(encoder.add(rows), nursery)
        await self._add(encoder.rest(), nursery)
        for target in self._held:
            await self._send(target, nursery)
        await self._arrived()
        if self._attempt is None:
            return None
        return await self._attempt.close(rows=encoder.rows, hash_=encoder.hash)

    async def _add(
        self, batches: Iterable[tuple[Target, EncodedBatch]], nursery: trio.Nursery
    ) -> None:
        for target, batch in batches:
            entry = self._entry(batch)
            held = self._held.setdefault(target, _Held())
            held.entries.append(entry)
            held.size += len(entry)
            self._held_bytes += len(entry)
            if held.size >= _BODY_BYTES:
                await self._send(target, nursery)
            elif self._held_bytes >= _HELD_BYTES_MAX:
                for each in self._held:
                    await self._send(each, nursery)

    async def _send(self, target: Target, nursery: trio.Nursery) -> None:
        """Begin to send what is held for a target, when the body before has arrived."""
        held = self._held[target]
        if not held.entries:
            return
        await self._arrived()
        if self._attempt is None:
            self._attempt = await self._requests.begin(self._sink, self._batch)
        self._held[target] = _Held()
        topic = self._topic.partition(target.partition)
        self._under_way = _UnderWay(self._attempt, topic, held)
        nursery.start_soon(self._under_way.send)

    async def _arrived(self) -> None:
        """Return when no body is under way.  Raise the error of the one that was."""
        if self._under_way is not None:
            await self._under_way.arrived()
            self._held_bytes -= self._under_way.held.size
            self._under_way = None

    def _entry(self, batch: EncodedBatch) -> bytes:
        metadata = pb.MessageMetadata(
            num_messages_in_batch=batch.count,
            partition_key=batch.key,
            partition_key_b64_encoded=batch.key_is_base64 or None,
        )
        body = compress(self._compression, batch.body)
        if len(body) < len(batch.body):
            metadata.compression = COMPRESSION_ON_THE_WIRE[self._compression]
            metadata.uncompressed_size = len(batch.body)
        else:
            body = batch.body
        if self._topic.schema_version:
            metadata.schema_version = self._topic.schema_version
        return staged_entry(metadata, body)
