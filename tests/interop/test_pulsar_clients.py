"""Apache Pulsar's Java and Go clients, unmodified, against our brokers."""

import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S, end, start
from tests.interop.apache import go_client, pulsar_client_here
from tests.interop.letters import SOURCE, admin_urls, commands, java_letters
from tests.interop.lines import line_of

pytestmark = pytest.mark.interop

MESSAGES = 60
LARGE, STATS = SOURCE.with_name("Large.java"), SOURCE.with_name("Stats.java")
ONCE = SOURCE.with_name("Once.java")
REQUESTS_MAX = 300  # a client that repeats one without a pause sends more at once


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(bookies=1, brokers=1) as running:
        yield running


@pytest.fixture
def go() -> Path:
    if shutil.which("go") is None:
        pytest.skip("there is no Go on this machine")
    client = go_client()
    if client is None:
        pytest.skip("the Go client was not built: `sh tests/interop/fetch_go.sh` says why")
    return client


def test_all_messages_that_are_never_acknowledged_become_dead_letters(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    """Java's client asks for the schema of its dead letter topic; once, it asked forever."""
    before = commands(admin_urls(cluster)).total()
    with java_letters(
        tmp_path,
        service_url=cluster.service_url,
        prefix="dead",
        messages=MESSAGES,
        rate=MESSAGES,
    ) as java:
        said = java.wait_done(PATIENCE_S)
    assert said.done, java.log.read_text()
    assert said.delivered >= 2 * MESSAGES
    assert commands(admin_urls(cluster)).total() - before <= REQUESTS_MAX


def test_gos_failover_consumers_hear_who_is_active(
    cluster: StandaloneProcess, go: Path, tmp_path: Path
) -> None:
    command = [str(go), "failover", cluster.service_url, "go-failover"]
    process = start(command, tmp_path / "go.txt")
    try:
        events = [line_of(process) for _ in range(3)]
    finally:
        end(process)
    assert events == ["a active", "b inactive", "b active"]


def test_gos_producer_hears_of_each_message_when_its_topic_is_terminated(
    cluster: StandaloneProcess, go: Path, tmp_path: Path
) -> None:
    topic = "go-terminated"
    process = start([str(go), "terminate", cluster.service_url, topic], tmp_path / "go.txt")
    try:
        assert line_of(process) == "sending"
        path = f"/admin/v2/persistent/public/default/{topic}/terminate"
        request = urllib.request.Request(f"{admin_urls(cluster)[0]}{path}", method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        words = line_of(process).split()
    finally:
        end(process)
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert counts["refused"] >= 1, (tmp_path / "go.txt").read_text()
    assert (counts["other"], counts["unanswered"]) == (0, 0)
    stats = f"/admin/v2/persistent/public/default/{topic}/internalStats"
    with urllib.request.urlopen(f"{admin_urls(cluster)[0]}{stats}", timeout=PATIENCE_S) as answer:
        assert f'"numberOfEntries":{counts["stored"]},' in answer.read().decode()


def test_gos_producers_go_on_beside_one_whose_message_is_too_large(
    cluster: StandaloneProcess, go: Path, tmp_path: Path
) -> None:
    """The client that sent it knows no refusal of one message: its sends time out."""
    limited(cluster, "go-large")
    before = commands(admin_urls(cluster))["PRODUCER"]
    process = start([str(go), "large", cluster.service_url, "go-large"], tmp_path / "go.txt")
    try:
        said = [line_of(process), line_of(process)]
    finally:
        end(process)
    assert said[0] == "the other one goes on"
    assert "timeout" in said[1].lower()
    assert commands(admin_urls(cluster))["PRODUCER"] - before == 2  # none of them reconnected


def test_javas_producer_goes_on_behind_a_message_that_is_too_large(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    limited(cluster, "java-large")
    command = pulsar_client_here().command(tmp_path, str(LARGE), cluster.service_url, "java-large")
    process = start(command, tmp_path / "large.txt")
    try:
        said = [line_of(process) for _ in range(3)]
    finally:
        end(process)
    assert said == ["stored", "NotAllowedException", "stored"]


def limited(cluster: StandaloneProcess, topic: str) -> None:
    """Create a topic that takes entries of 1 MiB at most, which clients do not know."""
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic)
        admin.set_topic_policy(topic, "maxMessageSize", 1 << 20)


def messages_of(cluster: StandaloneProcess, topic: str, count: int) -> list[int]:
    """Return the numbers with which the messages of the topic begin; there are so many.

    The official client puts chunks together.
    """
    client = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = [reader.read_next(round(1000 * PATIENCE_S)) for _ in range(count)]
        assert not reader.has_message_available()
    finally:
        client.close()
    return [int(message.data().partition(b",")[0]) for message in found]


def deduplicated(cluster: StandaloneProcess, topic: str) -> str:
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic)
        admin.set_topic_deduplication(topic, True)
    return topic


def test_javas_producer_that_starts_again_stores_each_message_once(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    """Batches, single messages and chunks; the ids are those that the application gives."""
    topic = deduplicated(cluster, "java-once")
    command = pulsar_client_here().command(tmp_path, str(ONCE), cluster.service_url, topic)
    process = start(command, tmp_path / "once.txt")
    try:
        said = [line_of(process) for _ in range(5)]
    finally:
        end(process)
    assert said == [
        "behind -1: new new new",
        "behind 3: repeat repeat repeat",
        "behind 3: repeat repeat new new",
        "behind 5: repeat new new",
        "behind 7: repeat repeat new",
    ]
    assert messages_of(cluster, topic, 8) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_gos_producer_that_starts_again_stores_each_message_once(
    cluster: StandaloneProcess, go: Path, tmp_path: Path
) -> None:
    topic = deduplicated(cluster, "go-once")
    process = start([str(go), "once", cluster.service_url, topic], tmp_path / "go.txt")
    try:
        said = [line_of(process), line_of(process)]
    finally:
        end(process)
    # Go's client keeps the last id to itself until its own first receipt.
    assert said == ["behind -1: new new new", "behind -1: repeat repeat new"]
    assert messages_of(cluster, topic, 4) == [1, 2, 3, 4]


def test_gos_admin_client_understands_what_it_is_told(
    cluster: StandaloneProcess, go: Path, tmp_path: Path
) -> None:
    words = (cluster.service_url, "go-admin", cluster.admin_url)
    process = start([str(go), "admin", *words], tmp_path / "go.txt")
    try:
        said = [line_of(process) for _ in range(5)]
    finally:
        end(process)
    made, ranges, *rest = said
    assert made == "made public/go"
    assert re.fullmatch(r"ranges \[\((\d+):0\.\.\1:1\]\]", ranges), said
    assert rest == ["backlog 5, 5 a batch, bytes: true", "in use: true", "deleted"]


def test_gos_admin_client_looks_into_a_backlog(
    cluster: StandaloneProcess, go: Path, tmp_path: Path
) -> None:
    words = (cluster.service_url, "go-backlog", cluster.admin_url)
    process = start([str(go), "backlog", *words], tmp_path / "go.txt")
    try:
        said = [line_of(process) for _ in range(6)]
    finally:
        end(process)
    assert said == [
        "peeked 0=0 1=1",
        "after a skip 3=3 4=4",
        "by id 3",
        "after an expiry 3=3 4=4",
        "ledgers: true, cursors 1",
        "backlog 0",
    ]


def test_javas_admin_client_understands_statistics(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    command = pulsar_client_here().command(
        tmp_path, str(STATS), cluster.service_url, admin_urls(cluster)[0], "java-stats"
    )
    process = start(command, tmp_path / "stats.txt")
    try:
        said = [line_of(process) for _ in range(2)]
    finally:
        end(process)
    assert said == ["backlog 3 messages, 3 a batch", "cursor sub ranges []"]
