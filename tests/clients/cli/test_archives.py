"""The commands for archives, without a cluster: their options, reports, errors and tables."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import trio
import trio.testing
from click.testing import CliRunner, Result

from daybook.clients.cli import archives
from daybook.clients.cli.main import main
from daybook.clients.cli.spark import spark_installed
from daybook.clients.pipelines.archive import compact as compaction
from daybook.clients.pipelines.archive import replay, run
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.manifest import Manifest
from daybook.clients.python.errors import NotAllowedError, NotReadyError
from daybook.wire.compression import CompressionType
from tests.clients.pipelines.test_archive_manifest import WHOLE

TABLE = ["partition  begin  end  files  rows  bytes", "0          5      12   2      7     18"]


class Work:
    """Takes the place of the work of a command: returns results, or raises errors, in turn."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> Any:
        *given, report = arguments
        self.calls.append(tuple(given))
        report(SimpleNamespace(rows=7, done=7, total=10))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.fixture
def opened() -> list[tuple[str, Mapping[str, str]]]:
    """Return the names and settings of the sessions that a test has opened."""
    return []


@pytest.fixture(autouse=True)
def spark(monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, Mapping[str, str]]]) -> object:
    """Put a session that does nothing in the place of Spark's."""
    session = object()

    def open_spark(name: str, settings: Mapping[str, str]) -> AbstractContextManager[object]:
        opened.append((name, settings))
        return nullcontext(session)

    monkeypatch.setattr(archives, "open_spark", open_spark)
    monkeypatch.setattr(archives, "check_cluster", lambda *_: None)
    return session


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments])


def test_archive_shows_a_table_and_says_how_fast_it_was(
    monkeypatch: pytest.MonkeyPatch, spark: object, tmp_path: Path
) -> None:
    work = Work(WHOLE)
    monkeypatch.setattr(run, "archive", work)
    shown = invoke(
        "archive", "orders", str(tmp_path), "--service-url", "pulsar://h:1", "--file-size", "2kb"
    )
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines() == TABLE
    (line,) = shown.stderr.splitlines()
    assert line.startswith("Archiving orders: 7 messages in ")
    assert line.endswith("/s).")
    ((session, job),) = work.calls
    assert session is spark
    assert job == run.ArchiveJob("pulsar://h:1", "orders", tmp_path, 2048, 10_000_000)


async def test_a_long_step_is_told_with_the_time_that_it_takes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    reported = archives._Reported("Archiving orders", "offset")
    await reported.run(lambda report: report(100, 100, 300))
    reported._took_s = None
    await trio.sleep(4)
    assert str(reported) == "100 messages in 4.0 s (25/s), 200 offsets behind"
    await trio.sleep(6)
    assert str(reported) == (
        "100 messages in 10.0 s (10/s), 200 offsets behind,"
        " the step under way has taken 10 s so far"
    )


def test_archive_compacts_if_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Path, int]] = []

    def compact(directory: Path, file_bytes: int) -> Manifest:
        asked.append((directory, file_bytes))
        return WHOLE

    monkeypatch.setattr(run, "archive", Work(WHOLE, WHOLE))
    monkeypatch.setattr(compaction, "compact", compact)
    url = ("--service-url", "pulsar://h:1")
    assert invoke("archive", "orders", str(tmp_path), *url).exit_code == 0
    assert asked == []
    shown = invoke("archive", "orders", str(tmp_path), *url, "--compact", "--output", "json")
    assert asked == [(tmp_path, 256 << 20)]
    assert json.loads(shown.stdout)[0] == {
        "partition": 0,
        "begin": 5,
        "end": 12,
        "files": 2,
        "rows": 7,
        "bytes": 18,
    }


@pytest.mark.parametrize("size", ["0", "-1", "x", "5TB", "1.5MB", ""])
def test_a_size_that_is_none_is_refused(size: str) -> None:
    shown = invoke("archive", "orders", "d", "--file-size", size)
    assert shown.exit_code == 2
    assert "is not a size: write 256MB" in shown.stderr


@pytest.mark.parametrize(
    "command",
    [("archive", "t", "s3://b/x"), ("compact-archive", "s3://b/x"), ("replay", "s3://b/x", "t")],
)
def test_a_directory_with_a_scheme_is_refused(command: tuple[str, ...]) -> None:
    shown = invoke(*command)
    assert shown.exit_code == 1
    assert "Error: s3://b/x is not a path" in shown.stderr


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ArchiveError("d is the archive of x"), "Error: d is the archive of x."),
        (NotReadyError(0, "no contact"), "Error: no contact (UnknownError)."),
        (OSError(28, "No space left on device"), "Error: [Errno 28] No space left on device."),
    ],
)
def test_an_error_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, says: str
) -> None:
    monkeypatch.setattr(run, "archive", Work(error))
    shown = invoke("archive", "orders", str(tmp_path), "--service-url", "pulsar://h:1")
    assert shown.exit_code == 1
    assert says in shown.stderr
    assert shown.stdout == ""


class PythonError(Exception):
    """An error of Spark, with the text of an error of a worker."""

    __module__ = "pyspark.errors.exceptions.captured"


SENTENCE: Callable[[Exception], str | None] = archives._sentence


@pytest.mark.parametrize("before", ["", 'Traceback (most recent call last):\n  File "x.py"\n'])
@pytest.mark.parametrize("name", ["spark.walk.UnreadableMessageError", "x.DataLossError"])
def test_the_error_of_a_worker_is_its_sentence(before: str, name: str) -> None:
    error = PythonError(
        f"An exception was thrown from the Python worker:\n{before}"
        f"daybook.clients.{name}: t: the message at offset 5: restore it\n\n\tat org.apache.spark.X"
    )
    assert SENTENCE(error) == "t: the message at offset 5: restore it."


def test_a_defect_of_a_worker_has_its_type() -> None:
    error = PythonError(
        "Traceback (most recent call last):\nKeyError: 'x'\n\n\tat org.apache.spark.X\n\t... 1 more"
    )
    assert SENTENCE(error) == "A task of Spark failed: KeyError: 'x'"
    assert SENTENCE(PythonError("lost a task")) == "A task of Spark failed: lost a task"
    assert SENTENCE(KeyError("x")) is None


def test_follow_goes_on_until_an_error_that_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    away = NotReadyError(0, "no contact")
    work = Work(WHOLE, away, WHOLE, NotAllowedError(0, "the topic is another one"))
    monkeypatch.setattr(run, "archive", work)
    shown = invoke(
        *("archive", "orders", str(tmp_path), "--service-url", "pulsar://h:1"),
        *("--follow", "--interval", "0.1"),
    )
    assert shown.exit_code == 1
    assert len(work.calls) == 4
    assert "no contact (UnknownError). The next try is in 0.1 s." in shown.stderr
    assert shown.stderr.count("Archiving orders: 7 messages in ") == 2
    assert "Error: the topic is another one (UnknownError)." in shown.stderr


def test_follow_fails_if_the_first_look_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "archive", Work(NotReadyError(0, "no contact")))
    shown = invoke("archive", "orders", str(tmp_path), "--service-url", "pulsar://h:1", "--follow")
    assert shown.exit_code == 1
    assert "Error: no contact (UnknownError)." in shown.stderr


def test_a_signal_ends_a_command_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def until_signal(work: object) -> int:
        del work
        return 15

    monkeypatch.setattr(archives, "until_signal", until_signal)
    shown = invoke("archive", "orders", str(tmp_path), "--service-url", "pulsar://h:1")
    assert shown.exit_code == 143
    assert shown.stderr == "Stopped. Run the command again to go on.\n"


def test_compact_archive_needs_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = Work(WHOLE)
    monkeypatch.setattr(compaction, "compact", work)
    shown = invoke("compact-archive", str(tmp_path), "--file-size", "1MB")
    assert shown.exit_code == 0, shown.output
    assert work.calls == [(tmp_path, 1 << 20)]
    assert shown.stdout.splitlines() == TABLE
    assert shown.stderr.startswith(f"Compacting {tmp_path}: 7 messages in ")


def test_replay_shows_how_much_the_topic_has(
    monkeypatch: pytest.MonkeyPatch, spark: object, tmp_path: Path
) -> None:
    work = Work({0: replay.ReplayedPartition(2, 25, 25, 16)})
    monkeypatch.setattr(replay, "replay", work)
    shown = invoke(
        *("replay", str(tmp_path), "again", "--service-url", "pulsar://h:1"),
        *("--admin-url", "http://h:2", "--compression", "lz4", "--without-schemas"),
    )
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines() == [
        "partition  begin  next  end  messages",
        "0          2      25    25   16",
    ]
    assert shown.stderr.startswith(f"Replaying {tmp_path} into again: 7 messages in ")
    ((session, job),) = work.calls
    assert session is spark
    assert job == replay.ReplayJob(
        "pulsar://h:1",
        "http://h:2",
        tmp_path,
        "again",
        1_000_000,
        CompressionType.LZ4,
        with_schemas=False,
    )


def test_settings_of_spark_reach_the_session(
    monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, Mapping[str, str]]], tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "archive", Work(WHOLE))
    monkeypatch.setattr(replay, "replay", Work({}))
    master = ("--spark", "spark.master=local[1]")
    assert invoke("archive", "orders", str(tmp_path), *master).exit_code == 0
    assert invoke("replay", str(tmp_path), "again", *master).exit_code == 0
    settings = {"spark.master": "local[1]"}
    assert opened == [("archive", settings), ("replay", settings)]
    wrong = invoke("archive", "orders", str(tmp_path), "--spark", "master=local")
    assert wrong.exit_code == 2
    assert "write spark.NAME=VALUE" in wrong.stderr


def test_a_missing_module_is_named() -> None:
    with (
        pytest.raises(
            click.ClickException, match="Pipelines need pyarrow, which is not installed: install it"
        ),
        spark_installed(),
    ):
        raise ModuleNotFoundError("no", name="pyarrow")
