"""The texts of refusals: what lacks, and the command that helps."""

import pytest

from daybook.broker.security.grants import Grants
from daybook.broker.security.refusals import refusal
from daybook.broker.security.resources import CLUSTER, Resource, of_namespace, of_sink, of_topic
from daybook.broker.security.rights import Right
from daybook.wire.topics import TopicName

ORDERS = TopicName.parse("persistent://shop/eu/orders-partition-1")
BASE = "persistent://shop/eu/orders"
GRANT = "an admin of the tenant shop may run: daybook permissions grant"


@pytest.mark.parametrize(
    ("right", "target", "says"),
    [
        (Right.PRODUCE, of_topic(ORDERS), f"{GRANT} alice produce --topic {BASE}"),
        (Right.CONSUME, of_topic(ORDERS, "s"), f"{GRANT} alice consume --topic {BASE}"),
        (Right.LOOKUP, of_topic(ORDERS), f"alice produce --topic {BASE} (or consume)"),
        (Right.CONSUME, of_namespace("shop/eu"), f"{GRANT} alice consume --namespace shop/eu"),
        (Right.ADMIN, of_topic(ORDERS), "may run: daybook tenants admins shop --add alice"),
        (Right.PRODUCE, Resource(sink="s"), "a super user sees its topics, if there are any"),
        (Right.SUPER_USER, CLUSTER, "super_users of the brokers"),
        (Right.METRICS, CLUSTER, "metrics_roles of the brokers"),
    ],
)
def test_the_right_that_can_be_granted(right: Right, target: Resource, says: str) -> None:
    said = refusal("alice", right, target, Grants())
    assert said.startswith(f"the role 'alice' lacks the right '{right.value}' on the ")
    assert said.endswith(says) or (right in (Right.METRICS, Right.SUPER_USER) or target.sink)
    assert says in said


def test_a_stranger_does_not_learn_what_exists() -> None:
    target = of_topic(ORDERS, "billing")
    there = Grants({"ann": ["consume"]}, {BASE: {"ann": ["produce"]}}, {"billing": ["ann"]}, True)
    for right in (Right.PRODUCE, Right.CONSUME, Right.LOOKUP):
        missing = refusal("eve", right, target, None)
        assert refusal("eve", right, target, there) == missing
    assert "billing" not in refusal("eve", Right.CONSUME, target, there)


def test_a_refusal_about_a_sink_does_not_tell_its_topics() -> None:
    missing, there = Resource(sink="s"), of_sink("s", ORDERS)
    for right in (Right.PRODUCE, Right.ADMIN):
        said = refusal("eve", right, there, Grants())
        assert said == refusal("eve", right, missing, None)
        assert "the topics of the sink s:" in said
        assert "shop" not in said


def test_the_command_keeps_what_the_role_has() -> None:
    grants = Grants(of_topics={BASE: {"a b": ["consume"]}})
    said = refusal("a b", Right.PRODUCE, of_topic(ORDERS), grants)
    assert f"grant 'a b' consume,produce --topic {BASE}" in said


def test_a_subscription_of_others_and_one_without_the_prefix() -> None:
    grants = Grants({"alice": ["consume"]}, {}, {"billing": ["ben"]}, prefix_mode=True)
    said = refusal("alice", Right.CONSUME, of_topic(ORDERS, "billing"), grants)
    assert f"{GRANT} alice --namespace shop/eu --subscription billing" in said
    said = refusal("alice", Right.CONSUME, of_topic(ORDERS, "x-1"), grants)
    assert said.endswith(
        "the name of the subscription x-1 has to begin with 'alice' (subscriptionAuthMode Prefix)"
    )
