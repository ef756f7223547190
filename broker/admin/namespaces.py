"""REST of clusters, tenants, namespaces and brokers.

A policy of Pulsar's that this broker does not enforce is refused (405), instead of stored and then
ignored.
"""

from typing import cast

import msgspec
from starlette.routing import Route

from daybook.broker.admin.handling import Call, Endpoints, Handler, Text
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import NotAllowedError, NotFoundError, PreconditionError
from daybook.broker.namespaces.policies import Fields, Persistence, Retention
from daybook.broker.namespaces.records import BundlesData, ClusterData, TenantInfo
from daybook.broker.protocol.bundles import Bundles
from daybook.wire.version import __version__

OpsCall = Call[Operations]

_ROOT = "/admin/v2"
_METHODS = ("GET", "PUT", "POST", "DELETE")


def routes(endpoints: Endpoints[Operations]) -> list[Route]:
    table: dict[str, dict[str, Handler[Operations]]] = {
        "/clusters": {"GET": _clusters},
        "/clusters/{cluster}": {
            "GET": _cluster,
            "PUT": _create_cluster,
            "DELETE": _delete_cluster,
        },
        "/tenants": {"GET": _tenants},
        "/tenants/{tenant}": {
            "GET": _tenant,
            "PUT": _create_tenant,
            "POST": _change_tenant,
            "DELETE": _delete_tenant,
        },
        "/namespaces/{tenant}": {"GET": _namespaces},
        "/namespaces/{tenant}/{namespace}": {
            "GET": _namespace,
            "PUT": _create_namespace,
            "DELETE": _delete_namespace,
        },
        "/namespaces/{tenant}/{namespace}/topics": {"GET": _namespace_topics},
        "/namespaces/{tenant}/{namespace}/retention": {
            "GET": _retention,
            "POST": _set_retention,
            "DELETE": _remove_retention,
        },
        "/namespaces/{tenant}/{namespace}/persistence": {
            "GET": _persistence,
            "POST": _set_persistence,
            "DELETE": _remove_persistence,
        },
        "/namespaces/{tenant}/{namespace}/deduplication": {
            "GET": _deduplication,
            "POST": _set_deduplication,
            "DELETE": _remove_deduplication,
        },
        "/namespaces/{tenant}/{namespace}/bundles": {"GET": _bundles},
        "/namespaces/{tenant}/{namespace}/unload": {"PUT": _unload_namespace},
        "/namespaces/{tenant}/{namespace}/{bundle}/unload": {"PUT": _unload_bundle},
        "/namespaces/{tenant}/{namespace}/{policy:path}": dict.fromkeys(
            ("GET", "PUT", "POST", "DELETE"), _not_offered
        ),
        "/brokers": {"GET": _brokers},
        "/brokers/health": {"GET": _health},
        "/brokers/ready": {"GET": _health},
        "/brokers/version": {"GET": _version},
        "/brokers/leaderBroker": {"GET": _leader},
        "/brokers/{cluster}": {"GET": _brokers},
        "/brokers/{cluster}/{broker}/ownedNamespaces": {"GET": _owned},
    }
    return [endpoints.route(_ROOT + path, handlers) for path, handlers in table.items()]


# -- clusters and tenants


async def _clusters(call: OpsCall) -> object:
    return await call.parts.tenancy.clusters()


async def _cluster(call: OpsCall) -> object:
    return await call.parts.tenancy.cluster(call.path("cluster"))


async def _create_cluster(call: OpsCall) -> None:
    data = await call.optional_body(ClusterData)
    await call.parts.tenancy.create_cluster(call.path("cluster"), data or ClusterData())


async def _delete_cluster(call: OpsCall) -> None:
    await call.parts.tenancy.delete_cluster(call.path("cluster"))


async def _tenants(call: OpsCall) -> object:
    return await call.parts.tenancy.tenants()


async def _tenant(call: OpsCall) -> object:
    return await call.parts.tenancy.tenant(call.path("tenant"))


async def _create_tenant(call: OpsCall) -> None:
    info = await call.optional_body(TenantInfo)
    await call.parts.tenancy.create_tenant(call.path("tenant"), info or TenantInfo())


async def _change_tenant(call: OpsCall) -> None:
    await call.parts.tenancy.change_tenant(call.path("tenant"), await call.body(TenantInfo))


async def _delete_tenant(call: OpsCall) -> None:
    await call.parts.tenancy.delete_tenant(call.path("tenant"))


# -- namespaces


async def _namespaces(call: OpsCall) -> object:
    return await call.parts.tenancy.namespaces(call.path("tenant"))


async def _namespace(call: OpsCall) -> object:
    return await call.parts.tenancy.policies_record(call.namespace)


async def _create_namespace(call: OpsCall) -> None:
    content = await call.optional_body(Fields) or {}
    new = parse_new_namespace(content, call.parts.cluster)
    await call.parts.tenancy.create_namespace(
        call.namespace,
        bundles=new.bundles,
        retention=new.retention,
        persistence=new.persistence,
        deduplication=new.deduplication,
    )


async def _delete_namespace(call: OpsCall) -> None:
    await call.parts.delete_namespace(call.namespace, force=call.flag("force"))


async def _namespace_topics(call: OpsCall) -> object:
    match call.query("mode", "PERSISTENT").upper():
        case "PERSISTENT" | "ALL":
            return await call.parts.topics(call.namespace)
        case "NON_PERSISTENT":
            return []
        case mode:
            raise PreconditionError(
                f"there is no mode {mode}: use PERSISTENT, NON_PERSISTENT or ALL"
            )


async def _retention(call: OpsCall) -> object:
    return (await call.parts.policies.namespace(call.namespace)).retention


async def _set_retention(call: OpsCall) -> None:
    await call.parts.tenancy.set_retention(call.namespace, await call.body(Retention))


async def _remove_retention(call: OpsCall) -> None:
    await call.parts.tenancy.set_retention(call.namespace, None)


async def _persistence(call: OpsCall) -> object:
    persistence = (await call.parts.policies.namespace(call.namespace)).persistence
    if persistence is None:
        raise NotFoundError(f"{call.namespace} has no persistence policy of its own")
    return persistence


async def _set_persistence(call: OpsCall) -> None:
    await call.parts.tenancy.set_persistence(call.namespace, await call.body(Persistence))


async def _remove_persistence(call: OpsCall) -> None:
    await call.parts.tenancy.set_persistence(call.namespace, None)


async def _deduplication(call: OpsCall) -> object:
    return await call.parts.policies.namespace_deduplication(call.namespace)


async def _set_deduplication(call: OpsCall) -> None:
    await call.parts.tenancy.set_deduplication(call.namespace, await call.body(bool))


async def _remove_deduplication(call: OpsCall) -> None:
    await call.parts.tenancy.set_deduplication(call.namespace, None)


async def _bundles(call: OpsCall) -> object:
    return BundlesData.from_bundles(await call.parts.policies.bundles(call.namespace))


async def _unload_namespace(call: OpsCall) -> None:
    await call.parts.unload_namespace(call.namespace)


async def _unload_bundle(call: OpsCall) -> None:
    if call.query("destinationBroker"):
        raise NotAllowedError(
            "this broker does not offer destinationBroker: the leader chooses the next broker"
        )
    await call.parts.unload_bundle(call.namespace, call.path("bundle"))


async def _not_offered(call: OpsCall) -> None:
    await call.parts.policies.namespace(call.namespace)
    raise NotAllowedError(f"this broker does not offer {call.path('policy')}")


# -- brokers


async def _brokers(call: OpsCall) -> object:
    return await call.parts.brokers()


async def _health(call: OpsCall) -> object:
    await call.parts.check_health()
    return Text("ok")


async def _version(_: OpsCall) -> object:
    return Text(__version__)


async def _leader(call: OpsCall) -> object:
    return await call.parts.leader_broker()


async def _owned(call: OpsCall) -> object:
    owned = await call.parts.owned_bundles(call.path("broker"))
    return {
        bundle: {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        for bundle in owned
    }


# -- policies of a new namespace
#
# `pulsar-admin namespaces create` sends every policy that exists, nearly all of them with a value
# that asks for nothing.  Those are accepted.  A policy that asks for a feature this broker lacks is
# refused by its name, and the namespace is not created.

_LIMITS = (
    "compaction_threshold",
    "max_consumers_per_subscription",
    "max_consumers_per_topic",
    "max_producers_per_topic",
    "max_subscriptions_per_topic",
    "max_topics_per_namespace",
    "max_unacked_messages_per_consumer",
    "max_unacked_messages_per_subscription",
    "message_ttl_in_seconds",
    "offload_deletion_lag_ms",
    "subscription_expiration_time_minutes",
)
# Values that ask for nothing, in addition to empty ones; also those of older releases of Pulsar.
_NOTHING_WANTED: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(_LIMITS, (0, -1)),
    "offload_threshold": (-1,),
    "offload_threshold_in_seconds": (-1,),
    "subscription_auth_mode": ("None",),
    "schema_compatibility_strategy": ("UNDEFINED",),
    "schema_auto_update_compatibility_strategy": ("Full",),
    "is_allow_auto_update_schema": (True,),
}


class _NewBundles(msgspec.Struct):
    numBundles: int | None = None  # noqa: N815 - Pulsar's keys
    boundaries: list[str] | None = None


class _NewPolicies(msgspec.Struct):
    bundles: _NewBundles | None = None
    retention_policies: Retention | None = None
    persistence: Persistence | None = None
    deduplicationEnabled: bool | None = None  # noqa: N815
    replication_clusters: list[str] = []
    allowed_clusters: list[str] = []


class NewNamespace(msgspec.Struct, frozen=True):
    """The policies that the request sets.  For None the settings of the broker apply."""

    bundles: Bundles | None
    retention: Retention | None
    persistence: Persistence | None
    deduplication: bool | None = None


def parse_new_namespace(content: Fields, cluster: str) -> NewNamespace:
    """Parse the policies.

    Raise PreconditionError, or NotAllowedError for features that this broker never has.
    """
    wanted = {key: value for key, value in content.items() if not _nothing_wanted(key, value)}
    for key in wanted:
        if key not in _NewPolicies.__struct_fields__:
            raise PreconditionError(
                f"this broker does not offer the policy {key}: leave it out, or empty"
            )
    try:
        new = msgspec.convert(wanted, _NewPolicies)
    except msgspec.ValidationError as error:
        raise PreconditionError(f"the policies are not valid: {error}") from None
    for key, clusters in (
        ("replication_clusters", new.replication_clusters),
        ("allowed_clusters", new.allowed_clusters),
    ):
        if any(other != cluster for other in clusters):
            raise NotAllowedError(
                f"this broker does not replicate topics to other clusters: leave out {key}"
            )
    bundles = None if new.bundles is None else _bundles_of(new.bundles)
    return NewNamespace(bundles, new.retention_policies, new.persistence, new.deduplicationEnabled)


def _nothing_wanted(key: str, value: object) -> bool:
    return (
        value == ""
        or _is_empty(value)
        or any(value == each and type(value) is type(each) for each in _NOTHING_WANTED.get(key, ()))
    )


def _is_empty(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_empty, cast("Fields", value).values()))
    return value is None or value is False or value == []


def _bundles_of(new: _NewBundles) -> Bundles | None:
    try:
        if new.boundaries:
            return Bundles.parse(new.boundaries)
        return Bundles.equal(new.numBundles) if new.numBundles else None
    except ValueError as error:
        raise PreconditionError(f"the bundles are not valid: {error}") from None
