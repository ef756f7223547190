"""The directories of a bookie, and which ledger lives in which.

A ledger lives in one directory, where its first record was written.  That is how it is found again,
whatever the number and order of the directories: each has its own log, index and lock.  A new
ledger goes to the writable directory that has the fewest.  (An older image of one directory may
bring back a ledger that lives in another one by now: `Directories._one_home`.)

Doubt is shared: a log that has lost records may have lost those of ledgers that no other directory
has, so while one does not know, none believes that something is absent.
"""

from daybook.bookie.storage.directory_runner import DirectoryRunner
from daybook.bookie.storage.ledger_directory import LAST_ENTRY, LedgerDirectory
from daybook.bookie.storage.status import StoreError, StoreStatus


class StorageLayoutError(Exception):
    """The directories do not belong together."""


class Directories:
    def __init__(self) -> None:
        self.upkeeps: list[DirectoryRunner] = []
        self.volumes: list[LedgerDirectory] = []  # of these
        self.homes: dict[int, LedgerDirectory] = {}  # of all ledgers that are here

    def attach(self, upkeep: DirectoryRunner) -> None:
        """Take the ledgers of a directory.  StorageLayoutError if one of them is in another."""
        volume = upkeep.volume
        for ledger_id in volume.ledgers:
            other = self.homes.setdefault(ledger_id, volume)
            if other is not volume:
                self.homes[ledger_id] = self._one_home(ledger_id, other, volume)
        self.upkeeps.append(upkeep)
        self.volumes.append(volume)
        self.update_doubt()

    def _one_home(
        self, ledger_id: int, one: LedgerDirectory, other: LedgerDirectory
    ) -> LedgerDirectory:
        """Where a ledger lives from now on that two directories have.

        Two homes are an error, unless the bookie is in doubt: an older image of one directory may
        have a ledger that was written anew in another one since.  Both have true copies.  One of
        them is deleted, and what only that one had is unknown until it is copied back: the ledger
        that is kept goes into limbo, and it is fenced if either was.
        """
        live = [each for each in (one, other) if not each.ledgers[ledger_id].deleted]
        if len(live) < 2:
            return live[0] if live else one
        if not self.limbo and not other.in_doubt:
            raise StorageLayoutError(
                f"ledger {ledger_id} is in {one.directory} and in {other.directory}"
            )
        kept = max(live, key=lambda each: each.ledgers[ledger_id].last_entry)
        dropped = one if kept is other else other
        fenced = dropped.ledgers[ledger_id].fenced
        # The doubt of that directory ends with a later record of the same log: so no start that is
        # not in doubt finds both.
        dropped.delete(ledger_id)
        kept.mark_limbo(ledger_id, limbo=True, fence=fenced)
        return kept

    def volume_of(self, ledger_id: int, entry_id: int = LAST_ENTRY) -> LedgerDirectory:
        """Where the ledger lives.  StoreError if it is not here, or the entry id cannot be."""
        volume = self.homes.get(ledger_id)
        if volume is None:
            raise self.volumes[0].absence(StoreStatus.NO_LEDGER)
        if entry_id < LAST_ENTRY:
            raise StoreError(StoreStatus.BAD_REQUEST, f"entry {entry_id}")
        return volume

    def home_of(self, ledger_id: int) -> LedgerDirectory:
        """Where the ledger lives, or may go if it is new here; then `settle` it."""
        if (volume := self.homes.get(ledger_id)) is not None:
            return volume
        if ledger_id < 0:
            raise StoreError(StoreStatus.BAD_REQUEST, f"ledger {ledger_id}")
        usable = [volume for volume in self.volumes if volume.writable]
        return _emptiest(usable) if usable else self.home_of_marks()

    def home_of_marks(self) -> LedgerDirectory:
        """The same for what says that a ledger may lack something: room for that there is."""
        usable = [volume for volume in self.volumes if volume.log.failure is None]
        return _emptiest(usable or self.volumes)

    def settle(self, ledger_id: int, volume: LedgerDirectory) -> None:
        """If the volume has made the ledger it lives there from now on."""
        if ledger_id in volume.ledgers:
            self.homes.setdefault(ledger_id, volume)

    @property
    def limbo(self) -> bool:
        """Records were lost, and nobody knows whose: what is absent may have been here."""
        return any(volume.in_doubt for volume in self.volumes)

    def update_doubt(self) -> None:
        """Look again whether anything is in doubt, and so for everybody."""
        for volume in self.volumes:
            volume.bookie_in_doubt = self.limbo
            volume.update_writable()

    @property
    def highest_tombstone(self) -> int:
        return max(volume.highest_tombstone for volume in self.volumes)


def _emptiest(volumes: list[LedgerDirectory]) -> LedgerDirectory:
    return min(volumes, key=lambda volume: len(volume.ledgers))
