"""An update of metadata has three outcomes, and each is handled as what it is (W7, M59, M60)."""

from dataclasses import replace

import pytest

from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.ledger.protocol.update import (
    Decide,
    Effect,
    Gone,
    NotAllowed,
    NotDone,
    Read,
    Ruling,
    Settled,
    UpdateProtocol,
    Write,
    change_ensemble,
    close_by_recovery,
    close_by_writer,
    mark_in_recovery,
)

B = [BookieId(f"b{n}") for n in range(5)]
OLD = Fragment(0, (B[1], B[2]))
NEW = Fragment(3, (B[1], B[3]))
OPEN = LedgerMetadata(quorums=Quorums(2, 2, 2), fragments=(OLD,))
CHANGED = replace(OPEN, fragments=(OLD, NEW))
IN_RECOVERY = OPEN.in_recovery()
CLOSED = IN_RECOVERY.closed_at(2, 30)


def started(decide: Decide, metadata: LedgerMetadata = OPEN) -> tuple[UpdateProtocol, Effect]:
    protocol = UpdateProtocol(decide)
    return protocol, protocol.start(metadata, 5)


def test_a_write_that_succeeds_settles_it() -> None:
    protocol, effect = started(change_ensemble(OLD, NEW))
    assert effect == Write(CHANGED, 5)
    assert protocol.written(6) == Settled(CHANGED, 6)


def test_after_a_conflict_it_is_decided_anew() -> None:
    protocol, _ = started(change_ensemble(OLD, NEW))
    assert protocol.conflicted() == Read()
    other = replace(OPEN, custom={"by": b"somebody"})
    assert protocol.found(other, 6) == Write(replace(CHANGED, custom=other.custom), 6)
    assert protocol.conflicted() == Read()
    assert protocol.found(IN_RECOVERY, 7) == NotAllowed(IN_RECOVERY, 7)


def test_an_unknown_write_may_have_been_carried_out() -> None:
    protocol, _ = started(change_ensemble(OLD, NEW))
    assert protocol.outcome_unknown() == Read()
    assert protocol.found(CHANGED, 6) == Settled(CHANGED, 6)


def test_an_unknown_write_may_be_carried_out_later_so_it_is_repeated_until_the_version_moves() -> (
    None
):
    protocol, _ = started(change_ensemble(OLD, NEW))
    assert protocol.outcome_unknown() == Read()
    assert protocol.found(OPEN, 5) == Write(CHANGED, 5)
    assert protocol.unavailable() == Read(patiently=True)
    assert protocol.unavailable() == Read(patiently=True)
    assert protocol.found(OPEN, 5) == Write(CHANGED, 5)
    assert protocol.conflicted() == Read()
    assert protocol.found(CHANGED, 6) == Settled(CHANGED, 6)


def test_a_store_that_is_away_has_changed_nothing() -> None:
    protocol, _ = started(change_ensemble(OLD, NEW))
    assert protocol.unavailable() == NotDone()


def test_a_deleted_ledger_is_gone() -> None:
    protocol, _ = started(change_ensemble(OLD, NEW))
    assert protocol.missing() == Gone()


@pytest.mark.parametrize(
    ("decide", "stored", "expected"),
    [
        (change_ensemble(OLD, NEW), CHANGED, Ruling.KEEP),
        (change_ensemble(OLD, NEW), IN_RECOVERY, Ruling.REFUSE),
        (change_ensemble(OLD, NEW), CLOSED, Ruling.REFUSE),
        (change_ensemble(NEW, Fragment(3, (B[1], B[4]))), OPEN, Ruling.REFUSE),
        (close_by_writer(2, 30), OPEN, OPEN.closed_at(2, 30)),
        (close_by_writer(2, 30), CLOSED, Ruling.KEEP),
        (close_by_writer(1, 20), CLOSED, Ruling.REFUSE),
        (close_by_writer(2, 30), IN_RECOVERY, Ruling.REFUSE),
        (mark_in_recovery, OPEN, IN_RECOVERY),
        (mark_in_recovery, IN_RECOVERY, Ruling.KEEP),
        (mark_in_recovery, CLOSED, Ruling.KEEP),
        (close_by_recovery(5, 2, 30, ()), IN_RECOVERY, CLOSED),
        (close_by_recovery(4, 2, 30, ()), IN_RECOVERY, Ruling.REFUSE),
        (close_by_recovery(5, 0, 10, ()), CLOSED, Ruling.KEEP),
        (close_by_recovery(5, 2, 30, ()), OPEN, Ruling.REFUSE),
    ],
)
def test_what_may_be_written_over_what(
    decide: Decide, stored: LedgerMetadata, expected: LedgerMetadata | Ruling
) -> None:
    assert decide(stored, 5) == expected


def test_changes_of_recovery_are_written_with_the_end() -> None:
    decide = close_by_recovery(5, 4, 50, (NEW,))
    closed = decide(IN_RECOVERY, 5)
    assert isinstance(closed, LedgerMetadata)
    assert closed.state is LedgerState.CLOSED
    assert closed.fragments == (OLD, NEW)
