"""Batch queries: key and value of all messages, counted."""

import time

from bench.peers.rows import Demand
from bench.spark.lines import Found, Line
from bench.spark.sides import BROKERS, DAYBOOK, KAFKA, MEMORY, VALUE, Sides

_OF_KAFKA = 1.5
_OF_KAFKA_ONE = 2.0
_BROKER_SHARE = 0.05


def read_2(sides: Sides) -> Found:
    return _read(sides, 2, _OF_KAFKA)


def read_4(sides: Sides) -> Found:
    return _read(sides, 4, _OF_KAFKA)


def read_1(sides: Sides) -> Found:
    """Kafka's source has one task for a partition, unless `minPartitions` says otherwise."""
    return _read(sides, 1, _OF_KAFKA_ONE)


def _read(sides: Sides, partitions: int, of_kafka: float) -> Found:
    topic = f"history-{partitions}"
    sides.fill(topic, partitions)
    case = f"batch read, {partitions} partition{'s' if partitions > 1 else ''}"
    ways = (DAYBOOK, KAFKA, BROKERS, MEMORY)
    lines = {way: Line(case, way, "rows/s", sides.rows) for way in ways}
    sides.in_turns(lines, lambda way: read_once(sides, way, topic))
    demands = {
        case: Demand(
            "of Kafka's source",
            lines[DAYBOOK].median / lines[KAFKA].median,
            at_least=of_kafka,
        ),
        f"{case}, brokers": Demand(
            "processor, of read=brokers", _broker_share(lines), at_most=_BROKER_SHARE
        ),
    }
    return Found(list(lines.values()), demands)


def read_once(sides: Sides, way: str, topic: str) -> float:
    """Return the rows/s of one query, planning included."""
    frame = sides.frame(way, topic)
    began = time.perf_counter()
    (row,) = frame.selectExpr(
        "count(*) as n", "sum(length(value)) as b", "count(key) as k"
    ).collect()
    took_s = time.perf_counter() - began
    assert row["n"] == row["k"] == sides.rows
    assert row["b"] == sides.rows * len(VALUE)
    return sides.rows / took_s


def _broker_share(lines: dict[str, Line]) -> float:
    """Return the brokers' processor time of a direct read, as a share of a read through brokers.

    The time that idle brokers need meanwhile is taken off.
    """
    idle_cores = lines[MEMORY].used.by_kind["brokers"] / lines[MEMORY].used.took_s

    def used_s(line: Line) -> float:
        return max(0.0, line.used.by_kind["brokers"] - idle_cores * line.used.took_s)

    return used_s(lines[DAYBOOK]) / used_s(lines[BROKERS])


CASES = {"read-2": read_2, "read-4": read_4, "read-1": read_1}
