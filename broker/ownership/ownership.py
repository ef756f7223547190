"""The bundles that this broker owns, by records in the store: the shell of `protocol.ownership`.

`run` joins the cluster, and joins again after a lost session or when a peer has removed this
broker; after a pause if that is repeated (`protocol.rejoining`).  A lookup calls `acquire`; the
loading of a topic asks `may_load`.  The topics of a bundle are closed in good order when it is
released, and dropped at once when it is lost.

A bundle is handed over in four steps (`hand_over` begins them, see `ownership.hand_over`):

    1  The successor is told to expect the bundle.  Its clients wait there from now on.
    2  This broker closes the topics.  Its lookups name the successor, and so do its closes.  It
       closes a few topics at a time, which the successor loads at once, and serves the others
       meanwhile (`protocol.hand_over`).
    3  The successor takes the record.  One request deletes ours, creates the next one and gives
       our guard another version, so nobody else can own the bundle in between.
    4  The successor loads the topics for the clients that wait.

If the successor does not take the record, this broker deletes it.  If this broker dies, its record
goes with its session or its guard.  In both cases the successor sees that, and acquires the bundle.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import assert_never

import msgspec
import trio

from daybook.bookie.registry.instance import InstanceBinding
from daybook.broker.connected_client import NO_SUCCESSOR, SuccessorUrls
from daybook.broker.errors import BrokerError, UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import BrokerRecord, BundlesData, Successor
from daybook.broker.ownership.expected import ExpectedBundle
from daybook.broker.ownership.membership import (
    DeathCheck,
    Guard,
    Identity,
    Member,
    delete_under_guard,
    join,
    owner_record,
    remove,
    withdraw,
)
from daybook.broker.protocol.bundles import (
    BundleName,
    Bundles,
    bundle_name,
    contains,
    namespace_of,
    parts_of,
    range_of,
)
from daybook.broker.protocol.hand_over import GROUPS_AT_ONCE, PassedOn
from daybook.broker.protocol.ownership import (
    Answer,
    Answered,
    CloseTopics,
    CreateRecord,
    DeleteRecord,
    DropTopics,
    Effect,
    GiveRecord,
    Join,
    Membership,
    OwnershipProtocol,
    ReadGuard,
    ReadRecord,
    RecordOwner,
    Released,
    SplitRecord,
    TakeRecord,
)
from daybook.broker.protocol.rejoining import RejoinPauses
from daybook.broker.topics.topics import Topics
from daybook.wire.errors import MalformedError
from daybook.wire.logging import Log
from daybook.wire.metadata.store import (
    ANY,
    Check,
    Create,
    Delete,
    MetadataError,
    MetadataStore,
    NoRecordError,
    Operation,
    Record,
    RecordExistsError,
    SessionState,
    Set,
    StoreUnavailableError,
    VersionConflictError,
)
from daybook.wire.topics import TopicName

_RETRY_S = 0.1
_ACQUIRE_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 10.0
_LEAVE_TIMEOUT_S = 2.0  # then the end of the session does the same
_EXPECTED_MAX = 4096
_RELEASES_AT_ONCE = 32
_GROUP_S = 0.25  # the time in which a group of topics changes hands
_CONFLICTS_MAX = 100  # with other bundles of the same giver, or of the same namespace


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ownership record of a broker that gives its bundle, in the words of the store.

    `created_txid` is never used twice, so a ticket that comes late fits no later record.
    """

    guard: str
    created_txid: int


@dataclass(frozen=True, slots=True)
class Receiver:
    """The calls to the broker that gets a bundle; each raises a BrokerError if it fails.

    `hold` tells the hashes of the topics that the owner still serves, `pass_on` the names of topics
    that it has closed, and those in use among them, which the receiver loads.  `give` lets the
    receiver take the record.
    """

    hold: Callable[[Ticket, Sequence[int]], Awaitable[None]]
    pass_on: Callable[[Ticket, Sequence[str], Sequence[str]], Awaitable[None]]
    give: Callable[[Ticket], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _HandOver:
    successor: Successor
    receiver: Receiver
    ticket: Ticket
    topics: PassedOn
    taken: trio.Event = field(default_factory=trio.Event)


WhyNotReached = Callable[[Member], Awaitable[str]]
"""Asks the service port of a broker as its peers do; returns what they find wrong, or ""."""


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
        why_not_reached: WhyNotReached,
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
        self._why_not_reached = why_not_reached
        self._pauses = RejoinPauses()
        self._join_at_s = -inf  # not before, because others have removed this broker
        self._protocol = OwnershipProtocol()
        self._nursery: trio.Nursery | None = None
        self._guard: Guard | None = None  # the guard of the latest join
        # The callers that wait for the end of an acquisition, and of a release.
        self._acquiring: dict[BundleName, list[_Waiter]] = {}
        self._releasing: dict[BundleName, list[_Waiter]] = {}
        self._watched: set[BundleName] = set()  # their records have a watch
        self._leaving: dict[BundleName, _HandOver] = {}  # handed over to another broker
        self._expected: dict[BundleName, ExpectedBundle] = {}  # handed over to us
        self._noticing: dict[BundleName, trio.Event] = {}  # their records are being read
        self._tickets: dict[BundleName, Ticket] = {}  # for bundles that are to be taken
        self._points: dict[BundleName, Sequence[int]] = {}  # for bundles that are being split
        self._bound: InstanceBinding | None = None
        self._joining = trio.Lock()
        self._joined = trio.Event()
        self._closing = False
        self._put_off: int | None = None  # the term in which this broker would have joined

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
    def guard(self) -> Guard | None:
        """Return the guard of the latest join; None before the first one."""
        return self._guard

    @property
    def owned(self) -> list[BundleName]:
        return self._protocol.owned

    def owns_bundle(self, bundle: BundleName) -> bool:
        return self._protocol.owns(bundle)

    def owns(self, topic: TopicName) -> bool:
        """Return True if this broker owns the topic's bundle, as far as it knows.

        The answer stays True while the session is suspended.
        """
        bundle = self._bundle_of(topic)
        if bundle is None:
            return False
        return self._protocol.owns(bundle) or self._is_passed_on(bundle, topic)

    def may_load(self, topic: TopicName) -> bool:
        """Return True if the topic may be loaded now, if it is not loaded yet."""
        bundle = self._bundle_of(topic)
        if self._closing or bundle is None:
            return False
        if self._protocol.may_load(bundle):
            return True
        return self.contact and self._is_passed_on(bundle, topic)

    def _is_passed_on(self, bundle: BundleName, topic: TopicName) -> bool:
        """Return True if the owner of the bundle has closed the topic, so that we serve it."""
        expected = self._expected.get(bundle)
        return expected is not None and expected.may_load(topic.bundle_hash)

    def _bundle_of(self, topic: TopicName) -> BundleName | None:
        for bundle in self._points:  # The watch may report the parts before the answer comes.
            inside = contains(bundle, topic.namespace, topic.bundle_hash)
            if inside and self._protocol.owns(bundle):
                return bundle
        return self._policies.known_bundle_of(topic)

    def expects(self, bundle: BundleName) -> bool:
        """Return True while another broker hands the bundle over to this one."""
        return bundle in self._expected

    def successor_of(self, bundle: BundleName) -> Successor | None:
        """Return the broker to which this one hands the bundle over, if it does."""
        leaving = self._leaving.get(bundle)
        return None if leaving is None else leaving.successor

    def keeps(self, topic: TopicName) -> bool:
        """Return True if the bundle is handed over, and this broker still serves the topic."""
        bundle = self._policies.known_bundle_of(topic)
        leaving = None if bundle is None else self._leaving.get(bundle)
        return leaving is not None and leaving.topics.keeps(topic.full)

    async def wait_handed_over(self, topic: TopicName) -> None:
        """Return when this broker need not wait for the topic's former owner any more.

        A record that makes the bundle ours, and of which this broker does not know, is noticed
        here.
        """
        bundle = self._policies.known_bundle_of(topic)
        expected = None if bundle is None else self._expected.get(bundle)
        if expected is not None:
            await expected.wait(topic.bundle_hash)
            return
        with suppress(BrokerError, MetadataError):  # The client comes again.
            await self._notice(await self._policies.bundle_of(topic))

    async def _notice(self, bundle: BundleName) -> None:
        """Own the bundle if its record says so.

        A request without an answer may have been carried out after its record was read.  Other
        brokers then send clients here, and no lookup would tell this broker that they are right.
        """
        if not self.contact or self._closing or self._protocol.state_of(bundle) is not None:
            return
        noticing = self._noticing.get(bundle)
        if noticing is not None:  # One read is for all clients that ask at the same time.
            await noticing.wait()
            return
        self._noticing[bundle] = trio.Event()
        try:
            record = await self._store.get(records.owner_path(bundle))
            if record is not None and record.stat.owner == self._store.session_id:
                await self.acquire(bundle)
        finally:
            self._noticing.pop(bundle).set()

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

    # -- handing a bundle over

    async def hand_over(self, bundle: BundleName, successor: Successor, receiver: Receiver) -> bool:
        """Close the bundle's topics, and let the successor, which expects it, take the record.

        Return False if this broker has released the bundle, and the successor may not have it.
        Raise UnavailableError if the bundle cannot be released now; then nothing has changed.
        """
        guard = self._guard
        try:
            record = await self._store.get(records.owner_path(bundle))
        except MetadataError as error:
            raise UnavailableError(f"the bundle {bundle} cannot be moved now: {error}") from error
        if guard is None or record is None or record.stat.owner != self._store.session_id:
            raise UnavailableError(f"this broker does not own {bundle}: look it up again")
        if bundle in self._leaving:
            raise UnavailableError(f"the bundle {bundle} is being moved already")
        # From the same turn on the bundle has no new topics, so none is missed.
        leaving = self._leaving[bundle] = _HandOver(
            successor,
            receiver,
            Ticket(guard.path, record.stat.created_txid),
            PassedOn(self._topics.with_hashes(bundle), target_s=_GROUP_S),
        )
        try:
            waiter = _Waiter()
            # Each group of topics has its own limit of time, and so have the record's requests.
            await self._wait(self._releasing, bundle, waiter, self._protocol.hand_over, inf)
        finally:
            del self._leaving[bundle]
        if waiter.answer is not Answer.OURS:
            raise UnavailableError(f"the bundle {bundle} cannot be moved now: try again")
        return leaving.taken.is_set()

    def expect(self, bundle: BundleName) -> None:
        """Let clients wait here for the bundle: another broker is about to hand it over.

        Raise UnavailableError if this broker cannot own it.
        """
        if self._closing or not self.contact or len(self._expected) >= _EXPECTED_MAX:
            raise UnavailableError("this broker takes no bundles now")
        if bundle not in self._expected and not self._protocol.owns(bundle):
            expected = self._expected[bundle] = ExpectedBundle()
            self._start(self._follow, bundle, expected)

    def expect_no_longer(self, bundle: BundleName) -> None:
        """Let clients wait no longer: the other broker has kept the bundle."""
        expected = self._expected.get(bundle)
        if expected is not None:
            self._end_expectation(bundle, expected)

    def _end_expectation(self, bundle: BundleName, expected: ExpectedBundle) -> None:
        if self._expected.get(bundle) is expected:
            del self._expected[bundle]
            if expected.loads and not self._protocol.owns(bundle):
                self._topics.drop_bundle(bundle)  # Another broker may serve them now.
        expected.end()

    async def hold(self, bundle: BundleName, ticket: Ticket, hashes: Sequence[int]) -> None:
        """The owner still serves these topics of an expected bundle, and no others.

        Raise UnavailableError if this broker does not expect the bundle from that owner.
        """
        (await self._expected_with(bundle, ticket)).hold(hashes)

    async def pass_on(self, bundle: BundleName, ticket: Ticket, hashes: Sequence[int]) -> None:
        """The owner of an expected bundle has closed these topics: they may be loaded here.

        Raise UnavailableError if this broker does not expect the bundle from that owner.
        """
        (await self._expected_with(bundle, ticket)).pass_on(hashes)

    async def _expected_with(self, bundle: BundleName, ticket: Ticket) -> ExpectedBundle:
        """Return the expected bundle if the ticket is good for it.  Raise UnavailableError."""
        expected = self._expected.get(bundle)
        if expected is not None and not self._closing and expected.ticket != ticket:
            _check_guard(bundle, ticket)
            try:
                guard = await self._store.get(ticket.guard)
                record = await self._store.get(records.owner_path(bundle))
            except MetadataError as error:
                raise UnavailableError(f"the owner of {bundle} cannot be read: {error}") from error
            if guard is None or record is None or not _fits(ticket, guard, record):
                raise UnavailableError(f"the ticket for the bundle {bundle} is not good any more")
            expected.ticket = ticket
        if expected is None or expected.ended or self._closing:
            raise UnavailableError(f"this broker does not expect the bundle {bundle}")
        return expected

    async def _follow(self, bundle: BundleName, expected: ExpectedBundle) -> None:
        """Acquire an expected bundle if its record goes; end when it is ours, or in time."""
        path = records.owner_path(bundle)
        giver: int | None = None  # the session of the broker that hands the bundle over
        try:
            with expected.scope:
                while not self._protocol.owns(bundle) and not expected.ended:
                    touched = trio.Event()
                    try:
                        record = await self._store.get(path, touched.set)
                    except MetadataError:
                        await trio.sleep(_RETRY_S)
                        continue
                    if record is not None and record.stat.owner != self._store.session_id:
                        if giver is not None and record.stat.owner != giver:
                            return  # It went to a third broker, which serves the topics now.
                        giver = record.stat.owner
                        await touched.wait()
                    else:
                        answer = await self.acquire(bundle)
                        if answer is Answer.OTHERS:
                            return  # A third broker was faster.
                        if answer is not Answer.OURS:
                            await trio.sleep(_RETRY_S)
        finally:
            self._end_expectation(bundle, expected)

    async def take(self, bundle: BundleName, ticket: Ticket) -> None:
        """Take the record of an expected bundle, which its owner gives.

        Raise UnavailableError if this broker does not own the bundle then.
        """
        if self._closing or bundle not in self._expected:
            raise UnavailableError(f"this broker does not expect the bundle {bundle}")
        _check_guard(bundle, ticket)
        self._tickets[bundle] = ticket
        waiter = _Waiter()
        try:
            await self._wait(
                self._acquiring, bundle, waiter, self._protocol.take, _ACQUIRE_TIMEOUT_S
            )
        finally:
            self._tickets.pop(bundle, None)
        if waiter.answer is not Answer.OURS:
            raise UnavailableError(f"this broker could not take the bundle {bundle}")

    # -- splitting a bundle

    async def split(self, bundle: BundleName, points: Sequence[int]) -> None:
        """Split a bundle of ours; its topics are served all the time.

        Raise UnavailableError if it was not split, or may not have been.
        """
        if bundle in self._points:
            raise UnavailableError(f"the bundle {bundle} is being split already")
        self._points[bundle] = points
        try:
            waiter = _Waiter()
            await self._wait(
                self._releasing, bundle, waiter, self._protocol.split, _ACQUIRE_TIMEOUT_S
            )
        finally:
            del self._points[bundle]
        if waiter.answer is not Answer.OURS:
            raise UnavailableError(
                f"the bundle {bundle} may not have been split: list the bundles, and try again"
            )

    # -- the end

    async def withdraw(self) -> bool:
        """Begin to leave: no bundle is placed on this broker or acquired by it from now on.

        Return False if the store did not confirm it: bundles may still be placed here.
        """
        self._closing = True  # before any checkpoint: `may_load` and `acquire` refuse from now on
        if self._guard is None:
            return True  # This broker has never joined.
        with trio.move_on_after(_LEAVE_TIMEOUT_S), suppress(MetadataError):
            await withdraw(self._store, self.identity.broker_id, self._guard)
            return True
        return False

    def stay(self) -> None:
        """Load topics and take bundles again, after a withdrawal that failed."""
        self._closing = False
        if self._put_off is not None and self._put_off == self._protocol.term:
            self._start(self._join, self._put_off)
        self._put_off = None

    async def release_all(self) -> None:
        """Release all bundles, several at a time."""
        bundles = self.owned

        async def work(start: int) -> None:
            for bundle in bundles[start::_RELEASES_AT_ONCE]:
                await self._try_release(bundle)

        async with trio.open_nursery() as nursery:
            for start in range(min(_RELEASES_AT_ONCE, len(bundles))):
                nursery.start_soon(work, start)

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
        if state is SessionState.LOST:
            for expected in self._expected.values():
                expected.scope.cancel()
        self._perform_all(self._protocol.session_changed(state))

    def _perform_all(self, effects: Sequence[Effect]) -> None:
        """Carry out the effects of an input without a checkpoint: no other task runs in between."""
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Join(term):
                if self._closing:
                    self._put_off = term  # until `stay`
                else:
                    self._start(self._join, term)
            case ReadGuard(term):
                self._start(self._read_guard, term)
            case CreateRecord(bundle, ask):
                self._start(self._create, bundle, ask)
            case ReadRecord(bundle, ask):
                self._start(self._read, bundle, ask)
            case DeleteRecord(bundle, ask):
                self._start(self._delete, bundle, ask)
            case GiveRecord(bundle, ask):
                self._start(self._give, bundle, ask)
            case TakeRecord(bundle, ask):
                self._start(self._take, bundle, ask)
            case SplitRecord(bundle, ask):
                self._start(self._split, bundle, ask)
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

    def start_task(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task until the broker ends."""
        self._start(task)

    def _start(self, task: Callable[..., object], *args: object) -> None:
        if self._nursery is not None:  # None: this broker is ending
            self._nursery.start_soon(task, *args)  # type: ignore[arg-type]

    # -- the guard

    async def _join(self, term: int) -> None:
        if trio.current_time() < self._join_at_s:
            await trio.sleep_until(self._join_at_s)
            if self._closing:
                self._put_off = term
                return
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
            self._pauses.joined(trio.current_time())
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
            if not stands and self._protocol.is_in(term):
                self._note_removal()
            self._perform_all(self._protocol.guard_seen(term, stands))
            return

    def _note_removal(self) -> None:
        """Put the next join off, if others have removed this broker again and again."""
        pause_s = self._pauses.removed(trio.current_time())
        if pause_s:
            self._join_at_s = trio.current_time() + pause_s
            self._start(self._tell_removal, pause_s)
        else:
            self._log.warning("another broker took this one for dead; it joins again at once")

    async def _tell_removal(self, pause_s: float) -> None:
        me = Member(self.identity.broker_id, self._store.session_id, self._registration)
        why = await self._why_not_reached(me)
        self._log.warning(
            "other brokers remove this one again and again, because they take it for dead: it"
            " waits before it joins again",
            pause_s=pause_s,
            why=why or "this broker reaches itself, so ask the logs of the others why they do not",
        )

    def _guard_touched(self, term: int) -> None:
        self._start(self._read_guard, term)

    # -- the record of a bundle

    async def _create(self, bundle: BundleName, ask: int) -> None:
        assert self._guard is not None
        record = records.encode(self.identity.owner_record)
        namespace = namespace_of(bundle)
        try:
            # The version proves that the bundle is not split before its record is there.
            bundles, version = await self._policies.read_bundles(namespace)
            if range_of(bundle) not in bundles.ranges():
                self._policies.bundles_changed(namespace, bundles)
                self._perform_all(self._protocol.create_failed(bundle, ask))
                return
            operations: list[Operation] = [
                Check(self._guard.path, ANY),
                Check(records.local_policies_path(namespace), version),
                Create(records.owner_path(bundle), record, ephemeral=True),
            ]
            await self._ensure_parent(bundle)
            await self._store.multi(operations)
        except (BrokerError, StoreUnavailableError, VersionConflictError):
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
        """Delete our record, but never that of a successor which has taken it meanwhile.

        A taking gives our guard another version.  So the guard is read before the record.
        """
        assert self._guard is not None
        path = records.owner_path(bundle)
        try:
            guard, record = await self._store.get(self._guard.path), await self._store.get(path)
            if guard is None or record is None or record.stat.owner != self._store.session_id:
                raise NoRecordError(f"{path} is not ours any more")
            touch = Set(self._guard.path, guard.value, guard.stat.version)
            await self._store.multi([touch, Delete(path, record.stat.version)])
        except MetadataError as error:
            # The record may be gone, ours still, or its guard: reading it tells.
            self._perform_all(self._protocol.delete_in_doubt(bundle, ask))
            if isinstance(error, NoRecordError):
                await self._read_guard(self._protocol.term)
        else:
            self._perform_all(self._protocol.deleted(bundle, ask))

    async def _give(self, bundle: BundleName, ask: int) -> None:
        leaving = self._leaving.get(bundle)
        try:
            if leaving is None:  # The caller has given up: nobody knows the successor.
                raise UnavailableError("there is no successor")
            await leaving.receiver.give(leaving.ticket)
            leaving.taken.set()
        except BrokerError as error:
            self._log.warning(
                "the next owner of a bundle did not take it; any broker may own it now",
                bundle=bundle,
                why=str(error),
            )
            self._perform_all(self._protocol.delete_in_doubt(bundle, ask))
        else:
            self._perform_all(self._protocol.deleted(bundle, ask))

    async def _take(self, bundle: BundleName, ask: int) -> None:
        """Replace the giver's record by ours.

        The giver's guard is read before its record, and gets another version in the same step.  So
        the record is still the giver's own, and a peer that removes the giver meanwhile has read
        the old version and deletes nothing of ours.
        """
        ticket, own = self._tickets.get(bundle), self._guard
        assert own is not None
        path = records.owner_path(bundle)
        try:
            for _ in range(_CONFLICTS_MAX):
                guard = None if ticket is None else await self._store.get(ticket.guard)
                record = await self._store.get(path)
                if ticket is None or guard is None or record is None:
                    break
                if not _fits(ticket, guard, record):
                    break
                ours = records.encode(self.identity.owner_record)
                operations: list[Operation] = [
                    Check(own.path, ANY),
                    Set(ticket.guard, guard.value, guard.stat.version),
                    Delete(path, record.stat.version),
                    Create(path, ours, ephemeral=True),
                ]
                try:
                    await self._store.multi(operations)
                except VersionConflictError:
                    continue  # Another bundle of the same broker was given at the same time.
                self._perform_all(self._protocol.created(bundle, ask))
                return
        except StoreUnavailableError:
            pass
        except NoRecordError:
            # Our guard, or the giver's, is gone.
            self._perform_all(self._protocol.create_failed(bundle, ask))
            await self._read_guard(self._protocol.term)
            return
        except MetadataError:
            self._perform_all(self._protocol.create_in_doubt(bundle, ask))
            return
        self._perform_all(self._protocol.create_failed(bundle, ask))

    async def _split(self, bundle: BundleName, ask: int) -> None:
        """Replace the boundaries and our record, in one request under our guard."""
        assert self._guard is not None
        # Without points, the caller has given up before this task began.
        namespace, range_, points = namespace_of(bundle), range_of(bundle), self._points.get(bundle)
        path = records.local_policies_path(namespace)
        parts = [bundle_name(namespace, part) for part in parts_of(range_, points or ())]
        owner = records.encode(self.identity.owner_record)
        try:
            for _ in range(_CONFLICTS_MAX):
                record = await self._store.get(path)
                if record is None or points is None:
                    break
                fields = records.decode(dict[str, object], record.value)
                old = msgspec.convert(fields["bundles"], BundlesData)
                new = Bundles.parse(old.boundaries).split(range_, points)
                fields["bundles"] = BundlesData.from_bundles(new)
                operations: list[Operation] = [
                    *delete_under_guard(self._guard, records.owner_path(bundle)),
                    Set(path, records.encode(fields), record.stat.version),
                    *(Create(records.owner_path(part), owner, ephemeral=True) for part in parts),
                ]
                try:
                    await self._store.multi(operations)
                except VersionConflictError:
                    continue  # Another bundle of the namespace was split at the same time.
                # No checkpoint between these: topics belong to a bundle of ours all the time.
                self._policies.bundles_changed(namespace, new)
                self._perform_all(self._protocol.split_done(bundle, ask, parts))
                return
        except (MetadataError, MalformedError, KeyError, ValueError) as error:
            # A record with bundles that are not valid raises one of the last three.
            self._log.warning("a bundle may not have been split", bundle=bundle, why=str(error))
        self._perform_all(self._protocol.split_failed(bundle, ask))

    async def _announce(self, leaving: _HandOver, bundle: BundleName) -> None:
        """Name the successor in our record, for lookups at other brokers.

        It is not needed, so it is tried once.  The version of the guard shows that the record is
        still ours.
        """
        path = records.owner_path(bundle)
        with suppress(MetadataError):
            guard = await self._store.get(leaving.ticket.guard)
            record = await self._store.get(path)
            if guard is None or record is None or record.stat.owner != self._store.session_id:
                return
            named = owner_record(record)
            named.disabled, named.successor = True, leaving.successor
            await self._store.multi(
                [
                    Check(leaving.ticket.guard, guard.stat.version),
                    Set(path, records.encode(named), record.stat.version),
                ]
            )

    async def _close(self, bundle: BundleName, ask: int) -> None:
        leaving = self._leaving.get(bundle)
        urls = NO_SUCCESSOR if leaving is None else _urls(leaving.successor)
        if leaving is not None:
            self._start(self._announce, leaving, bundle)
            if not leaving.topics.fits_at_once:
                # The successor may serve topics that store nothing from the first group on.
                self._topics.non_persistent.close_bundle(bundle, urls)
                await self._pass_on(bundle, leaving)
            leaving.topics.take_all()  # From here on the successor answers for all of them.
        with trio.move_on_after(_CLOSE_TIMEOUT_S) as scope:
            await self._topics.close_bundle(bundle, urls)
        if scope.cancelled_caught:
            self._topics.drop_bundle(bundle)  # The next owner recovers its ledgers.
        self._perform_all(self._protocol.topics_closed(bundle, ask))

    async def _pass_on(self, bundle: BundleName, leaving: _HandOver) -> None:
        """Hand the topics over group by group.  After an error the rest stays for the caller."""
        topics, ticket, failed = leaving.topics, leaving.ticket, False

        async def work() -> None:
            nonlocal failed
            # A caller that has given up, or a lost session, ends it, too.
            while not failed and self._leaving.get(bundle) is leaving and self.contact:
                names = topics.next_group()
                if not names:
                    return
                began = trio.current_time()
                used = self._topics.in_use(names)
                with trio.move_on_after(_CLOSE_TIMEOUT_S) as scope:
                    await self._topics.close_names(names, _urls(leaving.successor))
                if scope.cancelled_caught:
                    return  # They are closed or dropped with the bundle.
                try:
                    await leaving.receiver.pass_on(ticket, names, used)
                except BrokerError as error:
                    failed = True
                    self._log.warning(
                        "the next owner of a bundle does not load its topics",
                        bundle=bundle,
                        why=str(error),
                    )
                topics.took(len(names), trio.current_time() - began)

        try:
            await leaving.receiver.hold(ticket, topics.hashes)
        except BrokerError as error:
            self._log.warning(
                "the next owner of a bundle takes its topics only together",
                bundle=bundle,
                why=str(error),
            )
            return
        async with trio.open_nursery() as nursery:
            for _ in range(GROUPS_AT_ONCE):
                nursery.start_soon(work)


def _check_guard(bundle: BundleName, ticket: Ticket) -> None:
    """Raise UnavailableError if the ticket, which comes from the network, names no guard."""
    parent, _, name = ticket.guard.rpartition("/")
    if parent != records.GUARDS or name in ("", ".", "..") or not name.isprintable():
        raise UnavailableError(
            f"this broker could not take the bundle {bundle}: its ticket names no guard"
        )


def _fits(ticket: Ticket, guard: Record, record: Record) -> bool:
    """Return True if the record is the one of the ticket, and of the broker that gave that out."""
    theirs = record.stat.owner == guard.stat.owner
    return theirs and record.stat.created_txid == ticket.created_txid


def _settle(waiting: dict[BundleName, list[_Waiter]], bundle: BundleName, answer: Answer) -> None:
    for waiter in waiting.pop(bundle, []):
        waiter.answer = answer
        waiter.done.set()


def _urls(successor: Successor) -> SuccessorUrls:
    return SuccessorUrls(successor.native_url or "", successor.native_url_tls or "")
