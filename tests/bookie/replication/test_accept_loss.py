"""Unsafe recovery gives up only the named bookies, and only entries that no other one has."""

import pytest

from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.ledger.protocol.read import Verdict
from daybook.bookie.ledger.protocol.recover import (
    Abort,
    CloseLedger,
    Effect,
    FencingRead,
    LastEntry,
    RecoverProtocol,
)
from daybook.bookie.ledger.protocol.write import Send
from daybook.bookie.replication.protocol.accept_loss import AcceptLoss

A, B, C = (BookieId(name) for name in "abc")
QUORUMS = Quorums(3, 3, 2)
FRAGMENTS = (Fragment(0, (A, B, C)),)


def run(
    protocol: RecoverProtocol, has: dict[BookieId, int], unknown: tuple[BookieId, ...]
) -> Effect:
    """Run it: bookies in `has` have entries 0..n; those in `unknown` answer neither yes nor no."""
    for _ in protocol.start():
        pass
    effects: list[Effect] = []
    for bookie in (A, B, C):
        last = has.get(bookie, -1)
        entry = LastEntry(last, last - 1, last + 1) if last >= 0 else None
        effects += protocol.fence_answered(bookie, bookie not in unknown, entry)
    while effects:
        match effects.pop(0):
            case FencingRead(bookie, first, count):
                for entry_id in range(first, first + count):
                    verdict = Verdict.ABSENT
                    if entry_id <= has.get(bookie, -1):
                        verdict = Verdict.FOUND
                    elif bookie in unknown:
                        verdict = Verdict.UNKNOWN
                    effects += protocol.read_answered(bookie, entry_id, verdict, entry_id + 1)
            case Send(first, count, to):
                for bookie in to:
                    effects += protocol.added(bookie, first, count)
            case CloseLedger() | Abort() as end:
                return end
            case _:
                pass
    raise AssertionError("it neither ended nor aborted")


def lossy(*given_up: BookieId) -> AcceptLoss:
    return AcceptLoss(QUORUMS, FRAGMENTS, given_up=given_up)


def test_without_a_decision_it_aborts() -> None:
    plain = RecoverProtocol(QUORUMS, FRAGMENTS)
    assert isinstance(run(plain, {A: 4}, unknown=(B, C)), Abort)


def test_it_ends_behind_the_last_entry_that_somebody_has() -> None:
    protocol = lossy(B, C)
    end = run(protocol, {A: 4}, unknown=(B, C))
    assert isinstance(end, CloseLedger)
    assert end.last_entry_id == 4
    assert protocol.lost_from == 5


def test_a_copy_is_recovered_though_all_others_are_given_up() -> None:
    """Given-up bookies do not count as a "no": the third is asked before the ledger ends."""
    protocol = lossy(A, B)
    end = run(protocol, {C: 7}, unknown=(A, B))
    assert isinstance(end, CloseLedger)
    assert end.last_entry_id == 7


@pytest.mark.parametrize("given_up", [(), (B,), (C,)])
def test_who_was_not_given_up_still_aborts_it(given_up: tuple[BookieId, ...]) -> None:
    protocol = lossy(*given_up)
    assert isinstance(run(protocol, {A: 4}, unknown=(B, C)), Abort)


def test_nothing_is_lost_where_a_quorum_says_no() -> None:
    protocol = lossy(C)
    end = run(protocol, {A: 4, B: 4}, unknown=(C,))
    assert isinstance(end, CloseLedger)
    assert end.last_entry_id == 4
    assert protocol.lost_from is None
