"""Spark writes to topics of a real cluster: every row arrives, in order within its partition."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from daybook import schemas
from daybook.clients.python import blocking
from daybook.clients.python.messages import Message
from daybook.clients.python.schemas.fields import Int32
from daybook.clients.testing.standalone import StandaloneProcess
from tests.real.spark_session import SharedSpark

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

PATIENCE_S = 300  # the machine may be busy with other work


@dataclass
class Row:
    """The record of typed rows."""

    number: Int32 | None
    at: datetime


@pytest.fixture(scope="module")
def spark(shared_spark: SharedSpark) -> Iterator[SparkSession]:
    # A task of a local master with one number is not repeated: here it may fail twice.
    with shared_spark.session("local[2,3]") as session:
        yield session


def numbers(spark: SparkSession, count: int, *, tasks: int = 2) -> DataFrame:
    """Return rows with all columns: the value is the number."""
    row = spark.range(0, count, 1, tasks)
    text = F.col("id").cast("string")
    return row.select(
        text.alias("value"),
        F.concat(F.lit("k"), F.col("id") % 10).alias("key"),
        F.create_map(F.lit("n"), text).alias("properties"),
        F.timestamp_millis(F.col("id") + 1000).alias("eventTime"),
    )


def write(frame: DataFrame, cluster: StandaloneProcess, **options: str) -> None:
    (
        frame.write.format("daybook")
        .mode("append")
        .options(**{"service.url": cluster.service_url, **options})
        .save()
    )


def read(client: blocking.Client, topic: str) -> list[Message]:
    """Return the messages of all partitions, one partition after the other."""
    partitions = client.partitions(topic, create=False)
    names = [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
    found: list[Message] = []
    for name in names:
        left = client.offsets(name).next
        with client.create_reader(name, start="earliest") as reader:
            while left:
                got = reader.receive_batch(timeout_s=PATIENCE_S)
                found += got
                left -= len(got)
    return found


def test_a_batch_writes_every_row_where_a_producer_would(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    topic: str,
) -> None:
    count = 5000
    admin.create_topic(topic, partitions=3)
    write(numbers(spark, count), cluster, topic=topic, compression="zstd")
    found = read(client, topic)
    assert sorted(int(message.data or b"") for message in found) == list(range(count))
    places: dict[str | None, int] = {}
    for message in found:
        number = int(message.data or b"")
        assert message.key == f"k{number % 10}"
        assert message.properties == {"n": str(number)}
        assert message.event_time_ms == 1000 + number
        partition = message.message_id.partition
        assert places.setdefault(message.key, partition) == partition
    assert set(places.values()) == {0, 1, 2}
    with client.create_producer(topic) as producer:
        for key, partition in places.items():
            assert producer.send(b"-1", key=key).partition == partition
    # Rows of one task and key are in order.
    for key in places:
        of_key = [int(m.data or b"") for m in found if m.key == key]
        for task in (range(count // 2), range(count // 2, count)):
            of_task = [number for number in of_key if number in task]
            assert of_task == sorted(of_task)


def test_rows_choose_topics_and_partitions_and_null_is_a_tombstone(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    topic: str,
) -> None:
    admin.create_topic(f"{topic}-a", partitions=3)
    rows = [
        (bytearray(b"1"), bytearray(b"\xff"), f"{topic}-a", 2, None),
        (None, bytearray(b"k"), f"{topic}-b", None, None),
        (bytearray(b"3"), None, f"{topic}-b", 0, datetime(2026, 1, 2, tzinfo=UTC)),
    ]
    frame = spark.createDataFrame(
        rows, "value binary, key binary, topic string, partition int, eventTime timestamp"
    )
    write(frame, cluster)
    (first,) = read(client, f"{topic}-a")
    assert (first.data, first.key_bytes, first.message_id.partition) == (b"1", b"\xff", 2)
    others = {message.is_null: message for message in read(client, f"{topic}-b")}
    assert others[True].key_bytes == b"k"
    assert others[False].data == b"3"
    assert others[False].event_time_ms == 1767312000000


def test_a_stream_writes_everything_and_goes_on_after_a_restart(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    topic: str,
    tmp_path: Path,
) -> None:
    numbers(spark, 600).write.parquet(str(tmp_path / "in"))

    def run() -> None:
        query = (
            spark.readStream.schema("value string, key string")
            .option("maxFilesPerTrigger", "1")
            .parquet(str(tmp_path / "in"))
            .writeStream.format("daybook")
            .options(**{"service.url": cluster.service_url, "topic": topic})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName(topic)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None

    run()
    numbers(spark, 900).where("value >= 600").write.mode("append").parquet(str(tmp_path / "in"))
    run()
    found = read(client, topic)
    assert sorted(int(message.data or b"") for message in found) == list(range(900))


@pytest.mark.parametrize("format_", ["json", "avro"])
def test_typed_rows_are_messages_with_a_schema(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    topic: str,
    format_: Literal["json", "avro"],
) -> None:
    frame = numbers(spark, 100).selectExpr("key", "int(value) number", "current_timestamp() at")
    write(frame, cluster, topic=topic, valueFormat=format_)
    schema = getattr(schemas, format_)(Row)
    with client.create_reader(topic, start="earliest", schema=schema) as reader:
        found: list[Message[Row]] = []
        while len(found) < 100:
            found += reader.receive_batch(timeout_s=PATIENCE_S)
    numbered = {each.value.number: each.key for each in found if each.value is not None}
    assert numbered == {number: f"k{number % 10}" for number in range(100)}
    other = frame.selectExpr("string(number) number", "at")
    with pytest.raises(Exception, match="IncompatibleSchema"):
        write(other, cluster, topic=topic, valueFormat=format_)


def once(cluster: StandaloneProcess, topic: str) -> dict[str, str]:
    """Return the options of an exactly-once write; any broker takes its requests."""
    return {
        "service.url": cluster.service_url,
        "admin.url": cluster.admin_url,
        "topic": topic,
        "semantics": "exactly-once",
    }


def test_a_batch_is_written_exactly_once(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    topic: str,
) -> None:
    count = 3000
    admin.create_topic(topic, partitions=3)
    frame = numbers(spark, count, tasks=3).selectExpr("key", "int(value) number", "eventTime at")
    write(frame, cluster, **once(cluster, topic), valueFormat="json", compression="lz4")
    schema = schemas.json(Row)
    assert sorted(schema.decode(m.data or b"").number or 0 for m in read(client, topic)) == list(
        range(count)
    )
    with client.create_reader(f"{topic}-partition-0", start="earliest", schema=schema) as reader:
        assert isinstance(reader.receive(PATIENCE_S).value, Row)
    # A task that fails leaves nothing in the topic.
    broken = numbers(spark, 100).withColumn(
        "value", F.expr("if(value = '77', raise_error('no'), value)")
    )
    before = len(read(client, topic))
    with pytest.raises(Exception, match="no"):
        write(broken, cluster, **once(cluster, topic))
    assert len(read(client, topic)) == before


class Stream:
    """An exactly-once query from files to a topic, which is started again and again."""

    def __init__(
        self, spark: SparkSession, cluster: StandaloneProcess, topic: str, directory: Path
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._options = {**once(cluster, topic), "checkpointLocation": str(self.checkpoint)}

    @property
    def checkpoint(self) -> Path:
        return self._directory / "checkpoint"

    def add(self, first: int, end: int, *, files: int = 1) -> None:
        """Add rows to the input; the query takes one file for each micro-batch."""
        frame = numbers(self._spark, end, tasks=1).where(f"int(value) >= {first}")
        path = str(self._directory / "in")
        frame.repartition(files).write.mode("append").parquet(path)

    def start(self, **options: str) -> StreamingQuery:
        return (
            self._spark.readStream.schema("value string, key string")
            .option("maxFilesPerTrigger", "1")
            .parquet(str(self._directory / "in"))
            .writeStream.format("daybook")
            .options(**{**self._options, **options})
            .trigger(availableNow=True)
            .start()
        )

    def run(self, **options: str) -> None:
        query = self.start(**options)
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None

    def forget_last_commit(self) -> None:
        """Do what a crash does between the commit of the sink and the note of Spark about it."""
        last = max(int(each.name) for each in (self.checkpoint / "commits").glob("[0-9]*"))
        for name in (f"{last}", f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink()


def test_a_stream_is_written_exactly_once_when_micro_batches_are_repeated(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    topic: str,
    tmp_path: Path,
) -> None:
    admin.create_topic(topic, partitions=2)
    stream = Stream(spark, cluster, topic, tmp_path)
    stream.add(0, 500)
    stream.run()
    stream.forget_last_commit()
    stream.add(500, 700)
    stream.run()
    found = read(client, topic)
    assert sorted(int(message.data or b"") for message in found) == list(range(700))
    # A copy of the checkpoint is another query that would write the same rows again.
    stream.forget_last_commit()
    query = stream.start(checkpointLocation=str(shutil.copytree(stream.checkpoint, tmp_path / "2")))
    with pytest.raises(Exception, match="the sink belongs to the checkpoint"):
        query.awaitTermination(PATIENCE_S)
    assert len(read(client, topic)) == 700


def test_a_stream_is_written_exactly_once_when_the_owner_is_killed(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with (
        StandaloneProcess() as own,
        blocking.connect(own.service_url) as client,
        blocking.connect_admin(own.admin_url) as admin,
    ):
        admin.create_topic(topic, partitions=2)
        stream = Stream(spark, own, topic, tmp_path)
        stream.add(0, 6000, files=6)
        query = stream.start()
        name = f"{topic}-partition-0"
        while query.isActive and not client.offsets(name).next:
            time.sleep(0.05)
        url = client.lookup(name)
        (owner,) = [each["name"] for each in own.ready["brokers"] if each["service_url"] == url]
        own.local("kill", owner)
        assert query.awaitTermination(PATIENCE_S)
        if query.exception() is not None:  # An attempt that was at this broker has failed.
            stream.run()
        found = read(client, topic)
        assert sorted(int(message.data or b"") for message in found) == list(range(6000))


@pytest.mark.parametrize(
    ("change", "mode", "says"),
    [
        ({"value": "cast(value as int)"}, "append", "value' is int and must be binary or string"),
        ({"when": "now()"}, "append", "has no column 'when'"),
        ({}, "overwrite", "a topic cannot be overwritten"),
    ],
)
def test_a_wrong_frame_is_refused_before_anything_is_sent(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    topic: str,
    change: dict[str, str],
    mode: str,
    says: str,
) -> None:
    frame = numbers(spark, 10).withColumns({name: F.expr(code) for name, code in change.items()})
    options = {"service.url": cluster.service_url, "topic": topic}
    with pytest.raises(Exception, match=says):
        frame.write.format("daybook").mode(mode).options(**options).save()
    assert not [name for name in client.topics() if topic in name]
