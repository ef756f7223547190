"""Apache Pulsar's clients, unmodified, with schemas: against our brokers."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import schema as typed

from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S, end, start
from tests.interop.apache import pulsar_client_here
from tests.interop.letters import SOURCE, admin_urls, commands
from tests.interop.test_pulsar_clients import REQUESTS_MAX, line_of

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
        said = [line_of(process) for _ in range(17)]
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
    url = f"{cluster.admin_url}/admin/v2/schemas/public/default/{topic}/schema"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found
