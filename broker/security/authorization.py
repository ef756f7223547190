"""Decides what a role may do.  A role that was granted nothing may do nothing.

    super user            everything
    admin of the tenant   everything in the tenant
    other roles           what the policies of the namespace grant, in Pulsar's format

A right on a partitioned topic is one on each of its partitions, and on nothing else whose name ends
like that of a partition.

Only a super user publishes to the topics that Pulsar's brokers keep for themselves, because brokers
believe what is in there.

A refusal names the right that lacks, the role and the object.
"""

from collections.abc import Callable

from daybook.broker.config import BrokerConfig
from daybook.broker.errors import AuthorizationError, BrokerError, UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import MetadataCache, Policies
from daybook.broker.namespaces.records import TenantInfo
from daybook.broker.namespaces.system_topics import is_system
from daybook.broker.security.grants import CONSUME, PRODUCE, Grants, parse
from daybook.broker.security.identity import Caller
from daybook.broker.security.refusals import refusal
from daybook.broker.security.resources import Resource
from daybook.broker.security.rights import ON_TOPICS, Right
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.topics import TopicName


class Authorization:
    """One instance per broker.  Without the setting `authorization`, each role may do everything.

    `listen` registers a function that is called with the prefix of what a change concerns: a
    tenant, or tenant/namespace.
    """

    def __init__(self, store: MetadataStore, policies: Policies, config: BrokerConfig) -> None:
        self._policies = policies
        self.on = config.authorization
        self.changes = 0  # counts the changes of rights that this broker has heard of
        self._supers = frozenset(config.super_users)
        self._proxies = frozenset(config.proxy_roles)
        self._readers_of_metrics = frozenset(config.metrics_roles)
        self._wildcards = config.authorization_wildcards
        self._grants = MetadataCache(store, parse, self._touched)
        self._tenants = MetadataCache(store, _tenant, self._touched)
        self._listeners: list[Callable[[str], None]] = []
        policies.listen(self._changed)

    def listen(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def _touched(self, path: str) -> None:
        self.changes += 1
        self.recheck(path.removeprefix(f"{records.POLICIES}/"))

    def recheck(self, concerns: str) -> None:
        """Check the rights of the clients there again: a tenant, or tenant/namespace."""
        for listener in self._listeners:
            listener(concerns)

    def _changed(self, concerns: str) -> None:
        """Note a change that this broker has made: it counts before the watch fires."""
        path = f"{records.POLICIES}/{concerns}"
        self._grants.invalidate(path)
        self._tenants.invalidate(path)
        self._touched(path)

    async def check(self, caller: Caller | None, right: Right, target: Resource) -> None:
        """Raise AuthorizationError if a role of the caller lacks the right.

        `None` is a client that was not asked who it is.
        """
        if caller is None or not self.on or right in (Right.OPEN, Right.IDENTIFIED):
            return
        if right is Right.BROKER:
            self._check_broker(caller)
            return
        right = told = ON_TOPICS.get(right, right)
        if right is Right.PRODUCE and target.topic is not None and is_system(target.topic):
            right = Right.SUPER_USER
        if not target.sink:
            told = right  # The topic of a sink may not be known by the right that it needs.
        for role in caller.roles:
            if not await self._may(role, right, target):
                raise AuthorizationError(await self._refusal(role, told, target))

    async def _refusal(self, role: str, right: Right, target: Resource) -> str:
        grants = None
        if target.namespace and not target.sink and right not in (Right.ADMIN, Right.SUPER_USER):
            grants = await self._grants.get(records.policies_path(target.namespace))
        return refusal(role, right, target, grants, wildcards=self._wildcards)

    def _check_broker(self, caller: Caller) -> None:
        role = caller.identity.role
        if caller.original or role not in self._supers or role in self._proxies:
            raise AuthorizationError(
                f"the role {caller.role!r} is not that of a broker, which alone may ask this"
            )

    async def _may(self, role: str, right: Right, target: Resource) -> bool:
        if role in self._supers:
            return True
        if right is Right.METRICS:
            return role in self._readers_of_metrics
        if right is Right.SUPER_USER or not target.tenant:
            return False
        if await self._is_admin(role, target.tenant):
            return True
        if right is Right.ADMIN or not target.namespace:
            return False
        return await self._is_granted(role, right, target)

    async def _is_admin(self, role: str, tenant: str) -> bool:
        info = await self._tenants.get(records.policies_path(tenant))
        return info is not None and role in info.admin_roles

    async def _is_granted(self, role: str, right: Right, target: Resource) -> bool:
        grants = await self._grants.get(records.policies_path(target.namespace))
        if grants is None:
            return False  # It does not exist; a role without rights does not learn that.
        match right:
            case Right.PRODUCE:
                return await self._allow(grants, role, PRODUCE, target)
            case Right.CONSUME:
                name = target.subscription
                if name is not None and not grants.allow_subscription(
                    role, name, of_reader=target.of_reader
                ):
                    return False
                return await self._allow(grants, role, CONSUME, target)
            case _:
                assert right is Right.LOOKUP
                return await self._allow(grants, role, PRODUCE, target) or await self._allow(
                    grants, role, CONSUME, target
                )

    async def demands_prefix(self, namespace: str) -> bool:
        """Return True if the names of subscriptions have to begin with the role there."""
        grants = await self._grants.get(records.policies_path(namespace))
        return grants is not None and grants.prefix_mode

    async def _allow(self, grants: Grants, role: str, action: str, target: Resource) -> bool:
        topic, wildcards = target.topic, self._wildcards
        if not grants.allow(role, action, topic, wildcards=wildcards):
            return False
        if topic is None or topic.partition < 0:
            return True
        if grants.allow(role, action, topic, wildcards=wildcards, by_base=False):
            return True
        return await self._is_partition(topic)

    async def _is_partition(self, topic: TopicName) -> bool:
        """Return True if it is a partition of its topic, so that rights on that one count."""
        if topic.partition < await self._policies.partitions(topic.base):
            return True
        # Another broker may have just added it.
        return topic.partition < await self._policies.newest_partitions(topic.base)

    async def still_may(self, caller: Caller, right: Right, target: Resource) -> bool | None:
        """Return True if the caller has the right now; None if that is unknown."""
        try:
            await self.check(caller, right, target)
        except AuthorizationError:
            return False
        except BrokerError:
            return None
        return True


def _tenant(value: bytes, path: str) -> TenantInfo:
    try:
        return records.decode(TenantInfo, value) if value else TenantInfo()
    except MalformedError as error:
        raise UnavailableError(f"{path}: {error}") from None
