"""Decisions about backlogs that are too large or too old, and about topics that nobody uses."""

from dataclasses import dataclass

from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.namespaces.policy_types import BacklogQuota

_KEPT = 0.9  # the share of a quota that an eviction leaves, so that it does not come every minute


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A quota that the backlog of a topic exceeds."""

    quota: BacklogQuota
    by_age: bool
    reason: str

    @property
    def evicts(self) -> bool:
        return self.quota.policy == "consumer_backlog_eviction"

    @property
    def holds(self) -> bool:
        return self.quota.policy == "producer_request_hold"


def exceeded(
    policies: EffectivePolicies, backlog_bytes: int, oldest_age_s: float | None
) -> list[Exceeded]:
    """Return the quotas that the largest and the oldest backlog of the subscriptions exceed.

    `oldest_age_s` is None if there is no backlog, or if its age is not known.
    """
    found: list[Exceeded] = []
    size, age = policies.size_quota, policies.age_quota
    if size.limit_size >= 0 and backlog_bytes > 0 and backlog_bytes >= size.limit_size:
        reason = f"its backlog has {backlog_bytes} bytes, and the quota is {size.limit_size}"
        found.append(Exceeded(size, by_age=False, reason=reason))
    if age.limit_time >= 0 and oldest_age_s is not None and oldest_age_s >= age.limit_time:
        reason = f"its backlog is {oldest_age_s:.0f} s old, and the quota is {age.limit_time} s"
        found.append(Exceeded(age, by_age=True, reason=reason))
    return found


def kept_bytes(quota: BacklogQuota) -> int:
    """Return how many bytes of a backlog an eviction leaves."""
    return int(quota.limit_size * _KEPT)


def is_watched(policies: EffectivePolicies) -> bool:
    """Return True if topics with these policies have to be looked at from time to time."""
    return bool(
        policies.message_ttl_s
        or policies.subscription_expiry_minutes
        or policies.size_quota.limit_size >= 0
        or policies.age_quota.limit_time >= 0
        or policies.inactive_topics.delete_while_inactive
    )


@dataclass(frozen=True, slots=True)
class Use:
    """How a topic is used.

    `remembered` counts the producers whose last message deduplication knows.
    """

    in_use: bool  # somebody is connected
    partition: bool
    retained: bool  # it has messages, acknowledged or not
    subscriptions: int
    backlogs: int  # subscriptions that have not acknowledged everything
    remembered: int
    idle_s: float


def is_inactive(policies: EffectivePolicies, use: Use) -> bool:
    """Return True if the topic is to be deleted, with all that there is of it.

    A topic with messages never is, as somebody may read them again.  Nor is one that knows
    producers by name: their repeats would be stored.  A partition stays with the others.
    """
    policy = policies.inactive_topics
    if not policy.delete_while_inactive:
        return False
    if use.in_use or use.partition or use.retained or use.remembered or use.backlogs:
        return False
    if use.subscriptions and policy.inactive_topic_delete_mode == "delete_when_no_subscriptions":
        return False
    return use.idle_s >= policy.max_inactive_duration_seconds
