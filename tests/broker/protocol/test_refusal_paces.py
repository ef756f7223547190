"""The pace of refusals of a role or an address."""

import pytest

from daybook.broker.protocol import refusal_paces
from daybook.broker.protocol.refusal_paces import (
    ADDRESS_BURST,
    ADDRESS_PER_S,
    HELD_MAX_S,
    ROLE_BURST,
    ROLE_PER_S,
    Culprit,
    Kind,
    RefusalPaces,
)

ALICE, BOB = Culprit(Kind.ROLE, "alice"), Culprit(Kind.ROLE, "bob")
HOST = Culprit(Kind.ADDRESS, "alice")


@pytest.mark.parametrize(
    ("culprit", "burst", "per_s"),
    [(ALICE, ROLE_BURST, ROLE_PER_S), (HOST, ADDRESS_BURST, ADDRESS_PER_S)],
)
def test_refusals_beyond_a_burst_come_at_a_pace(culprit: Culprit, burst: int, per_s: int) -> None:
    paces = RefusalPaces()
    assert {paces.delay_s(culprit, 7.0) for _ in range(burst)} == {0.0}
    due = [paces.delay_s(culprit, 7.0) for _ in range(per_s)]
    assert due == pytest.approx([number / per_s for number in range(1, per_s + 1)])
    assert paces.delay_s(culprit, 8.0) == pytest.approx(1 / per_s)


def test_no_refusal_waits_long_and_a_culprit_that_stops_is_forgiven() -> None:
    paces = RefusalPaces()
    delays = [paces.delay_s(ALICE, 0.0) for _ in range(20_000)]
    assert max(delays) == HELD_MAX_S
    assert paces.delay_s(ALICE, HELD_MAX_S + 1) == 0.0


def test_a_culprit_delays_no_other() -> None:
    paces = RefusalPaces()
    assert [paces.delay_s(ALICE, 0.0) for _ in range(2 * ROLE_BURST)][-1] > 0
    assert paces.delay_s(BOB, 0.0) == paces.delay_s(HOST, 0.0) == 0.0


def test_the_culprits_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_paces, "CULPRITS_MAX", 10)
    paces = RefusalPaces()
    for number in range(2 * ROLE_BURST):
        paces.delay_s(ALICE, 0.0)
        paces.delay_s(Culprit(Kind.ADDRESS, str(number)), 0.0)
    assert len(paces) == 10
    assert paces.delay_s(ALICE, 0.0) > 0, "others have made a culprit forgotten"
