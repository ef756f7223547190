"""Records in Avro become structs: in Spark's Python workers, so no jar is needed.

A value that does not fit becomes null, and with it a dead letter: it ends too early or too late, or
its fields do not have the types of the columns.
"""

# pyright: basic
# (the libraries underneath have no types)

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from daybook.clients.pipelines.spec import Parse
from daybook.clients.pipelines.spec_file import WrongKeyError


def avro_record(parse: Parse, schema: StructType) -> Callable[[Column], Column]:
    """Return a function of Spark that decodes a column.  Raise WrongKeyError for a wrong schema."""
    assert parse.avro_schema is not None
    try:
        written = fastavro.parse_schema(json.loads(parse.avro_schema))
    except (ValueError, KeyError, SchemaParseException) as error:
        raise WrongKeyError(
            ("parse", "avro_schema"), f"it is no schema of Avro: {error!r}"
        ) from None
    kind = to_arrow_type(schema)

    def decode(values: pa.Array) -> pa.Array:
        return structs([decoded(value, written) for value in values.to_pylist()], kind)

    make = cast("Callable[[Any, StructType], Callable[[Column], Column]]", arrow_udf)
    return make(decode, schema)


def decoded(value: bytes | None, written: Any) -> Any:  # noqa: ANN401
    """Return the record of a message; None if it has none."""
    if value is None:
        return None
    data = io.BytesIO(value)
    try:
        record = fastavro.schemaless_reader(data, written, None)
    except Exception:  # fastavro raises what it meets: IndexError, struct.error, EOFError, ...
        return None
    return record if data.tell() == len(value) else None


def structs(records: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return records as structs; null for those whose fields do not fit."""
    try:
        return pa.array(records, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.array([record if _fits(record, kind) else None for record in records], kind)


def _fits(record: Any, kind: pa.DataType) -> bool:  # noqa: ANN401
    try:
        pa.scalar(record, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True
