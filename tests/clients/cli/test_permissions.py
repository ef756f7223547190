"""`daybook permissions` and `daybook tenants admins`, against a scripted REST."""

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from daybook.clients.python import aio, blocking
from daybook.clients.python.admin import Admin
from tests.clients.cli.conftest import Daybook, FakeAdmin

NAMESPACE = "/admin/v2/namespaces/shop/eu/permissions"
TOPIC = "/admin/v2/persistent/shop/eu/orders/permissions"
SHOP = "/admin/v2/tenants/shop"
POLICIES = "/admin/v2/namespaces/shop/eu"
RUNTIME = "/admin/v2/brokers/configuration/runtime"
ON_NAMESPACE = ("--namespace", "shop/eu")
ON_TOPIC = ("--topic", "persistent://shop/eu/orders")
ON_SUBSCRIPTION = (*ON_NAMESPACE, "--subscription", "billing")
PLACES: list[tuple[tuple[str, ...], str, str, Any]] = [
    (ON_NAMESPACE, NAMESPACE, NAMESPACE, {"ann": ["consume"]}),
    (ON_TOPIC, TOPIC, TOPIC, {"ann": ["consume"]}),
    (
        ON_SUBSCRIPTION,
        f"{NAMESPACE}/subscription",
        f"{NAMESPACE}/billing",
        {"billing": ["ann", "ben"]},
    ),
]


def answer(daybook: Daybook, *words: str) -> Any:
    code, out, err = daybook(*words, "--output", "json")
    assert code == 0, err
    return json.loads(out)


def has(
    rest: FakeAdmin,
    *,
    namespace: Any = None,
    topics: Any = None,
    subscriptions: Any = None,
    admins: Sequence[str] = (),
) -> None:
    """Let the namespace have these rights, on a cluster that checks them."""
    rights = {
        "namespace_auth": namespace or {},
        "destination_auth": topics or {},
        "subscription_auth_roles": subscriptions or {},
    }
    rest.answers["GET", POLICIES] = 200, {"auth_policies": rights}
    rest.answers["GET", SHOP] = 200, {"adminRoles": list(admins), "allowedClusters": ["one"]}
    rest.answers["GET", RUNTIME] = 403, {"reason": "the role lacks the right"}


def changes(rest: FakeAdmin) -> list[tuple[str, str, Any]]:
    return [each for each in rest.asked if each[0] != "GET"]


@pytest.mark.parametrize(("place", "path", "target", "rights"), PLACES)
def test_rights_are_listed_and_revoked(
    daybook: Daybook,
    fake_admin: FakeAdmin,
    place: tuple[str, ...],
    path: str,
    target: str,
    rights: Any,
) -> None:
    fake_admin.answers["GET", path] = 200, rights
    fake_admin.answers["DELETE", f"{target}/ann"] = 204, None
    if place is ON_SUBSCRIPTION:
        has(fake_admin, subscriptions=rights)
    elif place is ON_TOPIC:
        has(fake_admin, topics={"persistent://shop/eu/orders": rights})
    else:
        has(fake_admin, namespace=rights)
    rows = answer(daybook, "permissions", "list", *place)
    assert rows[0]["role"] == "ann"
    revoke = ("permissions", "revoke", "ann", *place)
    shown = answer(daybook, *revoke, "--dry-run")
    assert shown["state"] == "would be revoked"
    assert shown["before"] == (["use"] if place is ON_SUBSCRIPTION else ["consume"])
    code, _, err = daybook(*revoke)
    assert code == 1
    assert "Revoke the rights of ann on" in err
    assert changes(fake_admin) == []
    assert answer(daybook, *revoke, "--yes")["state"] == "revoked"
    assert changes(fake_admin) == [("DELETE", f"{target}/ann", None)]
    code, _, err = daybook("permissions", "revoke", "eve", *place, "--yes")
    assert code == 1
    assert "The role eve has no right on" in err


@pytest.mark.parametrize(("place", "path"), [(ON_NAMESPACE, NAMESPACE), (ON_TOPIC, TOPIC)])
def test_a_grant_replaces_what_the_role_had(
    daybook: Daybook, fake_admin: FakeAdmin, place: tuple[str, ...], path: str
) -> None:
    rights = {"a/b": ["consume"]}
    fake_admin.answers["GET", path] = 200, rights
    fake_admin.answers["POST", f"{path}/a%2Fb"] = 204, None
    if place is ON_TOPIC:
        has(fake_admin, topics={"persistent://shop/eu/orders": rights})
    else:
        has(fake_admin, namespace=rights)
    grant = ("permissions", "grant", "a/b", "produce, consume", *place)
    shown = answer(daybook, *grant, "--dry-run")
    assert (shown["before"], shown["granted"]) == (["consume"], ["produce", "consume"])
    assert (shown["state"], changes(fake_admin)) == ("would be granted", [])
    assert answer(daybook, *grant)["state"] == "granted"
    assert changes(fake_admin) == [("POST", f"{path}/a%2Fb", ["produce", "consume"])]


def test_a_grant_on_a_subscription_keeps_its_other_roles(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    has(fake_admin, subscriptions={"billing": ["ann"]})
    path = f"{NAMESPACE}/subscription/billing"
    fake_admin.answers["POST", path] = 204, None
    answer(daybook, "permissions", "grant", "ben", *ON_SUBSCRIPTION)
    assert changes(fake_admin) == [("POST", path, ["ann", "ben"])]


def test_the_last_role_of_a_subscription_is_a_warning(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    has(fake_admin, subscriptions={"billing": ["ann"]})
    revoke = ("permissions", "revoke", "ann", *ON_SUBSCRIPTION, "--dry-run")
    assert "all who may consume may use it" in answer(daybook, *revoke)["note"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("list",), "Give --namespace or --topic."),
        (("list", *ON_NAMESPACE, *ON_TOPIC), "Give --namespace or --topic."),
        (("list", *ON_TOPIC, "--subscription", "s"), "--subscription needs --namespace"),
        (("grant", "ann", *ON_NAMESPACE), "Name the actions"),
        (("grant", "", "produce", *ON_NAMESPACE), "a role has a name: it is not empty"),
        (("revoke", "", *ON_TOPIC), "a role has a name: it is not empty"),
        (("grant", "a\nb", "produce", *ON_TOPIC), "a role has printable characters"),
        (("grant", "ann", "produce", *ON_SUBSCRIPTION), "A subscription has no actions"),
    ],
)
def test_what_makes_no_sense_is_said(daybook: Daybook, words: tuple[str, ...], says: str) -> None:
    code, _, err = daybook("permissions", *words, "--admin-url", "http://127.0.0.1:1")
    assert code == 2
    assert says in " ".join(err.split())


WHOLE = "persistent://shop/eu/orders"
BY_NAMESPACE = "`daybook permissions revoke ann --namespace shop/eu` ends that"


@pytest.mark.parametrize(
    ("rights", "granted", "note"),
    [
        ({"namespace": {"ann": ["produce", "consume"]}}, "produce", BY_NAMESPACE),
        ({"namespace": {"ann": ["consume"]}}, "produce,consume", None),
        ({"admins": ["ann"]}, "produce", "may do everything in it"),
        ({}, "produce", None),
    ],
)
def test_a_grant_names_what_else_counts(
    daybook: Daybook, fake_admin: FakeAdmin, rights: Any, granted: str, note: str | None
) -> None:
    has(fake_admin, **rights)
    fake_admin.answers["GET", TOPIC] = 200, {}
    fake_admin.answers["POST", f"{TOPIC}/ann"] = 204, None
    shown = answer(daybook, "permissions", "grant", "ann", granted, *ON_TOPIC)
    assert shown["state"] == "granted"
    assert shown["before"] == []
    assert (note in shown["note"]) if note else ("note" not in shown)


def test_a_narrower_grant_names_the_topics_with_more(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    topics = {f"persistent://shop/eu/t{n}-partition-0": {"ann": ["produce"]} for n in range(5)}
    has(fake_admin, topics={**topics, "persistent://old/c/ns/t": {"ann": ["consume"]}})
    fake_admin.answers["POST", f"{NAMESPACE}/ann"] = 204, None
    shown = answer(daybook, "permissions", "grant", "ann", "consume", *ON_NAMESPACE)
    assert "shop/eu/t0, " in shown["note"]
    assert "shop/eu/t2 and 2 others" in shown["note"]


def test_a_grant_on_an_open_cluster_says_that_it_does_not_count(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    has(fake_admin)
    fake_admin.answers["POST", f"{NAMESPACE}/ann"] = 204, None
    grant = ("permissions", "grant", "ann", "consume", *ON_NAMESPACE)
    for settings in ({"authorization": "False"}, {"authorizationEnabled": "false"}):
        fake_admin.answers["GET", RUNTIME] = 200, settings
        assert "rights do not count yet" in answer(daybook, *grant)["note"]
    for status, settings in ((200, {"authorization": "True"}), (403, {}), (500, {})):
        fake_admin.answers["GET", RUNTIME] = status, settings
        assert "note" not in answer(daybook, *grant)


def test_a_right_by_the_namespace_is_not_revoked_on_a_topic(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    has(fake_admin, namespace={"ann": ["produce"]})
    for dry_run in ((), ("--dry-run",)):
        code, _, err = daybook("permissions", "revoke", "ann", *ON_TOPIC, "--yes", *dry_run)
        assert code == 1
        assert "The role ann has no right on the topic persistent://shop/eu/orders itself" in err
        assert BY_NAMESPACE in err
    assert changes(fake_admin) == []


def test_a_revoked_right_that_another_grant_gives_is_told(
    daybook: Daybook, fake_admin: FakeAdmin
) -> None:
    partition = f"{WHOLE}-partition-1"
    has(
        fake_admin,
        namespace={"ann": ["produce"]},
        topics={WHOLE: {"ann": ["consume"]}, partition: {"ann": ["consume"]}},
    )
    path = TOPIC.replace("orders", "orders-partition-1")
    fake_admin.answers["DELETE", f"{path}/ann"] = 204, None
    shown = answer(daybook, "permissions", "revoke", "ann", "--topic", partition, "--yes")
    assert (shown["before"], shown["state"]) == (["consume"], "revoked")
    assert BY_NAMESPACE in shown["note"]
    assert f"`daybook permissions revoke ann --topic {WHOLE}` ends that" in shown["note"]


def test_a_tenant_has_no_admin_without_a_name(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    for words in (("create", "shop", "--admin", ""), ("admins", "shop", "--add", "")):
        code, _, err = daybook("tenants", *words)
        assert code == 2
        assert "a role has a name" in err
    assert fake_admin.asked == []


def test_admins_of_tenants(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    info = {"adminRoles": ["ann", "ben"], "allowedClusters": ["one"]}
    fake_admin.answers["GET", SHOP] = 200, info
    fake_admin.answers["POST", SHOP] = 204, None
    admins = ("tenants", "admins", "shop")
    assert answer(daybook, *admins)["admins"] == ["ann", "ben"]
    assert answer(daybook, *admins, "--add", "eve", "--dry-run")["admins"] == ["ann", "ben", "eve"]
    assert answer(daybook, *admins, "--add", "ann")["admins"] == ["ann", "ben"]
    assert daybook(*admins, "--remove", "ann")[0] == 1
    assert daybook(*admins, "--remove", "mia", "--yes")[0] == 1
    assert changes(fake_admin) == []
    changed = answer(daybook, *admins, "--add", "eve", "--remove", "ann", "--yes")
    assert changed["admins"] == ["ben", "eve"]
    assert changes(fake_admin) == [("POST", SHOP, {**info, "adminRoles": ["ben", "eve"]})]


def test_a_tenant_is_created_with_its_admins(daybook: Daybook, fake_admin: FakeAdmin) -> None:
    fake_admin.answers["PUT", SHOP] = 204, None
    answer(daybook, "tenants", "create", "shop", "--cluster", "one", "--admin", "ann")
    body = {"adminRoles": ["ann"], "allowedClusters": ["one"]}
    assert changes(fake_admin) == [("PUT", SHOP, body)]


# -- the clients


EXPECTED = [
    ("POST", f"{NAMESPACE}/ann", ["produce"]),
    ("DELETE", f"{NAMESPACE}/ann", None),
    ("POST", f"{TOPIC}/ann", ["consume"]),
    ("DELETE", f"{TOPIC}/ann", None),
    ("POST", f"{NAMESPACE}/subscription/a%2Fb", ["ann"]),
    ("DELETE", f"{NAMESPACE}/a%2Fb/ann", None),
    ("POST", SHOP, {"adminRoles": ["ann", "ben"], "allowedClusters": ["one"]}),
]


@pytest.fixture
def scripted(fake_admin: FakeAdmin) -> FakeAdmin:
    fake_admin.answers |= {(method, path): (204, None) for method, path, _ in EXPECTED}
    fake_admin.answers["GET", NAMESPACE] = 200, {"ann": ["produce"]}
    fake_admin.answers["GET", TOPIC] = 200, {"ann": ["consume"]}
    fake_admin.answers["GET", f"{NAMESPACE}/subscription"] = 200, {"a/b": ["ann"]}
    fake_admin.answers["GET", SHOP] = 200, {"adminRoles": ["x"], "allowedClusters": ["one"]}
    return fake_admin


async def use(admin: Any) -> None:
    topic = "persistent://shop/eu/orders"
    assert await admin.namespace_permissions("shop/eu") == {"ann": ["produce"]}
    await admin.grant_on_namespace("shop/eu", "ann", ["produce"])
    await admin.revoke_on_namespace("shop/eu", "ann")
    assert await admin.topic_permissions(topic) == {"ann": ["consume"]}
    await admin.grant_on_topic(topic, "ann", ("consume",))
    await admin.revoke_on_topic(topic, "ann")
    assert await admin.subscription_permissions("shop/eu") == {"a/b": ["ann"]}
    await admin.grant_on_subscription("shop/eu", "a/b", ["ann"])
    await admin.revoke_on_subscription("shop/eu", "a/b", "ann")
    assert await admin.tenant_admins("shop") == ["x"]
    await admin.set_tenant_admins("shop", ["ben", "ann", "ben"])


class Awaited:
    """A blocking client whose methods can be awaited."""

    def __init__(self, admin: blocking.Admin) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> Any:
            return await trio.to_thread.run_sync(lambda: getattr(self._admin, name)(*arguments))

        return call


async def test_the_requests_of_the_trio_client(scripted: FakeAdmin) -> None:
    await use(Admin(url()))
    assert changes(scripted) == EXPECTED


async def test_the_requests_of_the_blocking_client(scripted: FakeAdmin) -> None:
    with blocking.connect_admin(url()) as admin:
        await use(Awaited(admin))
    assert changes(scripted) == EXPECTED


def test_the_requests_of_the_asyncio_client(scripted: FakeAdmin) -> None:
    async def main() -> None:
        async with aio.connect_admin(url()) as admin:
            await use(admin)

    asyncio.run(main())
    assert changes(scripted) == EXPECTED


def url() -> str:
    return os.environ["DAYBOOK_ADMIN_URL"]
