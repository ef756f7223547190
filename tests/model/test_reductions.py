"""What keeps the search small hides nothing."""

from typing import Any

import pytest

from tests.model.cases import CASES
from tests.model.checking import check
from tests.model.configurations import R1, ledger
from tests.model.search import State


@pytest.mark.parametrize(
    "settings",
    [
        {},
        R1,
        {"give_ups": 1, "cuts": 1},
        {"fifo": False, **R1},
        {"closes": True, "lost_answers": 1},
        {"recoverers": 0, "readers": 1, "closes": True},
    ],
    ids=str,
)
def test_dropping_messages_hides_no_state_of_any_host(settings: dict[str, Any]) -> None:
    """Whatever hosts and metadata can be with everything in flight, they can be without."""
    assert _hosts(settings, drops=True) == _hosts(settings, drops=False)


def _hosts(settings: dict[str, Any], *, drops: bool) -> set[tuple[object, ...]]:
    """All combined states of the hosts, links aside."""
    system: Any = ledger(2, (2, 2, 2), **settings, drops=drops).build()
    seen: set[State] = {system.initial()}
    frontier = list(seen)
    while frontier:
        frontier = [s for state in frontier for s in system.expand(state) if not _seen(seen, s)]
    return {system.hosts(state) for state in seen}


def _seen(seen: set[State], state: State) -> bool:
    known = state in seen
    seen.add(state)
    return known


def test_exchanged_recoverers_have_the_names_that_they_had() -> None:
    """In a chart nobody hears what somebody else was told."""
    case = next(c for c in CASES if c.mutant.id == "M10")
    moves = check(case.configuration, case.mutant).moves
    began = {move.target for move in moves if move.text.startswith("stored")}
    ended = {move.source for move in moves if "CLOSED" in move.text and move.target == "store"}
    assert ended <= began
