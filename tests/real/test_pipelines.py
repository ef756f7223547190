"""Pipelines on a real cluster: copies, steps, dead letters, a clean end, a restart."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from daybook.clients.pipelines.copies import prepare_target
from daybook.clients.pipelines.run import PipelineError, Result, Stop, run
from daybook.clients.pipelines.spec import (
    Cluster,
    CopySource,
    Pipeline,
    SpecError,
    copy_pipeline,
    read_pipeline,
)
from daybook.clients.pipelines.steps import frames
from daybook.clients.python import blocking
from daybook.clients.python.messages import Message
from daybook.clients.spark.header_marks import (
    as_properties,
    header_of,
    kafka_headers,
    property_of,
)
from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

PATIENCE_S = 300
ATTEMPTS = 10
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # makes Spark start faster


def there(cluster: StandaloneProcess) -> Cluster:
    return Cluster(cluster.service_url, cluster.admin_url)


def until_end(spark: SparkSession, pipeline: Pipeline) -> Result:
    """Run a pipeline in this process, to the present end of its source."""
    lines: list[str] = []
    for _ in range(ATTEMPTS):
        try:
            return run(spark, pipeline, until_end=True, stop=Stop(), say=lines.append)
        except PipelineError as error:
            # Spark gives a Python process ten seconds to start, and a busy machine needs more.
            if "failed to connect back" not in str(error):
                raise
    raise AssertionError(f"no Python process of Spark has started in {ATTEMPTS} attempts")


def read(client: blocking.Client, topic: str) -> list[list[Message]]:
    """Return the messages of each partition."""
    partitions = client.partitions(topic, create=False)
    names = [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
    return [read_partition(client, name) for name in names]


def read_partition(client: blocking.Client, name: str) -> list[Message]:
    found: list[Message] = []
    left = client.offsets(name).next
    with client.create_reader(name, start="earliest") as reader:
        while len(found) < left:
            found += reader.receive_batch(timeout_s=PATIENCE_S)
    return found


def content(message: Message) -> tuple[Any, ...]:
    """Return what a copy has to preserve."""
    return (
        *(message.is_null, message.data, message.key, message.key_is_bytes),
        *(message.properties, message.event_time_ms),
    )


def fill(client: blocking.Client, topic: str, numbers: range) -> None:
    keys: list[str | bytes | None] = ["a", "b", b"a", b"\xff", None, "\N{GREEK SMALL LETTER ALPHA}"]
    with client.create_producer(topic) as producer:
        for i in numbers:
            producer.send_nowait(
                None if i % 50 == 7 else b"%d" % i,
                key=keys[i % len(keys)],
                properties={"n": str(i)} if i % 2 else {},
                event_time_ms=1000 + i if i % 3 else None,
            )
        producer.flush()


def test_a_copy_has_the_messages_of_each_partition_in_order_and_a_mirror_goes_on(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    topic: str,
    tmp_path: Path,
) -> None:
    admin.create_topic(topic, partitions=3)
    fill(client, topic, range(1000))
    target, checkpoint = f"{topic}-copy", str(tmp_path / "checkpoint")
    copy = copy_pipeline(
        CopySource("daybook", cluster.service_url, topic),
        target,
        there(cluster),
        checkpoint,
        rows_per_batch=600,
    )
    assert "3 partitions to 3" in prepare_target(copy, same_partitions=True)
    done = until_end(spark, copy)
    assert (done.rows.read, done.rows.written, done.rows.behind) == (1000, 1000, 0)
    assert done.rows.batches >= 2
    fill(client, topic, range(1000, 1200))

    mirror = subprocess.Popen(
        [
            *(sys.executable, "-m", "daybook.clients.cli.main", "pipeline", "mirror"),
            *(topic, target, "--checkpoint", checkpoint, "--output", "json"),
            *("--service-url", cluster.service_url, "--admin-url", cluster.admin_url),
            *(
                "--spark",
                "spark.master=local[2]",
                "--spark",
                f"spark.driver.extraJavaOptions={FAST}",
            ),
            *("--spark", "spark.python.authenticate.socketTimeout=120s"),
            *("--picture", str(tmp_path / "mirror.svg")),
        ],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wanted = sum(each.next for each in client.offset_ranges(topic))
        deadline = time.monotonic() + PATIENCE_S
        while sum(each.next for each in client.offset_ranges(target)) < wanted:
            assert mirror.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        mirror.send_signal(signal.SIGINT)
        out, err = mirror.communicate(timeout=PATIENCE_S)
    finally:
        mirror.kill()
    assert mirror.returncode == 0, err
    assert json.loads(out)["written"] == 200
    assert "stopping after the batch under way" in err
    picture = (tmp_path / "mirror.svg").read_text()
    assert f"{topic} \u2192 {target}" in picture
    assert re.search('<g id="rate">\\s*<path', picture)

    before, after = read(client, topic), read(client, target)
    assert [[content(m) for m in part] for part in after] == [
        [content(m) for m in part] for part in before
    ]
    # A new checkpoint would copy everything again.
    again = copy_pipeline(
        CopySource("daybook", cluster.service_url, topic),
        target,
        there(cluster),
        str(tmp_path / "x"),
    )
    with pytest.raises(PipelineError, match="daybook sinks forget"):
        until_end(spark, again)
    assert [len(part) for part in read(client, target)] == [len(part) for part in before]


READINGS = """\
name = "{topic}"
checkpoint = "state"
where = "degrees < 100"
dead_letters = "{topic}-broken"

[source]
topic = "{topic}"

[sink]
topic = "{topic}-by-minute"

[parse]
schema = "id STRING NOT NULL, sensor STRING, degrees DOUBLE, at TIMESTAMP"

[time]
column = "at"
late = "2 minutes"

[deduplicate]
by = ["id"]

[window]
size = "1 minute"
by = ["sensor"]
columns.hottest = "max(degrees)"
columns.readings = "count(*)"
"""


def test_a_copy_that_is_asked_to_stop_ends_after_the_batch_under_way(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    admin: blocking.Admin,
    topic: str,
    tmp_path: Path,
) -> None:
    """One trigger of Spark has all batches of a copy, and only the present batch is waited for."""
    admin.create_topic(topic, partitions=1)
    fill(client, topic, range(1000))
    pipeline = copy_pipeline(
        CopySource("daybook", cluster.service_url, topic),
        f"{topic}-copy",
        there(cluster),
        str(tmp_path / "checkpoint"),
        rows_per_batch=50,
    )
    prepare_target(pipeline, same_partitions=True)
    stop = Stop()

    def ask_when_begun() -> None:
        while not client.offset_ranges(f"{topic}-copy-partition-0")[0].next:
            time.sleep(0.05)
        stop.ask()

    asking = threading.Thread(target=ask_when_begun)
    asking.start()
    done = run(spark, pipeline, until_end=True, stop=stop, say=lambda _: None)
    asking.join()
    assert 0 < done.rows.written < 1000
    until_end(spark, pipeline)
    (messages,) = read(client, f"{topic}-copy")
    assert [content(each) for each in messages] == [content(m) for m in read(client, topic)[0]]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('where = "', 'where = "degrees >> > 1 and ', "line 3: where: .*[Ss]yntax"),
        ('where = "', 'where = "degres > 1 and ', "line 3: where: .*degres"),
        ('column = "at"', 'column = "att"', r"line [0-9]+: \[time\] column: .*att"),
        ('by = ["id"]', 'by = ["ident"]', r"line [0-9]+: \[deduplicate\] by: .*ident"),
        ("max(", "maxx(", r"line [0-9]+: \[window.columns\] \w+: .*maxx"),
    ],
)
def test_wrong_sql_is_named_with_its_step(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    topic: str,
    tmp_path: Path,
    before: str,
    after: str,
    says: str,
) -> None:
    with client.create_producer(topic) as producer:
        producer.send(reading(1, 0))
    text = READINGS.format(topic=topic)
    assert before in text
    file = tmp_path / "pipeline.toml"
    file.write_text(text.replace(before, after))
    with pytest.raises(SpecError, match=says):
        frames(spark, read_pipeline(file, there(cluster)))


def reading(number: int, second: int, **others: Any) -> bytes:
    at = f"2026-01-01T10:{second // 60:02}:{second % 60:02}Z"
    record = {"id": f"{number}", "sensor": f"s{number % 2}", "degrees": number, "at": at}
    return json.dumps(record | others).encode()


def test_rows_are_parsed_filtered_deduplicated_and_aggregated_and_the_others_are_dead_letters(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    topic: str,
    tmp_path: Path,
) -> None:
    broken = {
        b"no JSON": "not an object of JSON",
        b'{"id": "1"': "not JSON of the schema",
        b'{"id": "1"} and more': "something behind its object",
        b'[{"id": "1"}]': "not an object of JSON",
        b'{"id": "\xff"}': "UTF-8",
        b'{"id": "1", "degrees": "hot", "at": "2026-01-01T10:00:00Z"}': "not JSON of the schema",
        reading(1, 0, id=None): "the field id is missing",
        reading(1, 0, at=None): "the time of the row is null",
    }
    with client.create_producer(topic) as producer:
        for number in range(30):
            producer.send(reading(number, 4 * number), key="k")
            producer.send(reading(number, 4 * number))  # the same once more
        producer.send(reading(99, 30, degrees=1000))
        for value in broken:
            producer.send(value, key=b"\x01", properties={"n": "1"}, event_time_ms=5)
        producer.send(None, key="tombstone")
        producer.send(reading(50, 600))  # It ends the windows before it.
    file = tmp_path / "pipeline.toml"
    file.write_text(READINGS.format(topic=topic))
    pipeline = read_pipeline(file, there(cluster))
    done = until_end(spark, pipeline)
    assert done.letters is not None
    assert (done.rows.read, done.rows.written) == (60 + 1 + len(broken) + 2, 4)
    assert done.letters.written == len(broken) + 1
    (messages,) = read(client, f"{topic}-by-minute")
    found = sorted((json.loads(m.data or b"") for m in messages), key=lambda each: str(each))
    assert {(each["sensor"], each["window_start"][11:19]): each["readings"] for each in found} == {
        ("s0", "10:00:00"): 8,
        ("s1", "10:00:00"): 7,
        ("s0", "10:01:00"): 7,
        ("s1", "10:01:00"): 8,
    }
    assert {each["hottest"] for each in found} == {14.0, 13.0, 28.0, 29.0}
    assert {m.key for m in messages} == {"s0", "s1"}

    (letters,) = read(client, f"{topic}-broken")
    assert [m.data for m in letters if not m.is_null] == list(broken)
    for letter, (value, reason) in zip(letters, broken.items(), strict=False):
        assert reason in letter.properties["DEAD_LETTER_REASON"], value
        assert letter.properties["REAL_TOPIC"] == topic
        assert letter.properties["REAL_OFFSET"].isdigit()
        assert letter.properties["n"] == "1"
        assert (letter.key_bytes, letter.key_is_bytes, letter.event_time_ms) == (b"\x01", True, 5)
    assert letters[-1].is_null
    assert letters[-1].properties["DEAD_LETTER_REASON"] == "the value is null, a tombstone"
    assert until_end(spark, pipeline).rows.read == 0, "everything was read"

    # Without a topic for them, a message that is no row stops the query.
    file.write_text(file.read_text().replace("dead_letters =", "# ").replace('"state"', '"other"'))
    strict = replace(read_pipeline(file, there(cluster)), name=f"{topic}-strict")
    with pytest.raises(
        PipelineError, match=r"offset 61 of partition 0 of .* is no row \(the value"
    ):
        until_end(spark, strict)


def test_a_command_shows_its_own_sentences_and_nothing_of_spark(
    cluster: StandaloneProcess, client: blocking.Client, topic: str, tmp_path: Path
) -> None:
    """A topic that is missing, the end by a signal, and another checkpoint, which the sink refuses.

    The signal comes to all processes of the command, as from systemd, `timeout` and a terminal.
    """
    progress = re.compile(
        r"[\w-]+: [\d,]+ messages read, .*\.|Picked up JAVA_TOOL_OPTIONS.*|Starting Spark\."
    )

    def said(*words: str, stop_after: str = "") -> tuple[int, list[str]]:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "daybook.clients.cli.main", "pipeline", *words),
                *("--service-url", cluster.service_url, "--admin-url", cluster.admin_url),
                *("--spark", "spark.master=local[2]"),
                *("--spark", f"spark.driver.extraJavaOptions={FAST}"),
                *("--spark", "spark.python.authenticate.socketTimeout=120s"),
            ],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stderr is not None
        lines: list[str] = []
        with process:
            for line in process.stderr:
                lines.append(line.rstrip("\n"))
                if stop_after and stop_after in line:
                    os.killpg(process.pid, signal.SIGTERM)
                    stop_after = ""
        return process.returncode, [each for each in lines if not progress.fullmatch(each)]

    file = tmp_path / "pipeline.toml"
    text = 'name = "{0}"\ncheckpoint = "c"\n[source]\ntopic = "{0}"\n[sink]\ntopic = "{0}-o"\n'
    file.write_text(text.format(topic))
    missing = (
        f"Error: the topic persistent://public/default/{topic} does not exist (TopicNotFound)."
    )
    assert said("run", str(file), "--available-now") == (1, [missing])

    fill(client, topic, range(10))
    copy = ("copy", topic, f"{topic}-copy", "--checkpoint")
    mirror = ("mirror", *copy[1:], str(tmp_path / "first"))
    code, lines = said(*mirror, stop_after="10 messages read")
    assert code == 0, lines
    assert len(lines) == 2, lines
    assert lines[0].startswith("Copying")
    assert "stopping after the batch under way" in lines[1]
    code, (_, refused) = said(*copy, str(tmp_path / "second"))
    assert code == 1
    assert re.fullmatch(
        r"Error: .*: the sink belongs to the query .*`daybook sinks forget`.*", refused
    )


def test_headers_of_kafka_become_properties_and_come_back(spark: SparkSession) -> None:
    """The expressions of Spark do as `property_of` and `header_of`."""
    names = ["source", "", "\N{GREEK SMALL LETTER ALPHA}", *("daybook.base64:x", "daybook.null:")]
    values = [
        None,
        b"",
        b"text",
        b"\xff\0",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        bytes(range(256)),
        b"/wA=",
    ]
    given = [[(name, value) for value in values] for name in names]
    kind = "headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame([(each,) for each in given], kind)
    marked = frame.select(as_properties(F.col("headers")).alias("headers")).cache()
    found = [[(key, bytes(value).decode()) for key, value in row[0]] for row in marked.collect()]
    assert found == [[property_of(*header) for header in each] for each in given]
    again = marked.select(kafka_headers("headers").alias("headers")).collect()
    assert [[(key, value and bytes(value)) for key, value in row[0]] for row in again] == given
    strange = [("daybook.base64:x", each) for each in (b"no base64", b"/wA", b"/wB=", b"\n")]
    strange += [("daybook.null:x", b"y"), ("x", b"/wA=")]
    frame = spark.createDataFrame([(strange,)], kind).select(kafka_headers("headers"))
    assert [(key, bytes(value)) for key, value in frame.collect()[0][0]] == [
        header_of(name, value.decode()) for name, value in strange
    ]
