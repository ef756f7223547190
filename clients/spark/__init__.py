"""Topics as Spark tables and streams, by offset: `daybook.spark`.

schema       the columns, and which of them a query asks for; pure
selection    the topics of a query: by name, by pattern, or partitions of them; pure
filters      the filters of a query that narrow what is read; pure
options      the options of a query, and the task that the driver sends to a worker
offsets      which offsets a query reads: bounds, limits, splits; pure
checkpoint   the offsets of a stream as Spark stores them; pure
subscription_marks the properties that mark the subscription of a stream; pure
topics       the driver's questions to the brokers
sizes        what a stream knows about the sizes of messages that it has not read
cursors      the subscription that follows a stream
typed_names  the types of an Avro definition by their names, within limits; pure
typed_schema the columns of a topic that has a schema; pure
typed_units  compares the units of two versions of a schema; pure
typed_decoders decode messages of a version of a schema
typed_values decoded values become Arrow columns
typed_rows   raw rows become typed ones
entry        splits stored entries: offsets, metadata, messages
cutter       cuts the messages of an entry into columns
columns      the columns of many entries become Arrow batches
read         runs a task: reads messages as Arrow batches
garbage      spares a worker process the search for garbage among its modules and clients
short_errors leaves the tracebacks of workers away from errors for users
source       implements Spark's interfaces: the format, the batch reader and the stream reader
push_down    the source of a frame whose queries push their filters down
frames       loads such a frame
lag          how far queries are behind: a listener for Spark
sink_options the options of the sink
row_columns  the columns of a frame, as the sink takes them
records      typed rows become plain ones, whose value is a record in JSON or Avro
row_messages the messages of Arrow rows, made by columns; pure
key_partitions the partitions of a column of keys; pure
rows         Arrow rows become the messages of batches
write_plan   a planned write, checked before anything is sent
write        runs a task that writes: sends its rows, and waits for their receipts
stage        runs a task that writes exactly once: stages its rows
commit       the driver's side of an exactly-once write: commits or abandons what tasks staged
header_marks headers of Kafka as properties, and back
sink         implements Spark's interfaces: the batch writer and the stream writer
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daybook.clients.spark.frames import load as load
    from daybook.clients.spark.header_marks import kafka_headers as kafka_headers
    from daybook.clients.spark.lag import LagListener as LagListener
    from daybook.clients.spark.source import DaybookDataSource as DaybookDataSource

_MODULES = {
    "DaybookDataSource": "source",
    "LagListener": "lag",
    "kafka_headers": "header_marks",
    "load": "frames",
}


def __getattr__(name: str) -> object:
    """Import a name, and with it PySpark, on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"daybook.clients.spark.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow"):
            raise
        raise ModuleNotFoundError(
            f"daybook.spark needs {error.name}, which is not installed: install it with"
            " pip install 'daybook-mq[spark]'",
            name=error.name,
        ) from None

    return getattr(module, name)
