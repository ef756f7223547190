"""Bookies of both kinds, some of which go away: either side goes on, and recovers."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bookie.ledger.marks import mark_path
from bookie.registry import LedgerPaths
from clients import ledgers
from tests.interop.cluster import PATIENCE_S, Bookie, Cluster, ask, end, wait_until
from tests.interop.peer import Peer, PeerClient, Wire, check
from tests.interop.test_our_client import append
from wire.messages.bookie import ReadAnswer, Status, encode_read

pytestmark = pytest.mark.interop


@pytest.fixture
def theirs(mixed: Cluster, peer: Peer, kind: str) -> Iterator[PeerClient]:
    wire: Wire = "v2" if kind == "own" else "v3"
    client = peer.connect(mixed, wire, addEntryTimeoutSec=2, readEntryTimeoutSec=2)
    yield client
    client.close()


@pytest.fixture
def ours(mixed: Cluster) -> Iterator[ledgers.blocking.Client]:
    with ledgers.blocking.connect(mixed.address) as client:
        yield client


def kinds(cluster: Cluster, metadata: ledgers.LedgerMetadata) -> list[str]:
    """Of the last ensemble: `own` and `apache`."""
    names = (cluster.bookie(b).name for b in metadata.last_fragment.ensemble)
    return [name.partition("-")[0] for name in names]


def member(cluster: Cluster, metadata: ledgers.LedgerMetadata, kind: str) -> Bookie:
    position = kinds(cluster, metadata).index(kind)
    return cluster.bookie(metadata.last_fragment.ensemble[position])


@contextmanager
def away(cluster: Cluster, bookie: Bookie, *, hangs: bool = False) -> Iterator[None]:
    """Killed, or stopped in its tracks, for the time of the block; then back."""
    if hangs:
        bookie.pause()
    else:
        bookie.kill()
    try:
        yield
    finally:
        bookie.kill()
        cluster.wait_gone(bookie)
        bookie.start()
        cluster.wait_ready()


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_our_writer_replaces_a_bookie_and_they_recover(
    mixed: Cluster, theirs: PeerClient, ours: ledgers.blocking.Client, kind: str
) -> None:
    writer = ours.create(password=b"pw")
    append(writer, 200, 100)
    with away(mixed, member(mixed, writer.metadata, kind)):
        append(writer, 200, 100)  # which two bookies may confirm before the third is missed
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
            """Their writer may miss a bookie with the next entry only."""
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
    """By each side what the other one left; the newcomer is written to by recovery."""
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


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_their_tools_restore_the_copies_of_a_lost_bookie(
    mixed: Cluster, theirs: PeerClient, ours: ledgers.blocking.Client, kind: str
) -> None:
    """From ours to theirs and from theirs to ours; the ensembles then name the newcomer."""
    with ours.create(password=b"pw") as writer:
        append(writer, 100, 100)
    lost = member(mixed, writer.metadata, kind)
    with away(mixed, lost):
        mixed.wait_gone(lost)
        theirs.re_replicate(writer.ledger_id, lost.bookie_id)
        metadata = ours.metadata(writer.ledger_id)
        assert lost.bookie_id not in metadata.last_fragment.ensemble
        assert_whole(mixed, writer.ledger_id, metadata)


def assert_whole(cluster: Cluster, ledger_id: int, metadata: ledgers.LedgerMetadata) -> None:
    """Each bookie of each ensemble has all entries of its fragment.  (WQ = E.)"""
    ends = [fragment.first_entry_id for fragment in metadata.fragments[1:]]
    ends.append(metadata.last_entry_id + 1)
    for fragment, end_at in zip(metadata.fragments, ends, strict=True):
        for bookie_id in fragment.ensemble:
            ids = range(fragment.first_entry_id, end_at)
            answers = ask(cluster.bookie(bookie_id), *(encode_read(ledger_id, e) for e in ids))
            for answer in answers:
                assert isinstance(answer, ReadAnswer)
                assert answer.status == Status.OK, (bookie_id, answer.entry_id)


@contextmanager
def auto_recovery(cluster: Cluster, **settings: object) -> Iterator[None]:
    process = cluster.start_auto_recovery(**settings)
    try:
        yield
    finally:
        end(process)


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_their_auto_recovery_finds_and_repairs_what_a_lost_bookie_held(
    mixed: Cluster, ours: ledgers.blocking.Client, kind: str
) -> None:
    with ours.create(password=b"pw") as writer:
        append(writer, 50, 100)
    lost = member(mixed, writer.metadata, kind)

    def repaired() -> bool:
        found = ours.metadata(writer.ledger_id)
        return all(lost.bookie_id not in fragment.ensemble for fragment in found.fragments)

    with away(mixed, lost):
        mixed.wait_gone(lost)
        with auto_recovery(mixed, lostBookieRecoveryDelay=0):
            wait_until(repaired, f"{lost.bookie_id} is replaced")
        assert_whole(mixed, writer.ledger_id, ours.metadata(writer.ledger_id))


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_their_auto_recovery_repairs_what_our_writer_marked(mixed: Cluster, kind: str) -> None:
    """Our writer goes on without a bookie when there is no spare, and says what lacks copies."""
    spare = mixed.bookies[0]
    zookeeper = mixed.zookeeper.client
    with away(mixed, spare):
        mixed.wait_gone(spare)
        # A client that never saw the spare cannot choose it.
        with ledgers.blocking.connect(mixed.address) as ours:
            writer = ours.create(password=b"pw")
            append(writer, 50, 100)
            ensemble = writer.metadata.last_fragment.ensemble
            lost = member(mixed, writer.metadata, kind)
            mark = mark_path(LedgerPaths(mixed.root), writer.ledger_id)

            def repaired() -> bool:
                return lost.bookie_id not in ours.metadata(writer.ledger_id).ensemble_at(0)

            with away(mixed, lost):
                append(writer, 50, 100)
                wait_until(lambda: zookeeper.exists(mark) is not None, "the ledger is marked")
                writer.close()
                assert ours.metadata(writer.ledger_id).last_fragment.ensemble == ensemble
                spare.start()
                mixed.wait_ready(without=(lost,))
                # Only the mark can tell their worker: their auditor does not look.
                never = {"lostBookieRecoveryDelay": 3600, "auditorPeriodicBookieCheckInterval": 0}
                with auto_recovery(mixed, auditorPeriodicCheckInterval=0, **never):
                    wait_until(repaired, f"{lost.bookie_id} is replaced")
                    wait_until(lambda: zookeeper.exists(mark) is None, "the mark is gone")
                assert_whole(mixed, writer.ledger_id, ours.metadata(writer.ledger_id))
