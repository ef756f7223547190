"""Bookies that are gone for good, on real processes: all copies come back; the next one goes."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from clients import ledgers
from clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("replication")]

PATIENCE_S = 180.0
ENTRIES = 300


@pytest.fixture(scope="module")
def four() -> Iterator[StandaloneProcess]:
    """A cluster with a bookie to spare; its tests use up the bookies in their order."""
    with StandaloneProcess(bookies=4, brokers=1) as cluster:
        yield cluster


def daybook(cluster: StandaloneProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clients.cli.main", *arguments]
    command += ["--zookeeper", cluster.zookeeper]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def wait_whole(cluster: StandaloneProcess) -> None:
    """Nobody is waited for; until every copy of every entry is there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert daybook(cluster, "autorecovery", "trigger").returncode == 0
        checked = daybook(cluster, "ledgers", "check", "--read", "--output", "json")
        if checked.returncode == 0:
            return
        assert time.monotonic() < deadline, checked.stdout + checked.stderr
        time.sleep(2)


def wait_said(cluster: StandaloneProcess) -> None:
    """The mark goes, and the worker tells what it has copied, a while after the last copy."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = json.loads(daybook(cluster, "autorecovery", "status", "--output", "json").stdout)
        copied = sum(worker["copied_entries"] for worker in status["workers"])
        if status["under_replicated"] == 0 and copied > 0:
            return
        assert time.monotonic() < deadline, status
        time.sleep(1)


def payload(ledger: int, entry: int) -> bytes:
    return b"%d %d " % (ledger, entry) * 40


def test_all_is_copied_again_and_the_next_one_may_go(four: StandaloneProcess) -> None:
    address = f"zk://{four.zookeeper}/ledgers"
    with ledgers.blocking.connect(address) as client:
        written: list[int] = []
        for number in range(6):
            with client.create(digest="hmac", password=b"pw") as writer:
                for entry in range(ENTRIES):
                    writer.append_soon(payload(number, entry))
            written.append(writer.ledger_id)
        wait_whole(four)

        four.local("kill", "bookie-1")
        wait_until_away(four, 1)
        wait_whole(four)
        wait_said(four)

        four.local("kill", "bookie-2")
        wait_until_away(four, 2)
        for number, ledger_id in enumerate(written):
            reader = client.open(ledger_id, recover=False, password=b"pw")
            entries = [(e.entry_id, bytes(e.data)) for e in reader.read()]
            assert entries == [(n, payload(number, n)) for n in range(ENTRIES)]


def wait_until_away(cluster: StandaloneProcess, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        health = json.loads(daybook(cluster, "bookies", "health", "--output", "json").stdout)
        if [bookie["state"] for bookie in health].count("away") == count:
            return
        assert time.monotonic() < deadline, health
        time.sleep(1)


def test_autorecovery_runs_without_a_bookie(four: StandaloneProcess) -> None:
    command = [sys.executable, "-m", "clients.cli.main", "autorecovery", "run", "--name", "alone"]
    command += ["--zookeeper", four.zookeeper]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["ready"], ready["name"]) == (True, "alone")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = json.loads(daybook(four, "autorecovery", "status", "--output", "json").stdout)
            if "alone" in [worker["worker"] for worker in status["workers"]]:
                break
            assert time.monotonic() < deadline, status
            time.sleep(1)
        process.terminate()
        assert process.wait(60) == 0
