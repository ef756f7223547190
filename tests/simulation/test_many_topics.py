"""Small runs in which brokers load 30 topics together, each with a fault that is hard for that.

The mutants of bulk loads name these runs as their catchers.  `MET` says what a run must have met,
as in `test_features.py`.
"""

from dataclasses import replace

import pytest

from tests.simulation.acts import SUBJECT, At, Flaky, Kill, LoseContact, On, Refuse
from tests.simulation.bulk_loads import MARKS
from tests.simulation.nemesis import draw_plan
from tests.simulation.plan import Administer, ManyTopics, Mishap, Plan, Shape
from tests.simulation.run import simulate
from tests.simulation.settings import Limits, Settings

SEEDS = 12
TOPICS = 30
_ALL_READ = "many topics: all were read in the end"
_TAKEN_OVER = "many topics: taken over"
_KILL = Mishap("k1", At(2.0), Kill("broker-1", 4.0))  # The other broker takes over in its absence.


def _plan(*faults: Mishap, brokers: int = 2, limits: Limits | None = None) -> Plan:
    settings = Settings(grouped_writes=True, limits=limits or Limits())
    return Plan(
        seed=1,
        shape=Shape(brokers=brokers, settings=settings),
        topics=(),
        work=(ManyTopics("many", "client-1", TOPICS, moved=0.3, unused=0.2),),
        faults=faults,
        storm_s=8.0,
        power_cycle=False,
    )


def _at_takeover(act: Kill | LoseContact | Refuse | Flaky, loads: int = 8) -> Plan:
    """Strike when the next owner has carried out so many loads."""
    return _plan(_KILL, Mishap("f1", On("topic loaded", TOPICS + loads), act))


PLANS = {
    "few_loads_at_once": _plan(_KILL, limits=Limits(loads_at_once=3)),
    "few_requests": _plan(_KILL, limits=Limits(requests_max=5)),
    "killed_at_the_first_loads": _plan(
        Mishap("k1", On("topic loaded", TOPICS // 3), Kill(SUBJECT, 0.3)), brokers=1
    ),
    "next_owner_killed": _at_takeover(Kill(SUBJECT, 0.3)),
    "next_owner_cut_off": _at_takeover(LoseContact(SUBJECT, 3.0)),
    "writes_are_refused": _at_takeover(Refuse(1.0, 0.5, "/managed-ledgers")),
    "answers_are_lost": _at_takeover(Flaky(1.0, lose_request=0.1, lose_answer=0.1, late=0.1)),
    "bookie_killed": _at_takeover(Kill("bookie-1", 1.0)),
}
MET: dict[str, tuple[str, ...]] = {
    "few_loads_at_once": ("many topics: loaded together", "many topics: loads wait for a place"),
    "few_requests": (
        "many topics: requests wait for a place",
        "many topics: writes share a request",
    ),
    "killed_at_the_first_loads": ("many topics: Kill of a loading broker",),
    "next_owner_killed": ("many topics: Kill of a loading broker",),
    "next_owner_cut_off": ("many topics: LoseContact of a loading broker",),
    "writes_are_refused": ("many topics: Refuse during loads",),
    "answers_are_lost": ("many topics: Flaky during loads",),
    "bookie_killed": ("many topics: Kill of a bookie during loads",),
}


@pytest.mark.parametrize("name", PLANS)
def test_many_topics_keep_their_messages_while_they_are_loaded(name: str) -> None:
    missed: list[str] = []
    for seed in range(1, 1 + SEEDS):
        outcome = simulate(replace(PLANS[name], seed=seed))
        assert outcome.violations == []
        wanted = (_ALL_READ, _TAKEN_OVER, *MET[name])
        missed = [mark for mark in wanted if not outcome.marks[mark]]
        if not missed:
            return
    raise AssertionError(f"no seed of {SEEDS} has met {missed}")


def test_these_runs_meet_every_mark_of_bulk_loads() -> None:
    assert {_TAKEN_OVER, *(mark for marks in MET.values() for mark in marks)} == set(MARKS)


def test_a_twentieth_of_the_runs_have_many_topics_and_half_of_them_small_limits() -> None:
    plans = list(map(draw_plan, range(400)))
    many = [each for each in plans if any(isinstance(work, ManyTopics) for work in each.work)]
    assert 10 <= len(many) <= 35
    limited = [each for each in many if each.shape.settings.limits.loads_at_once <= 8]
    assert len(many) // 4 < len(limited) < len(many)
    moved = [each for each in many if any(_moves(work) for work in each.work)]
    assert moved


def _moves(work: object) -> bool:
    return isinstance(work, Administer) and work.name.startswith("move-many")
