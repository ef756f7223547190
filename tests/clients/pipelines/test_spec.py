"""A file that describes a pipeline: what it means, and the sentences for what is wrong in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from daybook.clients.pipelines import copies
from daybook.clients.pipelines.spec import (
    ROWS_PER_BATCH,
    Cluster,
    CopySource,
    EventTime,
    Parse,
    Pipeline,
    SpecError,
    Window,
    copy_pipeline,
    parse_pipeline,
    read_pipeline,
)
from daybook.clients.pipelines.spec_file import PipelineFile, WrongKeyError, line_of
from daybook.clients.spark.credential_options import QueryCredentials

CLUSTER = Cluster("pulsar://here:6650", "http://here:8080")
SMALL = """\
name = "small"
checkpoint = "state/small"

[source]
topic = "readings"

[sink]
topic = "copies"
"""
LARGE = """\
name = "by-minute"
checkpoint = "s3://bucket/by-minute"
where = "degrees > 22"
dead_letters = "broken"
every = "30 seconds"

[source]
format = "kafka"
kafka.bootstrap.servers = "kafka:9092"
subscribe = "readings"
maxOffsetsPerTrigger = 500
failOnDataLoss = false

[sink]
topic = "by-minute"
semantics = "at-least-once"
valueformat = "avro"

[parse]
schema = "sensor STRING NOT NULL, degrees DOUBLE, at TIMESTAMP"

[time]
column = "at"
late = "10 minutes"

[deduplicate]
by = ["sensor", "at"]

[window]
size = "1 minute"
by = ["sensor"]
columns.hottest = "max(degrees)"

[spark]
master = "spark://host:7077"
sql.shuffle.partitions = 8
"""


def parsed(text: str) -> Pipeline:
    return parse_pipeline(text, Path("/jobs/file.toml"), CLUSTER)


def test_a_small_file_means_exactly_once_from_the_beginning_in_the_cluster_of_the_command() -> None:
    assert parsed(SMALL) == Pipeline(
        name="small",
        checkpoint="/jobs/state/small",
        source_format="daybook",
        source={
            "topic": "readings",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(ROWS_PER_BATCH),
            "service.url": "pulsar://here:6650",
        },
        sink={
            "service.url": "pulsar://here:6650",
            "topic": "copies",
            "semantics": "exactly-once",
            "admin.url": "http://here:8080",
        },
    )


def test_a_large_file_has_every_step() -> None:
    assert parsed(LARGE) == Pipeline(
        name="by-minute",
        checkpoint="s3://bucket/by-minute",
        source_format="kafka",
        source={
            "kafka.bootstrap.servers": "kafka:9092",
            "subscribe": "readings",
            "maxOffsetsPerTrigger": "500",
            "failOnDataLoss": "false",
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
        },
        sink={
            "service.url": "pulsar://here:6650",
            "topic": "by-minute",
            "semantics": "at-least-once",
            "valueFormat": "avro",
        },
        parse=Parse("json", "sensor STRING NOT NULL, degrees DOUBLE, at TIMESTAMP"),
        where="degrees > 22",
        time=EventTime("at", "10 minutes"),
        deduplicate=("sensor", "at"),
        window=Window("1 minute", {"hottest": "max(degrees)"}, None, ("sensor",)),
        dead_letters="broken",
        every="30 seconds",
        spark={"spark.master": "spark://host:7077", "spark.sql.shuffle.partitions": "8"},
    )


def test_own_addresses_and_starts_go_before_those_of_the_command() -> None:
    own = SMALL.replace(
        "[sink]", 'service.url = "pulsar://there:6650"\nstartingTimestamp = 5\n[sink]'
    )
    found = parsed(own + 'admin.url = "http://other:8080"\nservice.url = "pulsar://other:6650"\n')
    assert found.source["service.url"] == "pulsar://there:6650"
    assert "startingOffsets" not in found.source
    assert found.sink["service.url"] == "pulsar://other:6650"
    assert found.sink["admin.url"] == "http://other:8080"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('name = "small"', "name = ", r"file.toml is not TOML: .* line 1"),
        ('name = "small"', "", r"^/jobs/file.toml: the key name is missing$"),
        ('name = "small"', "name = 5", r"line 1: name: expected `str`, got `int`"),
        ('name = "small"', 'name = "a b"', r"line 1: name: 'a b' is not a name: use up to 100"),
        (
            'name = "small"',
            'nam = "a"\nname = "small"',
            r"line 1: nam: there is no such key; there are: name, ",
        ),
        ('"state/small"', '" "', r"line 2: checkpoint: it is empty"),
        ("[source]", "[sorce]", r"file.toml: the key source is missing|line 4: sorce"),
        ('topic = "readings"', "", r"line 4: source: .*topic"),
        ("[sink]", "maxOffsetsPerTrigger = 0\n[sink]", r"line 7: \[source\] maxOffsetsPerTrigger"),
        ("[sink]", 'columns = "value"\n[sink]', r"line 7: \[source\] columns: the pipeline choo"),
        ("[sink]", 'format = "files"\n[sink]', r"line 7: \[source\] format: 'files' is neither"),
        ("[sink]", "x = [1]\n[sink]", r"line 7: \[source\] x: write a text, a number"),
        ('"copies"', '"copies"\nsinkName = "a"', r"line 9: \[sink\] sinkName: the pipeline"),
        ('"copies"', '"copies"\nsemantics = "often"', r"line 9: \[sink\] semantics: .*often"),
        ('"copies"', '"copies"\nformat = "csv"', r"line 9: \[sink\] format: a pipeline writes"),
        ('topic = "copies"', "", r"line 7: sink: .*'topic'"),
        ('"copies"', '"copies"\n[window]\nsize = "1 day"', r"line 9: window: the key columns"),
        (
            '"copies"',
            '"copies"\n[window]\nsize = "1 day"\ncolumns.n = "count(*)"',
            r"line 9: window: it needs the table \[time\]",
        ),
        ('"copies"', '"copies"\n[time]\nlate = "soon"', r"line 10: \[time\] late: 'soon' is not a"),
        ('"copies"', '"copies"\n[time]\nlate = "1 day"', r"line 9: time: only \[deduplicate\]"),
        (
            '"copies"',
            '"copies"\n[time]\nlate = "1 day"\n[deduplicate]\nby = []',
            r"line 12: \[deduplicate\] by: name a column",
        ),
        ('name = "small"', 'name = "small"\ndead_letters = "x"', r"line 2: dead_letters: every"),
        ('"copies"', '"copies"\n[spark]\nspark.master = "x"', r"line 9: spark: leave 'spark.'"),
        ('"copies"', '"copies"\n[spark]\n"spark.master" = "x"', r"line 9: spark: leave 'spark.'"),
        (
            '"copies"',
            '"copies"\n[parse]\nschema = "a INT"\nformat = "avro"',
            r"line 9: parse: format = 'avro' needs avro_schema",
        ),
        (
            '"copies"',
            '"copies"\n[parse]\nschema = "a INT"\nformat = "xml"',
            r"line 11: \[parse\] format: invalid enum value 'xml'",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_key(before: str, after: str, says: str) -> None:
    assert before in SMALL
    with pytest.raises(SpecError, match=says):
        parsed(SMALL.replace(before, after, 1))


def test_kafka_needs_an_address() -> None:
    with pytest.raises(SpecError, match=r"line 7: source: add kafka.bootstrap.servers"):
        parsed(LARGE.replace('kafka.bootstrap.servers = "kafka:9092"\n', ""))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none.toml cannot be read: No such file"):
        read_pipeline(tmp_path / "none.toml", CLUSTER)


def test_an_error_of_spark_has_its_line_and_key_if_a_file_describes_the_pipeline() -> None:
    error = WrongKeyError(("window", "columns", "Sum"), "there is no column x")
    file = PipelineFile(Path("file.toml"), 'name = "a"\n[window]\nsize = "1 d"\ncolumns.Sum = "x"')
    made = parsed(SMALL)
    says = "[window.columns] Sum: there is no column x"
    assert str(replace(made, file=file).refused(error)) == f"file.toml, line 4: {says}"
    assert str(replace(made, file=None).refused(error)) == says


@pytest.mark.parametrize(
    ("text", "where", "line"),
    [
        ("a = 1\n[t]\nb = 1\n", ("t", "b"), 3),
        ("a = 1\n[t]\nb = 1\n", ("t", "c"), 2),
        ("a = 1\n[t]\nb = 1\n", ("b",), None),
        ('[source]\n"service.url" = 1\n', ("source", "service.url"), 2),
        ("[source]\nservice.url = 1\n", ("source", "service.url"), 2),
        ("[window.columns]\nx = 1\n", ("window", "columns", "x"), 2),
    ],
)
def test_the_line_of_a_key(text: str, where: tuple[str, ...], line: int | None) -> None:
    assert line_of(text, where) == line


def test_a_copy_keeps_partitions_or_hashes_keys() -> None:
    source = CopySource("daybook", "pulsar://there:6650", "shop/eu/orders")
    made = copy_pipeline(source, "copies", CLUSTER, "/state")
    assert made.name == "copy-shop-eu-orders-to-copies"
    assert made.source["service.url"] == "pulsar://there:6650"
    assert made.sink["service.url"] == "pulsar://here:6650"
    assert list(made.columns or ()) == [
        *("key", "keyIsBytes", "value", "eventTime", "properties", "partition")
    ]
    hashed = copy_pipeline(source, "copies", CLUSTER, "/state", same_partitions=False)
    assert "partition" not in (hashed.columns or ())
    kafka = copy_pipeline(CopySource("kafka", "k:9092", "t"), "copies", CLUSTER, "/state")
    assert kafka.source["subscribe"] == "t"
    assert "headers" in (kafka.columns or ())
    with pytest.raises(SpecError, match="not one word"):
        copy_pipeline(source, "copies", CLUSTER, "/state", name="two words")


# -- credentials


LOCKED = Cluster(
    "pulsar://here:6650", "http://here:8080", None, QueryCredentials("file:///run/token")
)


def locked(text: str) -> Pipeline:
    return parse_pipeline(text, Path("/jobs/small.toml"), LOCKED)


def test_the_credentials_of_the_command_are_for_its_cluster() -> None:
    made = locked(SMALL)
    assert made.source["token.file"] == made.sink["token.file"] == "/run/token"
    for table in ("source", "sink"):
        urls = 'service.url = "pulsar://other:6650"\nadmin.url = "http://other"'
        if table == "source":
            urls = urls.partition("\n")[0]
        other = locked(SMALL.replace(f"[{table}]", f"[{table}]\n{urls}"))
        options = other.source if table == "source" else other.sink
        assert not {"token", "token.file"} & set(options), "another cluster is shown no token"
    one = locked(SMALL.replace("[sink]", '[sink]\nadmin.url = "http://other"'))
    assert "token.file" not in one.sink


def test_a_table_with_its_own_credentials_has_no_others() -> None:
    own = locked(SMALL.replace("[source]", '[source]\ntoken.file = "mine.token"'))
    assert own.source["token.file"] == "/jobs/mine.token", "a path begins at the file"
    assert own.sink["token.file"] == "/run/token"
    basic = 'basic.user = "ann"\nbasic.password.file = "../password"'
    user = locked(SMALL.replace("[source]", f"[source]\n{basic}"))
    assert "token.file" not in user.source
    assert user.source["basic.password.file"] == "/jobs/../password"


def test_credentials_that_would_reach_another_cluster_are_refused() -> None:
    urls = 'service.url = "pulsar://other:6650"\ntoken.file = "/run/other"'
    with pytest.raises(SpecError, match=r"needs both service\.url and admin\.url"):
        locked(SMALL.replace("[sink]", f"[sink]\n{urls}"))
    wrong = 'token = "x"\nbasic.user = "a"\nbasic.password.file = "b"'
    with pytest.raises(SpecError, match=r"line 5: \[source\] token: .* exclude each other"):
        locked(SMALL.replace("[source]", f"[source]\n{wrong}"))


def test_a_copy_shows_the_other_cluster_only_its_own_token() -> None:
    def copy(address: str, file: Path | None = None) -> Pipeline:
        source = CopySource("daybook", address, "t")
        return copy_pipeline(source, "u", LOCKED, "/c", source_token_file=file)

    here, there = copy(LOCKED.service_url), copy("pulsar://there:6650")
    assert here.source["token.file"] == here.sink["token.file"] == "/run/token"
    assert "token.file" not in there.source
    assert there.sink["token.file"] == "/run/token"
    own = copy("pulsar://there:6650", Path("/run/there"))
    assert (own.source["token.file"], own.sink["token.file"]) == ("/run/there", "/run/token")


# -- bookies and ZooKeeper


STORAGE = {"bookie.tls": "true", "zookeeper.tls": "true", "tls.trusted": "/run/ca.pem"}
STORED = Cluster("pulsar://here:6650", "http://here:8080", storage=STORAGE)


def test_the_bookies_of_the_command_are_those_of_its_cluster() -> None:
    def made(source: str) -> Pipeline:
        text = SMALL.replace("[source]", f"[source]\n{source}")
        return parse_pipeline(text, Path("/jobs/small.toml"), STORED)

    assert made("").source.items() >= STORAGE.items()
    assert not STORAGE.keys() & made("").sink.keys(), "a sink reaches brokers alone"
    other = made('service.url = "pulsar://other:6650"')
    assert not STORAGE.keys() & other.source.keys()
    own = made('Bookie.TLS = false\ntls.trusted = "ca.pem"')
    assert own.source["Bookie.TLS"] == "false"
    assert "bookie.tls" not in own.source
    assert own.source["tls.trusted"] == "/jobs/ca.pem", "the own file, and its path begins there"


def test_a_source_takes_all_options_about_bookies_and_zookeeper() -> None:
    lines = {
        "bookie.tls": "true",
        "bookie.user": "reader",
        "bookie.password.file": "/jobs/reader.password",
        "zookeeper.tls": "true",
        "zookeeper.user": "spark",
        "zookeeper.password.file": "/jobs/spark.password",
        "tls.trusted": "/jobs/ca.pem",
        "tls.certificate": "/jobs/spark.pem",
        "tls.key": "/jobs/spark.key",
        "tls.verifyHost": "false",
    }
    short = {name: value.removeprefix("/jobs/") for name, value in lines.items()}
    given = "\n".join(f'{name} = "{value}"' for name, value in short.items())
    found = parsed(SMALL.replace("[source]", f"[source]\n{given}"))
    assert found.source.items() >= lines.items(), "paths begin at the file"
    # The brokers are without TLS, and are asked without it.
    assert copies._security(found.source) == (None, QueryCredentials())
    with pytest.raises(SpecError, match=r"line 5: \[source\] bookie\.user: .* belong together"):
        parsed(SMALL.replace("[source]", '[source]\nbookie.user = "reader"'))


def test_a_copy_reads_from_bookies_as_the_options_say() -> None:
    source = CopySource("daybook", CLUSTER.service_url, "t")
    made = copy_pipeline(source, "u", CLUSTER, "/c", storage=STORAGE)
    assert made.source.items() >= STORAGE.items()
    assert not STORAGE.keys() & made.sink.keys()
