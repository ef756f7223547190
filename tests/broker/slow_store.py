"""A metadata store that is slow to write cursor records: a write that was begun is done later."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from daybook.managed_ledger.position import Position
from tests.harness.fake_log import FakeCursor, FakeLog


class SlowStore:
    """A store whose writes wait for `gate`, and are carried out even if their caller is gone.

    A real log does the same: see `Cursors.open`, and `Cursor.reset`.
    """

    def __init__(self, log: FakeLog, nursery: trio.Nursery) -> None:
        self.gate = trio.Event()
        self.asked = 0
        self._nursery = nursery
        self._open, self._delete = log.open_cursor, log.delete_cursor
        log.open_cursor = self._open_slowly  # type: ignore[method-assign]
        log.delete_cursor = self._delete_slowly  # type: ignore[method-assign]

    async def _open_slowly(
        self,
        name: str,
        *,
        initial: Position,
        properties: Mapping[str, str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> FakeCursor:
        found: list[FakeCursor] = []

        async def write() -> None:
            await self.gate.wait()
            found.append(
                await self._open(name, initial=initial, properties=properties, numbers=numbers)
            )

        await self._write(write)
        return found[0]

    async def _delete_slowly(self, name: str) -> None:
        async def write() -> None:
            await self.gate.wait()
            await self._delete(name)

        await self._write(write)

    async def _write(self, write: Callable[[], Awaitable[None]]) -> None:
        self.asked += 1
        done = trio.Event()

        async def run() -> None:
            await write()
            done.set()

        self._nursery.start_soon(run)
        await done.wait()


def hold_resets(cursor: FakeCursor) -> trio.Event:
    """Hold resets: they count in memory at once, and are durable when the event is set."""
    gate, reset = trio.Event(), cursor.reset

    async def slow(*args: Any) -> None:
        await reset(*args)
        await gate.wait()

    cursor.reset = slow  # type: ignore[method-assign,assignment]
    return gate
