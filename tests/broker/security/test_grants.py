"""The rights of roles in the policies of a namespace, as Pulsar writes them."""

import msgspec
import pytest

from daybook.broker.errors import PreconditionError, UnavailableError
from daybook.broker.security import grants
from daybook.broker.security.grants import CONSUME, PRODUCE, Grants, parse
from daybook.wire.topics import TopicName

# As a broker of Pulsar 4 writes it.
PULSAR = b"""{"auth_policies":{"namespace_auth":{"reader":["consume"],"all":["produce","consume"]},
"destination_auth":{"persistent://t/n/x":{"writer":["produce"]},
"persistent://t/n/x-partition-0":{"writer":["produce"]}},
"subscription_auth_roles":{"closed":["reader"]}},"replication_clusters":["c"],
"subscription_auth_mode":"None","deleted":false}"""
X, Y = TopicName.parse("persistent://t/n/x"), TopicName.parse("persistent://t/n/y")


def test_the_record_of_a_pulsar_broker() -> None:
    found = parse(PULSAR, "p")
    assert found.allow("reader", CONSUME, X)
    assert not found.allow("reader", PRODUCE, X)
    assert found.allow("all", PRODUCE, Y)
    assert found.allow("writer", PRODUCE, X)
    assert not found.allow("writer", PRODUCE, Y)
    assert not found.allow("writer", PRODUCE, None)
    assert not found.allow("nobody", CONSUME, X)
    assert found.allow("writer", PRODUCE, TopicName.parse("persistent://t/n/x-partition-7"))
    other = TopicName.parse("non-persistent://t/n/x")
    assert not found.allow("writer", PRODUCE, other)
    assert found.on_topic(X) == {
        "reader": ["consume"],
        "all": ["produce", "consume"],
        "writer": ["produce"],
    }


def test_subscriptions_may_be_for_some_roles_only() -> None:
    found = parse(PULSAR, "p")
    assert found.allow_subscription("reader", "closed")
    assert not found.allow_subscription("all", "closed")
    assert found.allow_subscription("all", "open")
    prefix = parse(b'{"subscription_auth_mode":"Prefix"}', "p")
    assert prefix.allow_subscription("all", "all-1")
    assert not prefix.allow_subscription("all", "reader-1")


def test_wildcards_count_only_if_that_is_set() -> None:
    found = Grants(of_namespace={"app*": ["consume"], "*.team": ["produce"], "*": ["sinks"]})
    for role, action in (("app1", CONSUME), ("x.team", PRODUCE), ("x", "sinks")):
        assert found.allow(role, action, X, wildcards=True)
        assert not found.allow(role, action, X)
    assert not found.allow("xapp", CONSUME, X, wildcards=True)
    assert not found.allow("team.x", PRODUCE, X, wildcards=True)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"auth_policies":null}', b'{"auth_policies":{}}'])
def test_a_record_without_rights_grants_nothing(value: bytes) -> None:
    found = parse(value, "p")
    assert not found.allow("reader", CONSUME, X, wildcards=True)
    assert found.allow_subscription("reader", "s")


@pytest.mark.parametrize(
    "value", [b"[]", b"{", b'{"auth_policies":7}', b'{"auth_policies":{"namespace_auth":[]}}']
)
def test_a_record_that_is_not_valid_is_an_error(value: bytes) -> None:
    with pytest.raises(UnavailableError):
        parse(value, "p")


def test_changes_keep_what_else_the_record_has() -> None:
    fields = msgspec.json.decode(PULSAR)
    fields["auth_policies"]["newer"] = 7
    before = msgspec.json.decode(msgspec.json.encode(fields))
    grants.grant_on_namespace(fields, "new", ["consume"])
    grants.grant_on_topics(fields, [Y.full], "new", ["produce"])
    grants.grant_on_subscription(fields, "s", ["b", "a", "b"])
    found = parse(msgspec.json.encode(fields), "p")
    assert found.allow("new", CONSUME, X)
    assert found.allow("new", PRODUCE, Y)
    assert found.of_subscriptions["s"] == ["a", "b"]
    grants.revoke_on_namespace(fields, "new")
    assert grants.revoke_on_topics(fields, [Y.full], "new")
    assert not grants.revoke_on_topics(fields, [Y.full], "new")
    for role in ("a", "b", "c"):
        grants.revoke_on_subscription(fields, "s", role)
    assert fields == before


def test_an_empty_record_gets_all_three_tables() -> None:
    fields: grants.Fields = {}
    grants.grant_on_namespace(fields, "r", ["consume"])
    assert fields == {
        "auth_policies": {
            "namespace_auth": {"r": ["consume"]},
            "destination_auth": {},
            "subscription_auth_roles": {},
        }
    }


def test_actions_are_those_of_pulsar() -> None:
    assert grants.checked_actions(["consume", "produce", "consume"]) == ["produce", "consume"]
    for wrong in ([], ["read"], ["produce", "x"]):
        with pytest.raises(PreconditionError):
            grants.checked_actions(wrong)
