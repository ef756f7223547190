"""Topics as Spark tables and streams, by offset.

`spark.dataSource.register(daybook.spark.DaybookDataSource)` registers the format `daybook`.
`spark.streams.addListener(daybook.spark.LagListener())` tells how far queries are behind.
`daybook.spark.load(spark, pushDown=True, ...)` gives a frame whose queries push their filters down.
`daybook.spark.kafka_headers("headers")` gives headers as Spark's Kafka sink takes them.
PySpark is loaded only when a name is asked for.
"""

from typing import TYPE_CHECKING

from daybook.clients import spark as _spark

if TYPE_CHECKING:
    from daybook.clients.spark.frames import load as load
    from daybook.clients.spark.header_marks import kafka_headers as kafka_headers
    from daybook.clients.spark.lag import LagListener as LagListener
    from daybook.clients.spark.source import DaybookDataSource as DaybookDataSource

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    "DaybookDataSource",
    "LagListener",
    "kafka_headers",
    "load",
]


def __getattr__(name: str) -> object:
    return getattr(_spark, name)
