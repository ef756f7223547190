"""REST of clusters, tenants, namespaces and brokers; `policies` has the policies of namespaces."""

from collections.abc import Mapping

from starlette.routing import Route

from daybook.broker.admin import brokers, policies
from daybook.broker.admin.handling import Call, Endpoints, Handler, Text
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import NotAllowedError, PreconditionError
from daybook.broker.namespaces.policy_table import Fields
from daybook.broker.namespaces.records import ClusterData, TenantInfo
from daybook.broker.namespaces.unused_policies import parse_new_namespace
from daybook.wire.version import __version__

OpsCall = Call[Operations]

_ROOT = "/admin/v2"
_METHODS = ("GET", "PUT", "POST", "DELETE")


def routes(endpoints: Endpoints[Operations]) -> list[Route]:
    table: dict[str, Mapping[str, Handler[Operations]]] = {
        "/clusters": {"GET": _clusters},
        "/clusters/{cluster}": {
            "GET": _cluster,
            "PUT": _create_cluster,
            "POST": _change_cluster,
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
        **{
            f"/namespaces/{{tenant}}/{{namespace}}/{path}": handlers
            for path, handlers in policies.of_namespaces().items()
        },
        "/namespaces/{tenant}/{namespace}/{policy:path}": dict.fromkeys(
            ("GET", "PUT", "POST", "DELETE"), _not_offered
        ),
        **brokers.table(),
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


async def _change_cluster(call: OpsCall) -> None:
    await call.parts.tenancy.change_cluster(call.path("cluster"), await call.body(ClusterData))


async def _delete_cluster(call: OpsCall) -> None:
    await call.parts.tenancy.delete_cluster(call.path("cluster"))


async def _tenants(call: OpsCall) -> object:
    return await call.parts.tenancy.tenants()


async def _tenant(call: OpsCall) -> object:
    return await call.parts.tenancy.tenant(call.path("tenant"))


async def _create_tenant(call: OpsCall) -> None:
    info = await call.optional_body(TenantInfo) or TenantInfo()
    await call.parts.tenancy.create_tenant(call.path("tenant"), info)


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
    bundles, wanted = parse_new_namespace(content, call.parts.cluster)
    call.parts.replicas.check_all(wanted)
    await call.parts.tenancy.create_namespace(call.namespace, bundles=bundles, policies=wanted)


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
    return await call.parts.leader_broker(encrypted=call.encrypted)


async def _owned(call: OpsCall) -> object:
    owned = await call.parts.owned_bundles(call.path("broker"))
    return {
        bundle: {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        for bundle in owned
    }
