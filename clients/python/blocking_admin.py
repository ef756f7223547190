"""The admin client for code without trio: the same methods, no `await`.

with daybook.blocking.connect_admin("http://localhost:8080") as admin:
    admin.create_topic("orders", partitions=4)
"""

from collections.abc import Mapping, Sequence

from daybook.clients.python import admin as trio_admin
from daybook.clients.python.admin import Json
from daybook.clients.python.admin_rights import Permissions
from daybook.clients.python.arguments import check_timeout
from daybook.clients.python.credentials import Basic, Token
from daybook.clients.python.errors import ClosedError, InDoubtError
from daybook.clients.python.message_id import LATEST, MessageId
from daybook.clients.python.portal import Closing, Portal, like
from daybook.clients.python.stored_entry import StoredEntry
from daybook.clients.python.tls import TlsOptions


def connect_admin(
    admin_url: str,
    *,
    token: Token | None = None,
    basic: Basic | None = None,
    timeout_s: float = 60.0,
    tls: TlsOptions | None = None,
) -> "Admin":
    """Return an admin client; use it in a `with` block, or `close` it."""
    check_timeout("timeout_s", timeout_s)
    admin = trio_admin.Admin(admin_url, token=token, basic=basic, timeout_s=timeout_s, tls=tls)
    return Admin(admin)


class Admin(Closing):
    """See `clients.python.admin.Admin`."""

    def __init__(self, admin: trio_admin.Admin) -> None:
        self._admin = admin
        self._portal = Portal(closed=ClosedError, cut=InDoubtError)

    def close(self) -> None:
        self._portal.close()

    @like(trio_admin.Admin.tenants)
    def tenants(self) -> list[str]:
        return self._portal.call(self._admin.tenants)

    @like(trio_admin.Admin.create_tenant)
    def create_tenant(self, tenant: str, clusters: list[str], admins: Sequence[str] = ()) -> None:
        self._portal.call(self._admin.create_tenant, tenant, clusters, admins)

    @like(trio_admin.Admin.delete_tenant)
    def delete_tenant(self, tenant: str) -> None:
        self._portal.call(self._admin.delete_tenant, tenant)

    @like(trio_admin.Admin.clusters)
    def clusters(self) -> list[str]:
        return self._portal.call(self._admin.clusters)

    @like(trio_admin.Admin.namespaces)
    def namespaces(self, tenant: str = "public") -> list[str]:
        return self._portal.call(self._admin.namespaces, tenant)

    @like(trio_admin.Admin.create_namespace)
    def create_namespace(self, namespace: str) -> None:
        self._portal.call(self._admin.create_namespace, namespace)

    @like(trio_admin.Admin.delete_namespace)
    def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        self._portal.call(lambda: self._admin.delete_namespace(namespace, force=force))

    @like(trio_admin.Admin.policies)
    def policies(self, namespace: str) -> Json:
        return self._portal.call(self._admin.policies, namespace)

    @like(trio_admin.Admin.policy)
    def policy(self, namespace: str, name: str) -> Json:
        return self._portal.call(self._admin.policy, namespace, name)

    @like(trio_admin.Admin.set_policy)
    def set_policy(
        self, namespace: str, name: str, value: Json, *, kind: str | None = None
    ) -> None:
        self._portal.call(lambda: self._admin.set_policy(namespace, name, value, kind=kind))

    @like(trio_admin.Admin.topic_policy)
    def topic_policy(self, topic: str, name: str, *, applied: bool = False) -> Json:
        return self._portal.call(lambda: self._admin.topic_policy(topic, name, applied=applied))

    @like(trio_admin.Admin.set_topic_policy)
    def set_topic_policy(
        self, topic: str, name: str, value: Json, *, kind: str | None = None
    ) -> None:
        self._portal.call(lambda: self._admin.set_topic_policy(topic, name, value, kind=kind))

    @like(trio_admin.Admin.set_retention)
    def set_retention(self, namespace: str, *, minutes: int, megabytes: int) -> None:
        self._portal.call(
            lambda: self._admin.set_retention(namespace, minutes=minutes, megabytes=megabytes)
        )

    @like(trio_admin.Admin.set_deduplication)
    def set_deduplication(self, namespace: str, enabled: bool | None) -> None:
        self._portal.call(self._admin.set_deduplication, namespace, enabled)

    @like(trio_admin.Admin.bundles)
    def bundles(self, namespace: str) -> Json:
        return self._portal.call(self._admin.bundles, namespace)

    @like(trio_admin.Admin.unload_namespace)
    def unload_namespace(self, namespace: str) -> None:
        self._portal.call(self._admin.unload_namespace, namespace)

    @like(trio_admin.Admin.topics)
    def topics(
        self,
        namespace: str = "public/default",
        *,
        persistent: bool = True,
        after: str = "",
        limit: int = 0,
    ) -> list[str]:
        return self._portal.call(
            lambda: self._admin.topics(namespace, persistent=persistent, after=after, limit=limit)
        )

    @like(trio_admin.Admin.partitioned_topics)
    def partitioned_topics(self, namespace: str = "public/default") -> list[str]:
        return self._portal.call(self._admin.partitioned_topics, namespace)

    @like(trio_admin.Admin.create_topic)
    def create_topic(
        self, topic: str, *, partitions: int = 0, properties: dict[str, str] | None = None
    ) -> None:
        self._portal.call(
            lambda: self._admin.create_topic(topic, partitions=partitions, properties=properties)
        )

    @like(trio_admin.Admin.topic_properties)
    def topic_properties(self, topic: str) -> dict[str, str]:
        return self._portal.call(self._admin.topic_properties, topic)

    @like(trio_admin.Admin.set_topic_properties)
    def set_topic_properties(self, topic: str, properties: dict[str, str]) -> None:
        self._portal.call(self._admin.set_topic_properties, topic, properties)

    @like(trio_admin.Admin.remove_topic_property)
    def remove_topic_property(self, topic: str, name: str) -> None:
        self._portal.call(self._admin.remove_topic_property, topic, name)

    @like(trio_admin.Admin.partitions)
    def partitions(self, topic: str) -> int:
        return self._portal.call(self._admin.partitions, topic)

    @like(trio_admin.Admin.add_partitions)
    def add_partitions(self, topic: str, partitions: int) -> None:
        self._portal.call(self._admin.add_partitions, topic, partitions)

    @like(trio_admin.Admin.delete_topic)
    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        self._portal.call(lambda: self._admin.delete_topic(topic, force=force))

    @like(trio_admin.Admin.unload_topic)
    def unload_topic(self, topic: str) -> None:
        self._portal.call(self._admin.unload_topic, topic)

    @like(trio_admin.Admin.deduplication)
    def deduplication(self, topic: str) -> bool:
        return self._portal.call(self._admin.deduplication, topic)

    @like(trio_admin.Admin.set_topic_deduplication)
    def set_topic_deduplication(self, topic: str, enabled: bool | None) -> None:
        self._portal.call(self._admin.set_topic_deduplication, topic, enabled)

    @like(trio_admin.Admin.compact)
    def compact(self, topic: str) -> None:
        self._portal.call(self._admin.compact, topic)

    @like(trio_admin.Admin.compaction)
    def compaction(self, topic: str) -> Json:
        return self._portal.call(self._admin.compaction, topic)

    @like(trio_admin.Admin.terminate_topic)
    def terminate_topic(self, topic: str) -> MessageId:
        return self._portal.call(self._admin.terminate_topic, topic)

    @like(trio_admin.Admin.stats)
    def stats(self, topic: str) -> Json:
        return self._portal.call(self._admin.stats, topic)

    @like(trio_admin.Admin.internal_stats)
    def internal_stats(self, topic: str) -> Json:
        return self._portal.call(self._admin.internal_stats, topic)

    @like(trio_admin.Admin.last_message_id)
    def last_message_id(self, topic: str) -> MessageId:
        return self._portal.call(self._admin.last_message_id, topic)

    @like(trio_admin.Admin.lookup)
    def lookup(self, topic: str) -> Json:
        return self._portal.call(self._admin.lookup, topic)

    @like(trio_admin.Admin.subscriptions)
    def subscriptions(self, topic: str) -> list[str]:
        return self._portal.call(self._admin.subscriptions, topic)

    @like(trio_admin.Admin.create_subscription)
    def create_subscription(
        self, topic: str, subscription: str, *, start: MessageId | str = LATEST
    ) -> None:
        self._portal.call(lambda: self._admin.create_subscription(topic, subscription, start=start))

    @like(trio_admin.Admin.delete_subscription)
    def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        self._portal.call(lambda: self._admin.delete_subscription(topic, subscription, force=force))

    @like(trio_admin.Admin.skip_all)
    def skip_all(self, topic: str, subscription: str) -> None:
        self._portal.call(self._admin.skip_all, topic, subscription)

    @like(trio_admin.Admin.reset_subscription)
    def reset_subscription(self, topic: str, subscription: str, start: MessageId | str) -> None:
        self._portal.call(self._admin.reset_subscription, topic, subscription, start)

    @like(trio_admin.Admin.reset_subscription_to_time)
    def reset_subscription_to_time(
        self, topic: str, subscription: str, publish_time_ms: int
    ) -> None:
        self._portal.call(
            self._admin.reset_subscription_to_time, topic, subscription, publish_time_ms
        )

    @like(trio_admin.Admin.skip_messages)
    def skip_messages(
        self, topic: str, subscription: str, count: int, *, dry_run: bool = False
    ) -> Json:
        return self._portal.call(
            lambda: self._admin.skip_messages(topic, subscription, count, dry_run=dry_run)
        )

    @like(trio_admin.Admin.clear_backlog)
    def clear_backlog(self, topic: str, subscription: str, *, dry_run: bool = False) -> Json:
        return self._portal.call(
            lambda: self._admin.clear_backlog(topic, subscription, dry_run=dry_run)
        )

    @like(trio_admin.Admin.expire_messages)
    def expire_messages(
        self, topic: str, subscription: str, seconds: int, *, dry_run: bool = False
    ) -> Json:
        return self._portal.call(
            lambda: self._admin.expire_messages(topic, subscription, seconds, dry_run=dry_run)
        )

    @like(trio_admin.Admin.analyze_backlog)
    def analyze_backlog(self, topic: str, subscription: str) -> Json:
        return self._portal.call(self._admin.analyze_backlog, topic, subscription)

    @like(trio_admin.Admin.peek)
    def peek(self, topic: str, subscription: str, number: int = 1) -> StoredEntry:
        return self._portal.call(self._admin.peek, topic, subscription, number)

    @like(trio_admin.Admin.examine)
    def examine(self, topic: str, number: int = 1, *, from_earliest: bool = False) -> StoredEntry:
        return self._portal.call(
            lambda: self._admin.examine(topic, number, from_earliest=from_earliest)
        )

    @like(trio_admin.Admin.stored_entry)
    def stored_entry(self, topic: str, ledger_id: int, entry_id: int) -> StoredEntry:
        return self._portal.call(self._admin.stored_entry, topic, ledger_id, entry_id)

    @like(trio_admin.Admin.message_id_at)
    def message_id_at(self, topic: str, publish_time_ms: int) -> MessageId:
        return self._portal.call(self._admin.message_id_at, topic, publish_time_ms)

    @like(trio_admin.Admin.message_id_of_offset)
    def message_id_of_offset(self, topic: str, offset: int) -> MessageId:
        return self._portal.call(self._admin.message_id_of_offset, topic, offset)

    @like(trio_admin.Admin.subscription_properties)
    def subscription_properties(self, topic: str, subscription: str) -> dict[str, str]:
        return self._portal.call(self._admin.subscription_properties, topic, subscription)

    @like(trio_admin.Admin.set_subscription_properties)
    def set_subscription_properties(
        self, topic: str, subscription: str, properties: dict[str, str]
    ) -> None:
        self._portal.call(self._admin.set_subscription_properties, topic, subscription, properties)

    @like(trio_admin.Admin.truncate_topic)
    def truncate_topic(self, topic: str) -> None:
        self._portal.call(self._admin.truncate_topic, topic)

    @like(trio_admin.Admin.trim_topic)
    def trim_topic(self, topic: str) -> None:
        self._portal.call(self._admin.trim_topic, topic)

    @like(trio_admin.Admin.explain_topic)
    def explain_topic(self, topic: str) -> Json:
        return self._portal.call(self._admin.explain_topic, topic)

    @like(trio_admin.Admin.explain_subscription)
    def explain_subscription(self, topic: str, subscription: str) -> Json:
        return self._portal.call(self._admin.explain_subscription, topic, subscription)

    @like(trio_admin.Admin.schema)
    def schema(self, topic: str, version: int | None = None) -> Json:
        return self._portal.call(self._admin.schema, topic, version)

    @like(trio_admin.Admin.schemas)
    def schemas(self, topic: str) -> Json:
        return self._portal.call(self._admin.schemas, topic)

    @like(trio_admin.Admin.add_schema)
    def add_schema(
        self, topic: str, type_: str, definition: str, properties: dict[str, str] | None = None
    ) -> int:
        return self._portal.call(self._admin.add_schema, topic, type_, definition, properties)

    @like(trio_admin.Admin.check_schema)
    def check_schema(
        self, topic: str, type_: str, definition: str, properties: dict[str, str] | None = None
    ) -> Json:
        return self._portal.call(self._admin.check_schema, topic, type_, definition, properties)

    @like(trio_admin.Admin.delete_schema)
    def delete_schema(self, topic: str, *, force: bool = False) -> int:
        return self._portal.call(lambda: self._admin.delete_schema(topic, force=force))

    # -- rights

    @like(trio_admin.Admin.namespace_permissions)
    def namespace_permissions(self, namespace: str) -> Permissions:
        return self._portal.call(self._admin.namespace_permissions, namespace)

    @like(trio_admin.Admin.grant_on_namespace)
    def grant_on_namespace(self, namespace: str, role: str, actions: Sequence[str]) -> None:
        self._portal.call(self._admin.grant_on_namespace, namespace, role, actions)

    @like(trio_admin.Admin.revoke_on_namespace)
    def revoke_on_namespace(self, namespace: str, role: str) -> None:
        self._portal.call(self._admin.revoke_on_namespace, namespace, role)

    @like(trio_admin.Admin.topic_permissions)
    def topic_permissions(self, topic: str) -> Permissions:
        return self._portal.call(self._admin.topic_permissions, topic)

    @like(trio_admin.Admin.grant_on_topic)
    def grant_on_topic(self, topic: str, role: str, actions: Sequence[str]) -> None:
        self._portal.call(self._admin.grant_on_topic, topic, role, actions)

    @like(trio_admin.Admin.revoke_on_topic)
    def revoke_on_topic(self, topic: str, role: str) -> None:
        self._portal.call(self._admin.revoke_on_topic, topic, role)

    @like(trio_admin.Admin.subscription_permissions)
    def subscription_permissions(self, namespace: str) -> Permissions:
        return self._portal.call(self._admin.subscription_permissions, namespace)

    @like(trio_admin.Admin.grant_on_subscription)
    def grant_on_subscription(
        self, namespace: str, subscription: str, roles: Sequence[str]
    ) -> None:
        self._portal.call(self._admin.grant_on_subscription, namespace, subscription, roles)

    @like(trio_admin.Admin.revoke_on_subscription)
    def revoke_on_subscription(self, namespace: str, subscription: str, role: str) -> None:
        self._portal.call(self._admin.revoke_on_subscription, namespace, subscription, role)

    @like(trio_admin.Admin.tenant_admins)
    def tenant_admins(self, tenant: str) -> list[str]:
        return self._portal.call(self._admin.tenant_admins, tenant)

    @like(trio_admin.Admin.set_tenant_admins)
    def set_tenant_admins(self, tenant: str, roles: Sequence[str]) -> None:
        self._portal.call(self._admin.set_tenant_admins, tenant, roles)

    @like(trio_admin.Admin.brokers)
    def brokers(self) -> list[str]:
        return self._portal.call(self._admin.brokers)

    @like(trio_admin.Admin.leader_broker)
    def leader_broker(self) -> Json:
        return self._portal.call(self._admin.leader_broker)

    @like(trio_admin.Admin.call)
    def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        query: Mapping[str, bool | str] | None = None,
    ) -> Json:
        return self._portal.call(self._admin.call, method, path, body, query)

    @like(trio_admin.Admin.check_health)
    def check_health(self) -> None:
        self._portal.call(self._admin.check_health)
