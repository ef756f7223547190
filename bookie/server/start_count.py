"""The start count of a bookie: it recognises an older image of a directory before it serves.

A directory that was restored from a copy looks whole, but lacks the entries that were acknowledged
since.  So the number of the present start is in the file `STARTS` of each directory.  It is also in
the metadata store, with the position at which each log ended (`registry.starts`).  A start takes
these steps, in this order:

    1  Read both.  A directory is behind if its number is below that of the record, or if its log
       ends below the position that the record has for it.
    2  If a directory is behind, all directories of the bookie are in doubt.  Make that durable
       (`data_integrity`).
    3  Write the highest number plus one to every directory.
    4  Write that number and the present positions to the record, by compare-and-swap.

Another order loses the finding.  With 3 before 2, a crash in between leaves a directory that is
behind and looks whole.  With 4 before 3, it leaves one that is whole and looks behind.

    number in           directories    record
                        no             no         the first start that counts: no doubt
                        no             yes        behind
                        yes            no         no doubt, and one warning

While the bookie serves, it writes the positions again if they have advanced: in intervals, and when
a segment begins.  No request waits for that: without the metadata store they are written later.

An image is not recognised if it was taken since the last start of the bookie and is younger than
the last position that was written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import trio

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.start_counts import NUMBER_MAX, StartRecord, StoredStarts, read_starts
from daybook.bookie.server.cookie_validation import StartError
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.logging import Log
from daybook.wire.metadata.store import (
    MetadataError,
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
    StoreUnavailableError,
    VersionConflictError,
)

STARTS_FILE = "STARTS"
_FORMAT = "1"
_RETRY_S = 0.5
_SEGMENT_PAUSE_S = 1.0  # between two writes because of segments


async def read_number(disk: Disk, directory: str) -> int | None:
    """Return the number, None if there is none, or 0 (below every number) if it does not parse."""
    try:
        text = await disk.read_file(f"{directory}/{STARTS_FILE}")
    except FileNotFoundError:
        return None
    version, _, number = text.decode("ascii", "replace").strip().partition(" ")
    if version != _FORMAT or not (number.isascii() and number.isdecimal()) or len(number) > 18:
        return 0
    return int(number)


async def write_number(disk: Disk, directory: str, number: int) -> None:
    await disk.write_file(f"{directory}/{STARTS_FILE}", f"{_FORMAT} {number}\n".encode())


@dataclass(frozen=True, slots=True)
class _Before:
    """The numbers and positions that step 1 has read."""

    numbers: Mapping[str, int | None]
    stored: StoredStarts | None
    ends: Mapping[str, int]


class StartCounter:
    """Counts the start of one process: first `is_behind`, then `count_start`, then `run`."""

    def __init__(
        self,
        metadata: MetadataStore,
        paths: LedgerPaths,
        disk: Disk,
        bookie_id: str,
        directories: Sequence[str],
        *,
        process: str,
        interval_s: float,
        log: Log,
    ) -> None:
        self.number = 0  # the present start, as soon as it is counted
        self.problem = ""  # why the positions are no longer written
        self._metadata = metadata
        self._paths = paths
        self._path = paths.starts(bookie_id)
        self._disk = disk
        self._bookie_id = bookie_id
        self._directories = directories
        self._process = process
        self._interval_s = interval_s
        self._log = log
        self._before: _Before | None = None
        self._stored: StoredStarts | None = None

    # -- the start

    async def is_behind(self, ends: Mapping[str, int]) -> bool:
        """Step 1: return True if a directory is behind.  The logs end at `ends`.  Repeatable."""
        await self._metadata.sync(self._paths.root)
        stored = await self._read()
        numbers = {each: await read_number(self._disk, each) for each in self._directories}
        self._before = _Before(numbers, stored, ends)
        self._stored = stored
        if stored is None:
            if any(number is not None for number in numbers.values()):
                self._log.warning(
                    "the directories say how often this bookie was started, and the metadata store"
                    " does not: an older image of a directory would not be recognised this time",
                    record=self._path,
                )
            return False
        findings = [
            finding
            for directory in self._directories
            if (finding := self._finding(stored.record, directory, numbers[directory], ends))
        ]
        for finding in findings:
            self._log.warning(
                "the directory is an older image, or has lost its end: this bookie is in doubt,"
                " and copies what it may lack from others",
                why=finding,
            )
        return bool(findings)

    def _finding(
        self, record: StartRecord, directory: str, number: int | None, ends: Mapping[str, int]
    ) -> str:
        """Return why the directory is behind, or "" if it is not."""
        if number is None or number < record.starts:
            return (
                f"{directory} knows of {number or 0} starts, the metadata store of {record.starts}"
            )
        position = self._recorded(record, directory)
        if ends[directory] < position:
            return f"the log in {directory} ends at {ends[directory]}, and had come to {position}"
        return ""

    def _recorded(self, record: StartRecord, directory: str) -> int:
        """Return the position that the record has of a directory.

        The only directory of a bookie may have been moved, so its path is not compared.
        """
        if len(self._directories) == len(record.positions) == 1:
            return next(iter(record.positions.values()))
        return record.positions.get(directory, 0)

    async def count_start(self, ends: Mapping[str, int]) -> None:
        """Steps 3 and 4: write the number of this start; the logs end at `ends` now.

        The caller has made a doubt durable.  Raise StartError if another process with the same
        identity counts its start, too.
        """
        before = self._before
        assert before is not None, "the directories are compared first"
        known = before.stored.record.starts if before.stored is not None else 0
        number = max(known, *(each or 0 for each in before.numbers.values())) + 1
        if number > NUMBER_MAX:
            raise StartError(f"{self._path}: {known} starts cannot be")
        for directory in self._directories:
            await write_number(self._disk, directory, number)
        record = StartRecord(number, self._process, ends)
        while True:
            try:
                await self._swap(record)
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                self._log.warning("waiting for the metadata store", why=str(error))
                await trio.sleep(_RETRY_S)
            except (VersionConflictError, RecordExistsError, NoRecordError):
                pass  # An earlier request of this process, or another process: `_is_ours` decides.
            else:
                break
            if await self._is_ours(record):
                break
        self.number = number

    async def _swap(self, record: StartRecord) -> None:
        """Write the record if the stored one still has the version that is known."""
        stored = self._stored
        if stored is None:
            await self._metadata.create(self._path, record.encode(), make_parents=True)
            self._stored = StoredStarts(record, 0)
        else:
            stat = await self._metadata.set(self._path, record.encode(), stored.version)
            self._stored = StoredStarts(record, stat.version)

    async def _is_ours(self, record: StartRecord) -> bool:
        """Read the record; return True if this process wrote it, False if `_swap` may try again.

        Raise StartError if another process wrote it.
        """
        before = self._before
        assert before is not None
        while True:
            try:
                await self._metadata.sync(self._path)
                found = await self._read()
                break
            except MetadataError:
                await trio.sleep(_RETRY_S)
        self._stored = found
        if found is not None and found.record.process == record.process:
            return found.record == record
        if found is None and before.stored is None:
            return False
        if found is not None and before.stored is not None and self._is_late(found, before):
            return False
        raise StartError(
            f"{self._path} was changed while bookie {self._bookie_id} started: another process with"
            f" its identity is running.  Is there a second copy of {', '.join(self._directories)},"
            " or was the bookie taken out of the cluster meanwhile?  Stop the other process, then"
            " start this one again"
        )

    def _is_late(self, found: StoredStarts, before: _Before) -> bool:
        """Return True if the record is as it was, or a late write of the process before this one.

        A request of a process that was killed may arrive after its end.  It has the number and the
        process of that start, and its positions are not above the ends of the logs that are here.
        """
        assert before.stored is not None
        then, now = before.stored.record, found.record
        same = (now.starts, now.process) == (then.starts, then.process)
        return same and all(
            self._recorded(now, each) <= max(before.ends[each], self._recorded(then, each))
            for each in self._directories
        )

    async def _read(self) -> StoredStarts | None:
        try:
            return await read_starts(self._metadata, self._paths, self._bookie_id)
        except MalformedRecordError as error:
            raise StartError(
                f"{error}.  It says whether a directory of this bookie is an older image, so it is"
                " not ignored.  If a newer version wrote it, start that version; if it is damaged,"
                f" delete it, and give `daybook bookies replace-disk {self._bookie_id}` should any"
                " directory have been put back from a copy"
            ) from error

    # -- while it serves

    async def run(self, store: LedgerStore) -> None:
        """Write the positions when they have advanced, forever, or until there is a problem."""
        wanted = trio.Event()

        def segment_began() -> None:
            wanted.set()

        store.add_segment_listener(segment_began)
        while not self.problem:
            with trio.move_on_after(self._interval_s):
                await wanted.wait()
            wanted = trio.Event()
            try:
                await self._write(store.log_ends())
            except MetadataError as error:
                self._log.info("the positions of the logs are written later", why=str(error))
            await trio.sleep(min(self._interval_s, _SEGMENT_PAUSE_S))
        self._log.warning("the positions of the logs are no longer written", why=self.problem)

    async def _write(self, ends: Mapping[str, int]) -> None:
        stored = self._stored
        assert stored is not None, "the start was counted"
        if ends == stored.record.positions:
            return
        record = replace(stored.record, positions=ends)
        try:
            await self._swap(record)
        except (OutcomeUnknownError, VersionConflictError, NoRecordError):
            await self._look_again()

    async def _look_again(self) -> None:
        """Read the record after a failed write; the next write continues from it if it is ours."""
        await self._metadata.sync(self._path)
        try:
            found = await read_starts(self._metadata, self._paths, self._bookie_id)
        except MalformedRecordError as error:
            self.problem = str(error)
            return
        if found is None:
            self.problem = f"{self._path} was deleted: the bookie was taken out of the cluster"
        elif found.record.process != self._process:
            self.problem = (
                f"another process has counted start {found.record.starts} of this bookie in"
                f" {self._path}: stop the one of the two whose directories are the copy"
            )
        else:
            self._stored = found
