"""Policies of Pulsar for which this broker has no use, and the policies of a new namespace.

`pulsar-admin namespaces create` sends every policy that exists, nearly all of them with a value
that asks for nothing.  Those are kept, and shown again.  A policy that asks for a feature that this
broker lacks is refused by its name, because storing it would mislead; then the namespace is not
created.
"""

from dataclasses import dataclass
from typing import TypeVar, cast

import msgspec

from daybook.broker.errors import NotAllowedError, PreconditionError
from daybook.broker.limits import check_properties
from daybook.broker.namespaces.policy_table import TABLE, Fields, Policy
from daybook.broker.protocol.bundles import Bundles

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class UnusedPolicy:
    """A policy for which this broker has no use.

    `harmless` are the values that ask for nothing; the first one is the answer if none is stored.
    """

    key: str  # in the record of a namespace
    why: str
    path: str = ""  # in the REST, if it is there
    harmless: tuple[object, ...] = (None,)

    def check(self, value: object) -> None:
        """Raise NotAllowedError if the value asks for something."""
        if not (is_empty(value) or _is_one_of(value, self.harmless)):
            raise NotAllowedError(f"{self.key} cannot be set to {_short(value)}: {self.why}")


ALONE = "this broker does not replicate topics to other clusters"
_NO_OFFLOAD = "this broker does not move ledgers to other storage"
_GRANTED = "rights are granted after the namespace was created"
UNUSED: tuple[UnusedPolicy, ...] = (
    UnusedPolicy("auth_policies", _GRANTED),
    UnusedPolicy("subscription_auth_mode", _GRANTED, "", ("None",)),
    UnusedPolicy("clusterDispatchRate", "this broker reads topicDispatchRate, the newer name"),
    UnusedPolicy("replicatorDispatchRate", ALONE, "replicatorDispatchRate"),
    UnusedPolicy("latency_stats_sample_rate", "this broker measures all messages"),
    UnusedPolicy(
        "encryption_required",
        "this broker does not check that messages are encrypted",
        "encryptionRequired",
        (False,),
    ),
    UnusedPolicy("offload_threshold", _NO_OFFLOAD, "offloadThreshold", (-1,)),
    UnusedPolicy("offload_threshold_in_seconds", _NO_OFFLOAD, "offloadThresholdInSeconds", (-1,)),
    UnusedPolicy("offload_deletion_lag_ms", _NO_OFFLOAD, "offloadDeletionLagMs", (None, 0, -1)),
    UnusedPolicy("offload_policies", _NO_OFFLOAD, "offloadPolicies"),
    UnusedPolicy(
        "deduplicationSnapshotIntervalSeconds",
        "this broker stores snapshots every 10 seconds",
        "deduplicationSnapshotInterval",
    ),
    UnusedPolicy("resource_group_name", "this broker has no resource groups", "resourcegroup"),
    UnusedPolicy("migrated", ALONE, "", (False,)),
    UnusedPolicy(
        "dispatcherPauseOnAckStatePersistentEnabled",
        "all acknowledgements are stored here",
        "dispatcherPauseOnAckStatePersistent",
        (None, False),
    ),
    UnusedPolicy("entryFilters", "this broker runs no filters", "entryFilters"),
    UnusedPolicy("antiAffinityGroup", "brokers have no failure domains", "antiAffinity"),
)


class _NewBundles(msgspec.Struct):
    numBundles: int | None = None  # noqa: N815 - Pulsar's keys
    boundaries: list[str] | None = None


def parse_new_namespace(content: Fields, cluster: str) -> tuple[Bundles | None, Fields]:
    """Return the bundles, None for the broker's default, and the fields of the new record.

    Raise PreconditionError, or NotAllowedError for features that this broker never has.
    """
    enforced: dict[str, list[Policy]] = {}
    for each in TABLE:
        if each.namespace is not None:
            enforced.setdefault(each.namespace.key, []).append(each)
    unused = {policy.key: policy for policy in UNUSED}
    fields: Fields = {}
    for key, value in content.items():
        if key == "bundles":
            continue
        if key == "deleted" and value is True:
            raise PreconditionError("a namespace cannot be created as deleted")
        if key in ("replication_clusters", "allowed_clusters"):
            check_clusters(key, value, cluster)
        elif key == "properties" and not is_empty(value):
            check_properties("namespace", _converted(key, value, dict[str, str]))
        elif key in enforced:
            for policy in enforced[key]:
                _take(policy, content, fields, cluster)
            continue
        elif other := unused.get(key):
            other.check(value)
        elif not is_empty(value):
            raise PreconditionError(
                f"this broker does not know the policy {key}: leave it out, or empty"
            )
        if not is_empty(value):
            fields[key] = value
    return _bundles(content.get("bundles")), fields


def _take(policy: Policy, content: Fields, fields: Fields, cluster: str) -> None:
    """Put a policy of the request into the record, if the request sets it."""
    assert policy.namespace is not None
    said = policy.namespace.get(content, cluster)
    if not policy.says_nothing(said):
        policy.namespace.put(fields, policy.to_json(said), cluster)


def _bundles(value: object) -> Bundles | None:
    if is_empty(value):
        return None
    new = _converted("bundles", value, _NewBundles)
    try:
        if new.boundaries:
            return Bundles.parse(new.boundaries)
        return Bundles.equal(new.numBundles) if new.numBundles else None
    except ValueError as error:
        raise PreconditionError(f"the bundles are not valid: {error}") from None


def _converted(key: str, value: object, kind: type[ValueT]) -> ValueT:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise PreconditionError(f"the policy {key} is not valid: {error}") from None


def check_clusters(key: str, value: object, cluster: str) -> None:
    clusters = [] if value is None else _converted(key, value, list[str])
    if any(other != cluster for other in clusters):
        raise NotAllowedError(f"{key} may name {cluster} only: {ALONE}")


def is_empty(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(is_empty, cast("Fields", value).values()))
    return value is None or value is False or value == "" or value == []


def _is_one_of(value: object, values: tuple[object, ...]) -> bool:
    return any(value == each and type(value) is type(each) for each in values)


def _short(value: object) -> str:
    return msgspec.json.encode(value).decode()[:200]
