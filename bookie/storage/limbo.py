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
from daybook.bookie.storage.markers import write_birth
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
            for volume in self._directories.volumes
            for ledger_id, state in volume.ledgers.items()
            if state.limbo and not state.deleted
        )

    async def mark(self, suspects: Sequence[LimboMark]) -> None:
        """Durable on return; what has a record already stays in its directory."""
        ends: dict[str, tuple[LedgerDirectory, int]] = {}
        for number, suspect in enumerate(suspects):
            if number % _MARKS_A_TURN == _MARKS_A_TURN - 1:
                await trio.lowlevel.checkpoint()
            volume, position = self.take(suspect)
            if position >= 0:
                ends[volume.directory] = volume, position
        for volume, position in ends.values():
            await volume.log.wait_durable(position)

    def take(self, suspect: LimboMark) -> tuple[LedgerDirectory, int]:
        """The same for one; it is in force, and durable when that position is (-1: it is)."""
        directories = self._directories
        ledger_id, limbo, fence = suspect.ledger_id, suspect.limbo, suspect.fence
        volume = directories.homes.get(ledger_id) or directories.home_of_marks()
        position = volume.mark_limbo(ledger_id, limbo=limbo, fence=fence)
        directories.settle(ledger_id, volume)
        return volume, position

    async def end_doubt(self, birth: int) -> None:
        """All that may have lost something is marked; the rest never was here before `birth`."""
        volumes = self._directories.volumes
        for volume in volumes:
            volume.check_index()
        for volume in volumes:
            await write_birth(self._disk, volume.directory, birth)
        for volume in volumes:
            if volume.in_doubt:
                await volume.end_doubt()
        self._directories.update_doubt()

    async def clear(self, ledger_id: int) -> None:
        """Nothing of it is missing any more; believed when that is durable."""
        volume = self._directories.homes.get(ledger_id)
        if volume is None:
            raise StoreError(StoreStatus.NO_LEDGER)
        await volume.end_limbo(ledger_id)
