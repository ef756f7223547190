"""Typed columns from the files of an archive: those that the topic itself would give."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.clients.pipelines.archive import read as reading
from daybook.clients.pipelines.archive.checked import NamedFile
from daybook.clients.pipelines.archive.errors import DefinitionError
from daybook.clients.pipelines.archive.manifest import (
    ArchivedFile,
    ArchivedPartition,
    ArchivedSchema,
)
from daybook.clients.pipelines.archive.read import read_files
from daybook.clients.pipelines.archive.store import ArchiveStore
from daybook.clients.python.errors import TopicNotFoundError
from daybook.clients.python.schemas.key_value import KeyValueSchema
from daybook.clients.python.schemas.primitive import INT64, STRING
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.spark.offsets import OffsetRange
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.schema import Mode
from daybook.clients.spark.typed_rows import TypedRows
from daybook.clients.spark.typed_schema import TopicSchema, TypedColumns, typed_columns
from daybook.clients.spark.walk import UnreadableMessageError
from tests.clients.pipelines.memory_files import MemoryFiles
from tests.clients.pipelines.rows import a_batch, a_row
from tests.clients.pipelines.test_archive_manifest import ID, TOPIC, a_manifest
from tests.clients.pipelines.test_archive_write import written
from tests.clients.spark.test_typed_rows import as_json, avro, encoded

OLD = avro({"id": "int", "gone": "string"})
NEW = avro({"id": "long", "more": (["null", "string"], None), "rate": ("double", 2.5)}, "Renamed")
OTHER = as_json({"id": "int"})
VERSIONS = {0: OLD, 1: NEW, 2: OTHER, 3: None}
"""The versions of the schema; the last one was deleted before its messages were archived."""
MESSAGES: list[tuple[int | None, bytes | None]] = [
    (0, encoded(OLD, {"id": 1, "gone": "x"})),
    (1, encoded(NEW, {"id": 2, "more": "y", "rate": 1.0})),
    (None, encoded(NEW, {"id": 3})),
    (1, None),
    (0, b"\xff\xff\xff"),
    (2, b'{"id": 4}'),
    (3, b"gone"),
]


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """Each test has an archive of its own, and all of them have the same id."""
    reading._known.cache_clear()
    yield
    reading._known.cache_clear()


def version_of(number: int | None) -> bytes | None:
    return None if number is None else number.to_bytes(8, "big")


def ask(version: bytes) -> SchemaInfo:
    """Return a version as the broker of the topic does."""
    found = VERSIONS[int.from_bytes(version, "big")]
    if found is None:
        raise TopicNotFoundError(0, "it was deleted")
    return found


def a_query(info: SchemaInfo, mode: Mode) -> TypedColumns:
    schema = TopicSchema(info, {TOPIC: 3})
    return typed_columns(schema, None, mode, key_type="binary", headers=True)


def live(rows: list[dict[str, Any]], query: TypedColumns) -> list[dict[str, Any]]:
    """Return the rows that tasks make of the messages of the topic."""
    raw = a_batch(*rows).select(list(query.raw))
    return [dict(row) for row in TypedRows(query, TOPIC, "t", ask).typed(raw).to_pylist()]


def an_archive(rows: list[dict[str, Any]], *edges: int) -> tuple[MemoryFiles, list[ArchivedFile]]:
    """Return the files of the rows between these edges, with their manifest."""
    files, found = MemoryFiles(), list[ArchivedFile]()
    for low, high in pairwise(edges):
        found += written(a_batch(*rows[low:high]), files=files)
    schemas = {number.to_bytes(8, "big"): _stored(info) for number, info in VERSIONS.items()}
    part = ArchivedPartition(7, found[0].first, tuple(found))
    ArchiveStore(files).replace(replace(a_manifest(), schemas=schemas, partitions={0: part}))
    return files, found


def _stored(info: SchemaInfo | None) -> ArchivedSchema | None:
    return None if info is None else ArchivedSchema(info.type, "", info.data)


def from_files(
    files: MemoryFiles, found: list[ArchivedFile], query: TypedColumns
) -> list[dict[str, Any]]:
    """Return the rows that a task makes of each file."""
    rows: list[dict[str, Any]] = []
    for file in found:
        part = OffsetRange(0, file.first, file.next, TOPIC)
        named = (NamedFile(files, ID, 0, file),)
        task = ReadTask("pulsar://x", "orders", part, True, query.raw, query.raw_key_type, TOPIC)
        for batch in read_files(replace(task, files=named, typed=query)):
            batch.validate(full=True)
            assert batch.schema.names == list(query.names)
            rows += map(dict, batch.to_pylist())
    return rows


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=8), st.data())
def test_rows_are_equal_at_every_cut(
    messages: list[tuple[int | None, bytes | None]], data: st.DataObject
) -> None:
    reading._known.cache_clear()
    rows = [
        a_row(offset, value=value, schemaVersion=version_of(number), properties=[("n", "1")])
        for offset, (number, value) in enumerate(messages)
    ]
    query = a_query(NEW, "PERMISSIVE")
    expected = live(rows, query)
    for cut in range(1, len(rows) + 1):
        inner = data.draw(st.sets(st.integers(0, cut)), "the edges of its files")
        files, found = an_archive(rows, *sorted({0, cut} | inner))
        rest = live(rows[cut:], query) if cut < len(rows) else []
        assert from_files(files, found, query) + rest == expected


WRONG = [
    (MESSAGES[4], "no Avro"),
    (MESSAGES[5], "schema of type Json, and the query reads Avro"),
    (MESSAGES[6], "version 3 of the schema, which was deleted"),
]


@pytest.mark.parametrize(("message", "why"), WRONG)
def test_a_message_that_is_not_of_its_schema_ends_the_query(
    message: tuple[int | None, bytes | None], why: str
) -> None:
    number, value = message
    rows = [a_row(5), a_row(6, value=value, schemaVersion=version_of(number))]
    rows[0]["value"] = MESSAGES[2][1]
    files, found = an_archive(rows, 0, 2)
    words = rf"{TOPIC}, partition 0: the message at offset 6 is not of the schema.*{why}"
    with pytest.raises(UnreadableMessageError, match=words):
        from_files(files, found, a_query(NEW, "FAILFAST"))


def test_pairs_have_their_keys() -> None:
    schema = KeyValueSchema(STRING, INT64, separated=True)
    (key, value) = (STRING.encode("k"), INT64.encode(42))
    query = a_query(schema.info, "FAILFAST")
    rows = [a_row(0, key=key, keyIsBytes=True, value=value), a_row(1, key=key, value=None)]
    files, found = an_archive(rows, 0, 2)
    got = from_files(files, found, query)
    assert got == live(rows, query)
    assert [(row["key"], row["value"]) for row in got] == [("k", 42), ("k", None)]


def test_versions_that_the_archive_learns_later_are_looked_up_again() -> None:
    rows = [a_row(0, value=MESSAGES[0][1], schemaVersion=version_of(0))]
    files, found = an_archive(rows, 0, 1)
    query = a_query(NEW, "PERMISSIVE")
    store = ArchiveStore(files)
    assert store.manifest is not None
    whole = store.manifest
    store.replace(replace(whole, schemas={}))
    with pytest.raises(DefinitionError, match="lacks the version 0000000000000000 of the schema"):
        from_files(files, found, query)
    store.replace(whole)
    assert [row["id"] for row in from_files(files, found, query)] == [1]
    files.delete("manifest.json")
    assert [row["id"] for row in from_files(files, found, query)] == [1], "it is known"
    reading._known.cache_clear()
    with pytest.raises(DefinitionError, match="is not the archive 0123456789abcdef"):
        from_files(files, found, query)
