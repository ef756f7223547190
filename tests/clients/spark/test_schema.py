"""The columns that a query asks for, by its schema or by its options."""

import pytest

from daybook.clients.spark.options import parse_column_options
from daybook.clients.spark.schema import DEFAULT, Columns, columns_of_schema


def test_without_options_a_query_has_all_columns_but_the_headers() -> None:
    columns = parse_column_options({})
    assert columns.names == DEFAULT
    assert columns.ddl.startswith("key binary, value binary, topic string, partition int")
    assert "headers" not in columns.ddl


def test_options_choose_columns() -> None:
    columns = parse_column_options({"columns": "value, offset", "INCLUDEHEADERS": "true"})
    assert columns.ddl == (
        "value binary, offset bigint, headers array<struct<key:string,value:binary>>"
    )
    assert parse_column_options({"columns": "key", "keyType": "STRING"}).ddl == "key string"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"columns": "value,size"}, "there is no column 'size', only key, value"),
        ({"columns": "value,value"}, "twice"),
        ({"columns": ""}, "no column ''"),
        ({"keyType": "int"}, "neither binary nor string"),
        ({"includeHeaders": "maybe"}, "neither true nor false"),
    ],
)
def test_wrong_choices_are_explained(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_column_options(options)


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ([("value", "binary")], {}, Columns(("value",))),
        ([("offset", "bigint"), ("key", "string")], {}, Columns(("offset", "key"), "string")),
        ([("key", "binary")], {"keyType": "binary"}, Columns(("key",))),
        ([("value", "binary")], {"columns": "value"}, Columns(("value",))),
    ],
)
def test_a_schema_chooses_columns(
    fields: list[tuple[str, str]], options: dict[str, str], expected: Columns
) -> None:
    asked = parse_column_options(options)
    assert columns_of_schema(fields, asked, key_type_given="keyType" in options) == expected


@pytest.mark.parametrize(
    ("fields", "options", "says"),
    [
        ([("value", "string")], {}, "value string, but the column has the type binary"),
        ([("payload", "binary")], {}, "there is no column 'payload'"),
        ([("key", "binary")], {"keyType": "string"}, "has the type string with keyType=string"),
        ([("key", "int")], {}, "has the type binary with keyType=binary"),
        ([("value", "binary")], {"includeHeaders": "true"}, "give one of them"),
        ([("value", "binary")], {"columns": "value,key"}, "give one of them"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused(
    fields: list[tuple[str, str]], options: dict[str, str], says: str
) -> None:
    asked = parse_column_options(options)
    with pytest.raises(ValueError, match=says):
        columns_of_schema(fields, asked, key_type_given="keyType" in options)
