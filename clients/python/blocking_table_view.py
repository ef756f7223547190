"""The table view without trio: see `clients.python.table_view`.

The table changes in the thread of the client.  A lookup takes no lock, and an iteration goes over
the keys as they were at its begin.
"""

from collections.abc import Iterator, Mapping

from daybook.clients.python import table_view as trio_table_view
from daybook.clients.python.messages import ValueT
from daybook.clients.python.portal import Closing, Portal, like
from daybook.clients.python.table_view import Listener


class TableView(Closing, Mapping[str, ValueT]):
    """One instance per view; `Client.table_view` makes it."""

    def __init__(self, portal: Portal, view: trio_table_view.TableView[ValueT]) -> None:
        self._portal = portal
        self._view = view
        self.topic = view.topic

    def __repr__(self) -> str:
        return repr(self._view)

    def __getitem__(self, key: str) -> ValueT:
        return self._view[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._view.snapshot())

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

        async def listen() -> None:
            self._view.listen(listener, existing=existing)

        self._portal.call(listen)

    @like(trio_table_view.TableView.stop_listening)
    def stop_listening(self, listener: Listener[ValueT]) -> None:

        async def stop() -> None:
            self._view.stop_listening(listener)

        self._portal.call(stop)

    @like(trio_table_view.TableView.wait_caught_up)
    def wait_caught_up(self) -> None:
        self._portal.call(self._view.wait_caught_up)

    def close(self) -> None:
        """Stop reading.  The view keeps what it has."""
        if not self._portal.closed:
            self._portal.call(self._view.aclose)
