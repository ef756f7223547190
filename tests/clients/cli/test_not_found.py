"""The hint behind the error that something does not exist."""

import pytest

from daybook.clients.cli.not_found import hint
from tests.clients.cli.conftest import Daybook, FakeAdmin

_LOOK = "persistent://public/default/look"


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (f"{_LOOK} has no subscription nosub (HTTP 404)", "daybook topics subscriptions list look"),
        (
            "persistent://shop/eu/look has no subscription s",
            "daybook topics subscriptions list persistent://shop/eu/look",
        ),
        ("the tenant shop does not exist (HTTP 404)", "daybook tenants create shop"),
        ("the namespace public/no does not exist", "daybook namespaces create public/no"),
        ("the namespace shop/no does not exist", "daybook namespaces list shop"),
        ("there is no bundle 0x0_0x1 in public/default", "daybook bundles list public/default"),
        (f"{_LOOK} has 11 entries, and none with number 200", "daybook topics stats look"),
        (f"{_LOOK} has no entry 9999:0", "daybook topics stats look"),
        (f"{_LOOK} has no schema", "daybook schemas list look"),
        (f"{_LOOK} has no version 3 of its schema", "daybook schemas list look"),
        (f"the topic {_LOOK} does not exist", "daybook topics list` shows"),
        (
            "the topic persistent://shop/eu/x does not exist",
            "daybook topics list --namespace shop/eu",
        ),
        ("the partitioned topic persistent://a/b/c does not exist", "topics list --namespace a/b"),
        (f"{_LOOK}-partition-9 does not exist: {_LOOK} has only 3 partitions", "daybook topics"),
        (
            f"the partitioned topic {_LOOK} does not exist: a topic of this name has no partitions",
            "--partitions",
        ),
        ("Topic not found", "daybook topics list"),
        ("Subscription not found", "daybook topics subscriptions list TOPIC"),
    ],
)
def test_the_hint_is_for_what_is_missing(error: str, command: str) -> None:
    assert command in hint(error)


def test_an_error_that_nobody_knows_gets_no_hint() -> None:
    assert hint("no broker leads at this moment: try again in a few seconds (HTTP 404)") == ""


def test_a_missing_subscription_does_not_send_the_user_to_the_topics(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    path = "/admin/v2/persistent/public/default/look/subscription/nosub/explain"
    fake_admin.answers["GET", path] = 404, {"reason": f"{_LOOK} has no subscription nosub"}
    code, _, err = daybook("explain", "subscription", "look", "nosub")
    assert code == 1
    assert "`daybook topics subscriptions list look`" in err
    assert "daybook topics list`" not in err


def test_a_missing_namespace_is_created_in_the_shell(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    path = "/admin/v2/namespaces/public/no/messageTTL"
    fake_admin.answers["GET", path] = 404, {"reason": "the namespace public/no does not exist"}
    code, _, err = daybook("namespaces", "policies", "get", "public/no", "message-ttl")
    assert code == 1
    assert "`daybook namespaces create public/no`" in err
