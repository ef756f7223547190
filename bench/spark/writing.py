"""The sinks: a batch write of all rows, and the commit of small micro-batches."""

import time
from contextlib import closing
from datetime import datetime
from typing import Any

from bench.brokers.systems import Kafka as ThreeBrokers
from bench.peers.rows import Demand
from bench.spark.lines import Found, Line
from bench.spark.sides import CORES, DAYBOOK, KAFKA, Sides
from bench.spark.streaming import new_checkpoint, progress_of
from tests.harness.processes import wait_until

ONCE, AT_LEAST = f"{DAYBOOK}, exactly once", f"{DAYBOOK}, at least once"
KAFKA_COPIES = f"{KAFKA}, three copies"
_PARTITIONS = 4
_OF_KAFKA = 0.7
_COMMIT_MS = 300.0
_BATCH_ROWS = 100
_BATCHES = 15
_SKIPPED = 3


def write(sides: Sides) -> Found:
    """Write the rows to four partitions by key, in two tasks, with the defaults of each sink.

    Kafka keeps one copy, as in the other cases, and in a second cluster three copies, as Daybook
    does.  Two copies have a row before its sender has the answer; Kafka syncs none of them.
    """
    case, topic = "batch write", "written"
    sides.create(topic, _PARTITIONS)
    ways = (ONCE, AT_LEAST, KAFKA, KAFKA_COPIES)
    lines = {way: Line(case, way, "rows/s", sides.rows) for way in ways}
    with closing(ThreeBrokers(sides.directory / "kafka-copies")) as copies:
        sides.more_kafka = copies.pids()["broker"]
        sides.create_in_kafka(copies.url, topic, _PARTITIONS, copies=3, min_insync_replicas="2")

        def turn(way: str) -> float:
            format_, options = _sink(sides, way, topic)
            if way == KAFKA_COPIES:
                options["kafka.bootstrap.servers"] = copies.url
            rows = sides.new_rows(sides.rows).select("key", "value")
            began = time.perf_counter()
            rows.write.format(format_).mode("append").options(**options).save()
            return sides.rows / (time.perf_counter() - began)

        sides.in_turns(lines, turn)
        sides.more_kafka = []

    def ratio(way: str, other: str) -> float:
        return lines[way].median / lines[other].median

    what, what_copies = "of Kafka's sink, at least once", "of Kafka's sink with three copies"
    demands = {
        f"{case}, exactly once": Demand(what, ratio(ONCE, KAFKA), at_least=_OF_KAFKA),
        f"{case}, at least once": Demand(what, ratio(AT_LEAST, KAFKA)),
        f"{case}, exactly once, as many copies": Demand(what_copies, ratio(ONCE, KAFKA_COPIES)),
        f"{case}, at least once, as many copies": Demand(
            what_copies, ratio(AT_LEAST, KAFKA_COPIES)
        ),
    }
    return Found(list(lines.values()), demands)


def commit(sides: Sides) -> Found:
    """Write micro-batches of 100 rows, and take the time from the end of the tasks to the end."""
    topic, case = "committed", f"commit of {_BATCH_ROWS} rows"
    sides.create(topic, _PARTITIONS)
    commits = {way: Line(case, way, "ms") for way in (ONCE, AT_LEAST, KAFKA)}
    whole = {way: Line(f"micro-batch of {_BATCH_ROWS} rows", way, "ms") for way in commits}
    for way, line in commits.items():
        for progress in _small_batches(sides, way, topic):
            whole[way].add(progress["durationMs"]["triggerExecution"])
            line.add(_after_tasks_ms(sides, progress))
    demand = Demand("ms, exactly once", commits[ONCE].median, at_most=_COMMIT_MS)
    return Found([*commits.values(), *whole.values()], {case: demand})


def _small_batches(sides: Sides, way: str, topic: str) -> list[dict[str, Any]]:
    format_, options = _sink(sides, way, topic)
    frame = (
        sides.spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=str(_BATCH_ROWS), numPartitions=str(CORES))
        .load()
    )
    query = (
        frame.selectExpr("cast(cast(value as string) as binary) key", "repeat('x', 200) value")
        .writeStream.format(format_)
        .options(**options)
        .option("checkpointLocation", str(new_checkpoint(sides)))
        .start()
    )
    try:
        wait_until(lambda: len(query.recentProgress) >= _BATCHES + _SKIPPED, "batches were written")
        return progress_of(query)[_SKIPPED : _SKIPPED + _BATCHES]
    finally:
        query.stop()


def _after_tasks_ms(sides: Sides, progress: dict[str, Any]) -> float:
    """Return the ms from the end of the batch's last task to the end of its writer's commit."""
    took = progress["durationMs"]
    began = datetime.fromisoformat(progress["timestamp"]).timestamp() * 1e3
    ended: float = began + took["triggerExecution"] - took.get("commitOffsets", 0)
    ends = [each for each in _stage_ends_ms(sides) if began <= each <= ended + 1]
    return ended - max(ends)


def _stage_ends_ms(sides: Sides) -> list[float]:
    """Return when the latest stages ended, in ms since the epoch."""
    context: Any = sides.spark.sparkContext
    java = context._jvm  # noqa: SLF001  the way to the JVM
    none = java.java.util.ArrayList()
    shares = context._gateway.new_array(java.double, 0)  # noqa: SLF001
    stages = context._jsc.sc().statusStore().stageList(none, False, False, shares, none)  # noqa: SLF001
    found = [stages.apply(index).completionTime() for index in range(stages.size())]
    return [float(each.get().getTime()) for each in found if each.isDefined()]


def _sink(sides: Sides, way: str, topic: str) -> tuple[str, dict[str, str]]:
    if way in (KAFKA, KAFKA_COPIES):
        return "kafka", {"kafka.bootstrap.servers": sides.kafka.address, "topic": topic}
    options = {"service.url": sides.daybook.service_url, "topic": topic}
    if way == ONCE:
        options |= {"semantics": "exactly-once", "admin.url": sides.daybook.admin_url}
    return "daybook", options


CASES = {"write": write, "commit": commit}
