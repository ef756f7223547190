"""The rights of roles in one namespace, in the JSON of Pulsar's policies.  The module is pure.

    auth_policies: {
      namespace_auth: {role: [action, ...]},
      destination_auth: {topic: {role: [action, ...]}},
      subscription_auth_roles: {subscription: [role, ...]}
    }
    subscription_auth_mode: "None" | "Prefix"

A right on a partitioned topic is written for it and for each of its partitions, as Pulsar does.
Fields and actions that are not known here are kept.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

import msgspec

from daybook.broker.errors import PreconditionError, UnavailableError
from daybook.wire.topics import TopicName

PRODUCE, CONSUME = "produce", "consume"
ACTIONS = (PRODUCE, CONSUME, "functions", "sources", "sinks", "packages")
_ROLES_MAX = 10_000
_DRAWN = re.compile(r"(reader|multiTopicsReader)-[0-9a-f]{10}|Reader-[0-9a-f]{32}")
"""The names that readers draw for their subscriptions: Daybook's, and Pulsar's in Java, C++ and C#.

Nobody chooses such a name, so a role under one is in nobody's way.
"""
_SHORT = re.compile(r"reader-[a-z]{5}")
"""The names that readers of Pulsar's client for Go draw.

A role may have chosen such a name, for example `reader-sales`: it begins with the role.  So these
names need no prefix only where no other role could have chosen them.
"""
_CLAIM = re.compile(r"r|re|rea|read|reade|reader|reader-[a-z]{0,5}|\*.*|.*\*", re.DOTALL)
"""The roles that may begin a short name, and all patterns of roles."""

Fields = dict[str, object]


class _AuthPolicies(msgspec.Struct):
    namespace_auth: dict[str, list[str]] = {}
    destination_auth: dict[str, dict[str, list[str]]] = {}
    subscription_auth_roles: dict[str, list[str]] = {}


class _Record(msgspec.Struct):
    auth_policies: _AuthPolicies | None = None
    subscription_auth_mode: str | None = None


@dataclass(frozen=True, slots=True)
class Grants:
    """The rights of roles in one namespace."""

    of_namespace: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    of_topics: Mapping[str, Mapping[str, Sequence[str]]] = field(
        default_factory=dict[str, Mapping[str, Sequence[str]]]
    )
    of_subscriptions: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    prefix_mode: bool = False  # the name of a subscription has to begin with the role
    claims: frozenset[str] = frozenset()  # the roles that may have chosen a short name

    def allow(
        self,
        role: str,
        action: str,
        topic: TopicName | None,
        *,
        wildcards: bool = False,
        by_base: bool = True,
    ) -> bool:
        """Return True if the role may do this on the topic, or in the namespace for None.

        With `by_base`, a right on the topic of a partition counts for the partition.
        """
        found = [self.of_namespace]
        if topic is not None:
            names = {topic.full, topic.base.full} if by_base else {topic.full}
            found += [self.of_topics[name] for name in names if name in self.of_topics]
        return any(_allows(each, role, action, wildcards=wildcards) for each in found)

    def allow_subscription(self, role: str, subscription: str, *, of_reader: bool = False) -> bool:
        """Return True if the role may use a subscription of a topic that it may consume."""
        return self.is_among_roles(role, subscription) and self.has_prefix(
            role, subscription, of_reader=of_reader
        )

    def is_among_roles(self, role: str, subscription: str) -> bool:
        """Return True if the subscription is for this role, or for all."""
        roles = self.of_subscriptions.get(subscription)
        return not roles or role in roles

    def has_prefix(self, role: str, subscription: str, *, of_reader: bool = False) -> bool:
        """Return True if the mode of the namespace allows the name to the role.

        A reader may have no prefix: it stores nothing, and nobody had chosen its name before.
        """
        if not self.prefix_mode or subscription.startswith(role):
            return True
        return of_reader and not (is_short(subscription) and self._is_claimed(subscription))

    def _is_claimed(self, subscription: str) -> bool:
        """Return True if the name begins with a role that has rights here."""
        return any(_begins(role, subscription) for role in self.claims)

    def on_topic(self, topic: TopicName) -> dict[str, list[str]]:
        """Return the actions of each role on a topic, those by the namespace included."""
        found = {role: list(actions) for role, actions in self.of_namespace.items()}
        for name in dict.fromkeys((topic.base.full, topic.full)):
            for role, actions in self.of_topics.get(name, {}).items():
                found[role] = list(dict.fromkeys([*found.get(role, []), *actions]))
        return found


def is_of_reader(subscription: str, *, durable: bool) -> bool:
    """Return True if the subscription is volatile and has a name that a reader has drawn."""
    drawn = _DRAWN.fullmatch(subscription) is not None
    return not durable and (drawn or is_short(subscription))


def is_short(subscription: str) -> bool:
    """Return True if it is a drawn name that somebody may have chosen, too."""
    return _SHORT.fullmatch(subscription) is not None


def _begins(role: str, name: str) -> bool:
    """Return True if the name begins with the role, or with one that fits the pattern."""
    if role.endswith("*"):
        return name.startswith(role[:-1])
    return role[1:] in name if role.startswith("*") else name.startswith(role)


def _allows(roles: Mapping[str, Sequence[str]], role: str, action: str, *, wildcards: bool) -> bool:
    if action in roles.get(role, ()):
        return True
    return wildcards and any(
        action in actions and _matches(pattern, role) for pattern, actions in roles.items()
    )


def _matches(pattern: str, role: str) -> bool:
    """Return True if the role begins or ends as a pattern `abc*` or `*abc` says."""
    if pattern.endswith("*") and role.startswith(pattern[:-1]):
        return True
    return pattern.startswith("*") and role.endswith(pattern[1:])


def parse(value: bytes, path: str) -> Grants:
    """Return the grants in the record of a namespace.  Raise UnavailableError if it is not valid.

    A record that cannot be read grants nothing to anybody, so it is an error.
    """
    try:
        record = msgspec.json.decode(value or b"{}", type=_Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnavailableError(f"{path} has auth_policies that are not valid: {error}") from None
    return _grants(record)


def of_fields(fields: Fields, where: str) -> Grants:
    """Return the grants in the fields of the record of a namespace.  Raise UnavailableError."""
    try:
        return _grants(msgspec.convert(fields, _Record))
    except msgspec.ValidationError as error:
        raise UnavailableError(f"{where} has auth_policies that are not valid: {error}") from None


def _grants(record: _Record) -> Grants:
    policies = record.auth_policies or _AuthPolicies()
    return Grants(
        policies.namespace_auth,
        policies.destination_auth,
        policies.subscription_auth_roles,
        (record.subscription_auth_mode or "").lower() == "prefix",
        _claims(policies),
    )


def _claims(policies: _AuthPolicies) -> frozenset[str]:
    tables = [policies.namespace_auth, *policies.destination_auth.values()]
    roles = chain(*tables, *policies.subscription_auth_roles.values())
    return frozenset(role for role in roles if _CLAIM.fullmatch(role))


# -- changes of the record


def checked_actions(actions: Sequence[str]) -> list[str]:
    """Return the actions to grant.  Raise PreconditionError."""
    unknown = sorted({*actions} - {*ACTIONS})
    if unknown or not actions:
        raise PreconditionError(
            f"there is no action {', '.join(unknown) or '(none was named)'}: use"
            f" {', '.join(ACTIONS)}"
        )
    return [action for action in ACTIONS if action in actions]


def grant_on_namespace(fields: Fields, role: str, actions: Sequence[str]) -> None:
    _bounded(_table(fields, "namespace_auth"))[role] = list(actions)


def revoke_on_namespace(fields: Fields, role: str) -> None:
    _table(fields, "namespace_auth").pop(role, None)


def grant_on_topics(
    fields: Fields, topics: Sequence[str], role: str, actions: Sequence[str]
) -> None:
    table = _table(fields, "destination_auth")
    for topic in topics:
        _bounded(table.setdefault(topic, {}))[role] = list(actions)


def revoke_on_topics(fields: Fields, topics: Sequence[str], role: str) -> bool:
    """Take the role off the topics.  Return False if it had no right on any of them."""
    table = _table(fields, "destination_auth")
    found = False
    for topic in topics:
        roles = table.get(topic, {})
        found = roles.pop(role, None) is not None or found
        if not roles:
            table.pop(topic, None)
    return found


def grant_on_subscription(fields: Fields, subscription: str, roles: Sequence[str]) -> None:
    table = _table(fields, "subscription_auth_roles")
    _bounded(table)[subscription] = sorted({*roles})


def revoke_on_subscription(fields: Fields, subscription: str, role: str) -> None:
    table = _table(fields, "subscription_auth_roles")
    roles = [each for each in table.get(subscription, []) if each != role]
    if roles:
        table[subscription] = roles
    else:
        table.pop(subscription, None)


def _table(fields: Fields, name: str) -> dict[str, Any]:
    """Return one table of `auth_policies`, which is created if it is not there."""
    found = fields.get("auth_policies")
    policies = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    fields["auth_policies"] = policies
    for each in ("namespace_auth", "destination_auth", "subscription_auth_roles"):
        if not isinstance(policies.get(each), dict):
            policies[each] = {}
    table: dict[str, Any] = policies[name]
    return table


def _bounded(table: dict[str, Any]) -> dict[str, Any]:
    if len(table) >= _ROLES_MAX:
        raise PreconditionError(f"at most {_ROLES_MAX} roles can have rights on one object")
    return table
