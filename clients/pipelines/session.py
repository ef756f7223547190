"""The Spark session of a command: Spark as its own settings say, or on this machine."""

# pyright: basic
# (the libraries underneath have no types)

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",  # it would write over the lines of the command
    "spark.log.level": "ERROR",
}
_LOCAL_DEFAULTS = {
    "spark.sql.shuffle.partitions": "4",  # each is a store of state, also for few rows
}


def is_remote(settings: Mapping[str, str]) -> bool:
    """Return True if another process has the driver, which is that of Spark Connect."""
    return bool(settings.get("spark.remote") or os.environ.get("SPARK_REMOTE"))


@contextmanager
def spark_session(name: str, settings: Mapping[str, str]) -> Iterator["SparkSession"]:
    """Open a session that knows the format `daybook`, and close it in the end.

    `settings` go before all others.  Raise ModuleNotFoundError without PySpark.
    """
    from pyspark.sql import SparkSession

    from daybook.clients.spark import DaybookDataSource

    builder = SparkSession.builder.appName(name)
    made = dict(settings)
    if not is_remote(settings):
        made = {**_DEFAULTS, **_local_defaults(settings), **settings}
    for setting, value in made.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    try:
        spark.dataSource.register(DaybookDataSource)
        yield spark
    finally:
        spark.stop()


def silence(spark: "SparkSession") -> None:
    """Let a session say nothing more: what is under way fails, because the user ends it."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    with suppress(Exception):  # A session of Spark Connect has no context.
        spark.sparkContext.setLogLevel("OFF")


def _local_defaults(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings of a Spark on this machine, whose workers are this Python."""
    master = settings.get("spark.master") or os.environ.get("MASTER") or "local[*]"
    if not master.startswith("local"):
        return {}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return _LOCAL_DEFAULTS
