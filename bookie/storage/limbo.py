"""Ledgers in limbo: of these the store may have lost records, and absence is *unknown*.

What is lost is known in two steps.  At first it may be anybody's (`Directories.limbo`): no plain
adds at all, and no absence is believed.  When the metadata have said whose, all of them, each of
those ledgers is marked by itself, and the rest is free:

    in doubt          `mark` for each ledger that may have lost something, then `end_doubt`
    ledger by ledger  what it lacks is copied here; then `clear`

Every step is durable before the next one, so a crash in between leaves more in limbo than needed,
never less.  A ledger in limbo takes no plain adds; with a fence, for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from daybook.bookie.storage.directories import Directories
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.ledger_directory import LedgerDirectory
from daybook.bookie.storage.markers import write_generation
from daybook.bookie.storage.status import StoreError, StoreStatus

_MARKS_A_TURN = 500


@dataclass(frozen=True, slots=True)
class LimboMark:
    """A ledger that may have lost records: entries (`limbo`), a fence, or both."""

    ledger_id: int
    limbo: bool
    fence: bool


class LimboLedgers:
    def __init__(self, disk: Disk, directories: Directories) -> None:
        self._disk = disk
        self._directories = directories

    def ledgers(self) -> list[int]:
        """Those in limbo, sorted."""
        return sorted(
            ledger_id
            for directory in self._directories.ledger_directories
            for ledger_id, state in directory.ledgers.items()
            if state.limbo and not state.deleted
        )

    async def mark(self, limbo_ledgers: Sequence[LimboMark]) -> None:
        """Durable on return; what has a record already stays in its directory."""
        ends: dict[str, tuple[LedgerDirectory, int]] = {}
        for number, suspect in enumerate(limbo_ledgers):
            if number % _MARKS_A_TURN == _MARKS_A_TURN - 1:
                await trio.lowlevel.checkpoint()
            directory, position = self.take(suspect)
            if position >= 0:
                ends[directory.path] = directory, position
        for directory, position in ends.values():
            await directory.log.wait_durable(position)

    def take(self, suspect: LimboMark) -> tuple[LedgerDirectory, int]:
        """The same for one; it is in force, and durable when that position is (-1: it is)."""
        directories = self._directories
        ledger_id, limbo, fence = suspect.ledger_id, suspect.limbo, suspect.fence
        directory = directories.homes.get(ledger_id) or directories.directory_for_marks()
        position = directory.mark_limbo(ledger_id, limbo=limbo, fence=fence)
        directories.register(ledger_id, directory)
        return directory, position

    async def end_doubt(self, generation: int) -> None:
        """End the doubt: every ledger that may have lost records is marked.

        No ledger that was created since `generation` has lost any.
        """
        ledger_directories = self._directories.ledger_directories
        for directory in ledger_directories:
            directory.check_index()
        for directory in ledger_directories:
            await write_generation(self._disk, directory.path, generation)
        for directory in ledger_directories:
            if directory.in_doubt:
                await directory.end_doubt()
        self._directories.update_doubt()

    async def clear(self, ledger_id: int) -> None:
        """Nothing of it is missing any more; believed when that is durable."""
        directory = self._directories.homes.get(ledger_id)
        if directory is None:
            raise StoreError(StoreStatus.NO_LEDGER)
        await directory.end_limbo(ledger_id)
