"""Daybook's records in ZooKeeper are in the formats of the field: kazoo alone reads them.

The script is run as a user runs it; its output is compared with what the clients say.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

SCRIPT = Path(__file__).parents[2] / "tools" / "show_zookeeper.py"
PATIENCE_S = 300  # for a machine that has other things to do


def shown(cluster: StandaloneProcess, topic: str) -> dict[str, str]:
    """The sections of its output by their first word."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), cluster.zookeeper, topic],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {part.split(":")[0]: part for part in done.stdout.split("\n== ")[1:]}


@pytest.fixture
def sections(cluster: StandaloneProcess, topic: str) -> dict[str, str]:
    """After 100 entries of which every second one is acknowledged, and a move of the topic."""
    with (
        blocking.connect(cluster.service_url) as client,
        blocking.connect_admin(cluster.admin_url) as admin,
        client.create_producer(topic, batching=False) as producer,
        client.subscribe(
            topic, "half", type="shared", initial_position="earliest", ack_receipts=True
        ) as consumer,
    ):
        for n in range(100):
            producer.send(b"%d" % n)
        messages = [consumer.receive(timeout_s=PATIENCE_S) for _ in range(100)]
        consumer.ack(messages[::2])
        found = shown(cluster, topic)
        admin.unload_topic(topic)
        producer.send(b"after")
        found |= {f"{name} after the move": part for name, part in shown(cluster, topic).items()}
        found["lookup"] = client.lookup(topic)
    return found


def test_ledgers_lists_cursors_and_owners_are_there(
    cluster: StandaloneProcess, topic: str, sections: dict[str, str]
) -> None:
    ledgers = sections["ledgers"]
    log = f"pulsar/managed-ledger = public/default/persistent/{topic}"
    assert ledgers.count(log) == 2  # the topic's ledger, and the one of its cursor
    assert "E=3 WQ=3 AQ=2   OPEN" in ledgers
    assert "pulsar/cursor = half" in ledgers
    assert re.search(r"/ledgers/\d\d/\d{4}/L\d{4}   ledger \d+\n", ledgers)
    for bookie in cluster.ready["bookies"]:
        assert bookie["address"] in ledgers

    path = f"/managed-ledgers/public/default/persistent/{topic}"
    topics = sections["topics"]
    listed = [int(n) for n in re.findall(r"    ledgerId: (\d+)", topics)]
    assert len(listed) == 1
    assert f"   ledger {listed[0]}\n" in ledgers
    cursor = re.search(rf"{path}/half\n    cursorsLedgerId: (\d+) ", topics)
    assert cursor is not None
    assert f"   ledger {cursor[1]}\n" in ledgers

    assert sections["lookup"] in sections["topics after the move"]
    assert "/namespace/public/default/0x" in sections["owners"]
    assert sections["owners"].count("(ephemeral, session 0x") >= 2 + 1 + 1 + 2
    assert '"version":1' in sections["owners"]


def test_a_moved_topic_has_a_closed_ledger_and_its_offsets(sections: dict[str, str]) -> None:
    ledgers, topics = (sections[f"{name} after the move"] for name in ("ledgers", "topics"))
    assert re.search(r"E=3 WQ=3 AQ=2   CLOSED, last entry 99, \d+ bytes", ledgers)
    first, second = re.findall(r"    (ledgerId: \d+.*)", topics)
    assert re.match(r"ledgerId: \d+ entries: 100 size: \d+ timestamp: \d+", first)
    assert 'key: "daybook.last" value: "99"' in first
    assert "entries" not in second
    assert "individualDeletedMessages { lowerEndpoint { ledgerId: " in topics


def test_bookies_and_their_cookies_are_there(
    cluster: StandaloneProcess, sections: dict[str, str]
) -> None:
    found = sections["bookies"]
    assert "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1" in found
    for bookie in cluster.ready["bookies"]:
        assert f"/ledgers/available/{bookie['address']}   (ephemeral" in found
        assert f"bookieHost: {json.dumps(bookie['address'])}" in found


def test_a_namespace_of_which_no_bundle_is_owned_is_shown() -> None:
    with StandaloneProcess(bookies=1, brokers=1) as cluster:
        with (
            blocking.connect(cluster.service_url) as client,
            client.create_producer("t") as producer,
        ):
            producer.send(b"a message")
        cluster.local("stop", "broker-1")
        assert "is in no owned bundle" in shown(cluster, "t")["topics"]
