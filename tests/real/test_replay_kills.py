"""Replays that are killed: the next run goes on, and each message is in the topic exactly once."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from daybook.clients.pipelines.archive import replay as replaying
from daybook.clients.pipelines.archive.replay import ReplayJob, replay
from daybook.clients.pipelines.archive.run import ArchiveJob, archive
from daybook.clients.python import blocking
from daybook.clients.python.errors import TopicNotFoundError
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S, wait_until
from tests.real.dying import DiedError, DyingTask, die_as_driver, dying
from tests.real.test_archive import contents, fill

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

COUNT = 120
KILLS = int(os.environ.get("REPLAY_KILLS", "3"))
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
    with dying(-1, die_as_driver) as moments:
        replay(spark, jobs(cluster, directory, f"{topic}-whole"))
    commits = [each for each in moments if each.startswith("before") and each.endswith("/commit")]
    assert len(commits) == 2, moments
    assert contents(spark, cluster, f"{topic}-whole") == wanted
    for at in range(len(moments)):
        target = f"{topic}-{at}"
        job = jobs(cluster, directory, target)
        with pytest.raises(DiedError), dying(at, die_as_driver):
            replay(spark, job)
        found = replay(spark, job)
        assert sum(part.messages for part in found.values()) == COUNT, moments[at]
        assert contents(spark, cluster, target) == wanted, moments[at]


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
    target = f"{topic}-again"
    command = [
        *(sys.executable, "-m", "daybook.clients.cli.main", "pipeline", "replay"),
        *(str(directory), target, "--rows-per-step", "10"),
        *("--service-url", cluster.service_url, "--admin-url", cluster.admin_url),
        *("--spark", "spark.master=local[2]"),
        *("--spark", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
        *("--spark", "spark.python.authenticate.socketTimeout=120s"),
    ]
    chosen = random.Random(SEED)
    runs: list[subprocess.Popen[bytes]] = []

    def arrived() -> int:
        try:
            return sum(each.next for each in client.offset_ranges(target))
        except TopicNotFoundError:
            return 0

    try:
        for turn in range(KILLS):
            # The last kill may come when everything is written.
            goal = min(COUNT, arrived() + chosen.randrange(COUNT // KILLS))
            runs.append(start(command, tmp_path / f"{turn}.txt"))
            wait_until(partial(reached, runs[-1], arrived, goal), f"{goal} messages in {target}")
            assert runs[-1].poll() in (None, 0), (tmp_path / f"{turn}.txt").read_text()
            kill(runs[-1], everything=chosen.random() < 0.5)
        assert -signal.SIGKILL in [each.returncode for each in runs], "a run was killed"
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        assert contents(spark, cluster, target) == wanted
    finally:
        for each in runs:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait(PATIENCE_S)


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


def reached(running: "subprocess.Popen[bytes]", arrived: Callable[[], int], goal: int) -> bool:
    return running.poll() is not None or arrived() >= goal


def kill(running: "subprocess.Popen[bytes]", *, everything: bool) -> None:
    """Kill the command; with `everything` its JVM and its Python workers, too, at the same time."""
    if everything:
        os.killpg(running.pid, signal.SIGKILL)
    else:
        running.kill()
    running.wait(PATIENCE_S)
