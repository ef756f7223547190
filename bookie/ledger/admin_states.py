"""What bookies are asked to do: take no entries, leave the cluster.

    <root>/underreplication/orders/<bookie id>    {"version": 1, "order": "leave", "since_ms": 17}

    read-only   it serves what it has, and takes no new entries
    retire      the same, and no new ledger names it: it waits until all that it has is deleted
    leave       the same, and its copies are moved to others
    left        nothing names it any more, and its cookie is gone; should it start again, it takes
                nothing until it is taken back

A bookie follows its order as long as the record is there, across restarts; without contact to the
metadata store, the one that it heard last.  Apache's tools do not look here, and its bookies do not
follow.
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
        """The bookie is not meant to come back by itself: nothing new is to name it."""
        return self is not AdminState.READ_ONLY


@dataclass(frozen=True, slots=True)
class AdminRecord:
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
                raise MalformedRecordError(f"an order of version {record['version']}")
            return cls(AdminState(record["order"]), int(record["since_ms"]))
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise MalformedRecordError(f"an order that does not parse: {value[:200]!r}") from error


class AdminStates:
    def __init__(self, store: MetadataStore, paths: LedgerPaths) -> None:
        self._store = store
        self._root = f"{paths.underreplication}/orders"

    async def read(self, bookie: BookieId, watch: Watch | None = None) -> AdminRecord | None:
        record = await self._store.get(f"{self._root}/{bookie}", watch)
        return None if record is None else AdminRecord.decode(record.value)

    async def list(self, watch: Watch | None = None) -> dict[BookieId, AdminRecord]:
        """All orders; `watch` is told when there are others."""
        if watch is not None and await self._store.get(self._root) is None:
            await self._ensure_root()  # There has to be something to watch.
        orders: dict[BookieId, AdminRecord] = {}
        for name in await self._store.get_children(self._root, watch) or []:
            try:
                order = await self.read(BookieId(name), watch)
            except MalformedRecordError:
                order = AdminRecord(AdminState.READ_ONLY, 0)  # as the bookie itself takes it
            if order is not None:
                orders[BookieId(name)] = order
        return orders

    async def leaving(self) -> set[BookieId]:
        """Those that no new ledger is to name."""
        return {bookie for bookie, order in (await self.list()).items() if order.kind.goes}

    async def give(self, bookie: BookieId, order: AdminRecord) -> None:
        """In place of the one that it has."""
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
            return  # The caller's next read shows it.

    async def follow(
        self,
        bookie: BookieId,
        hold: Callable[[bool], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """For a bookie: call `hold` with whether it must take no entries; started when it knows.

        An order that does not parse is one: somebody meant something.
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
