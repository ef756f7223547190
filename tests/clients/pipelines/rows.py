"""Rows as the source gives them to the archiver, and files of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from daybook.clients.pipelines.archive.write import COLUMNS
from daybook.clients.spark.columns import arrow_schema

DAY = datetime(2026, 11, 27, tzinfo=UTC)
TOPIC = "persistent://public/default/orders"


def a_row(offset: int, **fields: Any) -> dict[str, Any]:
    """Return the row of a message; `hour` is that of its publish time, since the 27th."""
    hour = fields.pop("hour", 12)
    row: dict[str, Any] = {
        "key": None,
        "value": b"value %d" % offset,
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "timestamp": None if hour is None else DAY + timedelta(hours=hour),
        "eventTime": None,
        "properties": [],
        "messageId": b"id %d" % offset,
        "headers": [],
        "keyIsBytes": None,
        "orderingKey": None,
        "schemaVersion": None,
    }
    assert set(fields) <= set(row)
    return row | fields


def a_batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(COLUMNS))
