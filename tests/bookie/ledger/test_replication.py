"""The rules of replication in seeded storms.

A failing seed fails every time: `World(2010).run(STEPS)`.  The marks are states that matter; storms
that no longer meet one of them prove less than they seem to.
"""

from tests.bookie.ledger.replication import World

SEEDS = 4000
STEPS = 80
MARKS = {
    "aborted": 500,  # a recovery that could not decide
    "ensemble changed": 500,
    "ensemble changed by recovery": 5,
    "fenced": 500,  # an append that met a fence
    "lost": 1000,
    "recovered": 3000,
    "recovered what was not confirmed": 500,
    "several recoveries": 1500,
    "unknown outcome": 500,
}


def test_storms() -> None:
    seen = dict.fromkeys(MARKS, 0)
    for seed in range(SEEDS):
        world = World(seed)
        try:
            world.run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for mark in world.marks:
            seen[mark] += 1
    assert [f"{mark}: {seen[mark]}" for mark, least in MARKS.items() if seen[mark] < least] == []


def test_a_seed_is_one_run() -> None:
    worlds = [World(7), World(7)]
    for world in worlds:
        world.run(STEPS)
    assert worlds[0].history == worlds[1].history
    assert worlds[0].marks == worlds[1].marks
