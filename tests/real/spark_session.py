"""Spark in this process: one Java process for all tests of a worker of pytest.

A Java process with Spark takes some ten seconds to start, and a Spark context in it one or two.
`SharedSpark` keeps the Java process from file to file, and makes a new context when a file asks for
other settings.  Each file has a SQL session of its own: its settings, views, sources and queries
are not those of another file.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from daybook.clients.spark import DaybookDataSource

LOCAL = "local[2]"  # A task that fails is not repeated.
_CODES = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # the queries are short


class SharedSpark:
    """The Spark of a process, which starts when it is first used and ends with `stop`."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._settings: dict[str, str] = {}
        self._whole: SparkSession | None = None

    @contextmanager
    def session(
        self, master: str = LOCAL, settings: Mapping[str, str] | None = None
    ) -> Iterator[SparkSession]:
        """Open a session that knows the format `daybook`; its queries end with the block."""
        wanted = {"spark.master": master, **(settings or {})}
        if self._whole is None or self._settings != wanted:
            self._end_context()
            self._whole, self._settings = _start(self._warehouse, wanted), wanted
        with beside(self._whole) as session:
            yield session

    def stop(self) -> None:
        """End the Java process."""
        self._end_context()
        _end_java()

    def _end_context(self) -> None:
        if self._whole is not None:
            self._whole.stop()
            self._whole = None


@contextmanager
def beside(spark: SparkSession) -> Iterator[SparkSession]:
    """Open another session of the same context; its queries end with the block."""
    session = spark.newSession()
    session.dataSource.register(DaybookDataSource)
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()


@contextmanager
def spark_session(warehouse: Path, master: str = LOCAL) -> Iterator[SparkSession]:
    """Run Spark for the length of the block, in a Java process of its own."""
    spark = SharedSpark(warehouse)
    try:
        with spark.session(master) as session:
            yield session
    finally:
        spark.stop()


def _start(warehouse: Path, settings: Mapping[str, str]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": _CODES,
        "spark.ui.showConsoleProgress": "false",
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine starts it late
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.log.level": "OFF",
    }
    # A Java process gives the settings by which it was started to all its contexts.
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(fixed.items())))
    builder = SparkSession.builder
    for name, value in {**fixed, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _end_java() -> None:
    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # its Java process ends with its standard input
        gateway.proc.wait(timeout=60)
        SparkContext._gateway = SparkContext._jvm = None
