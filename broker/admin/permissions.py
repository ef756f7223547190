"""REST of the rights of roles: on namespaces, topics and subscriptions.

Rights are kept in the record of the namespace, in Pulsar's format.  They can be granted while
`authorization` is off, and count as soon as it is on.
"""

from collections.abc import Callable, Mapping
from functools import partial

from daybook.broker.admin.handling import Call, Handler
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import NotFoundError, PreconditionError
from daybook.broker.security import grants
from daybook.broker.security.grants import Grants
from daybook.broker.security.identity import checked_role

OpsCall = Call[Operations]
Handlers = Mapping[str, Handler[Operations]]


async def _no_role(call: OpsCall) -> None:
    """Refuse a request whose role is empty, so that its path ends where the role would be."""
    del call
    raise PreconditionError("the role is empty: name one, as in .../permissions/ROLE")


_NOBODY: Handlers = {"POST": _no_role, "DELETE": _no_role}
_MODES = {"none": "None", "prefix": "Prefix"}


def of_namespaces() -> dict[str, Handlers]:
    """Return the handlers by path, below the path of a namespace."""
    return {
        "permissions": {"GET": _of_namespace, **_NOBODY},
        "permissions/": _NOBODY,
        # Pulsar has this path for two things; the role of this name is one as any other.
        "permissions/subscription": {
            "GET": _of_subscriptions,
            "POST": partial(_grant_on_namespace, role="subscription"),
            "DELETE": partial(_revoke_on_namespace, role="subscription"),
        },
        "permissions/subscription/{name}": {"POST": _grant_on_subscription},
        "permissions/{role}": {"POST": _grant_on_namespace, "DELETE": _revoke_on_namespace},
        "permissions/{name}/{role}": {"DELETE": _revoke_on_subscription},
        "permissions/{name}/": {"DELETE": _no_role},
        "subscriptionAuthMode": {
            "GET": _mode,
            "POST": _set_mode,
            "PUT": _set_mode,
            "DELETE": _remove_mode,
        },
    }


def of_topics() -> dict[str, Handlers]:
    """Return the handlers by path, below the path of a topic."""
    return {
        "permissions": {"GET": _of_topic, **_NOBODY},
        "permissions/": _NOBODY,
        "permissions/{role}": {"POST": _grant_on_topic, "DELETE": _revoke_on_topic},
    }


async def _grants(call: OpsCall) -> Grants:
    policies = call.parts.policies
    fields = {
        key: await policies.namespace_field(call.namespace, key)
        for key in ("auth_policies", "subscription_auth_mode")
    }
    return grants.of_fields(fields, f"the namespace {call.namespace}")


async def _change(call: OpsCall, change: Callable[[grants.Fields], None]) -> None:
    await call.parts.policies.change_namespace(call.namespace, change)


def _role(call: OpsCall) -> str:
    role = checked_role(call.path("role"))
    if role is None:
        raise PreconditionError("this is not the name of a role")
    return role


async def _actions(call: OpsCall) -> list[str]:
    return grants.checked_actions(await call.body(list[str]))


# -- namespaces


async def _of_namespace(call: OpsCall) -> object:
    return (await _grants(call)).of_namespace


async def _grant_on_namespace(call: OpsCall, role: str = "") -> None:
    role, actions = role or _role(call), await _actions(call)
    await _change(call, partial(grants.grant_on_namespace, role=role, actions=actions))


async def _revoke_on_namespace(call: OpsCall, role: str = "") -> None:
    await _change(call, partial(grants.revoke_on_namespace, role=role or _role(call)))


# -- topics


async def _of_topic(call: OpsCall) -> object:
    found = await _grants(call)
    # A right that was granted on a topic that is gone is shown, so that it can be revoked.
    if call.topic.full not in found.of_topics:
        await _check_topic(call)
    return found.on_topic(call.topic)


async def _check_topic(call: OpsCall) -> None:
    """Raise NotFoundError if the topic does not exist, as Pulsar does.

    A non-persistent topic without partitions may be served by any broker.
    """
    topic, policies = call.topic, call.parts.policies
    of_partition = 0 <= topic.partition < await policies.partitions(topic.base)
    if topic.persistent and not of_partition:
        await call.parts.check_exists(topic)


async def _names(call: OpsCall) -> list[str]:
    """Return the topic and all its partitions: Pulsar writes a right for each of them."""
    topic = call.topic
    partitions = await call.parts.policies.partitions(topic)
    return [topic.full, *(f"{topic.full}-partition-{number}" for number in range(partitions))]


async def _grant_on_topic(call: OpsCall) -> None:
    role, actions, names = _role(call), await _actions(call), await _names(call)
    await _check_topic(call)
    await _change(call, partial(grants.grant_on_topics, topics=names, role=role, actions=actions))


async def _revoke_on_topic(call: OpsCall) -> None:
    role, names = _role(call), await _names(call)

    def change(fields: grants.Fields) -> None:
        if not grants.revoke_on_topics(fields, names, role):
            raise NotFoundError(f"the role {role!r} has no right on {call.topic} to revoke")

    await _change(call, change)


# -- subscriptions


async def _of_subscriptions(call: OpsCall) -> object:
    return (await _grants(call)).of_subscriptions


async def _grant_on_subscription(call: OpsCall) -> None:
    roles = [checked_role(each) for each in await call.body(list[str])]
    if not roles or None in roles:
        raise PreconditionError("name the roles that may use the subscription, as a list")
    named = [role for role in roles if role is not None]
    await _change(
        call,
        partial(grants.grant_on_subscription, subscription=call.path("name"), roles=named),
    )


async def _revoke_on_subscription(call: OpsCall) -> None:
    name, role = call.path("name"), _role(call)
    await _change(call, partial(grants.revoke_on_subscription, subscription=name, role=role))


async def _mode(call: OpsCall) -> object:
    return "Prefix" if (await _grants(call)).prefix_mode else "None"


async def _set_mode(call: OpsCall) -> None:
    said = await call.body(str)
    mode = _MODES.get(said.lower())
    if mode is None:
        raise PreconditionError(f"there is no mode {said[:32]!r}: use None or Prefix")

    def change(fields: grants.Fields) -> None:
        fields["subscription_auth_mode"] = mode

    await _change(call, change)


async def _remove_mode(call: OpsCall) -> None:
    def change(fields: grants.Fields) -> None:
        fields.pop("subscription_auth_mode", None)

    await _change(call, change)
