"""Pipelines read Apache Kafka: copies, exactly once and after a crash, and configured ones."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from daybook.clients.python import blocking
from daybook.clients.python.messages import Message
from daybook.clients.spark.header_marks import header_of, property_of
from daybook.clients.spark.offsets import OffsetRange
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.read import read_task
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S, end, start, wait_until
from tests.interop.apache import kafka_here, spark_kafka_here
from tests.interop.kafka import Kafka
from tests.interop.letters import SOURCE

pytestmark = pytest.mark.interop

FILL, DELETE = SOURCE.with_name("KafkaFill.java"), SOURCE.with_name("KafkaDelete.java")
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
PARTITIONS = 2
COUNT = 6000
BATCH = 500
SPARK = (
    "spark.master=local[2]",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # starts faster
    "spark.python.authenticate.socketTimeout=120s",  # a busy machine starts workers late
)


@dataclass(frozen=True, slots=True)
class Record:
    """A message of Kafka."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    aborted: bool = False

    @property
    def line(self) -> str:
        headers = ",".join(f"{name}={_base64(value)}" for name, value in self.headers)
        fields = (self.partition, self.timestamp_ms, _base64(self.key), _base64(self.value))
        return "\t".join(map(str, (*fields, headers, "aborted" if self.aborted else "sent")))

    @property
    def copied(self) -> tuple[Any, ...]:
        """Return the content that a copy has, as the page on pipelines promises it."""
        key, is_bytes = None, False
        if self.key is not None:
            try:
                key = self.key.decode()
            except UnicodeDecodeError:
                key, is_bytes = base64.b64encode(self.key).decode(), True
        properties = dict(property_of(name, value) for name, value in self.headers)
        is_null = self.value is None
        return is_null, self.value or b"", key, is_bytes, properties, self.timestamp_ms


def _base64(data: bytes | None) -> str:
    return "null" if data is None else base64.b64encode(data).decode()


def content(message: Message) -> tuple[Any, ...]:
    """Return the same of a message of Daybook."""
    key = None if message.key is None else message.key
    data = message.data or b""
    return (
        *(message.is_null, data, key, message.key_is_bytes),
        *(message.properties, message.event_time_ms),
    )


def records(numbers: range) -> list[Record]:
    keys = (
        b"sensor-1",
        b"\xff\x00\x01",
        None,
        "\N{GREEK SMALL LETTER ALPHA}".encode(),
        b"a\0b",
        b"",
    )
    headers: tuple[Headers, ...] = (
        (),
        (("source", b"test"), ("empty", b"")),
        (("\N{GREEK SMALL LETTER ALPHA}", "\N{GREEK SMALL LETTER BETA}".encode()),),
        (("twice", b"first"), ("twice", b"last")),
        (("trace", b"\xff\0\xfe"), ("none", None), ("source", b"test")),
        (("daybook.base64:trace", b"text"), ("daybook.null:x", None), ("none", b"")),
    )
    return [
        Record(
            # A half of the messages of each partition arrive in runs.
            (n // 3) % PARTITIONS,
            1_700_000_000_000 + 7 * n,
            keys[n % len(keys)],
            None if n % 50 == 7 else b"" if n % 50 == 9 else b"value %d" % n,
            headers[n % len(headers)],
            aborted=n % 2000 == 1001,
        )
        for n in numbers
    ]


def wanted(sent: Sequence[Record]) -> list[list[tuple[Any, ...]]]:
    """Return what a copy holds, by partition."""
    return [
        [each.copied for each in sent if each.partition == partition and not each.aborted]
        for partition in range(PARTITIONS)
    ]


def stored(client: blocking.Client, topic: str) -> list[list[tuple[Any, ...]]]:
    """Return what a topic holds, by partition."""
    found: list[list[tuple[Any, ...]]] = []
    for partition in range(client.partitions(topic, create=False)):
        name = f"{topic}-partition-{partition}"
        left, messages = client.offsets(name).next, list[Message]()
        with client.create_reader(name, start="earliest") as reader:
            while len(messages) < left:
                messages += reader.receive_batch(timeout_s=PATIENCE_S)
        found.append([content(each) for each in messages])
    return found


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    running = Kafka(tmp_path_factory.mktemp("kafka") / "broker")
    yield running
    running.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(bookies=1, brokers=2) as running:
        yield running


@pytest.fixture
def client(cluster: StandaloneProcess) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.service_url) as client:
        yield client


@pytest.fixture
def admin(cluster: StandaloneProcess) -> Iterator[blocking.Admin]:
    with blocking.connect_admin(cluster.admin_url) as admin:
        yield admin


def fill(kafka: Kafka, topic: str, those: Sequence[Record], directory: Path) -> None:
    command = kafka_here().command(directory, str(FILL), kafka.address, topic, str(PARTITIONS))
    done = subprocess.run(
        command,
        input="".join(f"{each.line}\n" for each in those),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "filled\n", done.stderr


def pipeline(cluster: StandaloneProcess, *words: str, with_jars: bool = True) -> list[str]:
    """Return the command `daybook pipeline WORDS`."""
    jars = ",".join(str(path) for path in sorted(spark_kafka_here().jars.glob("*.jar")))
    settings = [*SPARK, f"spark.jars={jars}"] if with_jars else SPARK
    return [
        *(sys.executable, "-m", "daybook.clients.cli.main", "pipeline", *words),
        *("--service-url", cluster.service_url, "--admin-url", cluster.admin_url),
        *(word for each in settings for word in ("--spark", each)),
        *("--output", "json"),
    ]


ENVIRON = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, env=ENVIRON, capture_output=True, text=True, timeout=600, check=False
    )


def done(command: list[str]) -> dict[str, Any]:
    """Run a pipeline to its end, and return its report."""
    finished = run(command)
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def test_a_copy_has_each_message_once_also_if_it_is_killed(
    kafka: Kafka,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    tmp_path: Path,
) -> None:
    sent = records(range(COUNT))
    fill(kafka, "clicks", sent, tmp_path / "fill")
    admin.create_topic("clicks", partitions=PARTITIONS)
    copy = pipeline(
        cluster,
        *("copy", "clicks", "clicks", "--source-url", f"kafka://{kafka.address}"),
        *("--checkpoint", str(tmp_path / "checkpoint"), "--rows-per-batch", str(BATCH)),
    )

    def arrived() -> int:
        return sum(each.next for each in client.offset_ranges("clicks"))

    killed = start(copy, tmp_path / "killed.txt", environ=ENVIRON)
    try:
        wait_until(
            lambda: arrived() >= 2 * BATCH or killed.poll() is not None, "two batches are copied"
        )
        assert killed.poll() is None, (tmp_path / "killed.txt").read_text()
    finally:
        end(killed, signal.SIGKILL)
    assert arrived() < COUNT

    report = done(copy)
    assert stored(client, "clicks") == wanted(sent)
    assert [each["partition"] for each in report["partitions"]] == list(range(PARTITIONS))
    assert {each["behind"] for each in report["partitions"]} == {0}

    here = [each for each in sent if each.partition == 0 and not each.aborted]
    found = headers_of(cluster, "clicks", len(here))
    assert found == [each.headers for each in here]

    more = records(range(COUNT, COUNT + 200))
    fill(kafka, "clicks", more, tmp_path / "fill")
    assert done(copy)["written"] == len(more)
    assert stored(client, "clicks") == wanted(sent + more)


READINGS = """\
name = "kafka-readings"
checkpoint = "state"
where = "degrees < 100"
dead_letters = "kafka-broken"

[source]
format = "kafka"
subscribe = "readings"
kafka.bootstrap.servers = "{address}"

[parse]
schema = "sensor STRING NOT NULL, degrees DOUBLE"

[sink]
topic = "kafka-readings"
"""


def test_a_configured_pipeline_reads_kafka(
    kafka: Kafka, cluster: StandaloneProcess, client: blocking.Client, tmp_path: Path
) -> None:
    sent = [
        Record(
            n % PARTITIONS,
            1_700_000_000_000 + n,
            b"k",
            json.dumps({"sensor": "s", "degrees": 90 + n}).encode() if n % 4 else b"no JSON",
            (("unit", b"C"),),
        )
        for n in range(40)
    ]
    fill(kafka, "readings", sent, tmp_path / "fill")
    file = tmp_path / "readings.toml"
    file.write_text(READINGS.format(address=kafka.address))
    report = done(pipeline(cluster, "run", str(file), "--available-now"))
    rows = [each for n, each in enumerate(sent) if n % 4 and 90 + n < 100]
    letters = [each for n, each in enumerate(sent) if not n % 4]
    assert (report["read"], report["written"], report["dead letters"]) == (40, len(rows), 10)
    found = read_all(client, "kafka-readings")
    expected = {(json.loads(each.value or b"")["degrees"], each.timestamp_ms) for each in rows}
    assert {
        (json.loads(each.data or b"")["degrees"], each.event_time_ms) for each in found
    } == expected
    assert {(each.key, each.properties["unit"]) for each in found} == {("k", "C")}
    broken = read_all(client, "kafka-broken")
    assert len(broken) == len(letters)
    assert {each.data for each in broken} == {b"no JSON"}
    places = {(each.properties["REAL_PARTITION"], each.event_time_ms) for each in broken}
    assert places == {(str(each.partition), each.timestamp_ms) for each in letters}
    assert {each.properties["REAL_TOPIC"] for each in broken} == {"readings"}


def headers_of(cluster: StandaloneProcess, topic: str, count: int) -> list[Headers]:
    """Return the headers of Kafka that the properties of messages are, all of them and in order."""
    task = ReadTask(cluster.service_url, topic, OffsetRange(0, 0, count), True, ("headers",))
    rows = [row for batch in read_task(task) for row in batch.to_pylist()]
    return [
        tuple(header_of(each["key"], each["value"].decode()) for each in row["headers"])
        for row in rows
    ]


def read_all(client: blocking.Client, topic: str) -> list[Message]:
    left, messages = client.offsets(topic).next, list[Message]()
    with client.create_reader(topic, start="earliest") as reader:
        while len(messages) < left:
            messages += reader.receive_batch(timeout_s=PATIENCE_S)
    return messages


def recreate(kafka: Kafka, topic: str, directory: Path) -> None:
    """Delete a topic, and create it again with as many messages."""
    command = kafka_here().command(directory, str(DELETE), kafka.address, topic)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "deleted\n", done.stderr
    fill(kafka, topic, records(range(60)), directory)


def test_the_checkpoint_of_another_topic_is_refused(
    kafka: Kafka, cluster: StandaloneProcess, admin: blocking.Admin, tmp_path: Path
) -> None:
    """Also if it has as many messages: then Spark alone would go on in silence."""
    for topic in ("orders", "others"):
        fill(kafka, topic, records(range(60)), tmp_path / "fill")
    admin.create_topic("orders", partitions=PARTITIONS)
    checkpoint = tmp_path / "checkpoint"

    def command(topic: str, url: str = kafka.address) -> list[str]:
        where = ("--source-url", f"kafka://{url}", "--checkpoint", str(checkpoint))
        return pipeline(cluster, "copy", topic, "orders", *where, "--name", "orders")

    assert done(command("orders"))["written"] == 60
    record = json.loads((checkpoint / "kafka.json").read_text())
    assert list(record["topics"]) == ["orders"]
    assert done(command("orders"))["written"] == 0

    finished = run(command("others"))
    assert finished.returncode == 1
    assert "is the checkpoint of orders of Kafka, and not of others: take a new" in finished.stderr

    recreate(kafka, "orders", tmp_path / "fill")
    finished = run(command("orders"))
    assert finished.returncode == 1
    assert "orders of Kafka was deleted and created again" in finished.stderr
    assert "take a new checkpoint (and a new --name)" in finished.stderr

    # A checkpoint of an earlier release has no record.
    (checkpoint / "kafka.json").unlink()
    finished = run(command("orders"))
    assert finished.returncode == 0, finished.stderr
    assert "is of an earlier release and does not say of which topics" in finished.stderr
    record = {**json.loads((checkpoint / "kafka.json").read_text()), "cluster": "another"}
    (checkpoint / "kafka.json").write_text(json.dumps(record))
    (checkpoint / ".kafka.json.crc").unlink(missing_ok=True)
    finished = run(command("orders"))
    assert finished.returncode == 1
    assert "is the checkpoint of the cluster another of Kafka" in finished.stderr


def test_what_cannot_be_copied_is_one_sentence(
    kafka: Kafka, cluster: StandaloneProcess, admin: blocking.Admin, tmp_path: Path
) -> None:
    fill(kafka, "small", records(range(1)), tmp_path / "fill")
    admin.create_topic("small", partitions=PARTITIONS)
    here = ("--source-url", f"kafka://{kafka.address}")

    def said(*words: str, with_jars: bool = True) -> str:
        checkpoint = ("--checkpoint", str(tmp_path / words[1]))
        finished = run(pipeline(cluster, *words, *checkpoint, *here, with_jars=with_jars))
        assert finished.returncode == 1, finished.stderr
        others = ("Copying ", "copy-", "Picked up JAVA_TOOL_OPTIONS", "Starting Spark.")
        lines = [each for each in finished.stderr.splitlines() if not each.startswith(others)]
        assert len(lines) == 1, finished.stderr
        return lines[0]

    missing = said("copy", "small", "not-created")
    assert "daybook topics create not-created --partitions NUMBER" in missing
    assert "spark.jars.packages" in said("copy", "small", "small", with_jars=False)
    assert "Kafka has no such topic" in said(
        "copy", "no-such-topic", "copies", "--partition-by", "key"
    )
