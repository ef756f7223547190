"""The scrub reads all stored data slowly and reports what is damaged.

It finds damage while other bookies still have whole copies, not when the copy is needed.  Damaged
entries that can still be read, from memory or because the header of their segment was read before
it was damaged, are written again immediately (`entry_repair`): after the next start they could not
be read.  A finding names the other entries.  A read of them gives IO_ERROR, never an absence, and
the repair of copies starts from the finding.  Bytes to which the index does not point may be
damaged as well: a finding without entries means that no entry is lost as long as the index is
whole.

The whole index is read first, so damage of the index is found as well (`rebuild`).

A segment is checked up to where it was durable; a torn write may follow.  A missing segment is
found as well: its positions are in no segment, and `deleted_segments` has no note of a deletion.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from daybook.bookie.storage.batches import (
    Batch,
    Damage,
    begins,
    durable_end,
    has_header,
    holes,
    scan,
)
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.ledger_directory import LedgerDirectory
from daybook.bookie.storage.records import RECORD_HEADER_BYTES
from daybook.bookie.storage.recovery import Contents
from daybook.bookie.storage.segments import Segment
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.wire.rate_limit import RateLimit

Entries: TypeAlias = Sequence[tuple[int, int]]  # ledger and entry


@dataclass(frozen=True, slots=True)
class Finding:
    """Damaged bytes of a log, and the entries that cannot be read."""

    path: str
    start: int  # a position, like `end`
    end: int
    why: str
    entries: tuple[tuple[int, int], ...]  # ledger and entry


@dataclass(slots=True)
class ScrubStatistics:
    """Passes and bytes since the start; the rest as of the last look at each segment."""

    scrubs: int = 0
    scrub_failures: int = 0
    bytes_scrubbed: int = 0
    damaged_ranges: int = 0
    damaged_entries: int = 0


class Scrubber:
    """The scrub of one directory."""

    def __init__(
        self,
        disk: Disk,
        log_directory: str,
        directory: LedgerDirectory,
        contents: Contents,
        bytes_per_s: float,
        *,
        checkpoint: Callable[[], Awaitable[None]],
        rewrite: Callable[[Entries], Awaitable[Entries]],
    ) -> None:
        """`rewrite` writes readable entries again, and returns the others."""
        self.statistics = ScrubStatistics()
        self._disk = disk
        self._log_directory = log_directory
        self._directory = directory
        self._contents = contents
        self._rate_limit = RateLimit(bytes_per_s)
        self._checkpoint = checkpoint
        self._rewrite = rewrite
        # By the first position of the segment, or of the hole where a segment is missing.
        self._findings: dict[int, list[Finding]] = {}

    @property
    def findings(self) -> list[Finding]:
        """The damage found by the last pass, without segments that were deleted since."""
        firsts = sorted([first for first, _ in self._holes()] + [s.first for s in self._segments])
        return [finding for first in firsts for finding in self._findings.get(first, [])]

    @property
    def _segments(self) -> list[Segment]:
        return self._directory.log.segments

    def _holes(self) -> list[tuple[int, int]]:
        return holes(self._segments, self._contents.gaps)

    async def run_once(self, found: Callable[[Finding], None]) -> None:
        """Read the index and every segment once; call `found` with each new finding.

        The index reports its damage itself, which begins its rebuild.
        """
        try:
            self._check()
            await self._directory.locations.verify(self._directory.ledgers, self._rate_limit.spend)
            for start, end in self._holes():
                path = f"{self._log_directory}/{start:020d}.log"
                damage = Damage(path, start, end, "the segment is gone", headless=True)
                self._note(start, [await self._finding(damage)], found)
            for segment in self._segments:
                findings = await self._scrub_segment(segment)
                self._check()  # a damaged index does not know which entries are lost
                if segment in self._segments:  # a segment deleted meanwhile looks damaged
                    self._note(segment.first, findings, found)
        except (OSError, StoreError):  # the index cannot be read, or the log has failed
            self.statistics.scrub_failures += 1
        else:
            self.statistics.scrubs += 1

    def _check(self) -> None:
        """Raise `StoreError` during a rebuild: the index cannot say which entries are damaged."""
        if self._directory.rebuilding:
            raise StoreError(StoreStatus.IO_ERROR, self._directory.rebuilding)

    def _note(self, first: int, findings: list[Finding], found: Callable[[Finding], None]) -> None:
        known = self._findings.get(first, [])
        self._findings[first] = findings
        for finding in findings:
            if finding not in known:
                found(finding)
        self._count()

    def _count(self) -> None:
        findings = self.findings
        self.statistics.damaged_ranges = len(findings)
        self.statistics.damaged_entries = sum(len(finding.entries) for finding in findings)

    async def _scrub_segment(self, segment: Segment) -> list[Finding]:
        damages: list[Damage] = []
        limit = await self._durable_end(segment)
        end = self._end_of(segment) if limit is None else limit
        async with aclosing(scan(self._disk, segment, end)) as pieces:
            async for piece in pieces:
                match piece:
                    case Batch():
                        size = piece.end - piece.position
                        self.statistics.bytes_scrubbed += size
                        await self._rate_limit.spend(size)
                    case Damage():
                        damages.append(piece)
        if any(each.headless for each in damages):
            if await has_header(self._disk, segment):
                return self._findings.get(segment.first, [])  # the error has passed
            if segment == self._segments[-1]:
                # The records that are appended to this segment could not be checked later.
                self._directory.log.roll()
        if damages and damages[-1].end > self._contents.checkpoint:
            await self._checkpoint()  # the index learns which entries lie there
        findings = [await self._finding(damage) for damage in damages]
        if limit is None and findings and findings[-1].end == end and not findings[-1].entries:
            findings.pop()  # perhaps a torn write, which was never acknowledged
        return findings

    def _end_of(self, segment: Segment) -> int:
        behind = begins(self._directory.log.segments, self._contents.gaps)
        following = [first for first in behind if first > segment.first]
        return following[0] if following else self._directory.log.mark

    async def _durable_end(self, segment: Segment) -> int | None:
        """Return where the segment was durable; None if its successor is unreadable."""
        segments, gaps = self._directory.log.segments, self._contents.gaps
        if begins(segments, gaps)[-1] == segment.first:
            # Not `durable`: behind the mark of a start there is padding, or a torn write.
            return self._directory.log.mark
        try:
            return await durable_end(self._disk, segment, segments, gaps)
        except OSError:
            return None

    async def _finding(self, damage: Damage) -> Finding:
        log = self._directory.log
        lost: list[tuple[int, int]] = []
        for entry in await self._directory.locations.indexed_entries(damage.start, damage.end):
            await self._rate_limit.spend(RECORD_HEADER_BYTES + entry.size)
            # Without a header of the segment nothing can be checked after the next start.
            if damage.headless or not await log.is_readable(entry.position, entry.size):
                lost.append((entry.ledger_id, entry.entry_id))
        left = await self._rewrite(lost) if lost else lost
        return Finding(damage.path, damage.start, damage.end, damage.why, tuple(left))
