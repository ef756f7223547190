"""Streaming queries: a history with AvailableNow, triggers that find nothing, and small batches."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.peers.rows import Demand
from bench.spark.lines import Found, Line, number
from bench.spark.sides import DAYBOOK, KAFKA, Sides
from daybook.clients.python import blocking
from tests.harness.processes import wait_until

_WAYS = (DAYBOOK, KAFKA)
_IDLE_MS = 50.0
_TRIGGERS = 100  # that find nothing, and are looked at
_BATCHES = 15
_SKIPPED = 3


def available_now(sides: Sides) -> Found:
    """Read all messages of two partitions with AvailableNow, into a sink that drops them."""
    topic, case = "history-2", "stream, AvailableNow"
    sides.fill(topic, 2)
    lines = {way: Line(case, way, "rows/s", sides.rows) for way in _WAYS}

    def turn(way: str) -> float:
        frame = sides.stream(way, topic, startingOffsets="earliest")
        began = time.perf_counter()
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(new_checkpoint(sides)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took_s = time.perf_counter() - began
        assert sum(each["numInputRows"] for each in progress_of(query)) == sides.rows
        return sides.rows / took_s

    sides.in_turns(lines, turn)
    ratio = lines[DAYBOOK].median / lines[KAFKA].median
    return Found(list(lines.values()), {case: Demand("of Kafka's source", ratio, at_least=1.0)})


def small(sides: Sides) -> Found:
    """Measure the triggers that find nothing, and micro-batches of one message."""
    topic = "trickle"
    sides.create(topic, 2)
    idle = {way: Line("trigger that finds nothing", way, "ms") for way in _WAYS}
    batch = {way: Line("micro-batch of one message", way, "ms") for way in _WAYS}
    for way in _WAYS:
        progress = _trickle(sides, way, topic)
        for each in progress:
            if each["durationMs"].get("addBatch") is None:
                idle[way].add(each["durationMs"]["triggerExecution"])
        taken = [each for each in progress if each["numInputRows"]][_SKIPPED:]
        for each in taken:
            batch[way].add(each["durationMs"]["triggerExecution"])
        print(f"  one message, {way}: {_parts(taken)}", flush=True)
    found = Demand("ms, median", idle[DAYBOOK].median, at_most=_IDLE_MS)
    lines = [*idle.values(), *batch.values()]
    more = Demand("ms more than Kafka's", batch[DAYBOOK].median - batch[KAFKA].median)
    return Found(lines, {"trigger that finds nothing": found, "micro-batch of one message": more})


def _trickle(sides: Sides, way: str, topic: str) -> list[dict[str, Any]]:
    """Run a stream, give it a message now and then, and return the progress of its triggers."""
    query = (
        sides.stream(way, topic, startingOffsets="latest")
        .writeStream.format("noop")
        .option("checkpointLocation", str(new_checkpoint(sides)))
        .start()
    )
    with ExitStack() as stack:
        stack.callback(query.stop)
        send = _sender(sides, way, topic, stack)
        wait_until(lambda: len(query.recentProgress) > _SKIPPED, "the query has begun")
        for expected in range(1, _BATCHES + _SKIPPED + 1):
            send()

            def came(expected: int = expected) -> bool:
                return sum(bool(each["numInputRows"]) for each in progress_of(query)) >= expected

            wait_until(came, f"message {expected} was read")
        seen = len(query.recentProgress)
        wait_until(lambda: len(query.recentProgress) >= seen + _TRIGGERS, "triggers ran")
        return progress_of(query)


def _sender(sides: Sides, way: str, topic: str, stack: ExitStack) -> Callable[[], object]:
    if way == KAFKA:
        kafka = sides.kafka_producer()
        stack.callback(kafka.close)
        return lambda: sides.kafka_send(kafka, topic)
    client = stack.enter_context(blocking.connect(sides.daybook.service_url))
    producer = stack.enter_context(client.create_producer(topic))
    return lambda: producer.send(b"x", key="key")


def new_checkpoint(sides: Sides) -> Path:
    root = sides.directory / "checkpoints"
    root.mkdir(exist_ok=True)
    return root / str(len(list(root.iterdir())))


def progress_of(query: Any) -> list[dict[str, Any]]:  # noqa: ANN401  Spark has no types
    return [json.loads(each.json) for each in query.recentProgress]


def _parts(progress: list[dict[str, Any]]) -> str:
    """Return the medians of the parts of a micro-batch, in ms."""
    names = dict.fromkeys(name for each in progress for name in each["durationMs"])
    parts: list[str] = []
    for name in names:
        values = sorted(each["durationMs"].get(name, 0) for each in progress)
        parts.append(f"{name} {number(values[len(values) // 2])}")
    return ", ".join(parts)


CASES = {"stream": available_now, "small-batches": small}
