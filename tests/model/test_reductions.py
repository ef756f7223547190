"""The reductions that keep the search small hide no state."""

# pyright: reportPrivateUsage=false

from dataclasses import replace
from typing import Any

import pytest

from daybook.wire.messages.bookie import Flag
from tests.model.cases import CASES, Case
from tests.model.checking import check
from tests.model.configurations import PAIR, R1, ledger
from tests.model.ledger.messages import decoded
from tests.model.ledger.sides import is_final
from tests.model.ledger.system import LedgerSystem
from tests.model.search import State, System, search
from tests.mutants.patch import applied

SETTINGS: list[dict[str, Any]] = [
    {},
    R1,
    {"give_ups": 1, "cuts": 1},
    {"fifo": False, **R1},
    {"closes": True},
    {"lost_answers": 1},
    {"recoverers": 0, "readers": 1, "closes": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_dropping_messages_hides_no_state_of_any_host(settings: dict[str, Any]) -> None:
    """Hosts and metadata reach the same states whether void messages are dropped or kept."""
    assert _hosts(settings, drops=True) == _hosts(settings, drops=False)


MORE: list[dict[str, Any]] = [
    {},
    {"give_ups": 1, **R1},
    {"fifo": False, **R1},
    {"give_ups": 1, "cuts": 1},
    {"recoverers": 2},
    {"readers": 1},
    {**PAIR, "reads_max": 2},
]


@pytest.mark.parametrize("settings", MORE, ids=str)
def test_taking_settled_steps_first_hides_no_state_of_any_host(settings: dict[str, Any]) -> None:
    assert _hosts(settings, reduced=True) == _hosts(settings, reduced=False)


@pytest.mark.parametrize("settings", MORE, ids=str)
def test_a_final_answer_stays_the_same_whatever_the_bookie_becomes(
    settings: dict[str, Any],
) -> None:
    system: Any = ledger(2, (2, 2, 2), **settings).build()
    states = _states(system)
    bookies, requests = system._bookies, system._requests
    assert len(states) > 1
    final = 0
    for request, frame in enumerate(requests.values):
        for before, after in _becomes(bookies, requests, system.settings):
            if is_final(bookies, system.settings, before, frame, request):
                final += 1
                was, now = bookies.serve(before, request), bookies.serve(after, request)
                assert (now.answer, now.after) == (was.answer, after)
    assert final


def _becomes(bookies: Any, requests: Any, settings: Any) -> list[tuple[int, int]]:
    """Return each state of a bookie with each state that requests still to come may lead to.

    A recoverer that is alone stores only after all its reads.
    """
    alone = settings.recoverers == 1 and settings.fifo
    may_come = [
        request
        for request, frame in enumerate(requests.values)
        if not (alone and decoded(frame).flags & Flag.RECOVERY_ADD)
    ]
    found: list[tuple[int, int]] = []
    for first in range(len(bookies.states)):
        reached, frontier = {first}, [first]
        while frontier:
            after = {bookies.serve(state, r).after for state in frontier for r in may_come}
            frontier = sorted(after - reached)
            reached |= after
        found += [(first, each) for each in sorted(reached)]
    return found


REDUCED = [
    case for case in CASES if case.configuration.name.startswith("ledger") and case.steps < 15
]


@pytest.mark.parametrize("case", REDUCED, ids=lambda case: f"{case.mutant.id}-{case.rule}")
def test_taking_settled_steps_first_hides_no_mutant(case: Case) -> None:
    with applied(case.mutant):
        plain: Any = case.configuration.build()
        found = search(LedgerSystem(replace(plain.settings, reduced=True)))
    assert found.violation, case.mutant.rule
    assert found.steps >= case.steps


def _hosts(settings: dict[str, Any], **how: bool) -> set[tuple[object, ...]]:
    """Return all combined states of the hosts, without links."""
    system: Any = ledger(2, (2, 2, 2), **settings, **how).build()
    return {system.hosts(state) for state in _states(system)}


def _states(system: System) -> set[State]:
    seen: set[State] = {system.initial()}
    frontier = list(seen)
    while frontier:
        frontier = [s for state in frontier for s in system.expand(state) if not _seen(seen, s)]
    return seen


def _seen(seen: set[State], state: State) -> bool:
    known = state in seen
    seen.add(state)
    return known


def test_exchanged_recoverers_have_the_names_that_they_had() -> None:
    """In a chart no recoverer gets the answer that was sent to the other."""
    case = next(c for c in CASES if c.mutant.id == "M10")
    moves = check(case.configuration, case.mutant).moves
    began = {move.target for move in moves if move.text.startswith("found")}
    ended = {move.source for move in moves if "CLOSED" in move.text and move.target == "store"}
    assert ended <= began
