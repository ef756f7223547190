"""The counts of what plans draw include the kinds that no plan draws."""

from tests.simulation.acts import At, Drain, Kill
from tests.simulation.draws import drawn, table
from tests.simulation.nemesis import draw_plan
from tests.simulation.plan import (
    Carry,
    Consume,
    Latest,
    Mishap,
    Plan,
    Produce,
    Restrict,
    Shape,
    Topic,
)
from tests.simulation.settings import AutoRecovery, Settings
from tests.simulation.workloads.restrict import EXPIRE, POLICIES
from tests.simulation.workloads.routes import HOWS

T = "persistent://public/default/t1"
PLAN = Plan(
    seed=1,
    shape=Shape(settings=Settings(racks=2, recovery=AutoRecovery(thorough=True))),
    topics=(Topic(T, 2),),
    work=(
        Produce("p1", "client-1", T, 5, named=True),
        Produce("p2", "client-1", T, 5, named=True),
        Consume("c1", "client-1", T, "s1"),
    ),
    faults=(Mishap("f1", At(1.0), Kill("bookie-1", 0.1)),),
)


def test_what_a_plan_has_beside_the_usual_is_counted() -> None:
    assert drawn(PLAN) == {
        "fault Kill": 1,
        "work Produce": 2,
        "work Consume": 1,
        "Shape.settings": 1,
        "Settings.racks": 1,
        "Settings.recovery": 1,
        "AutoRecovery.thorough": 1,
        "Topic.partitions": 1,
        "Produce.named": 2,
    }


def test_the_table_has_runs_and_totals_also_of_what_is_never_drawn() -> None:
    lines = table([PLAN, PLAN])
    assert lines[0] == " in runs   in all  drawn, in 2 runs"
    assert "       2        4  Produce.named" in lines
    assert "       0        0  fault Join" in lines


def test_every_kind_of_work_is_drawn() -> None:
    lines = table(map(draw_plan, range(500)))
    assert [line for line in lines if line.startswith("       0 ") and "  work " in line] == []


def test_every_feature_is_drawn_in_200_runs() -> None:
    plans = [draw_plan(seed) for seed in range(200)]
    hows = {each.how for plan in plans for each in plan.work if isinstance(each, Restrict | Carry)}
    assert hows >= {*POLICIES, EXPIRE, *HOWS}
    faults = {type(each.act) for plan in plans for each in plan.faults}
    assert Drain in faults
    settings = [plan.shape.settings for plan in plans]
    assert any(each.unacked_max for each in settings)
    assert any(each.subscription_expiry_s for each in settings)
    latest = [each for plan in plans for each in plan.work if isinstance(each, Latest)]
    assert any(each.subscription for each in latest)
    partitioned = {
        (plan.seed, each.name) for plan in plans for each in plan.topics if each.partitions
    }
    read = {
        (plan.seed, each.topic) for plan in plans for each in plan.work if isinstance(each, Latest)
    }
    assert partitioned & read
