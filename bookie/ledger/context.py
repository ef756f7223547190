"""The objects that writers, readers and recoveries of one ledger client share, and their limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import trio

from daybook.bookie.ledger.batches import BatchReads
from daybook.bookie.ledger.bookie_client import BookieClient, BookieLimits
from daybook.bookie.ledger.ensemble import BookieDirectory, DirectoryLimits
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.protocol.recover import READS_MAX
from daybook.bookie.ledger.request_channel import RequestChannel
from daybook.bookie.registry.underreplication import mark_under_replicated
from daybook.wire.clock import WallClock
from daybook.wire.metadata.store import VALUE_BYTES_MAX, MetadataError
from daybook.wire.proto import bookkeeper_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLimits:
    bookies: BookieLimits = field(default_factory=BookieLimits)
    directory: DirectoryLimits = field(default_factory=DirectoryLimits)
    change_retry_s: float = 1.0  # the metadata store did not answer an ensemble change
    slow_read_s: float = 1.0  # then the next copy is asked for, too
    read_entries_max: int = 256  # under way at once for one call
    recovery_attempts: int = 3  # if the metadata change meanwhile
    recovery_reads_max: int = READS_MAX  # entries of a long tail under way at once
    lac_poll_s: float = 10.0  # how long a bookie waits for the LAC to move
    lac_pause_s: float = 0.05  # after a poll without news; doubled each time
    lac_pause_s_max: float = 1.0
    explicit_lac_s: float = 0.02  # a writer idle for this long sends its LAC
    metadata_bytes_max: int = VALUE_BYTES_MAX  # each ensemble change of a ledger adds some
    mark_attempts: int = 10
    mark_retry_s: float = 2.0


@dataclass(frozen=True, slots=True)
class LedgerContext:
    metadata_store: LedgerMetadataStore
    directory: BookieDirectory
    bookies: BookieClient
    requests: RequestChannel[pb.Response]
    batches: BatchReads
    nursery: trio.Nursery
    limits: LedgerLimits
    rng: Random
    clock: WallClock

    async def mark_under_replicated(self, ledger_id: int, missing: Sequence[BookieId]) -> None:
        """Mark the ledger in the metadata store; retry for a while if it does not answer."""
        for _ in range(self.limits.mark_attempts):
            try:
                await mark_under_replicated(
                    self.metadata_store.store,
                    self.metadata_store.paths,
                    ledger_id,
                    missing,
                    self.clock.now_ms(),
                )
            except MetadataError:
                await trio.sleep(self.rng.uniform(0.5, 1.5) * self.limits.mark_retry_s)
            else:
                return
