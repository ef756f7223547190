"""The metadata store in memory: the reference for its contract, for tests and simulation.

    store = MemoryStore(clock)
    metadata = store.session("broker-1")     # a MetadataStore; one for each host
    await metadata.create("/a", b"")

One `MemoryStore` is the ensemble; a `MemorySession` is the view of one host.  Nothing runs by
itself and no time passes.  Tests cause faults by these calls:

    store.suspend() / resume()            no host reaches the store / all hosts do again
    session.suspend() / resume()          this host does not reach it / does again
    store.expire(session.session_id)      the store ends a session, reachable or not: its ephemeral
                                          records go at once; the host learns of it once in contact
    session.crash()                       the host is dead: nothing is sent or called any more; its
                                          session lives on until `store.expire`
    session.link.lose_next(applied=...)   a request is, or is not, carried out; no answer comes

A `Link` carries requests and notices.  The simulator replaces it, and draws delays and losses from
its seed: a write may be carried out after its caller was told that the outcome is unknown.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import trio

from daybook.wire.clock import WallClock
from daybook.wire.metadata import protection
from daybook.wire.metadata.acl import READ, Acl, may
from daybook.wire.metadata.protection import Protection
from daybook.wire.metadata.session import HostSession, create_with_parents
from daybook.wire.metadata.shared_sync import SharedSyncs
from daybook.wire.metadata.store import (
    Create,
    Delete,
    MetadataError,
    Operation,
    OutcomeUnknownError,
    Record,
    SessionState,
    Set,
    Stat,
    StoreUnavailableError,
    Watch,
)
from daybook.wire.metadata.tree import SessionExpiredError, Tree

T = TypeVar("T")


class NoAnswerError(Exception):
    """No answer will come; nobody knows whether the request was carried out."""


@dataclass(frozen=True, slots=True)
class Request:
    """The facts by which a link decides on the fate of a request."""

    host: str
    # The name of the method: get, get_children, create, set, delete, multi, sync, get_acl, set_acl.
    operation: str
    path: str  # the path of the first operation, for multi
    write: bool


class Link(Protocol):
    """Carries requests from one host to the store, and notices back."""

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        """Return when the answer has arrived; raise NoAnswerError if none will come.

        `execute` carries the request out.  It raises nothing but NoAnswerError, which is passed on.
        It is called once or never, perhaps long after the caller has gone.  The requests of a host
        are executed in the order in which they were made.
        """
        ...

    def notify(self, call: Callable[[], None]) -> None:
        """Call `call` on the host, now or later; all calls stay in order."""
        ...


class DirectLink:
    """Answers immediately, unless a test told it otherwise."""

    def __init__(self) -> None:
        self.delay_s = 0.0  # the delay of each request from now on, before it is carried out
        self._losses: list[tuple[str, str, bool]] = []

    def lose_next(self, *, applied: bool, operation: str = "", path: str = "") -> None:
        """Give no answer to the next request (of that operation, on paths with that prefix)."""
        self._losses.append((operation, path, applied))

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        await trio.sleep(self.delay_s)
        for loss in self._losses:
            operation, path, applied = loss
            if operation in ("", request.operation) and request.path.startswith(path):
                self._losses.remove(loss)
                if applied:
                    execute()
                raise NoAnswerError
        execute()

    def notify(self, call: Callable[[], None]) -> None:
        call()


class MemoryStore:
    """The shared tree.  It lives as long as the test or the simulated run."""

    def __init__(self, clock: WallClock) -> None:
        self.tree = Tree(clock)
        self._hosts: list[MemorySession] = []

    def session(
        self,
        host: str = "",
        *,
        link: Link | None = None,
        request_timeout_s: float = 10.0,
        identity: str = "",
    ) -> "MemorySession":
        """Return a new, connected session, which has an identity, or none."""
        session = MemorySession(
            self.tree,
            host,
            link or DirectLink(),
            request_timeout_s,
            frozenset([identity] if identity else []),
        )
        self._hosts.append(session)
        return session

    def suspend(self) -> None:
        for host in self._hosts:
            host.suspend()

    def resume(self) -> None:
        for host in self._hosts:
            host.resume()

    def expire(self, session_id: int) -> None:
        """End a session; do nothing if it has ended already."""
        if not self.tree.is_alive(session_id):
            return
        watches = self.tree.close_session(session_id)
        for host in self._hosts:
            host.session_expired(session_id, watches)


class MemorySession:
    """The view that one host has of the store; a `MetadataStore`."""

    def __init__(
        self,
        tree: Tree,
        host: str,
        link: Link,
        request_timeout_s: float,
        identities: frozenset[str] = frozenset(),
    ) -> None:
        self.link = link
        self._identities = identities
        self._tree = tree
        self._host = host
        self._request_timeout_s = request_timeout_s
        self._view = HostSession()
        self._syncs = SharedSyncs(lambda: self._view.session_id)
        # The session as the store sees it; the host learns of changes by notices.
        self.store_session_id = 0
        self._in_contact = False
        self._dead = False
        self._in_flight: list[trio.CancelScope] = []
        self.resume()

    # Faults

    def suspend(self) -> None:
        """Cut the host off.  Requests under way get no answer."""
        if self._dead or not self._in_contact:
            return
        self._in_contact = False
        watches = self._tree.drop_watches(self.store_session_id)
        self.link.notify(lambda: self._contact_lost(SessionState.SUSPENDED, watches))

    def resume(self) -> None:
        """Let the host reach the store again.

        If its session has ended, the host learns that and starts a new one.
        """
        if self._dead or self._in_contact:
            return
        self._in_contact = True
        self._join()

    def crash(self) -> None:
        """Stop forever, without a word to the store.

        Requests that were sent before may still be carried out.
        """
        self._dead = True
        self._view.close()
        for scope in self._in_flight:
            scope.cancel()

    def close(self) -> None:
        """End the session and its ephemeral records."""
        if self._dead:
            return
        self.crash()
        if self._tree.is_alive(self.store_session_id):
            self._tree.close_session(self.store_session_id)

    def session_expired(self, session_id: int, watches: Sequence[Watch]) -> None:
        """Note that the store has ended a session; the store calls this."""
        if session_id == self.store_session_id and self._in_contact and not self._dead:
            self._join(watches)

    def _join(self, watches: Sequence[Watch] = ()) -> None:
        if not self._tree.is_alive(self.store_session_id):
            if self.store_session_id:
                self.link.notify(lambda: self._contact_lost(SessionState.LOST, watches))
            self.store_session_id = self._tree.open_session(self._notify, self._identities)
        session_id = self.store_session_id
        self.link.notify(lambda: self._view.move(SessionState.CONNECTED, session_id))

    def _notify(self, watch: Watch) -> None:
        self.link.notify(lambda: None if self._dead else watch())

    def _contact_lost(self, state: SessionState, watches: Sequence[Watch]) -> None:
        for scope in self._in_flight:
            scope.cancel()
        self._view.move(state)
        for watch in watches:
            self._view.strand(watch)

    # The contract

    @property
    def session_state(self) -> SessionState:
        return self._view.state

    @property
    def session_id(self) -> int:
        return self._view.session_id

    def add_session_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._view.add_listener(listener)

    def remove_session_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._view.remove_listener(listener)

    async def get(self, path: str, watch: Watch | None = None) -> Record | None:
        return await self._read("get", path, lambda tree, me: tree.get(me, path, watch))

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        return await self._read(
            "get_children", path, lambda tree, me: tree.get_children(me, path, watch)
        )

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
        acl: Acl | None = None,
    ) -> str:
        async def create_one(operation: Create, *, sequential: bool = False) -> str:
            return await self._write(
                "create",
                operation.path,
                lambda tree, me: tree.create(me, operation, sequential=sequential),
            )

        operation = Create(path, value, ephemeral, acl)
        if not make_parents:
            return await create_one(operation, sequential=sequential)
        return await create_with_parents(
            path,
            lambda: create_one(operation, sequential=sequential),
            lambda parent: create_one(Create(parent, b"")),
        )

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        operation = Set(path, value, version)
        return await self._write("set", path, lambda tree, me: tree.set(me, operation))

    async def delete(self, path: str, version: int) -> None:
        operation = Delete(path, version)
        await self._write("delete", path, lambda tree, me: tree.multi(me, [operation]))

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        operations = list(operations)
        if not operations:
            return []
        path = operations[0].path
        return await self._write("multi", path, lambda tree, me: tree.multi(me, operations))

    async def sync(self, path: str) -> None:
        await self._read("sync", path, lambda tree, me: None)

    async def get_newest(self, path: str) -> Record | None:
        return await self._behind_sync(path, self.get)

    async def get_newest_children(self, path: str) -> list[str] | None:
        return await self._behind_sync(path, self.get_children)

    async def get_acl(self, path: str) -> Acl | None:
        return await self._read("get_acl", path, lambda tree, me: tree.get_acl(me, path))

    async def set_acl(self, path: str, acl: Acl) -> None:
        await self._write("set_acl", path, lambda tree, me: tree.set_acl(me, path, acl))

    async def protection(self, changed: Watch | None = None) -> Protection:
        await self.get(protection.PATH, changed)
        # The tree gives each new record the list of that moment, so this host never lags behind.
        found = self._tree.protection()
        if not may(found.private, self._identities, READ):
            return replace(found, identities=(), admins=(), known=not found.closed)
        return found

    async def _behind_sync(self, path: str, read: Callable[[str], Awaitable[T]]) -> T:
        return await self._syncs.read(lambda: self._sync_and_read(path, read), lambda: read(path))

    async def _sync_and_read(self, path: str, read: Callable[[str], Awaitable[T]]) -> T:
        session_id = self.session_id
        await self.sync(path)
        answer = await read(path)
        if self.session_id != session_id:
            # The new session may be with a server that is behind, and that did not sync.
            raise StoreUnavailableError(f"the session was lost while {path} was read")
        return answer

    async def _read(self, operation: str, path: str, act: Callable[[Tree, int], T]) -> T:
        try:
            return await self._request(Request(self._host, operation, path, False), act)
        except NoAnswerError:
            raise StoreUnavailableError(
                f"the metadata store did not answer to {operation} {path}"
            ) from None

    async def _write(self, operation: str, path: str, act: Callable[[Tree, int], T]) -> T:
        try:
            return await self._request(Request(self._host, operation, path, True), act)
        except NoAnswerError:
            raise OutcomeUnknownError(
                f"the metadata store did not answer to {operation} {path}"
            ) from None

    async def _request(self, request: Request, act: Callable[[Tree, int], T]) -> T:
        await self._view.wait_connected(self._request_timeout_s)
        session_id = self._view.session_id
        results: list[T] = []
        errors: list[MetadataError] = []

        def execute() -> None:
            if not self._in_contact:
                raise NoAnswerError
            try:
                results.append(act(self._tree, session_id))
            except MetadataError as error:
                errors.append(error)
            except SessionExpiredError:
                errors.append(
                    StoreUnavailableError(
                        "the session with the metadata store has ended; nothing was done"
                    )
                )

        with trio.CancelScope() as scope:
            self._in_flight.append(scope)
            try:
                await self.link.request(request, execute)
            finally:
                self._in_flight.remove(scope)
            if errors:
                raise errors[0]
            return results[0]
        raise NoAnswerError  # Contact was lost while we waited.
