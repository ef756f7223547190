"""The directories of a bookie, and which ledger lives in which.

A ledger lives in one directory, where its first record was written.  That is how it is found again,
whatever the number and order of the directories: each has its own log, index and lock.  A new
ledger goes to the writable directory that has the fewest.  (An older image of one directory may
bring back a ledger that lives in another one by now: `Directories._resolve_duplicate`.)

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
        self.runners: list[DirectoryRunner] = []
        self.ledger_directories: list[LedgerDirectory] = []  # of these
        self.homes: dict[int, LedgerDirectory] = {}  # of all ledgers that are here

    def attach(self, runner: DirectoryRunner) -> None:
        """Take the ledgers of a directory.  StorageLayoutError if one of them is in another."""
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
            raise StorageLayoutError(f"ledger {ledger_id} is in {one.path} and in {other.path}")
        kept = max(live, key=lambda each: each.ledgers[ledger_id].last_entry)
        dropped = one if kept is other else other
        fenced = dropped.ledgers[ledger_id].fenced
        # The doubt of that directory ends with a later record of the same log: so no start that is
        # not in doubt finds both.
        dropped.delete(ledger_id)
        kept.mark_limbo(ledger_id, limbo=True, fence=fenced)
        return kept

    def directory_of(self, ledger_id: int, entry_id: int = LAST_ENTRY) -> LedgerDirectory:
        """Where the ledger lives.  StoreError if it is not here, or the entry id cannot be."""
        directory = self.homes.get(ledger_id)
        if directory is None:
            raise self.ledger_directories[0].absence(StoreStatus.NO_LEDGER)
        if entry_id < LAST_ENTRY:
            raise StoreError(StoreStatus.BAD_REQUEST, f"entry {entry_id}")
        return directory

    def directory_for(self, ledger_id: int) -> LedgerDirectory:
        """Where the ledger lives, or may go if it is new here; then `register` it."""
        if (directory := self.homes.get(ledger_id)) is not None:
            return directory
        if ledger_id < 0:
            raise StoreError(StoreStatus.BAD_REQUEST, f"ledger {ledger_id}")
        usable = [directory for directory in self.ledger_directories if directory.writable]
        return _emptiest(usable) if usable else self.directory_for_marks()

    def directory_for_marks(self) -> LedgerDirectory:
        """The same for what says that a ledger may lack something: room for that there is."""
        usable = [
            directory for directory in self.ledger_directories if directory.log.failure is None
        ]
        return _emptiest(usable or self.ledger_directories)

    def register(self, ledger_id: int, directory: LedgerDirectory) -> None:
        """If the volume has made the ledger it lives there from now on."""
        if ledger_id in directory.ledgers:
            self.homes.setdefault(ledger_id, directory)

    @property
    def limbo(self) -> bool:
        """Records were lost, and nobody knows whose: what is absent may have been here."""
        return any(directory.in_doubt for directory in self.ledger_directories)

    def update_doubt(self) -> None:
        """Look again whether anything is in doubt, and so for everybody."""
        for directory in self.ledger_directories:
            directory.bookie_in_doubt = self.limbo
            directory.update_writable()

    @property
    def highest_tombstone(self) -> int:
        return max(directory.highest_tombstone for directory in self.ledger_directories)


def _emptiest(ledger_directories: list[LedgerDirectory]) -> LedgerDirectory:
    return min(ledger_directories, key=lambda directory: len(directory.ledgers))
