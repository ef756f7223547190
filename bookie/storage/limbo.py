"""Ledgers in limbo: the store may have lost records of them, so an absence is *unknown*.

A loss is resolved in two steps.  At first the lost records may belong to any ledger
(`Directories.limbo`): the bookie accepts no plain adds and believes no absence.  When the metadata
have named every ledger that may have lost records, each of these ledgers is marked, and all others
are free:

    in doubt          `mark` for each ledger that may have lost records, then `end_doubt`
    ledger by ledger  the missing entries are copied to this bookie; then `clear`

Each step is durable before the next one, so a crash in between leaves more ledgers in limbo than
necessary, never fewer.  A ledger in limbo accepts no plain adds.  If it may have lost a fence, it
is fenced and never accepts them again.
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
    """Marks and clears the ledgers of a store that are in limbo."""

    def __init__(self, disk: Disk, directories: Directories) -> None:
        self._disk = disk
        self._directories = directories

    def ledgers(self) -> list[int]:
        """Return the ids of all ledgers in limbo, sorted."""
        return sorted(
            ledger_id
            for directory in self._directories.ledger_directories
            for ledger_id, state in directory.ledgers.items()
            if state.limbo and not state.deleted
        )

    async def mark(self, marks: Sequence[LimboMark]) -> None:
        """Mark these ledgers, durably.  A ledger that has a home stays there."""
        ends: dict[str, tuple[LedgerDirectory, int]] = {}
        for number, mark in enumerate(marks):
            if number % _MARKS_A_TURN == _MARKS_A_TURN - 1:
                await trio.lowlevel.checkpoint()
            directory, position = self.mark_one(mark)
            if position >= 0:
                ends[directory.path] = directory, position
        for directory, position in ends.values():
            await directory.log.wait_durable(position)

    def mark_one(self, mark: LimboMark) -> tuple[LedgerDirectory, int]:
        """Mark a ledger; return its directory and the position of the mark.

        The mark is in force on return, and durable when the log is durable at that position.  The
        position is -1 if the ledger was marked before.
        """
        directories = self._directories
        ledger_id, limbo, fence = mark.ledger_id, mark.limbo, mark.fence
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
        # The cookie generation is written before the doubt ends.  After a crash in between the
        # bookie is still in doubt; the other way round it would trust ledgers that it forgot.
        for directory in ledger_directories:
            await write_generation(self._disk, directory.path, generation)
        for directory in ledger_directories:
            if directory.in_doubt:
                await directory.end_doubt()
        self._directories.update_doubt()

    async def clear(self, ledger_id: int) -> None:
        """End the limbo of a ledger that lacks nothing any longer; durable on return."""
        directory = self._directories.homes.get(ledger_id)
        if directory is None:
            raise StoreError(StoreStatus.NO_LEDGER)
        await directory.end_limbo(ledger_id)
