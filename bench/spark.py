"""Measures how fast Spark reads a topic, through brokers and straight from bookies.

python -m bench.spark [MESSAGES [PARTITIONS ...]]

Topics with 4, 2 and 1 partitions are filled with messages of 200 bytes with keys, and unloaded, so
that their ledgers are sealed.  `local[2]` then reads key and value of all messages.  The two ways
take turns in one run, and the first turn of each is not counted: only ratios within a run count,
because other programs use the machine, too.

A query that reads the same rows out of memory shows what Spark itself can do on this machine.  The
processor time is that of all brokers; what idle brokers use while this query runs is taken off.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from rich.console import Console
from rich.table import Table

from daybook.clients.python import blocking
from daybook.clients.spark import DaybookDataSource
from daybook.clients.testing.standalone import StandaloneProcess

MESSAGES = 1_000_000
ROUNDS = 4  # the first one is not counted
_VALUE = b"x" * 200
_PARTITIONS = (4, 2, 1)
_KEYS = 1000
_ROWS = 10_000
_WAYS = ("memory", "brokers", "bookies")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class MemorySource(DataSource):
    """Yields the same Arrow batch again and again."""

    @classmethod
    def name(cls) -> str:
        return "memory_rows"

    def schema(self) -> str:
        return "key binary, value binary"

    def reader(self, schema: Any) -> "MemoryReader":  # noqa: ANN401  Spark's signature
        return MemoryReader(int(self.options["messages"]), int(self.options["tasks"]))


class MemoryReader(DataSourceReader):
    def __init__(self, messages: int, tasks: int) -> None:
        self._messages = messages
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        keys = pa.array([b"key-%03d" % (n % _KEYS) for n in range(_ROWS)], pa.binary())
        values = pa.array([_VALUE] * _ROWS, pa.binary())
        batch = pa.RecordBatch.from_arrays([keys, values], ["key", "value"])
        for _ in range(self._messages // self._tasks // _ROWS):
            yield batch


@dataclass
class Turns:
    """The turns of one way to read one topic."""

    elapsed_s: list[float] = field(default_factory=list)
    broker_s: list[float] = field(default_factory=list)

    @property
    def broker_cores(self) -> float:
        return sum(self.broker_s) / sum(self.elapsed_s)


class Bench:
    """One cluster and one Spark session."""

    def __init__(self, cluster: StandaloneProcess, messages: int) -> None:
        self._cluster = cluster
        self._messages = messages
        self._spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        self._spark.dataSource.register(DaybookDataSource)
        self._spark.dataSource.register(MemorySource)

    def fill(self, topic: str, partitions: int) -> None:
        """Fill a topic, and seal its ledgers."""
        with (
            blocking.connect(self._cluster.service_url) as client,
            blocking.connect_admin(self._cluster.admin_url) as admin,
        ):
            admin.create_topic(topic, partitions=partitions)
            with client.create_producer(topic) as producer:
                for number in range(self._messages):
                    producer.send_nowait(_VALUE, key=f"key-{number % _KEYS:03}")
                producer.flush()
            for partition in range(partitions):
                admin.unload_topic(f"{topic}-partition-{partition}")
            for each in client.ledgers(topic):
                assert each.sealed[-1].next == each.held.next, "all messages are in sealed ledgers"

    def turn(self, topic: str, partitions: int, way: str) -> tuple[float, float]:
        """Read the topic once; return the seconds it took, and those of the brokers' processors."""
        if way == "memory":
            options = {"messages": str(self._messages), "tasks": str(max(2, partitions))}
            frame = self._spark.read.format("memory_rows").options(**options).load()
        else:
            options = {"service.url": self._cluster.service_url, "topic": topic, "read": way}
            options["columns"] = "key,value"
            frame = self._spark.read.format("daybook").options(**options).load()
        before, began = self._broker_seconds(), time.perf_counter()
        (row,) = frame.selectExpr(
            "count(*) as n", "sum(length(value)) as b", "count(key) as k"
        ).collect()
        elapsed, used = time.perf_counter() - began, self._broker_seconds() - before
        if way != "memory":
            assert row["n"] == row["k"] == self._messages
            assert row["b"] == self._messages * len(_VALUE)
        return elapsed, used

    def _broker_seconds(self) -> float:
        used = 0.0
        for part in self._cluster.parts():
            if str(part["name"]).startswith("broker"):
                text = Path(f"/proc/{part['pid']}/stat").read_text()
                fields = text.rpartition(")")[2].split()
                used += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        return used


def main(messages: int, shapes: Sequence[int]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    table = Table(
        "partitions",
        "way",
        "rows/s",
        "of memory",
        "of brokers",
        "broker s per 1,000,000 rows",
        title=f"{messages:,} messages of {len(_VALUE)} bytes, key and value, medians",
    )
    with StandaloneProcess() as cluster:
        bench = Bench(cluster, messages)
        for partitions in shapes:
            topic = f"bench-spark-{partitions}"
            bench.fill(topic, partitions)
            turns = {way: Turns() for way in _WAYS}
            for number in range(ROUNDS):
                for way in _WAYS if number % 2 else reversed(_WAYS):
                    elapsed_s, broker_s = bench.turn(topic, partitions, way)
                    print(f"{partitions} partitions, {way}: {elapsed_s:.1f} s", flush=True)
                    if number:
                        turns[way].elapsed_s.append(elapsed_s)
                        turns[way].broker_s.append(broker_s)
            rates = {way: messages / median(each.elapsed_s) for way, each in turns.items()}
            idle = turns["memory"].broker_cores
            for way, each in turns.items():
                used_s = (each.broker_cores - idle) * sum(each.elapsed_s)
                table.add_row(
                    str(partitions),
                    way,
                    f"{rates[way]:,.0f}",
                    f"{rates[way] / rates['memory']:.2f}",
                    f"{rates[way] / rates['brokers']:.2f}",
                    f"{used_s * 1e6 / (messages * len(each.elapsed_s)):.3f}",
                )
    Console(width=120).print(table)


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:]] or [MESSAGES]
    main(numbers[0], numbers[1:] or _PARTITIONS)
