"""Errors for users are one sentence in Spark, and defects keep their traceback."""

import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths
from pyspark.util import handle_worker_exception

from daybook.clients.pipelines.archive import write as archive_write
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.replay_task import ReplayTask
from daybook.clients.pipelines.archive.write import FileWriter
from daybook.clients.python.errors import UnavailableError
from daybook.clients.spark import short_errors
from daybook.clients.spark.offsets import DataLossError
from daybook.clients.spark.options import parse_options
from daybook.clients.spark.read import LedgerUnreadableError
from daybook.clients.spark.short_errors import each_in_one_sentence, in_one_sentence
from daybook.clients.spark.source import DaybookDataSource
from daybook.clients.spark.topics import _text_of
from daybook.clients.spark.walk import UnreadableMessageError
from daybook.wire.compression import CompressionType
from tests.clients.pipelines.rows import a_batch, a_row

NO_COMPRESSION = CompressionType.NONE
HIDE = "SPARK_HIDE_TRACEBACK"


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process look like one of Spark's own."""
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name="pyspark.daemon")  # type: ignore[assignment]
    monkeypatch.setitem(short_errors.sys.modules, "__main__", main)  # type: ignore[attr-defined]
    monkeypatch.setenv(HIDE, "")


def sent_to_user(call: Any) -> list[str]:
    """Return the lines that Spark's worker sends when a call fails."""
    out = io.BytesIO()
    try:
        call()
    except Exception as error:
        handle_worker_exception(error, out)
    out.seek(0)
    kind, size = struct.unpack("!ii", out.read(8))
    assert kind == SpecialLengths.PYTHON_EXCEPTION_THROWN
    return out.read(size).decode().splitlines()


def raising(error: Exception) -> Any:
    def fail() -> None:
        try:
            raise OSError("the cause, which is not for users")
        except OSError as cause:
            raise error from cause

    return fail


@pytest.mark.parametrize(
    "error",
    [
        DataLossError("the offsets 0 to 7 are gone"),
        UnreadableMessageError("the message at offset 7 is encrypted"),
        LedgerUnreadableError("no bookie answers"),
        UnavailableError("no broker can be reached"),
    ],
)
def test_errors_of_tasks_and_of_the_driver_are_one_sentence(
    in_worker: None, error: Exception
) -> None:
    (line,) = sent_to_user(in_one_sentence(raising(error)))
    assert line.endswith(f"{type(error).__name__}: {error}")


def test_a_task_that_fails_in_the_middle_says_one_sentence(in_worker: None) -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise DataLossError("the offsets 0 to 7 are gone")

    got: list[int] = []
    (line,) = sent_to_user(lambda: got.extend(each_in_one_sentence(rows())))
    assert got == [1]
    assert line.endswith("DataLossError: the offsets 0 to 7 are gone")


def test_tasks_of_archives_say_one_sentence(
    in_worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ArchiveError("d/x.parquet cannot be read: restore the file from a copy")

    files = ArchiveFiles(Path("d"))
    monkeypatch.setattr(archive_write, "NewFile", fail)
    monkeypatch.setattr(ReplayTask, "_stage", fail)
    batches = [a_batch(a_row(0))]
    replay: Any = ReplayTask(files, (), {}, "", None, "", "", cast("Any", None), NO_COMPRESSION)
    indexes = [pa.record_batch({"id": [0]})]
    for call in (
        lambda: list(FileWriter(files, "", 1).run(iter(batches))),
        lambda: list(replay.run(iter(indexes))),
    ):
        monkeypatch.setenv(HIDE, "")
        (line,) = sent_to_user(call)
        assert line.endswith(
            "ArchiveError: d/x.parquet cannot be read: restore the file from a copy"
        )


def test_a_wrong_option_is_one_sentence(in_worker: None) -> None:
    source = DaybookDataSource({"service.url": "pulsar://x", "topik": "t"})
    lines = sent_to_user(lambda: source.reader(source_schema()))
    assert [line.partition(" there are: ")[0] for line in lines] == [
        "ValueError: unknown option 'topik': did you mean 'topic'?"
    ]


def test_a_stream_says_what_is_wrong_with_its_options_when_it_begins(in_worker: None) -> None:
    """Spark's runner hides an error of `streamReader` behind one of its own."""
    source = DaybookDataSource({"service.url": "pulsar://x", "topic": "t", "endingOffsets": "1"})
    reader = source.streamReader(source_schema())
    for call in (
        reader.initialOffset,
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.latestOffset({}, None),  # type: ignore[arg-type]
        lambda: reader.partitions({}, {}),
    ):
        (line,) = sent_to_user(call)
        assert "endingOffsets is for batch queries" in line


def source_schema() -> Any:
    from pyspark.sql.types import StructType

    return StructType([])


def test_defects_keep_their_traceback(in_worker: None) -> None:
    @in_one_sentence
    def parse_nothing() -> None:
        nothing: Any = None
        parse_options(nothing, streaming=False)

    @in_one_sentence
    def overflow() -> None:
        _text_of(10**30)  # A function of C says "Python int too large", which helps no user.

    for defect in (parse_nothing, overflow):
        assert sent_to_user(defect)[0] == "Traceback (most recent call last):"
    assert len(sent_to_user(in_one_sentence(raising(AssertionError("a defect"))))) > 1


def test_other_processes_keep_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDE, raising=False)
    with pytest.raises(DataLossError):
        in_one_sentence(raising(DataLossError("gone")))()
    assert HIDE not in os.environ
