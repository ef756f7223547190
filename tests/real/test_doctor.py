"""`daybook doctor` on a real cluster: all is well, a bookie is killed, a stream stands still."""

import json
import subprocess
import time
from typing import Any

import pytest

from daybook.clients.python import blocking
from daybook.clients.spark.options import parse_options
from daybook.clients.spark.source import StreamReader
from daybook.clients.testing.standalone import StandaloneProcess
from tests.real.commands import run_here

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("doctor")]
PATIENCE_S = 180.0
NAMES = {
    *("brokers", "versions", "metadata store", "bookies", "disks", "copies", "sinks"),
    *("token files", "waiting topics", "lists of ledgers", "Spark subscriptions", "subscriptions"),
    *("retention", "topics looked at", "loads of topics", "sessions"),
}


def daybook(cluster: StandaloneProcess, *words: str) -> "subprocess.CompletedProcess[str]":
    places = ("DAYBOOK_SERVICE_URL", "DAYBOOK_ADMIN_URL", "DAYBOOK_ZOOKEEPER")
    unset = dict.fromkeys(places)
    return run_here(*words, environ={**unset, "DAYBOOK_DIR": str(cluster.ready["dir"])})


def look(cluster: StandaloneProcess, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = daybook(cluster, "doctor", "--output", "json", *options)
    assert done.returncode in (0, 1, 2), done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert set(checks) == NAMES
    return done.returncode, checks


def wait_well(cluster: StandaloneProcess, *options: str) -> dict[str, dict[str, Any]]:
    """Wait until nothing needs attention; a bookie that starts needs a moment.

    A broker may have lost a session on a busy machine, and tells so for a day: that is left out.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        _, checks = look(cluster, *options)
        del checks["sessions"]
        if {check["verdict"] for check in checks.values()} == {"ok"}:
            return checks
        assert time.monotonic() < deadline, checks


def test_a_whole_cluster_needs_nothing(broken: StandaloneProcess) -> None:
    checks = wait_well(broken)
    assert checks["brokers"]["sentence"] == "Every registered broker answers and is ready (3)."
    assert checks["bookies"]["sentence"] == "Every bookie takes entries (3), for 3 copies of each."
    # Each address alone is enough: the cluster tells the other one.
    for given in (["--admin-url", broken.admin_url], ["--zookeeper", broken.zookeeper]):
        done = run_here("doctor", "--output", "json", *given)
        checks = {check["name"]: check for check in json.loads(done.stdout)}
        del checks["sessions"]
        assert {check["verdict"] for check in checks.values()} == {"ok"}, done.stdout


def test_a_bookie_that_was_killed_is_named_until_it_is_back(broken: StandaloneProcess) -> None:
    wait_well(broken)
    victim = next(each for each in broken.ready["bookies"] if each["name"] == "bookie-1")
    assert daybook(broken, "local", "kill", "bookie-1").returncode == 0
    try:
        code, checks = look(broken)
    finally:
        assert daybook(broken, "local", "start", "bookie-1").returncode == 0
    assert code == 1
    assert checks["bookies"]["verdict"] == "attention"
    assert "2 of 3 bookies take entries" in checks["bookies"]["sentence"]
    (item,) = checks["bookies"]["items"]
    assert item.startswith(victim["address"])
    assert checks["disks"]["verdict"] == "unknown"
    assert checks["brokers"]["verdict"] == "ok"
    wait_well(broken)


def test_a_subscription_of_a_spark_stream_that_stands_still_is_stale(
    broken: StandaloneProcess, topic: str
) -> None:
    with (
        blocking.connect(broken.service_url) as client,
        blocking.connect_admin(broken.admin_url) as admin,
    ):
        with client.create_producer(topic, batching=False) as producer:
            for number in range(10):
                producer.send(b"%d" % number)
        with client.subscribe(topic, "left", initial_position="earliest"):
            pass
        options = {
            "service.url": broken.service_url,
            "topic": topic,
            "startingOffsets": "earliest",
            "subscription": "archive",
        }
        stream = StreamReader(parse_options(options, streaming=True))
        try:
            stream.prepareForTriggerAvailableNow()
            before = stream.initialOffset()
            end = stream.latestOffset(before, stream.getDefaultReadLimit())
            stream.commit(end)
        finally:
            stream.stop()
        statistics = admin.stats(topic)["subscriptions"]["archive"]
        assert set(statistics["subscriptionProperties"]) == {
            "daybook.spark.host",
            "daybook.spark.topics",
        }
        assert statistics["lastMovedTimestamp"] > 0
        wait_well(broken)  # Both are younger than seven days.
        code, checks = look(broken, "--stale-days", "0")
        assert code == 1
        spark = checks["Spark subscriptions"]
        assert spark["verdict"] == "attention"
        (item,) = [each for each in spark["items"] if topic in each]
        full = f"persistent://public/default/{topic}"
        assert item.startswith(f"archive of {full} (10 messages, not moved since ")
        assert f"daybook topics subscriptions delete {full} archive" in spark["remedy"]
        (other,) = [each for each in checks["subscriptions"]["items"] if topic in each]
        assert other.startswith(f"left of {full} (10 messages")
        # The topic is not in memory any more.  It is looked at on demand only, and then the broker
        # still knows when the stream moved it.
        admin.unload_topic(topic)
        _, checks = look(broken, "--stale-days", "0")
        assert not any(topic in each for each in checks["Spark subscriptions"]["items"])
        assert "not looked at" in checks["topics looked at"]["sentence"]
        _, checks = look(broken, "--stale-days", "0", "--all-topics")
        assert item in checks["Spark subscriptions"]["items"]
        for name in ("archive", "left"):
            deleted = daybook(broken, "topics", "subscriptions", "delete", full, name, "--yes")
            assert deleted.returncode == 0, deleted.stderr
    checks = wait_well(broken, "--stale-days", "0", "--all-topics")
    assert checks["topics looked at"]["verdict"] == "ok"


def test_a_broker_that_hangs_is_named_in_time(broken: StandaloneProcess) -> None:
    wait_well(broken)
    victim = next(each for each in broken.ready["brokers"] if each["name"] == "broker-1")
    address = str(victim["admin_url"]).removeprefix("http://")
    assert daybook(broken, "local", "pause", "broker-1").returncode == 0
    began = time.monotonic()
    try:
        code, checks = look(broken, "--timeout", "30")
        took_s = time.monotonic() - began
    finally:
        assert daybook(broken, "local", "resume", "broker-1").returncode == 0
    assert code in (1, 2)
    assert took_s < 60
    assert checks["brokers"]["verdict"] in ("failed", "attention")  # failed while it is registered
    assert any(
        each.startswith(address) and "does not answer" in each
        for each in checks["brokers"]["items"]
    )
    assert checks["sinks"]["verdict"] == "ok"  # The other brokers have answered.
    wait_well(broken)
    _, checks = look(broken)
    assert checks["sessions"]["verdict"] == "attention"
    assert any(each.startswith(f"{address} ") for each in checks["sessions"]["items"])
