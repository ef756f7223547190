"""A run of the archiver without Spark: each step is of the topic with which the run began."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daybook.clients.pipelines.archive import run
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import Manifest
from daybook.clients.pipelines.archive.run import ArchiveJob, StepFiles, archive
from daybook.clients.pipelines.archive.store import load
from daybook.clients.python.errors import UnavailableError
from daybook.clients.spark.offsets import Partition, Retained
from daybook.clients.spark.options import parse_options
from daybook.clients.spark.topics import Held
from tests.clients.pipelines.test_archive_manifest import TOPIC, a_file

T0 = Partition(TOPIC, 0)


def holding(following: int, created: int | None = 7, instance: str | None = "instance") -> Held:
    return Held({T0: Retained(0, following, created)}, {T0: TOPIC}, instance)


class Topics:
    """The brokers: `held` gives the answers in turn, and the last one stays."""

    def __init__(self, *answers: Held | Exception) -> None:
        self.answers = list(answers)
        self.events: list[str] = []
        self.client = SimpleNamespace(schema=self._schema)

    def held(self) -> Held:
        self.events.append("held")
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.events.append("close")

    def _schema(self, topic: str, version: bytes) -> Any:
        self.events.append("schema")
        return SimpleNamespace(info=SimpleNamespace(type=2, name="n", data=b"", properties={}))


Play = Callable[..., Manifest]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Return a function that archives with these brokers, 10 offsets in a step."""

    def step(
        spark: object,
        job: object,
        archive_id: str,
        start: Mapping[int, int],
        until: Mapping[int, int],
    ) -> Any:
        return StepFiles({0: [a_file(start[0], until[0])]}, {b"v"})

    def play(topics: Topics) -> Manifest:
        monkeypatch.setattr(run, "TopicOffsets", lambda *_: topics)
        return archive(None, ArchiveJob("pulsar://x", TOPIC, tmp_path, 1, 10))  # type: ignore[arg-type]

    monkeypatch.setattr(run, "_step", step)
    return play


def end(directory: Path) -> int:
    """Return how far the archive reaches."""
    found = load(ArchiveFiles(directory))
    return -1 if found is None else found.partitions[0].end


def test_each_step_is_checked_before_it_is_in_the_manifest(play: Play) -> None:
    topics = Topics(holding(20))
    assert play(topics).partitions[0].end == 20
    assert topics.events == ["held", "schema", "held", "held", "close"]


@pytest.mark.parametrize(
    ("later", "error", "words"),
    [
        (holding(30, created=8), ArchiveError, "was deleted and created again"),
        (holding(30, created=None), ArchiveError, "do not tell when partition 0 was created"),
        (holding(30, instance=None), ArchiveError, "do not tell the id of their cluster"),
        (holding(30, instance="other"), ArchiveError, "belong to other"),
        (holding(15), ArchiveError, "ends at offset 15, and .* up to offset 20"),
        (Held(missing=["there is no topic"]), ValueError, "there is no topic"),
        (UnavailableError("no contact"), UnavailableError, "no contact"),
    ],
)
def test_a_topic_that_is_another_one_after_a_step_is_not_archived(
    play: Play, tmp_path: Path, later: Held | Exception, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        play(Topics(holding(30), holding(30), later))
    assert end(tmp_path) == 10, "the first step is of the archived topic"


def test_a_step_reads_from_bookies_as_the_job_says(tmp_path: Path) -> None:
    given: dict[str, str] = {}

    class EnoughError(Exception):
        pass

    def options(**named: str) -> None:
        given.update(named)
        raise EnoughError

    reading = SimpleNamespace(options=options)
    spark: Any = SimpleNamespace(read=SimpleNamespace(format=lambda _: reading))
    storage = {"bookie.tls": "true", "tls.trusted": "/run/ca.pem"}
    job = ArchiveJob("pulsar://here:1", TOPIC, tmp_path, 1, 1, storage=storage)
    with pytest.raises(EnoughError):
        run._step(spark, job, "archive", {0: 0}, {0: 1})
    assert given.items() >= storage.items()
    assert parse_options(given, streaming=False).bookies is not None
