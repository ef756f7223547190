"""`daybook consume` against a fake broker, on real pipes."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daybook import blocking
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.cli.conftest import Daybook, meanwhile, read_pipe
from tests.clients.python.fake_broker import FakeCluster

TOPIC = "persistent://public/default/t"


@pytest.fixture
def filled(fake: FakeCluster) -> FakeCluster:
    """Five messages, each with an entry of its own, k0 to k4."""
    with blocking.connect(fake.url) as client, client.create_producer("t") as producer:
        for n in range(5):
            producer.send(b"v%d" % n, key=f"k{n}", properties={"n": str(n)})
    return fake


@contextmanager
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield the reading end of a pipe whose writing end is standard output."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stdout)
        yield read_end


def read_lines(fd: int, count: int) -> None:
    got = b""
    while got.count(b"\n") < count:
        got += read_pipe(fd, 100)


def acked(cluster: FakeCluster) -> set[int]:
    return cluster.topics[TOPIC].subscriptions["s"].acked


def test_messages_are_lines(daybook: Daybook, filled: FakeCluster) -> None:
    del filled
    code, out, err = daybook("consume", "t", "--from", "earliest", "-n", "5")
    assert (code, out, err) == (0, "v0\nv1\nv2\nv3\nv4\n", "")


def test_it_starts_at_an_offset(daybook: Daybook, filled: FakeCluster) -> None:
    del filled
    assert daybook("consume", "t", "--from", "3", "-n", "2")[1] == "v3\nv4\n"


def test_keys_go_first_if_wanted(daybook: Daybook, filled: FakeCluster) -> None:
    del filled
    options = ("--from", "earliest", "-n", "2", "--print-key")
    assert daybook("consume", "t", *options)[1] == "k0\tv0\nk1\tv1\n"
    assert daybook("consume", "t", *options, "--key-separator", "=")[1] == "k0=v0\nk1=v1\n"


def test_json_has_all_that_is_known(daybook: Daybook, filled: FakeCluster) -> None:
    with blocking.connect(filled.url) as client, client.create_producer("t") as producer:
        producer.send(b"\xff")
    code, out, _ = daybook("consume", "t", "--from", "4", "-n", "2", "--output", "json")
    assert code == 0
    first, second = map(json.loads, out.splitlines())
    assert first.pop("publish_time_ms") > 0
    assert first == {
        "topic": TOPIC,
        "offset": 4,
        "id": "7:4:-1:0",
        "key": "k4",
        "value": "v4",
        "properties": {"n": "4"},
        "event_time_ms": None,
        "redelivery_count": 0,
    }
    assert second["value_base64"] == "/w=="


def test_a_subscription_goes_on_where_it_ended(daybook: Daybook, filled: FakeCluster) -> None:
    options = ("--subscription", "s", "--from", "earliest")
    assert daybook("consume", "t", *options, "-n", "2")[1] == "v0\nv1\n"
    assert acked(filled) == {0, 1}
    assert daybook("consume", "t", *options, "--type", "exclusive", "-n", "3")[1] == "v2\nv3\nv4\n"
    assert acked(filled) == set(range(5))


def test_a_terminated_topic_has_an_end(daybook: Daybook, filled: FakeCluster) -> None:
    filled.topics[TOPIC].terminated = True
    assert daybook("consume", "t", "--from", "3")[:2] == (0, "v3\nv4\n")


def test_what_is_produced_comes_back(daybook: Daybook, fake: FakeCluster, tmp_path: Path) -> None:
    del fake
    text = "a\tone\n\ttwo\nb\t\n"
    (tmp_path / "lines").write_text(text)
    assert daybook("produce", "t", str(tmp_path / "lines"), "--key-separator", "\t")[0] == 0
    assert daybook("consume", "t", "--from", "earliest", "-n", "3", "--print-key")[1] == text


def test_it_ends_quietly_when_its_reader_leaves(
    daybook: Daybook, filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends although no further message comes."""
    del filled
    with pipe(monkeypatch) as output:

        def read_a_little() -> None:
            assert read_pipe(output, 3) == b"v0\n"
            os.close(output)

        with meanwhile(read_a_little):
            code, _, err = daybook("consume", "t", "--from", "earliest")
    assert (code, err) == (0, "")


def test_ctrl_c_ends_it_quietly_and_keeps_what_was_acknowledged(
    daybook: Daybook, filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipe(monkeypatch) as output:

        def interrupt() -> None:
            read_lines(output, 5)
            with blocking.connect(filled.url) as client, client.create_producer("t") as producer:
                producer.send(b"later")
            read_lines(output, 1)  # So those before it are acknowledged, if only to the client.
            os.kill(os.getpid(), signal.SIGINT)

        with meanwhile(interrupt):
            code, _, err = daybook("consume", "t", "--from", "earliest", "--subscription", "s")
        os.close(output)
    assert (code, err) == (130, "")
    assert acked(filled) >= set(range(5))  # the last line may have been read while it was written


def test_what_is_not_written_is_not_acknowledged(
    daybook: Daybook, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.connect(fake.url) as client, client.create_producer("t") as producer:
        producer.send(bytes(1 << 20))  # more than a pipe holds
    with pipe(monkeypatch) as output:

        def interrupt() -> None:
            assert read_pipe(output, 1)  # it writes
            os.kill(os.getpid(), signal.SIGINT)

        with meanwhile(interrupt):
            code, _, err = daybook("consume", "t", "--from", "earliest", "--subscription", "s")
        os.close(output)
    assert (code, err) == (130, "")
    assert acked(fake) == set()


def test_a_message_that_cannot_be_read_is_left_out(daybook: Daybook, filled: FakeCluster) -> None:
    entry = filled.topics[TOPIC].entries[1]
    entry.payload = entry.payload[:-1] + b"?"
    options = ("--from", "earliest", "--subscription", "s", "-n", "4")
    code, out, err = daybook("consume", "t", *options)
    assert (code, out) == (1, "v0\nv2\nv3\nv4\n")
    assert "left out: 7:1:" in err
    assert "Error: 1 messages could not be read and were left out." in err
    assert acked(filled) == {0, 2, 3, 4}


def ended_by_silence(daybook: Daybook, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Return the line that `consume` reports if no message comes; then end it by Ctrl-C."""
    said: list[str] = []

    def note(line: str, *, err: bool) -> None:
        assert err
        said.append(line)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("daybook.clients.cli.consume.click.echo", note)
    code, out, err = daybook("consume", *words)
    assert (code, out, err) == (130, "", "")
    (line,) = said
    return line


def test_it_says_that_it_waits_in_a_topic_that_did_not_exist(
    daybook: Daybook, fake: FakeCluster, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del hurried
    refusals = fake.brokers["b1"].refusals[pb.BaseCommand.PARTITIONED_METADATA]
    refusals.append((pb.TopicNotFound, "there is no topic nothere"))
    said = ended_by_silence(daybook, monkeypatch, "nothere", "-n", "1", "--from", "earliest")
    assert said == (
        "Waiting for messages in persistent://public/default/nothere. The topic did not exist and"
        " was created."
    )


def test_it_says_that_it_waits_beyond_the_end(
    daybook: Daybook, filled: FakeCluster, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del filled, hurried
    said = ended_by_silence(daybook, monkeypatch, "t", "--from", "999999")
    assert said == (
        f"Waiting for messages in {TOPIC} from offset 999999 on. The topic holds the offsets 0 to"
        " 4: 999999 is beyond the end."
    )


def test_it_says_that_it_waits_for_new_messages(
    daybook: Daybook, filled: FakeCluster, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del hurried
    said = ended_by_silence(daybook, monkeypatch, "t")
    assert (
        said == f"Waiting for messages in {TOPIC}. The topic holds 5, which --from earliest reads."
    )
    said = ended_by_silence(daybook, monkeypatch, "t", "--subscription", "s")
    assert said == (
        f"Waiting for messages of the subscription s in {TOPIC}. The topic holds 5, and none of"
        " them is to be delivered now."
    )
    filled.topics[TOPIC].entries.clear()
    said = ended_by_silence(daybook, monkeypatch, "t", "--from", "earliest")
    assert said == f"Waiting for messages in {TOPIC}. The topic holds no messages."


def test_the_help_says_what_is_committed_and_how_consumers_share(daybook: Daybook) -> None:
    said = " ".join(daybook("consume", "--help")[1].split())
    assert "Without --subscription nothing is committed" in said
    for kind in ("exclusive:", "failover:", "shared:", "key_shared:"):
        assert kind in said


def test_an_offset_needs_one_partition(daybook: Daybook, fake: FakeCluster) -> None:
    fake.partitions["persistent://public/default/p"] = 2
    code, _, err = daybook("consume", "p", "--from", "7")
    assert code == 1
    assert "persistent://public/default/p-partition-0" in err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--from", "yesterday"], 2),
        (["--from", "-3"], 2),
        (["-n", "0"], 2),
        (["--from", "3", "--subscription", "s"], 1),
        (["--type", "shared"], 1),
        (["--service-url", "http://127.0.0.1:1"], 1),
        (["--service-url", "pulsar://127.0.0.1:1"], 1),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(daybook: Daybook, options: list[str], code: int) -> None:
    found, out, err = daybook("consume", "t", *options)
    assert (found, out) == (code, "")
    assert err.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in err
