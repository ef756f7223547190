"""A topic and its archive together, without Spark: each offset once, and gaps that are named."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from daybook.clients.pipelines.archive.archived import Archived
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import (
    ArchivedFile,
    ArchivedPartition,
    ArchivedSchema,
    Manifest,
)
from daybook.clients.pipelines.archive.run import begin, limit_numbers, with_schemas, with_step
from daybook.clients.pipelines.archive.source import held_with_archive
from daybook.clients.pipelines.archive.store import ArchiveStore
from daybook.clients.python.reader import TopicLedgers
from daybook.clients.spark.offsets import (
    DataLossError,
    OffsetRange,
    Partition,
    Progress,
    Retained,
    Stored,
)
from daybook.clients.spark.options import ReadTask, parse_options
from daybook.clients.spark.source import StreamReader, plan
from daybook.clients.spark.topics import Held
from tests.clients.pipelines.test_archive_manifest import DAY, ID, TOPIC, a_file, a_path

T0, T1 = Partition(TOPIC, 0), Partition(TOPIC, 1)
STORED = {T0: f"{TOPIC}-partition-0", T1: f"{TOPIC}-partition-1"}


def holding(*partitions: Retained, instance: str | None = "instance", **more: Any) -> Held:
    """Return the answer of brokers about the first partitions of the topic."""
    found = dict(zip((T0, T1), partitions, strict=False))
    return Held(found, {p: STORED[p] for p in found}, instance, **more)


def archived(*partitions: ArchivedPartition) -> Manifest:
    return Manifest(ID, TOPIC, True, "instance", partitions=dict(enumerate(partitions)))


def a_partition(*edges: int, created: int = 7) -> ArchivedPartition:
    files = tuple(a_file(low, high) for low, high in pairwise(edges))
    return ArchivedPartition(created, edges[0], files)


def kept(directory: Path, manifest: Manifest) -> str:
    ArchiveStore(ArchiveFiles(directory)).replace(manifest)
    return str(directory)


def asking(*answers: Held | Callable[[], Held]) -> Callable[[], Held]:
    """Return brokers that give these answers, one after the other; the last one stays."""
    left = list(answers)

    def ask() -> Held:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer() if callable(answer) else answer

    return ask


def tasks(
    directory: str,
    held: Held,
    start: Mapping[Partition, int],
    end: Mapping[Partition, int],
    **options: str,
) -> list[tuple[int, int, int, str]]:
    """Return the tasks of a query: partition, offsets, and the name of the file ("": the topic)."""
    given = {
        "service.url": "pulsar://x",
        "topic": "orders",
        "read": "archive+live",
        "archive": directory,
    }
    parsed = parse_options(given | options, streaming=False)
    together = held_with_archive(asking(held), directory)

    def progress(offsets: Mapping[Partition, int]) -> dict[Partition, Progress]:
        return {p: Progress(at, held.partitions[p].created) for p, at in offsets.items()}

    def no_ledgers(topic: str) -> TopicLedgers:
        raise AssertionError(f"nobody asks for the ledgers of {topic}")

    found = plan(parsed, progress(start), progress(end), together, no_ledgers)
    shown = []
    for each in found:
        task = each.value
        assert task.read_from == "auto"
        shown.append((task.part.partition, task.part.start, task.part.end, _name(task)))
    return shown


def _name(task: ReadTask) -> str:
    if task.files is None:
        return ""
    (named,) = task.files
    assert (named.archive, named.partition) == (ID, task.part.partition)
    return str(int(Path(named.file.path).stem, 16))


HELD = holding(Retained(15, 40, 7), Retained(0, 9, 8))
MANIFEST = archived(a_partition(2, 10, 20, 25))


def test_each_offset_comes_from_one_side(tmp_path: Path) -> None:
    directory = kept(tmp_path, MANIFEST)
    assert tasks(directory, HELD, {T0: 2, T1: 0}, {T0: 40, T1: 9}) == [
        (0, 2, 10, "2"),
        (0, 10, 20, "10"),
        (0, 20, 25, "20"),
        (0, 25, 40, ""),
        (1, 0, 9, ""),
    ]
    assert tasks(directory, HELD, {T0: 9}, {T0: 12}) == [(0, 9, 10, "2"), (0, 10, 12, "10")]
    assert tasks(directory, HELD, {T0: 24}, {T0: 26}) == [(0, 24, 25, "20"), (0, 25, 26, "")]
    assert tasks(directory, HELD, {T0: 25}, {T0: 26}) == [(0, 25, 26, "")]
    assert tasks(directory, HELD, {T0: 30}, {T0: 30}) == []


@pytest.mark.parametrize("first", range(0, 45, 3))
@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_ranges_next_to_each_other_read_each_offset_once(
    tmp_path: Path, first: int, size: int
) -> None:
    directory = kept(tmp_path, MANIFEST)
    seen: list[int] = []
    for low in range(2 + first % size, 40, size):
        for _, start, end, _ in tasks(directory, HELD, {T0: low}, {T0: min(40, low + size)}):
            seen += range(start, end)
    assert seen == list(range(2 + first % size, 40))


def test_the_earliest_offset_is_that_of_the_archive(tmp_path: Path) -> None:
    together = held_with_archive(asking(HELD), kept(tmp_path, MANIFEST))
    assert [(each.first, each.next) for each in together.partitions.values()] == [(2, 40), (0, 9)]
    assert together.archived is not None
    assert together.archived.sizes(T0) == (Stored(2, 10, 9), Stored(10, 20, 9), Stored(20, 25, 9))
    assert together.archived.sizes(T1) == ()


def test_a_gap_is_an_error_that_names_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = kept(tmp_path, MANIFEST)
    trimmed = holding(Retained(30, 40, 7))
    words = (
        rf"{T0}: neither the archive {directory}, which has the offsets 2 to 25, nor the topic,"
        r" which begins at offset 30, holds the offsets 25 to 30: set failOnDataLoss=false"
    )
    with pytest.raises(DataLossError, match=words):
        tasks(directory, trimmed, {T0: 2}, {T0: 40})
    with pytest.raises(DataLossError, match="holds the offsets 27 to 28"):
        tasks(directory, trimmed, {T0: 27}, {T0: 28})
    assert tasks(directory, trimmed, {T0: 20}, {T0: 25}) == [(0, 20, 25, "20")]
    assert tasks(directory, trimmed, {T0: 30}, {T0: 31}) == [(0, 30, 31, "")]
    with caplog.at_level(logging.WARNING, "daybook.spark"):
        found = tasks(directory, trimmed, {T0: 20}, {T0: 40}, failOnDataLoss="false")
    assert found == [(0, 20, 25, "20"), (0, 30, 40, "")]
    assert "holds the offsets 25 to 30; the query goes on" in caplog.text
    assert tasks(directory, trimmed, {T0: 26}, {T0: 29}, failOnDataLoss="false") == []


def test_offsets_before_an_archive_that_begins_late_come_from_the_topic(tmp_path: Path) -> None:
    directory = kept(tmp_path, archived(a_partition(10, 20)))
    held = holding(Retained(4, 40, 7))
    assert tasks(directory, held, {T0: 4}, {T0: 40}) == [
        (0, 10, 20, "10"),
        (0, 4, 10, ""),
        (0, 20, 40, ""),
    ]
    assert tasks(directory, held, {T0: 5}, {T0: 9}) == [(0, 5, 9, "")]
    with pytest.raises(DataLossError, match="the offsets 2 to 4 are no longer retained"):
        tasks(directory, held, {T0: 2}, {T0: 40})


def test_an_archive_without_files_holds_no_offset(tmp_path: Path) -> None:
    directory = kept(tmp_path, archived(ArchivedPartition(7, 10)))
    held = holding(Retained(4, 40, 7))
    assert tasks(directory, held, {T0: 4}, {T0: 40}) == [(0, 4, 10, ""), (0, 10, 40, "")]


def test_offsets_that_neither_side_holds_are_named_on_both_sides_of_an_archive() -> None:
    part = a_partition(10, 20)
    found = Archived(ArchiveFiles(Path("d")), ID, {T0: part}, {T0: Retained(30, 40, 7)})
    parts, lost = found.cut(OffsetRange(0, 5, 35, TOPIC))
    assert [(each.start, each.end, len(files)) for each, files in parts] == [
        (10, 20, 1),
        (30, 35, 0),
    ]
    assert "the offsets 5 to 10 and 20 to 30" in lost


def test_offsets_before_the_archive_are_a_loss_that_is_named(tmp_path: Path) -> None:
    directory = kept(tmp_path, MANIFEST)
    with pytest.raises(DataLossError, match="the offsets 0 to 2 are no longer retained"):
        tasks(directory, HELD, {T0: 0}, {T0: 40})


def test_an_archive_that_grows_before_the_topic_is_asked_is_no_other_topic(tmp_path: Path) -> None:
    directory = kept(tmp_path, MANIFEST)
    grown = MANIFEST.with_files(0, [a_file(25, 60)])
    store = ArchiveStore(ArchiveFiles(tmp_path))

    def ask() -> Held:
        # The archiver ends while the brokers answer, so their answer is older than its manifest.
        answer = holding(Retained(15, 40, 7))
        if store.manifest is not None and store.manifest.generation == 0:
            store.replace(grown)
        return answer

    together = held_with_archive(ask, directory)
    assert together.archived is not None
    assert together.archived.partitions[T0].end == 25
    assert together.partitions[T0].next == 40


def test_retention_that_follows_the_archiver_leaves_no_gap(tmp_path: Path) -> None:
    directory = kept(tmp_path, MANIFEST)
    store = ArchiveStore(ArchiveFiles(tmp_path))
    left = [a_file(25, 35), a_file(35, 50)]

    def ask() -> Held:
        # Both moved on after the manifest was read.
        if left:
            assert store.manifest is not None
            store.replace(store.manifest.with_files(0, [left.pop(0)]))
        assert store.manifest is not None
        end = store.manifest.partitions[0].end
        return holding(Retained(end, end + 10, 7))

    together = held_with_archive(ask, directory)
    assert together.archived is not None
    assert together.archived.partitions[T0].end == 50
    assert (together.partitions[T0].first, together.partitions[T0].next) == (2, 60)
    assert together.archived.live[T0].first == 50


REFUSALS = [
    (holding(Retained(0, 99, 8)), "was deleted and created again"),
    (holding(Retained(0, 99, None)), "do not tell when partition 0 was created, so it is unknown"),
    (holding(Retained(0, 99, 7), instance="other"), "belong to other: correct the service URL"),
    (holding(Retained(0, 99, 7), instance=None), "do not tell the id of their cluster"),
    (holding(Retained(0, 24, 7)), "ends at offset 24, and .* has it up to offset 25"),
    (
        Held({T0: Retained(0, 99, 7)}, {T0: TOPIC}, "instance"),
        r"does not have the partitions \[0\] of",
    ),
    (
        Held({T1: Retained(0, 99, 7)}, {T1: STORED[T1]}, "instance"),
        r"does not have the partitions \[0\] of",
    ),
    (
        Held(
            {Partition(f"{TOPIC}2", 0): Retained(0, 99, 7)},
            {Partition(f"{TOPIC}2", 0): f"{TOPIC}2-partition-0"},
            "instance",
        ),
        f"is the archive of {TOPIC}, and not of {TOPIC}2",
    ),
]


@pytest.mark.parametrize(("held", "words"), REFUSALS)
def test_an_archive_of_another_topic_is_refused(tmp_path: Path, held: Held, words: str) -> None:
    directory = kept(tmp_path, MANIFEST)
    with pytest.raises(ArchiveError, match=words):
        held_with_archive(asking(held), directory)
    with pytest.raises(ArchiveError, match=words):
        begin(MANIFEST, TOPIC, held, directory)


def test_a_topic_that_is_not_there_is_told_by_the_query(tmp_path: Path) -> None:
    nothing = Held(missing=["there is no topic orders"])
    together = held_with_archive(asking(nothing), kept(tmp_path, MANIFEST))
    assert together == nothing


def test_a_directory_without_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="has no archive: make one with `daybook pipeline"):
        held_with_archive(asking(HELD), str(tmp_path))


# -- a run of the archiver


def test_a_run_begins_where_the_archive_ends() -> None:
    manifest = begin(MANIFEST, TOPIC, holding(Retained(25, 40, 7), Retained(3, 9, 8)), "d")
    assert {number: part.end for number, part in manifest.partitions.items()} == {0: 25, 1: 3}
    assert manifest.partitions[1] == ArchivedPartition(8, 3)
    assert manifest.id == ID


def test_a_new_archive_begins_at_the_first_offset() -> None:
    one = begin(None, TOPIC, HELD, "d")
    assert one.partitions == {0: ArchivedPartition(7, 15), 1: ArchivedPartition(8, 0)}
    assert (one.topic, one.instance, one.partitioned) == (TOPIC, "instance", True)
    assert begin(None, TOPIC, HELD, "d").id != one.id
    whole = Held({T0: Retained(0, 9, 7)}, {T0: TOPIC}, "instance")
    assert begin(None, TOPIC, whole, "d").partitioned is False


def test_a_run_refuses_a_gap_and_names_it() -> None:
    with pytest.raises(ArchiveError, match=r"ends at offset 25, .* nothing before offset 26"):
        begin(MANIFEST, TOPIC, holding(Retained(26, 40, 7)), "d")
    begin(MANIFEST, TOPIC, holding(Retained(25, 40, 7)), "d")


def test_files_of_a_step_are_put_in_order_and_cover_chunks() -> None:
    found = [a_file(33, 40), a_file(27, 30)]
    manifest = with_step(MANIFEST, {0: found})
    assert [(f.first, f.next) for f in manifest.partitions[0].files[-2:]] == [(25, 30), (30, 40)]
    with pytest.raises(ArchiveError, match="has offsets that another file has"):
        with_step(MANIFEST, {0: [a_file(27, 30), a_file(29, 31)]})
    with pytest.raises(ArchiveError, match="has offsets that another file has"):
        with_step(MANIFEST, {0: [a_file(24, 30)]})


def test_schemas_are_asked_for_once() -> None:
    asked: list[bytes] = []

    def ask(version: bytes) -> ArchivedSchema | None:
        asked.append(version)
        return None if version == b"c" else ArchivedSchema(2, "n", version)

    manifest = with_schemas(MANIFEST, [b"b", b"c"], ask)
    again = with_schemas(manifest, [b"c", b"b", b"a"], ask)
    assert asked == [b"b", b"c", b"a"]
    assert again.schemas == {
        b"a": ArchivedSchema(2, "n", b"a"),
        b"b": ArchivedSchema(2, "n", b"b"),
        b"c": None,
    }
    assert with_schemas(again, [], ask) is again


def test_a_step_takes_a_part_of_each_partition() -> None:
    assert limit_numbers({0: 0, 1: 10}, {0: 90, 1: 20}, 50) == {0: 45, 1: 15}
    assert limit_numbers({0: 0, 1: 10}, {0: 90, 1: 20}, 500) == {0: 90, 1: 20}


# -- a stream


class Reader(StreamReader):
    """A stream reader whose brokers the test plays; the archive is read as always."""

    def __init__(self, directory: str, answers: Iterable[Held]) -> None:
        given = {"service.url": "pulsar://x", "topic": "orders", "startingOffsets": "earliest"}
        given |= {"read": "archive+live", "archive": directory}
        super().__init__(parse_options(given, streaming=True))
        self.answers = iter(answers)

    def _topic_offsets(self) -> Any:
        answers = self.answers

        class Topics:
            def held(self) -> Held:
                return next(answers)

            def resolve(self, spec: object, held: Held, option: str) -> dict[Partition, int]:
                assert (spec, option) == ("earliest", "startingOffsets")
                return {partition: each.first for partition, each in held.partitions.items()}

        return Topics()


def test_a_stream_plans_with_the_archive_that_it_read_with_the_offsets(tmp_path: Path) -> None:
    directory = kept(tmp_path, MANIFEST)
    live = holding(Retained(15, 40, 7))
    stream = Reader(directory, [live, live])
    first = stream.initialOffset()
    assert first["topics"][TOPIC]["0"] == {"created": 7, "next": 2}
    last = stream.latestOffset(first, ReadAllAvailable())
    assert last["topics"][TOPIC]["0"]["next"] == 40
    # Compaction and a longer archive come between the two calls of a trigger.
    merged = ArchivedFile(a_path(0xFF), 2, 25, 23, 9, DAY)
    store = ArchiveStore(ArchiveFiles(tmp_path))
    store.replace(
        replace(MANIFEST, partitions={0: ArchivedPartition(7, 2, (merged, a_file(25, 38)))})
    )
    found = [each.value for each in stream.partitions(first, last)]
    assert [(t.part.start, t.part.end) for t in found] == [(2, 10), (10, 20), (20, 25), (25, 40)]


def test_a_stream_that_plans_a_batch_again_may_read_more_from_the_archive(tmp_path: Path) -> None:
    directory = kept(tmp_path, MANIFEST.with_files(0, [a_file(25, 38)]))
    offsets = [
        {"topics": {TOPIC: {"0": {"created": 7, "next": at}}}, "version": 2} for at in (2, 40)
    ]
    stream = Reader(directory, [holding(Retained(38, 50, 7))])
    found = [each.value for each in stream.partitions(*offsets)]
    assert [(t.part.start, t.part.end) for t in found] == [
        (2, 10),
        (10, 20),
        (20, 25),
        (25, 38),
        (38, 40),
    ]
