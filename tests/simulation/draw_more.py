"""Draws additions to a plan: more hosts of clients, habits of applications, limits.

Each kind has a generator of its own, so that the rest of a seed's plan does not change.
"""

from dataclasses import replace
from random import Random

from tests.simulation.acts import (
    Act,
    At,
    Deafen,
    Freeze,
    Isolate,
    JumpClock,
    Kill,
    OldImage,
    On,
    Refuse,
    StuckDisk,
)
from tests.simulation.draw_features import FEATURES
from tests.simulation.plan import (
    Administer,
    Consume,
    Follow,
    Mishap,
    Plan,
    Produce,
    Shape,
    Spoil,
    TopicWork,
    Work,
    WriteLedgers,
)
from tests.simulation.settings import Limits, Settings
from tests.simulation.steps import STEPS

OTHER_NAMESPACE = "public/other"
_SMALL_LIMIT = 20_000  # bytes; the limit of messages in some runs
_SILENT = 0.06
_QUORUMS = (3, 3, 2)
_FOR_EVER_S = 1000.0
# A bookie without room refuses entries with a deferred sync one by one, and the writer sends all of
# them again ten seconds later.  With room for so many, a ledger has its end after a few rounds.
_DEFERRED_ENTRIES = 10
_SPOILED = 0.15  # share of topics
_SEVERAL_CLIENTS = (1, 2, 2, 3)


def draw_more(plan: Plan) -> Plan:
    draws = (_hosts, _habits, _spoilers, _flushes, _namespaces, _faults, _limits, _ports)
    for draw in (*draws, _deduplication, _one_silent, _key_shared, *FEATURES):
        plan = draw(plan, Random(f"{draw.__name__} {plan.seed}"))
    return plan


def _hosts(plan: Plan, rng: Random) -> Plan:
    """Spread clients over several machines in most runs."""
    shape = replace(plan.shape, clients=max(plan.shape.clients, rng.choice(_SEVERAL_CLIENTS)))
    names = shape.client_names()
    work = tuple(replace(each, host=rng.choice(names)) for each in plan.work)
    return replace(plan, shape=shape, work=work)


def _habits(plan: Plan, rng: Random) -> Plan:
    """Draw unusual behavior of applications."""
    jumps = any(isinstance(each.act, JumpClock) for each in plan.faults)
    limit = plan.shape.settings.message_bytes_max

    def chance(odds: float) -> bool:
        return rng.random() < odds

    def with_habits(work: Work) -> Work:
        give_up = rng.choice([0.0, 0.0, 0.2, 0.6])
        match work:
            case Produce():
                sizes = [300, 5_000] if limit > _SMALL_LIMIT else [300, limit // 3, limit]
                large = rng.choice(sizes) if chance(0.15) else 0
                return replace(
                    work,
                    give_up=give_up,
                    named=chance(0.25),
                    key_bytes=large if chance(0.5) else 0,
                    property_bytes=large if chance(0.7) else 0,
                    delay_s=2.0 if chance(0.15) and not jumps else 0.0,
                )
            case Consume():
                return replace(
                    work,
                    give_up=give_up,
                    flush=rng.choice([0.0, 0.1, 0.5]),
                    receivers=rng.choice([1, 1, 1, 2]),
                )
            case Follow():
                return replace(work, give_up=give_up)
            case _:
                return work

    return replace(plan, work=tuple(map(with_habits, plan.work)))


def _spoilers(plan: Plan, rng: Random) -> Plan:
    """Add entries that nobody can read to some topics."""
    spoilers = [
        Spoil(
            f"spoiler-{topic.name[-2:]}",
            rng.choice(plan.shape.client_names()),
            topic.name,
            rng.choice(["encrypted", "damaged"]),
            entries=rng.choice([1, 3, 20]),
            batch=rng.choice([1, 3, 20]),
            pace_s=rng.choice([0.02, 0.3]),
        )
        for topic in plan.topics
        if rng.random() < _SPOILED
    ]
    return replace(plan, work=(*plan.work, *spoilers))


def _flushes(plan: Plan, rng: Random) -> Plan:
    """Kill a broker right after acknowledgements were flushed: those messages do not come again."""
    if not any(isinstance(each, Consume) and each.flush for each in plan.work):
        return plan
    if rng.random() < 0.5:
        return plan
    when = On("acks flushed", rng.choice([1, 2, 5]), rng.choice([0.0, 0.01]))
    kill = Kill(rng.choice(plan.shape.broker_names()), rng.choice([0.05, 2.0]))
    return replace(plan, faults=(*plan.faults, Mishap("k1", when, kill)))


def _namespaces(plan: Plan, rng: Random) -> Plan:
    """Put the topics of a run with several into two namespaces."""
    if rng.random() < 0.5:
        return plan
    moved = {
        topic.name: topic.name.replace("public/default", OTHER_NAMESPACE)
        for number, topic in enumerate(plan.topics)
        if number % 2 == 0
    }
    topics = tuple(replace(each, name=moved.get(each.name, each.name)) for each in plan.topics)
    work = tuple(
        replace(each, topic=moved.get(each.topic, each.topic))
        if isinstance(each, TopicWork)
        else each
        for each in plan.work
    )
    return replace(plan, topics=topics, work=work)


def _faults(plan: Plan, rng: Random) -> Plan:
    """In some runs the store rejects writes, or a live host is taken for dead."""
    count = rng.choice([0, 0, 0, 1, 1, 2])
    mishaps = (
        Mishap(f"m{number}", *draw_refusal(rng, plan.shape, plan.storm_s))
        for number in range(count)
    )
    return replace(plan, faults=(*plan.faults, *mishaps))


def draw_refusal(rng: Random, shape: Shape, storm_s: float) -> tuple[At | On, Act]:
    """Draw a refusal: the metadata store's, or that of new connections to a host."""
    act: Act
    if rng.random() < 0.5:
        path = rng.choice(["", "/managed-ledgers", "/ledgers", "/namespace", "/loadbalance"])
        how = rng.choice(["NoAuthError", "the value is too large"])
        act = Refuse(rng.choice([0.3, 3.0]), rng.choice([0.1, 0.5, 1.0]), path, how)
    else:
        names = [*shape.broker_names(), *shape.broker_names(), *shape.bookie_names()]
        act = Deafen(rng.choice(names), rng.choice([0.5, 3.0, 8.0]))
    if rng.random() < 0.5:
        return At(rng.uniform(0.0, storm_s * 0.9)), act
    moment = rng.choice(rng.choice(STEPS).moments)
    return On(moment.name, rng.choice(moment.nth), rng.choice([0.0, rng.uniform(0.0, 0.1)])), act


def _largest_deferred(plan: Plan) -> int:
    """Return the size of the largest entry with a deferred sync, 0 if there is none."""
    writers = [each for each in plan.work if isinstance(each, WriteLedgers)]
    return max((each.payload_bytes for each in writers if each.manner == "deferred"), default=0)


def _limits(plan: Plan, rng: Random) -> Plan:
    """Draw limits so small that a run reaches them, each by itself, in some runs."""
    if rng.random() < 0.4:
        return plan

    def some(few: int, usual: int) -> int:
        return few if rng.random() < 0.3 else usual

    usual = Limits()
    message = plan.shape.settings.message_bytes_max
    deferred = _DEFERRED_ENTRIES * _largest_deferred(plan)
    limits = Limits(
        stuck_s=rng.choice([0.5, 3.0, 10.0, usual.stuck_s]),
        heal_interval_s=rng.choice([0.5, 5.0, usual.heal_interval_s]),
        flush_s=rng.choice([0.1, usual.flush_s]),
        pending_bytes_max=some(2 * message, usual.pending_bytes_max),
        read_bytes_max=some(1_000, usual.read_bytes_max),
        partial_bytes_max=some(200, usual.partial_bytes_max),
        requests_max=some(1, usual.requests_max),
        lookups_max=some(1, usual.lookups_max),
        dispatch_bytes_max=some(1_000, usual.dispatch_bytes_max),
        unread_bytes_max=some(5_000, usual.unread_bytes_max),
        arena_bytes_max=some(0, usual.arena_bytes_max),
        in_flight_bytes_max=some(max(2 * message, deferred), usual.in_flight_bytes_max),
        checkpoint_bytes=some(20_000, usual.checkpoint_bytes),
        recent_entries_max=some(0, usual.recent_entries_max),
        blocks_cached=some(2, usual.blocks_cached),
        return_s=rng.choice([0.5, usual.return_s]),
    )
    return _with_settings(plan, replace(plan.shape.settings, limits=limits))


def _ports(plan: Plan, rng: Random) -> Plan:
    """Give brokers an HTTP port in half of the runs; administrators use it, and bundles move."""
    if rng.random() < 0.5:
        return plan
    interval_s = rng.choice([0.5, 1.0, 3.0, 60.0])
    settings = replace(plan.shape.settings, http=True, balance_interval_s=interval_s)
    work = tuple(
        replace(each, http=rng.random() < 0.5) if isinstance(each, Administer) else each
        for each in plan.work
    )
    return _with_settings(replace(plan, work=work), settings)


def _deduplication(plan: Plan, rng: Random) -> Plan:
    """Deduplicate all topics in some runs, with snapshots that are often or rarely stored."""
    if rng.random() < 0.6:
        return plan
    limits = replace(
        plan.shape.settings.limits,
        deduplication_entries=rng.choice([1, 3, 20, 1_000]),
        deduplication_s=rng.choice([0.2, 1.0, 10.0]),
    )
    # Named producers repeat what is in doubt.
    work = tuple(
        replace(each, named=each.named or rng.random() < 0.5) if isinstance(each, Produce) else each
        for each in plan.work
    )
    settings = replace(plan.shape.settings, deduplication=True, limits=limits)
    return _with_settings(replace(plan, work=work), settings)


def _key_shared(plan: Plan, rng: Random) -> Plan:
    """Make some shared subscriptions key_shared, where no message asks to be delivered later."""
    late = {each.topic for each in plan.work if isinstance(each, Produce) and each.delay_s}
    shared = {
        (each.topic, each.subscription): rng.random() < 0.5
        for each in plan.work
        if isinstance(each, Consume) and each.type == "shared" and each.topic not in late
    }
    work = tuple(
        replace(each, type="key_shared")
        if isinstance(each, Consume) and shared.get((each.topic, each.subscription))
        else each
        for each in plan.work
    )
    return replace(plan, work=work)


def _one_silent(plan: Plan, rng: Random) -> Plan:
    """In some runs all is well except for one bookie, silent until the storm is over (L3)."""
    shape = plan.shape
    images = any(isinstance(each.act, OldImage) for each in plan.faults)
    if images or shape.bookies < _QUORUMS[0] or rng.random() >= _SILENT:
        return plan
    name = rng.choice(shape.bookie_names())
    kinds: list[Act] = [
        StuckDisk(name, _FOR_EVER_S),
        Freeze(name, _FOR_EVER_S),
        Isolate(name, _FOR_EVER_S),
        Kill(name, _FOR_EVER_S, silent=True),
    ]
    when = At(rng.uniform(0.0, plan.storm_s / 2))
    quorums = rng.choice([_QUORUMS, _QUORUMS, (2, 2, 2)])
    settings = replace(shape.settings, quorums=quorums, unsynced=False, limits=Limits())
    work = tuple(
        replace(each, quorums=quorums) if isinstance(each, WriteLedgers) else each
        for each in plan.work
    )
    plan = replace(plan, faults=(Mishap("s1", when, rng.choice(kinds)),), work=work)
    return _with_settings(plan, settings)


def _with_settings(plan: Plan, settings: Settings) -> Plan:
    return replace(plan, shape=replace(plan.shape, settings=settings))
