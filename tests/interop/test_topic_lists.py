"""Apache Pulsar's clients find topics and partitions that come while they consume."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import end, start
from tests.interop.apache import pulsar_client_here
from tests.interop.letters import SOURCE
from tests.interop.test_pulsar_clients import line_of

pytestmark = pytest.mark.interop

PATTERNS = SOURCE.with_name("Patterns.java")
NS = "public/default"


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(bookies=1, brokers=1) as running:
        yield running


def test_javas_watcher_tells_of_new_topics_and_partitions(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    with (
        blocking.connect(cluster.service_url) as client,
        blocking.connect_admin(cluster.admin_url) as admin,
    ):
        admin.create_topic("watched-old")
        admin.create_topic("watched-parts", partitions=1)
        words = (cluster.service_url, NS, "watched-.*", "5")
        command = pulsar_client_here().command(tmp_path, str(PATTERNS), *words)
        java = start(command, tmp_path / "patterns.txt")
        try:
            assert line_of(java) == "ready"
            for topic in ("watched-old", "other", "watched-new"):
                with client.create_producer(topic) as producer:
                    producer.send(b"hello")
            with client.create_producer("watched-parts-partition-0") as producer:
                producer.send(b"zero")
            said = {line_of(java) for _ in range(3)}
            assert said == {
                "watched-old hello",
                "watched-new hello",
                "watched-parts-partition-0 zero",
            }
            admin.add_partitions("watched-parts", 3)
            for index in (1, 2):
                with client.create_producer(f"watched-parts-partition-{index}") as producer:
                    producer.send(b"grown")
            said = {line_of(java) for _ in range(2)}
            assert said == {f"watched-parts-partition-{index} grown" for index in (1, 2)}
        finally:
            end(java)
