"""Topics as Spark tables and streams, by offset.

`spark.dataSource.register(daybook.spark.DaybookDataSource)` registers the format `daybook`.
PySpark is loaded only when the class is asked for.
"""

from typing import TYPE_CHECKING

from daybook.clients import spark as _spark

if TYPE_CHECKING:
    from daybook.clients.spark.source import DaybookDataSource as DaybookDataSource

__all__ = ["DaybookDataSource"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    return getattr(_spark, name)
