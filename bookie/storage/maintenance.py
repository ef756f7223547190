"""What is done to the directories of a bookie while it serves, behind the requests.

Room is made of what was deleted, everything is read again now and then, ledgers that are gone for
good are forgotten; and what is damaged is named, for whoever copies it back.  Nothing of this
starts by itself: `server.garbage_collector` and `server.damage_reporter` say when.
"""

from collections.abc import Callable

import trio

from daybook.bookie.storage.directories import Directories
from daybook.bookie.storage.scrub import Finding


class Maintenance:
    """`forgets`: deleted ledgers may be forgotten, since the metadata are asked of new ones."""

    def __init__(self, directories: Directories, *, forgets: bool) -> None:
        self._directories = directories
        self._forgets = forgets
        self._finding_listeners: list[Callable[[Finding], None]] = []
        self._reclaiming = trio.Lock()
        self._scrubbing = trio.Lock()

    async def checkpoint(self) -> None:
        """Bring the indexes up to date now, for instance before a planned restart."""
        for upkeep in self._directories.upkeeps:
            await upkeep.checkpoint()

    async def reclaim(self) -> None:
        """Make room: remove segments of which nothing counts, empty those of which little does."""
        async with self._reclaiming:
            for upkeep in self._directories.upkeeps:
                await upkeep.reclaimer.run_once()

    # ---- damage

    async def scrub(self) -> None:
        """Look once at everything that is written, at the rate that the limits say."""
        async with self._scrubbing, trio.open_nursery() as nursery:
            for upkeep in self._directories.upkeeps:
                nursery.start_soon(upkeep.scrubber.run_once, self._found)

    @property
    def scrubbing(self) -> bool:
        return self._scrubbing.locked()

    def add_finding_listener(self, listener: Callable[[Finding], None]) -> None:
        """Called with each finding once, until it is found in another place."""
        self._finding_listeners.append(listener)

    def _found(self, finding: Finding) -> None:
        for listener in self._finding_listeners:
            listener(finding)

    def findings(self) -> list[Finding]:
        """What the scrub knows to be damaged."""
        return [each for upkeep in self._directories.upkeeps for each in upkeep.scrubber.findings]

    def damaged_entries(self) -> list[tuple[int, int]]:
        """Ledger and entry: what reads and the scrub have found that the disk does not give."""
        known = {each for volume in self._directories.volumes for each in volume.reads.damaged}
        return sorted(known.union(*(finding.entries for finding in self.findings())))

    def stranded_ledgers(self) -> list[int]:
        """Those in directories that have failed since the start."""
        return sorted(
            ledger_id
            for volume in self._directories.volumes
            # What a damaged index hides is in the log, and back when the index is rebuilt.
            if volume.log.failure or (volume.places.failure and not volume.rebuilding)
            for ledger_id, state in volume.ledgers.items()
            if not state.deleted
        )

    # ---- ledgers that were deleted

    async def tombstones_to_ask(self, count: int) -> list[int]:
        """Deleted ledgers of which the metadata have to say, each, whether they are gone still."""
        if not self._forgets:
            return []  # one that is forgotten here would be as good as new
        found: list[int] = []
        for upkeep in self._directories.upkeeps:
            found += await upkeep.tombstones.to_ask(count - len(found))
        return found

    async def end_tombstones(self, gone: list[int]) -> int:
        """They are gone still; forget those of which nothing is left; returns how many."""
        ended = 0
        for upkeep in self._directories.upkeeps:
            ledgers = upkeep.volume.ledgers
            here = [ledger_id for ledger_id in gone if ledger_id in ledgers]
            ended += await upkeep.tombstones.end(here)
            for ledger_id in here:
                if ledger_id not in ledgers:
                    self._directories.homes.pop(ledger_id, None)
        return ended
