"""Reads what was written long ago, slowly, and says what is not there any more as it was.

Damage is found while other copies of it are whole, not when they are needed.  A finding names the
entries that cannot be read: reading them is an IO_ERROR, never an absence, and whoever restores
copies can start from there.  What is not pointed to by the index may be damaged as well: a finding
without entries means that nothing is lost as long as the index is there.

A segment counts up to where it was durable; behind that there may be a torn write.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from bookie.storage.batches import Batch, Damage, begins, durable_end, scan
from bookie.storage.boot import Contents
from bookie.storage.disk import Disk
from bookie.storage.pace import Pace
from bookie.storage.segments import Segment
from bookie.storage.volume import Volume


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

    def __init__(self, disk: Disk, volume: Volume, contents: Contents, bytes_per_s: float) -> None:
        self.statistics = ScrubStatistics()
        self._disk = disk
        self._volume = volume
        self._contents = contents
        self._pace = Pace(bytes_per_s)
        self._findings: dict[int, list[Finding]] = {}  # by the first position of the segment

    @property
    def findings(self) -> list[Finding]:
        """What is damaged, as of the last look; what was removed since is no finding any more."""
        firsts = [segment.first for segment in self._volume.log.segments]
        return [finding for first in firsts for finding in self._findings.get(first, [])]

    async def run_once(self, found: Callable[[Finding], None]) -> None:
        """Look at every segment once; `found` is told what was not known yet."""
        for segment in self._volume.log.segments:
            try:
                findings = await self._look_at(segment)
            except OSError:  # of the index
                self.statistics.scrub_failures += 1
                return
            if segment not in self._volume.log.segments:
                continue  # removed meanwhile, which looks like damage
            known = self._findings.get(segment.first, [])
            self._findings[segment.first] = findings
            for finding in findings:
                if finding not in known:
                    found(finding)
            self._count()
        self.statistics.scrubs += 1

    def _count(self) -> None:
        findings = self.findings
        self.statistics.damaged_ranges = len(findings)
        self.statistics.damaged_entries = sum(len(finding.entries) for finding in findings)

    async def _look_at(self, segment: Segment) -> list[Finding]:
        damages: list[Damage] = []
        limit = await self._durable_end(segment)
        end = self._end_of(segment) if limit is None else limit
        async with aclosing(scan(self._disk, segment, end)) as pieces:
            async for piece in pieces:
                match piece:
                    case Batch():
                        size = piece.end - piece.position
                        self.statistics.bytes_scrubbed += size
                        await self._pace.spend(size)
                    case Damage():
                        damages.append(piece)
        findings = [await self._finding(damage) for damage in damages]
        if limit is None and findings and findings[-1].end == end and not findings[-1].entries:
            findings.pop()  # a torn write, for all that is known
        return findings

    def _end_of(self, segment: Segment) -> int:
        behind = begins(self._volume.log.segments, self._contents.gaps)
        following = [first for first in behind if first > segment.first]
        return following[0] if following else self._volume.log.durable

    async def _durable_end(self, segment: Segment) -> int | None:
        """As what comes next says; None if that is unreadable itself."""
        segments, gaps = self._volume.log.segments, self._contents.gaps
        if begins(segments, gaps)[-1] == segment.first:
            return self._volume.log.durable
        try:
            return await durable_end(self._disk, segment, segments, gaps)
        except OSError:
            return None

    async def _finding(self, damage: Damage) -> Finding:
        log = self._volume.log
        lost: list[tuple[int, int]] = []
        for entry in await self._volume.places.indexed_entries(damage.start, damage.end):
            # Without a header of the segment nothing can be checked after the next start.
            readable = not damage.headless and await log.is_readable(entry.position, entry.size)
            if not readable:
                lost.append((entry.ledger_id, entry.entry_id))
        return Finding(damage.path, damage.start, damage.end, damage.why, tuple(lost))
