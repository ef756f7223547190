"""REST of rights: what `pulsar-admin` sends, and how it is stored."""

import pytest

from daybook.broker.errors import NotFoundError, PreconditionError
from tests.broker.control.test_admin import (
    NAMESPACES,
    TOPICS,
    Admin,
    owner_and_other,
    two_brokers,
)

NAMESPACE = f"{NAMESPACES}/public/default"
NON_PERSISTENT = TOPICS.replace("persistent", "non-persistent")


async def created(topic: str, admins: tuple[Admin, Admin]) -> Admin:
    """Create a topic, and return its owner."""
    owner, _ = await owner_and_other(admins, f"persistent://public/default/{topic}")
    await owner("PUT", f"{TOPICS}/{topic}")
    return owner


async def test_rights_on_a_namespace() -> None:
    async with two_brokers() as (one, two):
        url = f"{NAMESPACE}/permissions"
        assert await one("GET", url) == {}
        await one("POST", f"{url}/app", ["consume", "produce"])
        await two("POST", f"{url}/other", ["consume"])
        expected = {"app": ["produce", "consume"], "other": ["consume"]}
        assert await one("GET", url) == await two("GET", url) == expected
        stored = await one("GET", NAMESPACE)
        assert isinstance(stored, dict)
        assert stored["auth_policies"] == {
            "namespace_auth": expected,
            "destination_auth": {},
            "subscription_auth_roles": {},
        }
        await one("DELETE", f"{url}/app")
        await one("DELETE", f"{url}/app")
        assert await one("GET", url) == {"other": ["consume"]}
        for wrong in ([], ["read"]):
            with pytest.raises(PreconditionError):
                await one("POST", f"{url}/app", wrong)


async def test_rights_on_a_topic_and_its_partitions() -> None:
    async with two_brokers() as (one, two):
        await one("PUT", f"{TOPICS}/many/partitions", 2)
        await created("one", (one, two))
        for topic in ("one", "many"):
            await one("POST", f"{TOPICS}/{topic}/permissions/app", ["produce"])
            assert await two("GET", f"{TOPICS}/{topic}/permissions") == {"app": ["produce"]}
        stored = await one("GET", NAMESPACE)
        assert isinstance(stored, dict)
        granted = {"app": ["produce"]}
        prefix = "persistent://public/default"
        assert stored["auth_policies"]["destination_auth"] == {
            f"{prefix}/one": granted,
            f"{prefix}/many": granted,
            f"{prefix}/many-partition-0": granted,
            f"{prefix}/many-partition-1": granted,
        }
        for topic in ("one", "many"):
            await two("DELETE", f"{TOPICS}/{topic}/permissions/app")
            with pytest.raises(NotFoundError):
                await two("DELETE", f"{TOPICS}/{topic}/permissions/app")
        stored = await one("GET", NAMESPACE)
        assert isinstance(stored, dict)
        assert stored["auth_policies"]["destination_auth"] == {}


async def test_a_topic_that_does_not_exist_has_no_rights() -> None:
    """Pulsar 4.2 answers 404, too (`allowAclChangesOnNonExistentTopics=false`)."""
    missing = "the topic persistent://public/default/{} does not exist"
    async with two_brokers() as (one, two):
        await one("PUT", f"{TOPICS}/many/partitions", 2)
        for topic in ("oen", "many-partition-2"):
            for method, path, body in [
                ("GET", "permissions", None),
                ("POST", "permissions/app", ["produce"]),
            ]:
                with pytest.raises(NotFoundError, match=missing.format(topic)):
                    await one(method, f"{TOPICS}/{topic}/{path}", body)
        await two("POST", f"{TOPICS}/many-partition-1/permissions/app", ["produce"])
        await two("POST", f"{NON_PERSISTENT}/fleeting/permissions/app", ["produce"])
        # A right that has outlived its topic is shown, and can be revoked.
        owner = await created("gone", (one, two))
        await one("POST", f"{TOPICS}/gone/permissions/app", ["produce"])
        await owner("DELETE", f"{TOPICS}/gone")
        assert await one("GET", f"{TOPICS}/gone/permissions") == {"app": ["produce"]}
        await one("DELETE", f"{TOPICS}/gone/permissions/app")
        with pytest.raises(NotFoundError, match=missing.format("gone")):
            await one("GET", f"{TOPICS}/gone/permissions")


async def test_a_role_may_have_the_name_of_a_path() -> None:
    async with two_brokers() as (one, _):
        await one("POST", f"{NAMESPACE}/permissions/subscription", ["produce"])
        assert await one("GET", f"{NAMESPACE}/permissions") == {"subscription": ["produce"]}
        assert await one("GET", f"{NAMESPACE}/permissions/subscription") == {}
        await one("DELETE", f"{NAMESPACE}/permissions/subscription")
        assert await one("GET", f"{NAMESPACE}/permissions") == {}


async def test_rights_on_a_subscription() -> None:
    async with two_brokers() as (one, _):
        url = f"{NAMESPACE}/permissions"
        await one("POST", f"{url}/subscription/s", ["b", "a"])
        assert await one("GET", f"{url}/subscription") == {"s": ["a", "b"]}
        await one("DELETE", f"{url}/s/a")
        assert await one("GET", f"{url}/subscription") == {"s": ["b"]}
        await one("DELETE", f"{url}/s/b")
        assert await one("GET", f"{url}/subscription") == {}
        with pytest.raises(PreconditionError):
            await one("POST", f"{url}/subscription/s", [])


async def test_an_empty_role_is_refused_in_words() -> None:
    async with two_brokers() as (one, two):
        owner = await created("t", (one, two))
        for url in (NAMESPACE, f"{TOPICS}/t", f"{NON_PERSISTENT}/t"):
            for path in ("permissions", "permissions/"):
                with pytest.raises(PreconditionError, match="the role is empty: name one"):
                    await owner("POST", f"{url}/{path}", ["consume"])
                with pytest.raises(PreconditionError, match="the role is empty: name one"):
                    await owner("DELETE", f"{url}/{path}")
        with pytest.raises(PreconditionError, match="the role is empty: name one"):
            await one("DELETE", f"{NAMESPACE}/permissions/s/")
        info = {"adminRoles": ["ann", ""], "allowedClusters": ["test"]}
        for method, tenant in (("PUT", "t"), ("POST", "public")):
            with pytest.raises(PreconditionError, match="adminRoles is empty"):
                await one(method, f"/admin/v2/tenants/{tenant}", info)


async def test_the_mode_of_subscriptions() -> None:
    async with two_brokers() as (one, _):
        url = f"{NAMESPACE}/subscriptionAuthMode"
        assert await one("GET", url) == "None"
        await one("POST", url, "Prefix")
        assert await one("GET", url) == "Prefix"
        with pytest.raises(PreconditionError, match="Suffix"):
            await one("POST", url, "Suffix")
        await one("DELETE", url)
        assert await one("GET", url) == "None"
