"""Spark's writers of the format `daybook`: rows become messages of topics.

    frame.write.format("daybook").mode("append").option("service.url", "pulsar://localhost:6650")
         .option("topic", "flights").save()

Spark makes a writer when it plans a query, and for each micro-batch of a stream.  The writer is
sent to the tasks, which get their rows as Arrow batches.  `commit` and `abort` run in yet another
process, on a writer of their own.  So a writer holds nothing but the options and the columns.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from daybook.clients.spark.write_plan import WritePlan

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of a task: all its rows are stored."""

    rows: int


def _task() -> int:
    """Return the number of the running task."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


class BatchWriter(DataSourceArrowWriter):
    """`frame.write.format("daybook")`."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        from daybook.clients.spark.write import send_rows

        return Written(send_rows(self._plan, iterator, task=_task()))


class StreamWriter(DataSourceStreamArrowWriter):
    """`frame.writeStream.format("daybook")`."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        from daybook.clients.spark.write import send_rows

        return Written(send_rows(self._plan, iterator, task=_task()))
