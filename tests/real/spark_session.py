"""A Spark session in this process, which ends with its Java process."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from daybook.clients.spark import DaybookDataSource

_CODES = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # the queries are short


@contextmanager
def spark_session(warehouse: Path, master: str = "local[2]") -> Iterator[SparkSession]:
    """Run a session that knows the format `daybook`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", _CODES)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.authenticate.socketTimeout", "120s")  # a busy machine starts it late
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    session.dataSource.register(DaybookDataSource)
    try:
        yield session
    finally:
        gateway: Any = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # its Java process ends with its standard input
        gateway.proc.wait(timeout=60)
        SparkContext._gateway = SparkContext._jvm = None
