"""The limits of the storage of a bookie."""

from dataclasses import dataclass, field

from daybook.bookie.storage.log import LogLimits


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    live_share_max: float = 0.5  # a segment with less live bytes is compacted
    bytes_per_s: float = 32 << 20  # read and written; no limit while space is short
    portion_bytes: int = 64 << 20  # sorted by ledger in memory
    portion_entries: int = 100_000
    chunk_bytes: int = 128 << 10  # appended at once, in between the adds of clients
    spare_bytes: int = 16 << 20  # disk space that must stay free besides the live bytes


@dataclass(frozen=True, slots=True)
class StoreLimits:
    log: LogLimits = field(default_factory=LogLimits)
    ack_early: bool = False  # answer plain adds before they are on the disk (`markers`)
    # With more bytes than this on their way to the disk, answers wait for the disk after all.
    early_bytes_max: int = 32 << 20
    in_flight_bytes_max: int = 256 << 20  # accepted and not durable; more is refused
    checkpoint_entries: int = 100_000  # in memory; then a checkpoint begins
    checkpoint_bytes: int = 256 << 20  # log behind the last checkpoint, which a start reads
    recent_entries_max: int = 1_000_000  # then the log pauses until a checkpoint is done
    blocks_cached: int = 2048  # blocks of the index in memory, up to 256 entries each
    # With less free space the store accepts only recovery adds, fences and LACs.  Below half of it,
    # the rest is reserved for fences, deletions and compaction.
    free_bytes_min: int = 256 << 20
    scrub_bytes_per_s: float = 4 << 20
    reclaim: CompactionLimits = field(default_factory=CompactionLimits)
    space_check_s: float = 5.0
    close_s: float = 10.0  # for the end mark and the last checkpoint
