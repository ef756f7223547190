"""The rights that were granted in a namespace, each with the place at which it was granted.

Brokers answer for a topic with all rights that count there.  To revoke one, or to say what stays, a
command has to know where each was granted: that is in the policies of the namespace.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from daybook.clients.python.admin import Admin
from daybook.clients.python.errors import BrokerError
from daybook.wire.errors import MalformedError
from daybook.wire.topics import TopicName

_SHOWN_MAX = 3
Roles = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a right is granted: in a namespace, on a topic, or on a subscription of a namespace."""

    namespace: str
    topic: TopicName | None = None
    subscription: str | None = None

    @property
    def tenant(self) -> str:
        return self.namespace.partition("/")[0]

    @property
    def record(self) -> dict[str, str]:
        if self.topic is not None:
            return {"topic": self.topic.full}
        found = {"namespace": self.namespace}
        return found if self.subscription is None else {**found, "subscription": self.subscription}

    def __str__(self) -> str:
        if self.topic is not None:
            return f"the topic {self.topic.full}"
        if self.subscription is not None:
            return f"the subscription {self.subscription} in {self.namespace}"
        return f"the namespace {self.namespace}"


@dataclass(frozen=True, slots=True)
class Granted:
    """The rights in one namespace, and the admins of its tenant."""

    namespace: str
    of_namespace: Roles
    of_topics: Mapping[str, Roles]
    of_subscriptions: Roles
    admins: list[str]

    def at(self, place: Place, role: str) -> list[str]:
        """Return what was granted to the role at this place; ["use"] for a subscription."""
        if place.subscription is not None:
            return ["use"] if role in self.of_subscriptions.get(place.subscription, []) else []
        if place.topic is None:
            return self.of_namespace.get(role, [])
        found: dict[str, None] = {}
        for name, roles in self.of_topics.items():
            if place.topic.full in (name, _base(name)):
                found |= dict.fromkeys(roles.get(role, []))
        return list(found)

    def beyond(self, place: Place, role: str, actions: list[str]) -> str:
        """Return what else the role may do at the place than these actions; "" for nothing."""
        return "; ".join(self._beyond(place, role, {*actions}))

    def _beyond(self, place: Place, role: str, actions: set[str]) -> Iterator[str]:
        if role in self.admins:
            yield (
                f"the role is an admin of the tenant {place.tenant}, and may do everything in it: "
                f"`daybook tenants admins {place.tenant} --remove {quote(role)}` ends that"
            )
        if place.subscription is not None:
            return
        by_namespace = self.of_namespace.get(role, [])
        if place.topic is None:
            yield from self._on_topics(role, actions)
        elif {*by_namespace} - actions:
            yield (
                f"the role has {','.join(by_namespace)} by the namespace {self.namespace}:"
                f" `daybook permissions revoke {quote(role)} --namespace {self.namespace}`"
                " ends that"
            )
        if place.topic is not None and place.topic.base != place.topic:
            base = place.topic.base.full
            by_base = self.of_topics.get(base, {}).get(role, [])
            if {*by_base} - actions:
                yield (
                    f"the role has {','.join(by_base)} by the topic of the partition:"
                    f" `daybook permissions revoke {quote(role)} --topic {base}` ends that"
                )

    def _on_topics(self, role: str, actions: set[str]) -> Iterator[str]:
        """Name the topics on which the role may do more than these actions."""
        names = dict.fromkeys(
            _base(name)
            for name, roles in self.of_topics.items()
            if {*roles.get(role, [])} - actions
        )
        if names:
            shown = ", ".join([*names][:_SHOWN_MAX])
            further = len(names) - _SHOWN_MAX
            more = f" and {further} others" if further > 0 else ""
            yield (
                f"the role has further rights on single topics ({shown}{more}):"
                f" `daybook permissions revoke {quote(role)} --topic TOPIC` ends them"
            )


async def read_granted(admin: Admin, namespace: str) -> Granted:
    policies: Any = (await admin.policies(namespace)).get("auth_policies") or {}
    return Granted(
        namespace,
        policies.get("namespace_auth") or {},
        policies.get("destination_auth") or {},
        policies.get("subscription_auth_roles") or {},
        await admin.tenant_admins(namespace.partition("/")[0]),
    )


async def is_open(admin: Admin) -> bool:
    """Return True if the broker says that it gives each role all rights.

    A broker that checks rights tells its settings to super users only.  This is for a note, so what
    is unknown has none.
    """
    try:
        settings: Any = await admin.call("GET", "/admin/v2/brokers/configuration/runtime")
    except BrokerError:
        return False
    said = settings.get("authorization", settings.get("authorizationEnabled"))
    return str(said).lower() == "false"


def _base(name: str) -> str:
    """Return the topic of a partition; another name as it is, also one of an old form."""
    try:
        return TopicName.parse(name).base.full
    except MalformedError:
        return name
