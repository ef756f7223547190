"""The durable cursors of one log."""

from collections.abc import Mapping
from typing import Protocol

import trio

from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.cursor import Cursor, Log, recover_cursor
from daybook.managed_ledger.errors import FencedError, ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.records import check_cursor_name
from daybook.wire.metadata.store import MetadataError, RecordExistsError
from daybook.wire.topics import url_encode

_CLOSED_AT_ONCE = 32


class Owner(Log, Protocol):
    def check(self) -> None:
        """Raise if the log is of no use any more."""
        ...


class Cursors:
    """`by_name`: those that are open; they are run in the log's nursery.

    What was begun goes on if whoever asked for it stops waiting.
    """

    def __init__(self, log: Owner) -> None:
        self.by_name: dict[str, Cursor] = {}
        self._new: Cursor | None = None  # being created
        self._log = log
        self._lock = trio.Lock()  # one is created, or deleted, at a time

    def held_from(self) -> list[Position]:
        """What lies behind any of these must be kept."""
        new = () if self._new is None else (self._new,)
        return [cursor.held_from for cursor in (*self.by_name.values(), *new)]

    @property
    def writers(self) -> list[LedgerWriter]:
        """Of the ledgers that they write to."""
        writers = [cursor.writer for cursor in self.by_name.values()]
        return [writer for writer in writers if writer is not None]

    async def open(self, name: str, initial: Position, properties: Mapping[str, str]) -> Cursor:
        """The cursor of that name; a new one begins behind `initial`."""
        self._log.check()
        check_cursor_name(name)
        return await self._log.context.to_the_end(lambda: self._open(name, initial, properties))

    async def _open(self, name: str, initial: Position, properties: Mapping[str, str]) -> Cursor:
        async with self._lock:
            cursor = self.by_name.get(name)
            if cursor is None:
                cursor = await self._create(name, initial, properties)
                self.adopt(cursor)
            return cursor

    async def _create(self, name: str, initial: Position, properties: Mapping[str, str]) -> Cursor:
        cursor = self._new = Cursor(self._log, name, self._log.clip(initial), durable=True)
        try:
            await cursor.create(properties)
        except FencedError as error:
            self._log.lost(str(error))
            raise
        except RecordExistsError:  # Of a creation whose outcome was not known.
            return await recover_cursor(self._log, url_encode(name))
        finally:
            self._new = None
        return cursor

    def adopt(self, cursor: Cursor) -> None:
        """A cursor that was created or recovered belongs to the log from here on."""
        self.by_name[cursor.name] = cursor
        self._log.context.nursery.start_soon(cursor.run)

    async def delete(self, name: str) -> None:
        self._log.check()
        await self._log.context.to_the_end(lambda: self._delete(name))

    async def _delete(self, name: str) -> None:
        async with self._lock:
            cursor = self.by_name.get(name)
            if cursor is None:
                return
            try:
                await cursor.delete()
            except FencedError as error:
                self._log.lost(str(error))
                raise
            del self.by_name[name]

    async def close(self) -> None:
        """Store what all of them know.  The first error, if there is one, when all have tried."""
        errors: list[Exception] = []
        limiter = trio.CapacityLimiter(_CLOSED_AT_ONCE)

        async def close(cursor: Cursor) -> None:
            async with limiter:
                try:
                    await cursor.close()
                except (ManagedLedgerError, MetadataError) as error:
                    errors.append(error)

        async def close_all() -> None:
            async with trio.open_nursery() as nursery:
                for cursor in list(self.by_name.values()):
                    nursery.start_soon(close, cursor)

        await self._log.context.to_the_end(close_all)
        for error in errors:
            if isinstance(error, FencedError):
                self._log.lost(str(error))
        if errors:
            raise errors[0]

    def abandon(self, error: ManagedLedgerError) -> None:
        for cursor in self.by_name.values():
            cursor.abandon(error)
