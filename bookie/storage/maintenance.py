"""Background work on the directories of a bookie that serves requests.

Compaction frees the space of deleted entries, the scrub reads all data from time to time,
tombstones of deleted ledgers are removed, and damaged entries are listed so that they can be copied
back.  No work starts by itself: `server.garbage_collector` and `server.damage_reporter` call it.
"""

from collections.abc import Callable

import trio

from daybook.bookie.storage.directories import Directories
from daybook.bookie.storage.scrub import Finding


class Maintenance:
    """The maintenance of all directories.

    With `forgets` tombstones may be removed, since the metadata are asked about unknown ledgers.
    """

    def __init__(self, directories: Directories, *, forgets: bool) -> None:
        self._directories = directories
        self._forgets = forgets
        self._finding_listeners: list[Callable[[Finding], None]] = []
        self._reclaiming = trio.Lock()
        self._scrubbing = trio.Lock()

    async def checkpoint(self) -> None:
        """Bring the indexes up to date now, for instance before a planned restart."""
        for runner in self._directories.runners:
            await runner.checkpoint()

    async def reclaim(self) -> None:
        """Delete segments without live bytes, and compact those with few."""
        async with self._reclaiming:
            for runner in self._directories.runners:
                await runner.compactor.run_once()

    # ---- damage

    async def scrub(self) -> None:
        """Read all indexes and logs once, at the limited rate."""
        async with self._scrubbing, trio.open_nursery() as nursery:
            for runner in self._directories.runners:
                nursery.start_soon(runner.scrubber.run_once, self._found)

    @property
    def scrubbing(self) -> bool:
        return self._scrubbing.locked()

    def add_finding_listener(self, listener: Callable[[Finding], None]) -> None:
        """Call `listener` once with each finding, and again if its position or entries change."""
        self._finding_listeners.append(listener)

    def _found(self, finding: Finding) -> None:
        for listener in self._finding_listeners:
            listener(finding)

    def findings(self) -> list[Finding]:
        """Return the damage that the scrub has found."""
        return [each for runner in self._directories.runners for each in runner.scrubber.findings]

    def damaged_entries(self) -> list[tuple[int, int]]:
        """Return ledger and entry id of each entry that reads or the scrub could not read."""
        known = {
            each for directory in self._directories.ledger_directories for each in directory.damaged
        }
        return sorted(known.union(*(finding.entries for finding in self.findings())))

    def stranded_ledgers(self) -> list[int]:
        """Return the ledgers in directories that have failed since the start."""
        return sorted(
            ledger_id
            for directory in self._directories.ledger_directories
            # Entries that a damaged index hides are in the log; the rebuild finds them again.
            if directory.log.failure or (directory.locations.failure and not directory.rebuilding)
            for ledger_id, state in directory.ledgers.items()
            if not state.deleted
        )

    # ---- ledgers that were deleted

    async def tombstones_to_ask(self, count: int) -> list[int]:
        """Return deleted ledgers; the caller asks the metadata if each of them is still gone."""
        if not self._forgets:
            return []  # a forgotten ledger would be accepted as a new one
        found: list[int] = []
        for runner in self._directories.runners:
            found += await runner.tombstones.to_confirm(count - len(found))
        return found

    async def end_tombstones(self, gone: list[int]) -> int:
        """Forget those of these deleted ledgers that have no record left; return their number."""
        ended = 0
        for runner in self._directories.runners:
            ledgers = runner.directory.ledgers
            here = [ledger_id for ledger_id in gone if ledger_id in ledgers]
            ended += await runner.tombstones.end(here)
            for ledger_id in here:
                if ledger_id not in ledgers:
                    self._directories.homes.pop(ledger_id, None)
        return ended
