"""The meaning of a broker's settings for its parts.

These are the limits of topics, the rules of balancing, and the settings as an administrator may see
them.
"""

from dataclasses import replace

import msgspec

from daybook.broker.config import BrokerConfig
from daybook.broker.limits import (
    BrokerLimits,
    CompactionLimits,
    PublishLimit,
    TopicLimits,
    UnackedLimits,
)
from daybook.broker.protocol.balance import BalanceSettings
from daybook.broker.security.configured import SECRETS

_HIDDEN = "(not shown)"


def topic_limits(limits: BrokerLimits, config: BrokerConfig) -> TopicLimits:
    """Return the limits of topics: the settings, and what is no setting."""
    dispatch = replace(limits.topics.dispatch, key_shared_points=config.key_shared_points)
    return replace(
        limits.topics,
        compaction=_compaction(config, limits.topics),
        dispatch=dispatch,
        unacked=UnackedLimits(
            config.max_unacked_messages_per_broker,
            config.max_unacked_messages_per_subscription_on_broker_blocked,
        ),
        published=PublishLimit(
            config.broker_publish_messages_per_s, config.broker_publish_bytes_per_s
        ),
        stalled_s=config.dispatch_stalled_s,
    )


def _compaction(config: BrokerConfig, limits: TopicLimits) -> CompactionLimits:
    return replace(
        limits.compaction,
        keys_max=config.compaction_keys_max,
        bytes_per_s=config.compaction_bytes_per_s,
        retain_keyless=config.compaction_retain_keyless,
    )


def balance_settings(config: BrokerConfig) -> BalanceSettings:
    """Return the settings by which the leader moves and splits bundles."""
    return BalanceSettings(
        threshold_percent=config.balance_threshold_percent,
        threshold=config.balance_threshold,
        bundle_cool_down_s=config.balance_bundle_cool_down_s,
        broker_cool_down_s=config.balance_broker_cool_down_s,
        quiet_s=config.balance_interval_s,
        topics_max=config.bundle_topics_max,
        clients_max=config.bundle_clients_max,
        messages_max=config.bundle_messages_max,
        bytes_max=config.bundle_megabytes_max * 1024 * 1024,
        bundles_max=config.namespace_bundles_max,
    )


def shown_settings(config: BrokerConfig) -> dict[str, str]:
    """Return the settings as texts, without secrets."""
    found = msgspec.structs.asdict(config)
    return {
        name: _HIDDEN if name in SECRETS and value else str(value) for name, value in found.items()
    }
