"""Running totals by carrier: a stream aggregates the topic and writes the totals to another one.

Each micro-batch writes a message for each carrier that it met: the flights and the minutes of delay
of this carrier so far.  Meanwhile the broker that owns the target is killed, and the stream is
stopped and started again.  With `semantics=exactly-once` the target then has exactly the messages
that pandas computes from the micro-batches in the checkpoint, in their order.
"""

# pyright: basic
# (the libraries underneath have no types)

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybook.testing import StandaloneProcess

TARGET = "flights-by-carrier"
MICRO_BATCHES = 4
MESSAGE = "key string, value string"
STATE = "flights long, minutes long"

# The messages of each carrier, in order: the flights, and the minutes of delay, so far.
Totals = dict[str, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class TotalsResult:
    messages: int  # in the target
    flights: int  # The last messages of all carriers count so many.
    micro_batches: int
    restarts: int
    seconds: float
    differences: list[str]  # where the target differs from pandas; empty is right


def run_totals(
    spark: Any,  # noqa: ANN401  a session
    cluster: StandaloneProcess,
    topic: str,
    count: int,
    rows: Callable[[Any], Any],
    directory: Path,
    kill_owner: Callable[[str], str],
) -> TotalsResult:
    """Write the totals, read them back and compare them.

    The topic has `count` messages, which are read in four micro-batches.  `rows` makes a frame with
    partition, offset, carrier and delay out of one of messages, and `kill_owner` kills the broker
    that owns a topic.
    """
    started = time.perf_counter()
    checkpoint = directory / "checkpoint"
    restarts = _write(spark, cluster, topic, count, rows, checkpoint, kill_owner)
    seconds = time.perf_counter() - started
    table = spark.read.format("daybook").option("service.url", cluster.service_url)
    ends = micro_batches(checkpoint)
    columns = rows(table.option("topic", topic).load())
    read = columns.select("partition", "offset", "carrier", "delay").toPandas()
    expected = expected_totals(read, ends)
    found = _found(table.option("topic", TARGET).load())
    return TotalsResult(
        messages=sum(len(each) for each in found.values()),
        flights=sum(each[-1][0] for each in found.values()),
        micro_batches=len(ends),
        restarts=restarts,
        seconds=seconds,
        differences=compare(found, expected),
    )


def _write(
    spark: Any,  # noqa: ANN401  a session
    cluster: StandaloneProcess,
    topic: str,
    count: int,
    rows: Callable[[Any], Any],
    checkpoint: Path,
    kill_owner: Callable[[str], str],
) -> int:
    """Run the stream to the end of the topic; return how often it was started again."""
    address = {"service.url": cluster.service_url}
    source = spark.readStream.format("daybook").options(
        **address,
        topic=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(count // MICRO_BATCHES + 1),
    )
    target = {
        **address,
        "admin.url": cluster.admin_url,
        "topic": TARGET,
        "semantics": "exactly-once",
        "checkpointLocation": str(checkpoint),
    }

    def start() -> Any:  # noqa: ANN401  Spark's query
        by_carrier = rows(source.load()).groupBy("carrier")
        totals = by_carrier.applyInPandasWithState(_add, MESSAGE, STATE, "append", "NoTimeout")
        writer = totals.writeStream.format("daybook").options(**target).outputMode("append")
        return writer.trigger(availableNow=True).start()

    query = start()
    _wait_for_batches(query, 1)
    kill_owner(TARGET)
    _wait_for_batches(query, 2)
    _check(query)
    query.stop()
    query = start()
    query.awaitTermination()
    _check(query)
    return 1


def _wait_for_batches(query: Any, count: int) -> None:  # noqa: ANN401  Spark's query
    while query.isActive and sum(p["numInputRows"] > 0 for p in query.recentProgress) < count:
        query.awaitTermination(0.1)


def _check(query: Any) -> None:  # noqa: ANN401  Spark's query
    if error := query.exception():
        raise RuntimeError(f"the stream of totals failed: {error}")


def _add(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:  # noqa: ANN401
    """Add the rows of a carrier in one micro-batch to its totals, and yield its message."""
    import pandas as pd

    flights, minutes = state.get if state.exists else (0, 0)
    for frame in frames:
        flights += len(frame)
        minutes += int(frame["delay"].sum())
    state.update((flights, minutes))
    value = json.dumps({"flights": flights, "minutes": minutes})
    yield pd.DataFrame({"key": [key[0]], "value": [value]})


def micro_batches(checkpoint: Path) -> list[dict[int, int]]:
    """Return where each micro-batch of a query ended: the next offset, by partition."""
    ends: list[dict[int, int]] = []
    for file in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda each: int(each.name)):
        (by_topic,) = json.loads(file.read_text().splitlines()[2])["topics"].values()
        end = {int(index): int(each["next"]) for index, each in by_topic.items()}
        if not ends or ends[-1] != end:  # A run may end with an empty micro-batch.
            ends.append(end)
    return ends


def expected_totals(rows: Any, ends: list[dict[int, int]]) -> Totals:  # noqa: ANN401  a frame of pandas
    """Return the messages that micro-batches with these ends write for these rows."""
    expected: Totals = {}
    begin = dict.fromkeys(ends[0], 0)
    for end in ends:
        low, high = (rows["partition"].map(each) for each in (begin, end))
        batch = rows[(rows["offset"] >= low) & (rows["offset"] < high)]
        for carrier, sums in batch.groupby("carrier")["delay"].agg(["size", "sum"]).iterrows():
            messages = expected.setdefault(str(carrier), [])
            flights, minutes = messages[-1] if messages else (0, 0)
            messages.append((flights + int(sums["size"]), minutes + int(sums["sum"])))
        begin = end
    return expected


def _found(messages: Any) -> Totals:  # noqa: ANN401  a DataFrame
    found: Totals = {}
    for row in messages.orderBy("partition", "offset").select("key", "value").collect():
        value = json.loads(bytes(row["value"]))
        totals = value["flights"], value["minutes"]
        found.setdefault(bytes(row["key"]).decode(), []).append(totals)
    return found


def compare(found: Totals, expected: Totals) -> list[str]:
    """Return a sentence for each carrier whose messages are not the expected ones."""
    return [
        f"totals: {carrier}: {found.get(carrier)} in {TARGET}, {expected.get(carrier)} by pandas"
        for carrier in sorted(found.keys() | expected.keys())
        if found.get(carrier) != expected.get(carrier)
    ]
