"""The part of the admin client that grants rights; `broker.security.rights` says what they allow.

    await admin.grant_on_namespace("shop/eu", "billing", ["consume"])
    await admin.revoke_on_namespace("shop/eu", "billing")

As in Pulsar, a grant replaces what the role had at the same place.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from daybook.clients.python.arguments import topic_name
from daybook.wire.topics import TopicName, url_encode

Json: TypeAlias = Any
Permissions: TypeAlias = dict[str, list[str]]
_TENANTS = "/admin/v2/tenants"


def namespace_path(namespace: str) -> str:
    """Return a namespace as a part of a path."""
    return "/".join(url_encode(part) for part in namespace.split("/"))


def topic_path(topic: str | TopicName) -> str:
    """Return the path of a topic."""
    name = topic_name(topic) if isinstance(topic, str) else topic
    return f"/admin/v2/{name.domain}/{namespace_path(name.namespace)}/{name.encoded}"


def _of_namespace(namespace: str) -> str:
    return f"/admin/v2/namespaces/{namespace_path(namespace)}/permissions"


class AdminRights(ABC):
    """The base of the admin client, which carries out the requests."""

    @abstractmethod
    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        query: Mapping[str, bool | str] | None = None,
    ) -> Json:
        """Carry out one request; return the JSON of the answer."""

    # -- namespaces

    async def namespace_permissions(self, namespace: str) -> Permissions:
        """Return the actions of each role on all topics of a namespace."""
        return cast("Permissions", await self.call("GET", _of_namespace(namespace)))

    async def grant_on_namespace(self, namespace: str, role: str, actions: Sequence[str]) -> None:
        """Let a role do these actions, such as `produce` and `consume`, and no others."""
        await self.call("POST", f"{_of_namespace(namespace)}/{url_encode(role)}", list(actions))

    async def revoke_on_namespace(self, namespace: str, role: str) -> None:
        await self.call("DELETE", f"{_of_namespace(namespace)}/{url_encode(role)}")

    # -- topics

    async def topic_permissions(self, topic: str) -> Permissions:
        """Return the actions of each role on a topic, those by its namespace included."""
        return cast("Permissions", await self.call("GET", f"{topic_path(topic)}/permissions"))

    async def grant_on_topic(self, topic: str, role: str, actions: Sequence[str]) -> None:
        """Let a role do these actions on a topic and its partitions."""
        path = f"{topic_path(topic)}/permissions/{url_encode(role)}"
        await self.call("POST", path, list(actions))

    async def revoke_on_topic(self, topic: str, role: str) -> None:
        """Take a role off a topic.  Its rights by the namespace stay."""
        await self.call("DELETE", f"{topic_path(topic)}/permissions/{url_encode(role)}")

    # -- subscriptions

    async def subscription_permissions(self, namespace: str) -> Permissions:
        """Return the roles that may use each subscription.

        A subscription that is not listed is for all who may consume.
        """
        path = f"{_of_namespace(namespace)}/subscription"
        return cast("Permissions", await self.call("GET", path))

    async def grant_on_subscription(
        self, namespace: str, subscription: str, roles: Sequence[str]
    ) -> None:
        """Let these roles use the subscriptions of that name in a namespace, and no others."""
        path = f"{_of_namespace(namespace)}/subscription/{url_encode(subscription)}"
        await self.call("POST", path, list(roles))

    async def revoke_on_subscription(self, namespace: str, subscription: str, role: str) -> None:
        """Take a role off a subscription.  When no role is left, all who may consume may use it."""
        path = f"{_of_namespace(namespace)}/{url_encode(subscription)}/{url_encode(role)}"
        await self.call("DELETE", path)

    # -- tenants

    async def tenant_admins(self, tenant: str) -> list[str]:
        """Return the roles that may do everything in a tenant."""
        found: Json = await self.call("GET", f"{_TENANTS}/{url_encode(tenant)}")
        return list(found["adminRoles"])

    async def set_tenant_admins(self, tenant: str, roles: Sequence[str]) -> None:
        """Replace the admins of a tenant; its clusters stay.  Two changes at once may lose one."""
        path = f"{_TENANTS}/{url_encode(tenant)}"
        found: Json = await self.call("GET", path)
        await self.call("POST", path, {**found, "adminRoles": sorted({*roles})})
