"""REST of rights: what `pulsar-admin` sends, and how it is stored."""

import pytest

from daybook.broker.errors import NotFoundError, PreconditionError
from tests.broker.control.test_admin import NAMESPACES, TOPICS, two_brokers

NAMESPACE = f"{NAMESPACES}/public/default"


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
