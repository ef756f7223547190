"""Which new formats may be written: those that every broker of the cluster can read.

Each guard announces the formats that its broker reads.  A format is allowed while all guards
announce it, so a rolling upgrade begins to write a format when the last old broker has left.  The
answer may become False again: an older broker may join later, in a rollback.  The older
broker finds records written before then, so each format has to define how an older reader handles
it (`docs/formats.md` lists the announced formats).

A registration without a guard and without an incarnation is that of a Pulsar broker, which
announces nothing.  It is ignored here: a format is only announced if Pulsar can handle it.
"""

from collections.abc import Collection, Iterable

import trio
from msgspec import UnsetType

from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import GuardRecord
from daybook.broker.ownership.membership import ensure, members
from daybook.managed_ledger.cursor_ledger import CHANGE_2
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.store import MetadataError, MetadataStore, SessionState, Watch

SINKS = "sinks-1"  # committed batches of sinks are applied (`managed_ledger.sinks`)
READABLE = (CHANGE_2, SINKS)  # the formats that this version of Daybook announces

_RETRY_S = 0.2


class Formats:
    """Follows the guards, and tells whether a format may be written."""

    def __init__(self, store: MetadataStore, readable: Iterable[str] = READABLE) -> None:
        self.readable = tuple(readable)
        self._store = store
        self._common: Collection[str] = ()  # no format is allowed before the guards are known
        self._look = trio.Event()

    def allows(self, name: str) -> bool:
        """Return True if every registered broker of ours announces the format.

        Callers ask again before each write.  The answer is False while the guards are unknown:
        before they are first read, and from the end of a session until they are read in the next
        one.  While the session is suspended, the last answer holds, as it does until a watch has
        fired.  Topics are served on the same terms, and an answer that changed back and forth would
        cost each cursor a new ledger.
        """
        return name in self._common

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the guards until cancelled.  Reports started once they were read."""
        self._store.add_session_listener(self._session_changed)
        try:
            while True:
                self._look = trio.Event()
                try:
                    self._common = await self._read(self._look.set)
                except MetadataError:
                    await trio.sleep(_RETRY_S)
                    if self._store.session_state is SessionState.CONNECTED:
                        continue
                else:
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                await self._look.wait()
        finally:
            self._store.remove_session_listener(self._session_changed)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._common = ()
        elif state is SessionState.CONNECTED:
            self._look.set()

    async def _read(self, watch: Watch) -> frozenset[str]:
        """Return the formats that all guards announce; `watch` is called at the next change."""
        await ensure(self._store, records.GUARDS)
        await ensure(self._store, records.BROKERS)
        names = await self._store.get_children(records.GUARDS, watch) or []
        registered = await members(self._store, watch)
        common, guarded = frozenset(self.readable), set[int]()
        for name in names:
            record = await self._store.get(f"{records.GUARDS}/{name}")
            if record is not None:
                guarded.add(record.stat.owner)
                common &= _announced(record.value)
        # A guard may have been deleted by hand.  Then it is unknown what its broker can read.
        if any(m.record.incarnation is not None and m.session not in guarded for m in registered):
            return frozenset()
        return common


def _announced(value: bytes) -> frozenset[str]:
    try:
        formats = records.decode(GuardRecord, value).formats
    except MalformedError:
        return frozenset()
    return frozenset() if isinstance(formats, UnsetType) else frozenset(formats)
