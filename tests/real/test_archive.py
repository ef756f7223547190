"""Archives on a real cluster: resumed after a failure, and read together with the topic."""

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from daybook import schemas
from daybook.clients.pipelines.archive.compact import compact
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.manifest import ArchivedSchema, Manifest, encode
from daybook.clients.pipelines.archive.replay import ReplayJob, ReplayProgress, replay
from daybook.clients.pipelines.archive.run import ArchiveJob, archive
from daybook.clients.pipelines.archive.source import held_with_archive
from daybook.clients.pipelines.archive.store import ArchiveStore
from daybook.clients.python import blocking
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.sink_requests import Committed, SinkRequests
from daybook.clients.spark.options import AtTimes
from daybook.clients.spark.schema import TYPES
from daybook.clients.spark.selection import parse_selection
from daybook.clients.spark.topics import TopicOffsets
from daybook.clients.testing.standalone import StandaloneProcess
from tests.real.commands import run_here

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

COUNT = 600
PATIENCE_S = 300


def fill(service_url: str, topic: str, numbers: range) -> None:
    """Send messages that differ in all that a message can have; their schema is of strings."""
    keys: list[str | bytes | None] = [None, "text", b"\xff\0"]
    with (
        blocking.connect(service_url) as client,
        client.create_producer(topic, schema=schemas.STRING) as producer,
    ):
        for i in numbers:
            producer.send_nowait(
                str(i) if i % 7 else None,
                key=keys[i % 3],
                properties={"n": str(i), "a": "b"} if i % 2 else {},
                event_time_ms=1000 + i if i % 5 else None,
                ordering_key=b"\0%d" % (i % 4) if i % 11 == 0 else None,
            )
        producer.flush()


def rows(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))


def test_a_topic_is_archived_and_read_with_its_archive(
    spark: SparkSession,
    cluster: StandaloneProcess,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic, partitions=2)
    fill(cluster.service_url, topic, range(COUNT))
    directory = tmp_path / "archive"
    job = ArchiveJob(cluster.service_url, topic, directory, 1 << 20, 200)

    whole = ArchiveStore.replace
    calls = iter(range(10))

    def fail_second(self: ArchiveStore, manifest: Manifest) -> Manifest:
        if next(calls) == 1:
            raise OSError("crash")
        return whole(self, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveStore, "replace", fail_second)
        with pytest.raises(OSError, match="crash"):
            archive(spark, job)
    litter = {path.name for path in directory.glob("day=*/*.parquet")}
    manifest = archive(spark, job)
    held = {Path(each.path).name for part in manifest.partitions.values() for each in part.files}
    assert litter - held, "the files of the step that failed are in no manifest"
    assert sum(part.rows for part in manifest.partitions.values()) == COUNT
    info = schemas.STRING.info
    assert list(manifest.schemas.values()) == [
        ArchivedSchema(info.type, f"public/default/{topic}", info.data)
    ]

    fill(cluster.service_url, topic, range(COUNT, COUNT + 100))
    options = {
        "service.url": cluster.service_url,
        "topic": topic,
        "columns": ",".join(TYPES),
        "startingOffsets": "earliest",
    }
    both = {**options, "read": "archive+live", "archive": str(directory)}
    expected = rows(spark.read.format("daybook").options(**options).load())
    assert len(expected) == COUNT + 100
    assert rows(spark.read.format("daybook").options(**both).load()) == expected

    texts = {"keyType": "string", "columns": "key,partition,offset"}
    wanted = rows(spark.read.format("daybook").options(**{**options, **texts}).load())
    assert rows(spark.read.format("daybook").options(**{**both, **texts}).load()) == wanted

    part = {"startingOffsets": json.dumps({"0": 17, "1": 23})}
    wanted = [row for row in expected if row["offset"] >= (17, 23)[row["partition"]]]
    assert rows(spark.read.format("daybook").options(**{**both, **part}).load()) == wanted

    query = (
        spark.readStream.format("daybook")
        .options(**both, maxOffsetsPerTrigger="250")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == expected


@dataclass
class Reading:
    number: int
    sensor: str


@dataclass
class NewReading:
    """The same record after it has changed."""

    number: int
    sensor: str
    unit: str = "C"


def send_readings(cluster: StandaloneProcess, topic: str) -> None:
    """Send messages of two versions of a schema, each in an entry of its own."""
    with blocking.connect(cluster.service_url) as client:
        with client.create_producer(topic, schema=schemas.avro(Reading)) as producer:
            for number in range(4):
                producer.send(Reading(number, "s"), key=f"k{number % 2}")
        with client.create_producer(topic, schema=schemas.avro(NewReading)) as producer:
            for number in range(4, 7):
                producer.send(NewReading(number, "t", "F"), properties={"n": str(number)})
            producer.send(None, key="gone")


def test_typed_columns_and_times_are_those_of_the_topic_at_every_cut(
    spark: SparkSession, cluster: StandaloneProcess, topic: str, tmp_path: Path
) -> None:
    send_readings(cluster, topic)
    directory = tmp_path / "archive"
    manifest = archive(spark, ArchiveJob(cluster.service_url, topic, directory, 1 << 20, 1))
    part = manifest.partitions[0]
    assert [(each.first, each.next) for each in part.files] == list(pairwise(range(9)))

    url = {"service.url": cluster.service_url, "topic": topic}
    typed = {**url, "schemaMode": "topic", "mode": "PERMISSIVE", "includeHeaders": "true"}
    both = {"read": "archive+live", "archive": str(directory)}

    def read(**options: str) -> list[Any]:
        frame = spark.read.format("daybook").options(**options).load()
        return [(frame.schema, row) for row in sorted(frame.collect(), key=lambda r: r["__offset"])]

    expected = read(**typed)
    assert [row["unit"] for _, row in expected] == [*"CCCCFFF", None]
    times = [round(row["__timestamp"].timestamp() * 1000) for _, row in expected]
    low, high = times[2], times[6]
    between = [each for each, at in zip(expected, times, strict=True) if low <= at < high]
    topics = TopicOffsets(cluster.service_url, parse_selection({"topic": topic}), ClientLimits())
    try:
        alone = topics.held()
        for cut in range(9):
            # The archive as it was after so many messages.
            shorter = {0: replace(part, files=part.files[:cut])}
            (directory / "manifest.json").write_bytes(encode(replace(manifest, partitions=shorter)))
            assert read(**typed, **both) == expected, f"{cut} messages are in the archive"
            bounds = {"startingTimestamp": str(low), "endingTimestamp": str(high)}
            assert read(**typed, **both, **bounds) == between

            held = held_with_archive(topics.held, str(directory))
            for time_ms in sorted({0, *times, *(each + 1 for each in times)}):
                for option in ("startingOffsets", "endingOffsets"):
                    at = AtTimes(time_ms, option, end_if_none=True)
                    assert topics.resolve(at, held, option) == topics.resolve(at, alone, option)
    finally:
        topics.close()


def contents(spark: SparkSession, cluster: StandaloneProcess, topic: str) -> list[Any]:
    """Return what the messages of a topic are, in order: all but where and when they are stored."""
    kept = "partition,key,keyIsBytes,value,eventTime,properties,headers,orderingKey"
    options = {"service.url": cluster.service_url, "topic": topic, "columns": f"{kept},offset"}
    frame = spark.read.format("daybook").options(**options).load()
    return [row[:-1] for row in rows(frame)]


def test_an_archive_is_replayed_exactly_once(
    spark: SparkSession,
    cluster: StandaloneProcess,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic, partitions=2)
    fill(cluster.service_url, topic, range(COUNT))
    directory = tmp_path / "archive"
    archive(spark, ArchiveJob(cluster.service_url, topic, directory, 1 << 20, 150))
    wanted = contents(spark, cluster, topic)
    target = f"{topic}-again"
    job = ReplayJob(cluster.service_url, cluster.admin_url, directory, target, 200)

    # The driver dies after the first commit, before it knows of it.
    whole = SinkRequests.commit

    async def die(self: SinkRequests, *arguments: Any, **more: Any) -> Committed:
        await whole(self, *arguments, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SinkRequests, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            replay(spark, job)
    told: list[ReplayProgress] = []
    found = replay(spark, job, told.append)
    assert 0 < told[0].done < told[0].total, "the run goes on behind the batch that was committed"
    assert sum(part.messages for part in found.values()) == COUNT
    assert contents(spark, cluster, target) == wanted
    (last,) = told[-1:]
    assert last.done == last.total
    assert replay(spark, job) == found, "another run has nothing to do"

    # Compaction between two runs cuts the files anew, and a longer archive is written on.
    fill(cluster.service_url, topic, range(COUNT, COUNT + 50))
    archive(spark, ArchiveJob(cluster.service_url, topic, directory, 1 << 20, 1000))
    manifest = compact(directory, 1 << 20)
    assert [len(part.files) for part in manifest.partitions.values()] == [1, 1]
    replay(spark, job)
    assert contents(spark, cluster, target) == contents(spark, cluster, topic)

    options = {"service.url": cluster.service_url, "columns": "schemaVersion"}
    versions = spark.read.format("daybook").options(**options, topic=target).load().distinct()
    assert [row["schemaVersion"] for row in versions.collect()] == [bytearray(8)]

    with blocking.connect(cluster.service_url) as client:
        with client.create_producer(f"{target}-partition-1", schema=schemas.STRING) as producer:
            producer.send("foreign")
        with client.create_producer(f"{target}-other") as other:
            other.send(b"foreign")
    with pytest.raises(ArchiveError, match="partition 1 ends with a message that is not of this"):
        replay(spark, job)
    with pytest.raises(ArchiveError, match="has 1 partitions, and the archive 2"):
        replay(spark, replace(job, topic=f"{target}-other"))


def test_archive_compact_and_replay_from_the_command_line(
    spark: SparkSession, cluster: StandaloneProcess, topic: str, tmp_path: Path
) -> None:
    fill(cluster.service_url, topic, range(COUNT))
    directory, target = str(tmp_path / "archive"), f"{topic}-again"
    url = ["--service-url", cluster.service_url]

    def pipeline(*arguments: str) -> tuple[list[dict[str, Any]], str]:
        done = run_here("pipeline", *arguments, "--output", "json", spark=spark)
        assert done.returncode == 0, done.stderr
        table: list[dict[str, Any]] = json.loads(done.stdout)
        return table, done.stderr

    table, said = pipeline("archive", topic, directory, *url, "--rows-per-step", "250")
    (row,) = table
    assert (row["begin"], row["end"], row["rows"]) == (0, COUNT, COUNT)
    assert row["files"] >= 3
    assert f"Archiving {topic}: {COUNT} messages in " in said

    table, said = pipeline("compact-archive", directory)
    (row,) = table
    assert (row["end"], row["rows"], row["files"]) == (COUNT, COUNT, 1)
    assert f"Compacting {directory}: {COUNT} messages in " in said

    again = ["replay", directory, target, *url, "--admin-url", cluster.admin_url]
    table, said = pipeline(*again)
    assert table == [{"partition": 0, "begin": 0, "next": COUNT, "end": COUNT, "messages": COUNT}]
    assert f"{COUNT} messages in " in said
    with blocking.connect(cluster.service_url) as client:
        assert client.offsets(target).next == COUNT
        with client.create_reader(target, start="earliest", schema=schemas.STRING) as reader:
            values = [reader.receive(timeout_s=PATIENCE_S).value for _ in range(COUNT)]
    assert values == [str(i) if i % 7 else None for i in range(COUNT)]
