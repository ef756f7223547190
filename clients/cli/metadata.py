"""What the commands share that look into ZooKeeper themselves, past the brokers."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookie.errors import LayoutError, LedgerError, ReadUnknownError, RegistryError
from clients.cli.run import run_async
from wire.errors import WireError
from wire.metadata.store import MetadataError, MetadataStore, StoreUnavailableError
from wire.metadata.zookeeper import open_zookeeper

T = TypeVar("T")
_SESSION_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 5.0


def run_with_store(zookeeper: str, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Do `work` in a session of its own; errors become sentences."""

    async def run() -> T:
        async with open_zookeeper(
            zookeeper, session_timeout_s=_SESSION_TIMEOUT_S, connect_timeout_s=_CONNECT_TIMEOUT_S
        ) as store:
            return await work(store)

    return run_async(run, lambda error: _say(error, zookeeper))


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
