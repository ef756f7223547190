"""The text of a refusal: the role, the right that lacks, the object, and what would help.

It says no more than the request itself, the role's own rights on the object, and the name of a
subscription that the role may otherwise consume: a stranger does not learn what exists.  A sink has
the same refusal whatever its topics are, and if there is none.  The module is pure.
"""

from shlex import quote

from daybook.broker.security.grants import CONSUME, Grants
from daybook.broker.security.resources import Resource
from daybook.broker.security.rights import Right

_ACTIONS = {Right.PRODUCE: "produce", Right.CONSUME: "consume", Right.LOOKUP: "produce"}


def refusal(
    role: str, right: Right, target: Resource, grants: Grants | None, *, wildcards: bool = False
) -> str:
    """Return why `role` is refused, with the command that lets it in.

    `grants` are the rights in the namespace of the object; None if they do not matter.
    """
    if _is_about_subscription(role, right, target, grants, wildcards=wildcards):
        assert grants is not None
        return _of_subscription(role, target, grants)
    where = target.without_subscription if right is Right.CONSUME else target
    return f"the role {role!r} lacks the right {right.value!r} on {where}: " + _help(
        role, right, target, grants
    )


def _is_about_subscription(
    role: str, right: Right, target: Resource, grants: Grants | None, *, wildcards: bool
) -> bool:
    """Return True if the role may consume the topic, and not use the subscription."""
    return (
        right is Right.CONSUME
        and target.subscription is not None
        and grants is not None
        and grants.allow(role, CONSUME, target.topic, wildcards=wildcards)
    )


def _of_subscription(role: str, target: Resource, grants: Grants) -> str:
    name = target.subscription or ""
    lacks = f"the role {role!r} lacks the right 'consume' on {target}: "
    if grants.is_among_roles(role, name):
        return (
            f"{lacks}the name of the subscription {name} has to begin with {role!r}"
            " (subscriptionAuthMode Prefix)"
        )
    command = f"grant {quote(role)} --namespace {target.namespace} --subscription {quote(name)}"
    return f"{lacks}it is for other roles. {_admin_may(target)}: daybook permissions {command}"


def _help(role: str, right: Right, target: Resource, grants: Grants | None) -> str:
    if right is Right.METRICS:
        return "the setting metrics_roles of the brokers names who has it"
    if target.sink:  # The same for each sink, also for one that does not exist.
        return (
            "an admin of the tenant of each topic to which it writes may grant it, or decide about"
            " the sink; a super user sees its topics, if there are any"
        )
    if right is Right.SUPER_USER or not target.tenant:
        return "the setting super_users of the brokers names the roles that may do this"
    if right is Right.ADMIN:
        command = f"daybook tenants admins {target.tenant} --add {quote(role)}"
        return f"a super user may run: {command}"
    action = _ACTIONS[right]
    if target.topic is None:
        place, had = f"--namespace {target.namespace}", _had(grants, role, None)
    else:
        full = target.topic.base.full
        place, had = f"--topic {quote(full)}", _had(grants, role, full)
    # A grant replaces what the role had there.
    actions = ",".join(dict.fromkeys([*had, action]))
    other = " (or consume)" if right is Right.LOOKUP else ""
    command = f"daybook permissions grant {quote(role)} {actions} {place}{other}"
    return f"{_admin_may(target)}: {command}"


def _had(grants: Grants | None, role: str, topic: str | None) -> list[str]:
    if grants is None:
        return []
    table = grants.of_namespace if topic is None else grants.of_topics.get(topic, {})
    return list(table.get(role, ()))


def _admin_may(target: Resource) -> str:
    return f"an admin of the tenant {target.tenant} may run"
