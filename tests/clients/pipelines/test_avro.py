"""Values in Avro become structs, and values that do not fit become null."""

import io
import json
from typing import Any

import fastavro
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from daybook.clients.pipelines.avro import avro_record, decoded, structs
from daybook.clients.pipelines.spec import Parse
from daybook.clients.pipelines.spec_file import WrongKeyError

FIELDS = [
    {"name": "id", "type": "string"},
    {"name": "degrees", "type": ["null", "double"]},
    {"name": "more", "type": "int"},
]
WRITTEN = fastavro.parse_schema({"type": "record", "name": "Reading", "fields": FIELDS})
COLUMNS = StructType(
    [
        StructField("id", StringType()),
        StructField("degrees", DoubleType()),
        StructField("none", LongType()),
    ]
)


def encoded(record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, WRITTEN, record)
    return out.getvalue()


def test_records_become_structs_and_others_null() -> None:
    good = encoded({"id": "a", "degrees": 1.5, "more": 3})
    values = [good, None, b"", good[:-1], good + b"\0", encoded({"id": "b", "more": 1})]
    records = [decoded(value, WRITTEN) for value in values]
    found = structs(records, to_arrow_type(COLUMNS)).to_pylist()
    assert found == [
        {"id": "a", "degrees": 1.5, "none": None},
        *[None] * 4,
        {"id": "b", "degrees": None, "none": None},
    ]


def test_a_field_of_another_type_than_its_column_is_null_in_its_own_row_only() -> None:
    kind = to_arrow_type(StructType([StructField("id", LongType())]))
    assert structs([{"id": "a"}, {"id": 5}], kind).to_pylist() == [None, {"id": 5}]


@pytest.mark.parametrize("schema", ["no JSON", json.dumps({"type": "unknown"}), "{}"])
def test_a_schema_that_is_none_is_refused(schema: str) -> None:
    with pytest.raises(WrongKeyError, match="avro_schema"):
        avro_record(Parse("avro", "id STRING", schema), COLUMNS)
