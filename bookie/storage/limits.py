"""What is bounded in the storage of a bookie."""

from dataclasses import dataclass, field

import trio

from daybook.bookie.storage.log import LogLimits


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    live_share_max: float = 0.5  # a segment of which less still counts is written again
    bytes_per_s: float = 32 << 20  # read and written, while there is room; else as fast as it goes
    portion_bytes: int = 64 << 20  # sorted by ledger in memory
    portion_entries: int = 100_000
    chunk_bytes: int = 128 << 10  # written at once, between the adds of others
    spare_bytes: int = 16 << 20  # a segment is written again if there is room for it, and for this


@dataclass(frozen=True, slots=True)
class StoreLimits:
    log: LogLimits = field(default_factory=LogLimits)
    ack_early: bool = False  # plain adds are answered before they are on the disk (`markers`)
    early_bytes_max: int = 32 << 20  # on their way to the disk; then answers wait for it again
    in_flight_bytes_max: int = 256 << 20  # accepted and not durable; more is refused
    checkpoint_entries: int = 100_000  # in memory; then a checkpoint begins
    checkpoint_bytes: int = 256 << 20  # of log behind the last checkpoint: what a boot reads
    recent_entries_max: int = 1_000_000  # then nothing is written until a checkpoint is done
    blocks_cached: int = 2048  # of the index, up to 256 entries each
    # With less room only recovery adds, fences and LACs; with half of it, nothing that takes room
    # but what makes room.
    free_bytes_min: int = 256 << 20
    scrub_bytes_per_s: float = 4 << 20
    reclaim: CompactionLimits = field(default_factory=CompactionLimits)
    space_check_s: float = 5.0
    close_s: float = 10.0  # for the end mark and the last checkpoint


class RateLimit:
    """A limit on the bytes a second of background work; no allowance is saved up while idle."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def spend(self, size: int) -> None:
        """Return when this many more bytes may be read or written."""
        now = trio.current_time()
        self._free_at = max(now, self._free_at) + size / self._bytes_per_s
        await trio.sleep_until(self._free_at)
