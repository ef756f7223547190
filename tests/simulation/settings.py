"""What the hosts of a simulated cluster are told.

What takes minutes or days in production takes seconds here, so that a short run meets it: space is
reclaimed, copies are compared, lost bookies are given up.
"""

from dataclasses import dataclass

from bookie.replication.limits import ReplicationLimits
from broker.config import BrokerConfig, QuorumsConfig

BOOKIE_PORT = 3181
BROKER_PORT = 6650
_RETENTION_MINUTES = 7 * 24 * 60


@dataclass(frozen=True, slots=True)
class AutoRecovery:
    """Beside each bookie: how patient it is, how often it looks, how fast it copies."""

    lost_delay_s: float = 2.0
    check_interval_s: float = 3600.0  # the copies of everything are compared
    bytes_per_s: float = 50e6
    thorough: bool = False  # they are read, too
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
class Settings:
    quorums: tuple[int, int, int] | None = None  # None: by the number of bookies
    roll_entries: int = 50_000
    roll_age_s: float = 4 * 3600.0
    roll_age_min_s: float = 0.0
    list_bytes_max: int = 1_000_000  # of the list of a topic's ledgers
    cursor_roll_records: int = 5_000
    cursor_snapshot_records: int = 1_000
    cursor_snapshot_s: float = 30.0
    old_brokers: float = 0.0  # how often a life of a broker announces no new formats
    trim_interval_s: float = 60.0
    retention: bool = True  # else what every subscription has acknowledged goes
    checkpoint_entries: int = 200
    segment_bytes: int = 512 << 20
    directories: int = 1  # of a bookie
    racks: int = 0  # bookies stand in so many, in turn; 0: in none
    reclaim_interval_s: float = 5.0
    scrub_interval_s: float = 60.0
    position_interval_s: float = 10.0  # between what a bookie tells of the ends of its logs
    session_timeout_s: float = 2.0
    message_bytes_max: int = 1 << 20
    split: float = 0.0  # how often a segment of the network arrives in two parts
    recovery: AutoRecovery | None = None  # None: copies that are lost stay lost
    unsynced: bool = False  # bookie-1 acknowledges before its sync

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
            cursor_roll_records=self.cursor_roll_records,
            cursor_snapshot_records=self.cursor_snapshot_records,
            cursor_snapshot_s=self.cursor_snapshot_s,
            trim_interval_s=self.trim_interval_s,
            default_retention_minutes=_RETENTION_MINUTES if self.retention else 0,
            default_retention_mb=-1 if self.retention else 0,
            max_message_size=self.message_bytes_max,
        )
