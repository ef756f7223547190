"""Reads what was written long ago, slowly, and says what is not there any more as it was.

Damage is found while other copies of it are whole, not when they are needed.  Entries that can
still be read, from memory or because the header of their segment was read in time, are written
again at once (`entry_repair`): after the next start they could not be.  A finding names the others:
reading them is an IO_ERROR, never an absence, and whoever restores copies can start from there.
What is not pointed to by the index may be damaged as well: a finding without entries means that
nothing is lost as long as the index is there.

The index is read first, all of it, so that damage there is found as well (`rebuild`).

A segment counts up to where it was durable; behind that there may be a torn write.  One that is
gone is found as well: its positions are in no segment, and nobody noted that it was removed.
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
from daybook.bookie.storage.limits import RateLimit
from daybook.bookie.storage.records import RECORD_HEADER_BYTES
from daybook.bookie.storage.recovery import Contents
from daybook.bookie.storage.segments import Segment
from daybook.bookie.storage.status import StoreError, StoreStatus

Entries: TypeAlias = Sequence[tuple[int, int]]  # ledger and entry


@dataclass(frozen=True, slots=True)
class Finding:
    """Bytes of a log that are damaged, and the entries that are."""

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
    """Looks after one directory."""

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
        """`rewrite` writes entries again that can still be read, and returns the others."""
        self.statistics = ScrubStatistics()
        self._disk = disk
        self._log_directory = log_directory
        self._directory = directory
        self._contents = contents
        self._rate_limit = RateLimit(bytes_per_s)
        self._checkpoint = checkpoint
        self._rewrite = rewrite
        # By the first position of the segment, or of where one must have been.
        self._findings: dict[int, list[Finding]] = {}

    @property
    def findings(self) -> list[Finding]:
        """What is damaged, as of the last look; what was removed since is no finding any more."""
        firsts = sorted([first for first, _ in self._holes()] + [s.first for s in self._segments])
        return [finding for first in firsts for finding in self._findings.get(first, [])]

    @property
    def _segments(self) -> list[Segment]:
        return self._directory.log.segments

    def _holes(self) -> list[tuple[int, int]]:
        return holes(self._segments, self._contents.gaps)

    async def run_once(self, found: Callable[[Finding], None]) -> None:
        """Look at the index and at every segment once; `found` is told what was not known yet.

        Damage of the index is told by the index itself, and its rebuild begins.
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
                self._check()  # What a damaged index says of these entries is no finding.
                if segment in self._segments:  # one that was removed meanwhile looks like damage
                    self._note(segment.first, findings, found)
        except (OSError, StoreError):  # of the index, or of a log that has failed
            self.statistics.scrub_failures += 1
        else:
            self.statistics.scrubs += 1

    def _check(self) -> None:
        """Raise unless the index can say which entries lie where."""
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
                return self._findings.get(segment.first, [])  # An error that has passed.
            if segment == self._segments[-1]:
                # The records that are appended to this segment could not be checked later.
                self._directory.log.roll()
        if damages and damages[-1].end > self._contents.checkpoint:
            await self._checkpoint()  # Else the index does not know what lies there.
        findings = [await self._finding(damage) for damage in damages]
        if limit is None and findings and findings[-1].end == end and not findings[-1].entries:
            findings.pop()  # a torn write, for all that is known
        return findings

    def _end_of(self, segment: Segment) -> int:
        behind = begins(self._directory.log.segments, self._contents.gaps)
        following = [first for first in behind if first > segment.first]
        return following[0] if following else self._directory.log.mark

    async def _durable_end(self, segment: Segment) -> int | None:
        """As what comes next says; None if that is unreadable itself."""
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
