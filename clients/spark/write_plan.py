"""A planned write of Spark: checked when the query is planned, and sent to its tasks."""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from pyspark.sql.types import StructType

from daybook.clients.spark.row_columns import (
    RecordColumns,
    RowColumns,
    record_columns,
    row_columns,
)
from daybook.clients.spark.sink_options import SinkOptions, parse_sink_options


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Where the rows go, and the meaning of their columns."""

    options: SinkOptions
    columns: RowColumns  # those of plain rows
    record: RecordColumns | None = None  # typed rows become plain ones first


def plan_write(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool
) -> WritePlan:
    """Check the options and the frame of a query.  Raise ValueError with one sentence."""
    if overwrite:
        raise ValueError(
            "a topic cannot be overwritten, because messages are only added to it: use"
            + (" outputMode('append')" if streaming else " mode('append')")
        )
    if find_spec("pyarrow") is None:
        raise ModuleNotFoundError(
            "the Spark sink needs pyarrow, which is not installed: install it with"
            " pip install 'daybook-mq[spark]'",
            name="pyarrow",
        )
    options = parse_sink_options(given, streaming=streaming)
    if options.value_format == "bytes":
        return WritePlan(options, row_columns(schema, topic=options.topic))

    from daybook.clients.spark.records import RecordEncoder

    record, plain = record_columns(schema)
    RecordEncoder(record, options.value_format)  # It refuses types that no schema describes.
    return WritePlan(options, row_columns(plain, topic=options.topic), record)
