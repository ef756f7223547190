"""A Spark session for the demo: small, and silent on the terminal.

The output of Spark, its JVM and its Python workers goes to one file.  The queries are short, so the
JVM compiles fast rather than well, and collects garbage in one thread.
"""

# pyright: basic
# (the libraries underneath have no types)

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOG_LEVELS = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


@contextmanager
def open_session(directory: Path) -> Iterator[Any]:
    """Open a local session; its data and its log `spark.log` are in `directory`."""
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.sql import SparkSession

    launch: Any = java_gateway.launch_gateway  # has no types

    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need what is installed here
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    levels = directory / "log4j2.properties"
    levels.write_text(LOG_LEVELS)
    conf = (
        SparkConf()
        .setMaster("local[2]")
        .setAppName("daybook-demo")
        .set("spark.ui.enabled", "false")
        .set("spark.ui.showConsoleProgress", "false")
        .set("spark.driver.memory", "1g")
        .set("spark.driver.extraJavaOptions", f"{JVM_OPTIONS} -Dlog4j2.configurationFile={levels}")
        .set("spark.sql.shuffle.partitions", "2")
        .set("spark.sql.warehouse.dir", str(directory / "warehouse"))
    )
    with (directory / "spark.log").open("wb") as log:
        gateway = launch(conf, popen_kwargs={"stdout": log, "stderr": log})
        SparkContext(conf=conf, gateway=gateway)
        session = SparkSession.builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()  # the JVM ends when this pipe does
            gateway.proc.wait()
