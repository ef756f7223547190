"""Manifests of archives: whole ones are read as they were written, and all others are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daybook.clients.pipelines.archive.manifest import (
    ArchivedFile,
    ArchivedPartition,
    ArchivedSchema,
    Manifest,
    ManifestError,
    Retired,
    encode,
    parse,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "archive_v1" / "manifest.json"
TOPIC = "persistent://public/default/orders"
ID = "0123456789abcdef0123456789abcdef"
DAY = "2026-11-27"


def a_path(number: int) -> str:
    return f"day={DAY}/{number:032x}.parquet"


def a_file(first: int, following: int) -> ArchivedFile:
    return ArchivedFile(a_path(first), first, following, following - first, 9, DAY)


def a_manifest(*files: ArchivedFile) -> Manifest:
    return Manifest(ID, TOPIC, False, "instance", 1, partitions={0: ArchivedPartition(7, 5, files)})


WHOLE = a_manifest(a_file(5, 9), a_file(9, 12))
RELEASED = Manifest(
    ID,
    TOPIC,
    True,
    "46297825-4ccc-457e-a0cf-1b11b115bcef",
    12,
    {
        b"\0" * 8: ArchivedSchema(4, "orders", b'{"type":"record"}', {"a": "1"}),
        b"\0" * 7 + b"\1": None,
    },
    {
        0: ArchivedPartition(
            115,
            40,
            (
                ArchivedFile(
                    f"day={DAY}/6a7c0e0b0f3e4a7d8c5f1b2a3d4e5f60.parquet",
                    40,
                    1000,
                    950,
                    70_321,
                    DAY,
                    1_795_780_800_000,
                    1_795_867_199_999,
                ),
                ArchivedFile(
                    "day=2026-11-28/00112233445566778899aabbccddeeff.parquet",
                    1000,
                    1001,
                    1,
                    3_100,
                    "2026-11-28",
                ),
            ),
        ),
        1: ArchivedPartition(116, 0),
    },
    (Retired(f"day={DAY}/ffeeddccbbaa99887766554433221100.parquet", 1_795_870_000),),
)


def test_a_manifest_is_as_it_was_released() -> None:
    assert encode(RELEASED) == GOLDEN.read_bytes()
    assert parse(GOLDEN.read_bytes()) == RELEASED


def test_a_partition_knows_its_end_and_its_files() -> None:
    part = WHOLE.partitions[0]
    assert (part.end, part.rows, part.bytes) == (12, 7, 18)
    assert part.overlapping(8, 9) == (a_file(5, 9),)
    assert part.overlapping(8, 10) == part.files
    assert part.overlapping(12, 13) == part.overlapping(9, 9) == ()
    assert ArchivedPartition(7, 5).end == 5


def test_files_are_added_behind_the_end() -> None:
    assert WHOLE.with_files(0, [a_file(12, 13)]).partitions[0].end == 13
    with pytest.raises(ManifestError, match="no file holds the offsets 12 to 13"):
        WHOLE.with_files(0, [a_file(13, 14)])


def test_a_merged_file_takes_the_place_of_others() -> None:
    merged = ArchivedFile(a_path(0xFF), 5, 12, 7, 15, DAY)
    manifest = WHOLE.with_merged(0, WHOLE.partitions[0].files, merged, 100)
    assert manifest.partitions[0].files == (merged,)
    assert manifest.retired == tuple(Retired(a_path(first), 100) for first in (5, 9))
    assert parse(encode(manifest)) == manifest


@pytest.mark.parametrize("change", [{"first": 4}, {"next": 13}, {"rows": 6}, {"path": a_path(5)}])
def test_a_merged_file_that_holds_something_else_is_refused(change: dict[str, Any]) -> None:
    merged = replace(ArchivedFile(a_path(0xFF), 5, 12, 7, 15, DAY), **change)
    with pytest.raises(ManifestError):
        parse(encode(WHOLE.with_merged(0, WHOLE.partitions[0].files, merged, 100)))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([a_file(5, 9), a_file(10, 12)], "gap"),
        ([a_file(6, 9)], "gap"),
        ([a_file(5, 9), a_file(8, 12)], "overlap"),
        ([replace(a_file(5, 9), rows=5)], "5 rows"),
        ([replace(a_file(5, 9), rows=0)], "0 rows"),
        ([replace(a_file(5, 9), path="../x.parquet")], "is not the path of a file of an archive"),
        ([replace(a_file(5, 9), path="/x.parquet")], "is not the path of a file of an archive"),
        ([replace(a_file(5, 9), path=f"{a_path(5)}\n")], "is not the path of a file of an archive"),
        ([replace(a_file(5, 9), day="today")], "the day 'today', which is none"),
        ([replace(a_file(5, 9), day="2026-11-28")], "is in the directory of another day"),
        ([replace(a_file(5, 9), earliest_ms=5, latest_ms=4)], "publish times 5 to 4"),
        ([replace(a_file(5, 9), earliest_ms=5)], "publish times 5 to None"),
        ([a_file(5, 9), replace(a_file(9, 12), path=a_file(5, 9).path)], "twice"),
    ],
)
def test_a_manifest_that_is_not_whole_is_refused(files: list[ArchivedFile], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        parse(encode(a_manifest(*files)))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": True},
        {"version": 1.0},
        {"generation": 1.0},
        {"generation": 2**63},
        {"another": 0.5},
        {"another": float("nan")},
        {"topic": "\ud800"},
        {"instance": "\udfff"},
        {"retired": {}},
        {"retired": ""},
        {"retired": [{"path": "day=2026-11-27/x.parquet", "at": 1}]},
        {"retired": [{"path": "other.parquet", "at": 1}]},
        {"retired": [{"path": "day=2026-02-30/" + "0" * 32 + ".parquet", "at": 1}]},
        {"retired": [{"path": a_path(1), "at": True}]},
        {"schemas": []},
        {"schemas": {"00": {"type": 1, "name": "\ud800", "data": "", "properties": {}}}},
        {"schemas": {"00": {"type": 1, "name": "n", "data": "", "properties": {"\ud800": ""}}}},
        {"schemas": {"00": {"type": 1, "name": "n", "data": "", "properties": {"a": "\ud800"}}}},
        {"schemas": {"00": {"type": 1, "name": "n", "data": "", "properties": []}}},
        {"partitions": []},
        {"partitions": {"0": None}},
        {"partitions": {"00": {"created": 7, "begin": 0, "end": 0, "files": []}}},
        {"partitions": {"1": {"created": 7, "begin": 0, "end": 0, "files": []}}},
        {"partitions": {"0": {"created": None, "begin": 0, "end": 0, "files": []}}},
        {"topic": 5},
        {"instance": None},
        {"id": "x"},
        {"partitioned": 0},
        {"schemas": {"xy": None}},
        {"schemas": {"00": {"type": 1, "name": "n", "data": "?", "properties": {}}}},
        {"generation": -1},
        {"retired": None},
    ],
)
def test_json_that_is_no_manifest_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        parse(json.dumps({**json.loads(encode(WHOLE)), **change}).encode())


def test_the_numbers_of_a_manifest_fit_into_64_bits() -> None:
    largest = replace(WHOLE, generation=2**63 - 1)
    assert parse(encode(largest)) == largest


@pytest.mark.parametrize(
    "day", ["2026-02-30", "0000-01-01", "2026-13-01", "\uff12026-11-27", "2026-W01-1"]
)
def test_a_day_that_is_not_in_the_calendar_is_refused(day: str) -> None:
    file = replace(a_file(5, 9), day=day, path=a_path(5).replace(DAY, day))
    with pytest.raises(ManifestError):
        parse(encode(a_manifest(file)))


@pytest.mark.parametrize("files", [{}, "", None, 0, {"path": 1}, [[]], ["path"], [None]])
def test_files_that_are_no_list_of_files_are_refused(files: Any) -> None:
    data = json.loads(encode(WHOLE))
    data["partitions"]["0"] |= {"files": files, "end": 5}
    with pytest.raises(ManifestError):
        parse(json.dumps(data).encode())


@pytest.mark.parametrize("end", [12.0, True, "12", None])
def test_an_end_of_another_type_is_refused(end: Any) -> None:
    data = json.loads(encode(WHOLE))
    data["partitions"]["0"]["end"] = end
    with pytest.raises(ManifestError):
        parse(json.dumps(data).encode())


def test_a_key_that_is_there_twice_is_refused() -> None:
    text = encode(WHOLE).decode()
    for key in ('"generation": 1', '"next": 9', '"created": 7', '"retired": []'):
        assert key in text
        name = key.partition('"')[2].partition('"')[0]
        with pytest.raises(ManifestError, match=f"has the key '{name}' twice"):
            parse(text.replace(key, f"{key}, {key}", 1).encode())


def test_a_manifest_is_utf_8() -> None:
    text = encode(WHOLE).decode()
    assert parse(text.encode()) == WHOLE
    for data in (text.encode("utf-16"), text.encode("utf-32"), b"\xef\xbb\xbf" + text.encode()):
        with pytest.raises(ManifestError, match="the manifest is not JSON"):
            parse(data)
    raw = text.replace("instance", "in\ud800stance").encode("utf-8", "surrogatepass")
    with pytest.raises(ManifestError, match="the manifest is not JSON"):
        parse(raw)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        parse(data)


def test_an_end_that_is_not_that_of_the_files_is_refused() -> None:
    data = json.loads(encode(WHOLE))
    data["partitions"]["0"]["end"] = 13
    with pytest.raises(ManifestError, match="do not end"):
        parse(json.dumps(data).encode())
