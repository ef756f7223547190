"""The Spark source on a real cluster: exact offsets, restarts, no payload in the driver."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from clients.python import blocking
from clients.spark.source import DaybookDataSource
from clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

COUNT = 2000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    session.dataSource.register(DaybookDataSource)
    yield session
    session.stop()


@pytest.fixture
def filled(cluster: StandaloneProcess, topic: str) -> str:
    """A topic with 3 partitions and COUNT messages."""
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic, partitions=3)
    with blocking.connect(cluster.service_url) as client:
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
    reader = spark.read.format("daybook").option("service.url", cluster.service_url)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.option("topic", topic).load()


def test_a_batch_reads_every_message_once_with_exact_offsets(
    spark: SparkSession, cluster: StandaloneProcess, filled: str
) -> None:
    rows = read(spark, cluster, filled, minPartitions="8").collect()
    assert sorted(int(r["value"]) for r in rows) == list(range(COUNT))
    offsets: dict[int, list[int]] = {}
    for row in rows:
        number = int(row["value"])
        assert row["topic"] == filled
        assert row["key"] == f"k{number % 10}"
        assert row["properties"] == {"n": str(number)}
        assert row["eventTime"].timestamp() == pytest.approx((1000 + number) / 1000)
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
        endingOffsets='{"0": 25, "1": 3, "2": -1}',
    ).collect()
    found = sorted((r["partition"], r["offset"]) for r in rows)
    assert found == [(0, o) for o in range(5, 25)] + [(1, o) for o in range(3)]


def test_a_stream_goes_on_from_its_checkpoint_and_reads_all_once(
    spark: SparkSession, cluster: StandaloneProcess, filled: str, tmp_path: Path
) -> None:
    def run() -> None:
        query = (
            spark.readStream.format("daybook")
            .option("service.url", cluster.service_url)
            .option("topic", filled)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "700")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
        assert all(p["numInputRows"] <= 700 for p in query.recentProgress)

    run()
    with blocking.connect(cluster.service_url) as client:
        fill(client, filled, range(COUNT, COUNT + 500))
    run()
    stored = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(int(r["value"]) for r in stored.collect()) == list(range(COUNT + 500))


def test_the_driver_receives_no_payload(
    spark: SparkSession, cluster: StandaloneProcess, filled: str
) -> None:
    """Reading happens in Python workers, each a process of its own."""
    frame = read(spark, cluster, filled)
    workers = frame.rdd.mapPartitions(lambda rows: [(os.getpid(), sum(1 for _ in rows))]).collect()
    assert sum(count for _, count in workers) == COUNT
    assert os.getpid() not in {pid for pid, _ in workers}


def test_a_wrong_option_is_named(
    spark: SparkSession, cluster: StandaloneProcess, topic: str
) -> None:
    with pytest.raises(Exception, match="unknown option 'startingoffset'"):
        read(spark, cluster, topic, startingOffset="earliest").collect()
