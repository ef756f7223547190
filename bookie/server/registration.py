"""The registration of a bookie: it is announced in the metadata store for as long as it serves.

    <root>/available/<id>             the bookie accepts new entries
    <root>/available/readonly/<id>    the bookie serves the entries that it has

Both records are ephemeral: they end with the session of this process.  After a lost session comes a
new one, in which the bookie registers again.  The stored entries are not touched, because safety
never depends on which bookies are registered.  When a bookie moves from one directory to the other,
both have its record for a moment, rather than none.

**A record that another session left.**  A bookie that was killed and restarts finds its own record
for as long as its old session lasts.  The record may be removed at once if it is provably that of
the last process on *these directories*, which this process has locked.  The proof has two parts.
Each process writes a random mark into its first directory before it registers with it.  A copy of
the directories has the mark, too, so the record must also have the address of this bookie, where no
other process can listen now.  Any other record, in
either place, may belong to a living bookie; it is waited for, and nothing is taken out of limbo
before (`server.data_integrity`): an entry that the other one acknowledges meanwhile would not be
among those that were lost.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import trio

from daybook.bookie.errors import RegistryError
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo, register_bookie, unregister_bookie
from daybook.bookie.storage.disk import Disk
from daybook.wire.logging import Log
from daybook.wire.metadata.store import (
    MetadataError,
    MetadataStore,
    NoRecordError,
    SessionState,
    VersionConflictError,
)

_MARK_FILE = "REGISTRATION"
_MARK = "daybook.process"
_RETRY_S = 0.2
_WAIT_S = 30.0  # for another session's record to go, before that is said again
_LEAVE_S = 2.0


async def replace_mark(disk: Disk, directory: str, mark: str) -> tuple[str, str]:
    """Write the mark of this process; return that of the last one ("" for none), and this one."""
    path = f"{directory}/{_MARK_FILE}"
    before = ""
    with suppress(FileNotFoundError):
        before = (await disk.read_file(path)).decode(errors="replace").strip()
    await disk.write_file(path, mark.encode() + b"\n")
    return before, mark


class Registration:
    """`run` keeps the records as they should be; `registered` says whether they are."""

    def __init__(
        self,
        metadata: MetadataStore,
        paths: LedgerPaths,
        info: BookieInfo,
        *,
        marks: tuple[str, str],
        writable: Callable[[], bool],
        log: Log,
    ) -> None:
        self.sessions_lost = 0
        self.readonly = False
        self._metadata = metadata
        self._paths = paths
        self._mark_before, mark = marks
        self._info = replace(info, properties={**info.properties, _MARK: mark})
        self._writable = writable
        self._log = log
        self._session_id = 0  # in which the records are as they should be
        self._changed = trio.Event()

    @property
    def registered(self) -> bool:
        metadata = self._metadata
        return (
            metadata.session_state is not SessionState.LOST
            and self._session_id != 0
            and self._session_id == metadata.session_id
        )

    def look_again(self) -> None:
        """Check the records again: they, or the state of the store, may have changed."""
        self._changed.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the bookie registered, forever; started when it is registered for the first time."""
        self._metadata.add_session_listener(self._session_changed)
        started = False
        try:
            while True:
                # Renewed first: a change during `_announce` causes another round.
                self._changed = trio.Event()
                if await self._announce() and not started:
                    started = True
                    task_status.started()
                await self._changed.wait()
        finally:
            self._metadata.remove_session_listener(self._session_changed)

    async def leave(self) -> None:
        """Remove the records, so that clients need not wait for the end of the session."""
        with trio.move_on_after(_LEAVE_S) as scope, suppress(MetadataError):
            scope.shield = True
            await unregister_bookie(self._metadata, self._paths, self._info.bookie_id)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self.sessions_lost += 1
            self._session_id = 0
            self._log.warning("session lost", bookie=self._info.bookie_id)
        self.look_again()

    # -- the records

    async def _announce(self) -> bool:
        """Write the record to one directory and remove it from the other.  Return True if done."""
        metadata = self._metadata
        if metadata.session_state is not SessionState.CONNECTED:
            return False  # The session listener calls when that changes.
        session_id, readonly = metadata.session_id, not self._writable()
        try:
            await self._remove_stale()
            await register_bookie(
                metadata, self._paths, self._info, read_only=readonly, timeout_s=_WAIT_S
            )
            path = self._paths.registration(self._info.bookie_id, read_only=readonly)
            record = await metadata.get(path, self.look_again)
        except (MetadataError, RegistryError) as error:
            self._log.warning("cannot register", bookie=self._info.bookie_id, why=str(error))
            record = None
        # The record counts only if this session owns it: one that another session left would end
        # with that session.
        if record is None or record.stat.owner != session_id or metadata.session_id != session_id:
            await trio.sleep(_RETRY_S)
            self.look_again()
            return False
        if not self.registered or readonly != self.readonly:
            self._log.info("registered", bookie=self._info.bookie_id, readonly=readonly)
        self._session_id, self.readonly = session_id, readonly
        return True

    def _is_of_last_process(self, announced: BookieInfo) -> bool:
        """Return True if both parts of the proof hold: the mark, and the address."""
        mark = announced.properties.get(_MARK, "")
        here = (announced.host, announced.port) == (self._info.host, self._info.port)
        return bool(mark) and mark == self._mark_before and here

    async def _remove_stale(self) -> None:
        """Delete the record that the last process on these directories could not remove."""
        for read_only in (False, True):
            path = self._paths.registration(self._info.bookie_id, read_only=read_only)
            record = await self._metadata.get(path)
            if record is None or record.stat.owner == self._metadata.session_id:
                continue
            announced = BookieInfo.decode(self._info.bookie_id, record.value)
            if not self._is_of_last_process(announced):
                self._log.warning(
                    "another process is registered as this bookie: it is waited for",
                    at=f"{announced.host}:{announced.port}",
                    record=path,
                )
                continue
            with suppress(NoRecordError, VersionConflictError):
                await self._metadata.delete(path, record.stat.version)
                self._log.info("removed the record of the process before us", record=path)
