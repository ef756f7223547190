"""A topic moves ten times while the official clients produce to it and consume from it.

No client gets an error, nothing is lost, and with deduplication nothing is stored twice.  A message
whose acknowledgement the client had not sent yet is delivered again.
"""

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.topics import TopicName
from tests.harness.processes import PATIENCE_S, end, start
from tests.interop.apache import go_client, pulsar_client_here
from tests.interop.letters import SOURCE
from tests.interop.lines import line_of

pytestmark = pytest.mark.interop

MESSAGES = 1200
MOVES = 10
BETWEEN = 60  # messages between two moves
MOVING = SOURCE.with_name("Moves.java")
ALL = rf"stored {MESSAGES} failed 0 received \d+ distinct {MESSAGES}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(bookies=1, brokers=2) as running:
        yield running


def deduplicated(cluster: StandaloneProcess, name: str) -> TopicName:
    topic = TopicName.parse(name)
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic.full)
        admin.set_topic_deduplication(topic.full, True)
    return topic


def move(cluster: StandaloneProcess, topic: TopicName) -> None:
    """Move the bundle of the topic to the other broker and back, `MOVES` times in all.

    Between two moves the producer has to get on.  Go's client loses a close that comes directly
    behind the answer to its SUBSCRIBE ("Consumer with ID not found").
    """
    with (
        blocking.connect_admin(cluster.admin_url) as admin,
        blocking.connect(cluster.service_url) as client,
    ):
        boundaries = [int(each, 16) for each in admin.bundles(topic.namespace)["boundaries"]]
        low = max(each for each in boundaries if each <= topic.bundle_hash)
        high = min(each for each in boundaries if each > low)
        path = f"/admin/v2/namespaces/{topic.namespace}/0x{low:08x}_0x{high:08x}/unload"
        for _ in range(MOVES):
            owner = admin.lookup(topic.full)["httpUrl"].removeprefix("http://")
            (other,) = [each for each in admin.brokers() if each != owner]
            admin.call("PUT", path, query={"destinationBroker": other})
            assert admin.lookup(topic.full)["httpUrl"] == f"http://{other}"
            before = client.offsets(topic.full).next
            while client.offsets(topic.full).next < min(MESSAGES, before + BETWEEN):
                pass  # Each question waits for an answer of the broker.


def stored_once(cluster: StandaloneProcess, topic: TopicName) -> bool:
    """Return True if the topic has each message once, in the order of the sends."""
    with (
        blocking.connect(cluster.service_url) as client,
        client.create_reader(topic.full, start="earliest") as reader,
    ):
        found = [int(reader.receive(timeout_s=PATIENCE_S).data or b"") for _ in range(MESSAGES)]
        return found == list(range(MESSAGES)) and client.offsets(topic.full).next == MESSAGES


def run(cluster: StandaloneProcess, topic: TopicName, command: list[str], log: Path) -> str:
    """Return the last line of a program that uses the topic while it moves."""
    process = start(command, log)
    try:
        assert line_of(process) == "sending", log.read_text()
        move(cluster, topic)
        return line_of(process)
    finally:
        end(process)


def test_the_java_client_notices_nothing(cluster: StandaloneProcess, tmp_path: Path) -> None:
    topic = deduplicated(cluster, "java-moves")
    words = (cluster.service_url, topic.full, str(MESSAGES))
    command = pulsar_client_here().command(tmp_path, str(MOVING), *words)
    assert re.fullmatch(ALL, run(cluster, topic, command, tmp_path / "java.txt"))
    assert stored_once(cluster, topic)


def test_the_go_client_notices_nothing(cluster: StandaloneProcess, tmp_path: Path) -> None:
    client = go_client() if shutil.which("go") else None
    if client is None:
        pytest.skip("the Go client was not built: `sh tests/interop/fetch_go.sh` says why")
    topic = deduplicated(cluster, "go-moves")
    words = [cluster.service_url, topic.full, str(MESSAGES)]
    command = [str(client), "moves", *words]
    assert re.fullmatch(ALL, run(cluster, topic, command, tmp_path / "go.txt"))
    assert stored_once(cluster, topic)


def test_the_python_client_notices_nothing(cluster: StandaloneProcess) -> None:
    topic = deduplicated(cluster, "python-moves")
    client = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    consumer = client.subscribe(topic.full, "sub")
    producer = client.create_producer(topic.full, producer_name="python")
    results: list[pulsar.Result] = []
    sending = threading.Event()

    def sent(result: pulsar.Result, _: object) -> None:
        results.append(result)
        sending.set()

    def send() -> None:
        pause = threading.Event()
        for number in range(MESSAGES):
            producer.send_async(b"%d" % number, sent)
            pause.wait(0.005)
        producer.flush()

    sender = threading.Thread(target=send)
    sender.start()
    assert sending.wait(PATIENCE_S)
    mover = threading.Thread(target=move, args=(cluster, topic))
    mover.start()
    seen: set[int] = set()
    while len(seen) < MESSAGES:
        message = consumer.receive(timeout_millis=int(PATIENCE_S * 1000))
        seen.add(int(message.data()))
        consumer.acknowledge(message)
    sender.join()
    mover.join()
    client.close()
    assert [result for result in results if result != pulsar.Result.Ok] == []
    assert stored_once(cluster, topic)
