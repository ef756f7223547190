"""Run a Spark task that reads a range of offsets from the files of an archive."""

# pyright: basic
# (the libraries underneath have no types)

from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from daybook.clients.pipelines.archive.checked import NamedFile, open_file
from daybook.clients.pipelines.archive.errors import ArchiveError, DefinitionError
from daybook.clients.pipelines.archive.manifest import ArchivedSchema
from daybook.clients.pipelines.archive.store import load
from daybook.clients.python.errors import TopicNotFoundError
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.spark.columns import arrow_schema
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.typed_rows import TypedRows
from daybook.wire.topics import TopicName

_ARCHIVES_KNOWN = 16


def read_files(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Read the rows of the range as the topic would give them.

    Raise ArchiveError for a file that differs from its manifest, DefinitionError, and
    UnreadableMessageError for a message that is not of the schema of the query.
    """
    raw = _raw(task)
    if task.typed is None or not task.files:
        return raw
    topic, named = TopicName.parse(task.stored_in).base.full, task.files[0]
    where = f"{task.stored_in}, partition {task.part.partition}"
    rows = TypedRows(task.typed, topic, where, lambda version: _definition(named, version))
    return map(rows.typed, raw)


def _raw(task: ReadTask) -> Iterator[pa.RecordBatch]:
    start, end = task.part.start, task.part.end
    schema = arrow_schema(task.columns, task.key_type)
    as_text = "key" in task.columns and task.key_type == "string"
    names = [*dict.fromkeys((*task.columns, *(("keyIsBytes",) if as_text else ())))]
    for each in task.files or ():
        with open_file(each) as opened:
            for batch in opened.rows(names, start, end):
                columns = [_column(task, name, batch) for name in task.columns]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(task: ReadTask, name: str, batch: pa.RecordBatch) -> Any:  # noqa: ANN401
    if name == "topic":  # The query may call the topic by another name than the archiver did.
        return pa.repeat(pa.scalar(task.topic, pa.string()), batch.num_rows)
    if name == "key" and task.key_type == "string":
        return _texts(batch.column("key"), batch.column("keyIsBytes"))
    return batch.column(name)


def _texts(keys: Any, are_bytes: Any) -> Any:  # noqa: ANN401  Arrow arrays
    """Return keys as text: those that were given as bytes are base64."""
    flags = are_bytes.to_pylist()
    if True not in flags:
        return keys.cast(pa.string())
    found = [
        None if key is None else b64encode(key).decode() if is_bytes else key.decode()
        for key, is_bytes in zip(keys.to_pylist(), flags, strict=True)
    ]
    return pa.array(found, pa.string())


# -- schemas


def _definition(named: NamedFile, version: bytes) -> SchemaInfo:
    """Return the definition of a version of the schema, which the manifest holds.

    Raise TopicNotFoundError if it was deleted before its messages were archived, and
    DefinitionError.
    """
    directory = named.files.directory
    known = _known(str(directory), named.archive)
    if version not in known:
        # A definition never changes, so the manifest is read again for versions that are new only.
        known |= _schemas(named)
    if version not in known:
        raise DefinitionError(
            f"the manifest of {directory} lacks the version {version.hex()} of the schema, which"
            f" messages of {named.file.path} name: restore the newest manifest from a copy"
        )
    found = known[version]
    if found is None:
        raise TopicNotFoundError(0, f"the version {version.hex()} of the schema was deleted")
    return SchemaInfo(found.type, found.data, found.name, found.properties)


def _schemas(named: NamedFile) -> Mapping[bytes, ArchivedSchema | None]:
    try:
        manifest = load(named.files)
    except ArchiveError as error:
        raise DefinitionError(str(error)) from None
    if manifest is None or manifest.id != named.archive:
        raise DefinitionError(
            f"{named.files.directory} is not the archive {named.archive} any more: start the query"
            " again"
        )
    return manifest.schemas


@lru_cache(_ARCHIVES_KNOWN)
def _known(directory: str, archive: str) -> dict[bytes, ArchivedSchema | None]:
    """Return the definitions of an archive that this process has read."""
    del directory, archive
    return {}
