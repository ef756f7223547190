"""Copies of a lost bookie are restored: on bookies of both kinds, by auto-recovery of both.

In each cluster only the auto-recovery runs that a test starts.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Literal, TypeAlias

import pytest

from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import mark_path
from daybook.clients import ledgers
from tests.harness.processes import wait_until
from tests.interop.cluster import Bookie, Cluster
from tests.interop.faults import assert_whole, away, member
from tests.interop.peer import Peer
from tests.interop.test_our_client import append

pytestmark = pytest.mark.interop

Kind: TypeAlias = Literal["own", "apache"]
Side: TypeAlias = Literal["own", "apache", "both"]
KINDS: tuple[Kind, ...] = ("own", "apache")


@pytest.fixture(autouse=True)
def ours(mixed: Cluster) -> Iterator[ledgers.blocking.Client]:
    """Return a client of a cluster without ledgers, so that no others' leftovers are copied."""
    with ledgers.blocking.connect(mixed.address) as client:
        for ledger_id in list(client.list_ledgers()):
            client.delete(ledger_id)
        yield client


@contextmanager
def auto_recovery(cluster: Cluster, side: Side) -> Iterator[None]:
    """Run auto-recovery without a delay for lost bookies."""
    with ExitStack() as stack:
        if side in ("own", "both"):
            stack.enter_context(cluster.own_auto_recovery(lost_delay_s=0))
        if side in ("apache", "both"):
            stack.enter_context(cluster.apache_auto_recovery(lostBookieRecoveryDelay=0))
        yield


def spare_of(cluster: Cluster, metadata: ledgers.LedgerMetadata) -> Bookie:
    return next(b for b in cluster.bookies if b.bookie_id not in metadata.last_fragment.ensemble)


def written_with_spare(
    cluster: Cluster, client: ledgers.blocking.Client, kind: Kind
) -> tuple[int, ledgers.LedgerMetadata]:
    """Write a closed ledger of 50 entries to three of four bookies; the fourth has that kind."""
    while True:
        with client.create(password=b"pw") as writer:
            append(writer, 50, 100)
        metadata = client.metadata(writer.ledger_id)
        if spare_of(cluster, metadata).name.startswith(kind):
            return writer.ledger_id, metadata
        client.delete(writer.ledger_id)


@pytest.mark.parametrize(
    ("side", "lost", "spare"),
    [
        *(("own", lost, spare) for lost in KINDS for spare in KINDS),
        *(("apache", lost, spare) for lost in KINDS for spare in KINDS if lost != spare),
    ],
)
def test_what_a_lost_bookie_held_is_found_and_copied(
    mixed: Cluster, ours: ledgers.blocking.Client, side: Side, lost: Kind, spare: Kind
) -> None:
    """Ours copies from each kind to each kind, theirs from one kind to the other."""
    ledger_id, metadata = written_with_spare(mixed, ours, spare)
    newcomer, gone = spare_of(mixed, metadata), member(mixed, metadata, lost)
    expected = [newcomer.bookie_id if b == gone.bookie_id else b for b in metadata.ensemble_at(0)]
    with away(mixed, gone):
        mixed.expire(gone)
        with auto_recovery(mixed, side):
            wait_until(
                lambda: list(ours.metadata(ledger_id).ensemble_at(0)) == expected,
                f"{newcomer.bookie_id} has taken the place of {gone.bookie_id}",
            )
        assert_whole(mixed, ledger_id, ours.metadata(ledger_id))


def test_both_sides_share_the_work(mixed: Cluster, ours: ledgers.blocking.Client) -> None:
    """One auditor is elected, workers of both kinds take marks and locks; nothing is done twice."""
    written: list[int] = []
    for _ in range(8):
        with ours.create(password=b"pw") as writer:
            append(writer, 50, 100)
        written.append(writer.ledger_id)
    gone = mixed.bookies[-1]

    def repaired() -> bool:
        return not any(gone.bookie_id in ours.metadata(n).ensemble_at(0) for n in written)

    with away(mixed, gone):
        mixed.expire(gone)
        with auto_recovery(mixed, "both"):
            wait_until(repaired, f"{gone.bookie_id} is named nowhere")
            wait_until(lambda: not marks(mixed), "no ledger is marked")
        for ledger_id in written:
            assert_whole(mixed, ledger_id, ours.metadata(ledger_id))


def marks(cluster: Cluster) -> list[str]:
    """Return the records of underreplicated ledgers, somewhere below their root."""
    root = f"{cluster.root}/underreplication/ledgers"
    found: list[str] = []
    paths = [root]
    while paths:
        path = paths.pop()
        children = cluster.zookeeper.children(path)
        paths += [f"{path}/{name}" for name in children]
        if not children and path.rpartition("/")[2].startswith("urL"):
            found.append(path)
    return found


@pytest.mark.parametrize("lost", ["own", "apache"])
@pytest.mark.parametrize("side", ["own", "apache"])
def test_what_our_writer_marked_is_copied(
    mixed: Cluster, peer: Peer, side: Side, lost: Kind
) -> None:
    """Without a spare our writer goes on with one bookie less, and marks the ledger."""
    spare = mixed.bookies[0]
    with away(mixed, spare):
        mixed.expire(spare)
        # A client that never saw the spare cannot choose it.
        with ledgers.blocking.connect(mixed.address) as ours:
            writer = ours.create(password=b"pw")
            append(writer, 50, 100)
            ensemble = writer.metadata.last_fragment.ensemble
            gone = member(mixed, writer.metadata, lost)
            mark = mark_path(LedgerPaths(mixed.root), writer.ledger_id)
            with away(mixed, gone):
                append(writer, 50, 100)
                wait_until(lambda: mixed.zookeeper.exists(mark), "the ledger is marked")
                said = peer.shell(mixed, "listunderreplicated", "-missingreplica", gone.bookie_id)
                assert re.search(rf"\b{writer.ledger_id}\b", said), said
                writer.close()
                assert ours.metadata(writer.ledger_id).last_fragment.ensemble == ensemble
                spare.start()
                mixed.expire(gone)
                mixed.wait_ready(without=(gone,))
                with only_marks(mixed, side):
                    wait_until(
                        lambda: (
                            gone.bookie_id not in ours.metadata(writer.ledger_id).ensemble_at(0)
                        ),
                        f"{gone.bookie_id} is replaced",
                    )
                    wait_until(lambda: not mixed.zookeeper.exists(mark), "the mark is gone")
                assert_whole(mixed, writer.ledger_id, ours.metadata(writer.ledger_id))


def only_marks(cluster: Cluster, side: Side) -> AbstractContextManager[None]:
    """Run auto-recovery with an idle auditor: its worker depends on marks."""
    if side == "own":
        return cluster.own_auto_recovery(lost_delay_s=0)
    never = {"lostBookieRecoveryDelay": 3600, "auditorPeriodicBookieCheckInterval": 0}
    return cluster.apache_auto_recovery(auditorPeriodicCheckInterval=0, **never)


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_a_bookie_that_is_back_gets_what_it_missed(mixed: Cluster, kind: Kind) -> None:
    """Ours copies in place: the ensembles stay as they are.  (Apache's takes another bookie.)"""
    spare = mixed.bookies[0]
    with away(mixed, spare):
        mixed.expire(spare)
        with ledgers.blocking.connect(mixed.address) as ours:
            writer = ours.create(password=b"pw")
            append(writer, 50, 100)
            mark = mark_path(LedgerPaths(mixed.root), writer.ledger_id)
            missed = member(mixed, writer.metadata, kind)
            missed.kill()
            append(writer, 50, 100)
            wait_until(lambda: mixed.zookeeper.exists(mark), "the ledger is marked")
            writer.close()
            mixed.expire(missed)
            missed.start()
            mixed.wait_ready(without=(spare,))
            before = ours.metadata(writer.ledger_id)
            with mixed.own_auto_recovery(lost_delay_s=0):
                wait_until(lambda: not mixed.zookeeper.exists(mark), "the mark is gone")
            assert ours.metadata(writer.ledger_id).fragments == before.fragments
            assert_whole(mixed, writer.ledger_id, before)


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_their_shell_restores_the_copies_of_a_lost_bookie(
    mixed: Cluster, peer: Peer, ours: ledgers.blocking.Client, kind: Kind
) -> None:
    """`bookkeeper shell recover` copies from ours to theirs and from theirs to ours."""
    other: Kind = "apache" if kind == "own" else "own"
    ledger_id, metadata = written_with_spare(mixed, ours, other)
    gone = member(mixed, metadata, kind)
    with away(mixed, gone):
        mixed.expire(gone)
        peer.shell(mixed, "recover", "-force", "-ledger", ledger_id, gone.bookie_id)
        after = ours.metadata(ledger_id)
        assert gone.bookie_id not in after.ensemble_at(0)
        assert_whole(mixed, ledger_id, after)


@pytest.mark.parametrize("kind", ["own", "apache"])
def test_either_side_takes_a_bookie_of_the_other_out_of_the_cluster(
    mixed: Cluster, peer: Peer, ours: ledgers.blocking.Client, kind: Kind
) -> None:
    """The bookie is stopped; then `decommission` or `shell decommissionbookie` removes it."""
    leaver = mixed.add_own() if kind == "own" else mixed.add_apache()
    mixed.wait_ready()
    written: list[int] = []
    while not any(leaver.bookie_id in ours.metadata(n).ensemble_at(0) for n in written):
        with ours.create(password=b"pw") as writer:
            append(writer, 50, 100)
        written.append(writer.ledger_id)
    leaver.kill()
    mixed.bookies.remove(leaver)
    mixed.expire(leaver)
    if kind == "own":
        with mixed.apache_auto_recovery(lostBookieRecoveryDelay=0):
            wait_until(lambda: has_auditor(mixed), "there is an auditor")
            peer.shell(mixed, "decommissionbookie", "-bookieid", leaver.bookie_id)
    else:
        with mixed.own_auto_recovery(lost_delay_s=0):
            mixed.daybook("bookies", "decommission", leaver.bookie_id)
    for ledger_id in written:
        metadata = ours.metadata(ledger_id)
        assert leaver.bookie_id not in metadata.ensemble_at(0)
        assert_whole(mixed, ledger_id, metadata)
    assert leaver.bookie_id not in mixed.zookeeper.children(f"{mixed.root}/cookies")


def has_auditor(cluster: Cluster) -> bool:
    """Return True if an auditor was elected and has written its delay: their tool needs both."""
    root = f"{cluster.root}/underreplication"
    voted = cluster.zookeeper.children(f"{root}/auditorelection")
    return bool(voted) and cluster.zookeeper.exists(f"{root}/lostBookieRecoveryDelay")
