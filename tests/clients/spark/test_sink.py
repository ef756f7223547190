"""The sink checks a query before anything is sent."""

import pickle
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from daybook.clients.python.tls import TlsOptions
from daybook.clients.spark.credential_options import QueryCredentials
from daybook.clients.spark.row_columns import RowColumns, row_columns
from daybook.clients.spark.sink import StreamWriter
from daybook.clients.spark.sink_options import SinkOptions, parse_sink_options
from daybook.clients.spark.source import DaybookDataSource

OPTIONS = {"service.url": "pulsar://x", "topic": "t"}
HEADERS = "headers array<struct<key:string,value:binary>>"


KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "array<string>": ArrayType(StringType()),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def schema(ddl: str) -> StructType:
    """Parse a schema; Spark's own parser needs Java."""
    fields = [field.strip().split(" ") for field in ddl.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in fields])


@pytest.mark.parametrize(
    ("ddl", "topic", "columns"),
    [
        ("value string", "t", RowColumns(0)),
        ("key string, Value binary", "t", RowColumns(1, 0)),
        (
            "value binary, key binary, properties map<string,string>, eventTime timestamp"
            ", partition int, topic string",
            None,
            RowColumns(0, 1, 2, event_time=3, partition=4, topic=5),
        ),
        (f"value binary, {HEADERS}", "t", RowColumns(0, headers=1)),
        ("value binary, topic string", "t", RowColumns(0)),  # the option counts
    ],
)
def test_columns_are_known_by_their_names(ddl: str, topic: str | None, columns: RowColumns) -> None:
    assert row_columns(schema(ddl), topic=topic) == columns


@pytest.mark.parametrize(
    ("ddl", "topic", "says"),
    [
        ("key string", "t", "has no column 'value'"),
        ("value string", None, "the option 'topic' is missing"),
        ("value int", "t", "'value' is int and must be binary or string: cast it"),
        ("value string, key bigint", "t", "'key' is bigint and must be binary or string"),
        ("value string, properties map<string,int>", "t", "must be map<string,string>"),
        ("value string, headers array<string>", "t", "must be array<struct<key:string,value"),
        ("value string, eventTime timestamp_ntz", "t", "must be timestamp"),
        ("value string, partition bigint", "t", "'partition' is bigint and must be int"),
        ("value string, topic int", None, "'topic' is int and must be string"),
        ("value string, offset bigint", "t", "a message has no column 'offset': drop it"),
        ("value string, VALUE string", "t", "two columns 'value'"),
        (f"value string, properties map<string,string>, {HEADERS}", "t", "properties and headers"),
    ],
)
def test_a_wrong_column_is_explained(ddl: str, topic: str | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        row_columns(schema(ddl), topic=topic)


def test_options_are_compared_without_case() -> None:
    found = parse_sink_options({**OPTIONS, "COMPRESSION": "ZSTD"}, streaming=False)
    assert found == SinkOptions("pulsar://x", "t", "zstd")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "'service.url' is missing"),
        (
            {**OPTIONS, "topics": "t"},
            r"unknown option 'topics' of the sink: did you mean 'topic'\? there are: service",
        ),
        ({**OPTIONS, "compression": "gzip"}, "compression must be one of none, lz4"),
        (
            {**OPTIONS, "semantics": "at-most-once"},
            "semantics='at-most-once' must be one of",
        ),
        ({**OPTIONS, "valueFormat": "xml"}, "valueFormat='xml' must be one of bytes, json, avro"),
        ({**OPTIONS, "topic": "a/b"}, "a/b"),
        ({**OPTIONS, "checkpointLocation": "x"}, "unknown option 'checkpointlocation'"),
    ],
)
def test_a_wrong_option_is_explained(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_sink_options(options, streaming=False)


def test_spark_calls_the_writers_by_keyword_and_sends_them_to_tasks() -> None:
    given = {**OPTIONS, "checkpointlocation": "c", "queryname": "q"}
    source: Any = DaybookDataSource(given)
    writer = source.streamWriter(schema=schema("value string"), overwrite=False)
    assert isinstance(pickle.loads(pickle.dumps(writer)), StreamWriter)
    assert source.name() == "daybook"
    source = DaybookDataSource(OPTIONS)
    assert source.writer(schema=schema("value string"), overwrite=False)


@pytest.mark.parametrize("method", ["writer", "streamWriter"])
def test_a_topic_is_never_overwritten(method: str) -> None:
    source: Any = DaybookDataSource(OPTIONS)
    with pytest.raises(ValueError, match="a topic cannot be overwritten"):
        getattr(source, method)(schema=schema("value string"), overwrite=True)


def test_without_pyarrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daybook.clients.spark.write_plan.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'daybook-mq"):
        DaybookDataSource(OPTIONS).writer(schema("value string"), overwrite=False)


def test_credentials_of_the_sink() -> None:
    urls = {"admin.url": "http://x", "token.file": "/run/token"}
    found = parse_sink_options({**OPTIONS, **urls, "semantics": "exactly-once"}, streaming=False)
    assert found.credentials == QueryCredentials("file:///run/token")
    assert found.once is not None
    assert found.once.credentials == found.credentials
    assert pickle.loads(pickle.dumps(found)) == found
    hidden = parse_sink_options({**OPTIONS, "token": "eyJ.secret.x"}, streaming=False)
    assert "secret" not in repr(hidden)
    with pytest.raises(ValueError, match="exclude each other"):
        parse_sink_options({**OPTIONS, "token.file": "/t", "token": "x"}, streaming=False)


def test_tls_of_the_sink() -> None:
    urls = {"service.url": "pulsar+ssl://x", "admin.url": "https://x"}
    once = {**OPTIONS, **urls, "semantics": "exactly-once", "tls.trusted": "/ca.pem"}
    found = parse_sink_options(once, streaming=False)
    assert found.tls == TlsOptions("/ca.pem")
    assert found.once is not None
    assert found.once.tls == found.tls
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(ValueError, match="both be with TLS"):
        parse_sink_options({**once, "admin.url": "http://x"}, streaming=False)
    with pytest.raises(ValueError, match="is for brokers with TLS"):
        parse_sink_options({**OPTIONS, "tls.key": "k"}, streaming=False)
