"""Apache's client on our bookies, and on bookies of both kinds.

Each side reads, tails and recovers the ledgers of the other one.
"""

from collections.abc import Iterator

import pytest

from daybook.clients import ledgers
from daybook.clients.ledgers import Digest
from tests.harness.processes import PATIENCE_S
from tests.interop.cluster import Cluster
from tests.interop.peer import DIGESTS, Peer, PeerClient, PeerError, Wire, check
from tests.interop.test_our_client import append

pytestmark = pytest.mark.interop

FENCED, UNAUTHORIZED, NO_LEDGER_RECORD, DUPLICATE_ENTRY = -101, -102, -25, -22


@pytest.fixture(scope="module", params=["own", "mixed"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Cluster)
    return found


@pytest.fixture(scope="module", params=["v2", "v3"])
def wire(request: pytest.FixtureRequest) -> Wire:
    return "v2" if request.param == "v2" else "v3"


@pytest.fixture(scope="module")
def theirs(cluster: Cluster, peer: Peer, wire: Wire) -> Iterator[PeerClient]:
    client = peer.connect(cluster, wire, explicitLacInterval=20)
    yield client
    client.close()


@pytest.fixture(scope="module")
def ours(cluster: Cluster) -> Iterator[ledgers.blocking.Client]:
    with ledgers.blocking.connect(cluster.address) as client:
        yield client


@pytest.mark.parametrize("digest", DIGESTS)
def test_each_reads_what_the_other_wrote(
    theirs: PeerClient, ours: ledgers.blocking.Client, digest: Digest
) -> None:
    written = theirs.create(digest=DIGESTS[digest])
    assert written.append(500, 1000) == 499
    written.close()
    reader = ours.open(written.ledger_id, recover=False, password=b"pw")
    assert (reader.closed, reader.last_add_confirmed, reader.length) == (True, 499, 500_000)
    assert check(reader.read(timeout_s=PATIENCE_S), 0, 1000) == 500

    with ours.create(digest=digest, password=b"pw") as writer:
        append(writer, 500, 1000)
    theirs_reader = theirs.open(writer.ledger_id, recover=False, digest=DIGESTS[digest])
    assert (theirs_reader.lac, theirs_reader.length, theirs_reader.closed) == (499, 500_000, True)
    assert theirs_reader.read(0, 499, 1000) == 500
    state, last, length, its_digest, *_ = theirs.metadata(writer.ledger_id)
    assert (state, last, length, its_digest) == ("CLOSED", "499", "500000", DIGESTS[digest])


@pytest.mark.parametrize("digest", DIGESTS)
def test_they_recover_what_our_writer_left_open(
    theirs: PeerClient, ours: ledgers.blocking.Client, digest: Digest
) -> None:
    writer = ours.create(digest=digest, password=b"pw")
    last = append(writer, 1000, 100)
    reader = theirs.open(writer.ledger_id, recover=True, digest=DIGESTS[digest])
    assert (reader.lac, reader.length, reader.closed) == (last, 100_000, True)
    assert reader.read(0, last, 100) == 1000
    with pytest.raises((ledgers.InDoubtError, ledgers.LedgerFencedError)):
        writer.append(b"too late", timeout_s=PATIENCE_S)
    again = ours.open(writer.ledger_id, recover=False, password=b"pw")
    assert check(again.read(timeout_s=PATIENCE_S), 0, 100) == 1000


@pytest.mark.parametrize("digest", DIGESTS)
def test_we_recover_what_their_writer_left_open(
    theirs: PeerClient, ours: ledgers.blocking.Client, digest: Digest
) -> None:
    written = theirs.create(digest=DIGESTS[digest])
    last = written.append(1000, 100)
    reader = ours.open(written.ledger_id, recover=True, password=b"pw")
    assert (reader.closed, reader.last_add_confirmed, reader.length) == (True, last, 100_000)
    assert check(reader.read(timeout_s=PATIENCE_S), 0, 100) == 1000
    with pytest.raises(PeerError) as fenced:
        written.append(1, 100)
    assert fenced.value.code == FENCED


def test_an_empty_ledger_is_recovered_by_either_side(
    theirs: PeerClient, ours: ledgers.blocking.Client
) -> None:
    written = theirs.create()
    reader = ours.open(written.ledger_id, recover=True, password=b"pw")
    assert (reader.closed, reader.last_add_confirmed) == (True, -1)
    with pytest.raises(PeerError) as fenced:
        written.append(1, 100)
    assert fenced.value.code == FENCED

    writer = ours.create(password=b"pw")
    theirs_reader = theirs.open(writer.ledger_id, recover=True)
    assert (theirs_reader.closed, theirs_reader.lac) == (True, -1)
    with pytest.raises((ledgers.InDoubtError, ledgers.LedgerFencedError)):
        writer.append(b"too late", timeout_s=PATIENCE_S)


def test_their_striped_ledger_is_recovered(
    theirs: PeerClient, ours: ledgers.blocking.Client
) -> None:
    written = theirs.create(quorums=(3, 2, 2))
    last = written.append(200, 100)
    reader = ours.open(written.ledger_id, recover=True, password=b"pw")
    assert reader.last_add_confirmed == last
    assert check(reader.read(timeout_s=PATIENCE_S), 0, 100) == 200


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_000])
def test_entries_of_any_size(theirs: PeerClient, ours: ledgers.blocking.Client, size: int) -> None:
    written = theirs.create(password="")
    written.append(3, size)
    written.close()
    assert check(ours.open(written.ledger_id, recover=False).read(timeout_s=PATIENCE_S), 0, size)
    reader = theirs.open(written.ledger_id, recover=False, password="")
    assert reader.read(0, 2, size) == 3


def test_they_follow_our_open_ledger(theirs: PeerClient, ours: ledgers.blocking.Client) -> None:
    """An entry carries the LAC from before it; v2 has no other source."""
    with ours.create(password=b"pw") as writer:
        append(writer, 10, 100)
        append(writer, 1, 100)
        reader = theirs.open(writer.ledger_id, recover=False)
        assert not reader.closed
        assert reader.lac >= 9
        append(writer, 1, 100)
        assert reader.read_lac() >= 10
        assert reader.read(0, 10, 100) == 11
    assert theirs.open(writer.ledger_id, recover=False).closed


def test_we_follow_their_open_ledger(theirs: PeerClient, ours: ledgers.blocking.Client) -> None:
    """Our reader reaches the last entry: their idle writer announces its LAC every 20 ms."""
    written = theirs.create()
    written.append(5, 100)
    tail = ours.open(written.ledger_id, recover=False, password=b"pw").tail(timeout_s=PATIENCE_S)
    assert check((next(tail) for _ in range(5)), 0, 100) == 5
    written.append(5, 100)
    assert check((next(tail) for _ in range(5)), 5, 100) == 5
    written.close()
    assert list(tail) == []


def test_their_reader_is_told_when_there_is_more(
    theirs: PeerClient, ours: ledgers.blocking.Client, wire: Wire
) -> None:
    """A long poll, with the entry in its answer.  Over v2 their client does not wait, nor learn."""
    with ours.create(password=b"pw") as writer:
        append(writer, 3, 100)
        reader = theirs.open(writer.ledger_id, recover=False)
        append(writer, 1, 100)
        append(writer, 1, 100)
        if wire == "v3":
            lac, came = reader.wait_lac(3, 10_000, 100)
            assert lac >= 3
            assert came
        else:
            assert reader.read_lac() >= 3


def test_ids_may_be_given(theirs: PeerClient, ours: ledgers.blocking.Client) -> None:
    wanted = (9 << 40) + max([0, *ours.list_ledgers()]) % (1 << 40) + 1
    written = theirs.create(f"id={wanted}")
    assert written.ledger_id == wanted
    written.append_at([2, 0, 1], 100)
    with pytest.raises(PeerError) as twice:
        written.append_at([1], 100)
    assert twice.value.code == DUPLICATE_ENTRY
    written.close()
    assert check(ours.open(wanted, recover=False, password=b"pw").read(), 0, 100) == 3
    with ours.create_advanced(password=b"pw", ledger_id=wanted + 1) as writer:
        writer.append(0, b"\0" * 0)
    assert theirs.open(wanted + 1, recover=False).read(0, 0, 0) == 1
    assert {wanted, wanted + 1} <= set(theirs.list_ledgers())
    theirs.delete(wanted)
    ours.delete(wanted + 1)
    with pytest.raises(ledgers.NoSuchLedgerError):
        ours.open(wanted, recover=False, password=b"pw")
    with pytest.raises(PeerError) as gone:
        theirs.open(wanted + 1, recover=False)
    assert gone.value.code == NO_LEDGER_RECORD


def test_each_reads_behind_the_lac_what_nobody_has_confirmed_to_it(
    theirs: PeerClient, ours: ledgers.blocking.Client
) -> None:
    with ours.create(password=b"pw") as writer:
        append(writer, 10, 100)
        reader = theirs.open(writer.ledger_id, recover=False)
        append(writer, 10, 100)
        assert reader.read_unconfirmed(0, 19, 100) == 20


def test_each_bookie_lists_its_entries(
    theirs: PeerClient, ours: ledgers.blocking.Client, cluster: Cluster, wire: Wire
) -> None:
    """Their auditor compares these lists, over v3.  (Their bookies with RocksDB never answer.)"""
    with ours.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer:
        append(writer, 300, 100)
    for bookie_id in writer.metadata.last_fragment.ensemble:
        if wire == "v2":
            with pytest.raises(PeerError):
                theirs.entries(bookie_id, writer.ledger_id)
        elif cluster.bookie(bookie_id).name != "apache-2":
            assert theirs.entries(bookie_id, writer.ledger_id) == 200


def test_another_password_opens_nothing(theirs: PeerClient, ours: ledgers.blocking.Client) -> None:
    with ours.create(password=b"pw") as writer:
        append(writer, 1, 100)
    with pytest.raises(PeerError) as refused:
        theirs.open(writer.ledger_id, recover=False, password="another")
    assert refused.value.code == UNAUTHORIZED


def test_their_batches(theirs: PeerClient, ours: ledgers.blocking.Client, wire: Wire) -> None:
    """Only v2 has batches: bounded by count, by bytes, and by the end of the ledger."""
    with ours.create(password=b"pw") as writer:
        append(writer, 50, 1000)
    reader = theirs.open(writer.ledger_id, recover=False)
    if wire == "v3":
        with pytest.raises(PeerError):
            reader.batch_read(0, 10, 1 << 20, 1000)
        return
    assert reader.batch_read(0, 10, 1 << 20, 1000) == 10
    assert reader.batch_read(45, 10, 1 << 20, 1000) == 5
    assert reader.batch_read(0, 50, 10_500, 1000) == 10
    assert reader.batch_read(7, 50, 1, 1000) == 1


def test_their_writer_defers_the_sync(
    theirs: PeerClient, ours: ledgers.blocking.Client, wire: Wire
) -> None:
    """Only v3 has that: the LAC follows when the writer has forced the bookies."""
    if wire == "v2":
        with pytest.raises(PeerError):
            theirs.create("deferred").append(1, 100)
        return
    written = theirs.create("deferred")
    written.append(10, 100)
    assert written.force() == 9
    written.append(1, 100)
    assert written.force() == 10
    written.close()
    assert check(ours.open(written.ledger_id, recover=False, password=b"pw").read(), 0, 100) == 11


def test_they_find_the_bookies(theirs: PeerClient, cluster: Cluster) -> None:
    expected = sorted(f"{b.bookie_id}={b.bookie_id.split(':')[1]}" for b in cluster.bookies)
    assert sorted(theirs.bookies()) == expected
