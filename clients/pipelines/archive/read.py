"""Run a Spark task that reads a range of offsets from the files of an archive."""

# pyright: basic
# (the libraries underneath have no types)

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from daybook.clients.pipelines.archive.checked import open_file
from daybook.clients.spark.columns import arrow_schema
from daybook.clients.spark.options import ReadTask


def read_files(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Read the rows of the range as the topic would give them.

    Raise ArchiveError for a file that differs from its manifest.
    """
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
