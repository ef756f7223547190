"""The table view on asyncio: see `clients.python.table_view`.

The table changes in turns of the event loop only, so take `dict(view)` before you iterate with
`await`s.
"""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from daybook.clients.python import table_view as trio_table_view
from daybook.clients.python.guest import Guest
from daybook.clients.python.messages import ValueT
from daybook.clients.python.portal import like
from daybook.clients.python.table_view import Listener


class TableView(Mapping[str, ValueT]):
    """One instance per view; `Client.table_view` makes it."""

    def __init__(self, guest: Guest, view: trio_table_view.TableView[ValueT]) -> None:
        self._guest = guest
        self._view = view
        self.topic = view.topic

    def __repr__(self) -> str:
        return repr(self._view)

    def __getitem__(self, key: str) -> ValueT:
        return self._view[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._view)

    def __len__(self) -> int:
        return len(self._view)

    def __contains__(self, key: object) -> bool:
        return key in self._view

    @property
    def unreadable(self) -> int:
        return self._view.unreadable

    @like(trio_table_view.TableView.snapshot)
    def snapshot(self) -> dict[str, ValueT]:
        return self._view.snapshot()

    @like(trio_table_view.TableView.listen)
    def listen(self, listener: Listener[ValueT], *, existing: bool = False) -> None:
        self._guest.check()
        self._view.listen(listener, existing=existing)

    @like(trio_table_view.TableView.stop_listening)
    def stop_listening(self, listener: Listener[ValueT]) -> None:
        self._view.stop_listening(listener)

    @like(trio_table_view.TableView.wait_caught_up)
    async def wait_caught_up(self) -> None:
        await self._guest.call(self._view.wait_caught_up)

    @like(trio_table_view.TableView.aclose)
    async def aclose(self) -> None:
        await self._guest.call(self._view.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
