"""The bundles that this broker owns, by records in the store: the shell of `protocol.ownership`.

`run` joins the cluster, and joins again after a lost session or when a peer has removed this
broker.  A lookup calls `acquire`; the loading of a topic asks `may_load`.  The topics of a bundle
are closed in good order when it is released, and dropped at once when it is lost.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import assert_never

import trio

from daybook.bookie.registry.instance import InstanceBinding
from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import BrokerRecord
from daybook.broker.ownership.membership import (
    DeathCheck,
    Guard,
    Identity,
    Member,
    delete_under_guard,
    join,
    remove,
    withdraw,
)
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership import (
    Answer,
    Answered,
    CloseTopics,
    CreateRecord,
    DeleteRecord,
    DropTopics,
    Effect,
    Join,
    Membership,
    OwnershipProtocol,
    ReadGuard,
    ReadRecord,
    RecordOwner,
    Released,
)
from daybook.broker.topics.topics import Topics
from daybook.wire.logging import Log
from daybook.wire.metadata.store import (
    ANY,
    Check,
    Create,
    MetadataError,
    MetadataStore,
    NoRecordError,
    Operation,
    RecordExistsError,
    SessionState,
    StoreUnavailableError,
)
from daybook.wire.topics import TopicName

_RETRY_S = 0.1
_ACQUIRE_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 10.0
_LEAVE_TIMEOUT_S = 2.0  # then the end of the session does the same


class _Waiter:
    """One caller that waits for the answer about a bundle.  OURS also means: it was released."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer = Answer.UNAVAILABLE


class Ownership:
    """The bundles of this broker."""

    def __init__(
        self,
        store: MetadataStore,
        identity: Identity,
        registration: BrokerRecord,
        policies: Policies,
        topics: Topics,
        *,
        formats: Sequence[str],
        is_dead: DeathCheck,
        log: Log,
    ) -> None:
        self._log = log
        self._formats = formats
        self.identity = identity
        self._store = store
        self._registration = registration
        self._policies = policies
        self._topics = topics
        self._is_dead = is_dead
        self._protocol = OwnershipProtocol()
        self._nursery: trio.Nursery | None = None
        self._guard: Guard | None = None  # the guard of the latest join
        # The callers that wait for the end of an acquisition, and of a release.
        self._acquiring: dict[BundleName, list[_Waiter]] = {}
        self._releasing: dict[BundleName, list[_Waiter]] = {}
        self._watched: set[BundleName] = set()  # their records have a watch
        self._bound: InstanceBinding | None = None
        self._joining = trio.Lock()
        self._joined = trio.Event()
        self._closing = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own bundles until cancelled.  `task_status` reports when this broker has joined."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._store.add_session_listener(self._session_changed)
            try:
                self._session_changed(self._store.session_state)
                await self._joined.wait()
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._store.remove_session_listener(self._session_changed)

    def bind(self, bound: InstanceBinding) -> None:
        """Join only while the metadata store names that instance.  Call it before `run`."""
        self._bound = bound

    # -- properties

    @property
    def contact(self) -> bool:
        """Return True if the store is in reach and our guard was seen in this session."""
        return self._protocol.contact

    @property
    def owned(self) -> list[BundleName]:
        return self._protocol.owned

    def owns_bundle(self, bundle: BundleName) -> bool:
        return self._protocol.owns(bundle)

    def owns(self, topic: TopicName) -> bool:
        """Return True if this broker owns the topic's bundle, as far as it knows.

        The answer stays True while the session is suspended.
        """
        bundle = self._policies.known_bundle_of(topic)
        return bundle is not None and self._protocol.owns(bundle)

    def may_load(self, topic: TopicName) -> bool:
        """Return True if the topic may be loaded now, if it is not loaded yet."""
        bundle = self._policies.known_bundle_of(topic)
        return not self._closing and bundle is not None and self._protocol.may_load(bundle)

    # -- acquiring and releasing

    async def acquire(self, bundle: BundleName) -> Answer:
        """Own the bundle, if no broker does, and return who owns it."""
        if self._closing:
            await trio.lowlevel.checkpoint()
            return Answer.UNAVAILABLE
        waiter = _Waiter()
        ask = self._protocol.acquire
        await self._wait(self._acquiring, bundle, waiter, ask, _ACQUIRE_TIMEOUT_S)
        return waiter.answer

    async def release(self, bundle: BundleName) -> None:
        """Close the bundle's topics, then delete its record.  Raise UnavailableError."""
        waiter = _Waiter()
        ask = self._protocol.release
        timeout_s = _CLOSE_TIMEOUT_S + _ACQUIRE_TIMEOUT_S
        await self._wait(self._releasing, bundle, waiter, ask, timeout_s)
        if waiter.answer is not Answer.OURS:
            raise UnavailableError(f"the bundle {bundle} cannot be released now: try again")

    async def withdraw(self) -> None:
        """Begin to leave: no bundle is placed on this broker or acquired by it from now on."""
        self._closing = True  # before any checkpoint: `may_load` and `acquire` refuse from now on
        if self._guard is None:
            return  # This broker has never joined.
        with trio.move_on_after(_LEAVE_TIMEOUT_S), suppress(MetadataError):
            await withdraw(self._store, self.identity.broker_id, self._guard)

    async def release_all(self) -> None:
        """Release all bundles."""
        async with trio.open_nursery() as nursery:
            for bundle in self.owned:
                nursery.start_soon(self._try_release, bundle)

    async def leave(self) -> None:
        """Finish leaving: delete our records, so that no peer has to find out that we are gone."""
        me = Member(self.identity.broker_id, self._store.session_id, self._registration)
        with trio.move_on_after(_LEAVE_TIMEOUT_S), suppress(MetadataError):
            await remove(self._store, me)

    async def _try_release(self, bundle: BundleName) -> None:
        try:
            await self.release(bundle)
        except UnavailableError:
            self._topics.drop_bundle(bundle)  # The end of the session deletes its record.

    async def _wait(
        self,
        waiting: dict[BundleName, list[_Waiter]],
        bundle: BundleName,
        waiter: _Waiter,
        ask: Callable[[BundleName], list[Effect]],
        timeout_s: float,
    ) -> None:
        waiters = waiting.setdefault(bundle, [])
        waiters.append(waiter)
        try:
            self._perform_all(ask(bundle))
            with trio.move_on_after(timeout_s):
                await waiter.done.wait()
        finally:
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters and waiting.get(bundle) is waiters:
                del waiting[bundle]

    # -- the protocol

    def _session_changed(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._log.warning(
                "no contact with the metadata store; the broker keeps trying", session=state.name
            )
        elif not self.contact:
            self._log.info("the broker is in contact with the metadata store")
        self._perform_all(self._protocol.session_changed(state))

    def _perform_all(self, effects: Sequence[Effect]) -> None:
        """Carry out the effects of an input without a checkpoint: no other task runs in between."""
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Join(term):
                if not self._closing:
                    self._start(self._join, term)
            case ReadGuard(term):
                self._start(self._read_guard, term)
            case CreateRecord(bundle, ask):
                self._start(self._create, bundle, ask)
            case ReadRecord(bundle, ask):
                self._start(self._read, bundle, ask)
            case DeleteRecord(bundle, ask):
                self._start(self._delete, bundle, ask)
            case CloseTopics(bundle, ask):
                self._start(self._close, bundle, ask)
            case DropTopics(bundle):
                self._log.warning(
                    "this broker lost a bundle and drops its topics; another broker may serve them",
                    bundle=bundle,
                )
                self._topics.drop_bundle(bundle)
            case Answered(bundle, answer):
                _settle(self._acquiring, bundle, answer)
            case Released(bundle, done):
                answer = Answer.OURS if done else Answer.UNAVAILABLE
                _settle(self._releasing, bundle, answer)
            case _:
                assert_never(effect)

    def _start(self, task: Callable[..., object], *args: object) -> None:
        if self._nursery is not None:  # None: this broker is ending
            self._nursery.start_soon(task, *args)  # type: ignore[arg-type]

    # -- the guard

    async def _join(self, term: int) -> None:
        async with self._joining:  # An earlier attempt, no longer wanted, ends soon.
            guard = await join(
                self._store,
                self.identity,
                self._registration,
                formats=self._formats,
                term=term,
                wanted=lambda: self._protocol.term == term,
                is_dead=self._is_dead,
                bound=self._bound,
            )
        if guard is not None and self._protocol.term == term:
            self._guard = guard
            self._log.info("this broker joined the cluster", term=term)
            # This comes before the read, whose answer counts only when joined.
            self._perform_all(self._protocol.joined(term))
            self._joined.set()
            await self._read_guard(term)  # sets the watch

    async def _read_guard(self, term: int) -> None:
        """Read our guard, again and again until there is an answer or the contact is lost."""
        assert self._guard is not None
        path = self._guard.path
        while self._protocol.term == term and self._protocol.membership is Membership.IN:
            try:
                record = await self._store.get(path, lambda: self._guard_touched(term))
            except MetadataError:
                if self._store.session_state is not SessionState.CONNECTED:
                    return  # It is read again when the session is connected.
                await trio.sleep(_RETRY_S)
                continue
            stands = record is not None and record.stat.owner == self._store.session_id
            self._perform_all(self._protocol.guard_seen(term, stands))
            return

    def _guard_touched(self, term: int) -> None:
        self._start(self._read_guard, term)

    # -- the record of a bundle

    async def _create(self, bundle: BundleName, ask: int) -> None:
        assert self._guard is not None
        record = records.encode(self.identity.owner_record)
        operations: list[Operation] = [
            Check(self._guard.path, ANY),
            Create(records.owner_path(bundle), record, ephemeral=True),
        ]
        try:
            await self._ensure_parent(bundle)
            await self._store.multi(operations)
        except StoreUnavailableError:
            self._perform_all(self._protocol.create_failed(bundle, ask))
        except NoRecordError:
            # The check of the guard failed: a peer has removed this broker.
            self._perform_all(self._protocol.create_failed(bundle, ask))
            await self._read_guard(self._protocol.term)
        except MetadataError:
            self._perform_all(self._protocol.create_in_doubt(bundle, ask))
        else:
            self._perform_all(self._protocol.created(bundle, ask))

    async def _ensure_parent(self, bundle: BundleName) -> None:
        parent = records.owner_path(bundle).rpartition("/")[0]
        if await self._store.get(parent) is None:
            try:
                await self._store.create(parent, b"", make_parents=True)
            except RecordExistsError:
                return

    async def _read(self, bundle: BundleName, ask: int) -> None:
        path = records.owner_path(bundle)
        while True:
            # At most one watch per record: each one that fires causes a read.
            watch = None if bundle in self._watched else lambda: self._touched(bundle)
            self._watched.add(bundle)
            try:
                record = await self._store.get(path, watch)
                break
            except MetadataError:
                if watch is not None:
                    self._watched.discard(bundle)
                await trio.sleep(_RETRY_S)
                if self._store.session_state is not SessionState.CONNECTED:
                    self._perform_all(self._protocol.read_failed(bundle, ask))
                    return
        if record is None:
            owner = RecordOwner.NOBODY
        elif record.stat.owner == self._store.session_id:
            owner = RecordOwner.OURS
        else:
            owner = RecordOwner.OTHERS
        self._perform_all(self._protocol.record_read(bundle, ask, owner))

    def _touched(self, bundle: BundleName) -> None:
        self._watched.discard(bundle)
        self._perform_all(self._protocol.record_touched(bundle))

    async def _delete(self, bundle: BundleName, ask: int) -> None:
        assert self._guard is not None
        try:
            await self._store.multi(delete_under_guard(self._guard, records.owner_path(bundle)))
        except MetadataError as error:
            # The record may be gone, ours still, or its guard: reading it tells.
            self._perform_all(self._protocol.delete_in_doubt(bundle, ask))
            if isinstance(error, NoRecordError):
                await self._read_guard(self._protocol.term)
        else:
            self._perform_all(self._protocol.deleted(bundle, ask))

    async def _close(self, bundle: BundleName, ask: int) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT_S) as scope:
            await self._topics.close_bundle(bundle)
        if scope.cancelled_caught:
            self._topics.drop_bundle(bundle)  # The next owner recovers its ledgers.
        self._perform_all(self._protocol.topics_closed(bundle, ask))


def _settle(waiting: dict[BundleName, list[_Waiter]], bundle: BundleName, answer: Answer) -> None:
    for waiter in waiting.pop(bundle, []):
        waiter.answer = answer
        waiter.done.set()
