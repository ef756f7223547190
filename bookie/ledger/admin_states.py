"""Admin states of bookies, as operators set them: read-only, retiring, leaving.

    <root>/underreplication/orders/<bookie id>    {"version": 1, "order": "leave", "since_ms": 17}

    read-only   the bookie serves its entries, and rejects new ones
    retire      as read-only, and no new ledger names the bookie, until all its ledgers are deleted
    leave       as retire, and its copies are moved to other bookies
    left        no ledger names the bookie any more, and its cookie is deleted; if it starts again,
                it rejects new entries until it is admitted again

A bookie follows its state while the record exists, across restarts.  Without contact to the
metadata store it follows the state it read last.  Apache's tools and bookies ignore these records.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import trio

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.store import (
    ANY,
    MetadataError,
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
    Watch,
)

_VERSION = 1
_RETRY_S = 1.0


class AdminState(Enum):
    READ_ONLY = "read-only"
    RETIRE = "retire"
    LEAVE = "leave"
    LEFT = "left"

    @property
    def goes(self) -> bool:
        """True if the bookie is not expected back, so no new ledger may name it."""
        return self is not AdminState.READ_ONLY


@dataclass(frozen=True, slots=True)
class AdminRecord:
    """The admin state of one bookie, and since when it has it."""

    kind: AdminState
    since_ms: int

    def encode(self) -> bytes:
        record = {"version": _VERSION, "order": self.kind.value, "since_ms": self.since_ms}
        return json.dumps(record).encode()

    @classmethod
    def decode(cls, value: bytes) -> "AdminRecord":
        try:
            record = json.loads(value)
            if record["version"] != _VERSION:
                raise MalformedRecordError(
                    "the admin state was written by a newer Daybook: it has version"
                    f" {record['version']}"
                )
            return cls(AdminState(record["order"]), int(record["since_ms"]))
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise MalformedRecordError(
                f"the admin state of the bookie cannot be parsed: {value[:200]!r}"
            ) from error


class AdminStates:
    """The admin states of all bookies of one cluster."""

    def __init__(self, store: MetadataStore, paths: LedgerPaths) -> None:
        self._store = store
        self._root = f"{paths.underreplication}/orders"

    async def read(self, bookie: BookieId, watch: Watch | None = None) -> AdminRecord | None:
        record = await self._store.get(f"{self._root}/{bookie}", watch)
        return None if record is None else AdminRecord.decode(record.value)

    async def list(self, watch: Watch | None = None) -> dict[BookieId, AdminRecord]:
        """Return all states; `watch` is called when they change."""
        if watch is not None and await self._store.get(self._root) is None:
            await self._ensure_root()  # A watch needs a record to lie on.
        orders: dict[BookieId, AdminRecord] = {}
        for name in await self._store.get_children(self._root, watch) or []:
            try:
                order = await self.read(BookieId(name), watch)
            except MalformedRecordError:
                order = AdminRecord(AdminState.READ_ONLY, 0)  # as the bookie reads it, too
            if order is not None:
                orders[BookieId(name)] = order
        return orders

    async def leaving(self) -> set[BookieId]:
        """Return the bookies that no new ledger may name."""
        return {bookie for bookie, order in (await self.list()).items() if order.kind.goes}

    async def give(self, bookie: BookieId, order: AdminRecord) -> None:
        """Set the state of the bookie, whatever it was before."""
        path = f"{self._root}/{bookie}"
        while True:
            try:
                if await self._store.get(path) is None:
                    await self._store.create(path, order.encode(), make_parents=True)
                else:
                    await self._store.set(path, order.encode(), ANY)
            except (RecordExistsError, NoRecordError, OutcomeUnknownError):
                continue
            return

    async def withdraw(self, bookie: BookieId) -> None:
        """Delete the state of the bookie, if it has one."""
        while True:
            try:
                await self._store.delete(f"{self._root}/{bookie}", ANY)
            except OutcomeUnknownError:
                continue
            except NoRecordError:
                return
            return

    async def _ensure_root(self) -> None:
        try:
            await self._store.create(self._root, b"", make_parents=True)
        except (RecordExistsError, OutcomeUnknownError):
            return  # The next read of the caller shows whether it is there.

    async def follow(
        self,
        bookie: BookieId,
        hold: Callable[[bool], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Call `hold` with True while the bookie has to reject new entries; for use by that bookie.

        The task counts as started after the first call.  A record that does not parse holds the
        bookie as well: an operator wanted something.
        """
        started = False
        while True:
            changed = trio.Event()
            try:
                held = await self.read(bookie, changed.set) is not None
            except MalformedRecordError:
                held = True
            except MetadataError:
                await trio.sleep(_RETRY_S)
                continue
            hold(held)
            if not started:
                started = True
                task_status.started()
            await changed.wait()
