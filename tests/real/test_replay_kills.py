"""Replays that are killed: the next run goes on, and each message is in the topic exactly once."""

import os
import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from daybook.clients.pipelines.archive import replay as replaying
from daybook.clients.pipelines.archive.replay import ReplayJob, replay
from daybook.clients.pipelines.archive.run import ArchiveJob, archive
from daybook.clients.python import blocking
from daybook.clients.python.errors import BrokerError
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import DAYBOOK, PATIENCE_S, wait_until
from tests.real.dying import DiedError, DyingTask, die_as_driver, dying
from tests.real.test_archive import contents, fill

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

COUNT = 120
KILLS = int(os.environ.get("REPLAY_KILLS", "3"))
ATTEMPTS = 3
SEED = int(os.environ.get("REPLAY_SEED", "21"))


@pytest.fixture
def archived(
    spark: SparkSession, cluster: StandaloneProcess, topic: str, tmp_path: Path
) -> tuple[Path, list[Any]]:
    """Return an archive of two partitions in several files, and what its messages are."""
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(topic, partitions=2)
    fill(cluster.service_url, topic, range(COUNT))
    directory = tmp_path / "archive"
    archive(spark, ArchiveJob(cluster.service_url, topic, directory, 1 << 20, COUNT // 2))
    return directory, contents(spark, cluster, topic)


def jobs(cluster: StandaloneProcess, directory: Path, target: str) -> ReplayJob:
    """Return a replay with two batches."""
    return ReplayJob(cluster.service_url, cluster.admin_url, directory, target, COUNT // 2)


def test_a_driver_that_dies_at_a_request_leaves_a_replay_that_goes_on(
    spark: SparkSession,
    cluster: StandaloneProcess,
    topic: str,
    archived: tuple[Path, list[Any]],
) -> None:
    """It dies at each moment of each request by which it makes progress."""
    directory, wanted = archived
    for at in count():
        target = f"{topic}-{at}"
        job = jobs(cluster, directory, target)
        with dying(at, die_as_driver) as moments:
            try:
                replay(spark, job)
                break
            except DiedError:
                pass
        found = replay(spark, job)
        assert sum(part.messages for part in found.values()) == COUNT, moments[at]
        assert contents(spark, cluster, target) == wanted, moments[at]
    # A run that nothing kills has all moments.
    commits = [each for each in moments if each.startswith("before") and each.endswith("/commit")]
    assert len(commits) == 2, moments
    assert contents(spark, cluster, target) == wanted


def test_a_worker_that_is_killed_at_a_request_leaves_a_replay_that_goes_on(
    spark: SparkSession,
    cluster: StandaloneProcess,
    topic: str,
    archived: tuple[Path, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory, wanted = archived
    killed = 0
    for at in range(100):
        target = f"{topic}-{at}"
        job = jobs(cluster, directory, target)
        with monkeypatch.context() as patch:
            patch.setattr(replaying, "ReplayTask", partial(DyingTask, at=at))
            error = error_of(partial(replay, spark, job))
        if error is None:
            break
        assert "Python worker exited unexpectedly" in str(error)
        killed += 1
        replay(spark, job)
        assert contents(spark, cluster, target) == wanted, at
    # An attempt begins, takes the entries, and ends; each request has three moments.
    assert killed == 9
    assert contents(spark, cluster, target) == wanted


def error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def test_a_command_that_is_killed_again_and_again_writes_each_message_once(
    spark: SparkSession,
    cluster: StandaloneProcess,
    client: blocking.Client,
    topic: str,
    archived: tuple[Path, list[Any]],
    tmp_path: Path,
) -> None:
    directory, wanted = archived
    chosen = random.Random(SEED)
    for attempt in range(ATTEMPTS):
        target = f"{topic}-again-{attempt}"
        command = [
            *(*DAYBOOK, "pipeline", "replay", str(directory), target, "--rows-per-step", "10"),
            *("--service-url", cluster.service_url, "--admin-url", cluster.admin_url),
            *("--spark", "spark.master=local[2]"),
            *("--spark", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
            *("--spark", "spark.python.authenticate.socketTimeout=120s"),
        ]
        killed = kill_runs(command, Arrived(client, target), chosen, tmp_path)
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        assert contents(spark, cluster, target) == wanted
        # A run may end before its kill: then everything is there, and the kills hit nothing.
        if killed:
            return
    raise AssertionError(f"no run was killed before its end, in {ATTEMPTS} attempts")


class Arrived:
    """How many messages a topic has, as far as it is known: it may be under way to a new owner."""

    def __init__(self, client: blocking.Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._known = 0

    def __call__(self) -> int:
        with suppress(BrokerError):
            self._known = sum(each.next for each in self._client.offset_ranges(self._topic))
        return self._known


def kill_runs(command: list[str], arrived: Arrived, chosen: random.Random, directory: Path) -> int:
    """Kill run after run when it has written something more; return how many runs were killed."""
    runs: list[subprocess.Popen[bytes]] = []
    try:
        for turn in range(KILLS):
            log = directory / f"run-{turn}.txt"
            # The last kill may come when everything is written.
            goal = min(COUNT, arrived() + chosen.randrange(COUNT // KILLS))
            runs.append(start(command, log))
            wait_until(partial(reached, runs[-1], arrived, goal), f"run {turn}: {goal} messages")
            assert runs[-1].poll() in (None, 0), log.read_text()
            kill(runs[-1], everything=chosen.random() < 0.5)
    finally:
        for each in runs:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait(PATIENCE_S)
    return [each.returncode for each in runs].count(-signal.SIGKILL)


def start(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )


def reached(running: "subprocess.Popen[bytes]", arrived: Arrived, goal: int) -> bool:
    return running.poll() is not None or arrived() >= goal


def kill(running: "subprocess.Popen[bytes]", *, everything: bool) -> None:
    """Kill the command; with `everything` its JVM and its Python workers, too, at the same time."""
    if everything:
        os.killpg(running.pid, signal.SIGKILL)
    else:
        running.kill()
    running.wait(PATIENCE_S)
