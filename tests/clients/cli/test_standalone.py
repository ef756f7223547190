"""`daybook standalone` as a process: how it starts, stops, and fails to start."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness import processes

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("standalone")]
PATIENCE_S = 180.0
FREE_PORTS = ("--port", "0", "--admin-port", "0", "--zookeeper-port", "0")
SMALL = ("--bookies", "1", "--brokers", "1", *FREE_PORTS)


def cluster(directory: Path) -> StandaloneProcess:
    return StandaloneProcess(directory=directory, bookies=1, brokers=1, options=FREE_PORTS)


def fails(*options: str, **environ: str) -> str:
    """Run `daybook standalone`, which must fail; return its output."""
    done = processes.daybook("standalone", *options, environ={**os.environ, **environ})
    assert (done.returncode, done.stdout) == (1, "")
    *_, sentence = done.stderr.splitlines()
    assert sentence.startswith("Error: ")
    return sentence


def pids_of(running: StandaloneProcess) -> list[int]:
    return [int(part["pid"]) for part in running.parts()]


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return False for a process that has ended, even if its parent has not waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def connects(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_cluster_is_the_same_after_a_restart(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        first = running.ready
        pids = pids_of(running)
        parts = [*first["brokers"], *first["bookies"]]
        assert [part["name"] for part in parts] == ["broker-1", "bookie-1"]
        assert all(connects(part["address"]) for part in parts)
        assert connects(first["zookeeper"])
        assert first["service_url"] == first["brokers"][0]["service_url"]
        assert first["admin_url"] == first["brokers"][0]["admin_url"]
        assert first["dir"] == str(tmp_path)
        assert Path(first["socket"]).is_socket()
        assert running.stop() == 0
    wait_gone(pids)
    with StandaloneProcess(directory=tmp_path, bookies=1, brokers=1) as running:
        second = running.ready
    for key in ("service_url", "admin_url", "zookeeper", "dir"):
        assert second[key] == first[key]
    assert second["bookies"][0]["address"] == first["bookies"][0]["address"]


def test_nothing_is_left_of_an_ephemeral_cluster() -> None:
    with StandaloneProcess(bookies=1, brokers=1) as running:
        directory, pids = running.directory, pids_of(running)
        assert directory.exists()
        assert running.stop() == 0
    wait_gone(pids)
    assert not directory.exists()


def test_two_clusters_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    with cluster(tmp_path / "one") as one:
        said = fails("--dir", str(tmp_path / "one"), *SMALL)
        assert f"is in use by another daybook standalone (pid {one.pid})" in said
        port = one.service_url.rpartition(":")[2]
        said = fails("--dir", str(tmp_path / "two"), *SMALL, "--port", port)
        assert f"Port {port} for the service is taken" in said
        with cluster(tmp_path / "two") as two:
            assert two.zookeeper != one.zookeeper
            states = [p["state"] for c in (one, two) for p in c.parts()]
            assert set(states) == {"running"}


def test_when_the_supervisor_is_killed_all_parts_die_and_can_be_started_again(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as running:
        pids = pids_of(running)
        running.local("pause", "bookie-1")
        os.kill(running.pid, signal.SIGKILL)
        wait_gone(pids)
    with cluster(tmp_path) as again:
        assert len(pids_of(again)) == 3


def test_a_part_that_dies_is_started_again(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        before = pids_of(running)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        # One check at a time: between two of them a running process may be seen to have died.
        while not all(
            part["state"] == "running" and part["pid"] not in before for part in running.parts()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_bookie_from_another_cluster_is_refused_and_not_harmed(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    cluster(one).stop()
    two.mkdir()
    shutil.copytree(one / "bookie-1", two / "bookie-1")
    files = sorted(p.relative_to(two) for p in (two / "bookie-1").rglob("*"))
    with cluster(two) as refusing:
        (why,) = refusing.ready["failed"]
        assert why.startswith("bookie-1 did not start: ")
        assert "belongs to another cluster" in why
    assert sorted(p.relative_to(two) for p in (two / "bookie-1").rglob("*")) == files
    with cluster(one) as running:
        assert len(pids_of(running)) == 3


def daybook(directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return processes.daybook(*words, environ={**os.environ, "DAYBOOK_DIR": str(directory)})


def test_a_cluster_starts_without_a_bookie_that_lost_its_directory_and_repairs_it_inside(
    tmp_path: Path,
) -> None:
    three = ("--bookies", "3", "--brokers", "1", *FREE_PORTS)

    def started(*options: str) -> StandaloneProcess:
        return StandaloneProcess(directory=tmp_path, bookies=3, brokers=1, options=options)

    lines = [f"{number}\n" for number in range(1000)]
    (tmp_path / "lines").write_text("".join(lines))
    with started(*three[4:]):
        assert daybook(tmp_path, "produce", "t", str(tmp_path / "lines")).returncode == 0
        assert daybook(tmp_path, "local", "status").returncode == 0
    shutil.rmtree(tmp_path / "bookie-1")
    (tmp_path / "bookie-2" / "VERSION").write_text("rubbish")
    with started() as degraded:
        assert len(degraded.ready["failed"]) == 2
        status = daybook(tmp_path, "local", "status")
        assert status.returncode == 3
        assert "Nothing can be published: 1 of 3 bookies take entries" in status.stderr
        refused = daybook(tmp_path, "bookies", "repair", "bookie-2")
        assert refused.returncode == 1
        assert "add --set-aside" in refused.stderr
        assert daybook(tmp_path, "bookies", "repair", "bookie-1").returncode == 0
        aside = daybook(tmp_path, "bookies", "repair", "bookie-2", "--set-aside")
        assert aside.returncode == 0, aside.stderr
        assert (tmp_path / "bookie-2.lost-1" / "VERSION").read_text() == "rubbish"
        assert daybook(tmp_path, "local", "status").returncode == 0
        running = daybook(tmp_path, "bookies", "repair", "bookie-3")
        assert "bookie-3 is running" in running.stderr
        read = daybook(tmp_path, "consume", "t", "--from", "earliest", "-n", "1000")
        assert sorted(read.stdout.splitlines(keepends=True)) == sorted(lines)


def test_the_setting_that_lets_bookies_start_with_empty_directories_has_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path):
        pass
    shutil.rmtree(tmp_path / "bookie-1")
    monkeypatch.setenv("DAYBOOK_BOOKIE_COOKIE_REPAIR", "auto")
    with cluster(tmp_path) as again:
        assert again.ready["failed"] == []


def test_what_is_missing_is_one_sentence(tmp_path: Path) -> None:
    place = ("--dir", str(tmp_path), *SMALL)
    said = fails(*place, JAVA_HOME="", PATH=str(tmp_path))
    assert "ZooKeeper needs Java 17 or newer" in said
    ports = ("--port", "0", "--admin-port", "0")
    said = fails("--dir", str(tmp_path), *ports, "--zookeeper", "127.0.0.1:1")
    assert "No server listens at 127.0.0.1:1: start ZooKeeper there" in said
    said = fails("--dir", str(tmp_path), *ports, "--zookeeper", "nonsense")
    assert "nonsense is not HOST:PORT" in said
    said = fails("--dir", str(tmp_path), "--ephemeral")
    assert "leave out --dir" in said
    said = fails(*place, "--zookeeper-home", str(tmp_path))
    assert "There is no ZooKeeper distribution in" in said
