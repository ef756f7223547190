"""Read the topic with PySpark, as a batch and as a stream, and compare it with pandas.

The topic is deduplicated, so each row is stored once.  The aggregates would drop duplicates by the
number of the row, and `verdict` would report them.  Offsets are exact: each is read once.
"""

# pyright: basic
# (the libraries underneath have no types)

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybook.testing import StandaloneProcess
from examples.flights.carriers import TotalsResult, run_totals
from examples.flights.flights import CARRIER_COLUMN, Flights
from examples.flights.spark import open_session

DELAY_COLUMN = 5
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class SparkResult:
    rows: int  # read by the batch, duplicates included
    batch_s: float
    totals: TotalsResult
    differences: list[str]  # where the aggregates of the batch differ from pandas; empty is right


def expected_by_carrier(flights: Flights) -> dict[str, tuple[int, float]]:
    """Return flights and mean departure delay by carrier, by pandas, from the original rows."""
    import pandas

    pd: Any = pandas  # its own types cannot be followed

    text = b"\n".join(m.partition(b",")[2] for m in flights.messages).decode()
    table = pd.read_csv(io.StringIO(f"{flights.header}\n{text}"), usecols=["carrier", "dep_delay"])
    grouped = table.groupby("carrier")["dep_delay"].agg(["size", "mean"])
    return {str(c): (int(row["size"]), float(row["mean"])) for c, row in grouped.iterrows()}


def read_with_spark(
    cluster: StandaloneProcess,
    topic: str,
    flights: Flights,
    directory: Path,
    kill_owner: Callable[[str], str],
) -> SparkResult:
    """Run both queries and compare them with pandas."""
    from daybook.spark import DaybookDataSource

    expected = expected_by_carrier(flights)
    with open_session(directory) as spark:
        spark.dataSource.register(DaybookDataSource)
        started = time.perf_counter()
        source = spark.read.format("daybook").option("service.url", cluster.service_url)
        batch = _columns(source.option("topic", topic).load()).cache()
        rows, differences = _check("batch", batch, expected)
        batch.unpersist()
        batch_s = time.perf_counter() - started
        totals = run_totals(spark, cluster, topic, rows, _columns, directory, kill_owner)
    return SparkResult(rows, batch_s, totals, differences)


def _columns(messages: Any) -> Any:  # noqa: ANN401  DataFrames
    """Select what the checks compare: the place of each message and the fields of its row."""
    from pyspark.sql import functions as f

    fields = f.split(messages["value"].cast("string"), ",")
    return messages.select(
        "partition",
        "offset",
        fields[0].cast("int").alias("row"),
        fields[CARRIER_COLUMN + 1].alias("carrier"),
        fields[DELAY_COLUMN + 1].try_cast("double").alias("delay"),
    )


def _check(
    what: str,
    messages: Any,  # noqa: ANN401  a DataFrame
    expected: dict[str, tuple[int, float]],
) -> tuple[int, list[str]]:
    """Return how many messages were read, and a sentence for each thing that is wrong."""
    from pyspark.sql import functions as f

    partitions = messages.groupBy("partition").agg(
        f.count("*").alias("rows"),
        f.count_distinct("offset").alias("offsets"),
        f.min("offset").alias("low"),
        f.max("offset").alias("high"),
    )
    rows, differences = 0, list[str]()
    for p in partitions.collect():
        rows += p["rows"]
        if (p["low"], p["high"], p["offsets"]) != (0, p["rows"] - 1, p["rows"]):
            differences.append(
                f"{what}: partition {p['partition']}: {p['rows']:,} messages with "
                f"{p['offsets']:,} offsets from {p['low']:,} to {p['high']:,}"
            )
    by_carrier = (
        messages.dropDuplicates(["row"])
        .groupBy("carrier")
        .agg(f.count("*").alias("flights"), f.avg("delay").alias("delay"))
    )
    found = {r["carrier"]: (r["flights"], r["delay"]) for r in by_carrier.collect()}
    return rows, differences + _compare(what, found, expected)


def _compare(
    what: str, found: dict[str, tuple[int, float]], expected: dict[str, tuple[int, float]]
) -> list[str]:
    differences: list[str] = []
    for carrier in sorted(found.keys() | expected.keys()):
        a, b = found.get(carrier), expected.get(carrier)
        if a is None or b is None or a[0] != b[0] or abs(a[1] - b[1]) > TOLERANCE * abs(b[1]):
            differences.append(f"{what}: {carrier}: {a} by Spark, {b} by pandas")
    return differences
