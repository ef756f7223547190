"""Replays of archives without a cluster: where they go on, and entries with equal messages."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from daybook.clients.pipelines.archive import replay as replaying
from daybook.clients.pipelines.archive.checked import NamedFile, open_file
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import (
    ArchivedFile,
    ArchivedPartition,
    Manifest,
)
from daybook.clients.pipelines.archive.replay import mark_of, sink_name
from daybook.clients.pipelines.archive.replay_plan import (
    PIECES_MAX,
    Mark,
    Piece,
    Written,
    check_partitions,
    next_pieces,
    positions,
    rows_left,
)
from daybook.clients.pipelines.archive.replay_task import EntryEncoder, rows_of
from daybook.clients.spark.credential_options import ANONYMOUS
from daybook.clients.spark.offsets import Retained
from daybook.clients.spark.rows import BATCH_MESSAGES_MAX
from daybook.managed_ledger.sinks.staging import applied_entry, check_staged
from daybook.wire.batch import BatchReader, broker_entry_metadata, encode_payload, parse_metadata
from daybook.wire.compression import CompressionType, decompress
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.pipelines.rows import DAY, a_batch, a_row
from tests.clients.pipelines.test_archive_manifest import ID, TOPIC, a_file
from tests.clients.pipelines.test_archive_source import a_partition, holding
from tests.clients.pipelines.test_archive_write import written

OTHER = "f" * 32
MANIFEST = Manifest(
    ID,
    TOPIC,
    True,
    "instance",
    partitions={
        # The middle file has three rows for the offsets 10 to 19.
        0: ArchivedPartition(
            7, 2, (a_file(2, 10), replace(a_file(10, 20), rows=3), a_file(20, 25))
        ),
        1: a_partition(0, 4, created=8),
    },
)


def half(number: int, file: ArchivedFile, offset: int) -> int:
    """Count the rows of the middle file, which are at the offsets 12, 15 and 19."""
    assert (number, file.first, file.next) == (0, 10, 20)
    return sum(each < offset for each in (12, 15, 19))


def at(messages: int, following: int, archive: str = ID) -> Written:
    return Written(messages, Mark(archive, following))


def position(zero: Written) -> int:
    return positions(MANIFEST, "t", {0: zero, 1: Written(0)}, half)[0]


@pytest.mark.parametrize(
    ("found", "offset"),
    [
        (Written(0), 2),
        (at(8, 10), 10),
        (at(3, 5), 5),
        (at(8, 12), 12),
        (at(9, 13), 13),
        (at(10, 16), 16),
        (at(11, 20), 20),
        (at(16, 25), 25),
    ],
)
def test_a_replay_goes_on_behind_the_last_mark(found: Written, offset: int) -> None:
    if offset < 10:
        part = MANIFEST.partitions[0]

        def count(number: int, file: ArchivedFile, until: int) -> int:
            assert (number, file) == (0, part.files[0])
            return until - file.first

        assert positions(MANIFEST, "t", {0: found, 1: Written(0)}, count)[0] == offset
    else:
        assert position(found) == offset


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Written(1), "t partition 0 ends with a message that is not of this replay"),
        (at(8, 10, OTHER), "is not of this replay"),
        (at(9, 10), "has 9 messages, and the replay has written 8 of them: another producer"),
        (at(7, 10), "has 7 messages, and the replay has written 8"),
        (at(9, 26), "up to offset 26, and this copy of it has the offsets 2 to 25: use the newest"),
        (at(1, 1), "up to offset 1, and this copy"),
    ],
)
def test_a_topic_that_holds_something_else_is_refused(found: Written, words: str) -> None:
    with pytest.raises(ArchiveError, match=words):
        position(found)


@pytest.mark.parametrize("numbers", [[0], [0, 1, 2], [1, 2], []])
def test_a_topic_with_other_partitions_is_refused(numbers: list[int]) -> None:
    with pytest.raises(ArchiveError, match=r"t has \d partitions, and the archive 2"):
        check_partitions(MANIFEST, "t", numbers)
    check_partitions(MANIFEST, "t", [1, 0])


def taken(start: Mapping[int, int], rows: int) -> list[tuple[int, int, int]]:
    return [(p.partition, p.start, p.file.next) for p in next_pieces(MANIFEST, start, rows)]


def test_a_step_takes_whole_files_of_all_partitions() -> None:
    begin = {0: 2, 1: 0}
    assert taken(begin, 1) == [(0, 2, 10)]
    assert taken(begin, 9) == [(0, 2, 10), (1, 0, 4)]
    assert taken(begin, 13) == [(0, 2, 10), (0, 10, 20), (1, 0, 4)]
    assert taken(begin, 1000) == [(0, 2, 10), (0, 10, 20), (0, 20, 25), (1, 0, 4)]
    assert taken({0: 12, 1: 4}, 1000) == [(0, 12, 20), (0, 20, 25)]
    assert taken({0: 25, 1: 4}, 1000) == []
    assert rows_left(MANIFEST, {0: 12, 1: 4}) == 13


def test_a_step_has_no_more_tasks_than_a_broker_takes() -> None:
    many = replace(MANIFEST, partitions={0: a_partition(*range(200))})
    found = next_pieces(many, {0: 0}, 1000)
    assert [piece.start for piece in found] == list(range(PIECES_MAX))


def test_marks_are_read_as_they_were_written() -> None:
    assert Mark.parse(str(Mark(ID, 42))) == Mark(ID, 42)
    for text in ("", ID, f"{ID}:", f"{ID}:x", ":5", f"{ID}:-5", f"{ID}:{'9' * 30}"):
        assert Mark.parse(text) is None


def test_a_sink_belongs_to_one_archive_and_one_topic() -> None:
    held = holding(Retained(0, 5, 7), Retained(0, 5, 8))
    name = sink_name(MANIFEST, TOPIC, held)
    assert name == sink_name(MANIFEST, TOPIC, holding(Retained(3, 9, 7), Retained(0, 6, 8)))
    others = [
        sink_name(replace(MANIFEST, id=OTHER), TOPIC, held),
        sink_name(MANIFEST, f"{TOPIC}2", held),
        sink_name(MANIFEST, TOPIC, holding(Retained(0, 5, 7), Retained(0, 5, 9))),
        sink_name(MANIFEST, TOPIC, replace(held, instance="other")),
    ]
    assert len({name, *others}) == 5
    for unknown in (
        holding(Retained(0, 5, None), Retained(0, 5, 8)),
        holding(Retained(0, 5, 7), Retained(0, 5, 8), instance=None),
    ):
        with pytest.raises(ArchiveError, match="do not tell"):
            sink_name(MANIFEST, TOPIC, unknown)


# -- a run


@pytest.mark.parametrize("committed", [True, False])
def test_a_step_that_moves_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """A batch without rows would be committed again and again, without an end."""
    held = holding(Retained(0, 8, 7), Retained(0, 0, 8))
    topics: Any = SimpleNamespace(held=lambda: held, client=None)
    job: Any = SimpleNamespace(
        admin_url="http://x:1",
        rows_per_step=1000,
        with_schemas=False,
        tls=None,
        credentials=ANONYMOUS,
    )
    run = replaying._Replay(cast("Any", None), job, ArchiveFiles(tmp_path), MANIFEST, topics, "t")
    batches = [3]
    written: list[list[Piece]] = []

    async def rolled_forward(sink: str) -> int:
        return batches[-1]

    def write(sink: str, batch_id: int, pieces: list[Piece], *_: Any) -> int:
        assert len(written) < 5, "it would go on for ever"
        if not committed and not written:
            # An earlier batch was applied first, so this one has to be staged again.
            written.append(pieces)
            return 0
        written.append(pieces)
        batches.append(batch_id)
        return 0

    monkeypatch.setattr(run, "_rolled_forward", rolled_forward)
    monkeypatch.setattr(run, "_written", lambda _: {0: at(8, 10), 1: Written(0)})
    monkeypatch.setattr(run, "_write", write)
    words = (
        r"the batch 4 of the replay into t has added no message, and the archive has messages"
        r" behind the offsets 10, 0: restore the files of the archive from a copy"
    )
    with pytest.raises(ArchiveError, match=words):
        run.run(lambda _: None)
    assert len(written) == (1 if committed else 2)


# -- entries


def entries(
    *rows: dict[str, Any], versions: Mapping[bytes, bytes] | None = None, **more: Any
) -> list[tuple[pb.MessageMetadata, list[dict[str, Any]]]]:
    """Encode rows, apply the entries as brokers do, and read them again."""
    encoder = EntryEncoder(ID, {} if versions is None else versions, **more)
    found = [*encoder.add(raw_times(rows)), *encoder.rest()]
    assert encoder.rows == len(rows)
    assert encoder.hash
    shown = []
    for entry in found:
        check_staged(memoryview(entry), 5 << 20)
        head, body = applied_entry(memoryview(entry), "daybook.sink.x", 3, 1000)
        stored = broker_entry_metadata(1, 9) + head + bytes(body)
        metadata, data = parse_metadata(memoryview(stored))
        if metadata.compression != pb.NONE:
            size = metadata.uncompressed_size
            data = memoryview(decompress(int(metadata.compression), data, size, 1 << 30))
        singles, values = BatchReader().split(bytes(data), metadata.num_messages_in_batch)
        shown.append(
            (
                metadata,
                [
                    {
                        "key": single.key,
                        "is_base64": single.key_is_base64,
                        "ordering_key": single.ordering_key,
                        "properties": single.properties,
                        "event_ms": single.event_time_ms,
                        "value": None if single.null_value else value,
                    }
                    for single, value in zip(singles, values, strict=True)
                ],
            )
        )
        mark = mark_of(stored)
        assert mark is not None
        assert mark.archive == ID
    return shown


def raw_times(rows: Any) -> Any:
    batch = a_batch(*rows)
    index = batch.schema.get_field_index("eventTime")
    return batch.set_column(index, "eventTime", batch.column(index).cast(pa.int64()))


def test_a_message_is_the_same_after_a_replay() -> None:
    ((metadata, messages),) = entries(
        a_row(3, key=b"text", keyIsBytes=False, orderingKey=b"\0o"),
        a_row(5, key=b"\xff\0", keyIsBytes=True, value=None),
        a_row(6, headers=[{"key": name, "value": b"v%d" % n} for n, name in enumerate("bab")]),
        a_row(7, eventTime=DAY + timedelta(milliseconds=7), value=b""),
    )
    plain = {
        "key": None,
        "is_base64": False,
        "ordering_key": None,
        "properties": (),
        "event_ms": 0,
    }
    assert messages == [
        plain | {"key": "text", "ordering_key": b"\0o", "value": b"value 3"},
        plain | {"key": b64encode(b"\xff\0").decode(), "is_base64": True, "value": None},
        plain | {"properties": (("b", "v0"), ("a", "v1"), ("b", "v2")), "value": b"value 6"},
        plain | {"event_ms": int(DAY.timestamp() * 1000) + 7, "value": b""},
    ]
    assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("text", False)
    assert metadata.ordering_key == b"\0o"
    assert not metadata.HasField("schema_version")


def test_an_entry_has_one_version_of_the_schema() -> None:
    rows = [a_row(n, schemaVersion=each) for n, each in enumerate([b"a", b"a", None, b"b"])]
    found = entries(*rows, versions={b"a": b"A", b"b": b"B"})
    assert [(m.schema_version, len(messages)) for m, messages in found] == [
        (b"A", 2),
        (b"", 1),
        (b"B", 1),
    ]
    encoder = EntryEncoder(ID, None)
    plain = [*encoder.add(raw_times(rows)), *encoder.rest()]
    assert len(plain) == 3
    assert all(b"A" not in entry[:40] for entry in plain)


def test_the_mark_is_the_offset_behind_the_last_message_of_the_entry() -> None:
    rows = [a_row(3 * n, value=b"x" * 50_000) for n in range(7)]
    encoder = EntryEncoder(ID, {})
    found = [*encoder.add(raw_times(rows)), *encoder.rest()]
    marks = []
    for entry in found:
        head, body = applied_entry(memoryview(entry), "p", 0, 1)
        marks.append(mark_of(broker_entry_metadata(1, 0) + head + bytes(body)))
    assert marks == [Mark(ID, 4), Mark(ID, 10), Mark(ID, 16), Mark(ID, 19)]


def test_an_entry_has_no_more_messages_than_a_batch_of_a_producer() -> None:
    found = entries(*[a_row(n, value=b"") for n in range(BATCH_MESSAGES_MAX + 1)])
    assert [len(messages) for _, messages in found] == [BATCH_MESSAGES_MAX, 1]


def test_entries_are_compressed_if_that_makes_them_smaller() -> None:
    rows = [a_row(n, value=b"x" * 1000) for n in range(10)]
    ((packed, messages),) = entries(*rows, compression=CompressionType.ZSTD)
    assert packed.compression == pb.ZSTD
    assert [each["value"] for each in messages] == [b"x" * 1000] * 10
    ((plain, _),) = entries(a_row(0, value=b"x"), compression=CompressionType.ZSTD)
    assert plain.compression == pb.NONE


def test_an_entry_of_another_producer_has_no_mark() -> None:
    single = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    single.properties.add(key="daybook.replay", value=str(Mark(ID, 5)))
    assert mark_of(encode_payload(single, b"x")) is None, "the property is one of its message"
    assert mark_of(b"damaged") is None


def test_the_rows_of_a_piece_begin_at_its_offset(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path)
    rows = [a_row(n, eventTime=DAY) for n in (2, 5, 9)]
    (file,) = written(a_batch(*rows), files=files)
    named = NamedFile(files, ID, 0, file)
    found = [row for batch in rows_of(named, 4) for row in batch.to_pylist()]
    assert [row["offset"] for row in found] == [5, 9]
    assert [row["eventTime"] for row in found] == [int(DAY.timestamp() * 1_000_000)] * 2
    with open_file(named) as opened:
        assert [opened.rows_before(at) for at in (2, 3, 6, 9, 10)] == [0, 1, 2, 2, 3]
