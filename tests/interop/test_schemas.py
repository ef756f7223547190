"""Apache Pulsar's clients, unmodified, with schemas: against our brokers."""

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import schema as typed

from daybook import schemas
from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S, end, start
from tests.interop.apache import pulsar_client_here
from tests.interop.letters import SOURCE, admin_urls, commands
from tests.interop.lines import line_of
from tests.interop.test_pulsar_clients import REQUESTS_MAX

pytestmark = pytest.mark.interop

SCHEMAS = SOURCE.with_name("Schemas.java")


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(bookies=1, brokers=1) as running:
        yield running


def test_javas_client_with_schemas_of_all_kinds(cluster: StandaloneProcess, tmp_path: Path) -> None:
    before = commands(admin_urls(cluster)).total()
    command = pulsar_client_here().command(tmp_path, str(SCHEMAS), cluster.service_url, "java-")
    process = start(command, tmp_path / "schemas.txt")
    try:
        said = [line_of(process) for _ in range(19)]
    finally:
        end(process)
    assert said == [
        "string häuser",
        "int64 1099511627776",
        "double 0.5",
        "bool true",
        "date 1970-01-01T00:00:05Z",
        "json ann 1",
        "avro bob 2",
        "protobuf 9",
        "native 9",
        "pair SEPARATED k cy 3",
        "pair INLINE k cy 3",
        "auto bob 2",
        "auto bytes dee 4",
        "auto bytes checked",
        "auto plain x",
        "producer IncompatibleSchemaException",
        "consumer IncompatibleSchemaException",
        "type IncompatibleSchemaException",
        "versions 0:null 1:Rome 1:Rome",
    ]
    assert commands(admin_urls(cluster)).total() - before <= REQUESTS_MAX


class User(typed.Record):  # type: ignore[misc]
    name = typed.String()
    age = typed.Integer()


class Stranger(typed.Record):  # type: ignore[misc]
    name = typed.Integer(required=True)


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_pythons_client_with_records(cluster: StandaloneProcess, kind: str) -> None:
    make = typed.AvroSchema if kind == "avro" else typed.JsonSchema
    topic = f"python-{kind}"
    client = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        consumer = client.subscribe(topic, "s", schema=make(User))
        client.create_producer(topic, schema=make(User)).send(User(name="ann", age=1))
        found = consumer.receive(round(1000 * PATIENCE_S))
        assert (found.value().name, found.value().age) == ("ann", 1)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=make(Stranger))
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=typed.StringSchema())
    finally:
        client.close()
    shown = schema_of(cluster, topic)
    assert shown["type"] == kind.upper()
    assert json.loads(shown["data"])["name"] == "User"


def schema_of(cluster: StandaloneProcess, topic: str) -> dict[str, Any]:
    url = f"{admin_urls(cluster)[0]}/admin/v2/schemas/public/default/{topic}/schema"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


# -- our client and theirs


@dataclass
class OurUser:
    """The record of `User` above, as Python's client describes it."""

    name: str | None = None
    age: schemas.Int32 | None = None


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_our_client_and_pythons_read_each_other(cluster: StandaloneProcess, kind: str) -> None:
    theirs = (typed.AvroSchema if kind == "avro" else typed.JsonSchema)(User)
    ours = (schemas.avro if kind == "avro" else schemas.json)(OurUser, name="User")
    topic = f"both-{kind}"
    official = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    with blocking.connect(cluster.service_url) as client:
        try:
            their_consumer = official.subscribe(topic, "theirs", schema=theirs)
            our_consumer = client.subscribe(topic, "ours", schema=ours)
            official.create_producer(topic, schema=theirs).send(User(name="ann", age=1))
            with client.create_producer(topic, schema=ours) as producer:
                producer.send(OurUser("bob", 2))
                producer.send(OurUser())
            found = [our_consumer.receive(PATIENCE_S).value for _ in range(3)]
            assert found == [OurUser("ann", 1), OurUser("bob", 2), OurUser()]
            read = [their_consumer.receive(round(1000 * PATIENCE_S)).value() for _ in range(3)]
            assert [(u.name, u.age) for u in read] == [("ann", 1), ("bob", 2), (None, None)]
        finally:
            official.close()


def test_our_client_reads_what_java_wrote_by_its_version(cluster: StandaloneProcess) -> None:
    """The topics are those of Java's test above."""

    @dataclass
    class WithTown:
        age: schemas.Int32 = 0
        name: str | None = None
        town: str | None = None

    with blocking.connect(cluster.service_url) as client:
        ours = schemas.avro(WithTown, name="UserWithTown")
        with client.create_reader("java-versions", start="earliest", schema=ours) as reader:
            found = [reader.receive(PATIENCE_S) for _ in range(3)]
        assert [m.schema_version for m in found] == [0, 1, 1]
        assert [m.value for m in found] == [
            WithTown(5, "eve"),
            WithTown(6, "eve", "Rome"),
            WithTown(6, "eve", "Rome"),
        ]
        kinds = {
            "java-string": "häuser",
            "java-int64": 1 << 40,
            "java-bool": True,
            "java-instant": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
            "java-json": {"name": "ann", "age": 1},
            "java-avro": {"name": "bob", "age": 2},
            "java-pairs-INLINE": ("k", {"name": "cy", "age": 3}),
        }
        for topic, value in kinds.items():
            with client.create_reader(topic, start="earliest", schema=schemas.AUTO) as reader:
                assert reader.receive(PATIENCE_S).value == value
