"""The machines keep their rules in seeded storms, and the storms meet the states they should.

A failing seed fails every time; the test prints the command that repeats it:
`python -m tests.storms --kind K --seed N`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.catalogue import BY_ID
from tests.mutants.patch import applied
from tests.storms import kills, run
from tests.storms.chance import Given, Recorded
from tests.storms.kinds import KINDS, SHARES
from tests.storms.models import MODELS
from tests.storms.run import drawn, explain, play, run_many, run_seeds, run_steps
from tests.storms.tally import Line, add_to_tally, read_tally

KIND_NAMES = list(KINDS)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_no_schedule_breaks_a_rule(kind: str) -> None:
    report = run_many(KINDS[kind].tested, kinds=[kind])
    assert [line for failure in report.failures for line in explain(failure)] == []
    assert report.rare(kind) == [], "the storms do not meet what they should"


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_seed_is_one_schedule_in_every_process(kind: str) -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        for seed in range(20):
            play(kind, drawn(kind, seed), trace)
    assert traces[0] == traces[1]
    command = [sys.executable, "-m", "tests.storms", "--kind", kind, "--seed", "7"]
    texts = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_what_was_recorded_can_be_played_again(kind: str) -> None:
    for seed in range(50):
        recorded, first, second = Recorded(drawn(kind, seed)), list[str](), list[str]()
        play(kind, recorded, first)
        play(kind, Given(recorded.schedule), second)
        assert first == second


def test_a_failure_says_how_to_see_it_again_and_is_made_short() -> None:
    with applied(BY_ID["M04"]):
        (failure,) = run_seeds("ledger", 600, 5000).failures
        command, shrunk, *trace = explain(failure)
    assert command == f"python -m tests.storms --kind ledger --seed {failure.seed}"
    before, after = (int(word) for word in shrunk.replace(":", "").split() if word.isdecimal())
    assert after <= 25 < before
    assert trace[-1].strip().startswith("S4: ")


def test_several_processes_do_what_one_does() -> None:
    kinds = ["dispatch", "ownership"]
    one, two = run_many(120, jobs=1, kinds=kinds), run_many(120, jobs=2, kinds=kinds)
    assert one.schedules == two.schedules
    assert one.marks == two.marks


def test_the_tally_counts_by_commit_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "tally.jsonl"
    good = run_seeds("ownership", 0, 20)
    add_to_tally(good, "aaaa", path)
    add_to_tally(good, "aaaa", path)
    with applied(BY_ID["O11"]):
        bad = run_seeds("ownership", 0, 20)
    lines = add_to_tally(bad, "bbbb", path)
    assert lines == [
        Line("aaaa", "ownership", 40, 0),
        Line("bbbb", "ownership", bad.schedules["ownership"], 1),
    ]
    assert read_tally(path) == lines


def test_every_kind_has_its_share() -> None:
    assert SHARES.keys() == KINDS.keys()
    assert sum(SHARES.values()) == 1000


# -- the models of the dispatchers


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in KINDS])
def test_each_dispatcher_has_a_model_that_meets_what_it_should(kind: str) -> None:
    report = run_seeds(kind, 0, 400)
    assert [line for failure in report.failures for line in explain(failure)] == []
    assert report.rare(kind) == []


def test_a_run_may_be_so_many_steps_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CHUNK", 10)
    report = run_steps(5_000, kinds=["exclusive", "shared"])
    assert all(5_000 <= report.steps[kind] < 15_000 for kind in ("exclusive", "shared"))
    with applied(BY_ID["Q06"]):
        assert run_steps(100_000, kinds=["shared"]).failures


def test_the_table_of_mutants_is_that_of_the_catalogue_and_true() -> None:
    """`python -m tests.storms.kills` makes the table again; each seed in it finds its mutant."""
    found = kills.read_kills()
    assert list(found) == [mutant.id for mutant in kills.hunted()]
    page = kills.PAGE.read_text().partition(kills.BEGIN)[2].partition(kills.END)[0]
    assert page == kills.table(found)
    for mutant_id, seeds in found.items():
        assert seeds, f"no model finds {mutant_id}"
        kind, seed = min(seeds.items(), key=lambda each: each[1])
        with applied(BY_ID[mutant_id]):
            assert play(kind, drawn(kind, seed))[1] is not None, (mutant_id, kind, seed)
