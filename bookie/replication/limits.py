"""The limits of auto-recovery: rates, intervals, timeouts and numbers of attempts."""

from dataclasses import dataclass

from daybook.bookie.registry.underreplication import LOST_DELAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationLimits:
    lost_delay_s: float = float(LOST_DELAY_S)  # unless the metadata store has another value
    rate_bytes_per_s: float = 50e6  # payload that one worker copies
    burst_bytes: float = 4e6
    marks_max: int = 1000  # read in one round; the worst ledger is repaired first
    poll_s: float = 5.0  # between rounds, when no ledger could be repaired
    backoff_s: float = 10.0  # until a failed ledger is tried again; doubles each time
    backoff_s_max: float = 300.0
    rounds_max: int = 5  # one is a check and its copies; all happen under one lock
    recovery_grace_s: float = 30.0  # for a client that began a recovery to finish it
    fence_open_after_s: float | None = None  # for an open ledger whose last fragment lost a bookie
    report_s: float = 2.0
    audit_interval_s: float = 86_400.0
    check_interval_s: float = 604_800.0  # comparing the entry lists of every ledger
    thorough: bool = False  # the checks of all ledgers also read all copies
    retry_s: float = 5.0  # after the metadata store did not answer
