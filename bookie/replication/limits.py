"""How fast, how often and how patiently copies are looked after."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationLimits:
    lost_delay_s: float = 60.0  # unless the metadata store says otherwise
    rate_bytes_per_s: float = 50e6  # of payload, by one worker
    burst_bytes: float = 4e6
    marks_max: int = 1000  # looked at in one round, the worst of them mended first
    poll_s: float = 5.0  # between rounds, when there was nothing to do
    backoff_s: float = 10.0  # of a ledger that could not be mended; doubles
    backoff_s_max: float = 300.0
    rounds_max: int = 5  # of checking and copying, for one ledger, while its lock is held
    recovery_grace_s: float = 30.0  # for whoever began a recovery to end it
    fence_open_after_s: float | None = None  # an open ledger whose last fragment lost a bookie
    report_s: float = 2.0
    audit_interval_s: float = 86_400.0
    check_interval_s: float = 604_800.0  # every list of entries of every ledger
    thorough: bool = False  # the checks of everything read all copies, too
    retry_s: float = 5.0  # when the metadata store does not answer
