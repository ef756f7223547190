"""The columns of a topic that has a schema: Spark's types, and what is refused."""

import json
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, StringType, StructType

from daybook.clients.python.schemas.key_value import KeyValueSchema
from daybook.clients.python.schemas.primitive import INT64, STRING
from daybook.clients.python.schemas.schema import SchemaInfo
from daybook.clients.spark.schema import Mode
from daybook.clients.spark.typed_schema import (
    TopicSchema,
    TypedColumns,
    check_given,
    spark_schema,
    typed_columns,
)
from daybook.wire.proto import pulsar_pb2 as pb

USUAL = "__key,__topic,__partition,__offset,__timestamp,__eventTime,__properties,__messageId"
DEFINED = {
    "type": "record",
    "name": "Inner",
    "namespace": "shop",
    "fields": [{"name": "x", "type": "int"}],
}


def avro(*fields: tuple[str, Any], **more: Any) -> SchemaInfo:
    listed = [{"name": name, "type": kind, **more} for name, kind in fields]
    definition = {"type": "record", "name": "R", "namespace": "shop", "fields": listed}
    return SchemaInfo(pb.Schema.Avro, json.dumps(definition).encode())


def columns(
    info: SchemaInfo, asked: str | None = None, mode: Mode = "FAILFAST", **more: Any
) -> TypedColumns:
    names = None if asked is None else asked.split(",")
    options: dict[str, Any] = {"key_type": "binary", "headers": False} | more
    return typed_columns(TopicSchema(info, {"t": 0}), names, mode, **options)


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("string", "string"),
        ({"type": "string", "avro.java.string": "String"}, "string"),
        ("bytes", "binary"),
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        (logical("string", "uuid"), "string"),
        (logical("int", "date"), "date"),
        (logical("long", "timestamp-millis"), "timestamp"),
        (logical("long", "timestamp-micros"), "timestamp"),
        (logical("long", "local-timestamp-millis"), "timestamp_ntz"),
        (logical("bytes", "decimal", precision=38, scale=4), "decimal(38,4)"),
        ({"type": "array", "items": ["null", "long"]}, "array<bigint>"),
        ({"type": "map", "values": "boolean"}, "map<string,boolean>"),
        (["null", "int"], "int"),
        (["int", "null"], "int"),
        (["null", "int", "long"], "bigint"),
        (["float", "double"], "double"),
        (DEFINED, "struct<x:int>"),
        ({"type": "array", "items": DEFINED}, "array<struct<x:int>>"),
    ],
)
def test_each_type_of_avro_has_its_type_in_spark(kind: Any, wanted: str) -> None:
    assert spark_schema(columns(avro(("a", kind)), "a")).simpleString() == f"struct<a:{wanted}>"


def test_a_named_type_is_known_where_it_is_used_again() -> None:
    found = columns(avro(("a", DEFINED), ("b", "Inner"), ("c", ["null", "shop.Inner"])), "a,b,c")
    inner = "struct<x:int>"
    assert spark_schema(found).simpleString() == f"struct<a:{inner},b:{inner},c:{inner}>"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (logical("long", "time-micros"), "a is a time of day"),
        (logical("long", "timestamp-nanos"), "a is a time in nanoseconds"),
        (logical("bytes", "decimal", precision=39), "a is a decimal with 39 digits"),
        (["null", "int", "string"], "a is a union of 2 types"),
        ("null", "a is always null"),
        ({"type": "record", "name": "N", "fields": []}, "a is a record without fields"),
        ({"type": "array", "items": logical("int", "time-millis")}, r"a\[\] is a time of day"),
        (["null", "R"], "a is a record inside of itself"),
        ("nothing.Known", "a has the type 'nothing.Known', which is not known"),
    ],
)
def test_a_type_that_spark_cannot_hold_is_refused_unless_it_is_left_out(
    kind: Any, why: str
) -> None:
    info = avro(("a", kind), ("b", "int"))
    if kind in (["null", "R"], "nothing.Known"):  # Avro has no columns at all then.
        info = SchemaInfo(pb.Schema.Json, info.data)
    with pytest.raises(ValueError, match=f"{why}.*leave a out with the option columns"):
        columns(info)
    assert spark_schema(columns(info, "b")).simpleString() == "struct<b:int>"


def test_the_columns_about_the_message_come_after_the_fields() -> None:
    info = avro(("a", "int"), ("offset", "string"))
    assert ",".join(columns(info).names) == f"a,offset,{USUAL}"
    assert ",".join(columns(info, headers=True).names) == f"a,offset,{USUAL},__headers"
    assert ",".join(columns(info, mode="PERMISSIVE").names) == f"a,offset,{USUAL},_corrupt"
    found = columns(info, "__headers,__key,__timestamp", key_type="string")
    assert spark_schema(found).simpleString() == (
        "struct<__headers:array<struct<key:string,value:binary>>,__key:string,__timestamp:timestamp>"
    )


@pytest.mark.parametrize(
    ("fields", "asked", "says"),
    [
        (("a", "__offset"), None, "'__offset', which is the name of a column about the message"),
        (("a", "A"), None, "'a' and 'A' differ in case only"),
        (("a",), "b", "there is no column 'b', only a, __key"),
        (("a",), "a,_corrupt", "_corrupt needs mode=PERMISSIVE"),
    ],
)
def test_wrong_columns_are_refused(fields: tuple[str, ...], asked: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        columns(avro(*((name, "int") for name in fields)), asked)


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (SchemaInfo(pb.Schema.Protobuf, b"{}"), "schema type Protobuf have no columns"),
        (SchemaInfo(pb.Schema.LocalTime), "schema type LocalTime have no columns"),
        (SchemaInfo(pb.Schema.Avro, b'"string"'), "no record"),
        (SchemaInfo(pb.Schema.Json, b"x"), "no Avro definition"),
        (avro(), "no fields"),
    ],
)
def test_a_schema_without_columns_is_refused(info: SchemaInfo, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        columns(info)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"type":"record","name":"R","fields":' + b"[" * 3000 + b"]" * 3000 + b"}", "64 levels"),
        (b'{"type":"record","name":"R","fields":[{"name":"a"}]}', "record without right fields"),
        (b'{"type":"record","fields":[]}', "record without right name"),
    ],
)
def test_a_definition_that_is_none_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        columns(SchemaInfo(pb.Schema.Avro, data))
    with pytest.raises(ValueError, match="array without right items"):
        columns(avro(("a", {"type": "array"})))
    twice = {"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}
    with pytest.raises(ValueError, match=r"type shop\.F twice"):
        columns(avro(("a", twice[0]), ("b", twice[1])))


def laughs(levels: int) -> dict[str, Any]:
    """Return a record that has 2 to the power of `levels` fields when names are expanded."""
    found: dict[str, Any] = {"type": "record", "name": f"L{levels}"}
    found["fields"] = [{"name": "x", "type": "int"}]
    for level in reversed(range(levels)):
        fields = [{"name": "a", "type": found}, {"name": "b", "type": f"L{level + 1}"}]
        found = {"type": "record", "name": f"L{level}", "fields": fields}
    return found


def test_a_field_with_too_many_types_when_names_are_expanded_is_refused() -> None:
    small, large = laughs(8), json.loads(json.dumps(laughs(20)).replace('"L', '"K'))
    info = avro(("a", small), ("b", large), ("c", "int"))
    with pytest.raises(ValueError, match=r"more than 10,000 types.*leave b out"):
        columns(info, "a,b,c")
    assert columns(info, "a,c").names == ("a", "c")


ENDLESS = [
    (["null", "R"], "the record R inside of itself"),
    ({"type": "array", "items": "null"}, "an array whose items may have more than 64 values"),
    ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "64 values in a byte"),
]


@pytest.mark.parametrize(("kind", "why"), ENDLESS)
def test_avro_without_a_limit_has_no_columns_of_its_content(kind: Any, why: str) -> None:
    info = avro(("a", kind), ("b", "int"))
    for names in ("b", "_corrupt"):
        with pytest.raises(ValueError, match=f"{why}.*use schemaMode=raw"):
            columns(info, names, mode="PERMISSIVE")
    assert columns(info, "__offset").names == ("__offset",)
    as_json = SchemaInfo(pb.Schema.Json, info.data)
    assert columns(as_json, "b").names == ("b",)


def test_single_values_and_pairs() -> None:
    assert spark_schema(columns(INT64.info, "value")).simpleString() == "struct<value:bigint>"
    pair = KeyValueSchema(STRING, INT64, separated=True)
    assert spark_schema(columns(pair.info, "key,value,__key")).simpleString() == (
        "struct<key:string,value:bigint,__key:binary>"
    )
    with pytest.raises(ValueError, match="keyType=string is not for pairs"):
        columns(pair.info, key_type="string")


def test_a_schema_of_the_user_chooses_columns() -> None:
    found = columns(avro(("a", "int"), ("b", {"type": "array", "items": "string"})))
    given = StructType().add("b", ArrayType(StringType())).add("__offset", "long")
    assert check_given(found, given).names == ("b", "__offset")
    with pytest.raises(ValueError, match="says a bigint, but the column has the type int"):
        check_given(found, StructType().add("a", "long"))
    with pytest.raises(ValueError, match="says c int, but the column does not exist"):
        check_given(found, StructType().add("c", "integer"))
