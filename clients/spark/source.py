"""The Spark format `daybook`: a topic as a table, or as a stream, by offset.

    spark.dataSource.register(DaybookDataSource)
    spark.read.format("daybook").option("service.url", "pulsar://localhost:6650")
         .option("topic", "flights").load()

Offsets are exact integers and ranges half-open, so a stream that is restarted from its checkpoint
reads every message once.  Streams support admission control (`maxOffsetsPerTrigger`) and
Trigger.AvailableNow, which takes the end once, when the query starts.

Spark imports this module in several short-lived processes that only need names and options.  The
client and pyarrow are therefore imported inside the functions that need them.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from daybook.clients.spark.offsets import (
    OffsetRange,
    Retained,
    carry_over,
    limit,
    ranges,
    resolve,
    split,
)
from daybook.clients.spark.options import ReadTask, SourceOptions, parse_options
from daybook.clients.spark.sink import batch_writer, stream_writer

if TYPE_CHECKING:
    import pyarrow as pa

    from daybook.clients.python import blocking

SCHEMA_DDL = (
    "key string, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "eventTime timestamp, properties map<string,string>, messageId binary"
)


class TaskPartition(InputPartition):
    """The part of a query that one task reads."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)


class DaybookDataSource(DataSource):
    """The format `daybook`, for `read`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "daybook"

    def schema(self) -> str:
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> "BatchReader":
        return BatchReader(parse_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802  Spark's name
        return StreamReader(parse_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802  Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        return stream_writer(self.options, schema, overwrite=overwrite)


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets, resolved when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        from daybook.clients.python import blocking
        from daybook.clients.spark.read import retained_offsets

        options = self._options
        with blocking.connect(options.service_url, timeout_s=None) as client:
            retained = retained_offsets(client, options.topic)
        start = resolve(options.starting or "earliest", retained, "startingOffsets")
        end = resolve(options.ending, retained, "endingOffsets")
        return plan(options, start, end, retained)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages that were published since the last trigger.

    Spark keeps the offsets in its checkpoint as {"partition": offset}; nothing is acknowledged.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: dict[int, int] | None = None
        self._client: blocking.Client | None = None  # open from first use until `stop`

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
        spec = self._options.starting or "latest"
        return encode_offsets(resolve(spec, self._retained(), "startingOffsets"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        offsets_max = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if offsets_max is None else ReadMaxRows(offsets_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = self._latest()

    def latestOffset(self, start: dict[str, int], limit_: ReadLimit) -> dict[str, int]:  # noqa: N802
        retained = self._retained()
        begin = carry_over(
            decode_offsets(start), retained, fail_on_data_loss=self._options.fail_on_data_loss
        )
        until = {p: held.next for p, held in retained.items()}
        if self._target is not None:
            # Partitions created after the target are left to the next run.
            until = {p: min(next_, self._target.get(p, begin[p])) for p, next_ in until.items()}
        # An end before the start would be a negative range.
        end = {p: max(begin[p], next_) for p, next_ in until.items()}
        if isinstance(limit_, ReadMaxRows):
            end = limit(begin, end, limit_.max_rows)
        return encode_offsets(end)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
        return encode_offsets(self._latest())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        begin, until = decode_offsets(start), decode_offsets(end)
        if begin == until:
            return []
        options, retained = self._options, self._retained()
        if any(begin[p] > until.get(p, -1) for p in begin):
            begin = carry_over(begin, retained, fail_on_data_loss=options.fail_on_data_loss)
        return plan(options, begin, until, retained)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(partition)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _retained(self) -> dict[int, Retained]:
        from daybook.clients.python import blocking
        from daybook.clients.spark.read import retained_offsets

        if self._client is None:
            self._client = blocking.connect(self._options.service_url, timeout_s=None)
        return retained_offsets(self._client, self._options.topic)

    def _latest(self) -> dict[int, int]:
        return {partition: held.next for partition, held in self._retained().items()}


def plan(
    options: SourceOptions,
    start: dict[int, int],
    end: dict[int, int],
    retained: dict[int, Retained],
) -> list[TaskPartition]:
    """Return the tasks that read from `start` to `end`."""
    found = ranges(start, end, retained, fail_on_data_loss=options.fail_on_data_loss)
    parts: list[OffsetRange] = split(found, options.partitions_min)
    return [
        TaskPartition(ReadTask(options.service_url, options.topic, part, options.fail_on_data_loss))
        for part in parts
    ]


def _read(partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """Read one partition.  Spark passes a partition without a task if there is nothing to read."""
    from daybook.clients.spark.read import read_task

    task = partition.value
    return iter(()) if task is None else read_task(task)


def encode_offsets(offsets: dict[int, int]) -> dict[str, int]:
    """Return offsets in the format of Spark's checkpoint: `tests/golden/spark_v1`."""
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def decode_offsets(offsets: dict[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in offsets.items()}
