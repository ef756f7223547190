"""Topics as Spark tables and streams, by offset: `daybook.spark`.

schema       the columns, and which of them a query asks for; pure
selection    the topics of a query: by name, by pattern, or partitions of them; pure
options      the options of a query, and the task that the driver sends to a worker
offsets      which offsets a query reads: bounds, limits, splits; pure
checkpoint   the offsets of a stream as Spark stores them; pure
topics       the driver's questions to the brokers
cursors      the subscription that follows a stream
read         runs a task: reads messages as Arrow batches
source       implements Spark's interfaces: the batch reader and the stream reader
lag          how far queries are behind: a listener for Spark
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daybook.clients.spark.lag import LagListener as LagListener
    from daybook.clients.spark.source import DaybookDataSource as DaybookDataSource

_MODULES = {"DaybookDataSource": "source", "LagListener": "lag"}


def __getattr__(name: str) -> object:
    """Import a class, and with it PySpark, on first use."""
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
