"""Draws clients with many topics, and faults that strike while brokers load many of them."""

from dataclasses import replace
from random import Random

from tests.simulation import acts
from tests.simulation.acts import SUBJECT, Act, At, On
from tests.simulation.plan import Administer, ManyTopics, Mishap, Plan, Shape
from tests.simulation.settings import Limits

_SHARE = 0.09  # share of the runs with retention: 5 % of all
_STORM_S = 8.0  # at least: the others notice the end of a session after two seconds
_TOPICS = (40, 40, 40, 60, 60, 60, 100, 100, 150, 250)
_LIMITED = 0.5
_GROUPED = 0.7
_FIRST = 0.4  # share of the strikes at the first loads; the others wait for a takeover
_MOVED = 0.4  # share of the runs in which bundles move meanwhile


def draw_many_topics(plan: Plan, rng: Random) -> Plan:
    """Use many topics in some runs, and strike while brokers load them."""
    silent = any(each.name.startswith("s") for each in plan.faults)
    # Topics without a subscription keep their messages by retention only.
    if silent or not plan.shape.settings.retention or rng.random() >= _SHARE:
        return plan
    shape = replace(_limited(plan.shape, rng), brokers=max(plan.shape.brokers, rng.choice([1, 2])))
    plan = replace(plan, shape=shape, storm_s=max(plan.storm_s, _STORM_S))
    work = _work(plan, rng)
    at_s = rng.uniform(0.2, 0.5) * plan.storm_s
    faults = [Mishap("c-b", At(at_s), _cause(rng, shape.broker_names()))]
    for number in range(rng.choice([1, 1, 2, 3])):
        faults.append(Mishap(f"b{number + 1}", _when(rng, work.topics), _strike(rng, shape)))
    plan = replace(plan, work=(*plan.work, work), faults=(*plan.faults, *faults))
    return _moved(plan, rng, work, at_s)


def _limited(shape: Shape, rng: Random) -> Shape:
    """Draw how the topics are spread and how hosts write; in half of the runs, small limits."""
    settings = replace(
        shape.settings, bundles=rng.choice([1, 4, 16]), grouped_writes=rng.random() < _GROUPED
    )
    if rng.random() < _LIMITED:
        limits = replace(
            settings.limits,
            loads_at_once=rng.choice([1, 2, 3, 8]),
            slow_load_s=rng.choice([0.2, 1.0, Limits().slow_load_s]),
            requests_max=rng.choice([2, 5, 20]),
        )
        settings = replace(settings, limits=limits)
    return replace(shape, settings=settings)


def _work(plan: Plan, rng: Random) -> ManyTopics:
    # A subscription that expires is no place for messages.
    expires = plan.shape.settings.subscription_expiry_s > 0
    return ManyTopics(
        "many",
        rng.choice(plan.shape.client_names()),
        rng.choice(_TOPICS),
        wave=rng.choice([0, 0, 10, 40]),
        rounds=rng.choice([2, 3, 5]),
        messages=rng.choice([1, 2, 3]),
        pace_s=rng.choice([0.1, 0.5, 2.0]),
        keep=rng.random() < 0.6,
        moved=0.0 if expires else rng.choice([0.0, 0.2, 0.6]),
        unused=rng.choice([0.0, 0.3]),
    )


def _cause(rng: Random, brokers: list[str]) -> Act:
    """Draw what takes its topics from a broker."""
    broker = rng.choice(brokers)
    kill = acts.Kill(broker, rng.choice([0.1, 1.0, 4.0]))
    kinds: list[Act] = [
        kill,
        kill,
        acts.Kill(broker, 3.0, silent=True),
        acts.Restart(broker, 3.0),
        acts.Expire(broker),
        acts.LoseContact(broker, 4.0),
        acts.Freeze(broker, 4.0),
    ]
    return rng.choice(kinds)


def _when(rng: Random, topics: int) -> On:
    """Draw the moment at which so many loads have begun, or ended: the first, or a takeover's."""
    moment, each = rng.choice([("topic loaded", 1), ("list read", 2)])
    if rng.random() < _FIRST:
        nth = rng.randint(1, each * topics)
    else:
        nth = each * topics + rng.randint(1, max(1, topics // 2))
    return On(moment, nth, rng.choice([0.0, 0.0, rng.uniform(0.0, 0.02)]))


def _strike(rng: Random, shape: Shape) -> Act:
    """Draw a fault of the loading broker, or of what its loads need."""
    for_s, bookie = rng.choice([0.3, 1.5, 3.0]), rng.choice(shape.bookie_names())
    kill = acts.Kill(SUBJECT, rng.choice([0.05, 0.5, 3.0]))
    path = rng.choice(["", "/managed-ledgers", "/ledgers"])
    kinds: list[Act] = [
        kill,
        kill,
        acts.Freeze(SUBJECT, for_s),
        acts.Expire(SUBJECT),
        acts.LoseContact(SUBJECT, for_s),
        acts.LoseContact(SUBJECT, for_s),
        acts.LateNotices(SUBJECT, for_s, moves=rng.random() < 0.5),
        acts.Reset(SUBJECT),
        acts.Outage(for_s),
        acts.Refuse(for_s, rng.choice([0.1, 0.5, 1.0]), path),
        acts.Flaky(for_s, 0.05, 0.05, 0.05),
        acts.Flaky(for_s, stale=0.9),
        acts.Kill(bookie, for_s),
        acts.Kill(bookie, for_s, power=True),
        acts.StuckDisk(bookie, for_s),
    ]
    return rng.choice(kinds)


def _moved(plan: Plan, rng: Random, work: ManyTopics, at_s: float) -> Plan:
    """Unload or split bundles about the time of the takeover, in some runs."""
    if rng.random() >= _MOVED:
        return plan
    topic = f"persistent://public/default/{work.name}-0-0"
    moves = tuple(
        Administer(
            f"move-many{number + 1}",
            work.host,
            rng.choice(["unload bundle", "split bundle"]),
            topic,
            at_s + rng.uniform(-1.0, 4.0),
        )
        for number in range(rng.choice([1, 2, 4]))
    )
    return replace(plan, work=(*plan.work, *moves))
