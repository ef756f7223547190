"""Bookies that are lost, leave, and are added: the outcome of such runs, and what they refuse."""

from dataclasses import replace

import pytest

from tests.history.events import Copy, Error, LedgerVersion, Ok, Replicated
from tests.simulation import caretaker
from tests.simulation.acts import (
    Act,
    At,
    Decommission,
    Kill,
    LoseDisk,
    On,
    Rot,
    StuckDisk,
    WipeDisk,
)
from tests.simulation.cluster import Cluster
from tests.simulation.marks import marks_of
from tests.simulation.plan import Consume, Mishap, Plan, Produce, Shape, Topic
from tests.simulation.run import Outcome, simulate
from tests.simulation.settings import AutoRecovery, Settings

T = "persistent://public/default/t1"
QUICK = AutoRecovery(lost_delay_s=0.5)
PRODUCE = Produce("p1-t1", "client-1", T, messages=20, burst=1, batching=False)
PLAN = Plan(
    seed=11,
    shape=Shape(
        bookies=4,
        brokers=1,
        settings=Settings(quorums=(3, 3, 2), roll_entries=5, recovery=QUICK),
    ),
    topics=(Topic(T),),
    work=(PRODUCE, Consume("c1-t1", "client-1", T, "s1")),
    faults=(),
    storm_s=5.0,
)


def run(*acts: Act, plan: Plan = PLAN, at_s: float = 1.0) -> Outcome:
    faults = tuple(Mishap(f"f{n}", At(at_s + n), act) for n, act in enumerate(acts))
    return simulate(replace(plan, faults=faults))


def test_copies_that_a_lost_disk_had_are_made_again() -> None:
    outcome = run(LoseDisk("bookie-1", 2.0))
    assert outcome.violations == []
    assert outcome.marks["copies moved"] > 0
    assert outcome.count(Replicated) == 1
    last = {e.event.ledger: e.event for e in outcome.events if isinstance(e.event, LedgerVersion)}
    named = {bookie for each in last.values() for _, some in each.fragments for bookie in some}
    assert "bookie-1:3181" not in named
    assert all(e.event.found == "yes" for e in outcome.events if isinstance(e.event, Copy))


def test_copies_are_moved_while_their_ledger_is_written() -> None:
    settings = replace(PLAN.shape.settings, roll_entries=1000)
    longer = replace(PRODUCE, messages=60)
    plan = replace(PLAN, shape=replace(PLAN.shape, settings=settings), work=(longer,))
    outcome = run(LoseDisk("bookie-1", 2.0), plan=plan)
    assert outcome.violations == []
    assert marks_of(outcome.events)["a copy was moved while its ledger was open"] > 0


def test_a_bookie_that_may_begin_with_nothing_copies_what_it_had() -> None:
    outcome = run(WipeDisk("bookie-1", 0.5))
    assert outcome.violations == []
    assert outcome.marks["log nothing is in limbo any more"] == 1
    assert all(e.event.found == "yes" for e in outcome.events if isinstance(e.event, Copy))


@pytest.mark.parametrize("down_s", [None, 0.5])
@pytest.mark.parametrize("how", ["flipped", "zeroed", "unreadable", "cut", "gone"])
def test_what_rots_is_found_and_mended(how: str, down_s: float | None) -> None:
    # so that there are several segments
    settings = replace(PLAN.shape.settings, segment_bytes=1000)
    plan = replace(PLAN, shape=replace(PLAN.shape, settings=settings))
    outcome = run(Rot("bookie-1", how, 10, down_s), plan=plan, at_s=2.0)
    assert outcome.violations == []
    assert outcome.marks["fault Rot"] == 1
    assert outcome.marks["log damaged"] + outcome.marks["log records may be lost"] > 0


@pytest.mark.parametrize(("how", "down_s"), [("blocks", None), ("blocks", 0.5), ("files", 0.5)])
def test_an_index_that_rots_is_made_again_and_every_ledger_is_looked_at(
    how: str, down_s: float | None
) -> None:
    """The bookie answered errors forever, or did not start; nobody was told."""
    settings = replace(PLAN.shape.settings, checkpoint_entries=5, scrub_interval_s=4.0)
    plan = replace(PLAN, shape=replace(PLAN.shape, settings=settings))
    outcome = run(Rot("bookie-1", how, 10, down_s), plan=plan, at_s=2.0)
    assert outcome.violations == []
    assert outcome.marks["fault Rot"] == 1
    assert outcome.marks["log records may be lost"] == 1
    assert outcome.marks["log nothing is in limbo any more"] == 1


def test_a_bookie_that_comes_back_with_nothing_does_not_serve() -> None:
    outcome = run(LoseDisk("bookie-2", 0.1, again=True))
    assert outcome.violations == []
    assert outcome.marks["log died"] == 1


@pytest.mark.parametrize(("quorums", "spared"), [((3, 3, 2), 1), ((3, 3, 3), 2)])
def test_fewer_disks_are_lost_than_an_ack_quorum_has(
    quorums: tuple[int, int, int], spared: int
) -> None:
    """Seed 600241, once: two were lost before there was a ledger, and the first one named both."""
    settings = replace(PLAN.shape.settings, quorums=quorums)
    plan = replace(PLAN, shape=replace(PLAN.shape, settings=settings))
    names = plan.shape.bookie_names()[:3]
    faults = tuple(Mishap(name, At(0.01), LoseDisk(name, 1.0)) for name in names)
    outcome = simulate(replace(plan, faults=faults))
    assert outcome.violations == []
    assert outcome.marks["fault LoseDisk"] == spared


def test_a_bookie_leaves_and_nothing_names_it_any_more() -> None:
    for interrupted_s in (None, 0.01):
        outcome = run(Decommission("bookie-3", interrupted_s))
        assert outcome.violations == []
        assert outcome.marks["fault Decommission"] == 1
        assert outcome.marks["log once more"] == (interrupted_s is not None)


def test_a_bookie_that_stops_while_its_disk_hangs_has_left_when_that_is_mended() -> None:
    """Seed 601205, once: its disk was not healed, for it counted as gone while it was stopping."""
    settings = replace(PLAN.shape.settings, checkpoint_entries=5)
    plan = replace(PLAN, shape=replace(PLAN.shape, settings=settings), storm_s=8.0)
    outcome = run(Decommission("bookie-3"), StuckDisk("bookie-3", 1000.0), plan=plan)
    assert outcome.violations == []
    assert outcome.marks["fault StuckDisk"] == 1


def test_no_bookie_leaves_when_nobody_can_take_its_place() -> None:
    plan = replace(PLAN, shape=replace(PLAN.shape, bookies=3))
    assert run(Decommission("bookie-3"), plan=plan).marks["fault Decommission"] == 0


def test_who_copies_is_killed_while_it_does() -> None:
    """The copier and its target are killed at once: another bookie makes the copies."""
    faults = (
        Mishap("f1", At(1.0), LoseDisk("bookie-1", 0.5)),
        Mishap("f2", On("copy"), Kill("subject", 2.0, power=True)),
        Mishap("f3", On("copy"), Kill("peer", 2.0, power=True)),
    )
    outcome = simulate(replace(PLAN, seed=4, faults=faults, storm_s=10.0))
    assert outcome.violations == []
    assert outcome.marks["struck at copies: Kill"] == 2


def test_without_auto_recovery_what_is_lost_stays_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit has no hole here: a report that all copies exist must be right."""

    async def only_say_so(cluster: Cluster, name: str, work: caretaker.Work) -> None:
        del cluster, name, work

    monkeypatch.setattr(caretaker, "as_caretaker", only_say_so)
    never = replace(PLAN.shape.settings, recovery=replace(QUICK, lost_delay_s=3600.0))
    plan = replace(PLAN, shape=replace(PLAN.shape, settings=never), power_cycle=False)
    outcome = run(LoseDisk("bookie-1", 1.0), plan=plan)
    assert any(each.startswith("under-replicated") for each in outcome.violations)


def test_copies_may_take_as_long_as_their_rate_makes_them() -> None:
    """Seed 600219, once: everything was read at 50 KB a second, too slowly for the limit."""
    slow = replace(QUICK, bytes_per_s=250.0, thorough=True)
    settings = replace(PLAN.shape.settings, quorums=(2, 2, 2), recovery=slow)
    shape = replace(PLAN.shape, bookies=2, settings=settings)
    work = replace(PRODUCE, messages=10, payload_bytes=1000)
    outcome = run(plan=replace(PLAN, shape=shape, work=(work,), storm_s=2.0))
    assert outcome.violations == []


def test_messages_of_the_size_that_is_allowed_and_larger_ones() -> None:
    settings = replace(PLAN.shape.settings, message_bytes_max=10_000)
    shape = replace(PLAN.shape, settings=settings)
    for payload_bytes, stored in ((9_900, 20), (10_000, 0)):
        work = replace(PRODUCE, payload_bytes=payload_bytes)
        outcome = run(plan=replace(PLAN, shape=shape, work=(work,)))
        assert outcome.violations == []
        assert outcome.count(Ok) == stored + 2
        assert outcome.count(Error) == 20 - stored
