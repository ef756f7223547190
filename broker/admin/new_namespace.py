"""What may be said of a namespace that is made: Pulsar's policies, as its tools send them.

`pulsar-admin namespaces create` sends every policy that there is, nearly all of them as "nothing is
wanted".  Those are taken.  A policy that asks for something which this broker does not do is
refused, by its name, and the namespace is not made.
"""

from typing import cast

import msgspec

from daybook.broker.errors import NotAllowedError, PreconditionError
from daybook.broker.namespaces.policies import Fields, Persistence, Retention
from daybook.broker.protocol.bundles import Bundles

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
# What says that nothing is wanted, besides what is empty; older releases of Pulsar included.
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
    replication_clusters: list[str] = []
    allowed_clusters: list[str] = []


class NewNamespace(msgspec.Struct, frozen=True):
    """What is asked for; None: as the broker is set up."""

    bundles: Bundles | None
    retention: Retention | None
    persistence: Persistence | None


def parse_new_namespace(content: Fields, cluster: str) -> NewNamespace:
    """Raises PreconditionError, or NotAllowedError for what is never done here."""
    wanted = {key: value for key, value in content.items() if not _nothing_wanted(key, value)}
    for key in wanted:
        if key not in _NewPolicies.__struct_fields__:
            raise PreconditionError(
                f"the policy {key} is not offered by this broker: leave it out, or empty"
            )
    try:
        new = msgspec.convert(wanted, _NewPolicies)
    except msgspec.ValidationError as error:
        raise PreconditionError(f"policies: {error}") from None
    for key, clusters in (
        ("replication_clusters", new.replication_clusters),
        ("allowed_clusters", new.allowed_clusters),
    ):
        if any(other != cluster for other in clusters):
            raise NotAllowedError(f"{key}: topics are not replicated to other clusters")
    bundles = None if new.bundles is None else _bundles_of(new.bundles)
    return NewNamespace(bundles, new.retention_policies, new.persistence)


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
        raise PreconditionError(f"bundles: {error}") from None
