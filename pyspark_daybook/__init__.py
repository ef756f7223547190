"""Registers the format `daybook` with Spark.

Spark imports each top-level module whose name begins with `pyspark_`, and registers its
`DefaultSource`.  So `spark.read.format("daybook")` and SQL `USING daybook` work without
`spark.dataSource.register`.
"""

from daybook.clients.spark.source import DaybookDataSource


class DefaultSource(DaybookDataSource):
    """The class that Spark looks for by this name."""
