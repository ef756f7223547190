"""The bundle of a topic's hash, and the broker that gets an unowned bundle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.broker.protocol.balance import BrokerLoad, place
from daybook.broker.protocol.bundles import HASH_MAX, BundleName, Bundles
from daybook.wire.topics import TopicName


def test_four_equal_bundles_have_pulsars_boundaries() -> None:
    assert Bundles.equal(4).texts() == [
        "0x00000000",
        "0x40000000",
        "0x80000000",
        "0xc0000000",
        "0xffffffff",
    ]


def test_a_known_topic_falls_into_its_bundle() -> None:
    topic = TopicName.parse("my-topic")
    assert topic.bundle_hash == 0x2BAD45F7
    assert Bundles.equal(16).range_of(topic.bundle_hash) == "0x20000000_0x30000000"


def test_the_last_bundle_includes_its_end() -> None:
    assert Bundles.equal(4).range_of(HASH_MAX) == "0xc0000000_0xffffffff"
    assert Bundles.equal(1).range_of(HASH_MAX) == "0x00000000_0xffffffff"


@given(st.integers(1, 64), st.integers(0, HASH_MAX))
def test_every_hash_has_exactly_one_bundle(count: int, hash_: int) -> None:
    bundles = Bundles.equal(count)
    assert len(bundles.ranges()) == bundles.count == count
    low, high = (int(text, 16) for text in bundles.range_of(hash_).split("_"))
    assert low <= hash_ < high or hash_ == high == HASH_MAX
    assert Bundles.parse(bundles.texts()) == bundles


@pytest.mark.parametrize(
    "boundaries",
    [
        [],
        ["0x00000000"],
        ["0x00000001", "0xffffffff"],
        ["0x00000000", "0x80000000"],
        ["0x00000000", "0x80000000", "0x80000000", "0xffffffff"],
        ["0x00000000", "zz", "0xffffffff"],
    ],
)
def test_boundaries_that_make_no_sense(boundaries: list[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Bundles.parse(boundaries)


A = BundleName("public/default/0x00000000_0x40000000")


def test_the_emptiest_broker_is_chosen() -> None:
    assert place(A, [BrokerLoad("one", 2), BrokerLoad("two", 1), BrokerLoad("three", 3)]) == "two"
    assert place(A, [BrokerLoad("one", 1, 9), BrokerLoad("two", 1, 8)]) == "two"
    assert place(A, []) is None


def test_the_order_of_the_brokers_does_not_matter() -> None:
    brokers = [BrokerLoad(name, 0) for name in ("one", "two", "three")]
    assert place(A, brokers) == place(A, brokers[::-1])


def test_equal_brokers_share_evenly_also_without_counting() -> None:
    brokers = [BrokerLoad(f"broker-{i}:8080", 0) for i in range(4)]
    chosen = [place(BundleName(f"t/ns-{i}/0x0_0x1"), brokers) for i in range(400)]
    assert all(60 < chosen.count(broker.broker_id) < 140 for broker in brokers)
