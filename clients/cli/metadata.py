"""What the commands share that look into ZooKeeper themselves, past the brokers."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from bookie.errors import LayoutError, LedgerError, ReadUnknownError, RegistryError
from clients.cli.progress import Waiting, telling
from clients.cli.run import run_async
from wire.errors import WireError
from wire.metadata.store import (
    MetadataError,
    MetadataStore,
    SessionState,
    StoreUnavailableError,
)
from wire.metadata.zookeeper import open_zookeeper

T = TypeVar("T")
_SESSION_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 5.0
_REQUEST_TIMEOUT_S = 10.0


def run_with_store(zookeeper: str, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Do `work` in a session of its own; errors become sentences."""

    async def run() -> T:
        contact = _Contact(zookeeper)
        async with (
            telling(contact.waits),
            open_zookeeper(
                zookeeper,
                session_timeout_s=_SESSION_TIMEOUT_S,
                request_timeout_s=_REQUEST_TIMEOUT_S,
                connect_timeout_s=_CONNECT_TIMEOUT_S,
            ) as store,
        ):
            contact.store = store
            try:
                return await work(store)
            finally:
                contact.needed = False

    return run_async(run, lambda error: _say(error, zookeeper))


class _Contact:
    """With ZooKeeper: whether the command waits for it, and how long it will."""

    def __init__(self, zookeeper: str) -> None:
        self.store: MetadataStore | None = None  # until there is a session
        self.needed = True
        self._what = f"ZooKeeper at {zookeeper}"
        self._until: float | None = trio.current_time() + _CONNECT_TIMEOUT_S

    def waits(self) -> Waiting | None:
        connected = self.store is not None and self.store.session_state is SessionState.CONNECTED
        if connected or not self.needed:
            self._until = None
            return None
        if self._until is None:
            self._until = trio.current_time() + _REQUEST_TIMEOUT_S
        return Waiting(self._what, self._until)


def _say(error: Exception, zookeeper: str) -> str | None:
    match error:
        case StoreUnavailableError():
            return (
                f"No ZooKeeper answers at {zookeeper}: start a cluster with `daybook standalone`"
                " (`daybook local start zookeeper` if it has only lost that), or say where yours is"
                " with --zookeeper."
            )
        case LayoutError():
            return f"{error}: say where ledgers are with --ledgers-root."
        case ReadUnknownError():
            return f"{error}: `daybook bookies list` shows which bookies are away."
        case LedgerError() | RegistryError() | MetadataError() | WireError() | ValueError():
            return f"{error}."
        case _:
            return None
