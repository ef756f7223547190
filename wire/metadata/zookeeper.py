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
* `access` says with which TLS and as whom.  Each new connection proves the identity before anything
  else.  Certificates and the password are read again for it, so they may be exchanged.
* A new record gets the list that the protection of the tree says.  A session reads the protection
  before its first creation, and follows its changes.
* With `process`, the store announces the process (`announce`), and demands an identity with rights
  if the tree is protected.
* Single writes that are under way at once share requests (`write_groups`), and reads of the newest
  state share syncs (`shared_sync`).
* The store puts `root` in front of every path, and creates it.  It does not create a chroot, which
  is a part of the address: a typing error would become an empty cluster.

The store refuses requests above `REQUEST_BYTES_MAX`: ZooKeeper would cut the connection, and the
outcome of such a request would stay unknown forever.
"""

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack, assert_never

import trio

from daybook.wire.clock import SystemClock
from daybook.wire.logging import Log, silent_log
from daybook.wire.metadata import protection
from daybook.wire.metadata.access import PasswordFileError, ZooKeeperAccess
from daybook.wire.metadata.acl import OPEN_ACL, Acl, denial
from daybook.wire.metadata.announce import Announcer, Process, check_rights
from daybook.wire.metadata.kazoo_client import (
    RETRY_DELAY_S,
    AsyncResult,
    Entrance,
    Kazoo,
    Transaction,
    TransactionResult,
    WatchedEvent,
    from_kazoo_acl,
    is_connection_loss,
    is_contact_lost,
    is_rolled_back,
    new_client,
    refusal,
    start_client,
    stop_client,
    to_kazoo_acl,
    to_stat,
)
from daybook.wire.metadata.paths import ancestors_of, check_path
from daybook.wire.metadata.probe import why_no_session
from daybook.wire.metadata.protection import Protection, ProtectionError, Step
from daybook.wire.metadata.session import HostSession, create_with_parents
from daybook.wire.metadata.shared_sync import SharedSyncs
from daybook.wire.metadata.store import (
    AccessDeniedError,
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
    Stat,
    StoreUnavailableError,
    UnusableAccessError,
    Watch,
    check_request,
    request_bytes,
)
from daybook.wire.metadata.write_groups import GroupedWrites
from daybook.wire.tls_files import ReloadedContext, TlsFilesError, client_context

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_STOP_TIMEOUT_S = 2.0
_START_RETRY_S = 0.2
_PROTECTION_ATTEMPTS = 20


class _NoAnswerError(Exception):
    """The request was handed to kazoo, and nothing is known about it."""


class _Request(Generic[T]):
    """One request that a task waits for.  Only trio's thread makes and settles it."""

    __slots__ = ("_answer", "_task", "contact", "deadline")

    def __init__(self, deadline: float, contact: int) -> None:
        self.deadline = deadline
        self.contact = contact  # the number of the contact in which it was made
        self._answer: AsyncResult[T] | None = None
        self._task: trio.lowlevel.Task | None = None  # the one that waits

    async def wait(self) -> AsyncResult[T] | None:
        """Return the answer; None if there was none in time."""
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return self._answer

    def settle(self, answer: AsyncResult[T] | None) -> None:
        """End the wait, unless it has ended already."""
        if self._task is not None:
            task, self._task, self._answer = self._task, None, answer
            trio.lowlevel.reschedule(task)


class ZooKeeperStore:
    """A `MetadataStore`; `open_zookeeper` makes it."""

    def __init__(
        self,
        hosts: str,
        root: str,
        session_timeout_s: float,
        request_timeout_s: float,
        access: ZooKeeperAccess,
        log: Log,
    ) -> None:
        """Raise UnusableAccessError if the files of `access` cannot be used."""
        self._hosts = hosts
        self._access = access
        self._log = log
        self._tls = _tls(access, log)
        self._root = root
        self._session_timeout_s = session_timeout_s
        self._request_timeout_s = request_timeout_s
        self._session = HostSession()
        self._contacts = 0  # how often contact was made
        self._syncs = SharedSyncs(lambda: self._session.session_id)
        self._token = trio.lowlevel.current_trio_token()
        self._calls: deque[Callable[[], object]] = deque()  # for trio's thread
        self._woken = False  # it knows of them
        self._kazoo: Kazoo | None = None
        self._grouped: tuple[Kazoo, GroupedWrites] | None = (
            None  # a client, and itself with grouped writes
        )
        self._failure: OSError | None = None  # why no client could be started just now
        self._refused = ""  # why the last attempt to connect has failed, if that is known
        self._told: set[str] = set()  # reasons that were logged since the last contact
        self._protection = Protection()
        self._protection_session = 0  # the session that has read it, and learns of changes
        self._protection_watches: list[Watch] = []
        self._outdated = False  # it has changed since the last read of it began
        self._reading_protection = trio.Lock()
        self._kazoo_lost = trio.Event()
        self._under_way: dict[_Request[Any], None] = {}  # requests without an answer
        self._timer = trio.CancelScope()  # its deadline is the first one of these, or earlier
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
                    value, stat = await self._read(full, lambda kazoo: kazoo.get_async(full, event))
                    return Record(value, to_stat(stat))
                except NoRecordError:
                    if event is None:
                        return None
                # ZooKeeper sets a watch on a missing record only for `exists`.
                if await self._read(full, lambda kazoo: kazoo.exists_async(full, event)) is None:
                    return None

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        full = self._full(path)
        try:
            with self._armed(watch) as event:
                names = await self._read(full, lambda kazoo: kazoo.get_children_async(full, event))
        except NoRecordError:
            return None
        return sorted(names)

    async def sync(self, path: str) -> None:
        full = self._full(path)
        await self._read(full, lambda kazoo: kazoo.sync_async(full))

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
                full,
                lambda kazoo: _BehindSync(kazoo.sync_async(full), submit(kazoo)),
            ),
            lambda: self._read(full, submit),
        )

    async def get_acl(self, path: str) -> Acl | None:
        full = self._full(path)
        try:
            acl, _ = await self._read(full, lambda kazoo: kazoo.get_acls_async(full))
        except NoRecordError:
            return None
        return from_kazoo_acl(acl)

    # Writing

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
        check_request([Create(path, value)])
        full = self._full(f"{path}0")[:-1] if sequential else self._full(path)

        async def create_one() -> str:
            if acl is None:
                await self.protection()
            # The protection is taken when the request leaves: whatever this session has announced
            # to know, it follows.
            created = await self._write(
                full,
                lambda kazoo: kazoo.create_async(
                    full,
                    value,
                    lambda: self._acl(path, acl),
                    ephemeral=ephemeral,
                    sequence=sequential,
                ),
            )
            return created[len(self._root) :]

        if not make_parents:
            return await create_one()
        return await create_with_parents(path, create_one, lambda parent: self.create(parent, b""))

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        check_request([Set(path, value, version)])
        full = self._full(path)
        return to_stat(await self._write(full, lambda kazoo: kazoo.set_async(full, value, version)))

    async def delete(self, path: str, version: int) -> None:
        full = self._full(path)
        await self._write(full, lambda kazoo: kazoo.delete_async(full, version))

    async def set_acl(self, path: str, acl: Acl) -> None:
        full = self._full(path)
        await self._write(full, lambda kazoo: kazoo.set_acls_async(full, to_kazoo_acl(acl)))

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        operations = list(operations)
        if not operations:
            return []
        check_request(operations)
        if any(isinstance(each, Create) and each.acl is None for each in operations):
            await self.protection()
        results = await self._write(
            self._full(operations[0].path), lambda kazoo: self._commit(kazoo, operations)
        )
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not is_rolled_back(result):
                raise self._refusal(result, operation.path) or MetadataError(
                    f"{operation.path}: {result!r}"
                )
        return [_version(*pair) for pair in zip(operations, results, strict=True)]

    def _commit(
        self, kazoo: GroupedWrites, operations: Sequence[Operation]
    ) -> AsyncResult[list[TransactionResult]]:
        # Wrong paths are refused here: the transaction may leave later, with those of others.
        paths = [self._full(operation.path) for operation in operations]

        def add(transaction: Transaction) -> None:
            for full, operation in zip(paths, operations, strict=True):
                match operation:
                    case Create(path, value, ephemeral, acl):
                        transaction.create(full, value, self._acl(path, acl), ephemeral=ephemeral)
                    case Set(_, value, version):
                        transaction.set_data(full, value, version)
                    case Delete(_, version):
                        transaction.delete(full, version)
                    case Check(_, version):
                        transaction.check(full, version)
                    case _:
                        assert_never(operation)

        return kazoo.commit_async(add, len(operations), request_bytes(operations))

    # The protection of the tree

    async def protection(self, changed: Watch | None = None) -> Protection:
        if not self._protection_is_new:
            async with self._reading_protection:
                await self._renew_protection()
        if changed is not None:
            self._protection_watches.append(changed)
        return self._protection

    @property
    def _protection_is_new(self) -> bool:
        return self._protection_session == self._session.session_id != 0

    async def _renew_protection(self) -> None:
        attempts = 0
        while not self._protection_is_new:
            session_id, self._outdated = self._session.session_id, False
            try:
                found = await self._read_protection()
            except NoRecordError:
                attempts += 1  # The generation was replaced while it was read.
                if attempts == _PROTECTION_ATTEMPTS:
                    raise MetadataError(
                        f"a record below {protection.PATH} is missing: restore it, or open the tree"
                        " by superDigest (docs/security.md)"
                    ) from None
                await trio.sleep(RETRY_DELAY_S)
                continue
            except ProtectionError as error:
                raise MetadataError(str(error)) from None
            if session_id == self._session.session_id and not self._outdated:
                self._protection, self._protection_session = found, session_id

    async def follow_protection(self) -> None:
        """Read the protection whenever it has changed, so that creations need not wait for it."""
        while True:
            changed = trio.Event()
            try:
                await self.protection(changed.set)
            except MetadataError:
                await trio.sleep(_START_RETRY_S)
                continue
            await changed.wait()

    async def _read_protection(self) -> Protection:
        """Read the newest protection, with a watch for its changes."""
        full = self._full(protection.PATH)
        with self._armed(self._protection_changed) as event:
            stat = await self._read(
                full,
                lambda kazoo: _BehindSync(kazoo.sync_async(full), kazoo.exists_async(full, event)),
            )
        if stat is None:
            return Protection()
        value, _ = await self._read(full, lambda kazoo: kazoo.get_async(full, None))
        found = protection.decode(value)
        if found.step is Step.OPEN:
            return found
        full = self._full(found.identities_path)
        try:
            identities, _ = await self._read(full, lambda kazoo: kazoo.get_async(full, None))
        except AccessDeniedError:
            return found
        return protection.decode(value, identities)

    def _protection_changed(self) -> None:
        self._outdated = True
        self._protection_session = 0
        watches, self._protection_watches = self._protection_watches, []
        for watch in watches:
            watch()

    def _acl(self, path: str, acl: Acl | None) -> Sequence[object]:
        return to_kazoo_acl(self._protection.acl(path) if acl is None else acl)

    # Requests

    def _full(self, path: str) -> str:
        check_path(path)
        return (self._root + path if path != "/" else self._root) or "/"

    async def _read(self, full: str, submit: Callable[[Kazoo], AsyncResult[T]]) -> T:
        try:
            return await self._request(full, submit)
        except _NoAnswerError as error:
            raise StoreUnavailableError(
                f"ZooKeeper did not answer to a read: {error}"
            ) from error.__cause__

    async def _write(self, full: str, submit: Callable[[GroupedWrites], AsyncResult[T]]) -> T:
        try:
            return await self._request(full, lambda kazoo: submit(self._grouping(kazoo)))
        except _NoAnswerError as error:
            raise OutcomeUnknownError(
                "ZooKeeper did not answer to a write, so it is unknown whether it was carried"
                f" out: {error}"
            ) from error.__cause__

    def _grouping(self, kazoo: Kazoo) -> GroupedWrites:
        """Return the client as one that lets single writes share requests."""
        if self._grouped is None or self._grouped[0] is not kazoo:
            self._grouped = kazoo, GroupedWrites(kazoo, self._soon)
        return self._grouped[1]

    async def _request(self, full: str, submit: Callable[[Kazoo], AsyncResult[T]]) -> T:
        deadline = trio.current_time() + self._request_timeout_s
        await self._session.wait_connected(self._request_timeout_s)
        kazoo = self._kazoo
        assert kazoo is not None
        request: _Request[T] = _Request(deadline, self._contacts)
        submit(kazoo).rawlink(lambda answer: self._soon(self._settle, kazoo, request, answer))
        self._under_way[request] = None
        if deadline < self._timer.deadline:
            self._timer.deadline = deadline
        try:
            answer = await request.wait()
        finally:
            del self._under_way[request]
        if answer is None:
            raise _NoAnswerError(f"the request timed out after {self._request_timeout_s:g} s")
        if answer.exception is None:
            return answer.value
        # No variable here may hold the error: it holds this frame, so that would be a cycle.
        raise self._error_of(answer.exception, full) from answer.exception

    def _settle(self, kazoo: Kazoo, request: "_Request[T]", answer: AsyncResult[T]) -> None:
        # kazoo completes requests before it reports the state, so set the state here first.  The
        # report of the next contact may overtake the answer, and kazoo reports each contact once.
        if is_connection_loss(answer.exception) and request.contact == self._contacts:
            self._state_changed(kazoo, SessionState.SUSPENDED, 0)
        request.settle(answer)

    async def end_late_requests(self) -> None:
        """End requests whose time is over.  One timer for all costs less than one for each."""
        while True:
            first = min((request.deadline for request in self._under_way), default=math.inf)
            self._timer = trio.CancelScope(deadline=first)
            with self._timer:
                await trio.sleep_forever()
            now_s = trio.current_time()
            for request in [each for each in self._under_way if each.deadline <= now_s]:
                request.settle(None)

    def _error_of(self, error: Exception, path: str) -> Exception:
        return self._refusal(error, path) or _NoAnswerError(repr(error))

    def _refusal(self, error: Exception, path: str) -> MetadataError | None:
        refused = refusal(error)
        if isinstance(refused, AccessDeniedError):
            return AccessDeniedError(denial(path, self._access.has_identity))
        return refused

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
            kazoo = new_client(
                self._hosts, self._session_timeout_s, self._handle_state, self._entrance()
            )
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

    def _entrance(self) -> Entrance:
        tls = self._tls
        return Entrance(
            tls=None if tls is None else lambda: tls.latest,
            credentials=self._access.credentials,
            failed=lambda why: self._soon(self._attempt_failed, why),
        )

    def _attempt_failed(self, why: str) -> None:
        if self._tls is not None:
            self._tls.get()  # Certificates that were exchanged meanwhile count at the next attempt.
        if why and why not in self._told:
            self._told.add(why)
            self._log.warning("ZooKeeper cannot be reached", why=why)
        self._refused = why

    def _handle_state(self, kazoo: Kazoo, state: SessionState, session_id: int) -> None:
        """Handle a change of the state; kazoo calls this in its own thread."""
        self._soon(self._state_changed, kazoo, state, session_id)

    def _state_changed(self, kazoo: Kazoo, state: SessionState, session_id: int) -> None:
        if kazoo is not self._kazoo or self._kazoo_lost.is_set() or self._session.closed:
            return  # a late report of a client that was replaced
        watches = list(self._watches) if state is not SessionState.CONNECTED else []
        if state is SessionState.LOST:
            self._kazoo_lost.set()
        if state is SessionState.CONNECTED:
            self._contacts += 1
            # Writes of this contact must not wait for one of the last contact, and be lost with it.
            self._grouped = None
            self._refused = ""
            self._told.clear()
        elif self._tls is not None:
            self._tls.get()
        self._session.move(state, session_id if state is SessionState.CONNECTED else None)
        for watch in watches:
            self._fire(watch, contact_lost=True)

    async def connect(self, timeout_s: float) -> None:
        try:
            await self._session.wait_connected(timeout_s)
        except StoreUnavailableError as error:
            why = str(self._failure or self._refused or await why_no_session(self._hosts))
            raise NoContactError(
                f"there is no session with ZooKeeper at {self._hosts}: {error}", why
            ) from None
        await self._check_chroot()
        if self._root:
            for path in [*ancestors_of(self._root), self._root]:
                await self._ensure(path)

    async def _check_chroot(self) -> None:
        servers, slash, chroot = self._hosts.rstrip("/").partition("/")
        if not slash or await self._exists("/"):
            return
        chroot = f"/{chroot}"
        command = f"zkCli.sh -server {servers.partition(',')[0]} create"
        commands = "; ".join(f"{command} {path}" for path in [*ancestors_of(chroot), chroot])
        raise NoChrootError(
            f"ZooKeeper at {servers} has no {chroot}, which the address {self._hosts} names: if it"
            f" is meant, create it first ({commands}); else correct the address"
        )

    async def _exists(self, full: str) -> bool:
        try:
            stat = await self._read(full, lambda kazoo: kazoo.exists_async(full, None))
        except AccessDeniedError:
            return True
        return stat is not None

    async def _ensure(self, full: str) -> None:
        if not await self._exists(full):
            with suppress(RecordExistsError):
                await self._write(
                    full,
                    lambda kazoo: kazoo.create_async(full, b"", lambda: to_kazoo_acl(OPEN_ACL)),
                )

    async def enter(self, process: Process | None, timeout_s: float) -> Announcer | None:
        """Announce the process.  Raise AccessDeniedError if it lacks what the tree demands.

        Contact that is lost meanwhile is no reason to fail; each attempt is complete.
        """
        deadline = trio.current_time() + timeout_s
        while True:
            try:
                return await self._enter(process)
            except (StoreUnavailableError, OutcomeUnknownError):
                if trio.current_time() > deadline:
                    raise
                await trio.sleep(_START_RETRY_S)

    async def _enter(self, process: Process | None) -> Announcer | None:
        found = await self.protection()
        if found.step is Step.REQUIRED and not self._access.has_identity:
            raise AccessDeniedError(denial(protection.PATH, False))
        if process is None:
            return None
        announcer = Announcer(self, process, self._access.has_identity)
        try:
            await announcer.announce()
        except AccessDeniedError as error:
            if found.closed:
                raise
            # Others protect this tree, in which a bookie may have all the rights that it needs.
            self._log.warning("this process cannot announce itself in ZooKeeper", why=str(error))
            return None
        await check_rights(self, announcer)
        return announcer

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


def _tls(access: ZooKeeperAccess, log: Log) -> ReloadedContext | None:
    """Return the TLS of connections.  Raise UnusableAccessError, also for the password file."""
    try:
        access.credentials()
        if access.tls is None:
            return None
        build = partial(client_context, verify_host=access.verify_host)
        return ReloadedContext(access.tls, build, clock=SystemClock(), log=log)
    except (TlsFilesError, PasswordFileError) as error:
        raise UnusableAccessError(str(error)) from None


@asynccontextmanager
async def open_zookeeper(
    hosts: str,
    *,
    session_timeout_s: float,
    root: str = "",
    request_timeout_s: float = 10.0,
    connect_timeout_s: float = 10.0,
    access: ZooKeeperAccess | None = None,
    process: Process | None = None,
    log: Log | None = None,
) -> AsyncGenerator[ZooKeeperStore]:
    """Open a session; raise StoreUnavailableError if there is none in `connect_timeout_s`.

    With `process`, announce it; raise AccessDeniedError if the tree is protected, and the process
    has no identity with rights.  The end of the block ends the session, and with it our ephemeral
    records.
    """
    assert root == "" or check_path(root) != "/", "the root of everything is the empty string"
    store = ZooKeeperStore(
        hosts,
        root,
        session_timeout_s,
        request_timeout_s,
        access or ZooKeeperAccess(),
        log or silent_log(),
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run, nursery)
            nursery.start_soon(store.end_late_requests)
            try:
                await store.connect(connect_timeout_s)
                announcer = await store.enter(process, connect_timeout_s)
                nursery.start_soon(store.follow_protection)
                if announcer is not None:
                    nursery.start_soon(announcer.run)
                yield store
            finally:
                await store.close()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Our own task raises nothing: what came out of the block is alone in the nursery's group.
        if len(group.exceptions) != 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__
