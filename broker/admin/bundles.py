"""REST of bundles: Pulsar's, and the calls by which one broker hands a bundle to another."""

from starlette.routing import Route

from daybook.broker.admin.handling import Call, Endpoints, Handler
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import InvalidNameError
from daybook.broker.namespaces.records import BundlesData
from daybook.broker.ownership.hand_over import HoldBody, PassOnBody, TicketBody
from daybook.broker.protocol.bundles import BundleName, bundle_name, ends

OpsCall = Call[Operations]

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_ROWS = "/admin/v2/daybook/bundles/{tenant}/{namespace}"
_OURS = f"{_ROWS}/{{bundle}}"


def routes(endpoints: Endpoints[Operations]) -> list[Route]:
    table: dict[str, dict[str, Handler[Operations]]] = {
        f"{_NAMESPACE}/bundles": {"GET": _bundles},
        f"{_NAMESPACE}/unload": {"PUT": _unload_namespace},
        f"{_NAMESPACE}/{{bundle}}/unload": {"PUT": _unload},
        f"{_NAMESPACE}/{{bundle}}/split": {"PUT": _split},
        _ROWS: {"GET": _rows},
        f"{_OURS}/expect": {"POST": _expect, "DELETE": _expect_no_longer},
        f"{_OURS}/hold": {"POST": _hold},
        f"{_OURS}/pass-on": {"POST": _pass_on},
        f"{_OURS}/take": {"POST": _take},
    }
    return [endpoints.route(path, handlers) for path, handlers in table.items()]


async def _bundles(call: OpsCall) -> object:
    return BundlesData.from_bundles(await call.parts.bundles.bundles(call.namespace))


async def _rows(call: OpsCall) -> object:
    return await call.parts.bundles.rows(call.namespace)


async def _unload_namespace(call: OpsCall) -> None:
    await call.parts.bundles.unload_namespace(call.namespace, destination=_destination(call))


async def _unload(call: OpsCall) -> None:
    await call.parts.bundles.unload(
        call.namespace, call.path("bundle"), destination=_destination(call)
    )


def _destination(call: OpsCall) -> str:
    return call.query("destinationBroker").removeprefix("http://")


async def _split(call: OpsCall) -> None:
    positions = await call.optional_body(list[int]) or []
    await call.parts.bundles.split(
        call.namespace,
        call.path("bundle"),
        algorithm=call.query("splitAlgorithmName"),
        positions=positions,
        unload=call.flag("unload"),
    )


# -- between brokers


def _bundle(call: OpsCall) -> BundleName:
    range_ = call.path("bundle")
    try:
        ends(range_)
    except ValueError:
        raise InvalidNameError(f"{range_!r} is not the range of a bundle") from None
    return bundle_name(call.namespace, range_)


async def _expect(call: OpsCall) -> None:
    await call.parts.bundles.expect(_bundle(call))


async def _expect_no_longer(call: OpsCall) -> None:
    await call.parts.bundles.expect_no_longer(_bundle(call))


async def _hold(call: OpsCall) -> None:
    await call.parts.bundles.hold(_bundle(call), await call.body(HoldBody))


async def _pass_on(call: OpsCall) -> None:
    await call.parts.bundles.pass_on(_bundle(call), await call.body(PassOnBody))


async def _take(call: OpsCall) -> None:
    await call.parts.bundles.take(_bundle(call), await call.body(TicketBody))
