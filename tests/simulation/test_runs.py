"""A sample of whole runs, and the tools that explain failures.

For more runs: `python -m tests.simulation --seeds A..B`.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any
from weakref import ref

import pytest
import trio

from daybook.broker.ownership.membership import _read_all
from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import NotAllowedError
from daybook.clients.python.topic_consumer import TopicConsumer
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from tests.history.check import check
from tests.history.events import Deliver, LedgerVersion, Ok
from tests.simulation import acts, plan, run, scheduler, settings
from tests.simulation.acts import At, Freeze, Kill, On
from tests.simulation.cluster import Cluster
from tests.simulation.draw_faults import draw_faults, draw_old_image
from tests.simulation.draw_more import draw_refusal
from tests.simulation.marks import SOMETIMES, marks_of, table
from tests.simulation.nemesis import draw_plan
from tests.simulation.plan import (
    Consume,
    Mishap,
    Plan,
    Produce,
    Shape,
    Topic,
    describe,
)
from tests.simulation.report import explain, trace
from tests.simulation.rest import tasks_left
from tests.simulation.run import Outcome, simulate
from tests.simulation.scheduler import HOST, Scheduler
from tests.simulation.settings import AutoRecovery, Settings
from tests.simulation.shrink import as_python, rule_of, shrink
from tests.simulation.steps import ALL_STEPS, KINDS, STEP_OF, STEPS, mark_of

SAMPLE = range(2, 42)
CAUSED = [step.name for step in STEPS if step.cause]


@pytest.mark.parametrize("seed", SAMPLE)
def test_nothing_is_lost_whatever_goes_wrong(seed: int) -> None:
    outcome = simulate(draw_plan(seed))
    assert outcome.violations == []


def test_a_bookie_that_syncs_late_knows_what_it_may_have_lost() -> None:
    late = (plan for plan in map(draw_plan, range(5000, 6000)) if plan.shape.settings.unsynced)
    outcome = simulate(next(late))
    assert outcome.violations == []
    assert outcome.marks["log records may be lost"] > 0


def test_plans_are_survivable_data() -> None:
    for seed in range(300):
        plan = draw_plan(seed)
        assert plan == draw_plan(seed)
        assert describe(plan)
        shape, quorums = plan.shape, plan.shape.settings.quorums
        assert quorums is None or quorums[0] <= shape.bookies
        names = [part.name for part in (*plan.work, *plan.faults)]
        assert len(set(names)) == len(names), "chance is drawn by name"


def test_every_fault_may_strike_at_every_step_of_the_protocol() -> None:
    copying = Settings(quorums=(3, 3, 2), recovery=AutoRecovery())
    shape, drawn = Shape(bookies=4, settings=copying), dict[str, None]()
    pairs = (len(KINDS) - 1) * len(STEPS)  # Drains strike at the step of hand-overs only.
    for seed in range(20_000):
        struck = [(each.when, each.act) for each in draw_faults(Random(seed), shape, 8.0)]
        struck.append(draw_old_image(Random(seed), shape, "bookie-1", 8.0))
        struck.append(draw_refusal(Random(seed), shape, 8.0))
        for when, act in struck:
            if isinstance(when, On):
                drawn[mark_of(act, when.moment)] = None
        if len(drawn) == pairs:
            break
    assert len(drawn) == pairs


def test_what_waits_for_a_takeover_or_a_broken_ensemble_is_given_one() -> None:
    alone = 0
    for seed in range(300):
        faults = draw_faults(Random(seed), Shape(), 8.0)
        waits = [f for f in faults if isinstance(f.when, On) and STEP_OF[f.when.moment] in CAUSED]
        alone += bool(waits) and not any(isinstance(f.when, At) for f in faults)
    assert alone < 60


TOPIC = "persistent://public/default/t1"
PER_CONNECTION = "daybook.broker.ownership.peers.Peers._monitor"
OF_A_LIST = f"{_read_all.__module__}.{_read_all.__qualname__}.<locals>.read"
CONSUME = Consume("c1-t1", "client-1", TOPIC, "s1")
SMALL = Plan(
    seed=7,
    shape=Shape(bookies=3, brokers=2),
    topics=(Topic(TOPIC),),
    work=(
        Produce("p1-t1", "client-1", TOPIC, messages=20),
        Produce("p2-t1", "client-1", TOPIC, messages=20),
        CONSUME,
    ),
    faults=(
        Mishap("f1", At(0.5), Freeze("broker-1", 1.0)),
        Mishap("f2", At(0.6), Kill("bookie-1", 1.0, power=True)),
    ),
    storm_s=4.0,
)


def test_a_run_does_what_its_plan_says() -> None:
    outcome = simulate(SMALL)
    assert outcome.violations == []
    assert outcome.count(Ok) == 42  # and two sends that show that the topic takes messages
    assert outcome.count(Deliver) >= 42
    assert outcome.marks["fault Kill"] == outcome.marks["fault Freeze"] == 1
    assert check(outcome.events) == []


def test_a_consumer_that_lacks_a_message_is_noticed_before_the_drain_heals_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another consumer receives everything in the end: only the living consumer shows the loss."""
    plain = TopicConsumer.on_delivery

    def lossy(self: TopicConsumer, delivery: Delivery) -> None:
        if delivery.entry_id % 5 or self._settings.consumer_name != "c1-t1.0":
            plain(self, delivery)

    monkeypatch.setattr(TopicConsumer, "on_delivery", lossy)
    outcome = simulate(replace(SMALL, faults=()))
    assert any(each.startswith("stalled: ") for each in outcome.violations)


def test_a_consumer_that_its_broker_has_and_nobody_else_is_a_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(self: TopicConsumer, connection: BrokerConnection) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(TopicConsumer, "_close_at_broker", silent)
    work = (SMALL.work[0], replace(CONSUME, type="shared", leave=0.5))
    outcome = simulate(replace(SMALL, work=work, faults=()))
    assert any("which no client has" in each for each in outcome.violations)


def test_what_goes_within_a_moment_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 4000306: a policy deleted a subscription just then, and its cursor went after it."""
    # The checker looks twice while clients are there, and asks both brokers each time.
    looks: tuple[list[str], ...] = (["a cursor"], [], ["a consumer"], ["a consumer"])
    answers: Iterator[list[str]] = iter([each for look in looks for each in (look, [])])
    monkeypatch.setattr(run, "leaks", lambda *_: next(answers, []))
    outcome = simulate(replace(SMALL, faults=()))
    assert [each for each in outcome.violations if "leak" in each] == ["leak: a consumer"]


def test_permits_that_do_not_come_back_are_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicConsumer, "_give_permits", lambda *args: None)
    work = (SMALL.work[0], replace(CONSUME, queue=20))
    outcome = simulate(replace(SMALL, work=work, faults=()))
    assert any("0 permits for c1-t1.0" in each for each in outcome.violations)


def test_a_task_that_is_left_is_a_leak() -> None:
    async def main(_: Scheduler) -> list[str]:
        HOST.set("broker-1#1")
        async with trio.open_nursery() as nursery:
            names = [*3 * ["broker.many"], *3 * [PER_CONNECTION], *3 * [OF_A_LIST]]
            for name in ("daybook.managed_ledger.left", *names):
                nursery.start_soon(trio.sleep_forever, name=name)
            await trio.lowlevel.checkpoint()
            found = tasks_left("broker-1#1", connections=3)
            nursery.cancel_scope.cancel()
        return found

    assert scheduler.run(main, seed=1) == [
        "broker-1#1 runs 3 times broker.many",
        "broker-1#1 runs 1 times daybook.managed_ledger.left, and has no topic",
    ]


def test_an_error_that_no_fault_explains_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: Consumer, messages: object) -> None:
        raise NotAllowedError(pb.NotAllowedError, "a test says so")

    monkeypatch.setattr(Consumer, "ack", refuse)
    outcome = simulate(replace(SMALL, faults=()))
    assert any(each.startswith("refusal: c1-t1: ack: NotAllowed") for each in outcome.violations)


def test_nothing_of_a_run_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, each run left its whole world behind, held by a message that a client had."""
    worlds: list[ref[Cluster]] = []

    class Noted(Cluster):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            worlds.append(ref(self))

    monkeypatch.setattr(run, "Cluster", Noted)
    killed = tuple(
        Mishap(f"f{n}", At(0.6), Kill(host, 1.0))
        for n, host in enumerate(("bookie-1", "broker-1", "client-1"))
    )
    outcome = simulate(replace(SMALL, faults=killed))
    gc.collect()
    assert outcome.violations == []
    assert outcome.marks["fault Kill"] == len(killed)
    assert [world() for world in worlds] == [None]


KILLED = Mishap("f1", On("add", 20), Kill("subject", 3.0))
RARE: dict[str, tuple[Mishap, ...]] = {
    "recovery joined": (KILLED, Mishap("f2", On("ledger in recovery"), Kill("subject", 4.0))),
    "recovery closed with a new fragment": (
        KILLED,
        Mishap("f2", On("recovery add"), Kill("peer", 6.0)),
    ),
    "fenced": (
        Mishap("f1", On("add", 20), acts.SlowLink("subject", "", 8.0, 10_000.0, 1e9)),
        Mishap("f2", On("add", 20), acts.LoseContact("subject", 6.0)),
    ),
}


@pytest.mark.parametrize("mark", RARE)
def test_what_plans_seldom_meet_can_be_met(mark: str) -> None:
    shape = Shape(bookies=4, settings=Settings(quorums=(3, 3, 2)))
    work = (Produce("p1-t1", "client-1", TOPIC, messages=100, pace_s=0.02, burst=1),)
    plan = replace(SMALL, seed=6, shape=shape, work=work, storm_s=8.0, power_cycle=False)
    outcome = simulate(replace(plan, faults=RARE[mark]))
    assert outcome.violations == []
    assert (outcome.marks + marks_of(outcome.events))[mark] > 0


def test_acknowledgements_with_a_receipt_stay_where_parts_of_batches_are_forgotten() -> None:
    """Brokers are killed, and retention removes what is acknowledged."""
    name = "persistent://public/default/t1"
    limits = settings.Limits(partial_bytes_max=200)
    small = Settings(roll_entries=3, retention=False, trim_interval_s=3.0, limits=limits)
    work = (
        Produce("p1-t1", "client-1", name, 100, 0.03, 5),
        Consume("c1a-t1", "client-1", name, "s1", "failover", linger_s=0.1),
        Consume("c1b-t1", "client-2", name, "s1", "failover", linger_s=0.1),
    )
    kills = tuple(
        Mishap(f"k{number}", At(1.5 + 0.5 * number), Kill(f"broker-{1 + number % 2}", 0.3))
        for number in range(4)
    )
    shape = Shape(clients=2, settings=small)
    killed = Plan(5, shape, (Topic(name),), work, kills, 4.0, power_cycle=False)
    assert simulate(killed).violations == []


def test_a_spare_takes_the_place_of_a_bookie_that_is_stuck() -> None:
    """Sends wait longer than the time-out only if no bookie can replace the stuck one."""
    name = "persistent://public/default/t1"
    shape = Shape(3, 1, 2, settings=Settings(quorums=(2, 2, 2)))
    work = (Produce("p1-t1", "client-2", name, 50, 0.1, burst=1, batching=False),)
    faults = (Mishap("f1", At(2.6), acts.StuckDisk("bookie-1", 8.0)),)
    spare = Plan(915097, shape, (Topic(name),), work, faults, 10.0, power_cycle=False)
    outcome = simulate(spare)
    assert outcome.violations == []
    versions = [e.event for e in outcome.events if isinstance(e.event, LedgerVersion)]
    assert any(len(each.fragments) > 1 for each in versions)


def test_watching_a_run_changes_nothing_of_it() -> None:
    lines: list[str] = []
    assert trace(SMALL, lines.append).line == simulate(SMALL).line
    assert any("the storm begins" in line for line in lines)
    assert any("ledger created" in line for line in lines)


def test_a_bookie_that_came_later_is_healed_as_well() -> None:
    """Seed 500070, once: it had no contact with the metadata store forever."""
    shape = Shape(bookies=4, settings=Settings(quorums=(3, 3, 2), recovery=AutoRecovery()))
    faults = (
        Mishap("f1", At(0.5), acts.LoseDisk("bookie-1", 0.1)),
        Mishap("f2", At(3.0), acts.LoseContact("bookie-5", 1000.0)),
    )
    outcome = simulate(replace(SMALL, shape=shape, faults=faults, storm_s=5.0))
    assert outcome.violations == []
    assert outcome.marks["fault LoseContact"] == 1


def test_faults_that_outlast_the_storm_end_with_it() -> None:
    """Seed 281, once: a full disk was emptied after the run, in a nursery that was gone."""
    for_ever = 1000.0
    kinds: list[acts.Act] = [
        acts.FullDisk("bookie-1", for_ever, hard=True),
        acts.Kill("bookie-2", for_ever, silent=True),
        acts.Cut("broker-1", "bookie-3", for_ever),
        acts.Swizzle(("bookie-1", "broker-2"), ("broker-2", "bookie-1"), 3.0),
        acts.Stutter("broker-2", for_ever, 0.1, 0.1),
        acts.CrashLoop("bookie-3", 100, 0.1, 0.1),
        acts.DriftClock("client-1", for_ever, 3.0),
        acts.StuckDisk("bookie-1", for_ever),
        acts.LateNotices("broker-1", for_ever),
        acts.Restart("broker-1", for_ever),
        acts.Restart("bookie-3", 3.5),
        acts.Deafen("broker-1", for_ever),
        acts.Refuse(for_ever, 1.0, "/managed-ledgers"),
    ]
    for act in kinds:
        outcome = simulate(replace(SMALL, faults=(Mishap("f", At(1.0), act),)))
        assert outcome.violations == [], act
        assert outcome.marks[f"fault {type(act).__name__}"] == 1


def test_a_host_is_killed_in_the_moment_in_which_it_is_asked_to_stop() -> None:
    """Seed 200078, once: the host was asked to stop when it was dead already."""
    both: list[acts.Act] = [acts.Restart("broker-1", 0.5), acts.Kill("broker-1", 0.5)]
    faults = tuple(Mishap(f"f{n}", At(1.0), act) for n, act in enumerate(both))
    assert simulate(replace(SMALL, faults=faults)).violations == []


def test_a_bookie_joins_later() -> None:
    outcome = simulate(replace(SMALL, faults=(Mishap("f", At(1.0), acts.Join("bookie-3")),)))
    assert outcome.violations == []
    assert outcome.count(Ok) == 42


def test_parts_have_chance_of_their_own() -> None:
    """Without this, shrinking would change the remaining parts."""
    alone = simulate(replace(SMALL, work=SMALL.work[:1], faults=()))
    together = simulate(replace(SMALL, faults=()))
    sizes = [
        [e.event.position for e in outcome.events if isinstance(e.event, Ok)]
        for outcome in (alone, together)
    ]
    assert len(sizes[0]) == 22
    assert len(sizes[1]) == 42
    first = [e.event for e in alone.events if getattr(e.event, "producer", "") == "p1-t1.0"]
    assert [event.value for event in first if hasattr(event, "value")] == [
        f"p1-t1.0/{seq}" for seq in range(20)
    ]


def fails_with_f2(plan: Plan) -> Outcome:
    """Simulate a cluster that loses data when bookie-1 is killed while p1 works."""
    broken = any(fault.name == "f2" for fault in plan.faults)
    working = any(work.name == "p1-t1" for work in plan.work)
    violations = ["lost-write: t1 p1-t1.0/3: gone"] if broken and working else []
    return Outcome(plan, violations)


def test_a_failing_plan_is_made_small() -> None:
    smaller = shrink(fails_with_f2(SMALL), run=fails_with_f2)
    assert [fault.name for fault in smaller.plan.faults] == ["f2"]
    assert [work.name for work in smaller.plan.work] == ["p1-t1"]
    assert smaller.plan.shape == Shape(bookies=1, brokers=1)
    assert rule_of(smaller) == "lost-write"


def test_a_plan_is_printed_as_python_that_makes_it_again() -> None:
    names = {**vars(acts), **vars(plan), **vars(settings)}
    for drawn in (SMALL, *map(draw_plan, range(20))):
        assert eval(as_python(drawn), names) == drawn


def test_a_failure_is_explained() -> None:
    lines: list[str] = []
    outcome = simulate(SMALL)
    outcome.violations = [f"lost-write: {TOPIC} p1-t1.0/3: p1-t1.0 had a receipt for 0:3"]
    explain(outcome, lines.append)
    text = "\n".join(lines)
    assert "f2 at 0.600 s: Kill host=bookie-1" in text
    assert "Send(topic='persistent://public/default/t1', producer='p1-t1.0', seq=3" in text
    assert "add 0:3" in text
    assert "NOT THE SAME RUN" not in text


def test_marks_count_what_was_met() -> None:
    acts_there: tuple[acts.Act, ...] = (acts.Reset("subject"), acts.LateNotices("subject", 1.0))
    struck = (Mishap(f"f{i}", On("list changed"), act) for i, act in enumerate(acts_there))
    outcome = simulate(replace(SMALL, faults=tuple(struck)))
    marks = outcome.marks + marks_of(outcome.events)
    assert marks["ok"] == 42
    assert marks["ledger created"] > 0
    lines = table([marks, Counter()])
    assert lines[0].endswith("in 2 runs")
    assert len(lines) > len(SOMETIMES)
    assert lines[-1].startswith("never: ")
    pairs = next(line for line in lines if line.endswith("pairs were met"))
    assert pairs == f"2 of {len(KINDS) * len(ALL_STEPS)} pairs were met"
