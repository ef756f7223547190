"""The Spark format `daybook`: topics as a table, or as a stream, by offset.

    spark.read.format("daybook").option("service.url", "pulsar://localhost:6650")
         .option("topic", "flights").load()

Offsets are exact integers and ranges half-open, so a stream that is restarted from its checkpoint
reads every message once.  Streams support admission control (`maxOffsetsPerTrigger`,
`maxBytesPerTrigger`) and Trigger.AvailableNow, which takes the end once, when the query starts.

Spark imports this module in several short-lived processes that only need names and options.  The
client and pyarrow are therefore imported inside the functions that need them.
"""

# pyright: basic
# (the libraries underneath have no types)

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic  # noqa: TID251  Spark's driver has no clock of trio's
from typing import TYPE_CHECKING, Any, NoReturn

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
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from daybook.clients.spark.checkpoint import StreamOffset, decode_offset, encode_offset
from daybook.clients.spark.garbage import spare_collections
from daybook.clients.spark.offsets import (
    OffsetRange,
    Partition,
    Progress,
    batch_plan,
    carry_over,
    check_losses,
    is_another_topic,
    limit,
    limit_bytes,
    split,
)
from daybook.clients.spark.options import (
    PATIENCE_S,
    ReadTask,
    SourceOptions,
    TypedOptions,
    parse_column_options,
    parse_options,
    parse_topics,
    parse_typed_options,
)
from daybook.clients.spark.schema import columns_of_schema
from daybook.clients.spark.short_errors import each_in_one_sentence, in_one_sentence

if TYPE_CHECKING:
    import pyarrow as pa

    from daybook.clients.pipelines.archive.checked import NamedFile
    from daybook.clients.python.reader import TopicLedgers
    from daybook.clients.spark.cursors import Cursors
    from daybook.clients.spark.filters import Condition
    from daybook.clients.spark.sizes import KnownSizes
    from daybook.clients.spark.topics import Held, KnownOffsets, TopicOffsets
    from daybook.clients.spark.typed_schema import TopicSchema, TypedColumns

_log = logging.getLogger("daybook.spark")


class TaskPartition(InputPartition):
    """The part of a query that one task reads."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)


class DaybookDataSource(DataSource):
    """The format `daybook`, for `read`, `readStream`, `write` and `writeStream`."""

    _topic_schema: "TopicSchema | None" = None
    _by_load = False  # True for the source of `daybook.spark.load`

    @classmethod
    def name(cls) -> str:
        return "daybook"

    @in_one_sentence
    def schema(self) -> StructType | str:
        # The kind of the query is not known yet, and what both kinds have decides the columns.
        typed = parse_typed_options(self.options)
        if typed is not None:
            from daybook.clients.spark.typed_schema import spark_schema

            return spark_schema(self._typed_columns(typed))
        return parse_column_options(self.options).ddl

    @in_one_sentence
    def reader(self, schema: StructType) -> "BatchReader":
        spare_collections()
        return BatchReader(self._options(schema, streaming=False))

    def streamReader(  # noqa: N802  Spark's name
        self, schema: StructType
    ) -> "StreamReader | RefusedStreamReader":
        try:
            return StreamReader(self._options(schema, streaming=True))
        except Exception as error:
            return RefusedStreamReader(error)

    def _options(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        """Return the options with the columns of the schema, which the user may have given."""
        options = parse_options(self.options, streaming=streaming, by_load=self._by_load)
        for field in schema.fields:
            if not field.nullable:  # Spark would compare it with the batches, and refuse them.
                raise ValueError(
                    f"the schema says that {field.name} is NOT NULL, which this source does not"
                    " promise: leave that out"
                )
        if options.typed is not None:
            from daybook.clients.spark.typed_schema import check_given

            typed = check_given(self._typed_columns(options.typed), schema)
            raw = replace(options.columns, names=typed.raw, key_type=typed.raw_key_type)
            return replace(options, columns=raw, typed_columns=typed)
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        columns = columns_of_schema(fields, options.columns, key_type_given=options.key_type_given)
        return replace(options, columns=columns)

    def _typed_columns(self, options: TypedOptions) -> "TypedColumns":
        """Return the typed columns that the options name.

        The brokers are asked once, when the table or the stream is loaded.  Spark keeps this object
        with it, so that all its queries have the same columns.
        """
        from daybook.clients.spark.typed_schema import typed_columns

        if self._topic_schema is None:
            from daybook.clients.python.limits import ClientLimits
            from daybook.clients.spark.topics import TopicOffsets

            service_url, selection, tls, credentials = parse_topics(self.options)
            topics = TopicOffsets(service_url, selection, ClientLimits(), tls, credentials)
            try:
                self._topic_schema = topics.schema()
            finally:
                topics.close()
        return typed_columns(
            self._topic_schema,
            options.columns,
            options.mode,
            key_type=options.key_type,
            headers=options.headers,
        )

    @in_one_sentence
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from daybook.clients.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    @in_one_sentence
    def streamWriter(  # noqa: N802  Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from daybook.clients.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets, resolved when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @in_one_sentence
    def partitions(self) -> Sequence[InputPartition]:
        spare_collections()
        options = self._options
        with asking(options) as topics:
            held = held_by(options, topics)
            begin, until = bounds(options, topics, held)
            return plan(options, begin, until, held, topics.ledgers)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(partition)


@contextmanager
def asking(options: SourceOptions) -> "Iterator[TopicOffsets]":
    """Open the questions of a batch query, and close them in the end."""
    from daybook.clients.python.limits import ClientLimits
    from daybook.clients.spark.topics import TopicOffsets

    topics = TopicOffsets(
        options.service_url,
        options.selection,
        ClientLimits(),
        options.tls,
        options.credentials,
    )
    try:
        yield topics
    finally:
        topics.close()


def held_by(options: SourceOptions, topics: "TopicOffsets") -> "Held":
    """Return the offsets that the topics of a batch query hold, and its archive."""
    by_brokers = options.read_from == "brokers"
    return _held(options, topics.held if by_brokers else topics.held_with_ledgers)


def bounds(
    options: SourceOptions, topics: "TopicOffsets", held: "Held"
) -> tuple[dict[Partition, Progress], dict[Partition, Progress]]:
    """Return where a batch query begins and ends, in each partition."""
    held.check_complete()
    start = topics.resolve(options.starting or "earliest", held, "startingOffsets")
    end = topics.resolve(options.ending, held, "endingOffsets")
    for partition in sorted(start):
        low, high = start[partition], end[partition]
        if low > high:
            raise ValueError(
                f"{partition}: the query begins at offset {low}, behind its end at {high}"
            )
    return _with_creations(start, held), _with_creations(end, held)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages that were published since the last trigger.

    Spark keeps the offsets in its checkpoint; see `checkpoint`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: Mapping[Partition, int] | None = None
        # Spark sends a reader to its workers, so these are made on first use, in the driver only.
        self._topics: TopicOffsets | None = None
        self._known: KnownOffsets | None = None
        self._cursors: Cursors | None = None
        self._sizes: KnownSizes | None = None
        self._last_taken_s: float | None = None  # when a trigger took messages

    # -- what Spark calls

    @in_one_sentence
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        held = self._asking().ask()
        held.check_complete()
        self._open_cursors(held)
        start = self._resolve_start(held)
        if self._cursors is not None:
            self._cursors.begin(start)
        return encode_offset(StreamOffset(_with_creations(start, held), held.instance))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadAllAvailable()

    @in_one_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        held = self._asking().ask()
        self._target = {partition: each.next for partition, each in held.partitions.items()}

    @in_one_sentence
    def latestOffset(self, start: dict[str, Any], limit_: ReadLimit) -> dict[str, Any]:  # noqa: N802
        before = self._decode(start)
        if self._target is not None:
            # A run that ends at its target takes "nothing new" for its end: it must not wait here.
            held = self._asking().ask()
        elif (answer := self._asking().ask_or_wait()) is not None:
            held = answer
        else:
            return start  # The next trigger asks again.
        _check_instance(before, held, self._options.service_url)
        self._open_cursors(held)
        resumption = carry_over(before.partitions, held.partitions)
        self._tell(resumption.losses)
        begin = resumption.start
        end = {
            partition: begin[partition]
            if _is_unknown(before.partitions.get(partition), held, partition)
            else max(begin[partition], self._until(partition, held, begin[partition]))
            for partition in begin
        }
        end = self._limited(begin, end, limit_, held)
        progress = {
            partition: Progress(next_, self._created(partition, held, before))
            for partition, next_ in end.items()
        }
        return encode_offset(StreamOffset(progress, held.instance or before.instance))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        held = self._asking().latest
        if held is None:
            return None
        end = {partition: each.next for partition, each in held.partitions.items()}
        return encode_offset(StreamOffset(_with_creations(end, held), held.instance))

    @in_one_sentence
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, until = self._decode(start), self._decode(end)
        if before.partitions == until.partitions:
            return []
        asking = self._asking()
        # `latestOffset` has just asked, unless Spark plans a batch of an earlier run again.
        held = asking.latest or asking.ask()
        _check_instance(until, held, self._options.service_url)
        return plan(self._options, before.partitions, until.partitions, held, self._ledgers)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(partition)

    @in_one_sentence
    def commit(self, end: dict[str, Any]) -> None:
        if self._cursors is not None and self._known is not None and self._known.latest is not None:
            self._cursors.commit(self._decode(end).partitions, self._known.latest)

    def stop(self) -> None:
        if self._cursors is not None:
            self._cursors.close()
        if self._topics is not None:
            self._topics.close()
            self._topics = self._known = self._cursors = self._sizes = None

    # -- asking

    def _asking(self) -> "KnownOffsets":
        if self._known is None:
            from daybook.clients.spark.topics import KnownOffsets

            self._known = KnownOffsets(self._ask, self._options.outage_timeout_s, self._now_s)
        return self._known

    def _ask(self) -> "Held":
        return _held(self._options, self._topic_offsets().held)

    def _ledgers(self, topic: str) -> "TopicLedgers":
        return self._topic_offsets().ledgers(topic)

    def _known_sizes(self) -> "KnownSizes":
        if self._sizes is None:
            from daybook.clients.spark.sizes import KnownSizes

            self._sizes = KnownSizes(self._ledgers, self._sample, self._now_s)
        return self._sizes

    def _sample(self, topic: str, offset: int) -> float:
        return self._topic_offsets().bytes_of_message(topic, offset)

    def _resolve_start(self, held: "Held") -> dict[Partition, int]:
        spec = self._options.starting or "latest"
        return self._topic_offsets().resolve(spec, held, "startingOffsets")

    def _topic_offsets(self) -> "TopicOffsets":
        if self._topics is None:
            from daybook.clients.spark.topics import STREAM_LIMITS, TopicOffsets

            options = self._options
            self._topics = TopicOffsets(
                options.service_url,
                options.selection,
                STREAM_LIMITS,
                options.tls,
                options.credentials,
            )
        return self._topics

    def _open_cursors(self, held: "Held") -> None:
        if self._options.subscription is None:
            return
        if self._cursors is None:
            from daybook.clients.spark.cursors import Cursors

            self._cursors = Cursors(
                self._topic_offsets().client,
                self._options.subscription,
                self._options.selection.words,
            )
        self._cursors.open(held)

    @staticmethod
    def _now_s() -> float:
        return monotonic()

    # -- one trigger

    def _decode(self, offset: dict[str, Any]) -> StreamOffset:
        return decode_offset(offset, self._options.selection.only_topic)

    def _tell(self, losses: Sequence[str]) -> None:
        """Raise DataLossError, or log what is lost if the query may go on without it."""
        if self._options.fail_on_data_loss:
            check_losses(losses)
        for loss in losses:
            _log.warning("%s; the query goes on, because failOnDataLoss=false", loss)

    def _until(self, partition: Partition, held: "Held", begin: int) -> int:
        """Return the end of a partition, as far as this run may read it."""
        following = held.partitions[partition].next
        if self._target is None:
            return following
        # Partitions created after the target are left to the next run.
        return min(following, self._target.get(partition, begin))

    @staticmethod
    def _created(partition: Partition, held: "Held", before: StreamOffset) -> int | None:
        created = held.partitions[partition].created
        if created is None and partition in before.partitions:
            return before.partitions[partition].created  # This broker does not tell.
        return created

    def _limited(
        self,
        begin: Mapping[Partition, int],
        end: dict[Partition, int],
        limit_: ReadLimit,
        held: "Held",
    ) -> dict[Partition, int]:
        """Return the end of this trigger, as the limits of the query and of Spark allow."""
        waiting = sum(end[partition] - begin[partition] for partition in end)
        least: int | None = None
        if isinstance(limit_, ReadMinRows):
            least = limit_.min_rows
        elif isinstance(limit_, ReadMaxRows):
            least = self._options.offsets_per_trigger_min
        # A run that ends at its target must not wait for messages behind it.
        if least is not None and self._target is None and waiting < least:
            last_s, now_s = self._last_taken_s, self._now_s()
            # As in Spark's Kafka source, the first trigger of a run takes what there is.
            if last_s is not None and now_s - last_s < self._options.trigger_delay_max_s:
                return dict(begin)
        self._last_taken_s = self._now_s()
        if isinstance(limit_, ReadMaxRows):
            end = limit(begin, end, limit_.max_rows)
        bytes_max = self._options.bytes_per_trigger_max
        if isinstance(limit_, ReadMaxBytes):
            bytes_max = limit_.max_bytes
        # Spark asks for everything in a trigger without limits.
        if bytes_max is None or isinstance(limit_, ReadAllAvailable):
            return end
        return self._limited_in_bytes(begin, end, held, bytes_max)

    def _limited_in_bytes(
        self, begin: Mapping[Partition, int], end: dict[Partition, int], held: "Held", most: int
    ) -> dict[Partition, int]:
        from daybook.clients.python.errors import BrokerError, Remedy

        try:
            return limit_bytes(begin, end, self._known_sizes().between(begin, end, held), most)
        except (BrokerError, TimeoutError) as error:
            gives_up = isinstance(error, BrokerError) and error.remedy is Remedy.GIVE_UP
            if gives_up or self._target is not None:
                raise
            _log.warning("this trigger reads nothing, as sizes are not known yet: %s", error)
            return dict(begin)  # The next trigger asks again.


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error of wrong options when Spark uses it.

    An error that `streamReader` raises would reach the user as one of Spark's runner, which has no
    reader to stop then.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit_: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        self._refuse()

    @in_one_sentence
    def _refuse(self) -> NoReturn:
        raise self._error


def _is_unknown(before: Progress | None, held: "Held", partition: Partition) -> bool:
    """Return True for a partition that is new, or whose topic was made anew.

    A trigger writes its first offset into the checkpoint and reads nothing of it.  The next one
    begins there: so each batch has a start that is known, and is the same when it is planned again.
    """
    here = held.partitions[partition]
    return (
        before is None or is_another_topic(before.created, here.created) or before.next > here.next
    )


def _check_instance(offset: StreamOffset, held: "Held", service_url: str) -> None:
    if offset.instance is not None and held.instance not in (None, offset.instance):
        raise ValueError(
            f"the checkpoint is of the cluster instance {offset.instance}, and the brokers at"
            f" {service_url} belong to {held.instance}: correct service.url, or begin with a new"
            " checkpoint"
        )


def _with_creations(offsets: Mapping[Partition, int], held: "Held") -> dict[Partition, Progress]:
    return {
        partition: Progress(offset, held.partitions[partition].created)
        for partition, offset in offsets.items()
    }


def plan(
    options: SourceOptions,
    start: Mapping[Partition, Progress],
    end: Mapping[Partition, Progress],
    held: "Held",
    ledgers: Callable[[str], "TopicLedgers"],
    conditions: "tuple[Condition, ...]" = (),
) -> list[TaskPartition]:
    """Return the tasks that read from `start` to `end`, and drop rows by the conditions.

    `ledgers` asks the owner of a topic, or of a partition, for its sealed ledgers.
    """
    from daybook.clients.spark.locate import locate

    found = batch_plan(start, end, held.partitions)
    losses = list(found.losses)
    from_files, from_topic = _cut(found.ranges, held, losses)
    if options.fail_on_data_loss:
        check_losses(losses)
    for loss in losses:
        _log.warning("%s; the query goes on, because failOnDataLoss=false", loss)
    parts = split(from_topic, options.partitions_min, options.records_per_partition_max)
    whole = (replace(_task(options, part, held), conditions=conditions) for part in parts)
    tasks = locate(whole, ledgers)
    archive_tasks = [replace(_task(options, part, held), files=files) for part, files in from_files]
    return [TaskPartition(task) for task in (*archive_tasks, *tasks)]


def _cut(
    ranges: list[OffsetRange], held: "Held", losses: list[str]
) -> tuple[list[tuple[OffsetRange, "tuple[NamedFile, ...]"]], list[OffsetRange]]:
    """Return the ranges that files of an archive hold, and those that the topic holds."""
    if held.archived is None:
        return [], ranges
    from_files: list[tuple[OffsetRange, tuple[NamedFile, ...]]] = []
    from_topic: list[OffsetRange] = []
    for whole in ranges:
        parts, lost = held.archived.cut(whole)
        if lost:
            losses.append(lost)
        for part, files in parts:
            if files:
                from_files.append((part, files))
            else:
                from_topic.append(part)
    return from_files, from_topic


def _held(options: SourceOptions, ask: "Callable[[], Held]") -> "Held":
    """Return the offsets of the topics, with those of an archive if the query reads one."""
    if options.archive is None:
        return ask()
    from daybook.clients.pipelines.archive.source import held_with_archive

    return held_with_archive(ask, options.archive)


def _task(options: SourceOptions, part: OffsetRange, held: "Held") -> ReadTask:
    partition = Partition(part.topic, part.partition)
    return ReadTask(
        options.service_url,
        options.selection.name_shown(part.topic),
        part,
        options.fail_on_data_loss,
        options.columns.names,
        options.columns.key_type,
        held.stored_in[partition],
        options.outage_timeout_s if options.streaming else PATIENCE_S,
        held.partitions[partition].created,
        on_unreadable=options.on_unreadable,
        read_from="auto" if options.read_from == "archive+live" else options.read_from,
        typed=options.typed_columns,
        tls=options.tls,
        zookeeper=options.zookeeper,
        credentials=options.credentials,
        bookies=options.bookies,
    )


def _read(partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """Read one partition.  Spark passes a partition without a task if there is nothing to read."""
    spare_collections()
    from daybook.clients.spark.read import read_task

    task = partition.value
    if task is None:
        return iter(())
    if task.files is not None:
        from daybook.clients.pipelines.archive.read import read_files

        return each_in_one_sentence(read_files(task))
    return each_in_one_sentence(read_task(task))
