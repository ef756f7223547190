"""Bookies of both kinds, some of which leave: either side goes on, and recovers."""

from collections.abc import Iterator

import pytest

from daybook.clients import ledgers
from tests.harness.processes import PATIENCE_S, wait_until
from tests.interop.cluster import Cluster
from tests.interop.faults import away, member
from tests.interop.peer import Peer, PeerClient, Wire, check
from tests.interop.test_our_client import append

pytestmark = pytest.mark.interop


@pytest.fixture
def theirs(mixed: Cluster, peer: Peer, kind: str) -> Iterator[PeerClient]:
    wire: Wire = "v2" if kind == "own" else "v3"
    client = peer.connect(mixed, wire, addEntryTimeoutSec=10, readEntryTimeoutSec=10)
    yield client
    client.close()


@pytest.fixture
def ours(mixed: Cluster) -> Iterator[ledgers.blocking.Client]:
    with ledgers.blocking.connect(mixed.address) as client:
        yield client


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_our_writer_replaces_a_bookie_and_they_recover(
    mixed: Cluster, theirs: PeerClient, ours: ledgers.blocking.Client, kind: str
) -> None:
    writer = ours.create(password=b"pw")
    append(writer, 200, 100)
    with away(mixed, member(mixed, writer.metadata, kind)):
        append(writer, 200, 100)  # two bookies may confirm these before the third is missed
        wait_until(lambda: len(writer.metadata.fragments) == 2, "the ensemble is changed")
        reader = theirs.open(writer.ledger_id, recover=True)
        assert (reader.lac, reader.length, reader.closed) == (399, 40_000, True)
        assert reader.read(0, 399, 100) == 400


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_their_writer_replaces_a_bookie_and_we_recover(
    mixed: Cluster, theirs: PeerClient, ours: ledgers.blocking.Client, kind: str
) -> None:
    written = theirs.create()
    written.append(200, 100)
    with away(mixed, member(mixed, ours.metadata(written.ledger_id), kind)):
        last = written.append(200, 100)

        def changed() -> bool:
            """Check the ensemble; their writer may miss a bookie only with its next entry."""
            nonlocal last
            last = written.append(1, 100)
            return len(ours.metadata(written.ledger_id).fragments) == 2

        wait_until(changed, "the ensemble is changed")
        reader = ours.open(written.ledger_id, recover=True, password=b"pw")
        assert (reader.last_add_confirmed, reader.length) == (last, (last + 1) * 100)
        assert check(reader.read(timeout_s=PATIENCE_S), 0, 100) == last + 1


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_a_ledger_is_recovered_while_a_bookie_is_away(
    mixed: Cluster, theirs: PeerClient, ours: ledgers.blocking.Client, kind: str
) -> None:
    """Each side recovers the other's ledger; recovery writes to the new bookie."""
    writer, written = ours.create(password=b"pw"), theirs.create()
    append(writer, 300, 100)
    written.append(300, 100)
    with away(mixed, member(mixed, writer.metadata, kind)):
        reader = theirs.open(writer.ledger_id, recover=True)
        assert (reader.lac, reader.read(0, 299, 100)) == (299, 300)
        recovered = ours.open(written.ledger_id, recover=True, password=b"pw")
        assert recovered.last_add_confirmed == 299
        assert check(recovered.read(timeout_s=PATIENCE_S), 0, 100) == 300


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_a_bookie_keeps_what_it_was_fenced_against_over_a_crash(
    mixed: Cluster, theirs: PeerClient, ours: ledgers.blocking.Client, kind: str
) -> None:
    """A writer that slept through its fencing, and a restart of a bookie, adds nothing."""
    writer = ours.create(password=b"pw")
    append(writer, 10, 100)
    assert theirs.open(writer.ledger_id, recover=True).lac == 9
    with away(mixed, member(mixed, writer.metadata, kind)):
        pass
    with pytest.raises((ledgers.InDoubtError, ledgers.LedgerFencedError)):
        writer.append(b"too late", timeout_s=PATIENCE_S)
    reader = ours.open(writer.ledger_id, recover=False, password=b"pw")
    assert (reader.closed, reader.last_add_confirmed) == (True, 9)


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_a_bookie_that_hangs_is_replaced_and_read_around(
    mixed: Cluster, theirs: PeerClient, ours: ledgers.blocking.Client, kind: str
) -> None:
    writer = ours.create(password=b"pw")
    append(writer, 100, 100)
    with away(mixed, member(mixed, writer.metadata, kind), hangs=True):
        append(writer, 100, 100)
        writer.close()
        assert check(ours.open(writer.ledger_id, recover=False, password=b"pw").read(), 0, 100)
        reader = theirs.open(writer.ledger_id, recover=False)
        assert reader.read(0, 199, 100) == 200
