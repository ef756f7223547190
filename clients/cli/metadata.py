"""Shared by the commands that read ZooKeeper directly: a session, and checks of the ledgers."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
import trio

from daybook.bookie.errors import (
    ForeignInstanceError,
    LayoutError,
    LedgerError,
    ReadUnknownError,
    RegistryError,
)
from daybook.bookie.registry.instance import check_binding, read_binding, root_instance_id
from daybook.bookie.registry.paths import LedgerPaths
from daybook.clients.cli.chosen import context_note
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import other_instance_allowed
from daybook.clients.cli.progress import Waiting, report_waiting
from daybook.clients.cli.run import run_async
from daybook.clients.cli.zookeeper_access import remedy_for, zookeeper_access
from daybook.wire.errors import WireError
from daybook.wire.messages.bookie import Status
from daybook.wire.metadata.store import (
    MetadataError,
    MetadataStore,
    NoChrootError,
    NoContactError,
    SessionState,
    StoreUnavailableError,
    UnusableAccessError,
)
from daybook.wire.metadata.zookeeper import open_zookeeper

T = TypeVar("T")
_SESSION_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 5.0
_REQUEST_TIMEOUT_S = 10.0


def run_on_ledgers(
    zookeeper: str,
    root: str,
    work: Callable[[MetadataStore], Awaitable[T]],
    *,
    writes: bool = False,
) -> T:
    """Run `work` with a store, for a command on the ledgers below a root.

    If the topics in this ZooKeeper are bound to other ledgers, a command that only reads warns, and
    a command that writes is refused unless the user gave --other-instance.
    """

    async def compared(store: MetadataStore) -> T:
        await _compare(store, zookeeper, root, writes=writes)
        return await work(store)

    return run_with_store(zookeeper, compared)


async def _compare(store: MetadataStore, zookeeper: str, root: str, *, writes: bool) -> None:
    bound = await read_binding(store)
    if bound is None:
        return
    paths = LedgerPaths(root)
    try:
        found = await root_instance_id(store, paths)
        if found is None:
            return  # There are no ledgers; the command itself reports that.
    except LayoutError:
        found = None  # The layout is that of an old BookKeeper, so it is not the bound instance.
    try:
        check_binding(bound, found, f"{zookeeper} below {root}")
    except ForeignInstanceError as error:
        if not writes:
            click.echo(f"Warning: {error}.", err=True)
        elif not other_instance_allowed():
            raise UserError(
                f"Nothing was changed: {error}. If you mean these ledgers, and no topics are"
                " kept in them, run the command with --other-instance."
            ) from error


def run_with_store(zookeeper: str, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Run `work` in a new session; errors become sentences."""
    access = zookeeper_access(zookeeper)

    async def run() -> T:
        contact = _Contact(zookeeper)
        async with (
            report_waiting(contact.waits),
            open_zookeeper(
                zookeeper,
                session_timeout_s=_SESSION_TIMEOUT_S,
                request_timeout_s=_REQUEST_TIMEOUT_S,
                connect_timeout_s=_CONNECT_TIMEOUT_S,
                access=access,
            ) as store,
        ):
            contact.store = store
            try:
                return await work(store)
            finally:
                contact.needed = False  # closing the session is no wait to report

    return run_async(run, lambda error: _say(error, zookeeper))


class _Contact:
    """Tracks whether the command waits for ZooKeeper, and for how long."""

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
        case NoChrootError() | UnusableAccessError():
            return f"{error}."
        case StoreUnavailableError():
            why = f" ({error.why})" if isinstance(error, NoContactError) and error.why else ""
            if remedy := remedy_for(error):
                return (
                    f"No ZooKeeper answers at {zookeeper}{why}. {remedy} Or say where yours is with"
                    f" --zookeeper or DAYBOOK_ZOOKEEPER.{context_note(zookeeper)}"
                )
            return (
                f"No ZooKeeper answers at {zookeeper}{why}: start a cluster with"
                " `daybook standalone` (`daybook local start zookeeper` if only ZooKeeper is down),"
                " or say where yours is with --zookeeper or DAYBOOK_ZOOKEEPER."
                f"{context_note(zookeeper)}"
            )
        case LayoutError():
            return f"{error}: say where ledgers are with --ledgers-root."
        case ReadUnknownError() if Status.UNAUTHORIZED.name in str(error):
            return (
                f"{error}: it demands TLS or credentials of its clients, so give --bookie-tls, or"
                " --bookie-user and --bookie-password-file."
            )
        case ReadUnknownError():
            return f"{error}: `daybook bookies list` shows which bookies are away."
        case LedgerError() | RegistryError() | MetadataError() | WireError() | ValueError():
            return f"{error}."
        case _:
            return None
