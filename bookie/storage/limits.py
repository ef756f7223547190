"""What is bounded in the storage of a bookie."""

from dataclasses import dataclass, field

from bookie.storage.log import LogLimits


@dataclass(frozen=True, slots=True)
class StoreLimits:
    log: LogLimits = field(default_factory=LogLimits)
    in_flight_bytes_max: int = 256 << 20  # accepted and not durable; more is refused
    checkpoint_entries: int = 100_000  # in memory; then a checkpoint begins
    checkpoint_bytes: int = 256 << 20  # of log behind the last checkpoint: what a boot reads
    recent_entries_max: int = 1_000_000  # then nothing is written until a checkpoint is done
    blocks_cached: int = 2048  # of the index, up to 256 entries each
    free_bytes_min: int = 256 << 20  # with less room only recovery adds, fences and LACs
    space_check_s: float = 5.0
    close_s: float = 10.0  # for the end mark and the last checkpoint
