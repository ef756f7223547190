"""Run a Spark task that reads a range of offsets from the files of an archive."""

# pyright: basic
# (the libraries underneath have no types)

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from daybook.clients.spark.columns import arrow_schema
from daybook.clients.spark.options import ReadTask


def read_files(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Read the rows of the range as the topic would give them.

    Row groups without an offset of the range are not read.
    """
    start, end = task.part.start, task.part.end
    schema = arrow_schema(task.columns, task.key_type)
    needed = tuple(dict.fromkeys((*task.columns, "offset", "key", "keyIsBytes")))
    wanted = (pc.field("offset") >= start) & (pc.field("offset") < end)
    as_text = "key" in task.columns and task.key_type == "string"
    names = [*dict.fromkeys((*task.columns, *(("keyIsBytes",) if as_text else ())))]
    for path in task.files or ():
        # The schema is given, so that types are those of the source and not those of the file.
        found = ds.dataset(path, schema=arrow_schema(needed))
        for batch in found.to_batches(columns=names, filter=wanted):
            if batch.num_rows:
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
