"""Spark's writers of the format `daybook`: rows become messages of topics.

    frame.write.format("daybook").mode("append").option("service.url", "pulsar://localhost:6650")
         .option("topic", "flights").save()

Spark makes a writer when it plans a query, and for each micro-batch of a stream.  The writer is
sent to the tasks, which get their rows as Arrow batches.  `commit` and `abort` run in yet another
process, on a writer of their own: what they need to know comes with the results of the tasks.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pickle import PicklingError
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from daybook.clients.spark.garbage import spare_collections
from daybook.clients.spark.short_errors import in_one_sentence
from daybook.clients.spark.write_plan import WritePlan, plan_write

if TYPE_CHECKING:
    import pyarrow as pa

    from daybook.clients.spark.commit import Staged
    from daybook.clients.spark.stage import PlannedTopic

QUERY_ID = "sql.streaming.queryId"  # Spark's names of local properties of a task
BATCH_ID = "streaming.sql.batchId"


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of a batch query."""
    plan = plan_write(options, schema, overwrite=overwrite, streaming=False)
    return BatchWriter(plan) if plan.options.once is None else OnceBatchWriter(plan)


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of a streaming query."""
    plan = plan_write(options, schema, overwrite=overwrite, streaming=True)
    return StreamWriter(plan) if plan.options.once is None else OnceStreamWriter(plan)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of a task: all its rows are stored."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """`frame.write.format("daybook")`, at least once."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    @in_one_sentence
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return _send(self._plan, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """`frame.writeStream.format("daybook")`, at least once."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    @in_one_sentence
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return _send(self._plan, iterator)


class NotPlannedError(PicklingError):
    """The driver cannot send a writer to the tasks, because the brokers refuse the write.

    PySpark would print a traceback for any other kind of error.
    """


NotPlannedError.__module__ = "daybook"  # so that it is shown like the errors of the client


class _Once:
    """An exactly-once write: tasks stage, and the driver commits.

    The driver asks for the topic once for each batch, when Spark pickles the writer for the tasks.
    The writers that Spark makes only to call `commit` or `abort` ask nothing.
    """

    def __init__(self, plan: WritePlan) -> None:
        assert plan.options.once is not None
        self._plan = plan
        self._options = plan.options.once
        self._topic: PlannedTopic | None = None

    @in_one_sentence
    def __getstate__(self) -> dict[str, Any]:
        from daybook.clients.python.errors import BrokerError
        from daybook.clients.spark.stage import PlannedTopic

        if self._topic is None:
            try:
                self._topic = PlannedTopic.find(self._plan)
            except BrokerError as error:
                raise NotPlannedError(str(error)) from error
        return self.__dict__

    def _stage(
        self, sink: str, query_id: str, batch_id: int, iterator: "Iterator[pa.RecordBatch]"
    ) -> "Staged":
        from daybook.clients.python.sink_requests import Batch
        from daybook.clients.spark.commit import Staged
        from daybook.clients.spark.stage import stage_rows

        spare_collections()
        topic, task = self._topic, _task()
        assert topic is not None, "the driver has asked for it"
        batch = Batch(query_id, batch_id, {topic.name: topic.partitions})
        share = stage_rows(self._plan, topic, sink, batch, iterator, task=task)
        return Staged(task, sink, batch, share)

    def _commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        from daybook.clients.spark.commit import commit_staged

        commit_staged(self._options, messages, batch_id)

    def _abort(self, messages: list[WriterCommitMessage | None]) -> None:
        from daybook.clients.spark.commit import abort_staged

        abort_staged(self._options, messages)


class OnceBatchWriter(_Once, DataSourceArrowWriter):
    """`frame.write.format("daybook")`, exactly once: all rows or none."""

    def __init__(self, plan: WritePlan) -> None:
        super().__init__(plan)
        self._query_id = token_hex(16)  # Its sink is used for this one batch.

    @in_one_sentence
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> "Staged":
        return self._stage(f"spark-batch-{self._query_id}", self._query_id, 0, iterator)

    @in_one_sentence
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, 0)

    @in_one_sentence
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class OnceStreamWriter(_Once, DataSourceStreamArrowWriter):
    """`frame.writeStream.format("daybook")`, exactly once.

    Without the option, the sink has the name of the query's id, which moves with the checkpoint.
    """

    @in_one_sentence
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> "Staged":
        query_id, batch_id = _micro_batch()
        sink = self._options.sink_name or f"spark-{query_id}"
        return self._stage(sink, query_id, batch_id, iterator)

    @in_one_sentence
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages, batchId)

    @in_one_sentence
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId  # The results of the tasks name it.
        self._abort(messages)


def _send(plan: WritePlan, iterator: "Iterator[pa.RecordBatch]") -> Written:
    from daybook.clients.spark.write import send_rows

    spare_collections()
    return Written(send_rows(plan, iterator, task=_task()))


def _task() -> int:
    """Return the number of the running task."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _micro_batch() -> tuple[str, int]:
    """Return the ids of the query and of the micro-batch, which Spark tells its tasks."""
    context = TaskContext.get()
    found = {
        name: None if context is None else context.getLocalProperty(name)
        for name in (QUERY_ID, BATCH_ID)
    }
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise RuntimeError(
            f"semantics=exactly-once is not possible here, because this Spark does not tell its"
            f" tasks the local property {missing[0]}: use semantics=at-least-once"
        )
    return str(found[QUERY_ID]), int(str(found[BATCH_ID]))
