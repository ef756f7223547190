"""Archives on a real cluster: resumed after a failure, and read together with the topic."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from daybook import schemas
from daybook.clients.pipelines.archive.manifest import ArchivedSchema, Manifest
from daybook.clients.pipelines.archive.run import ArchiveJob, archive
from daybook.clients.pipelines.archive.store import ArchiveStore
from daybook.clients.python import blocking
from daybook.clients.spark.schema import TYPES
from daybook.clients.testing.standalone import StandaloneProcess
from tests.real.spark_session import spark_session

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

COUNT = 600
PATIENCE_S = 300


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


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
