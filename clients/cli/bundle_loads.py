"""The loads of the bundles of a namespace at this moment, as reported by their brokers."""

import itertools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import trio

from daybook.clients.cli.options import client_arguments
from daybook.clients.python.admin import Admin
from daybook.clients.python.errors import BrokerError, NotFoundError
from daybook.wire.topics import url_encode

Loads: TypeAlias = Mapping[str, Mapping[str, Any]]  # by broker, and by the full name of the bundle

_OTHERS = ""
_LOAD_S = 3.0
_ALL_S = 8.0  # for the counts in a question that somebody waits for


@dataclass(frozen=True, slots=True)
class BundleOwner:
    """The broker of a bundle; "" if it has none.  `moving_to` is the next one, if it moves."""

    broker: str = ""
    moving_to: str = ""
    since_ms: int | None = None


async def owners_of(admin: Admin, namespace: str) -> dict[str, str]:
    """Return the broker of each bundle of the namespace; "" if it has none."""
    found = await bundle_owners(admin, namespace)
    return {bundle: owner.broker for bundle, owner in found.items()}


async def bundle_owners(admin: Admin, namespace: str) -> dict[str, BundleOwner]:
    """Return the owners of all bundles of the namespace."""
    path = f"/admin/v2/daybook/bundles/{namespace}"
    try:
        rows: list[dict[str, Any]] = await admin.call("GET", path)
    except NotFoundError:  # This broker is older, or there is no such namespace.
        owners = await _owners_told_by_each(admin, namespace)
        return {bundle: BundleOwner(broker) for bundle, broker in owners.items()}
    return {
        each["bundle"]: BundleOwner(each["broker"], each["movingTo"], each["movingSinceMs"])
        for each in rows
    }


async def _owners_told_by_each(admin: Admin, namespace: str) -> dict[str, str]:
    boundaries = (await admin.bundles(namespace))["boundaries"]
    owners = {f"{low}_{high}": "" for low, high in itertools.pairwise(boundaries)}
    for broker in await admin.brokers():
        path = f"/admin/v2/brokers/-/{url_encode(broker)}/ownedNamespaces"
        for name in await admin.call("GET", path):
            of, _, bundle = name.rpartition("/")
            if of == namespace and bundle in owners:
                owners[bundle] = broker
    return owners


async def loads_of(admin_url: str, brokers: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return what the bundles of each broker carry at this moment, of brokers that answer."""
    found: dict[str, Mapping[str, Any]] = {}
    for broker in brokers:
        with suppress(BrokerError, ValueError):
            scheme = admin_url.partition("://")[0]
            admin = Admin(
                f"{scheme}://{broker}",
                timeout_s=_LOAD_S,
                **client_arguments(admin_url),
            )
            report: Mapping[str, Any] = await admin.call(
                "GET", "/admin/v2/broker-stats/load-report"
            )
            reported: dict[str, Any] = dict(report.get("lastStats", {}))
            if sum(each.get("topics", 0) for each in reported.values()) == report.get("numTopics"):
                reported[_OTHERS] = {}  # They have no topics.  A report has no room for all.
            found[broker] = reported
    return found


def carried_by(bundle: str, broker: str, namespace: str, loads: Loads) -> Mapping[str, Any] | None:
    """Return what a bundle carries; None if its broker did not tell."""
    carried = loads.get(broker, {})
    found: Mapping[str, Any] | None = carried.get(f"{namespace}/{bundle}", carried.get(_OTHERS))
    return found


@dataclass(frozen=True, slots=True)
class Connected:
    """The clients of a namespace."""

    producers: int
    consumers: int

    @property
    def total(self) -> int:
        return self.producers + self.consumers


async def connected_to(admin: Admin, admin_url: str, namespace: str) -> Connected | None:
    """Return how many clients the topics of a namespace have; None if that cannot be told.

    Only a super user may ask brokers for their loads, and a broker may not answer.
    """
    with suppress(BrokerError, ValueError, KeyError, TypeError, AttributeError):
        with trio.move_on_after(_ALL_S):
            owners = await owners_of(admin, namespace)
            loads = await loads_of(admin_url, {*owners.values()} - {""})
            producers = consumers = 0
            for bundle, broker in owners.items():
                # A bundle that no broker serves has no clients.
                nothing: Mapping[str, Any] = {}
                stats = carried_by(bundle, broker, namespace, loads) if broker else nothing
                if stats is None:
                    return None
                producers += stats.get("producerCount", 0)
                consumers += stats.get("consumerCount", 0)
            return Connected(producers, consumers)
    return None
