"""REST of the policies of namespaces and topics: one table of paths for each level.

A policy that this broker enforces has a row that names it in `namespaces.policy_table`.  Policies
for which this broker has no use are listed in `namespaces.unused_policies`: their values that ask
for nothing are accepted, kept and shown, and any other value is refused (405) with the reason.

GET answers with the value of this level, and nothing (204) if it has none.  At a topic, `applied`
asks for the value that counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from daybook.broker.admin import permissions
from daybook.broker.admin.handling import Call, Handler
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import InvalidNameError, NotAllowedError, PreconditionError
from daybook.broker.limits import check_properties
from daybook.broker.namespaces import policy_table as table
from daybook.broker.namespaces.policy_table import Fields, Policy, Slot
from daybook.broker.namespaces.unused_policies import (
    ALONE,
    UNUSED,
    UnusedPolicy,
    check_clusters,
    is_empty,
)

OpsCall = Call[Operations]
_NAME_CHARS_MAX = 1 << 10
Handlers = Mapping[str, Handler[Operations]]


@dataclass(frozen=True, slots=True)
class PolicyPath:
    """The path of a policy that is enforced.

    POST and PUT set it: Pulsar's tools use one for some policies, and the other for others.  The
    value is in the body, or in the parameter `query` if that is named.  `unset` is the answer if
    there is no value.
    """

    policy: Policy
    query: str = ""
    unset: object = None


NAMESPACE: Mapping[str, PolicyPath] = {
    "retention": PolicyPath(table.RETENTION),
    "persistence": PolicyPath(table.PERSISTENCE),
    "deduplication": PolicyPath(table.DEDUPLICATION),
    "maxProducersPerTopic": PolicyPath(table.MAX_PRODUCERS),
    "maxConsumersPerTopic": PolicyPath(table.MAX_CONSUMERS),
    "maxConsumersPerSubscription": PolicyPath(table.MAX_CONSUMERS_PER_SUBSCRIPTION),
    "maxSubscriptionsPerTopic": PolicyPath(table.MAX_SUBSCRIPTIONS),
    "maxTopicsPerNamespace": PolicyPath(table.MAX_TOPICS),
    "maxUnackedMessagesPerConsumer": PolicyPath(table.MAX_UNACKED_PER_CONSUMER),
    "maxUnackedMessagesPerSubscription": PolicyPath(table.MAX_UNACKED_PER_SUBSCRIPTION),
    "subscriptionTypesEnabled": PolicyPath(table.SUBSCRIPTION_TYPES, unset=[]),
    "delayedDelivery": PolicyPath(table.DELAYED_DELIVERY),
    "autoTopicCreation": PolicyPath(table.AUTO_TOPIC_CREATION),
    "autoSubscriptionCreation": PolicyPath(table.AUTO_SUBSCRIPTION_CREATION),
    "publishRate": PolicyPath(table.PUBLISH_RATE),
    "dispatchRate": PolicyPath(table.DISPATCH_RATE),
    "subscriptionDispatchRate": PolicyPath(table.SUBSCRIPTION_DISPATCH_RATE),
    "subscribeRate": PolicyPath(table.SUBSCRIBE_RATE),
    "messageTTL": PolicyPath(table.MESSAGE_TTL),
    "subscriptionExpirationTime": PolicyPath(table.SUBSCRIPTION_EXPIRY),
    "inactiveTopicPolicies": PolicyPath(table.INACTIVE_TOPICS),
    "compactionThreshold": PolicyPath(table.COMPACTION_THRESHOLD),
    "schemaCompatibilityStrategy": PolicyPath(table.SCHEMA_COMPATIBILITY, unset="UNDEFINED"),
    "schemaAutoUpdateCompatibilityStrategy": PolicyPath(table.SCHEMA_AUTO_UPDATE),
    "isAllowAutoUpdateSchema": PolicyPath(table.SCHEMA_AUTO_UPDATE_ALLOWED),
    "schemaValidationEnforced": PolicyPath(table.SCHEMA_VALIDATION_ENFORCED, unset=False),
}
TOPIC: Mapping[str, PolicyPath] = {
    "retention": PolicyPath(table.RETENTION),
    "persistence": PolicyPath(table.PERSISTENCE),
    "deduplicationEnabled": PolicyPath(table.DEDUPLICATION),
    "maxProducers": PolicyPath(table.MAX_PRODUCERS),
    "maxConsumers": PolicyPath(table.MAX_CONSUMERS),
    "maxConsumersPerSubscription": PolicyPath(table.MAX_CONSUMERS_PER_SUBSCRIPTION),
    "maxSubscriptionsPerTopic": PolicyPath(table.MAX_SUBSCRIPTIONS),
    "maxUnackedMessagesOnConsumer": PolicyPath(table.MAX_UNACKED_PER_CONSUMER),
    "maxUnackedMessagesOnSubscription": PolicyPath(table.MAX_UNACKED_PER_SUBSCRIPTION),
    "maxMessageSize": PolicyPath(table.MAX_MESSAGE_BYTES),
    "subscriptionTypesEnabled": PolicyPath(table.SUBSCRIPTION_TYPES),
    "delayedDelivery": PolicyPath(table.DELAYED_DELIVERY),
    "autoSubscriptionCreation": PolicyPath(table.AUTO_SUBSCRIPTION_CREATION),
    "publishRate": PolicyPath(table.PUBLISH_RATE),
    "dispatchRate": PolicyPath(table.DISPATCH_RATE),
    "subscriptionDispatchRate": PolicyPath(table.SUBSCRIPTION_DISPATCH_RATE),
    "subscribeRate": PolicyPath(table.SUBSCRIBE_RATE),
    "messageTTL": PolicyPath(table.MESSAGE_TTL, query="messageTTL"),
    "inactiveTopicPolicies": PolicyPath(table.INACTIVE_TOPICS),
    "compactionThreshold": PolicyPath(table.COMPACTION_THRESHOLD),
    "schemaCompatibilityStrategy": PolicyPath(table.SCHEMA_COMPATIBILITY),
    "schemaValidationEnforced": PolicyPath(table.SCHEMA_VALIDATION_ENFORCED),
}


_UNUSED_OF_TOPICS: Mapping[str, UnusedPolicy] = {
    path: policy
    for policy in UNUSED
    for path in (policy.path,)
    if path
    in (
        "replicatorDispatchRate",
        "offloadPolicies",
        "deduplicationSnapshotInterval",
        "entryFilters",
        "dispatcherPauseOnAckStatePersistent",
    )
}


def of_namespaces() -> dict[str, Handlers]:
    """Return the handlers by path, below the path of a namespace."""
    found: dict[str, Handlers] = {
        path: {
            "GET": partial(_get_of_namespace, each),
            "POST": partial(_set_of_namespace, each),
            "PUT": partial(_set_of_namespace, each),
            "DELETE": partial(_remove_of_namespace, each),
        }
        for path, each in NAMESPACE.items()
    }
    for unused in UNUSED:
        if unused.path:
            store = partial(_set_unused, unused)
            found[unused.path] = {
                "GET": partial(_get_unused, unused),
                "POST": store,
                "PUT": store,
                "DELETE": partial(_remove_unused, unused),
            }
    found["backlogQuotaMap"] = {"GET": _quotas_of_namespace}
    found["backlogQuota"] = {
        "POST": _set_quota_of_namespace,
        "DELETE": _remove_quota_of_namespace,
    }
    found["replication"] = {"GET": _clusters, "POST": _set_clusters}
    found |= permissions.of_namespaces()
    found["properties"] = {
        "GET": _properties,
        "PUT": _add_properties,
        "DELETE": _clear_properties,
    }
    found["property/{key}/{value}"] = {"PUT": _add_property}
    found["property/{key}"] = {"GET": _property, "DELETE": _remove_property}
    return found


def of_topics() -> dict[str, Handlers]:
    """Return the handlers by path, below the path of a topic."""
    found: dict[str, Handlers] = {
        path: {
            "GET": partial(_get_of_topic, each),
            "POST": partial(_set_of_topic, each),
            "PUT": partial(_set_of_topic, each),
            "DELETE": partial(_remove_of_topic, each),
        }
        for path, each in TOPIC.items()
    }
    found["backlogQuotaMap"] = {"GET": _quotas_of_topic}
    found["backlogQuota"] = {"POST": _set_quota_of_topic, "DELETE": _remove_quota_of_topic}
    found["{subscription}/dispatchRate"] = {
        "GET": _get_of_subscription,
        "POST": _set_of_subscription,
        "DELETE": _remove_of_subscription,
    }
    for path, unused in _UNUSED_OF_TOPICS.items():
        refuse = partial(_refuse_of_topic, unused)
        found[path] = {"GET": _nothing_of_topic, "POST": refuse, "DELETE": _nothing_of_topic}
    return found | permissions.of_topics()


# -- namespaces


async def _get_of_namespace(path: PolicyPath, call: OpsCall) -> object:
    value = await call.parts.policies.namespace_policy(call.namespace, path.policy)
    return path.unset if path.policy.says_nothing(value) else value


async def _set_of_namespace(path: PolicyPath, call: OpsCall) -> None:
    await call.parts.tenancy.set_policy(call.namespace, path.policy, await _value(path, call))


async def _remove_of_namespace(path: PolicyPath, call: OpsCall) -> None:
    await call.parts.tenancy.set_policy(call.namespace, path.policy, None)


async def _value(path: PolicyPath, call: OpsCall) -> object:
    """Return the value that the request sets; None if it means that there is none.

    A record of Pulsar may have -1 for a limit that is not set.  A request for -1 is refused, as it
    is by Pulsar: DELETE removes a limit.
    """
    if path.query and (text := call.query(path.query)):
        try:
            value: object = int(text)
        except ValueError:
            raise PreconditionError(f"{path.query} must be a number, not {text!r}") from None
    else:
        value = await call.optional_body(cast("type[object]", Any))
    if value == -1 and path.policy.says_nothing(value):
        raise PreconditionError(
            f"the policy {path.policy} cannot be -1: set it to 0 or more, or remove it (DELETE)"
        )
    if path.policy.says_nothing(value):
        return None
    call.parts.replicas.check(path.policy, value)
    return value


async def _get_unused(policy: UnusedPolicy, call: OpsCall) -> object:
    value = await call.parts.policies.namespace_field(call.namespace, policy.key)
    return policy.harmless[0] if is_empty(value) else value


async def _set_unused(policy: UnusedPolicy, call: OpsCall) -> None:
    value = await call.optional_body(cast("type[object]", Any))
    policy.check(value)
    await _change_field(call, policy.key, value)


async def _remove_unused(policy: UnusedPolicy, call: OpsCall) -> None:
    await _change_field(call, policy.key, None)


async def _change_field(call: OpsCall, key: str, value: object) -> None:
    slot, cluster = Slot(key), call.parts.cluster
    await call.parts.policies.change_namespace(
        call.namespace, lambda fields: slot.put(fields, value, cluster)
    )


async def _clusters(call: OpsCall) -> object:
    clusters = await call.parts.policies.namespace_field(call.namespace, "replication_clusters")
    return clusters or [call.parts.cluster]


async def _set_clusters(call: OpsCall) -> None:
    clusters = await call.body(list[str])
    check_clusters("replication_clusters", clusters, call.parts.cluster)
    await _change_field(call, "replication_clusters", clusters)


# -- backlog quotas


def _quota(call: OpsCall) -> Policy:
    """Return the policy that the request names by the type of the quota."""
    kind = call.query("backlogQuotaType", "destination_storage")
    if kind not in table.QUOTAS:
        raise PreconditionError(
            f"there is no backlogQuotaType {kind}: use {' or '.join(table.QUOTAS)}"
        )
    return table.QUOTAS[kind]


async def _quotas_of_namespace(call: OpsCall) -> object:
    policies = call.parts.policies
    found = {
        kind: await policies.namespace_policy(call.namespace, policy)
        for kind, policy in table.QUOTAS.items()
    }
    return {kind: value for kind, value in found.items() if value is not None}


async def _set_quota_of_namespace(call: OpsCall) -> None:
    value = await call.body(cast("type[object]", Any))
    await call.parts.tenancy.set_policy(call.namespace, _quota(call), value)


async def _remove_quota_of_namespace(call: OpsCall) -> None:
    await call.parts.tenancy.set_policy(call.namespace, _quota(call), None)


async def _quotas_of_topic(call: OpsCall) -> object:
    applied = call.flag("applied")
    found = {
        kind: await call.parts.topic_policy(call.topic, policy, applied=applied)
        for kind, policy in table.QUOTAS.items()
    }
    return {kind: value for kind, value in found.items() if value is not None}


async def _set_quota_of_topic(call: OpsCall) -> None:
    _check_local(call)
    value = await call.body(cast("type[object]", Any))
    await call.parts.set_topic_policy(call.topic, _quota(call), value)


async def _remove_quota_of_topic(call: OpsCall) -> None:
    _check_local(call)
    await call.parts.set_topic_policy(call.topic, _quota(call), None)


# -- properties of namespaces


async def _properties(call: OpsCall) -> dict[str, str]:
    found = await call.parts.policies.namespace_field(call.namespace, "properties")
    return cast("dict[str, str]", found) if isinstance(found, dict) else {}


async def _add_properties(call: OpsCall) -> None:
    await _change_properties(call, partial(_add, await call.body(dict[str, str])))


async def _add_property(call: OpsCall) -> None:
    await _change_properties(call, partial(_add, {call.path("key"): call.path("value")}))


def _add(more: dict[str, str], properties: dict[str, str]) -> dict[str, str]:
    return properties | more


async def _property(call: OpsCall) -> object:
    return (await _properties(call)).get(call.path("key"))


async def _remove_property(call: OpsCall) -> object:
    key = call.path("key")
    removed = (await _properties(call)).get(key)
    await _change_properties(call, lambda found: {k: v for k, v in found.items() if k != key})
    return removed


async def _clear_properties(call: OpsCall) -> None:
    await _change_properties(call, lambda _: {})


async def _change_properties(
    call: OpsCall, change: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    def changed(fields: Fields) -> None:
        found = fields.get("properties")
        properties = change(cast("dict[str, str]", found) if isinstance(found, dict) else {})
        check_properties(f"namespace {call.namespace}", properties)
        fields["properties"] = properties

    await call.parts.policies.change_namespace(call.namespace, changed)


# -- topics


def _check_local(call: OpsCall) -> None:
    if call.flag("isGlobal"):
        raise NotAllowedError(f"isGlobal is not offered: {ALONE}")


async def _get_of_topic(path: PolicyPath, call: OpsCall) -> object:
    _check_local(call)
    return await call.parts.topic_policy(call.topic, path.policy, applied=call.flag("applied"))


async def _set_of_topic(path: PolicyPath, call: OpsCall) -> None:
    _check_local(call)
    await call.parts.set_topic_policy(call.topic, path.policy, await _value(path, call))


async def _remove_of_topic(path: PolicyPath, call: OpsCall) -> None:
    _check_local(call)
    await call.parts.set_topic_policy(call.topic, path.policy, None)


def _of_subscription(call: OpsCall) -> PolicyPath:
    name = call.path("subscription")
    if not name or len(name) > _NAME_CHARS_MAX:
        raise InvalidNameError(f"{name[:64]!r} is not the name of a subscription")
    return PolicyPath(table.dispatch_rate_of(name))


async def _get_of_subscription(call: OpsCall) -> object:
    return await _get_of_topic(_of_subscription(call), call)


async def _set_of_subscription(call: OpsCall) -> None:
    await _set_of_topic(_of_subscription(call), call)


async def _remove_of_subscription(call: OpsCall) -> None:
    await _remove_of_topic(_of_subscription(call), call)


async def _nothing_of_topic(call: OpsCall) -> None:
    await call.parts.check_exists(call.topic)


async def _refuse_of_topic(policy: UnusedPolicy, call: OpsCall) -> None:
    await call.parts.check_exists(call.topic)
    policy.check(await call.optional_body(cast("type[object]", Any)))
