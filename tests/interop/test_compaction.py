"""Compacted topics: official clients at our brokers, and Apache Pulsar's brokers beside ours."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S, end, start, wait_until
from tests.interop.apache import go_client, pulsar_broker_here, pulsar_client_here
from tests.interop.letters import SOURCE
from tests.interop.pulsar_broker import PulsarBroker

pytestmark = pytest.mark.interop

TABLES = SOURCE.with_name("Tables.java")
COUNT = 95  # messages with ten keys; the last one, of k4, is a tombstone
LAST = {f"k{n % 10}": str(n) for n in range(COUNT - 1)}
EXPECTED = {key: value for key, value in LAST.items() if key != f"k{(COUNT - 1) % 10}"}
IN_ORDER = sorted(EXPECTED.items(), key=lambda item: int(item[1]))
MS = int(PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(bookies=1, brokers=1) as running:
        yield running


def lines_of(command: list[str], log: Path) -> dict[str, list[str]]:
    """Return what a program says: the words of each line, by the first one."""
    process = start(command, log)
    try:
        assert process.stdout is not None
        said = process.stdout.read()
    finally:
        end(process)
    return {words[0]: words[1:] for words in map(str.split, said.splitlines())}


def java(directory: Path, *words: str) -> dict[str, list[str]]:
    command = pulsar_client_here().command(directory, str(TABLES), *words)
    return lines_of(command, directory / f"{words[0]}.txt")


def compact(admin_url: str, topic: str) -> None:
    with blocking.connect_admin(admin_url) as admin:
        admin.compact(topic)
        wait_until(lambda: admin.compaction(topic)["status"] != "RUNNING", "the compaction")
        assert admin.compaction(topic)["status"] == "SUCCESS", admin.compaction(topic)


def pairs(items: list[tuple[str, str]]) -> list[str]:
    return [f"{key}={value}" for key, value in items]


@pytest.mark.parametrize("batching", ["false", "true"])
def test_the_official_clients_read_a_compacted_topic(
    cluster: StandaloneProcess, tmp_path: Path, batching: str
) -> None:
    topic = f"persistent://public/default/tables-{batching}"
    url = cluster.service_url
    assert "put" in java(tmp_path, "put", url, topic, batching, "0", str(COUNT))
    compact(cluster.admin_url, topic)
    said = java(tmp_path, "read", url, topic)
    assert said["reader"] == pairs(IN_ORDER)
    assert said["consumer"] == pairs(IN_ORDER)
    assert said["table"] == pairs(sorted(EXPECTED.items()))
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(url, logger=logger)) as client:
        assert python_reads(client, topic) == IN_ORDER
        view = client.create_table_view(topic)
        assert {key: view.get(key).decode() for key in EXPECTED} == EXPECTED
        assert len(view) == len(EXPECTED)
        view.close()
    with blocking.connect(url) as ours, ours.table_view(topic) as view:
        assert {key: value.decode() for key, value in view.items()} == EXPECTED
    # Java's client acknowledges a batch when it has received all its messages, so never here.
    if batching == "false":
        with blocking.connect_admin(cluster.admin_url) as admin:
            wait_until(
                lambda: admin.stats(topic)["subscriptions"]["java"]["msgBacklog"] == 0,
                "Java's consumer has no backlog",
            )


def python_reads(client: "pulsar.Client", topic: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    with closing(reader):
        while reader.has_message_available():
            message = reader.read_next(MS)
            found.append((message.partition_key(), message.data().decode()))
    return found


@pytest.mark.parametrize("batching", ["false", "true"])
def test_gos_client_reads_a_compacted_topic(
    cluster: StandaloneProcess, tmp_path: Path, batching: str
) -> None:
    if shutil.which("go") is None or (go := go_client()) is None:
        pytest.skip("the Go client was not built: `sh tests/interop/fetch_go.sh` says why")
    topic = f"persistent://public/default/go-table-{batching}"
    java(tmp_path, "put", cluster.service_url, topic, batching, "0", str(COUNT))
    compact(cluster.admin_url, topic)
    said = lines_of([str(go), "table", cluster.service_url, topic], tmp_path / "go.txt")
    assert said["reader"] == pairs(IN_ORDER)
    assert said["table"] == pairs(sorted(EXPECTED.items()))


def test_each_broker_reads_and_compacts_what_the_other_has_compacted(tmp_path: Path) -> None:
    """Ours compacts, Pulsar's reads and compacts again, and ours reads that."""
    topics = {"true": "persistent://public/moves/t"}
    with StandaloneProcess(brokers=1) as cluster:
        theirs = PulsarBroker(
            pulsar_broker_here(),
            cluster.zookeeper,
            tmp_path / "pulsar",
            metadataStoreSessionTimeoutMillis=4_000,
        )
        with blocking.connect_admin(cluster.admin_url) as admin:
            admin.create_namespace("public/moves")
            admin.set_retention("public/moves", minutes=77, megabytes=88)
        try:
            for batching, topic in topics.items():
                java(tmp_path, "put", cluster.service_url, topic, batching, "0", str(COUNT))
                compact(cluster.admin_url, topic)
            cluster.local("stop", "broker-1")
            theirs.start()
            for batching, topic in topics.items():
                assert java(tmp_path, "read", theirs.service_url, topic)["reader"] == pairs(
                    IN_ORDER
                )
                first = str(COUNT)
                java(tmp_path, "put", theirs.service_url, topic, batching, first, "3")
                compact(theirs.admin_url, topic)
                assert java(tmp_path, "read", theirs.service_url, topic)["reader"] == pairs(NEXT)
            theirs.stop()
            cluster.local("start", "broker-1")
            for batching, topic in topics.items():
                assert java(tmp_path, "read", cluster.service_url, topic)["reader"] == pairs(NEXT)
                java(tmp_path, "put", cluster.service_url, topic, batching, "98", "2")
                compact(cluster.admin_url, topic)
                found = java(tmp_path, "read", cluster.service_url, topic)["reader"]
                assert found == pairs(
                    [*(i for i in NEXT if i[0] not in ("k8", "k9")), ("k8", "98")]
                )
        finally:
            theirs.kill()


# After k5=95, k6=96 and the tombstone of k7.
NEXT = [
    *(item for item in IN_ORDER if item[0] not in ("k5", "k6", "k7")),
    ("k5", "95"),
    ("k6", "96"),
]
