"""Topic names: valid ones, their parts, and their names in other systems."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire.errors import MalformedError, WireError
from daybook.wire.topics import TopicName, check_namespace, url_decode, url_encode


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("my-topic", "persistent://public/default/my-topic"),
        ("t/n/x", "persistent://t/n/x"),
        ("persistent://t/n/x y*~", "persistent://t/n/x y*~"),
        ("non-persistent://t/n/x", "non-persistent://t/n/x"),
    ],
)
def test_short_names_have_a_full_one(name: str, full: str) -> None:
    topic = TopicName.parse(name)
    assert topic.full == str(topic) == full
    assert TopicName.parse(full) == topic
    assert TopicName.of_managed_ledger(topic.managed_ledger_name) == topic


NO_NAMES = [
    "",
    " ",
    "a/b",
    "a/b/c/d",
    "persistent://a/b",
    "persistent://a/b/c/d",
    "other://a/b/c",
    "persistent:///b/c",
    "persistent://a//c",
    "persistent://a/b/",
    "a b/c/d",
    "t/n/a\nb",
    "persistent://a/b/\ud800",
    "x" * 2000,
    ".",
    "t/n/..",
    "..-partition-0",
    "t/n/.-partition-12",
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_not_a_topic_name(name: str) -> None:
    with pytest.raises(MalformedError):
        TopicName.parse(name)


def test_bundle_hashes_are_those_of_other_implementations() -> None:
    assert TopicName.parse("my-topic").bundle_hash == 0x2BAD45F7
    assert TopicName.parse("my-topic-partition-0").bundle_hash == 0x3D4B4235


def test_partitions() -> None:
    topic = TopicName.parse("t/n/orders")
    assert (topic.partition, topic.base) == (-1, topic)
    third = topic.partition_name(3)
    assert third.full == "persistent://t/n/orders-partition-3"
    assert (third.partition, third.base) == (3, topic)
    for no_partition in ("a-partition-", "a-partition-x", "a-partition-01", "-partition-1"):
        assert TopicName.parse(no_partition).partition == -1
    assert TopicName.parse("a-partition-1-partition-2").base.local == "a-partition-1"


def test_names_are_encoded_as_java_does_it() -> None:
    assert url_encode("a b*c~d/é-._") == "a+b*c%7Ed%2F%C3%A9-._"
    assert TopicName.parse("t/n/a b").managed_ledger_name == "t/n/persistent/a+b"


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_encoded_names_come_back(name: str) -> None:
    assert url_decode(url_encode(name)) == name


@given(st.text())
def test_any_text_is_a_name_or_a_wire_error(name: str) -> None:
    for parse in (TopicName.parse, TopicName.of_managed_ledger, url_decode, check_namespace):
        with suppress(WireError):
            parse(name)


def test_namespaces() -> None:
    assert check_namespace("public/default") == "public/default"
    for bad in ("", "public", "a/b/c", "/b", "a/"):
        with pytest.raises(MalformedError):
            check_namespace(bad)
