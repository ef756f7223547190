"""Both systems and one Spark session, and the same rows in topics of both.

with Sides(directory, rows=1_000_000, rounds=3) as sides:
    sides.fill("history", partitions=2)
    sides.frame(DAYBOOK, "history")           # key and value
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.spark.filling import fill_daybook, stored_in_daybook, stored_in_kafka
from bench.spark.lines import Line
from bench.spark.usage import descendants, used
from daybook.clients.python import blocking
from daybook.clients.spark import DaybookDataSource
from daybook.clients.testing.standalone import StandaloneProcess
from tests.interop.apache import spark_kafka_here
from tests.interop.kafka import Kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAYBOOK, BROKERS, KAFKA, MEMORY = "Daybook", "Daybook, read=brokers", "Kafka", "memory"
VALUE = b"x" * 200
CORES = 2
KEYS = 1000
_BATCH_ROWS = 10_000
# Topics of both systems have full batches, so that reads do not depend on how quickly a producer
# was given the messages.  Kafka's producer waits a second for them.
_BATCH_BYTES, _LINGER_MS = 128 << 10, 1000
_KINDS = {"broker": "brokers", "bookie": "bookies"}


class MemorySource(DataSource):
    """Yields the same Arrow batch again and again: what Spark can do with any Python source."""

    @classmethod
    def name(cls) -> str:
        return "memory_rows"

    def schema(self) -> str:
        return "key binary, value binary"

    def reader(self, schema: Any) -> "MemoryReader":  # noqa: ANN401  Spark's signature
        return MemoryReader(int(self.options["rows"]), int(self.options["tasks"]))


class MemoryReader(DataSourceReader):
    def __init__(self, rows: int, tasks: int) -> None:
        self._rows = rows
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        keys = pa.array([b"key-%03d" % (n % KEYS) for n in range(_BATCH_ROWS)], pa.binary())
        values = pa.array([VALUE] * _BATCH_ROWS, pa.binary())
        batch = pa.RecordBatch.from_arrays([keys, values], ["key", "value"])
        left = self._rows // self._tasks
        while left:
            count = min(left, _BATCH_ROWS)
            yield batch.slice(0, count)
            left -= count


class Sides:
    """Both systems, which run until the block ends."""

    def __init__(self, directory: Path, *, rows: int, rounds: int, warm_s: float) -> None:
        self.rows = rows
        self.rounds = rounds
        self._warm_s = warm_s  # for which a way is used before its turns count
        self.directory = directory
        self.more_kafka: list[int] = []  # processes of another cluster of Kafka
        self._filled: set[str] = set()
        self._warmed: dict[str, float] = {}  # seconds, by kind of case and way
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.kafka = Kafka(self.directory / "kafka")
            stack.callback(self.kafka.close)
            self.daybook = stack.enter_context(StandaloneProcess())
            self.spark = _session()
            stack.callback(self.spark.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # -- topics

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic in both systems."""
        with blocking.connect_admin(self.daybook.admin_url) as admin:
            admin.create_topic(topic, partitions=partitions)
        self.create_in_kafka(self.kafka.address, topic, partitions, copies=1)

    def create_in_kafka(
        self, address: str, topic: str, partitions: int, *, copies: int, **settings: str
    ) -> None:
        java: Any = self.spark.sparkContext._jvm  # noqa: SLF001  the way to the JVM
        admin_class = java.org.apache.kafka.clients.admin.Admin
        kafka_admin = admin_class.create(self._properties(address))
        new_topic = java.org.apache.kafka.clients.admin.NewTopic
        new = new_topic(topic, partitions, java.Short(str(copies)))
        new.configs({name.replace("_", "."): value for name, value in settings.items()})
        kafka_admin.createTopics(java.java.util.List.of(new)).all().get()
        kafka_admin.close()

    def fill(self, topic: str, partitions: int) -> None:
        """Create a topic with the rows in both systems, and print how they are stored.

        Messages have 200 bytes and a key.  Daybook's ledgers are sealed after that.
        """
        if topic in self._filled:
            return
        self._filled.add(topic)
        self.create(topic, partitions)
        rows = self.new_rows(self.rows).selectExpr("*", f"cast(id % {partitions} as int) partition")
        rows.drop("id").write.format("kafka").options(
            **{
                "kafka.bootstrap.servers": self.kafka.address,
                "topic": topic,
                "kafka.batch.size": str(_BATCH_BYTES),
                "kafka.linger.ms": str(_LINGER_MS),
            }
        ).save()
        trio.run(
            partial(
                fill_daybook,
                self.daybook.service_url,
                topic,
                partitions=partitions,
                rows=self.rows,
                key_of=lambda number: f"key-{number % KEYS:03}",
                value=VALUE,
                batch_bytes=_BATCH_BYTES,
            )
        )
        with (
            blocking.connect(self.daybook.service_url) as client,
            blocking.connect_admin(self.daybook.admin_url) as admin,
        ):
            for partition in range(partitions):
                admin.unload_topic(f"{topic}-partition-{partition}")
            found = client.ledgers(topic)
        for each in found:
            assert each.sealed[-1].next == each.held.next, "all messages are in sealed ledgers"
        assert sum(each.held.next for each in found) == self.rows
        stored = {
            DAYBOOK: stored_in_daybook(found),
            KAFKA: stored_in_kafka(self.directory / "kafka" / "data", topic),
        }
        for name, size in stored.items():
            print(f"  {topic}, {partitions} partitions, {name}: {size}", flush=True)

    def new_rows(self, count: int) -> "DataFrame":
        """Return rows that Spark makes: `id`, `key` and `value`, in a task for each core."""
        key = f"cast(concat('key-', lpad(cast(id % {KEYS} as string), 3, '0')) as binary) key"
        value = f"cast(repeat('x', {len(VALUE)}) as binary) value"
        return self.spark.range(0, count, 1, CORES).selectExpr("id", key, value)

    # -- queries

    def source(self, way: str, topic: str) -> tuple[str, dict[str, str]]:
        """Return the format and the options of a reader of key and value."""
        if way == MEMORY:
            return "memory_rows", {"rows": str(self.rows), "tasks": str(CORES)}
        if way == KAFKA:
            return "kafka", {"kafka.bootstrap.servers": self.kafka.address, "subscribe": topic}
        options = {"service.url": self.daybook.service_url, "topic": topic, "columns": "key,value"}
        if way == BROKERS:
            options["read"] = "brokers"
        return "daybook", options

    def frame(self, way: str, topic: str) -> "DataFrame":
        format_, options = self.source(way, topic)
        return self.spark.read.format(format_).options(**options).load().select("key", "value")

    def stream(self, way: str, topic: str, **more: str) -> "DataFrame":
        format_, options = self.source(way, topic)
        reader = self.spark.readStream.format(format_).options(**options, **more)
        return reader.load().select("key", "value")

    def kafka_producer(self) -> Any:  # noqa: ANN401  Kafka's own
        java: Any = self.spark.sparkContext._jvm  # noqa: SLF001  the way to the JVM
        properties = self._properties(self.kafka.address)
        for part in ("key", "value"):
            kind = "org.apache.kafka.common.serialization.ByteArraySerializer"
            properties.put(f"{part}.serializer", kind)
        return java.org.apache.kafka.clients.producer.KafkaProducer(properties)

    def kafka_send(self, producer: Any, topic: str) -> None:  # noqa: ANN401
        """Send one message, and wait for its receipt."""
        java: Any = self.spark.sparkContext._jvm  # noqa: SLF001  the way to the JVM
        record = java.org.apache.kafka.clients.producer.ProducerRecord(topic, bytearray(VALUE))
        producer.send(record).get()

    def _properties(self, address: str) -> Any:  # noqa: ANN401
        java: Any = self.spark.sparkContext._jvm  # noqa: SLF001  the way to the JVM
        properties = java.java.util.HashMap()
        properties.put("bootstrap.servers", address)
        return properties

    # -- turns

    def in_turns(self, lines: Mapping[str, Line], turn: Callable[[str], float]) -> None:
        """Let the ways take turns, and note the figure and the processor time of each.

        The order changes each time.  Turns count after those of the same kind have taken `warm_s`
        for each way, so that compilers have had their time.
        """
        kind = next(iter(lines.values())).case.partition(",")[0]
        for way in lines:
            self._warm_up(f"{kind}, {way}", way, turn)
        for round_ in range(self.rounds):
            for way in list(lines)[:: -1 if round_ % 2 else 1]:
                with used(self.pids) as found:
                    figure = turn(way)
                print(f"  {lines[way].case}, {way}: {figure:,.0f} {lines[way].unit}", flush=True)
                lines[way].add(figure, found)

    def _warm_up(self, key: str, way: str, turn: Callable[[str], float]) -> None:
        """Take one turn at least, which also warms what is new in this case."""
        while True:
            began = time.monotonic()
            figure = turn(way)
            self._warmed[key] = self._warmed.get(key, 0.0) + time.monotonic() - began
            print(f"  {key}, warming up: {figure:,.0f}", flush=True)
            if self._warmed[key] >= self._warm_s:
                return

    def pids(self) -> dict[str, list[int]]:
        """Return the processes by kind, as they are now."""
        found: dict[str, list[int]] = {"brokers": [], "bookies": []}
        for part in self.daybook.parts():
            kind = _KINDS.get(str(part["name"]).partition("-")[0])
            if kind is not None:
                found[kind].append(int(part["pid"]))
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001
        jvm: int = gateway.proc.pid
        found["kafka"] = [self.kafka.pid, *self.more_kafka]
        found["jvm"] = [jvm]
        found["workers"] = descendants(jvm)
        return found


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    jars = ",".join(str(path) for path in sorted(spark_kafka_here().jars.glob("*.jar")))
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.jars", jars)
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.streaming.noDataProgressEventInterval", "0")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .getOrCreate()
    )
    spark.dataSource.register(DaybookDataSource)
    spark.dataSource.register(MemorySource)
    return spark
