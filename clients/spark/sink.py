"""Spark's writers of the format `daybook`: rows become messages of topics.

    frame.write.format("daybook").mode("append").option("service.url", "pulsar://localhost:6650")
         .option("topic", "flights").save()

Spark makes a writer when it plans a query, and for each micro-batch of a stream.  The writer is
sent to the tasks, which get their rows as Arrow batches.  `commit` and `abort` run in yet another
process, on a writer of their own.  So a writer holds nothing but the options and the columns.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from daybook.clients.spark.row_columns import RowColumns, row_columns
from daybook.clients.spark.sink_options import SinkOptions, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of a task: all its rows are stored."""

    rows: int


@dataclass(frozen=True, slots=True)
class Sink:
    """A planned write: where the rows go, and the meaning of their columns.  Tasks get it."""

    options: SinkOptions
    columns: RowColumns

    @classmethod
    def planned(
        cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool
    ) -> "Sink":
        """Check the options and the frame of a query, before anything is sent."""
        if overwrite:
            raise ValueError(
                "a topic cannot be overwritten, because messages are only added to it: use"
                + (" outputMode('append')" if streaming else " mode('append')")
            )
        if find_spec("pyarrow") is None:
            raise ModuleNotFoundError(
                "the Spark sink needs pyarrow, which is not installed: install it with"
                " pip install 'daybook-mq[spark]'",
                name="pyarrow",
            )
        options = parse_sink_options(given, streaming=streaming)
        return cls(options, row_columns(schema, topic=options.topic))

    def write(self, batches: "Iterator[pa.RecordBatch]") -> Written:
        """Run a task."""
        from daybook.clients.spark.write import send_rows

        task = TaskContext.get()
        number = 0 if task is None else task.partitionId()
        return Written(send_rows(self.options, self.columns, batches, task=number))


class BatchWriter(DataSourceArrowWriter):
    """`frame.write.format("daybook")`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return self._sink.write(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """`frame.writeStream.format("daybook")`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return self._sink.write(iterator)
