"""Draws the loss of the owner of many topics, which are loaded together, and faults meanwhile."""

from dataclasses import replace
from random import Random

from tests.simulation import acts
from tests.simulation.acts import Act, At
from tests.simulation.plan import Consume, Mishap, Plan, Produce, Topic, Work

_SHARE = 0.12
_TOPICS = (12, 24, 40)
_NAME = "persistent://public/default/t8"


def draw_takeovers(plan: Plan, rng: Random) -> Plan:
    """Kill the owner of many topics in some runs, and strike while they are loaded."""
    if rng.random() >= _SHARE or any(each.name.startswith("s") for each in plan.faults):
        return plan
    topic = Topic(_NAME, rng.choice(_TOPICS))
    client = rng.choice(plan.shape.client_names())
    work: tuple[Work, ...] = (
        Produce("p1-t8", client, topic.name, 3 * topic.partitions, pace_s=0.05),
        Consume("c1a-t8", client, topic.name, "s1", rng.choice(["exclusive", "shared"])),
    )
    plan = replace(plan, topics=(*plan.topics, topic), work=(*plan.work, *work))
    at_s = rng.uniform(0.2, 0.6) * plan.storm_s
    brokers = plan.shape.broker_names()
    faults = [
        Mishap(f"k-o{number}", At(at_s), acts.Kill(broker, rng.choice([0.1, 1.0, 4.0])))
        for number, broker in enumerate(rng.sample(brokers, rng.randint(1, len(brokers))))
    ]
    if rng.random() < 0.7:
        # The others notice the end of a session after two seconds.
        faults.append(Mishap("f-o", At(at_s + rng.uniform(0.0, 4.0)), _strike(rng, brokers)))
    return replace(plan, faults=(*plan.faults, *faults))


def _strike(rng: Random, brokers: list[str]) -> Act:
    broker, for_s = rng.choice(brokers), rng.choice([0.3, 1.5, 3.0])
    kinds: list[Act] = [
        acts.Kill(broker, 0.1),
        acts.Freeze(broker, for_s),
        acts.Expire(broker),
        acts.LoseContact(broker, for_s),
        acts.Outage(for_s),
        acts.Flaky(for_s, 0.05, 0.05, 0.05, 0.5),
        acts.Flaky(for_s, stale=0.9),
    ]
    return rng.choice(kinds)
