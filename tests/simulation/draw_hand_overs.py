"""Draws planned hand-overs of bundles, and faults that strike while they are carried out."""

from dataclasses import replace
from random import Random

from tests.simulation import acts
from tests.simulation.acts import PEER, SUBJECT, Act, At, On
from tests.simulation.plan import Administer, Consume, Mishap, Plan, Produce, Topic, Work
from tests.simulation.steps import HAND_OVER

_SHARE = 0.2  # a share of the runs with several brokers
_UNDISTURBED = 0.3  # share of these runs in which nothing else strikes
_CALM_STORM_S = 8.0  # their length
_MANY = 0.4  # share of these runs that have so many topics in one bundle that it moves in groups
_PARTITIONS = 6
_CAUSES = ("drain", "drain", "restart", "unload bundle", "split bundle")


def draw_hand_overs(plan: Plan, rng: Random) -> Plan:
    """Move the bundles of brokers in some runs, while faults strike."""
    shape = plan.shape
    silent = any(each.name.startswith("s") for each in plan.faults)
    if shape.brokers == 1 or silent or rng.random() >= _SHARE:
        return plan
    undisturbed = rng.random() < _UNDISTURBED
    if undisturbed:
        plan = replace(plan, faults=(), storm_s=_CALM_STORM_S)
    many = rng.random() < _MANY
    settings = replace(shape.settings, http=True, bundles=1 if many else rng.choice([1, 4, 16]))
    plan = replace(plan, shape=replace(plan.shape, settings=settings))
    if many:
        plan = _with_many_topics(plan, rng)
    for number in range(rng.choice([1, 2, 3])):
        plan = _with_cause(plan, rng, number + 1)
    if undisturbed:
        return plan
    strikes = tuple(
        Mishap(f"h{number + 1}", _when(rng), _strike(rng)) for number in range(rng.choice([1, 2]))
    )
    return replace(plan, faults=(*plan.faults, *strikes))


def _with_many_topics(plan: Plan, rng: Random) -> Plan:
    topic = Topic("persistent://public/default/t9", _PARTITIONS)
    client = rng.choice(plan.shape.client_names())
    work: tuple[Work, ...] = (
        Produce("p1-t9", client, topic.name, 30, pace_s=0.1),
        Consume("c1a-t9", client, topic.name, "s1", rng.choice(["exclusive", "shared"])),
    )
    return replace(plan, topics=(*plan.topics, topic), work=(*plan.work, *work))


def _with_cause(plan: Plan, rng: Random, number: int) -> Plan:
    cause, at_s = rng.choice(_CAUSES), rng.uniform(0.3, plan.storm_s * 0.7)
    broker = rng.choice(plan.shape.broker_names())
    match cause:
        case "drain":
            fault = Mishap(f"d-h{number}", At(at_s), acts.Drain(broker, rng.choice([0.1, 2.5])))
        case "restart":
            fault = Mishap(f"r-h{number}", At(at_s), acts.Restart(broker, 5.0))
        case _:
            client, topic = rng.choice(plan.shape.client_names()), rng.choice(plan.topics).name
            act = Administer(f"move{number}", client, cause, topic, at_s)
            return replace(plan, work=(*plan.work, act))
    return replace(plan, faults=(*plan.faults, fault))


def _when(rng: Random) -> On:
    moment = rng.choice(HAND_OVER.moments)
    after_s = rng.choice([0.0, rng.uniform(0.0, 0.003), rng.uniform(0.0, 0.05)])
    return On(moment.name, rng.choice(moment.nth), after_s)


def _strike(rng: Random) -> Act:
    """Draw a fault of the broker that gives a bundle (the subject), or of the one that takes it."""
    one, other = rng.choice([(SUBJECT, PEER), (PEER, SUBJECT)])
    for_s = rng.choice([0.3, 1.5, 3.0])
    kinds: list[Act] = [
        acts.Kill(one, for_s),
        acts.Kill(one, 0.05, silent=True),
        acts.Freeze(one, for_s),
        acts.Cut(one, other, for_s, one_way=rng.random() < 0.5),
        acts.Reset(one, other),
        acts.LoseContact(one, for_s),
        acts.Expire(one),
        acts.Deafen(one, for_s),
        acts.Outage(for_s),
        acts.Drain(one, 0.1),
        acts.Flaky(for_s, 0.1, 0.1, 0.1),
    ]
    return rng.choice(kinds)
