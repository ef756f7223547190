"""The metadata store on Apache ZooKeeper: kazoo in its own threads, bridged to trio.

    async with open_zookeeper("zk1:2181,zk2:2181", session_timeout_s=4.0) as metadata:
        await metadata.create("/a", b"")

trio's thread never waits for one of kazoo's: requests use kazoo's asynchronous calls, and all
results and events of kazoo come back as calls in trio's thread.

* One kazoo client is one session.  When ZooKeeper reports that the session has ended, the client is
  dropped with everything in its queue, and the next one starts.  So no request crosses from one
  session into another.
* If a client cannot be started, because descriptors or threads are short, the store tries again.
  This ends neither the store nor the process.
* While there is no contact, kazoo tries again at least every 0.3 s, so that a ZooKeeper that was
  restarted finds the session alive.
* A request waits for contact here, and not in kazoo's queue.  While it waits here it was certainly
  not sent (`StoreUnavailableError`).  Once kazoo has it, a lost connection or a passed deadline is
  an `OutcomeUnknownError` for a write, and the write may still be carried out.  The store does not
  recall a cancelled request, and retries nothing.
* Single writes that are under way at once share requests (`write_groups`), and reads of the newest
  state share syncs (`shared_sync`).
* The store puts `root` in front of every path, and creates it.  It does not create a chroot, which
  is a part of the address: a typing error would become an empty cluster.

The store refuses requests above `REQUEST_BYTES_MAX`: ZooKeeper would cut the connection, and the
outcome of such a request would stay unknown forever.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Generic, TypeVar, TypeVarTuple, Unpack, assert_never, cast

import trio

from daybook.wire.metadata.kazoo_client import (
    RETRY_DELAY_S,
    AsyncResult,
    Kazoo,
    TransactionResult,
    WatchedEvent,
    is_connection_loss,
    is_contact_lost,
    is_rolled_back,
    new_client,
    refusal,
    start_client,
    stop_client,
    to_stat,
)
from daybook.wire.metadata.paths import ancestors_of, check_path
from daybook.wire.metadata.probe import why_no_session
from daybook.wire.metadata.session import HostSession, create_with_parents
from daybook.wire.metadata.shared_sync import SharedSyncs
from daybook.wire.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataError,
    NoChrootError,
    NoContactError,
    NoRecordError,
    Operation,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    SessionState,
    Set,
    StoreUnavailableError,
    Watch,
    check_request,
)
from daybook.wire.metadata.write_groups import GroupedWrites

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_STOP_TIMEOUT_S = 2.0
_START_RETRY_S = 0.2


class _NoAnswerError(Exception):
    """The request was handed to kazoo, and nothing is known about it."""


class ZooKeeperStore:
    """A `MetadataStore`; `open_zookeeper` makes it."""

    def __init__(
        self, hosts: str, root: str, session_timeout_s: float, request_timeout_s: float
    ) -> None:
        self._hosts = hosts
        self._root = root
        self._session_timeout_s = session_timeout_s
        self._request_timeout_s = request_timeout_s
        self._session = HostSession()
        self._syncs = SharedSyncs(lambda: self._session.session_id)
        self._token = trio.lowlevel.current_trio_token()
        self._calls: deque[Callable[[], object]] = deque()  # for trio's thread
        self._woken = False  # it knows of them
        self._kazoo: Kazoo | None = None
        self._grouped: tuple[Kazoo, Kazoo] | None = None  # a client, and itself with grouped writes
        self._failure: OSError | None = None  # why no client could be started just now
        self._kazoo_lost = trio.Event()
        self._watches: dict[_OneShot, None] = {}

    @property
    def session_state(self) -> SessionState:
        return self._session.state

    @property
    def session_id(self) -> int:
        return self._session.session_id

    def add_session_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._session.add_listener(listener)

    def remove_session_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._session.remove_listener(listener)

    # Reading

    async def get(self, path: str, watch: Watch | None = None) -> Record | None:
        full = self._full(path)
        with self._armed(watch) as event:
            while True:
                try:
                    value, stat = await self._read(lambda kazoo: kazoo.get_async(full, event))
                    return Record(value, to_stat(stat))
                except NoRecordError:
                    if event is None:
                        return None
                # ZooKeeper sets a watch on a missing record only for `exists`.
                if await self._read(lambda kazoo: kazoo.exists_async(full, event)) is None:
                    return None

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        full = self._full(path)
        try:
            with self._armed(watch) as event:
                names = await self._read(lambda kazoo: kazoo.get_children_async(full, event))
        except NoRecordError:
            return None
        return sorted(names)

    async def sync(self, path: str) -> None:
        full = self._full(path)
        await self._read(lambda kazoo: kazoo.sync_async(full))

    async def get_newest(self, path: str) -> Record | None:
        full = self._full(path)
        try:
            value, stat = await self._read_newest(full, lambda kazoo: kazoo.get_async(full, None))
        except NoRecordError:
            return None
        return Record(value, to_stat(stat))

    async def get_newest_children(self, path: str) -> list[str] | None:
        full = self._full(path)
        try:
            names = await self._read_newest(
                full, lambda kazoo: kazoo.get_children_async(full, None)
            )
        except NoRecordError:
            return None
        return sorted(names)

    async def _read_newest(self, full: str, submit: Callable[[Kazoo], AsyncResult[T]]) -> T:
        return await self._syncs.read(
            lambda: self._read(
                lambda kazoo: _BehindSync(kazoo.sync_async(full), submit(kazoo)),
            ),
            lambda: self._read(submit),
        )

    # Writing

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        check_request([Create(path, value)])
        full = self._full(f"{path}0")[:-1] if sequential else self._full(path)

        async def create_one() -> str:
            created = await self._write(
                lambda kazoo: kazoo.create_async(
                    full, value, ephemeral=ephemeral, sequence=sequential
                )
            )
            return created[len(self._root) :]

        if not make_parents:
            return await create_one()
        return await create_with_parents(path, create_one, lambda parent: self.create(parent, b""))

    async def set(self, path: str, value: bytes, version: int) -> int:
        check_request([Set(path, value, version)])
        full = self._full(path)
        stat = await self._write(lambda kazoo: kazoo.set_async(full, value, version))
        return stat.version

    async def delete(self, path: str, version: int) -> None:
        full = self._full(path)
        await self._write(lambda kazoo: kazoo.delete_async(full, version))

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        operations = list(operations)
        if not operations:
            return []
        check_request(operations)
        results = await self._write(lambda kazoo: self._commit(kazoo, operations))
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not is_rolled_back(result):
                raise refusal(result) or MetadataError(f"{operation.path}: {result!r}")
        return [_version(*pair) for pair in zip(operations, results, strict=True)]

    def _commit(
        self, kazoo: Kazoo, operations: Sequence[Operation]
    ) -> AsyncResult[list[TransactionResult]]:
        transaction = kazoo.transaction()
        for operation in operations:
            full = self._full(operation.path)
            match operation:
                case Create(_, value, ephemeral):
                    transaction.create(full, value, ephemeral=ephemeral)
                case Set(_, value, version):
                    transaction.set_data(full, value, version)
                case Delete(_, version):
                    transaction.delete(full, version)
                case Check(_, version):
                    transaction.check(full, version)
                case _:
                    assert_never(operation)
        return transaction.commit_async()

    # Requests

    def _full(self, path: str) -> str:
        check_path(path)
        return (self._root + path if path != "/" else self._root) or "/"

    async def _read(self, submit: Callable[[Kazoo], AsyncResult[T]]) -> T:
        try:
            return await self._request(submit)
        except _NoAnswerError as error:
            raise StoreUnavailableError(
                f"ZooKeeper did not answer to a read: {error}"
            ) from error.__cause__

    async def _write(self, submit: Callable[[Kazoo], AsyncResult[T]]) -> T:
        try:
            return await self._request(lambda kazoo: submit(self._grouping(kazoo)))
        except _NoAnswerError as error:
            raise OutcomeUnknownError(
                "ZooKeeper did not answer to a write, so it is unknown whether it was carried"
                f" out: {error}"
            ) from error.__cause__

    def _grouping(self, kazoo: Kazoo) -> Kazoo:
        """Return the client as one that lets single writes share requests."""
        if self._grouped is None or self._grouped[0] is not kazoo:
            self._grouped = kazoo, cast("Kazoo", GroupedWrites(kazoo, self._soon))
        return self._grouped[1]

    async def _request(self, submit: Callable[[Kazoo], AsyncResult[T]]) -> T:
        deadline = trio.current_time() + self._request_timeout_s
        await self._session.wait_connected(self._request_timeout_s)
        kazoo = self._kazoo
        assert kazoo is not None
        answers: list[AsyncResult[T]] = []
        answered = trio.Event()

        def settle(result: AsyncResult[T]) -> None:
            if is_connection_loss(result.exception):
                # kazoo completes requests before it reports the state, so set the state here first.
                self._state_changed(kazoo, SessionState.SUSPENDED, 0)
            answers.append(result)
            answered.set()

        submit(kazoo).rawlink(lambda result: self._soon(settle, result))
        with trio.move_on_at(deadline):
            await answered.wait()
        if not answers:
            raise _NoAnswerError(f"the request timed out after {self._request_timeout_s:g} s")
        error = answers[0].exception
        if error is None:
            return answers[0].value
        if refused := refusal(error):
            raise refused from error
        raise _NoAnswerError(repr(error)) from error

    # Watches

    @contextmanager
    def _armed(self, watch: Watch | None) -> "Generator[_OneShot | None]":
        """Hold a watch around its read: arm it before the read, disarm it if the read fails."""
        if watch is None:
            yield None
            return
        event = _OneShot(self, watch)
        self._watches[event] = None
        try:
            yield event
        except BaseException:
            self._watches.pop(event, None)
            raise

    def watch_event(self, watch: "_OneShot", event: WatchedEvent) -> None:
        """Handle an event of a watch; kazoo calls this in its own thread."""
        self._soon(self._fire, watch, is_contact_lost(event))

    def _fire(self, watch: "_OneShot", contact_lost: bool) -> None:
        if watch not in self._watches:
            return
        del self._watches[watch]
        if contact_lost:
            self._session.strand(watch.watch)
        else:
            watch.watch()

    # Sessions

    async def run(self, nursery: trio.Nursery) -> None:
        """Run one client after the other, each when the session of the last one has ended."""
        while True:
            kazoo = new_client(self._hosts, self._session_timeout_s, self._handle_state)
            self._kazoo, self._kazoo_lost = kazoo, trio.Event()
            self._failure = start_client(kazoo)
            if self._failure is not None:
                # Nothing was sent, so no caller is told; descriptors or threads may come back.
                self._kazoo = None
                await trio.sleep(_START_RETRY_S)
                continue
            await self._kazoo_lost.wait()
            self._kazoo = None
            nursery.start_soon(_stop, kazoo)
            await trio.sleep(RETRY_DELAY_S)

    def _handle_state(self, kazoo: Kazoo, state: SessionState, session_id: int) -> None:
        """Handle a change of the state; kazoo calls this in its own thread."""
        self._soon(self._state_changed, kazoo, state, session_id)

    def _state_changed(self, kazoo: Kazoo, state: SessionState, session_id: int) -> None:
        if kazoo is not self._kazoo or self._kazoo_lost.is_set() or self._session.closed:
            return  # a late report of a client that was replaced
        watches = list(self._watches) if state is not SessionState.CONNECTED else []
        if state is SessionState.LOST:
            self._kazoo_lost.set()
        self._session.move(state, session_id if state is SessionState.CONNECTED else None)
        for watch in watches:
            self._fire(watch, contact_lost=True)

    async def connect(self, timeout_s: float) -> None:
        try:
            await self._session.wait_connected(timeout_s)
        except StoreUnavailableError as error:
            why = str(self._failure or await why_no_session(self._hosts))
            raise NoContactError(
                f"there is no session with ZooKeeper at {self._hosts}: {error}", why
            ) from None
        await self._check_chroot()
        if self._root:
            for path in [*ancestors_of(self._root), self._root]:
                await self._ensure(path)

    async def _check_chroot(self) -> None:
        servers, slash, chroot = self._hosts.rstrip("/").partition("/")
        if not slash or await self._read(lambda kazoo: kazoo.exists_async("/", None)) is not None:
            return
        chroot = f"/{chroot}"
        command = f"zkCli.sh -server {servers.partition(',')[0]} create"
        commands = "; ".join(f"{command} {path}" for path in [*ancestors_of(chroot), chroot])
        raise NoChrootError(
            f"ZooKeeper at {servers} has no {chroot}, which the address {self._hosts} names: if it"
            f" is meant, create it first ({commands}); else correct the address"
        )

    async def _ensure(self, path: str) -> None:
        with suppress(RecordExistsError):
            await self._write(lambda kazoo: kazoo.create_async(path, b""))

    async def close(self) -> None:
        """End the session; after a while, stop waiting for ZooKeeper."""
        self._session.close()
        self._watches.clear()
        if self._kazoo is not None:
            await _stop(self._kazoo)

    def _soon(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Call a function in trio's thread, in order; any thread may call this.

        Calls that come before trio's thread has begun with the last ones wake it once.
        """
        self._calls.append(lambda: call(*args))
        if not self._woken:
            self._woken = True
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._run_calls)

    def _run_calls(self) -> None:
        # This comes first: a call that is appended behind the last one wakes the thread again.
        self._woken = False
        while self._calls:
            self._calls.popleft()()


class _BehindSync(Generic[T]):
    """A read that was sent directly behind a sync, without a wait for the answer to the sync.

    ZooKeeper carries out and answers the requests of a session in their order.  If the sync has no
    good answer, neither has the read: it may have been sent alone, over another connection.
    """

    def __init__(self, synced: AsyncResult[str], read: AsyncResult[T]) -> None:
        self._synced = synced
        self._read = read

    @property
    def exception(self) -> Exception | None:
        return self._synced.exception or self._read.exception

    @property
    def value(self) -> T:
        return self._read.value

    def rawlink(self, callback: "Callable[[AsyncResult[T]], None]") -> None:
        self._read.rawlink(lambda _: callback(self))


class _OneShot:
    """The watch as kazoo holds it."""

    def __init__(self, store: ZooKeeperStore, watch: Watch) -> None:
        self.watch = watch
        self._store = store

    def __call__(self, event: WatchedEvent) -> None:
        self._store.watch_event(self, event)


async def _stop(kazoo: Kazoo) -> None:
    with trio.move_on_after(_STOP_TIMEOUT_S, shield=True):
        await trio.to_thread.run_sync(stop_client, kazoo, abandon_on_cancel=True)


def _version(operation: Operation, result: TransactionResult) -> int:
    if isinstance(operation, Create):
        return 0
    if isinstance(operation, Set):
        assert not isinstance(result, Exception | str | bool)
        return result.version
    return -1


@asynccontextmanager
async def open_zookeeper(
    hosts: str,
    *,
    session_timeout_s: float,
    root: str = "",
    request_timeout_s: float = 10.0,
    connect_timeout_s: float = 10.0,
) -> AsyncGenerator[ZooKeeperStore]:
    """Open a session; raise StoreUnavailableError if there is none in `connect_timeout_s`.

    The end of the block ends the session, and with it our ephemeral records.
    """
    assert root == "" or check_path(root) != "/", "the root of everything is the empty string"
    store = ZooKeeperStore(hosts, root, session_timeout_s, request_timeout_s)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run, nursery)
            try:
                await store.connect(connect_timeout_s)
                yield store
            finally:
                await store.close()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Our own task raises nothing: what came out of the block is alone in the nursery's group.
        if len(group.exceptions) != 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__
