"""The statistics of a store, summed over its directories."""

from collections.abc import Sequence
from dataclasses import dataclass

from daybook.bookie.storage.directory_runner import DirectoryRunner


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    ledgers: int
    entries_added: int  # since the start
    bytes_added: int
    commits: int
    checkpoints: int
    recent_entries: int  # in memory, behind the last checkpoint
    bytes_in_flight: int
    log_bytes: int
    replayed_bytes: int  # at the start
    writable: bool
    read_only: bool  # on request, for instance by an operator
    limbo: bool
    tombstones: int  # ledgers that were deleted
    segments: int
    live_bytes: int  # bytes of the log, as of the last checkpoint
    segments_removed: int
    bytes_removed: int
    bytes_rewritten: int
    segments_kept_damaged: int
    reclaim_failures: int
    scrubs: int
    scrub_failures: int
    bytes_scrubbed: int
    damaged_ranges: int
    damaged_entries: int
    losses: Sequence[str]  # the losses that this start found in the logs
    index_rebuilds: int  # damaged indexes that are being rebuilt
    index_rebuild_bytes_left: int  # bytes of the log that these rebuilds still have to read
    failure: str  # the failure of a log or an index; empty if there is none


def gather(
    runners: Sequence[DirectoryRunner], *, ledgers: int, bytes_in_flight: int, read_only: bool
) -> StoreStatistics:
    """Return the current statistics."""
    ledger_directories = [runner.directory for runner in runners]
    replayed = [runner.replayed for runner in runners]
    reclaimed = [runner.compactor.statistics for runner in runners]
    scrubbed = [runner.scrubber.statistics for runner in runners]
    # A damaged index is no failure of its directory: it is being rebuilt.
    failures = [
        directory.log.failure or (None if directory.rebuilding else directory.locations.failure)
        for directory in ledger_directories
    ]
    rebuilds = [each.rebuilder.progress for each in runners if each.rebuilder.progress]
    return StoreStatistics(
        ledgers=ledgers,
        entries_added=sum(directory.entries_added for directory in ledger_directories),
        bytes_added=sum(directory.bytes_added for directory in ledger_directories),
        commits=sum(directory.log.syncs for directory in ledger_directories),
        checkpoints=sum(directory.locations.checkpoints for directory in ledger_directories),
        recent_entries=sum(directory.locations.recent_entries for directory in ledger_directories),
        bytes_in_flight=bytes_in_flight,
        log_bytes=sum(runner.log_bytes for runner in runners),
        replayed_bytes=sum(each.bytes_read for each in replayed),
        writable=any(directory.writable for directory in ledger_directories),
        read_only=read_only,
        limbo=any(directory.in_doubt for directory in ledger_directories),
        tombstones=sum(directory.tombstones for directory in ledger_directories),
        segments=sum(len(directory.log.segments) for directory in ledger_directories),
        live_bytes=sum(directory.locations.usage.total for directory in ledger_directories),
        segments_removed=sum(each.segments_removed for each in reclaimed),
        bytes_removed=sum(each.bytes_removed for each in reclaimed),
        bytes_rewritten=sum(each.bytes_rewritten for each in reclaimed),
        segments_kept_damaged=sum(each.segments_kept_damaged for each in reclaimed),
        reclaim_failures=sum(each.reclaim_failures for each in reclaimed),
        scrubs=min(each.scrubs for each in scrubbed),
        scrub_failures=sum(each.scrub_failures for each in scrubbed),
        bytes_scrubbed=sum(each.bytes_scrubbed for each in scrubbed),
        damaged_ranges=sum(each.damaged_ranges for each in scrubbed),
        damaged_entries=sum(each.damaged_entries for each in scrubbed),
        losses=[loss for each in replayed for loss in each.losses],
        index_rebuilds=len(rebuilds),
        index_rebuild_bytes_left=sum(each.total_bytes - each.done_bytes for each in rebuilds),
        failure="; ".join(str(failure) for failure in failures if failure),
    )
