"""`bookkeeper shell` on a cluster of ours: its output agrees with the stored state."""

import json
import re
from typing import Any

import pytest

from daybook.clients import ledgers
from tests.harness.processes import PATIENCE_S, wait_until
from tests.interop.cluster import Cluster
from tests.interop.peer import Peer
from tests.interop.test_our_client import append

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def ledger_id(own: Cluster) -> int:
    """Write and close a ledger with 50 entries of 100 bytes."""
    with (
        ledgers.blocking.connect(own.address) as client,
        client.create(custom={"application": b"interop"}) as writer,
    ):
        append(writer, 50, 100)
    return writer.ledger_id


def test_the_bookies_are_listed(own: Cluster, peer: Peer) -> None:
    said = peer.shell(own, "listbookies", "-readwrite")
    assert all(bookie.bookie_id in said for bookie in own.bookies), said
    assert own.bookies[0].bookie_id not in peer.shell(own, "listbookies", "-readonly")


def test_a_ledger_is_listed_and_described(own: Cluster, peer: Peer, ledger_id: int) -> None:
    assert re.search(rf"\b{ledger_id}\b", peer.shell(own, "listledgers", "-meta"))
    said = peer.shell(own, "ledgermetadata", "-ledgerid", ledger_id)
    for fact in ("CLOSED", "lastEntryId=49", "length=5000", "CRC32C", "application"):
        assert fact in said, said


def entries_in(said: str) -> int:
    return len(re.findall(r"entryId[=:] ?\d+|Eid=\d+", said))


def test_a_ledger_is_read(own: Cluster, peer: Peer, ledger_id: int) -> None:
    assert entries_in(peer.shell(own, "readledger", "-ledgerid", ledger_id)) == 50
    for bookie in own.bookies:
        # With one bookie given, they read up to the last entry without that one.
        words = ("-ledgerid", ledger_id, "-bookie", bookie.bookie_id, "-lastentryid", 50)
        assert entries_in(peer.shell(own, "readledger", *words)) == 50, bookie.bookie_id


def test_the_ledgers_of_a_bookie_are_listed(own: Cluster, peer: Peer, ledger_id: int) -> None:
    said = peer.shell(own, "listledgers", "-bookieid", own.bookies[0].bookie_id)
    assert re.search(rf"\b{ledger_id}\b", said), said


def test_an_open_ledger_is_recovered_to_be_read(own: Cluster, peer: Peer) -> None:
    with ledgers.blocking.connect(own.address) as client:
        writer = client.create()
        append(writer, 20, 100)
        said = peer.shell(own, "readledger", "-ledgerid", writer.ledger_id, "-force-recovery")
        assert entries_in(said) == 20, said
        assert client.metadata(writer.ledger_id).closed
        with pytest.raises((ledgers.InDoubtError, ledgers.LedgerFencedError)):
            writer.append(b"too late", timeout_s=PATIENCE_S)


def test_a_bookie_is_described(own: Cluster, peer: Peer) -> None:
    bookie = own.bookies[0].bookie_id
    said = peer.shell(own, "endpointinfo", "-b", bookie)
    assert bookie in said
    assert "bookie-rpc" in said
    assert re.search(r"totalBookiesCount\W+3\b", peer.shell(own, "clusterinfo"))


def status(cluster: Cluster) -> dict[str, Any]:
    words = ("autorecovery", "status", "--output", "json")
    found: dict[str, Any] = json.loads(cluster.daybook(*words, exit_codes=(0, 4)).stdout)
    return found


def test_auto_recovery_of_ours_is_paused_and_resumed(own: Cluster, peer: Peer) -> None:
    with own.own_auto_recovery():
        assert status(own)["state"] == "on"
        peer.shell(own, "autorecovery", "-disable")
        assert status(own)["state"] == "paused"
        assert "disabled" in peer.shell(own, "autorecovery")
        peer.shell(own, "autorecovery", "-enable")
        assert status(own)["state"] == "on"
        assert "enabled" in peer.shell(own, "autorecovery")


def test_the_delay_of_a_lost_bookie_is_one_for_both(own: Cluster, peer: Peer) -> None:
    peer.shell(own, "lostbookierecoverydelay", "-set", 30)
    assert status(own)["lost_bookie_delay_s"] == 30
    assert "30" in peer.shell(own, "lostbookierecoverydelay", "-get")


def test_our_auditor_is_the_one(own: Cluster, peer: Peer) -> None:
    """Their tools know auditors by bookie ids; ours, beside a bookie, is called by its id."""
    auditor = own.bookies[1].bookie_id
    peer.shell(own, "lostbookierecoverydelay", "-set", 30)  # without a delay they trigger nothing
    with own.own_auto_recovery(name=auditor):
        wait_until(lambda: status(own)["auditor"] == auditor, "there is an auditor")
        assert auditor in peer.shell(own, "whoisauditor")
        wait_until(lambda: status(own)["all_checked"] is not None, "it has looked at all ledgers")
        before = status(own)["all_checked"]
        peer.shell(own, "triggeraudit")
        wait_until(lambda: status(own)["all_checked"] != before, "it has looked again")


def test_the_space_of_the_bookies_is_told(own: Cluster, peer: Peer) -> None:
    said = peer.shell(own, "bookieinfo")
    assert all(f"{bookie.bookie_id}" in said for bookie in own.bookies), said


def test_their_own_test_of_a_cluster_passes(own: Cluster, peer: Peer) -> None:
    words = ("-ensemble", 3, "-writeQuorum", 3, "-ackQuorum", 2, "-numEntries", 100)
    assert "100 entries" in peer.shell(own, "simpletest", *words)


def test_a_cookie_is_read(
    own: Cluster, peer: Peer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bookie = own.bookies[0].bookie_id
    said = peer.shell(own, "cookie_get", bookie)
    assert bookie in said


def test_the_instance_is_told(own: Cluster, peer: Peer) -> None:
    instance_id, _ = own.zookeeper.client.get(f"{own.root}/INSTANCEID")
    assert instance_id.decode() in peer.shell(own, "whatisinstanceid")


def test_a_ledger_is_deleted(own: Cluster, peer: Peer) -> None:
    with ledgers.blocking.connect(own.address) as client:
        with client.create() as writer:
            append(writer, 1, 100)
        peer.shell(own, "deleteledger", "-ledgerid", writer.ledger_id, "-force")
        assert writer.ledger_id not in list(client.list_ledgers())
