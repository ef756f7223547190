"""The Spark source on a real cluster: exact offsets, restarts, lost data, an idle driver."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from daybook import schemas
from daybook.clients.python import blocking
from daybook.clients.python.message_id import MessageId
from daybook.clients.spark import LagListener
from daybook.clients.spark.offsets import OffsetRange
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.read import read_task
from daybook.clients.testing.standalone import StandaloneProcess
from tests.real import spark_accounting

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

COUNT = 2000
TRIGGER_MAX = 700
PATIENCE_S = 300  # the machine may be busy with other work


@pytest.fixture
def filled(client: blocking.Client, admin: blocking.Admin, topic: str) -> str:
    """Fill a topic with 3 partitions and COUNT messages."""
    admin.create_topic(topic, partitions=3)
    fill(client, topic, range(COUNT))
    return topic


def fill(client: blocking.Client, topic: str, numbers: range) -> None:
    with client.create_producer(topic) as producer:
        for i in numbers:
            producer.send_nowait(
                b"%d" % i, key=f"k{i % 10}", properties={"n": str(i)}, event_time_ms=1000 + i
            )
        producer.flush()


def read(spark: SparkSession, cluster: StandaloneProcess, topic: str, **options: str) -> DataFrame:
    return (
        spark.read.format("daybook")
        .options(**{"service.url": cluster.service_url, "topic": topic, **options})
        .load()
    )


class Stream:
    """An AvailableNow query from a topic to files, which is started again and again."""

    def __init__(
        self, spark: SparkSession, cluster: StandaloneProcess, topic: str, directory: Path
    ) -> None:
        self._spark = spark
        self._directory = directory
        self.options = {
            "service.url": cluster.service_url,
            "topic": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(TRIGGER_MAX),
        }

    def start(self, **options: str) -> StreamingQuery:
        return (
            self._spark.readStream.format("daybook")
            .options(**{**self.options, **options})
            .load()
            .writeStream.format("parquet")
            .option("path", str(self._directory / "out"))
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, **options: str) -> StreamingQuery:
        query = self.start(**options)
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None
        return query

    def stored(self) -> list[int]:
        rows = self._spark.read.parquet(str(self._directory / "out")).select("value").collect()
        return sorted(int(row["value"]) for row in rows)


@pytest.fixture
def stream(spark: SparkSession, cluster: StandaloneProcess, filled: str, tmp_path: Path) -> Stream:
    return Stream(spark, cluster, filled, tmp_path)


def test_a_batch_reads_every_message_once_with_exact_offsets(
    spark: SparkSession, cluster: StandaloneProcess, filled: str
) -> None:
    frame = read(spark, cluster, filled, minPartitions="13")
    assert frame.rdd.getNumPartitions() >= 13
    rows = frame.collect()
    assert sorted(int(r["value"]) for r in rows) == list(range(COUNT))
    offsets: dict[int, list[int]] = {}
    for row in rows:
        number = int(row["value"])
        assert row["topic"] == filled
        assert row["key"] == b"k%d" % (number % 10)
        assert row["properties"] == {"n": str(number)}
        assert row["eventTime"].timestamp() == pytest.approx((1000 + number) / 1000)
        assert MessageId.decode(bytes(row["messageId"])).partition == row["partition"]
        offsets.setdefault(row["partition"], []).append(row["offset"])
    assert set(offsets) == {0, 1, 2}
    for found in offsets.values():
        assert sorted(found) == list(range(len(found)))


def test_ranges_are_half_open(spark: SparkSession, cluster: StandaloneProcess, filled: str) -> None:
    rows = read(
        spark,
        cluster,
        filled,
        startingOffsets='{"0": 5, "1": -2, "2": -1}',
        endingOffsets=json.dumps({filled: {"0": 25, "1": 3, "2": -1}}),
    ).collect()
    found = sorted((r["partition"], r["offset"]) for r in rows)
    assert found == [(0, o) for o in range(5, 25)] + [(1, o) for o in range(3)]


def test_a_topic_without_partitions_is_partition_0(
    spark: SparkSession, cluster: StandaloneProcess, client: blocking.Client, topic: str
) -> None:
    fill(client, topic, range(20))
    rows = read(spark, cluster, topic, minPartitions="3").collect()
    assert sorted((r["partition"], r["offset"], int(r["value"])) for r in rows) == [
        (0, n, n) for n in range(20)
    ]


def test_nothing_to_read_is_an_empty_table(
    spark: SparkSession, cluster: StandaloneProcess, filled: str
) -> None:
    assert read(spark, cluster, filled, startingOffsets="latest").count() == 0


def test_reading_a_few_rows_ends_early(
    spark: SparkSession, cluster: StandaloneProcess, filled: str
) -> None:
    assert len(read(spark, cluster, filled).take(3)) == 3


def test_a_topic_that_is_not_there_is_named_and_not_made(
    spark: SparkSession, cluster: StandaloneProcess, client: blocking.Client, topic: str
) -> None:
    with pytest.raises(Exception, match=f"the topic .*{topic} does not exist"):
        read(spark, cluster, topic).collect()
    assert not [name for name in client.topics() if topic in name]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("startingOffset", "earliest", "unknown option 'startingoffset'"),
        (
            "startingOffsets",
            '{"0": 1}',
            r"names the partitions \[0\] of persistent://.*, but the query reads \[0, 1, 2\]",
        ),
        ("endingOffsets", '{"0": 1000000, "1": 0, "2": 0}', "failOnDataLoss=false"),
    ],
)
def test_a_wrong_option_is_explained(
    spark: SparkSession,
    cluster: StandaloneProcess,
    filled: str,
    option: str,
    value: str,
    says: str,
) -> None:
    with pytest.raises(Exception, match=says):
        read(spark, cluster, filled, **{option: value}).collect()


def test_errors_are_one_sentence_and_a_wrong_host_fails_soon(
    spark: SparkSession, cluster: StandaloneProcess, filled: str
) -> None:
    """Spark adds a prefix and an SQLSTATE, and no traceback of a worker."""
    began = time.monotonic()
    told = lines_of(
        lambda: (
            spark.read.format("daybook")
            .options(**{"service.url": "pulsar://127.0.0.1:1", "topic": filled})
            .load()
            .collect()
        )
    )
    assert time.monotonic() - began < 60, "5 s, and what a busy machine needs"
    assert len(told) == 2, told
    assert "daybook.UnavailableError: no broker can be reached: 127.0.0.1:1" in told[0]
    assert told[0].endswith("service.url='pulsar://127.0.0.1:1', and that a broker runs there")
    frame = read(spark, cluster, filled).selectExpr("value", "7 as partition")
    options = {"service.url": cluster.service_url, "topic": filled}
    told = lines_of(lambda: frame.write.format("daybook").mode("append").options(**options).save())
    assert told[-1] == (
        f"ValueError: the column 'partition' of a row is 7, and {filled} has the partitions 0 to 2"
    )
    assert len(told) == 2, told
    stream = spark.readStream.format("daybook").options(**options, endingOffsets="latest").load()
    told = lines_of(lambda: stream.writeStream.format("noop").start().awaitTermination(PATIENCE_S))
    assert told[0].endswith("ValueError: endingOffsets is for batch queries; a stream has no end")


def lines_of(call: Callable[[], object]) -> list[str]:
    """Return the lines of the error that a user sees."""
    with pytest.raises(PySparkException) as caught:
        call()
    return str(caught.value).splitlines()


def test_a_batch_that_may_go_on_reads_what_is_there(
    spark: SparkSession, cluster: StandaloneProcess, filled: str
) -> None:
    frame = read(
        spark,
        cluster,
        filled,
        endingOffsets='{"0": 1000000, "1": 0, "2": 0}',
        failOnDataLoss="false",
    )
    held = {r["partition"] for r in frame.select("partition").collect()}
    assert held == {0}


def test_sealed_ledgers_are_read_from_bookies_and_the_rest_from_brokers(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    filled: str,
) -> None:
    for partition in range(3):
        admin.unload_topic(f"{filled}-partition-{partition}")  # which closes its ledger
    fill(client, filled, range(COUNT, COUNT + 90))
    told = client.ledgers(filled)
    assert {each.url for each in told} == {f"zk://{cluster.zookeeper}/ledgers"}
    assert sum(each.held.next - each.sealed[-1].next for each in told) == 90
    frame = read(spark, cluster, filled, read="bookies", minPartitions="7", columns="value,offset")
    rows = frame.collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(COUNT + 90))


def test_a_stream_goes_on_from_its_checkpoint_and_reads_all_once(
    stream: Stream, client: blocking.Client, filled: str
) -> None:
    first = stream.run()
    assert [p["numInputRows"] for p in first.recentProgress if p["numInputRows"]] == [
        *([TRIGGER_MAX] * (COUNT // TRIGGER_MAX)),
        COUNT % TRIGGER_MAX,
    ]
    fill(client, filled, range(COUNT, COUNT + 500))
    stream.run()
    assert stream.stored() == list(range(COUNT + 500))


def test_a_stream_with_a_limit_of_bytes_reads_all_once_in_small_micro_batches(
    stream: Stream,
) -> None:
    # 2,000 messages of some 50 bytes: one sampled entry tells about how large they are.
    del stream.options["maxOffsetsPerTrigger"]
    query = stream.run(maxBytesPerTrigger="25k")
    rows = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert len(rows) >= 3
    assert max(rows) < COUNT / 2
    assert stream.stored() == list(range(COUNT))


def test_a_stream_that_is_stopped_in_a_batch_reads_it_again_and_stores_it_once(
    stream: Stream,
) -> None:
    query = stream.start(maxOffsetsPerTrigger="200")
    while query.isActive and not any(p["numInputRows"] for p in query.recentProgress):
        time.sleep(0.05)
    query.stop()  # during the second batch or so
    stream.run(maxOffsetsPerTrigger="900")
    assert stream.stored() == list(range(COUNT))


def test_available_now_leaves_what_comes_later_to_the_next_run(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    filled: str,
    tmp_path: Path,
) -> None:
    found: list[int] = []

    def take(frame: DataFrame, batch: int) -> None:
        fill(client, filled, range(COUNT, COUNT + 50))
        found.extend(int(row["value"]) for row in frame.select("value").collect())

    query = (
        spark.readStream.format("daybook")
        .options(**{"service.url": cluster.service_url, "topic": filled})
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="900")
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None
    assert sorted(found) == list(range(COUNT))


def test_a_stream_starts_at_the_end_and_follows(
    spark: SparkSession, cluster: StandaloneProcess, client: blocking.Client, filled: str
) -> None:
    listener = LagListener()
    spark.streams.addListener(listener)
    query = (
        spark.readStream.format("daybook")
        .options(**{"service.url": cluster.service_url, "topic": filled})
        .load()
        .writeStream.format("memory")
        .queryName("follows")
        .start()
    )
    try:
        # Its start offset is chosen when the first trigger is planned.
        while not query.recentProgress:
            assert query.isActive, query.exception()
            time.sleep(0.05)
        fill(client, filled, range(COUNT, COUNT + 30))
        query.processAllAvailable()
        latest = json.loads(query.recentProgress[-1]["sources"][0]["latestOffset"])
        (partitions,) = latest["topics"].values()
        assert sum(each["next"] for each in partitions.values()) == COUNT + 30
        while not listener.behind():  # Spark tells its listeners in a thread of its own.
            assert query.isActive, query.exception()
            time.sleep(0.05)
        assert {name for name, _ in listener.behind()} == {"follows"}
        assert {partition.number for _, partition in listener.behind()} == {0, 1, 2}
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    rows = spark.sql("select value from follows").collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(COUNT, COUNT + 30))


def test_a_topic_made_anew_fails_a_stream_or_is_read_from_its_beginning(
    stream: Stream, client: blocking.Client, admin: blocking.Admin, filled: str
) -> None:
    """The new topic has more messages than the old one: offsets alone would not tell."""
    stream.run()
    admin.delete_topic(filled, force=True)
    admin.create_topic(filled, partitions=3)
    fill(client, filled, range(COUNT, 2 * COUNT + 90))
    query = stream.start(maxOffsetsPerTrigger="5000")
    with pytest.raises(Exception, match="partition 0 was deleted and created again"):
        query.awaitTermination(PATIENCE_S)
    stream.run(failOnDataLoss="false", maxOffsetsPerTrigger="5000")
    assert stream.stored() == list(range(2 * COUNT + 90))


def test_a_schema_and_sql_choose_columns(
    spark: SparkSession, cluster: StandaloneProcess, client: blocking.Client, topic: str
) -> None:
    fill(client, topic, range(20))
    options = {"service.url": cluster.service_url, "topic": topic}
    source = spark.read.format("daybook").options(**options)
    frame = source.schema(
        "offset bigint, key string, headers array<struct<key:string,value:binary>>"
    )
    row = frame.load().where("offset = 7").first()
    assert row == (7, "k7", [("n", b"7")])
    with pytest.raises(Exception, match="the column has the type binary"):
        source.schema("value string").load().collect()
    given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW numbers USING daybook OPTIONS ({given}, keyType 'string')")
    found = spark.sql("SELECT count(*), max(key), max(string(value)) FROM numbers").first()
    assert found == (20, "k9", "9")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("INSERT OVERWRITE {table} {options} VALUES (binary('x'))", r"\[(UNSUPPORTED|PYTHON_DATA)"),
        ("UPDATE {table} SET value = binary('x')", r"\[UNSUPPORTED"),
        ("DELETE FROM {table}", "does not support deletes"),
    ],
)
def test_a_topic_only_grows_also_in_sql(
    spark: SparkSession, cluster: StandaloneProcess, topic: str, statement: str, says: str
) -> None:
    table = topic.replace("-", "_")
    options = f"WITH (`service.url` = '{cluster.service_url}', topic = '{topic}')"
    spark.sql(f"CREATE TABLE {table} (value BINARY) USING daybook")
    try:
        with pytest.raises(Exception, match=says):
            spark.sql(statement.format(table=table, options=options))
    finally:
        spark.sql(f"DROP TABLE {table}")


@dataclass
class Sale:
    number: int
    tags: list[str]
    at: datetime


@dataclass
class SaleWithShop(Sale):
    shop: str = "unknown"


def test_topics_with_a_schema_are_typed_columns(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    topic: str,
    tmp_path: Path,
) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    old, new = schemas.avro(Sale, name="Sale"), schemas.avro(SaleWithShop, name="Sale")
    with client.create_producer(topic, schema=old) as producer:
        for number in range(50):
            producer.send_nowait(Sale(number, ["a"], at))
        producer.flush()
    typed = {"schemaMode": "topic"}
    begun = read(spark, cluster, topic, **typed)
    assert "shop" not in begun.columns
    with client.create_producer(topic, schema=new) as producer:
        producer.send(SaleWithShop(50, [], at, "north"))
    # The table that was loaded before reads the new message with the columns that it has.
    assert sorted(row["number"] for row in begun.select("number").collect()) == list(range(51))
    frame = read(spark, cluster, topic, **typed)
    assert frame.drop("__messageId", "__properties").schema.simpleString() == (
        "struct<number:bigint,tags:array<string>,at:timestamp,shop:string,__key:binary,"
        "__topic:string,__partition:int,__offset:bigint,__timestamp:timestamp,__eventTime:timestamp>"
    )
    counts = {row["shop"]: row["count"] for row in frame.groupBy("shop").count().collect()}
    assert counts == {"unknown": 50, "north": 1}
    with client.create_producer(topic) as producer:
        producer.send(b"no sale")
    # A table keeps the bounds of its first query, and a new one has the message.
    assert frame.count() == 51
    frame = read(spark, cluster, topic, **typed)
    told = lines_of(lambda: frame.collect())
    assert told[-1].endswith("set mode=PERMISSIVE to have such messages in the column _corrupt")
    assert "the message at offset 51 is not of the schema" in told[-1]
    stream = (
        spark.readStream.format("daybook")
        .options(**{"service.url": cluster.service_url, "topic": topic, **typed})
        .options(mode="PERMISSIVE", columns="shop,__offset,_corrupt", startingOffsets="earliest")
        .load()
        .writeStream.format("parquet")
        .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert stream.awaitTermination(PATIENCE_S)
    assert stream.exception() is None
    rows = {row["__offset"]: row for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert sorted(rows) == list(range(52))
    assert (rows[50]["shop"], rows[50]["_corrupt"]) == ("north", None)
    assert (rows[51]["shop"], bytes(rows[51]["_corrupt"])) == (None, b"no sale")


def test_a_topic_without_a_schema_has_no_typed_columns(
    spark: SparkSession, cluster: StandaloneProcess, filled: str
) -> None:
    told = lines_of(lambda: read(spark, cluster, filled, schemaMode="topic"))
    assert f"{filled} has no schema: read it with schemaMode=raw" in told[0]


def test_the_driver_receives_no_payload(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    topic: str,
    tmp_path: Path,
) -> None:
    """Each process that talks to brokers notes its role and the bytes that it received."""
    admin.create_topic(topic, partitions=2)
    payload = os.urandom(1 << 20)  # cannot be compressed
    with client.create_producer(topic) as producer:
        for i in range(4):
            producer.send_nowait(payload[i:], key=str(i))
        producer.flush()
    notes = tmp_path / "notes"
    notes.mkdir()
    spark.dataSource.register(spark_accounting.counting_source(str(notes)))
    options = {"service.url": cluster.service_url, "topic": topic, "startingOffsets": "earliest"}
    assert spark.read.format("counted").options(**options).load().count() == 4
    query = (
        spark.readStream.format("counted")
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    assert sum(p["numInputRows"] for p in query.recentProgress) == 4
    noted: list[dict[str, Any]] = [json.loads(note.read_text()) for note in notes.iterdir()]
    readers = {note["pid"] for note in noted if note["role"] == "task"}
    drivers = {os.getpid()} | {note["pid"] for note in noted if note["role"] == "plan"}
    assert readers
    assert len(drivers) > 1
    assert not readers & drivers
    received = {
        role: sum(n["bytes"] for n in noted if n["role"] == role) for role in ("task", "plan")
    }
    assert received["task"] >= 2 * 4 * (len(payload) - 4)  # once by the batch, once by the stream
    assert 0 < received["plan"] < 20_000


def test_a_task_reads_on_when_its_broker_is_killed(topic: str) -> None:
    """The test does a task's work without Spark, on a cluster that may be broken."""
    count = 40_000
    with StandaloneProcess() as own, blocking.connect(own.service_url) as client:
        with client.create_producer(topic) as producer:
            for n in range(count):
                producer.send_nowait(b"%0100d" % n)
            producer.flush()
        part = OffsetRange(0, 5, count - 5)
        batches = read_task(ReadTask(own.service_url, topic, part, fail_on_data_loss=True))
        values = next(batches)["value"].to_pylist()
        owner = client.lookup(topic)
        (name,) = [b["name"] for b in own.ready["brokers"] if b["service_url"] == owner]
        own.local("kill", name)
        for batch in batches:
            values += batch["value"].to_pylist()
    assert [int(value) for value in values] == list(range(5, count - 5))
