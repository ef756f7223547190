"""`daybook produce` against a fake broker."""

import os
import signal
from pathlib import Path

import pytest
import trio
import trio.testing

from daybook.clients.cli.produce import _Pace
from daybook.wire.batch import SingleMetadata, iter_batch, parse_metadata, split_broker_metadata
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.cli.conftest import Daybook, FakeHost, meanwhile, until
from tests.clients.python.fake_broker import FakeCluster

TOPIC = "persistent://public/default/t"


def stored(cluster: FakeCluster, topic: str = TOPIC) -> list[tuple[SingleMetadata, bytes]]:
    found: list[tuple[SingleMetadata, bytes]] = []
    for entry in cluster.topics[topic].entries:
        rest = split_broker_metadata(memoryview(entry.payload))[2]
        metadata, body = parse_metadata(rest)
        assert metadata.HasField("num_messages_in_batch")
        found += iter_batch(body, entry.count)
    return found


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> int:
    """Yield the writing end of a pipe whose reading end is standard input."""
    read_end, write_end = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(read_end))
    return write_end


def test_each_line_is_a_message(daybook: Daybook, fake: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"%d\n" % n for n in range(5000)) + b"\nlast")
    code, out, err = daybook("produce", "t", str(file))
    assert (code, out) == (0, "")
    assert err.startswith(f"5,002 messages stored in {TOPIC}: ")
    assert [data for _, data in stored(fake)] == [*(b"%d" % n for n in range(5000)), b"", b"last"]


def test_lines_of_a_pipe_are_sent_as_they_come(
    daybook: Daybook, fake: FakeCluster, stdin: int
) -> None:
    def write() -> None:
        os.write(stdin, b"one\ntw")
        until(lambda: stored(fake))
        os.write(stdin, b"o\n")
        os.close(stdin)

    with meanwhile(write):
        assert daybook("produce", "t")[0] == 0
    assert [data for _, data in stored(fake)] == [b"one", b"two"]


def test_keys_and_properties(daybook: Daybook, fake: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"k,v,w\nnone\n,empty\n\xff,bytes\n")
    options = ("--key-separator", ",", "--property", "a=b=c", "--property", "d=")
    assert daybook("produce", "t", str(file), *options)[0] == 0
    found = stored(fake)
    assert [data for _, data in found] == [b"v,w", b"none", b"empty", b"bytes"]
    assert [single.key for single, _ in found] == ["k", None, None, "/w=="]
    assert all(single.properties == (("a", "b=c"), ("d", "")) for single, _ in found)


@pytest.mark.parametrize("options", [["--property", "x"], ["--key-separator", ""], ["--rate", "0"]])
def test_bad_options_are_usage_errors(daybook: Daybook, options: list[str]) -> None:
    assert daybook("produce", "t", "-", *options)[0] == 2


def test_compression_is_passed_on(daybook: Daybook, fake: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x" * 1000)
    assert daybook("produce", "t", str(tmp_path / "lines"), "--compression", "zstd")[0] == 0
    (entry,) = fake.topics[TOPIC].entries
    metadata, _ = parse_metadata(split_broker_metadata(memoryview(entry.payload))[2])
    assert metadata.compression == pb.ZSTD


async def test_the_rate_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    began, pace = trio.current_time(), _Pace(0.5)
    for sent in range(4):
        if pace.is_ahead(sent):
            await pace.wait(sent)
        assert trio.current_time() == began + 2 * sent
    assert not _Pace(None).is_ahead(10**9)


def test_a_line_that_is_refused_ends_it_and_says_where_to_go_on(
    daybook: Daybook, fake: FakeCluster, tmp_path: Path
) -> None:
    fake.brokers["b1"].max_message_size = 1000
    file = tmp_path / "lines"
    file.write_text("a\nb\n" + "x" * 2000 + "\nc\n")
    code, _, err = daybook("produce", "t", str(file))
    assert code == 1
    summary, sentence = err.splitlines()
    assert summary.startswith("2 messages stored")
    assert sentence.startswith("Error: Line 3 was not stored (")
    assert sentence.endswith("of 3 lines that were read 2 are. Send again from there: tail -n +3.")


def test_a_refused_producer_is_one_sentence(
    daybook: Daybook, fake: FakeCluster, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("a\n")
    refusal = (int(pb.TopicTerminatedError), "it was terminated")
    fake.brokers["b1"].refusals[pb.BaseCommand.PRODUCER].append(refusal)
    code, _, err = daybook("produce", "t", str(tmp_path / "lines"))
    assert (code, err) == (1, "Error: it was terminated (TopicTerminatedError).\n")


def test_a_line_without_end_is_not_kept_in_memory(
    daybook: Daybook, fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake
    monkeypatch.setattr("daybook.clients.cli.produce._LINE_BYTES_MAX", 1 << 20)
    (tmp_path / "lines").write_bytes(b"a\n" + bytes(2 << 20))
    code, _, err = daybook("produce", "t", str(tmp_path / "lines"))
    assert code == 1
    assert "Line 2 is longer" in err


def test_ctrl_c_waits_for_the_receipts_of_what_was_read(
    daybook: Daybook, fake_host: FakeHost, stdin: int
) -> None:
    fake, broker = fake_host.cluster, fake_host.cluster.brokers["b1"]
    broker.hold_receipts = True

    def interrupt() -> None:
        os.write(stdin, b"one\ntwo\nthr")
        until(lambda: stored(fake))
        os.kill(os.getpid(), signal.SIGINT)
        fake_host.token.run_sync_soon(broker.release_receipts)

    with meanwhile(interrupt):
        code, _, err = daybook("produce", "t")
    os.close(stdin)
    assert code == 130
    assert err.startswith("2 messages stored")
    assert err.count("\n") == 1


def test_without_a_broker_it_says_so_at_once(daybook: Daybook) -> None:
    code, _, err = daybook("produce", "t", "/dev/null", "--service-url", "pulsar://127.0.0.1:1")
    assert code == 1
    assert "No broker answers at pulsar://127.0.0.1:1" in err
