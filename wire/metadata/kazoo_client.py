"""The parts of kazoo that `zookeeper` uses, with types; kazoo itself has none.

A client has one thread, that of its connection, and calls back in it: answers, watches and changes
of state come in the order in which they happened.  A callback must not block, and must not call
kazoo.

A client counts as connected when it has proven its identity, not before.  So no request leaves over
a new connection ahead of that proof.
"""

import logging
import selectors
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic  # noqa: TID251  kazoo's thread has no other clock
from typing import Any, Protocol, TypeVar, cast

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.handlers.utils import (
    selector_select,  # pyright: ignore[reportUnknownVariableType]
)
from kazoo.protocol.paths import (
    _prefix_root,  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
)
from kazoo.protocol.serialization import Create, Sync
from kazoo.protocol.states import EventType, KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id

from daybook.wire.metadata.access import Credentials, PasswordFileError
from daybook.wire.metadata.acl import Acl, Grant
from daybook.wire.metadata.kazoo_answer import Answer, PathAnswer
from daybook.wire.metadata.kazoo_connection import Waker, hasten
from daybook.wire.metadata.store import (
    AccessDeniedError,
    MetadataError,
    NoRecordError,
    NotEmptyError,
    RecordExistsError,
    SessionState,
    Stat,
    VersionConflictError,
)
from daybook.wire.tls import explain

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
    exceptions.InvalidACLError: MetadataError,
    exceptions.NoAuthError: AccessDeniedError,
}
_EPHEMERAL, _SEQUENCE = 1, 2  # flags of a creation
_LISTS_KEPT = 64  # so many lists of rights are kept as kazoo has them
_RIGHTS = "rwcda"  # by the bits of ZooKeeper, from the lowest one
_TLS_READ_BYTES = 1 << 16
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


class _Id(Protocol):
    scheme: str
    id: str


class _Acl(Protocol):
    perms: int
    id: _Id


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
        self,
        path: str,
        value: bytes,
        acl: Sequence[object],
        *,
        ephemeral: bool = False,
        sequence: bool = False,
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
        self,
        path: str,
        value: bytes,
        acl: Sequence[object],
        *,
        ephemeral: bool = False,
        sequence: bool = False,
    ) -> AsyncResult[str]: ...
    def get_acls_async(self, path: str) -> "AsyncResult[tuple[Sequence[_Acl], ZnodeStat]]": ...
    def set_acls_async(self, path: str, acls: Sequence[object]) -> AsyncResult[ZnodeStat]: ...
    def set_async(self, path: str, value: bytes, version: int) -> AsyncResult[ZnodeStat]: ...
    def delete_async(self, path: str, version: int) -> AsyncResult[bool]: ...
    def sync_async(self, path: str) -> AsyncResult[str]: ...
    def transaction(self) -> Transaction: ...


@dataclass(frozen=True, slots=True)
class Entrance:
    """How a client enters ZooKeeper.  The connection's thread calls these before each attempt."""

    tls: Callable[[], ssl.SSLContext] | None = None
    credentials: Callable[[], Credentials | None] = field(default=lambda: None)
    # Told why an attempt has failed, in a sentence without a full stop.
    failed: Callable[[str], None] = field(default=lambda _: None)


def new_client(
    hosts: str,
    session_timeout_s: float,
    state_changed: Callable[[Kazoo, SessionState, int], None],
    entrance: Entrance | None = None,
) -> Kazoo:
    """Return a client that was not started yet.

    The client tries to connect forever.  In its own thread it calls `state_changed` with the state
    and the session id (0 if there is none).
    """
    entrance = entrance or Entrance()
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
        handler=_InConnectionThread(entrance.tls),
        logger=silent,
        use_ssl=entrance.tls is not None,
    )
    kazoo = cast("Kazoo", client)
    entering = _Entering(client, entrance)

    def tell(state: SessionState) -> None:
        # The connection's own thread calls, so the id cannot change meanwhile.
        client_id = kazoo.client_id
        state_changed(kazoo, state, 0 if client_id is None else client_id[0])

    def listener(state: object) -> None:
        if state is KazooState.CONNECTED:
            entering.connected = lambda: tell(SessionState.CONNECTED)
        else:
            tell(_STATES[state])

    client.add_listener(listener)
    requests = _PathRequests(client)
    client.create_async, client.sync_async = requests.create_async, requests.sync_async
    hasten(client)
    return kazoo


class _PathRequests:
    """The requests that are answered with a path, with one answer each.

    kazoo would make two answers and several functions for each, which are a cycle.
    """

    def __init__(self, client: Any) -> None:  # noqa: ANN401
        self._client = client

    def create_async(
        self,
        path: str,
        value: bytes,
        acl: Sequence[object],
        *,
        ephemeral: bool = False,
        sequence: bool = False,
    ) -> AsyncResult[str]:
        client = self._client
        answer = PathAnswer(client.unchroot)
        flags = _EPHEMERAL * ephemeral | _SEQUENCE * sequence
        full = _prefix_root(client.chroot, path, trailing=sequence)
        client._call(Create(full, value, acl, flags), answer)  # noqa: SLF001
        return answer

    def sync_async(self, path: str) -> AsyncResult[str]:
        client = self._client
        answer = PathAnswer(client.unchroot)
        client._call(Sync(_prefix_root(client.chroot, path)), answer)  # noqa: SLF001
        return answer


class _Entering:
    """Stands around kazoo's attempts to connect.

    * The client is told to be connected when kazoo has proven its identity.  kazoo itself says so
      before that.
    * An answer that ZooKeeper never gives counts as a lost connection.  Another server may listen
      at the address, for good or until ZooKeeper is back.  Without this, kazoo would end its thread
      with a traceback, and keep the session id that it read from the nonsense.
    * A refused identity counts as a lost connection, too: the session and its ephemeral records
      live, and the next attempt may succeed.
    """

    def __init__(self, client: Any, entrance: Entrance) -> None:  # noqa: ANN401
        self.connected: Callable[[], None] | None = None
        self._client = client
        self._entrance = entrance
        connection = client._connection  # noqa: SLF001
        self._connect = connection._connect  # noqa: SLF001
        connection._connect = self._enter  # noqa: SLF001

    def _enter(self, host: object, address: object, port: object) -> object:
        client, self.connected = self._client, None
        session = client._session_id, client._session_passwd  # noqa: SLF001
        try:
            self._show_identity()
            timeouts = self._connect(host, address, port)
        except exceptions.AuthFailedError:
            why = "ZooKeeper refuses the identity: check zookeeper_user and the password"
            self._entrance.failed(why)
            raise exceptions.ConnectionDropped(why) from None
        except exceptions.SessionExpiredError:
            raise
        except (exceptions.KazooException, KazooTimeoutError, OSError) as error:
            self._entrance.failed(str(error) if isinstance(error, _RefusedError) else "")
            raise
        except Exception as error:
            client._session_id, client._session_passwd = session  # noqa: SLF001
            self._entrance.failed("")
            raise exceptions.ConnectionDropped(f"not an answer of ZooKeeper: {error!r}") from None
        if self.connected is not None:
            self.connected()
        return timeouts

    def _show_identity(self) -> None:
        try:
            who = self._entrance.credentials()
        except PasswordFileError as error:
            raise _RefusedError(str(error)) from None
        shown: set[tuple[str, str]] = set()
        if who is not None:
            shown.add(("digest", f"{who.user}:{who.password}"))
        self._client.auth_data = shown


class _RefusedError(exceptions.ConnectionDropped):  # type: ignore[misc]  # kazoo has no types
    """An attempt to connect failed for a reason that people should know."""


class _TlsSocket:
    """A TLS socket as kazoo uses one.

    A TLS socket may be readable without a byte of data, and it may hold data while it is not
    readable.  kazoo waits for sockets, so both would let it wait in the wrong place.  Here bytes
    are decrypted before kazoo hears of them.
    """

    def __init__(self, tls: ssl.SSLSocket, host: str, peer: str) -> None:
        self._tls = tls
        self._host, self._peer = host, peer
        self._data = b""
        self._ended = False
        self._error: Exception | None = None

    def has_data(self) -> bool:
        """Decrypt what has arrived; return True if `recv` would not block."""
        if self._data or self._ended:
            return True
        try:
            self._data = self._tls.recv(_TLS_READ_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLError as error:
            # A server of TLS 1.3 refuses the certificate of a client after the handshake.
            why = explain(error, host=self._host, peer=self._peer)
            self._error = _RefusedError(f"TLS with ZooKeeper at {self._peer} has failed: {why}")
        except OSError as error:
            self._error = error
        self._ended = not self._data
        return True

    def recv(self, size: int) -> bytes:
        if not self.has_data():
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "no data")
        if self._error is not None:
            raise self._error
        found, self._data = self._data[:size], self._data[size:]
        return found

    def send(self, data: bytes) -> int:
        return self._tls.send(data)

    def fileno(self) -> int:
        return self._tls.fileno()

    def setblocking(self, flag: bool) -> None:
        self._tls.setblocking(bool(flag))

    def close(self) -> None:
        self._tls.close()


class _InConnectionThread(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Calls back immediately, in the thread of the connection.

    kazoo itself would use a queue and a thread for each kind of call.  A handler that does not run
    leaves the delivery of answers to the thread that has them.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        super().__init__()
        self._tls = tls

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """There is nothing to stop."""

    def async_result(self) -> Any:  # noqa: ANN401  kazoo takes it for its own
        return Answer()

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
        readers, *others = args
        tls = [each for each in readers if isinstance(each, _TlsSocket)]
        if not tls:
            return _select(*args, **kwargs, selectors_module=_Poll)
        return _select_tls(tls[0], readers, *others, **kwargs)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if self._tls is None:
            connect = cast("Any", super()).create_connection
            return connect(*args, **kwargs)
        return _connect_tls(self._tls(), kwargs["hostname"], kwargs["address"], kwargs["timeout"])


def _connect_tls(
    context: ssl.SSLContext, host: str, address: tuple[str, int], timeout_s: float
) -> _TlsSocket:
    """Return a connection after the handshake.  Raise _RefusedError or OSError."""
    plain, peer = socket.create_connection(address, timeout_s), f"{host}:{address[1]}"
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _TlsSocket(context.wrap_socket(plain, server_hostname=host), host, peer)
    except ssl.SSLError as error:
        plain.close()
        why = explain(error, host=host, peer=peer)
        raise _RefusedError(f"TLS with ZooKeeper at {peer} has failed: {why}") from None
    except OSError:
        plain.close()
        raise


def _select_tls(
    tls: _TlsSocket,
    readers: Sequence[object],
    writers: Sequence[object],
    errors: Sequence[object],
    timeout: float | None = None,
) -> tuple[list[object], list[object], list[object]]:
    """Wait like select, for data instead of bytes."""
    until = None if timeout is None else monotonic() + timeout
    while True:
        waiting = tls.has_data()
        left = 0.0 if waiting else None if until is None else max(until - monotonic(), 0.0)
        readable, writable, _ = _select(readers, writers, errors, left, selectors_module=_Poll)
        found = [each for each in readable if each is not tls or tls.has_data()]
        if waiting and tls not in found:
            found.append(tls)
        if found or writable or left == 0.0:
            return found, writable, []


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


@lru_cache(_LISTS_KEPT)
def to_kazoo_acl(acl: Acl) -> Sequence[object]:
    """Return a list of rights as kazoo's requests carry it."""
    result: list[object] = []
    for grant in acl:
        scheme, _, identity = grant.identity.partition(":")
        bits = sum(1 << _RIGHTS.index(right) for right in grant.rights)
        result.append(ACL(bits, Id(scheme, identity)))
    return tuple(result)


def from_kazoo_acl(acl: Sequence[_Acl]) -> Acl:
    def rights(bits: int) -> str:
        return "".join(right for right in "cdrwa" if bits >> _RIGHTS.index(right) & 1)

    return tuple(Grant(f"{each.id.scheme}:{each.id.id}", rights(each.perms)) for each in acl)


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
