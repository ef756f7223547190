"""Bookies that leave and come back, and the places of a ledger's copies."""

from collections.abc import Iterator
from contextlib import contextmanager

from daybook.clients import ledgers
from daybook.wire.messages.bookie import ReadAnswer, Status, encode_read
from tests.interop.cluster import Bookie, Cluster, ask


def kinds(cluster: Cluster, metadata: ledgers.LedgerMetadata) -> list[str]:
    """Return the kinds of the last ensemble's bookies: `own` and `apache`."""
    names = (cluster.bookie(b).name for b in metadata.last_fragment.ensemble)
    return [name.partition("-")[0] for name in names]


def member(cluster: Cluster, metadata: ledgers.LedgerMetadata, kind: str) -> Bookie:
    position = kinds(cluster, metadata).index(kind)
    return cluster.bookie(metadata.last_fragment.ensemble[position])


@contextmanager
def away(cluster: Cluster, bookie: Bookie, *, hangs: bool = False) -> Iterator[None]:
    """Kill or pause the bookie for the time of the block; then bring it back."""
    if hangs:
        bookie.pause()
    else:
        bookie.kill()
    try:
        yield
    finally:
        bookie.kill()
        cluster.expire(bookie)
        bookie.start()
        cluster.wait_ready()


def assert_whole(cluster: Cluster, ledger_id: int, metadata: ledgers.LedgerMetadata) -> None:
    """Check that each bookie of each ensemble has all entries of its fragment.  (WQ = E.)"""
    ends = [fragment.first_entry_id for fragment in metadata.fragments[1:]]
    ends.append(metadata.last_entry_id + 1)
    for fragment, end_at in zip(metadata.fragments, ends, strict=True):
        for bookie_id in fragment.ensemble:
            ids = range(fragment.first_entry_id, end_at)
            answers = ask(cluster.bookie(bookie_id), *(encode_read(ledger_id, e) for e in ids))
            for answer in answers:
                assert isinstance(answer, ReadAnswer)
                assert answer.status == Status.OK, (bookie_id, answer.entry_id)
