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
_PARTITIONS = 4
_OF_KAFKA = 0.7
_COMMIT_MS = 300.0
_BATCH_ROWS = 100
_BATCHES = 15
_SKIPPED = 3


def write(sides: Sides) -> Found:
    """Write the rows to four partitions by key, in two tasks, with the defaults of each sink."""
    case, topic = "batch write", "written"
    sides.create(topic, _PARTITIONS)
    lines = _written(sides, case, topic, sides.kafka.address)
    return Found(
        list(lines.values()),
        {
            f"{case}, exactly once": Demand(
                "of Kafka's sink, at least once", _ratio(lines, ONCE, KAFKA), at_least=_OF_KAFKA
            ),
            f"{case}, at least once": Demand("of Kafka's sink", _ratio(lines, AT_LEAST, KAFKA)),
        },
    )


def copies(sides: Sides) -> Found:
    """Write the same beside a Kafka that keeps as many copies as Daybook, in three brokers.

    Two copies have a row before its sender has the answer.  Kafka syncs none of them.
    """
    case, topic = "batch write of three copies", "copied"
    with closing(ThreeBrokers(sides.directory / "kafka-copies")) as kafka:
        sides.create(topic, _PARTITIONS)
        sides.create_in_kafka(kafka.url, topic, _PARTITIONS, copies=3, min_insync_replicas="2")
        sides.more_kafka = kafka.pids()["broker"]
        lines = _written(sides, case, topic, kafka.url)
        sides.more_kafka = []
    what = "of Kafka's sink, at least once"
    return Found(
        list(lines.values()),
        {
            f"{case}, exactly once": Demand(what, _ratio(lines, ONCE, KAFKA)),
            f"{case}, at least once": Demand(what, _ratio(lines, AT_LEAST, KAFKA)),
        },
    )


def _written(sides: Sides, case: str, topic: str, kafka: str) -> dict[str, Line]:
    """Let the sinks take turns; `kafka` is the address of its brokers."""
    lines = {way: Line(case, way, "rows/s", sides.rows) for way in (ONCE, AT_LEAST, KAFKA)}

    def turn(way: str) -> float:
        format_, options = _sink(sides, way, topic)
        if way == KAFKA:
            options["kafka.bootstrap.servers"] = kafka
        rows = sides.new_rows(sides.rows).select("key", "value")
        began = time.perf_counter()
        rows.write.format(format_).mode("append").options(**options).save()
        return sides.rows / (time.perf_counter() - began)

    sides.in_turns(lines, turn)
    return lines


def _ratio(lines: dict[str, Line], way: str, other: str) -> float:
    return lines[way].median / lines[other].median


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
    if way == KAFKA:
        return "kafka", {"kafka.bootstrap.servers": sides.kafka.address, "topic": topic}
    options = {"service.url": sides.daybook.service_url, "topic": topic}
    if way == ONCE:
        options |= {"semantics": "exactly-once", "admin.url": sides.daybook.admin_url}
    return "daybook", options


CASES = {"write": write, "copies": copies, "commit": commit}
