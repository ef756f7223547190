"""The parts of kazoo that `zookeeper` uses, with types; kazoo itself has none.

A client has one thread, that of its connection, and calls back in it: answers, watches and changes
of state come in the order in which they happened.  A callback must not block, and must not call
kazoo.
"""

import logging
import selectors
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.handlers.utils import (
    selector_select,  # pyright: ignore[reportUnknownVariableType]
)
from kazoo.protocol.states import EventType, KazooState
from kazoo.retry import KazooRetry

from daybook.wire.metadata.kazoo_connection import Waker, hasten
from daybook.wire.metadata.store import (
    MetadataError,
    NoRecordError,
    NotEmptyError,
    RecordExistsError,
    SessionState,
    Stat,
    VersionConflictError,
)

T_co = TypeVar("T_co", covariant=True)

# kazoo adds up to 40 % to a delay: ZooKeeper is tried again at least every 0.3 s.
RETRY_DELAY_S = 0.05
_RETRY_DELAY_MAX_S = 0.2
_RETRY_JITTER = 0.4

_REFUSALS: dict[type[Exception], type[MetadataError]] = {
    exceptions.NoNodeError: NoRecordError,
    exceptions.NodeExistsError: RecordExistsError,
    exceptions.BadVersionError: VersionConflictError,
    exceptions.NotEmptyError: NotEmptyError,
    exceptions.NoChildrenForEphemeralsError: MetadataError,
    exceptions.BadArgumentsError: MetadataError,
    exceptions.NoAuthError: MetadataError,
}
_STATES: dict[object, SessionState] = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}


class ZnodeStat(Protocol):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    ephemeralOwner: int  # noqa: N815  ZooKeeper's name
    numChildren: int  # noqa: N815


class _Callback(Protocol):
    @property
    def func(self) -> Callable[..., None]: ...

    @property
    def args(self) -> tuple[object, ...]: ...


class WatchedEvent(Protocol):
    type: str


class AsyncResult(Protocol[T_co]):
    @property
    def exception(self) -> Exception | None: ...

    @property
    def value(self) -> T_co: ...

    def rawlink(self, callback: "Callable[[AsyncResult[T_co]], None]") -> None: ...


EventWatch = Callable[[WatchedEvent], None]
TransactionResult = Exception | ZnodeStat | str | bool


class Transaction(Protocol):
    def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> None: ...
    def set_data(self, path: str, value: bytes, version: int) -> None: ...
    def delete(self, path: str, version: int) -> None: ...
    def check(self, path: str, version: int) -> None: ...
    def commit_async(self) -> AsyncResult[list[TransactionResult]]: ...


class Kazoo(Protocol):
    @property
    def client_id(self) -> tuple[int, bytes] | None: ...

    def start_async(self) -> object: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def get_async(
        self, path: str, watch: EventWatch | None
    ) -> AsyncResult[tuple[bytes, ZnodeStat]]: ...
    def exists_async(
        self, path: str, watch: EventWatch | None
    ) -> AsyncResult[ZnodeStat | None]: ...
    def get_children_async(self, path: str, watch: EventWatch | None) -> AsyncResult[list[str]]: ...
    def create_async(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> AsyncResult[str]: ...
    def set_async(self, path: str, value: bytes, version: int) -> AsyncResult[ZnodeStat]: ...
    def delete_async(self, path: str, version: int) -> AsyncResult[bool]: ...
    def sync_async(self, path: str) -> AsyncResult[str]: ...
    def transaction(self) -> Transaction: ...


def new_client(
    hosts: str, session_timeout_s: float, state_changed: Callable[[Kazoo, SessionState, int], None]
) -> Kazoo:
    """Return a client that was not started yet.

    The client tries to connect forever.  In its own thread it calls `state_changed` with the state
    and the session id (0 if there is none).
    """
    # Listeners learn everything that kazoo logs about its attempts to connect.
    silent = logging.Logger("kazoo", level=logging.CRITICAL + 1)
    retry: Any = KazooRetry(
        max_tries=-1,
        delay=RETRY_DELAY_S,
        max_delay=_RETRY_DELAY_MAX_S,
        max_jitter=_RETRY_JITTER,
    )
    # An attempt can fail before it has a socket: looking up the host opens files.  Without this
    # kazoo would take that for the end of the session, which may be well.
    retry.retry_exceptions = (*retry.retry_exceptions, OSError)
    client: Any = KazooClient(
        hosts,
        timeout=session_timeout_s,
        connection_retry=retry,
        handler=_InConnectionThread(),
        logger=silent,
    )
    kazoo = cast("Kazoo", client)

    def listener(state: object) -> None:
        # The connection's own thread calls, so the id cannot change meanwhile.
        client_id = kazoo.client_id
        state_changed(kazoo, _STATES[state], 0 if client_id is None else client_id[0])

    client.add_listener(listener)
    hasten(client)
    _refuse_nonsense(client)
    return kazoo


def _refuse_nonsense(client: Any) -> None:  # noqa: ANN401
    """Let kazoo take an answer that ZooKeeper never gives for a lost connection.

    Another server may listen at the address, for good or until ZooKeeper is back.  Without this,
    kazoo would end its thread with a traceback, and keep the session id that it read from the
    nonsense.
    """
    connection = client._connection  # noqa: SLF001
    connect = connection._connect  # noqa: SLF001

    def connect_or_drop(host: object, address: object, port: object) -> object:
        session = client._session_id, client._session_passwd  # noqa: SLF001
        try:
            return connect(host, address, port)
        except (exceptions.KazooException, KazooTimeoutError, OSError):
            raise
        except Exception as error:
            client._session_id, client._session_passwd = session  # noqa: SLF001
            raise exceptions.ConnectionDropped(f"not an answer of ZooKeeper: {error!r}") from None

    connection._connect = connect_or_drop  # noqa: SLF001


class _InConnectionThread(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Calls back immediately, in the thread of the connection.

    kazoo itself would use a queue and a thread for each kind of call.  A handler that does not run
    leaves the delivery of answers to the thread that has them.
    """

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """There is nothing to stop."""

    def dispatch_callback(self, callback: "_Callback") -> None:
        callback.func(*callback.args)

    def create_socket_pair(self) -> Any:  # noqa: ANN401
        """Return the sockets by which other threads wake that of the connection."""
        read, write = super().create_socket_pair()
        return read, Waker(write)

    def select(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Wait with poll.

        kazoo would use epoll, which needs a descriptor for each call.  A process without free
        descriptors would then drop a working connection, and lose its session.
        """
        return _select(*args, **kwargs, selectors_module=_Poll)


_select = cast("Callable[..., Any]", selector_select)


class _Poll:
    """The part of the module `selectors` that kazoo's select uses."""

    EVENT_READ = selectors.EVENT_READ
    EVENT_WRITE = selectors.EVENT_WRITE
    DefaultSelector = selectors.PollSelector


def start_client(kazoo: Kazoo) -> OSError | None:
    """Begin to connect.  If that fails, return the reason; the client cannot be used then."""
    try:
        kazoo.start_async()
    except OSError as error:  # No descriptor is left for what wakes its thread.
        reason = error
    except RuntimeError as error:  # No thread can be started.
        reason = OSError(str(error))
    else:
        return None
    kazoo.close()
    return reason


def stop_client(kazoo: Kazoo) -> None:
    """End the session.  This blocks, for long if ZooKeeper does not answer."""
    try:
        kazoo.stop()
        kazoo.close()
    except (exceptions.KazooException, KazooTimeoutError, OSError):
        return  # ZooKeeper does not learn of the end now, but when the session times out.


def is_contact_lost(event: WatchedEvent) -> bool:
    """Return True if the connection, and with it the watch, was lost; ZooKeeper sent no event."""
    return event.type == str(EventType.NONE)


def is_connection_loss(error: Exception | None) -> bool:
    """Return True if the connection broke while the request was under way."""
    return isinstance(error, exceptions.ConnectionLoss)


def is_rolled_back(result: TransactionResult) -> bool:
    """Return True if the operation succeeded and a later one of the multi failed."""
    return isinstance(result, exceptions.RolledBackError)


def refusal(error: Exception) -> MetadataError | None:
    """Return ZooKeeper's refusal as our error; None if the error does not say what happened."""
    for theirs, ours in _REFUSALS.items():
        if isinstance(error, theirs):
            return ours(str(error) or theirs.__name__)
    return None


def to_stat(stat: ZnodeStat) -> Stat:
    return Stat(
        version=stat.version,
        created_txid=stat.czxid,
        modified_txid=stat.mzxid,
        created_ms=stat.ctime,
        modified_ms=stat.mtime,
        owner=stat.ephemeralOwner,
        children_count=stat.numChildren,
        children_version=stat.cversion,
    )
