"""The directories of a bookie, and which ledger lives in which.

A ledger lives in the directory where its first record was written.  So it is found again after the
number or the order of the directories has changed.  Each directory has its own log, index and lock.
A new ledger goes to the writable directory that has the fewest ledgers.  An older image of one
directory may bring back a ledger that lives in another one by now
(`Directories._resolve_duplicate`).

Doubt is shared.  A log that has lost records may have lost all records of a ledger, and then no
other directory has any of it, either.  So while one directory is in doubt, an absence in any
directory proves nothing.
"""

from daybook.bookie.storage.directory_runner import DirectoryRunner
from daybook.bookie.storage.ledger_directory import LAST_ENTRY, LedgerDirectory
from daybook.bookie.storage.status import StoreError, StoreStatus


class StorageLayoutError(Exception):
    """The directories do not belong together."""


class Directories:
    """The open directories of a store, and the home of each ledger."""

    def __init__(self) -> None:
        self.runners: list[DirectoryRunner] = []
        self.ledger_directories: list[LedgerDirectory] = []
        self.homes: dict[int, LedgerDirectory] = {}  # by ledger id

    def attach(self, runner: DirectoryRunner) -> None:
        """Add a directory and its ledgers.

        Raise `StorageLayoutError` if another directory has one of the ledgers, too.
        """
        directory = runner.directory
        for ledger_id in directory.ledgers:
            other = self.homes.setdefault(ledger_id, directory)
            if other is not directory:
                self.homes[ledger_id] = self._resolve_duplicate(ledger_id, other, directory)
        self.runners.append(runner)
        self.ledger_directories.append(directory)
        self.update_doubt()

    def _resolve_duplicate(
        self, ledger_id: int, one: LedgerDirectory, other: LedgerDirectory
    ) -> LedgerDirectory:
        """Return the directory in which the ledger lives from now on, if two directories have it.

        Two homes are an error, unless the bookie is in doubt: an older image of one directory may
        have a ledger that was created again in another one since.  The entries of both are correct.
        The copy with fewer entries is deleted.  Entries that only this copy had are unknown until
        they are copied back, so the ledger that is kept goes into limbo.  It is fenced if either
        copy was fenced.
        """
        live = [each for each in (one, other) if not each.ledgers[ledger_id].deleted]
        if len(live) < 2:
            return live[0] if live else one
        if not self.limbo and not other.in_doubt:
            raise StorageLayoutError(f"ledger {ledger_id} is in {one.path} and in {other.path}")
        kept = max(live, key=lambda each: each.ledgers[ledger_id].last_entry)
        dropped = one if kept is other else other
        fenced = dropped.ledgers[ledger_id].fenced
        # The tombstone comes first.  The doubt of a directory ends with a later record of the same
        # log, so a start that is not in doubt finds at most one live copy.
        assert kept is not dropped
        dropped.delete(ledger_id)
        kept.mark_limbo(ledger_id, limbo=True, fence=fenced)
        return kept

    def directory_of(self, ledger_id: int, entry_id: int = LAST_ENTRY) -> LedgerDirectory:
        """Return the home of the ledger; raise `StoreError` if it has none or the id is invalid."""
        directory = self.homes.get(ledger_id)
        if directory is None:
            raise self.ledger_directories[0].absence(StoreStatus.NO_LEDGER)
        if entry_id < LAST_ENTRY:
            raise StoreError(StoreStatus.BAD_REQUEST, f"invalid entry id {entry_id}")
        return directory

    def directory_for(self, ledger_id: int) -> LedgerDirectory:
        """Return the home of the ledger, or the directory to create it in.

        The caller registers a ledger that it has created (`register`).
        """
        if (directory := self.homes.get(ledger_id)) is not None:
            return directory
        if ledger_id < 0:
            raise StoreError(StoreStatus.BAD_REQUEST, f"invalid ledger id {ledger_id}")
        usable = [directory for directory in self.ledger_directories if directory.writable]
        return _emptiest(usable) if usable else self.directory_for_marks()

    def directory_for_marks(self) -> LedgerDirectory:
        """Return a directory for fences, tombstones and limbo marks, which use the disk reserve."""
        usable = [
            directory for directory in self.ledger_directories if directory.log.failure is None
        ]
        return _emptiest(usable or self.ledger_directories)

    def register(self, ledger_id: int, directory: LedgerDirectory) -> None:
        """Make the directory the home of the ledger, if it has created the ledger."""
        if ledger_id in directory.ledgers:
            self.homes.setdefault(ledger_id, directory)

    @property
    def limbo(self) -> bool:
        """True if records of unknown ledgers were lost: an absent entry may have been here."""
        return any(directory.in_doubt for directory in self.ledger_directories)

    def update_doubt(self) -> None:
        """Tell every directory if any of them is in doubt."""
        for directory in self.ledger_directories:
            directory.bookie_in_doubt = self.limbo
            directory.update_writable()

    @property
    def highest_tombstone(self) -> int:
        return max(directory.highest_tombstone for directory in self.ledger_directories)


def _emptiest(ledger_directories: list[LedgerDirectory]) -> LedgerDirectory:
    return min(ledger_directories, key=lambda directory: len(directory.ledgers))
