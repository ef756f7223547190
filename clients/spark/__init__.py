"""Topics as Spark tables and streams, by offset: `daybook.spark`.

options      the options of a query, and the task that the driver sends to a worker
offsets      which offsets a query reads: bounds, limits, splits; pure
read         runs a task: reads messages as Arrow batches
source       implements Spark's interfaces: the batch reader and the stream reader
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daybook.clients.spark.source import DaybookDataSource as DaybookDataSource


def __getattr__(name: str) -> object:
    """Import the source, and with it PySpark, on first use."""
    if name != "DaybookDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from daybook.clients.spark.source import DaybookDataSource
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow"):
            raise
        raise ModuleNotFoundError(
            f"daybook.spark needs {error.name}, which is not installed: install it with"
            " pip install 'daybook-mq[spark]'",
            name=error.name,
        ) from None

    return DaybookDataSource
