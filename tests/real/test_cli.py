"""The command line against a real cluster: messages come back, and its ledgers show them."""

import json
import os
import signal
import subprocess
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest

from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import DAYBOOK
from tests.real.commands import run_here

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
PATIENCE_S = 180.0


@pytest.fixture
def environ(cluster: StandaloneProcess) -> dict[str, str]:
    return {
        **os.environ,
        "DAYBOOK_SERVICE_URL": cluster.service_url,
        "DAYBOOK_ADMIN_URL": cluster.admin_url,
        "DAYBOOK_ZOOKEEPER": cluster.zookeeper,
    }


@pytest.fixture
def run(environ: dict[str, str]) -> Run:
    """Return a function that runs a command: in a process if it uses the standard streams."""

    def run(*arguments: str, text: str = "", code: int = 0) -> "subprocess.CompletedProcess[str]":
        if arguments[0] in ("produce", "consume"):
            done = subprocess.run(
                [*DAYBOOK, *arguments],
                input=text,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
                env=environ,
            )
        else:
            done = run_here(*arguments, environ=environ)
        assert done.returncode == code, done.stderr
        return done

    return run


def parsed(done: "subprocess.CompletedProcess[str]") -> Any:
    return json.loads(done.stdout)


def test_a_topic_from_its_creation_to_its_end(run: Run, topic: str) -> None:
    full = f"persistent://public/default/{topic}"
    run("topics", "create", topic, "--partitions", "2")
    assert "already" in run("topics", "create", topic, code=1).stderr
    listed = parsed(run("topics", "list", "--output", "json"))
    assert {"topic": full, "partitions": 2} in listed
    run("produce", topic, "--key-separator", ":", text="".join(f"{n}:v{n}\n" for n in range(500)))
    out = run("consume", topic, "--from", "earliest", "-n", "500", "--print-key").stdout
    assert sorted(out.splitlines()) == sorted(f"{n}\tv{n}" for n in range(500))
    stats = parsed(run("topics", "stats", topic, "--output", "json"))
    assert len(stats["partitions"]) == 2
    assert "partitions" in run("topics", "stats", topic).stdout
    run("topics", "delete", topic, "--force", "--yes")
    assert full not in run("topics", "list").stdout
    run("topics", "stats", topic, code=1)


def test_pipes_end_as_pipes_do(environ: dict[str, str], topic: str) -> None:
    python = " ".join(DAYBOOK)
    script = (
        f"seq 1000 | {python} produce {topic} --compression zstd && "
        f"{python} consume {topic} --from earliest | head -3 && "
        f"{python} consume {topic} --from 990 -n 10 | tail -1"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environ,
    )
    assert (done.returncode, done.stdout) == (0, "1\n2\n3\n1000\n"), done.stderr
    assert done.stderr.startswith("1,000 messages stored")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
def test_a_subscription_remembers_what_was_written(run: Run, topic: str, kind: str) -> None:
    options = ("--subscription", "s", "--type", kind, "--from", "earliest")
    run("produce", topic, text="".join(f"{n}\n" for n in range(100)))
    first = run("consume", topic, *options, "-n", "37").stdout
    then = run("consume", topic, *options, "-n", "63").stdout
    assert (first + then).split() == [str(n) for n in range(100)]


def test_ctrl_c_acknowledges_what_was_written(
    run: Run, environ: dict[str, str], topic: str
) -> None:
    options = ("--subscription", "s", "--from", "earliest")
    run("produce", topic, text="one\ntwo\n")
    with subprocess.Popen(
        [*DAYBOOK, "consume", topic, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    ) as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        assert [consuming.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
        run("produce", topic, text="three\n")
        assert consuming.stdout.readline() == "three\n"
        run("produce", topic, text="four\n")
        assert consuming.stdout.readline() == "four\n"
        consuming.send_signal(signal.SIGINT)
        assert (consuming.wait(PATIENCE_S), consuming.stderr.read()) == (130, "")
    run("produce", topic, text="five\n")
    left = run("consume", topic, *options, "-n", "1").stdout
    assert left in ("five\n", "four\n")  # the last one may have been read before it was written


def test_ledgers_hold_what_was_sent(run: Run, topic: str) -> None:
    run("produce", topic, text="hello\n")
    name = f"public/default/persistent/{topic}"
    listed = parsed(run("ledgers", "list", "--output", "json"))
    (ledger,) = [each["ledger"] for each in listed if each["holds"] == name]
    shown = parsed(run("ledgers", "show", str(ledger), "--output", "json"))
    assert len(shown["fragments"][0]["bookies"]) == 3
    assert run("ledgers", "show", str(ledger)).stdout.startswith("ledger ")
    # The newest entry of an open ledger is confirmed by the next one.
    run("produce", topic, text="again\n")
    first, *_ = run("ledgers", "read", str(ledger), "--output", "json").stdout.splitlines()
    entry = json.loads(first)
    assert (entry["entry"], entry["first_offset"], entry["messages"]) == (0, 0, 1)
    assert b"hello" in b64decode(entry["payload"])
    assert "hello" in run("ledgers", "read", str(ledger), "--to", "0").stdout
    assert run("consume", topic, "--from", "earliest", "-n", "2").stdout == "hello\nagain\n"


def test_bookies_are_listed(run: Run, cluster: StandaloneProcess) -> None:
    rows = parsed(run("bookies", "list", "--output", "json"))
    assert {row["address"] for row in rows} == {
        each["address"] for each in cluster.ready["bookies"]
    }
    assert {row["state"] for row in rows} == {"writable"}
