"""The durable cursors of one log."""

from collections.abc import Mapping
from typing import Protocol

import trio

from managed_ledger.cursor import Cursor, Log, recover_cursor
from managed_ledger.errors import FencedError, ManagedLedgerError
from managed_ledger.position import Position
from wire.metadata.store import MetadataError, RecordExistsError
from wire.topics import url_encode


class Owner(Log, Protocol):
    def check(self) -> None:
        """Raise if the log is of no use any more."""
        ...


class Cursors:
    """`by_name`: those that are open; they are run in the log's nursery."""

    def __init__(self, log: Owner) -> None:
        self.by_name: dict[str, Cursor] = {}
        self._log = log
        self._lock = trio.Lock()  # one is created, or deleted, at a time

    async def open(self, name: str, initial: Position, properties: Mapping[str, str]) -> Cursor:
        """The cursor of that name; a new one begins behind `initial`."""
        async with self._lock:
            self._log.check()
            cursor = self.by_name.get(name)
            if cursor is None:
                cursor = await self._new(name, initial, properties)
                self._log.check()
                self.adopt(cursor)
            return cursor

    async def _new(self, name: str, initial: Position, properties: Mapping[str, str]) -> Cursor:
        cursor = Cursor(self._log, name, self.clip(initial), durable=True)
        try:
            await cursor.create(properties)
        except FencedError as error:
            self._log.lost(str(error))
            raise
        except RecordExistsError:  # Of a creation that was given up halfway.
            return await recover_cursor(self._log, url_encode(name))
        return cursor

    def adopt(self, cursor: Cursor) -> None:
        """A cursor that was created or recovered belongs to the log from here on."""
        self.by_name[cursor.name] = cursor
        self._log.context.nursery.start_soon(cursor.run)

    def clip(self, mark_delete: Position) -> Position:
        """The nearest position where a cursor may begin."""
        log = self._log
        return max(log.ledgers.floor(min(mark_delete, log.last_confirmed)), log.before_first)

    async def delete(self, name: str) -> None:
        async with self._lock:
            self._log.check()
            cursor = self.by_name.get(name)
            if cursor is None:
                return
            try:
                await cursor.delete()
            except FencedError as error:
                self._log.lost(str(error))
                raise
            del self.by_name[name]

    async def close(self) -> Exception | None:
        """Store what all of them know; the first error, if there was one."""
        first: Exception | None = None
        for cursor in list(self.by_name.values()):
            try:
                await cursor.close()
            except (ManagedLedgerError, MetadataError) as error:
                first = first or error
        if isinstance(first, FencedError):
            self._log.lost(str(first))
        return first

    def abandon(self, error: ManagedLedgerError) -> None:
        for cursor in self.by_name.values():
            cursor.abandon(error)
