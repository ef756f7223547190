"""Balancing ends, never goes back and forth, and never moves a bundle twice in its cool-down."""

from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.broker.protocol.balance import (
    IDLE,
    Balance,
    BalanceSettings,
    BundleLoad,
    Decision,
    Kind,
    total,
)
from daybook.broker.protocol.bundles import BundleName

SETTINGS = BalanceSettings()
Cluster = dict[str, dict[BundleName, BundleLoad]]


def cluster(*weights: list[float]) -> Cluster:
    """Return brokers with bundles of these messages a second."""
    return {
        f"broker-{i}": {
            BundleName(f"t/n/{i}-{j}"): BundleLoad(messages=each) for j, each in enumerate(loads)
        }
        for i, loads in enumerate(weights)
    }


def settled(settings: BalanceSettings = SETTINGS) -> Balance:
    """Return a machine that has seen quiet brokers for long enough."""
    balance = Balance(settings)
    balance.decide(["s"], {}, -10_000.0)
    return balance


def carry_out(loads: Cluster, decision: Decision) -> None:
    loads[decision.target][decision.bundle] = loads[decision.source].pop(decision.bundle)


LOADS = st.lists(st.lists(st.floats(0, 20_000), max_size=8), min_size=1, max_size=5)


@settings(max_examples=40)
@given(LOADS)
def test_under_constant_load_moves_end_and_are_worth_it(weights: list[list[float]]) -> None:
    loads, balance, now_s = cluster(*weights), settled(), 0.0
    seen: set[tuple[tuple[str, ...], ...]] = set()
    # A bundle may come again when its cool-down is over, and the squares of all loads still fall.
    for _ in range(200):
        state = tuple(tuple(sorted(bundles)) for bundles in loads.values())
        before = sum(total(bundles) ** 2 for bundles in loads.values())
        decision = balance.decide(["s"], loads, now_s)
        if decision.kind is Kind.MOVE:
            assert state not in seen  # never back to what was
            seen.add(state)
            carry_out(loads, decision)
            assert sum(total(bundles) ** 2 for bundles in loads.values()) < before
        now_s += 700
    assert balance.decide(["s"], loads, now_s).kind is Kind.NOTHING


@settings(max_examples=40)
@given(LOADS, st.lists(st.floats(0.1, 5), min_size=60, max_size=60))
def test_no_bundle_moves_twice_in_its_cool_down(
    weights: list[list[float]], factors: list[float]
) -> None:
    """The loads change all the time; brokers rest, too."""
    loads, balance = cluster(*weights), settled()
    moved: dict[BundleName, float] = {}
    used: dict[str, float] = {}
    for step, factor in enumerate(factors):
        now_s = step * 30.0
        for bundles in loads.values():
            for j, bundle in enumerate(bundles):
                if (j + step) % 3 == 0:
                    bundles[bundle] = BundleLoad(messages=bundles[bundle].messages * factor + 1)
        decision = balance.decide(["s"], loads, now_s)
        if decision.kind is Kind.MOVE:
            assert now_s - moved.get(decision.bundle, -1e9) >= SETTINGS.bundle_cool_down_s
            moved[decision.bundle] = now_s
            for broker in (decision.source, decision.target):
                assert now_s - used.get(broker, -1e9) >= SETTINGS.broker_cool_down_s
                used[broker] = now_s
            carry_out(loads, decision)


def test_idle_brokers_are_balanced_by_their_bundles() -> None:
    one = settled().look(cluster([0, 0], [0]))
    assert one.kind is Kind.NOTHING
    two = settled().look(cluster([0, 0], []))
    assert (two.kind, two.source, two.target) == (Kind.MOVE, "broker-0", "broker-1")
    assert settled().look(cluster([0, 0])).reason == "there is no other broker"


def test_the_difference_has_to_be_large_also_as_a_share() -> None:
    assert settled().look(cluster([10_000, 400, 400], [10_000])).kind is Kind.NOTHING
    assert settled().look(cluster([10_000, 1_000, 1_000], [10_000])).kind is Kind.MOVE


def test_the_bundle_that_evens_most_moves() -> None:
    decision = settled().look(cluster([5_000, 4_000, 500], []))
    assert decision.bundle == "t/n/0-0"
    decision = settled().look(cluster([9_000, 4_000, 500], [3_000]))
    assert decision.bundle == "t/n/0-1"


def test_one_hot_bundle_alone_does_not_wander() -> None:
    assert settled().look(cluster([9_000], [])).kind is Kind.NOTHING


def test_nothing_moves_when_brokers_come_or_go() -> None:
    loads, balance = cluster([0, 0, 0, 0], []), Balance(SETTINGS)
    assert balance.decide(["a"], loads, 0).kind is Kind.NOTHING
    assert balance.decide(["a"], loads, 59).kind is Kind.NOTHING
    assert balance.decide(["a", "b"], loads, 61).kind is Kind.NOTHING
    assert "quiet" in balance.decide(["a", "b"], loads, 120).reason
    assert balance.decide(["a", "b"], loads, 121).kind is Kind.MOVE


def test_nothing_moves_after_the_store_was_away() -> None:
    loads, balance = cluster([0, 0, 0, 0], []), settled()
    balance.doubt(0.0)
    assert balance.decide(["s"], loads, 59).kind is Kind.NOTHING
    assert balance.decide(["s"], loads, 60).kind is Kind.MOVE


def test_a_bundle_that_moved_counts_with_its_old_load() -> None:
    """Its new owner has measured nothing yet, and must not get another one for that."""
    loads, balance = cluster([4_000, 4_000, 4_000, 4_000], []), settled()
    first = balance.decide(["s"], loads, 0)
    carry_out(loads, first)
    loads[first.target][first.bundle] = IDLE
    second = balance.decide(["s"], loads, 61)
    carry_out(loads, second)
    loads[second.target][second.bundle] = IDLE
    assert (first.kind, second.kind) == (Kind.MOVE, Kind.MOVE)
    assert balance.decide(["s"], loads, 122).kind is Kind.NOTHING


def test_a_bundle_above_a_limit_is_split() -> None:
    hot = {"one": {BundleName("t/n/a"): BundleLoad(topics=1001)}, "two": {}}
    decision = settled().decide(["s"], hot, 0)
    assert (decision.kind, decision.bundle, decision.source) == (Kind.SPLIT, "t/n/a", "one")
    assert "1001 topics" in decision.reason
    for load in (
        BundleLoad(topics=2, clients=1001),
        BundleLoad(topics=2, messages=30_001),
        BundleLoad(topics=2, bytes=101 * 1024 * 1024),
    ):
        assert settled().look({"one": {BundleName("t/n/a"): load}}).kind is Kind.SPLIT
    at_the_limit = BundleLoad(topics=1000, clients=1000, messages=30_000)
    assert settled().look({"one": {BundleName("t/n/a"): at_the_limit}}).kind is Kind.NOTHING


def test_a_single_topic_and_a_full_namespace_are_not_split() -> None:
    one_topic = {"one": {BundleName("t/n/a"): BundleLoad(messages=40_000, topics=1)}}
    assert settled().look(one_topic).kind is Kind.NOTHING
    full = settled(BalanceSettings(bundles_max=1))
    assert full.look({"one": {BundleName("t/n/a"): BundleLoad(topics=1001)}}).kind is Kind.NOTHING


def test_a_broker_rests_after_a_split() -> None:
    hot, balance = {"one": {BundleName("t/n/a"): BundleLoad(topics=1001)}}, settled()
    assert balance.decide(["s"], hot, 0).kind is Kind.SPLIT
    assert balance.decide(["s"], hot, 59).kind is Kind.NOTHING
    assert balance.decide(["s"], hot, 60).kind is Kind.SPLIT


def test_a_bundle_that_cannot_be_split_keeps_no_other_from_moving() -> None:
    loads, balance = cluster([4_000, 4_000, 4_000, 4_000], []), settled()
    loads["broker-0"][BundleName("t/n/hot")] = BundleLoad(topics=1001)
    decision = balance.decide(["s"], loads, 0)
    assert (decision.kind, decision.bundle) == (Kind.SPLIT, "t/n/hot")
    balance.failed(decision, 0)
    assert balance.decide(["s"], loads, 61).kind is Kind.MOVE
    again = balance.decide(["s"], loads, 601)
    assert (again.kind, again.bundle) == (Kind.SPLIT, "t/n/hot")
