"""Draws work that uses one feature of topics, in some runs.

Each kind has a generator of its own, so that the rest of a seed's plan does not change.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from tests.simulation.acts import At, DriftClock, JumpClock, Reset
from tests.simulation.draw_hand_overs import draw_hand_overs
from tests.simulation.draw_many_topics import draw_many_topics
from tests.simulation.draw_takeovers import draw_takeovers
from tests.simulation.plan import (
    Administer,
    Carry,
    Consume,
    Latest,
    Mishap,
    Plan,
    Produce,
    Restrict,
    Spoil,
    Topic,
    Work,
)
from tests.simulation.workloads.restrict import EXPIRE

_RESTRICTED = 0.2
_CARRIED = 0.2
_SPREAD = 0.5  # share of the pipes whose target has partitions
_SMALL_LIMIT = 20_000
_LIMITED_RATE = 0.15
_RESETS = 6
_CHANGING = 0.2
_EXPIRING = 0.25  # share of the runs without routes and with clocks that are right
_LIMITED_UNACKED = 0.3  # share of the runs with shared subscriptions and readable entries
_COMPACTED_PARTITIONS = 0.5
_COMPACTED_CONSUMERS = 0.5  # share of the topics that are compacted
_COMPACTED = 0.25  # share of runs; all of them, of the seeds of a feature


def _compaction(plan: Plan, rng: Random) -> Plan:
    """Compact the topics without partitions of some runs, and read the latest of each key."""
    if rng.random() >= _COMPACTED:
        return plan
    return _compacted(plan, rng, [each for each in plan.topics if not each.partitions])


def _compaction_of_partitions(plan: Plan, rng: Random) -> Plan:
    """Do the same with topics that have partitions."""
    topics = [each for each in plan.topics if each.partitions]
    if not topics or rng.random() >= _COMPACTED_PARTITIONS:
        return plan
    return _compacted(plan, rng, topics)


def _compaction_consumers(plan: Plan, rng: Random) -> Plan:
    """Add consumers that read the latest of each key to some topics that are compacted."""
    latest = [each for each in plan.work if isinstance(each, Latest) and each.name[6] == "1"]
    consumers = tuple(
        Latest(
            each.name.replace("latest1", "latest9"),
            rng.choice(plan.shape.client_names()),
            each.topic,
            again=rng.choice([0.0, 0.1, 0.3]),
            subscription="latest",
        )
        for each in latest
        if rng.random() < _COMPACTED_CONSUMERS
    )
    return replace(plan, work=(*plan.work, *consumers))


def _compacted(plan: Plan, rng: Random, topics: Sequence[Topic]) -> Plan:
    """Compact topics, read the latest of their keys, and send tombstones."""
    work = list(plan.work)
    for topic in topics:
        short, hosts = topic.name[-2:], plan.shape.client_names()
        work += [
            Administer(
                f"compact{number + 1}-{short}",
                rng.choice(hosts),
                "compact",
                topic.name,
                rng.uniform(0.0, plan.storm_s),
            )
            for number in range(rng.choice([1, 2, 4]))
        ]
        work += [
            Latest(
                f"latest{number + 1}-{short}",
                rng.choice(hosts),
                topic.name,
                view=rng.random() < 0.5,
                again=rng.choice([0.0, 0.1]),
            )
            for number in range(rng.choice([1, 1, 2]))
        ]
    share = rng.choice([0.0, 0.1, 0.3])
    return replace(
        plan,
        work=tuple(
            replace(each, tombstones=share) if isinstance(each, Produce) else each for each in work
        ),
    )


def _policies(plan: Plan, rng: Random) -> Plan:
    """Set policies that take effect in some runs in which all clocks are right."""
    wrong = any(isinstance(each.act, JumpClock | DriftClock) for each in plan.faults)
    if wrong or rng.random() >= _RESTRICTED:
        return plan
    hows = ["ttl", "evict by age", "hold", "refuse", EXPIRE]
    settings = plan.shape.settings
    if settings.retention:
        hows += ["evict by size"]
    topic, how = rng.choice(plan.topics), rng.choice(hows)
    by_size = how in ("evict by size", "hold", "refuse")
    limit = rng.choice([500, 3_000]) if by_size else rng.choice([1, 2])
    work = list(plan.work)
    consumers = [each for each in work if isinstance(each, Consume) and each.topic == topic.name]
    subscriptions = [each.subscription for each in consumers] or ["s1"]
    if how == "evict by size":
        work = [_of_one_size(each, topic.name) for each in work]
    works = [
        Restrict(
            f"restrict{number + 1}",
            rng.choice(plan.shape.client_names()),
            topic.name,
            how,
            limit,
            rng.uniform(0.0, plan.storm_s * 0.7),
            rng.choice([2.0, 5.0, 1000.0]),
            rng.choice(subscriptions) if how == EXPIRE else "",
        )
        for number in range(rng.choice([1, 3]) if how == EXPIRE else 1)
    ]
    settings = replace(settings, policy_check_interval_s=rng.choice([0.2, 0.5, 2.0]))
    shape = replace(plan.shape, settings=settings)
    return replace(plan, shape=shape, work=(*work, *works))


def _of_one_size(work: Work, topic: str) -> Work:
    """Return a producer whose entries are equal, because evictions go by their average."""
    if not isinstance(work, Produce) or work.topic != topic:
        return work
    return replace(
        work,
        batching=False,
        payload_bytes=300,
        key_bytes=0,
        property_bytes=0,
        compression="none",
        tombstones=0.0,
    )


def _routes(plan: Plan, rng: Random) -> Plan:
    """Bring messages through features that have topics of their own, in some runs."""
    # A topic that nobody subscribes to keeps its messages by retention only.
    if rng.random() >= _CARRIED or not plan.shape.settings.retention:
        return plan
    most = plan.shape.settings.message_bytes_max
    hows = ["pipe", "dead letters", "volatile"]
    # A retry names a time, by the clock of its client.
    if not any(isinstance(each.act, JumpClock) for each in plan.faults):
        hows.append("retries")
    # Chunks of a usual size would make a run slow.
    if most <= _SMALL_LIMIT:
        hows += ["chunks", "chunks"]
    how = rng.choice(hows)
    work = Carry(
        "route1",
        rng.choice(plan.shape.client_names()),
        how,
        messages=rng.choice([3, 10, 30]),
        pace_s=rng.choice([0.02, 0.1, 0.3]),
        payload_bytes=rng.choice([2, 3]) * most if how == "chunks" else 20,
        again=rng.choice([0.0, 0.1]),
        at_s=rng.choice([0.0, rng.uniform(0.0, plan.storm_s / 2)]),
    )
    if how == "pipe" and rng.random() < _SPREAD:
        work = replace(work, how="spread pipe")
    return replace(plan, work=(*plan.work, work))


def _changing_topics(plan: Plan, rng: Random) -> Plan:
    """Let topics come and go, in some runs: those of a pattern, or those that nobody uses."""
    wrong = any(isinstance(each.act, JumpClock | DriftClock) for each in plan.faults)
    if wrong or rng.random() >= _CHANGING or not plan.shape.settings.retention:
        return plan
    how = rng.choice(["pattern", "unused"])
    settings = plan.shape.settings
    if how == "unused":
        # A topic is deleted when all of its ledgers are.
        settings = replace(
            settings, roll_age_s=0.5, trim_interval_s=0.5, policy_check_interval_s=0.3
        )
    work = Carry(
        "route2",
        rng.choice(plan.shape.client_names()),
        how,
        messages=rng.choice([10, 30]),
        pace_s=rng.choice([0.02, 0.1]),
        again=rng.choice([0.0, 0.3]),
    )
    shape = replace(plan.shape, settings=settings)
    return replace(plan, shape=shape, work=(*plan.work, work))


def _rates(plan: Plan, rng: Random) -> Plan:
    """Limit the rate of producers, consumers or subscribes of a topic for a while."""
    if rng.random() >= _LIMITED_RATE:
        return plan
    topic = rng.choice(plan.topics).name
    how = rng.choice(["publish rate", "dispatch rate", "subscription rate", "subscribe rate"])
    limit = rng.choice([1, 2]) if how == "subscribe rate" else rng.choice([3, 10, 30])
    restrict = Restrict(
        "rate1",
        rng.choice(plan.shape.client_names()),
        topic,
        how,
        limit,
        rng.uniform(0.0, plan.storm_s / 2),
        rng.choice([2.0, 5.0, 1000.0]),
    )
    # An entry is delivered as a whole, and large ones would hide what is delivered too much.
    work = (
        replace(each, batching=False) if isinstance(each, Produce) and each.topic == topic else each
        for each in plan.work
    )
    faults = plan.faults
    if how == "subscribe rate":
        # Consumers subscribe again, and the topic stays where it is.
        resets = (At(rng.uniform(0.0, plan.storm_s)) for _ in range(_RESETS))
        hosts = plan.shape.client_names()
        faults += tuple(
            Mishap(f"q{number}", at, Reset(rng.choice(hosts))) for number, at in enumerate(resets)
        )
    return replace(plan, work=(*work, restrict), faults=faults)


def _unacked(plan: Plan, rng: Random) -> Plan:
    """Limit the unacknowledged messages of a broker in some runs with shared subscriptions."""
    shared = any(isinstance(each, Consume) and "shared" in each.type for each in plan.work)
    # Nobody acknowledges an entry that nobody can read, so it would count for ever.
    spoiled = any(isinstance(each, Spoil) for each in plan.work)
    if not shared or spoiled or rng.random() >= _LIMITED_UNACKED:
        return plan
    settings = replace(plan.shape.settings, unacked_max=rng.choice([4, 10, 30]))
    return replace(plan, shape=replace(plan.shape, settings=settings))


def _expiry(plan: Plan, rng: Random) -> Plan:
    """Let subscriptions expire in some runs in which all clocks are right."""
    wrong = any(isinstance(each.act, JumpClock | DriftClock) for each in plan.faults)
    # A route expects that its subscription stays.
    carried = any(isinstance(each, Carry) for each in plan.work)
    if wrong or carried or rng.random() >= _EXPIRING:
        return plan
    settings = replace(
        plan.shape.settings,
        subscription_expiry_s=rng.choice([0.5, 1.5, 3.0]),
        policy_check_interval_s=rng.choice([0.2, 0.5]),
    )
    work = (
        replace(each, leave=0.2, away_s=rng.choice([1.0, 5.0]))
        if isinstance(each, Consume) and rng.random() < 0.5
        else each
        for each in plan.work
    )
    return replace(plan, shape=replace(plan.shape, settings=settings), work=tuple(work))


FEATURES: tuple[Callable[[Plan, Random], Plan], ...] = (
    _compaction,
    _policies,
    _routes,
    draw_hand_overs,
    _compaction_of_partitions,
    _compaction_consumers,
    _rates,
    _unacked,
    _changing_topics,
    _expiry,
    draw_takeovers,
    draw_many_topics,
)
