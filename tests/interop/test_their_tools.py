"""`bookkeeper shell` on a cluster of ours: what it says is what is there."""

import re

import pytest

from clients import ledgers
from tests.interop.cluster import Cluster
from tests.interop.peer import Peer
from tests.interop.test_our_client import append

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def ledger_id(own: Cluster) -> int:
    """Closed, with 50 entries of 100 bytes."""
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
        # Of one bookie, they read up to the last entry without that one.
        words = ("-ledgerid", ledger_id, "-bookie", bookie.bookie_id, "-lastentryid", 50)
        assert entries_in(peer.shell(own, "readledger", *words)) == 50, bookie.bookie_id


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
