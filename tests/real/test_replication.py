"""Bookies lost for good, and disks that rot, on real processes: all copies are restored."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from daybook.clients import ledgers
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness import processes
from tests.real.commands import run_here

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("replication")]

PATIENCE_S = 180.0
POLL_S = 0.3
ENTRIES = 300
# A bookie that is killed is away when its session ends.
SHORT_SESSIONS = ("--set", "bookie.session_timeout_s=4")


@pytest.fixture(scope="module")
def four() -> Iterator[StandaloneProcess]:
    """Run a cluster with a bookie to spare; its tests use up the bookies, in their order."""
    with StandaloneProcess(bookies=4, brokers=1, options=SHORT_SESSIONS) as cluster:
        yield cluster


def daybook(cluster: StandaloneProcess, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_here(*words, "--zookeeper", cluster.zookeeper)


def wait_whole(cluster: StandaloneProcess) -> None:
    """Wait, without a delay for lost bookies, until every copy of every entry exists."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert daybook(cluster, "autorecovery", "trigger").returncode == 0
        checked = daybook(cluster, "ledgers", "check", "--read", "--output", "json")
        if checked.returncode == 0:
            return
        assert time.monotonic() < deadline, checked.stdout + checked.stderr
        time.sleep(POLL_S)


def wait_said(cluster: StandaloneProcess) -> None:
    """Wait for the end of the mark and the worker's report, which follow the last copy."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = json.loads(daybook(cluster, "autorecovery", "status", "--output", "json").stdout)
        copied = sum(worker["copied_entries"] for worker in status["workers"])
        if status["under_replicated"] == 0 and copied > 0:
            return
        assert time.monotonic() < deadline, status
        time.sleep(POLL_S)


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Iterator[StandaloneProcess]:
    """Run a cluster with the number of bookies that the test asks for, which it may use up."""
    with StandaloneProcess(bookies=request.param, brokers=1, options=SHORT_SESSIONS) as cluster:
        yield cluster


def part_of(cluster: StandaloneProcess, bookie: str) -> dict[str, Any]:
    """Return the process of the bookie."""
    return next(part for part in cluster.parts() if part.get("address") == bookie)


def flip_bits(cluster: StandaloneProcess, part: str, payloads: list[bytes]) -> int:
    """Flip bits in these payloads, wherever they are on the bookie's disk; return their number."""
    flipped = 0
    for path in sorted((cluster.directory / part).rglob("*.log")):
        content = path.read_bytes()
        with path.open("r+b") as file:
            for each in payloads:
                at = content.find(each)
                if at >= 0:
                    file.seek(at + 5)
                    file.write(bytes([content[at + 5] ^ 0x10]))
                    flipped += 1
    return flipped


@pytest.mark.parametrize("fresh", [3], indirect=True)
def test_bits_that_flip_on_a_disk_are_copied_back(fresh: StandaloneProcess) -> None:
    """There is no other bookie: the damaged one gets its entries again, in place."""
    with ledgers.blocking.connect(f"zk://{fresh.zookeeper}/ledgers") as client:
        with client.create() as writer:
            for entry in range(ENTRIES):
                writer.append_soon(payload(0, entry))
        ledger = str(writer.ledger_id)
        wait_whole(fresh)
        shown = json.loads(daybook(fresh, "ledgers", "show", ledger, "--output", "json").stdout)
        bookie = shown["fragments"][0]["bookies"][1]
        part = part_of(fresh, bookie)
        fresh.local("stop", part["name"])  # its reads come from the disk from then on
        assert flip_bits(fresh, part["name"], [payload(0, n) for n in (7, 8, 200)]) == 3
        fresh.local("start", part["name"])
        wait_until_away(fresh, 0)
        request = Request(f"{part['http_url']}/api/v1/bookie/scrub", data=b"{}", method="PUT")
        with urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        wait_said(fresh)
        wait_whole(fresh)
        after = json.loads(daybook(fresh, "ledgers", "show", ledger, "--output", "json").stdout)
        assert after["fragments"] == shown["fragments"]


@pytest.mark.parametrize("fresh", [4], indirect=True)
def test_a_ledger_that_nobody_can_recover_is_ended_with_loss_accepted(
    fresh: StandaloneProcess,
) -> None:
    with ledgers.blocking.connect(f"zk://{fresh.zookeeper}/ledgers") as client:
        writer = client.create()
        for entry in range(20):
            writer.append(payload(0, entry))
        ledger = str(writer.ledger_id)
        time.sleep(1)  # the third copy of the last entry
        writer.abandon()
        shown = json.loads(daybook(fresh, "ledgers", "show", ledger, "--output", "json").stdout)
        gone = sorted(shown["fragments"][0]["bookies"][:2])
        for bookie in gone:
            fresh.local("kill", part_of(fresh, bookie)["name"])
        wait_until_away(fresh, 2)
        refused = daybook(fresh, "ledgers", "recover", ledger)
        assert refused.returncode == 1
        assert "--accept-loss" in refused.stderr
        command = ("ledgers", "recover", ledger, "--accept-loss", "--yes", "--output", "json")
        accepted = daybook(fresh, *command)
        assert accepted.returncode == 0, accepted.stderr
        record = json.loads(accepted.stdout)
        assert (record["state"], record["entries"], record["lost_from"]) == ("CLOSED", 20, 20)
        assert record["given_up"] == ", ".join(gone)
        reader = client.open(int(ledger), recover=False)
        assert [bytes(e.data) for e in reader.read()] == [payload(0, n) for n in range(20)]


ROUNDS = int(os.environ.get("OLD_IMAGES", "1"))  # repetitions of the next test


@pytest.mark.parametrize("fresh", [3], indirect=True)
def test_an_older_copy_of_a_directory_loses_nothing(fresh: StandaloneProcess) -> None:
    """One bookie gets it, another one is killed, and the entries that both had are recovered."""
    with ledgers.blocking.connect(f"zk://{fresh.zookeeper}/ledgers") as client:
        for number in range(ROUNDS):
            wait_until_away(fresh, 0)
            writer = client.create()
            writer.append(payload(number, 0))
            old, other, _ = (part_of(fresh, each) for each in writer.metadata.ensemble_at(0))
            data = fresh.directory / old["name"]
            copy = data.with_name("copy")
            fresh.local("stop", old["name"])
            shutil.copytree(data, copy)
            fresh.local("start", old["name"])
            wait_until_away(fresh, 0)
            for entry in range(1, ENTRIES):
                writer.append_soon(payload(number, entry))
            writer.append(payload(number, ENTRIES))
            for part in (old, other):
                fresh.local("kill", part["name"])
            writer.abandon()
            shutil.rmtree(data)
            copy.rename(data)
            fresh.local("start", old["name"])
            with pytest.raises(ledgers.LedgerError):
                client.open(writer.ledger_id, recover=True)
            fresh.local("start", other["name"])
            deadline = time.monotonic() + PATIENCE_S
            while (recovered := recovered_ledger(client, writer.ledger_id)) is None:
                assert time.monotonic() < deadline, "nobody can end it"
                time.sleep(POLL_S)
            assert recovered == [payload(number, n) for n in range(ENTRIES + 1)]
            wait_whole(fresh)


def recovered_ledger(client: ledgers.blocking.Client, ledger_id: int) -> list[bytes] | None:
    try:
        reader = client.open(ledger_id, recover=True)
        return [bytes(each.data) for each in reader.read()]
    except ledgers.LedgerError:
        return None


def payload(ledger: int, entry: int) -> bytes:
    return b"%d %d " % (ledger, entry) * 40


def test_a_bookie_gets_new_disks_while_the_cluster_serves(four: StandaloneProcess) -> None:
    """The bookie is emptied, stopped, erased, started and readmitted; all entries exist."""
    with ledgers.blocking.connect(f"zk://{four.zookeeper}/ledgers") as client:
        written: list[int] = []
        for number in range(4):
            with client.create() as writer:
                for entry in range(ENTRIES):
                    writer.append_soon(payload(number, entry))
            written.append(writer.ledger_id)
        frozen = client.create()  # its writer is abandoned, with a fence on each of its bookies
        frozen.append(b"before")
        client.open(frozen.ledger_id, recover=True)
        bookie = client.metadata(frozen.ledger_id).ensemble_at(0)[0]
        part = part_of(four, bookie)
        command = ("bookies", "replace-disk", bookie, "--output", "json")

        emptied = daybook(four, *command, "--no-wait")
        assert emptied.returncode == 0, emptied.stderr
        assert json.loads(emptied.stdout)["state"] == "empty"
        for ledger_id in (*written, frozen.ledger_id):
            assert bookie not in client.metadata(ledger_id).ensemble_at(0)
        four.local("stop", part["name"])
        for path in (four.directory / part["name"]).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        four.local("start", part["name"])

        back = daybook(four, *command)
        assert back.returncode == 0, back.stderr
        record = json.loads(back.stdout)
        assert record["state"] == "replaced"
        assert record["fenced"] >= len(written) + 1
        with pytest.raises((ledgers.InDoubtError, ledgers.LedgerFencedError)):
            frozen.append(b"too late", timeout_s=PATIENCE_S)
        for number, ledger_id in enumerate(written):
            reader = client.open(ledger_id, recover=False)
            entries = [bytes(e.data) for e in reader.read()]
            assert entries == [payload(number, n) for n in range(ENTRIES)]
        deadline = time.monotonic() + PATIENCE_S
        named: tuple[str, ...] = ()
        while bookie not in named:
            assert time.monotonic() < deadline, "it takes entries, and is drawn by lot"
            with client.create() as writer:
                named = writer.metadata.ensemble_at(0)


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
        time.sleep(POLL_S)


def test_autorecovery_runs_without_a_bookie(four: StandaloneProcess) -> None:
    command = [*processes.DAYBOOK, "autorecovery", "run", "--name", "alone"]
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
            time.sleep(POLL_S)
        process.terminate()
        assert process.wait(60) == 0
