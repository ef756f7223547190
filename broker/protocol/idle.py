"""Decide which topics leave memory, because nobody uses them.

A topic stays loaded while somebody is connected or was a short while ago, while something is under
way in it, and while time alone will bring work for one of its policies: such policies act on loaded
topics only.  Retention is no such policy, since it would keep most topics loaded for days.  The
ledgers that have outlived it are dropped when the topic is loaded the next time.
"""

from dataclasses import dataclass

from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.upkeep import Use

REMEMBERED_S = 3600.0  # counts of redeliveries keep a topic loaded for so long


@dataclass(frozen=True, slots=True)
class Presence:
    """The reasons for keeping a topic in memory.

    `asked_s` is the time since a client, an administrator or another broker last asked for it.
    """

    asked_s: float
    busy: bool  # something is under way that a close would interrupt
    remembers: bool  # it knows something that is not stored
    use: Use


def may_unload(policies: EffectivePolicies, presence: Presence, idle_s: float) -> bool:
    """Return True if the topic has been idle for `idle_s` and may leave memory.

    With 0, topics never leave memory.
    """
    if not idle_s or presence.asked_s < idle_s:
        return False
    if presence.use.in_use or presence.busy:
        return False
    if presence.remembers and presence.asked_s < REMEMBERED_S:
        return False
    return not has_work_to_come(policies, presence.use)


def has_work_to_come(policies: EffectivePolicies, use: Use) -> bool:
    """Return True if a policy will change a topic that nobody uses, once enough time has passed."""
    if use.backlogs and policies.message_ttl_s:
        return True
    if use.subscriptions and policies.subscription_expiry_minutes:
        return True
    age = policies.age_quota
    if use.backlogs and age.limit_time >= 0 and age.policy == "consumer_backlog_eviction":
        return True
    inactive = policies.inactive_topics
    if not inactive.delete_while_inactive or use.partition or use.retained or use.remembered:
        return False
    # It will be deleted, unless its subscriptions keep it.
    return not use.subscriptions or (
        not use.backlogs and inactive.inactive_topic_delete_mode != "delete_when_no_subscriptions"
    )
