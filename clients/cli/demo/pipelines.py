"""PySpark reads the topic, as a batch and as a stream; pandas reads the original; they must agree.

Delivery is at-least-once: a row may lie in the topic twice after a takeover.  Rows carry their
number, so the queries drop duplicates by it.
"""

# pyright: basic
# (the libraries underneath have no types)

import io
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.cli.demo.flights import CARRIER_COLUMN, Flights

DELAY_COLUMN = 5
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class SparkResult:
    rows: int  # read by the batch, duplicates included
    batch_s: float
    stream_rows: int
    stream_s: float
    restarts: int
    differences: list[str]  # where the aggregates differ from pandas; empty is right


def expected_by_carrier(flights: Flights) -> dict[str, tuple[int, float]]:
    """Flights and mean departure delay by carrier, from the original rows, by pandas."""
    import pandas

    pd: Any = pandas  # its own types cannot be followed

    text = b"\n".join(m.partition(b",")[2] for m in flights.messages).decode()
    table = pd.read_csv(io.StringIO(f"{flights.header}\n{text}"), usecols=["carrier", "dep_delay"])
    grouped = table.groupby("carrier")["dep_delay"].agg(["size", "mean"])
    return {str(c): (int(row["size"]), float(row["mean"])) for c, row in grouped.iterrows()}


def read_with_spark(service_url: str, topic: str, flights: Flights, directory: Path) -> SparkResult:
    """Run both queries and compare them with pandas."""
    from pyspark.sql import SparkSession

    from clients.spark.source import DaybookDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need what is installed here
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("daybook-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        spark.dataSource.register(DaybookDataSource)
        expected = expected_by_carrier(flights)
        started = time.perf_counter()
        batch = _source(spark.read, service_url, topic).load().cache()
        rows = batch.count()
        differences = _compare("batch", _by_carrier(batch), expected)
        batch_s = time.perf_counter() - started
        started = time.perf_counter()
        restarts = _stream_to_parquet(spark, service_url, topic, directory)
        stored = spark.read.parquet(str(directory / "stream"))
        stream_rows = stored.count()
        stream_s = time.perf_counter() - started
        differences += _compare("stream", _by_carrier(stored), expected)
        if stream_rows != rows:
            differences.append(f"the stream read {stream_rows} messages, the batch {rows}")
    finally:
        spark.stop()
    return SparkResult(rows, batch_s, stream_rows, stream_s, restarts, differences)


def _source(reader: Any, service_url: str, topic: str) -> Any:  # noqa: ANN401  Spark's readers
    return reader.format("daybook").option("service.url", service_url).option("topic", topic)


def _stream_to_parquet(spark: Any, service_url: str, topic: str, directory: Path) -> int:  # noqa: ANN401
    """Write the stream to files, stop it in the middle, and go on from the checkpoint."""
    source = (
        _source(spark.readStream, service_url, topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "60000")
    )

    def start() -> Any:  # noqa: ANN401  Spark's query
        return (
            source.load()
            .writeStream.format("parquet")
            .option("path", str(directory / "stream"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    first = start()
    while first.isActive and not any(p["numInputRows"] for p in first.recentProgress):
        first.awaitTermination(1)
    first.stop()
    second = start()
    second.awaitTermination()
    if error := second.exception():
        raise RuntimeError(f"the stream failed: {error}")
    return 1


def _by_carrier(messages: Any) -> dict[str, tuple[int, float]]:  # noqa: ANN401  a DataFrame
    from pyspark.sql import functions as f

    fields = f.split(messages["value"].cast("string"), ",")
    flights = messages.select(
        fields[0].cast("int").alias("row"),
        fields[CARRIER_COLUMN + 1].alias("carrier"),
        f.expr(f"try_cast(split(cast(value as string), ',')[{DELAY_COLUMN + 1}] as double)").alias(
            "delay"
        ),
    ).dropDuplicates(["row"])
    grouped = flights.groupBy("carrier").agg(
        f.count("*").alias("flights"), f.avg("delay").alias("delay")
    )
    return {r["carrier"]: (r["flights"], r["delay"]) for r in grouped.collect()}


def _compare(
    what: str, found: dict[str, tuple[int, float]], expected: dict[str, tuple[int, float]]
) -> list[str]:
    differences: list[str] = []
    for carrier in sorted(found.keys() | expected.keys()):
        a, b = found.get(carrier), expected.get(carrier)
        if a is None or b is None or a[0] != b[0] or abs(a[1] - b[1]) > TOLERANCE * abs(b[1]):
            differences.append(f"{what}: {carrier}: {a} by Spark, {b} by pandas")
    return differences
