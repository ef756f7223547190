"""Measures how fast Spark writes to a topic: at least once, exactly once, and beside it a producer.

All write the same rows, of 100 bytes with a key, to a topic of four partitions, in one run.  Spark
has two tasks.  An exactly-once write ends when all rows are in the topic: they were staged, read
and written again.  Spark is started and has written once before anything is measured.
"""

import os
import sys
import time
from typing import TYPE_CHECKING

import trio

from bench.cases import Figure
from daybook.clients.python import blocking
from daybook.clients.python.connect import connect
from daybook.clients.testing.standalone import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 400_000
_WARM_UP_ROWS = 10_000
_KEYS = 1000
_BYTES = 100
_PARTITIONS = 4
_TASKS = 2


async def spark_write(cluster: StandaloneProcess) -> list[Figure]:
    """Write the rows in three ways."""
    produced = await _produce(cluster)
    rates = await trio.to_thread.run_sync(_with_spark, cluster)
    figures = [Figure("Spark writes, a producer of the client", produced, "rows/s", "", good=True)]
    for semantics, rate in rates.items():
        note = f"{rate / produced:.2f} of a producer"
        figures.append(Figure(f"Spark writes, {semantics}", rate, "rows/s", "", True, note))
    return figures


def _create(cluster: StandaloneProcess, topic: str) -> None:
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic, partitions=_PARTITIONS)


async def _produce(cluster: StandaloneProcess) -> float:
    topic = "bench-spark-producer"
    await trio.to_thread.run_sync(_create, cluster, topic)
    keys, value = [f"key-{number}" for number in range(_KEYS)], b"x" * _BYTES
    async with (
        connect(cluster.service_url) as client,
        await client.create_producer(topic) as producer,
    ):
        began = time.perf_counter()
        for number in range(ROWS):
            if number % 200 == 0 or not producer.has_room:
                await producer.wait_room()
            producer.send_nowait(value, key=keys[number % _KEYS])
        await producer.flush()
        return ROWS / (time.perf_counter() - began)


def _with_spark(cluster: StandaloneProcess) -> dict[str, float]:
    """Return the rows/s of both semantics."""
    # Imported here: the other cases do without Spark.
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    from daybook.clients.spark import DaybookDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{_TASKS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    spark.dataSource.register(DaybookDataSource)

    def rows(count: int) -> "DataFrame":
        key = F.concat(F.lit("key-"), F.col("id") % _KEYS)
        value = F.lit("x" * _BYTES).cast("binary")
        return spark.range(0, count, 1, _TASKS).select(key.alias("key"), value.alias("value"))

    rates: dict[str, float] = {}
    try:
        for semantics, more in (
            ("at-least-once", {}),
            ("exactly-once", {"admin.url": cluster.admin_url}),
        ):
            topic = f"bench-spark-{semantics}"
            _create(cluster, topic)
            options = {"service.url": cluster.service_url, "topic": topic, "semantics": semantics}
            _write(rows(_WARM_UP_ROWS), {**options, **more})
            began = time.perf_counter()
            _write(rows(ROWS), {**options, **more})
            rates[semantics] = ROWS / (time.perf_counter() - began)
    finally:
        spark.stop()
    return rates


def _write(frame: "DataFrame", options: dict[str, str]) -> None:
    frame.write.format("daybook").mode("append").options(**options).save()


CASES = {"spark_write": spark_write}
