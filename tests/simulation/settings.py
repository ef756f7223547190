"""The settings of the hosts of a simulated cluster.

Intervals that are minutes or days in production are seconds here, so that a short run meets them:
space is reclaimed, copies are compared, lost bookies are given up.
"""

from dataclasses import dataclass, field
from typing import cast

from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import LogLimits
from daybook.broker.config import BrokerConfig, QuorumsConfig
from daybook.broker.limits import (
    BrokerLimits,
    ConnectionLimits,
    DeduplicationLimits,
    LoadLimits,
    RequestLimits,
    TopicLimits,
)
from daybook.managed_ledger.context import LogConfig

BOOKIE_PORT = 3181
BROKER_PORT = 6650
_RETENTION_MINUTES = 7 * 24 * 60


@dataclass(frozen=True, slots=True)
class AutoRecovery:
    """The settings of auto-recovery beside each bookie: delays, intervals, copy rate."""

    lost_delay_s: float = 2.0
    check_interval_s: float = 3600.0  # all copies are compared
    bytes_per_s: float = 50e6
    thorough: bool = False  # copies are read, too
    fence_open_after_s: float | None = None

    @property
    def limits(self) -> ReplicationLimits:
        return ReplicationLimits(
            lost_delay_s=self.lost_delay_s,
            rate_bytes_per_s=self.bytes_per_s,
            burst_bytes=self.bytes_per_s,
            poll_s=2.0,
            backoff_s=1.0,
            backoff_s_max=4.0,
            recovery_grace_s=3.0,
            fence_open_after_s=self.fence_open_after_s,
            report_s=10.0,
            check_interval_s=self.check_interval_s,
            thorough=self.thorough,
            retry_s=0.5,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits: as in production, or so small that a small run reaches them."""

    stuck_s: float = 30.0
    # Shorter than the quiet time before a run looks for readers that nobody has: one whose open is
    # given up during its first seek stays at its broker until then.
    return_s: float = 10.0
    heal_interval_s: float = 60.0
    flush_s: float = 1.0
    deduplication_entries: int = 1_000  # between snapshots, at most; also the following
    deduplication_s: float = 10.0
    pending_bytes_max: int = 64 << 20  # per topic's log
    read_bytes_max: int = 4 << 20
    partial_bytes_max: int = 16 << 20
    requests_max: int = 200  # under way per connection
    lookups_max: int = 20
    loads_at_once: int = 256  # topics of a broker
    slow_load_s: float = 10.0  # such a load gives its place to another
    dispatch_bytes_max: int = 4 << 20
    unread_bytes_max: int = 16 << 20
    arena_bytes_max: int = 256 << 20
    in_flight_bytes_max: int = 256 << 20  # this and the following: per bookie
    checkpoint_bytes: int = 256 << 20
    recent_entries_max: int = 1_000_000
    blocks_cached: int = 2048

    @property
    def broker(self) -> BrokerLimits:
        requests = RequestLimits(under_way_max=self.requests_max)
        return BrokerLimits(
            topics=TopicLimits(
                deduplication=DeduplicationLimits(
                    snapshot_entries=self.deduplication_entries,
                    snapshot_s=self.deduplication_s,
                ),
                loads=LoadLimits(at_once=self.loads_at_once, slow_s=self.slow_load_s),
                return_s=self.return_s,
                read_bytes_max=self.read_bytes_max,
            ),
            connections=ConnectionLimits(
                requests=requests,
                lookups=RequestLimits(under_way_max=self.lookups_max, total_max=1_000),
                dispatch_bytes_max=self.dispatch_bytes_max,
                unread_bytes_max=self.unread_bytes_max,
            ),
            logs=LogConfig(
                stuck_s=self.stuck_s,
                heal_interval_s=self.heal_interval_s,
                flush_s=self.flush_s,
                pending_bytes_max=self.pending_bytes_max,
                partial_bytes_max=self.partial_bytes_max,
            ),
        )


@dataclass(frozen=True, slots=True)
class Settings:
    quorums: tuple[int, int, int] | None = None  # None: by the number of bookies
    roll_entries: int = 50_000
    roll_age_s: float = 4 * 3600.0
    roll_age_min_s: float = 0.0
    list_bytes_max: int = 1_000_000  # limit of a topic's list of ledgers
    cursor_roll_records: int = 5_000
    cursor_snapshot_records: int = 1_000
    cursor_snapshot_s: float = 30.0
    old_brokers: float = 0.0  # share of broker starts that announce no new formats
    trim_interval_s: float = 60.0
    # Longer than the session of a broker that has not noticed its loss.
    orphan_interval_s: float = 3.0
    orphan_age_s: float = 0.5
    policy_check_interval_s: float = 60.0
    subscription_expiry_s: float = 0.0  # without a consumer; 0: subscriptions stay
    deduplication: bool = False
    unacked_max: int = 0  # the limit of all shared subscriptions of a broker; 0: no limit
    retention: bool = True  # if off, messages that every subscription has acknowledged are deleted
    checkpoint_entries: int = 200
    segment_bytes: int = 512 << 20
    directories: int = 1  # per bookie
    racks: int = 0  # bookies are spread over so many racks in turn; 0: no racks
    reclaim_interval_s: float = 5.0
    scrub_interval_s: float = 60.0
    position_interval_s: float = 10.0  # between reports of a bookie's log ends
    session_timeout_s: float = 2.0
    message_bytes_max: int = 1 << 20
    split: float = 0.0  # share of network segments that arrive in two parts
    recovery: AutoRecovery | None = None  # None: no re-replication
    unsynced: bool = False  # bookie-1 acknowledges before its sync
    http: bool = False  # brokers have an admin port, and balance their bundles
    balance_interval_s: float = 60.0
    bundles: int = 16  # those of the first namespace
    grouped_writes: bool = False  # hosts' writes to the metadata store share requests
    limits: Limits = field(default_factory=Limits)

    @property
    def store_limits(self) -> StoreLimits:
        return StoreLimits(
            log=LogLimits(segment_bytes=self.segment_bytes),
            checkpoint_entries=self.checkpoint_entries,
            in_flight_bytes_max=self.limits.in_flight_bytes_max,
            checkpoint_bytes=self.limits.checkpoint_bytes,
            recent_entries_max=max(self.limits.recent_entries_max, 2 * self.checkpoint_entries),
            blocks_cached=self.limits.blocks_cached,
        )

    def broker(self, name: str) -> BrokerConfig:
        return BrokerConfig(
            name=name,
            host=name,
            port=BROKER_PORT,
            quorums="auto" if self.quorums is None else QuorumsConfig(*self.quorums),
            roll_entries=self.roll_entries,
            roll_age_s=self.roll_age_s,
            roll_age_min_s=self.roll_age_min_s,
            ledger_list_bytes_max=self.list_bytes_max,
            deduplication=self.deduplication,
            max_unacked_messages_per_broker=self.unacked_max,
            ack_flush_s=self.limits.flush_s,
            cursor_roll_records=self.cursor_roll_records,
            cursor_snapshot_records=self.cursor_snapshot_records,
            cursor_snapshot_s=self.cursor_snapshot_s,
            trim_interval_s=self.trim_interval_s,
            orphan_interval_s=self.orphan_interval_s,
            orphan_age_s=self.orphan_age_s,
            default_retention_minutes=_RETENTION_MINUTES if self.retention else 0,
            default_retention_mb=-1 if self.retention else 0,
            max_message_size=self.message_bytes_max,
            default_namespace_bundles=self.bundles,
            balance_interval_s=self.balance_interval_s,
            balance_broker_cool_down_s=self.balance_interval_s,
            balance_bundle_cool_down_s=2 * self.balance_interval_s,
            policy_check_interval_s=self.policy_check_interval_s,
            # The setting counts whole minutes, which are too long for a run.
            subscription_expiry_minutes=cast("int", self.subscription_expiry_s / 60),
            arena_bytes_max=max(self.limits.arena_bytes_max, 4 * self.message_bytes_max),
        )
