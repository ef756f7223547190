"""The bundles that this broker owns, by records in the store: the shell of `protocol.ownership`.

`run` joins the cluster, and joins again after a lost session or when a peer has removed this broker
(`ownership.registration`).  A lookup calls `acquire`; the loading of a topic asks `may_load`.  The
topics of a bundle are closed in good order when it is released, and dropped at once when it is
lost.  The requests about the record of a bundle are in `ownership.owner_records`.

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
from math import inf
from typing import assert_never

import trio

from daybook.bookie.registry.instance import InstanceBinding
from daybook.broker.connected_client import NO_SUCCESSOR
from daybook.broker.errors import BrokerError, UnavailableError
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import BrokerRecord, Successor
from daybook.broker.ownership.expected import ExpectedBundle, ExpectedBundles
from daybook.broker.ownership.leaving import LeavingBundle, Receiver
from daybook.broker.ownership.membership import DeathCheck, Guard, Identity
from daybook.broker.ownership.owner_records import OwnerRecords, RecordOutcome, Ticket, check_guard
from daybook.broker.ownership.registration import Registration, WhyNotReached
from daybook.broker.protocol.bundles import BundleName, contains
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
    OwnershipProtocol,
    ReadGuard,
    ReadRecord,
    Released,
    SplitRecord,
    TakeRecord,
)
from daybook.broker.topics.topics import Topics
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore, SessionState
from daybook.wire.topics import TopicName

_ACQUIRE_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 10.0
_RELEASES_AT_ONCE = 32


class _Waiter:
    """One caller that waits for the answer about a bundle.  OURS also means: it was released."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer = Answer.UNAVAILABLE


class _Waiters:
    """The callers that wait for answers of one kind, by bundle.  An answer is for all of them."""

    def __init__(self) -> None:
        self._waiting: dict[BundleName, list[_Waiter]] = {}

    async def wait(self, bundle: BundleName, begin: Callable[[], None], timeout_s: float) -> Answer:
        """Wait for the answer from before `begin` on, which may settle it at once."""
        waiter = _Waiter()
        waiters = self._waiting.setdefault(bundle, [])
        waiters.append(waiter)
        try:
            begin()
            with trio.move_on_after(timeout_s):
                await waiter.done.wait()
        finally:
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters and self._waiting.get(bundle) is waiters:
                del self._waiting[bundle]
        return waiter.answer

    def settle(self, bundle: BundleName, answer: Answer) -> None:
        for waiter in self._waiting.pop(bundle, []):
            waiter.answer = answer
            waiter.done.set()


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
        self.identity = identity
        self._log = log
        self._store = store
        self._policies = policies
        self._topics = topics
        self._registration = Registration(
            store,
            identity,
            registration,
            formats=formats,
            is_dead=is_dead,
            why_not_reached=why_not_reached,
            log=log,
        )
        self._owner_records = OwnerRecords(
            store, identity.owner_record, policies, on_touched=self._record_touched, log=log
        )
        self._protocol = OwnershipProtocol()
        self._nursery: trio.Nursery | None = None
        self._joined = trio.Event()
        self._acquiring = _Waiters()  # for the end of an acquisition
        self._releasing = _Waiters()  # for the end of a release
        self._leaving: dict[BundleName, LeavingBundle] = {}  # handed over to another broker
        self._expected = ExpectedBundles(  # handed over to us
            store,
            self._owner_records,
            acquire=self.acquire,
            owns=self._protocol.owns,
            drop=topics.drop_bundle,
            start=self._start,
        )
        self.sessions_lost = 0
        self._lost_at_s: float | None = None  # when the last session was lost
        self._noticing: dict[BundleName, trio.Event] = {}  # their records are being read
        self._tickets: dict[BundleName, Ticket] = {}  # for bundles that are to be taken
        self._points: dict[BundleName, Sequence[int]] = {}  # for bundles that are being split

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
        self._registration.bind(bound)

    # -- properties

    @property
    def contact(self) -> bool:
        """Return True if the store is in reach and our guard was seen in this session."""
        return self._protocol.contact

    @property
    def guard(self) -> Guard | None:
        """Return the guard of the latest join; None before the first one."""
        return self._registration.guard

    @property
    def session_lost_ago_s(self) -> float | None:
        """Return how long ago the last session was lost; None if none was."""
        return None if self._lost_at_s is None else trio.current_time() - self._lost_at_s

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
        return self._protocol.owns(bundle) or self._expected.may_load(bundle, topic.bundle_hash)

    def may_load(self, topic: TopicName) -> bool:
        """Return True if the topic may be loaded now, if it is not loaded yet."""
        bundle = self._bundle_of(topic)
        if self._registration.withdrawn or bundle is None:
            return False
        if self._protocol.may_load(bundle):
            return True
        return self.contact and self._expected.may_load(bundle, topic.bundle_hash)

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
        return leaving is not None and leaving.keeps(topic.full)

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
        if not self.contact or self._registration.withdrawn:
            return
        if self._protocol.state_of(bundle) is not None:
            return
        noticing = self._noticing.get(bundle)
        if noticing is not None:  # One read is for all clients that ask at the same time.
            await noticing.wait()
            return
        self._noticing[bundle] = trio.Event()
        try:
            if await self._owner_records.names_us(bundle):
                await self.acquire(bundle)
        finally:
            self._noticing.pop(bundle).set()

    # -- acquiring and releasing

    async def acquire(self, bundle: BundleName) -> Answer:
        """Own the bundle, if no broker does, and return who owns it."""
        if self._registration.withdrawn:
            await trio.lowlevel.checkpoint()
            return Answer.UNAVAILABLE
        return await self._wait(self._acquiring, bundle, self._protocol.acquire, _ACQUIRE_TIMEOUT_S)

    async def release(self, bundle: BundleName) -> None:
        """Close the bundle's topics, then delete its record.  Raise UnavailableError."""
        timeout_s = _CLOSE_TIMEOUT_S + _ACQUIRE_TIMEOUT_S
        answer = await self._wait(self._releasing, bundle, self._protocol.release, timeout_s)
        if answer is not Answer.OURS:
            raise UnavailableError(f"the bundle {bundle} cannot be released now: try again")

    # -- handing a bundle over

    async def hand_over(self, bundle: BundleName, successor: Successor, receiver: Receiver) -> bool:
        """Close the bundle's topics, and let the successor, which expects it, take the record.

        Return False if this broker has released the bundle, and the successor may not have it.
        Raise UnavailableError if the bundle cannot be released now; then nothing has changed.
        """
        ticket = await self._owner_records.ticket(bundle, self._registration.guard)
        if bundle in self._leaving:
            raise UnavailableError(f"the bundle {bundle} is being moved already")
        # From the same turn on the bundle has no new topics, so none is missed.
        leaving = self._leaving[bundle] = LeavingBundle(
            bundle, successor, receiver, ticket, self._topics, self._log
        )
        try:
            # Each group of topics has its own limit of time, and so have the record's requests.
            answer = await self._wait(self._releasing, bundle, self._protocol.hand_over, inf)
        finally:
            leaving.give_up()
            del self._leaving[bundle]
        if answer is not Answer.OURS:
            raise UnavailableError(f"the bundle {bundle} cannot be moved now: try again")
        return leaving.taken

    def expect(self, bundle: BundleName) -> None:
        """Let clients wait here for the bundle: another broker is about to hand it over.

        Raise UnavailableError if this broker cannot own it.
        """
        if self._registration.withdrawn or not self.contact or self._expected.full:
            raise UnavailableError("this broker takes no bundles now")
        self._expected.add(bundle)

    def expect_no_longer(self, bundle: BundleName) -> None:
        """Let clients wait no longer: the other broker has kept the bundle."""
        self._expected.remove(bundle)

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
        if not self._registration.withdrawn:
            expected = await self._expected.given_by(bundle, ticket)
            if not self._registration.withdrawn:
                return expected
        raise UnavailableError(f"this broker does not expect the bundle {bundle}")

    async def take(self, bundle: BundleName, ticket: Ticket) -> None:
        """Take the record of an expected bundle, which its owner gives.

        Raise UnavailableError if this broker does not own the bundle then.
        """
        if self._registration.withdrawn or bundle not in self._expected:
            raise UnavailableError(f"this broker does not expect the bundle {bundle}")
        check_guard(bundle, ticket)
        self._tickets[bundle] = ticket
        try:
            answer = await self._wait(
                self._acquiring, bundle, self._protocol.take, _ACQUIRE_TIMEOUT_S
            )
        finally:
            self._tickets.pop(bundle, None)
        if answer is not Answer.OURS:
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
            answer = await self._wait(
                self._releasing, bundle, self._protocol.split, _ACQUIRE_TIMEOUT_S
            )
        finally:
            del self._points[bundle]
        if answer is not Answer.OURS:
            raise UnavailableError(
                f"the bundle {bundle} may not have been split: list the bundles, and try again"
            )

    # -- the end

    async def withdraw(self) -> bool:
        """Begin to leave: no bundle is placed on this broker or acquired by it from now on.

        Return False if the store did not confirm it: bundles may still be placed here.
        """
        return await self._registration.withdraw()

    def stay(self) -> None:
        """Load topics and take bundles again, after a withdrawal that failed."""
        term = self._registration.stay()
        if term is not None and term == self._protocol.term:
            self._start(self._join, term)

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
        await self._registration.leave()

    async def _try_release(self, bundle: BundleName) -> None:
        try:
            await self.release(bundle)
        except UnavailableError:
            self._topics.drop_bundle(bundle)  # The end of the session deletes its record.

    async def _wait(
        self,
        waiters: _Waiters,
        bundle: BundleName,
        ask: Callable[[BundleName], list[Effect]],
        timeout_s: float,
    ) -> Answer:
        return await waiters.wait(bundle, lambda: self._perform_all(ask(bundle)), timeout_s)

    # -- the protocol

    def _session_changed(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._log.warning(
                "no contact with the metadata store; the broker keeps trying", session=state.name
            )
        elif not self.contact:
            self._log.info("the broker is in contact with the metadata store")
        if state is SessionState.LOST:
            self.sessions_lost += 1
            self._lost_at_s = trio.current_time()
            self._expected.cancel_all()
        self._perform_all(self._protocol.session_changed(state))

    def _perform_all(self, effects: Sequence[Effect]) -> None:
        """Carry out the effects of an input without a checkpoint: no other task runs in between."""
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Join(term):
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
                self._acquiring.settle(bundle, answer)
            case Released(bundle, done):
                answer = Answer.OURS if done else Answer.UNAVAILABLE
                self._releasing.settle(bundle, answer)
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
        if await self._registration.join(term, wanted=lambda: self._protocol.term == term):
            # This comes before the read, whose answer counts only when joined.
            self._perform_all(self._protocol.joined(term))
            self._joined.set()
            await self._read_guard(term)  # sets the watch

    async def _read_guard(self, term: int) -> None:
        stands = await self._registration.read_guard(
            wanted=lambda: self._protocol.is_in(term),
            watch=lambda: self._start(self._read_guard, term),
        )
        if stands is None:
            return  # It is read again when the session is connected.
        if not stands and self._protocol.is_in(term):
            pause_s = self._registration.note_removal()
            if pause_s:
                self._start(self._registration.tell_removal, pause_s)
        self._perform_all(self._protocol.guard_seen(term, stands))

    # -- the record of a bundle

    async def _create(self, bundle: BundleName, ask: int) -> None:
        guard = self._registration.guard
        assert guard is not None
        await self._tell_created(bundle, ask, await self._owner_records.create(bundle, guard))

    async def _take(self, bundle: BundleName, ask: int) -> None:
        guard, ticket = self._registration.guard, self._tickets.get(bundle)
        assert guard is not None
        outcome = RecordOutcome.NOT_DONE
        if ticket is not None:  # Otherwise the caller has given up.
            outcome = await self._owner_records.take(bundle, ticket, guard)
        await self._tell_created(bundle, ask, outcome)

    async def _tell_created(self, bundle: BundleName, ask: int, outcome: RecordOutcome) -> None:
        match outcome:
            case RecordOutcome.DONE:
                self._perform_all(self._protocol.created(bundle, ask))
            case RecordOutcome.IN_DOUBT:
                self._perform_all(self._protocol.create_in_doubt(bundle, ask))
            case RecordOutcome.NOT_DONE:
                self._perform_all(self._protocol.create_failed(bundle, ask))
            case RecordOutcome.NO_RECORD:
                self._perform_all(self._protocol.create_failed(bundle, ask))
                await self._read_guard(self._protocol.term)
            case _:
                assert_never(outcome)

    async def _read(self, bundle: BundleName, ask: int) -> None:
        owner = await self._owner_records.read(bundle)
        if owner is None:
            self._perform_all(self._protocol.read_failed(bundle, ask))
        else:
            self._perform_all(self._protocol.record_read(bundle, ask, owner))

    def _record_touched(self, bundle: BundleName) -> None:
        self._perform_all(self._protocol.record_touched(bundle))

    async def _delete(self, bundle: BundleName, ask: int) -> None:
        guard = self._registration.guard
        assert guard is not None
        outcome = await self._owner_records.delete(bundle, guard)
        if outcome is RecordOutcome.DONE:
            self._perform_all(self._protocol.deleted(bundle, ask))
            return
        # The record may be gone, ours still, or its guard: reading it tells.
        self._perform_all(self._protocol.delete_in_doubt(bundle, ask))
        if outcome is RecordOutcome.NO_RECORD:
            await self._read_guard(self._protocol.term)

    async def _give(self, bundle: BundleName, ask: int) -> None:
        leaving = self._leaving.get(bundle)
        try:
            if leaving is None:  # The caller has given up: nobody knows the successor.
                raise UnavailableError("there is no successor")
            await leaving.give()
        except BrokerError as error:
            self._log.warning(
                "the next owner of a bundle did not take it; any broker may own it now",
                bundle=bundle,
                why=str(error),
            )
            self._perform_all(self._protocol.delete_in_doubt(bundle, ask))
        else:
            self._perform_all(self._protocol.deleted(bundle, ask))

    async def _split(self, bundle: BundleName, ask: int) -> None:
        guard, points = self._registration.guard, self._points.get(bundle)
        assert guard is not None
        parts: list[BundleName] | None = None
        if points is not None:  # Otherwise the caller has given up.
            parts = await self._owner_records.split(bundle, points, guard)
        if parts is None:
            self._perform_all(self._protocol.split_failed(bundle, ask))
        else:
            # In the turn in which the policies learn of the parts: topics belong to a bundle of
            # ours all the time.
            self._perform_all(self._protocol.split_done(bundle, ask, parts))

    async def _close(self, bundle: BundleName, ask: int) -> None:
        leaving, urls = self._leaving.get(bundle), NO_SUCCESSOR
        if leaving is not None:
            urls = leaving.urls
            self._start(
                self._owner_records.name_successor, bundle, leaving.ticket, leaving.successor
            )
            await leaving.pass_on(lambda: self.contact)
        with trio.move_on_after(_CLOSE_TIMEOUT_S) as scope:
            await self._topics.close_bundle(bundle, urls)
        if scope.cancelled_caught:
            self._topics.drop_bundle(bundle)  # The next owner recovers its ledgers.
        self._perform_all(self._protocol.topics_closed(bundle, ask))
