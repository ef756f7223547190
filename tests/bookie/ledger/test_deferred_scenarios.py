"""Writes with deferred sync, one scenario per table.

The left of the arrow has the inputs, the right the effects that the protocol returns: `took` and
`holds` are runs of entries, `force b1` is a request.  The ack quorum is 2.
"""

import pytest

from daybook.bookie.ledger.protocol.deferred import (
    AskToForce,
    DeferredProtocol,
    Effect,
    Held,
    Taken,
)
from daybook.bookie.ledger.protocol.placement import BookieId

SCENARIOS = {
    "an entry is taken once an ack quorum says so, in order, and nothing is on disk": """
        b1 took 1       ->
        b2 took 1       ->
        b1 took 0       ->
        b2 took 0       -> taken 0..1
        b3 took 0..1    ->
    """,
    "everybody who took something up to there is asked to force": """
        b1 took 0..2    ->
        b2 took 0..1    -> taken 0..1
        force 1         -> force b1, force b2
        b1 forced       -> b1 holds 0..2
        b2 forced       -> b2 holds 0..1
    """,
    "what was taken after the request needs another one": """
        b1 took 0       ->
        force 1         -> force b1
        b1 took 1       ->
        b1 forced       -> b1 holds 0, force b1
        b1 forced       -> b1 holds 1
    """,
    "what is behind the target waits for the next force": """
        b1 took 0       ->
        force 0         -> force b1
        b1 took 1       ->
        b1 forced       -> b1 holds 0
        force 1         -> force b1
        b1 forced       -> b1 holds 1
    """,
    "a force that comes before the entries are taken is carried out behind them": """
        force 2         ->
        b1 took 0..1    -> force b1
        b1 took 2       ->
        b1 forced       -> b1 holds 0..1, force b1
    """,
    "what was taken on a connection that ended is forgotten": """
        b1 took 0..1    ->
        b1 lost         ->
        force 1         ->
        b1 forced       ->
        b2 took 0       -> force b2
        b2 took 1       ->
        b1 took 1       -> force b1
        b1 forced       -> b1 holds 1
    """,
    "an answer to a request that was lost proves nothing": """
        b1 took 0       ->
        force 0         -> force b1
        b1 lost         ->
        b1 forced       ->
    """,
    "who lost what it took counts no more for what is taken": """
        b1 took 0..1    ->
        b1 lost         ->
        b2 took 0..1    ->
        b3 took 0..1    -> taken 0..1
    """,
    "entries with others in between are held in runs": """
        b1 took 0..1    ->
        b1 took 3..4    ->
        b1 took 6       ->
        force 9         -> force b1
        b1 forced       -> b1 holds 0..1, b1 holds 3..4, b1 holds 6
    """,
}


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_scenario(table: str) -> None:
    protocol = DeferredProtocol(2)
    lines = [line.partition("->") for line in table.strip().splitlines()]
    expected = [(left.strip(), right.strip()) for left, _, right in lines]
    played = [(line, show(play(protocol, line))) for line, _ in expected]
    assert played == expected


def play(protocol: DeferredProtocol, line: str) -> list[Effect]:
    match line.split():
        case ["force", entry_id]:
            return protocol.force_up_to(int(entry_id))
        case [bookie, "took", entries]:
            first, _, last = entries.partition("..")
            count = int(last or first) - int(first) + 1
            return protocol.acknowledged(BookieId(bookie), int(first), count)
        case [bookie, "forced"]:
            return protocol.forced(BookieId(bookie))
        case [bookie, "lost"]:
            return protocol.lost(BookieId(bookie))
        case _:
            raise ValueError(line)


def show(effects: list[Effect]) -> str:
    return ", ".join(map(show_one, effects))


def show_one(effect: Effect) -> str:
    match effect:
        case AskToForce(bookie):
            return f"force {bookie}"
        case Taken(first, count):
            return f"taken {show_run(first, count)}"
        case Held(bookie, first, count):
            return f"{bookie} holds {show_run(first, count)}"


def show_run(first: int, count: int) -> str:
    return f"{first}" if count == 1 else f"{first}..{first + count - 1}"
