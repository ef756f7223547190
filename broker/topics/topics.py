"""The topics that this broker serves: the shell of `protocol.topics`.

    topic = await topics.get(name, create=True)

A topic is loaded once for all callers that want it, if this broker owns its bundle and may load it.
A loaded topic stays until it is unloaded, deleted or dropped.  It is dropped if the broker loses
its bundle, or if its log fails.  `run` belongs in the nursery of the broker.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from random import Random
from typing import assert_never

import trio

from daybook.bookie.errors import LedgerError
from daybook.broker.compaction.topic_compaction import Compactions
from daybook.broker.connected_client import NO_SUCCESSOR, SuccessorUrls
from daybook.broker.dispatch.unacked_limit import UnackedLimit
from daybook.broker.dispatch.watch import DispatchWatch
from daybook.broker.errors import (
    BrokerError,
    ConflictError,
    NotAllowedError,
    NotOwnerError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.limits import TopicLimits
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.bundles import BundleName, contains
from daybook.broker.protocol.deduplication import GENERATED
from daybook.broker.protocol.topics import (
    Abandon,
    Close,
    Discard,
    Effect,
    Fail,
    Give,
    Gone,
    Load,
    NotNow,
    TopicsProtocol,
    TopicState,
)
from daybook.broker.protocol.upkeep import is_inactive
from daybook.broker.topics import deduplication
from daybook.broker.topics.bugs import TopicBugs
from daybook.broker.topics.deduplication import Deduplication
from daybook.broker.topics.idle import IdleTopics
from daybook.broker.topics.loads import Load as LoadUnderWay
from daybook.broker.topics.loads import LoadProgress, Loads
from daybook.broker.topics.non_persistent import NonPersistentTopic, NonPersistentTopics
from daybook.broker.topics.policy_updates import PolicyUpdates
from daybook.broker.topics.publish_limits import publish_rate_limit
from daybook.broker.topics.rates import PERIOD_S
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topic_log import TopicLog, TopicLogs
from daybook.broker.topics.upkeep import Upkeep, use_of
from daybook.broker.topics.waiting_readers import WaitingReaders
from daybook.managed_ledger.errors import FencedError, ManagedLedgerError
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.metadata.store import MetadataError
from daybook.wire.process import Crowd
from daybook.wire.topics import TopicName

_SPREAD = (0.5, 1.5)  # the random factor of a back-off
_CLOSES_AT_ONCE = 64
_TOPICS_PER_TURN = 100  # then other tasks run
_LOADS_LOGGED = 100  # in a minute; the next line says how many more there were


def _is_used(topic: Topic) -> bool:
    return not is_inactive(topic.policies, use_of(topic))


def _no_topic(_topic: TopicName) -> bool:
    return False


class _Waiter:
    """A caller that waits for a topic, or for its end."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.topic: Topic | None = None
        self.error: BrokerError | None = None

    def answer(self, topic: Topic | None, error: BrokerError | None) -> None:
        assert not self.answered.is_set()
        self.topic, self.error = topic, error
        self.answered.set()


class Topics:
    """The topics of one broker.

    `name_prefix` is part of the names of producers for which the client chose none.  It must be
    unique to this start of the broker.
    """

    def __init__(
        self,
        logs: TopicLogs,
        policies: Policies,
        *,
        clock: WallClock,
        rng: Random,
        log: Log,
        name_prefix: str,
        maintain_interval_s: float = 60.0,
        policy_check_interval_s: float = 60.0,
        idle_unload_s: float = 0.0,
        limits: TopicLimits | None = None,
    ) -> None:
        self.logs = logs
        self.limits = limits or TopicLimits()
        self._policies = policies
        self._owns: Callable[[TopicName], bool] = _no_topic
        self._may_load: Callable[[TopicName], bool] = _no_topic
        self._wait_handed_over: Callable[[TopicName], Awaitable[None]] | None = None
        self._clock = clock
        self._rng = rng
        self._log = log
        self._log_limiter = LogLimiter(log)
        self._loads_log = LogLimiter(log, lines_max=_LOADS_LOGGED)
        self.bugs = TopicBugs(log)
        self._name_prefix = name_prefix
        self._maintain_interval_s = maintain_interval_s
        self._protocol = TopicsProtocol()
        self._nursery: trio.Nursery | None = None
        self._loaded: dict[str, Topic] = {}  # the topics that callers get, by full name
        self._by_load: dict[int, Topic] = {}  # all open topics, also those not given to anybody yet
        self._failures: dict[int, BrokerError] = {}  # by load, while its waiters are answered
        self._waiters: dict[int, _Waiter] = {}
        self._waiter_ids = count(1)
        self._compactions = Compactions(self.limits.compaction, clock=clock, rng=rng, log=log)
        self.unacked = UnackedLimit(self.limits.unacked, log)
        self._readers = WaitingReaders()
        published = self.limits.published
        self._published = publish_rate_limit(published.messages_per_s, published.bytes_per_s)
        self._keys: Iterator[int] = count(1)  # for producers and consumers
        self._names = count()
        self._deleting: set[str] = set()  # topics that are deleted instead of closed
        self._deleting_unused: set[str] = set()  # the same, unless they are in use by then
        self.watch = DispatchWatch(
            self._loaded.values,
            self.bugs,
            stalled_s=self.limits.stalled_s,
            clock=clock,
            log=log,
        )
        self.non_persistent = NonPersistentTopics(
            policies,
            clock=clock,
            limits=self.limits,
            published_by_broker=self._published,
            keys=self._keys,
            owns=lambda name: self._owns(name),
            may_load=lambda name: self._may_load(name),
            idle_s=maintain_interval_s,
            bugs=self.bugs,
        )
        self._policy_updates = PolicyUpdates(
            policies,
            logs,
            lambda: self._loaded,
            lambda name: self._start(self.unload, name),
            self.contained,
            interval_s=maintain_interval_s,
        )
        self._upkeep = Upkeep(
            lambda: self._loaded.values(),
            self._delete_unused,
            self.contained,
            interval_s=policy_check_interval_s,
            rng=rng,
            log=log,
        )
        self.sinks: Sinks | None = None  # The broker sets it; without it no sink is applied.
        self._crowd = Crowd()
        self.loads = Loads(self.limits.loads, self._start, log)
        self._idle = IdleTopics(
            self._loaded.values,
            self.rest,
            self.contained,
            idle_s=idle_unload_s,
            rng=rng,
        )
        # For topics with a long list of ledgers: how many sixteenths were used at the last warning.
        self._warned_sixteenths: dict[str, int] = {}

    def attach(
        self,
        *,
        owns: Callable[[TopicName], bool],
        may_load: Callable[[TopicName], bool],
        wait_handed_over: Callable[[TopicName], Awaitable[None]] | None = None,
    ) -> None:
        """Set the rules of ownership, which comes later because it needs the topics itself.

        Before that, no topic is owned, and none may be loaded.  `wait_handed_over` waits while
        another broker hands the topic over to this one.
        """
        self._owns, self._may_load = owns, may_load
        self._wait_handed_over = wait_handed_over

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._readers.run)
            nursery.start_soon(self._tick_rates)
            nursery.start_soon(self.watch.run)
            nursery.start_soon(self._policy_updates.run)
            nursery.start_soon(self._upkeep.run)
            nursery.start_soon(self._idle.run)
            await nursery.start(self.non_persistent.run)
            task_status.started()
            try:
                while True:
                    await trio.sleep(self._maintain_interval_s)
                    for topic in list(self._loaded.values()):
                        with self.contained(topic, "rolling and trimming its ledgers"):
                            await self._maintain(topic)
                    self._warned_sixteenths = {
                        name: used
                        for name, used in self._warned_sixteenths.items()
                        if name in self._loaded
                    }
            finally:
                self._nursery = None

    async def _tick_rates(self) -> None:
        while True:
            await self._tick_all_rates()  # It keeps no list of topics until the next period.
            await trio.sleep(PERIOD_S)

    async def _tick_all_rates(self) -> None:
        loaded: list[Topic | NonPersistentTopic] = [*self._loaded.values()]
        loaded += self.non_persistent.loaded.values()
        for number, topic in enumerate(loaded, 1):
            if not number % _TOPICS_PER_TURN:
                await trio.lowlevel.checkpoint()
            # Rates are stored nowhere, and the next period computes them anew.
            with self.bugs.contained(topic.name, "computing its rates"):
                topic.tick_rates(trio.current_time())

    def contained(self, topic: Topic, doing: str) -> AbstractContextManager[None]:
        """Drop the topic if an error that nobody expected ends the block."""
        return self.bugs.contained(topic.name, doing, partial(self._topic_failed, topic))

    def _has_bug(self, topic: Topic, doing: str, bug: Exception) -> None:
        with self.contained(topic, doing):
            raise bug

    async def _maintain(self, topic: Topic) -> None:
        """Roll an old ledger, trim ledgers that are no longer needed, and start a compaction."""
        if not topic.serving:
            return
        try:
            topic.log.check_roll()
            await topic.log.trim()
            self._check_list(topic)
            topic.compaction.start_if_due(topic.policies.compaction_threshold)
        except FencedError as error:
            self._topic_failed(topic, error)
        except (ManagedLedgerError, LedgerError, MetadataError) as error:
            self._log.info(
                "a topic could not be trimmed; the broker tries again",
                topic=topic.name.full,
                why=str(error),
            )

    def _check_list(self, topic: Topic) -> None:
        """Warn operators while there is time: once per used sixteenth, from half on."""
        room, name = topic.log.room, topic.name.full
        warned, used = self._warned_sixteenths.get(name, 0), 16 * room.bytes // room.bytes_max
        if room.alarming and used > warned:
            self._log.warning(
                "the list of ledgers of a topic fills up: when it is full, the topic takes no"
                " messages. Delete unused subscriptions, or reduce the retention",
                topic=name,
                bytes=room.bytes,
                bytes_max=room.bytes_max,
                roll_stretch=room.stretch,
                why=topic.log.full or "its ledgers are kept by subscriptions or by retention",
            )
        if room.alarming:
            self._warned_sixteenths[name] = used
        else:
            self._warned_sixteenths.pop(name, None)

    # -- looking up

    @property
    def loaded(self) -> Mapping[str, Topic]:
        """The topics that are served, by full name."""
        return self._loaded

    def state_of(self, name: TopicName) -> TopicState | None:
        """Return what the topic is doing here; None if it is not in memory."""
        return self._protocol.state_of(name.full)

    def load_progress(self, name: TopicName) -> LoadProgress | None:
        """Return how far the load of a topic is; None if it is not being loaded."""
        return self.loads.progress(name)

    def loaded_logs(self) -> Iterable[tuple[TopicName, TopicLog]]:
        return ((topic.name, topic.log) for topic in self._loaded.values())

    def producer_name(self) -> str:
        """Return a name that no other producer has."""
        return f"{GENERATED}{self._name_prefix}-{next(self._names)}"

    async def exists(self, name: TopicName) -> bool:
        if not name.persistent:
            return await self.non_persistent.exists(name)
        return name.full in self._loaded or await self.logs.exists(name)

    async def non_persistent_names_in(self, namespace: str) -> list[str]:
        """Return the names of non-persistent topics: those served here, and all partitions."""
        names = self.non_persistent.names_in(namespace)
        for topic in await self._policies.list_partitioned(namespace, "non-persistent"):
            partitions = await self._policies.partitions(topic)
            names |= {topic.partition_name(index).full for index in range(partitions)}
        return sorted(names)

    async def names_in(self, namespace: str) -> list[str]:
        """Return the full names of a namespace's topics, partitions included, sorted."""
        names = {name.full for name in await self.logs.stored(namespace)}
        for topic in await self._policies.list_partitioned(namespace):
            partitions = await self._policies.partitions(topic)
            names |= {topic.partition_name(index).full for index in range(partitions)}
        return sorted(names)

    # -- loading

    async def get(self, name: TopicName, *, create: bool) -> Topic:
        """Return the topic, and load it if necessary.

        Raise NotFoundError, NotOwnerError, UnavailableError or another BrokerError.
        """
        topic = self._loaded.get(name.full)
        if topic is not None and topic.serving:
            topic.asked_s = trio.current_time()
            return topic  # The usual case, without a task switch.
        if not name.persistent:
            raise NotAllowedError(f"{name} stores nothing, so it has no such operation")
        await self._wait_ours(name)
        self._check_ours(name)
        waiter, number = _Waiter(), next(self._waiter_ids)
        self._waiters[number] = waiter
        self.loads.add_caller(name.full)
        try:
            now_s = trio.current_time()
            self._perform(self._protocol.get(name.full, number, create=create, now_s=now_s))
            await waiter.answered.wait()
        finally:
            self.loads.remove_caller(name.full)
            self._waiters.pop(number, None)
        if waiter.error is not None:
            raise waiter.error
        assert waiter.topic is not None
        return waiter.topic

    async def open(self, name: TopicName, *, create: bool) -> Topic | NonPersistentTopic:
        """Return the topic, of either kind, as `get` does."""
        if name.persistent:
            return await self.get(name, create=create)
        await self._wait_ours(name)
        return await self.non_persistent.get(name, create=create)

    async def _wait_ours(self, name: TopicName) -> None:
        """Give this broker time to get the topic, or to notice that it has it."""
        if self._wait_handed_over is not None and not self._may_load(name):
            await self._wait_handed_over(name)

    def _check_ours(self, name: TopicName) -> None:
        if not self._may_load(name):
            raise NotOwnerError(f"this broker does not serve {name}: look it up again")

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """Create an empty topic.  Raise ConflictError if it exists."""
        await self._wait_ours(name)
        self._check_ours(name)
        if not name.persistent:
            if await self.exists(name):
                raise ConflictError(f"the topic {name} exists already")
            await self.non_persistent.get(name, create=True)
            return
        await self._check_new(name)
        if not await self.logs.create(name, properties):
            raise ConflictError(f"the topic {name} exists already")

    async def create_partitions(self, name: TopicName) -> int:
        """Create a partitioned topic if that is how clients of the namespace create topics.

        Return the number of its partitions, 0 if the topic is not partitioned.
        """
        policies = await self._policies.effective_in(name.namespace)
        partitions = policies.auto_topic_creation.partitions
        if not partitions or name.partition >= 0 or await self.exists(name):
            return 0
        await self._check_room(name.namespace, partitions)
        await self._policies.create_partitioned(name, partitions)
        return await self._policies.partitions(name)

    async def _check_room(self, namespace: str, more: int) -> None:
        await self._policies.check_room(namespace, more, lambda: self.names_in(namespace))

    async def _check_new(self, name: TopicName) -> None:
        """Raise PreconditionError if the topic does not exist and there may not be one more."""
        # The partitions of a topic were counted when it was created.
        limited = (await self._policies.effective_in(name.namespace)).max_topics
        if limited and name.partition < 0 and not await self.exists(name):
            await self._check_room(name.namespace, 1)

    # -- unloading

    async def unload(self, name: TopicName) -> None:
        """Close the topic in order.  Nothing happens if it is not loaded."""
        if not name.persistent:
            self.non_persistent.close(name)
            return
        waiter, number = _Waiter(), next(self._waiter_ids)
        self._waiters[number] = waiter
        try:
            self._perform(self._protocol.unload(name.full, number))
            await waiter.answered.wait()
        finally:
            self._waiters.pop(number, None)

    def rest(self, name: TopicName) -> None:
        """Begin to close a topic that nobody uses; it stays if somebody comes before that."""
        self._perform(self._protocol.rest(name.full))

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Delete the topic and everything that is stored of it.

        Raise PreconditionError while a producer or consumer is connected, unless `force` is set.
        """
        if not name.persistent:
            self.non_persistent.delete(name, force=force)
            return
        topic = await self.get(name, create=False)
        if topic.in_use and not force:
            raise PreconditionError(
                f"{name} has producers or consumers that are connected: close them, or use force"
            )
        if not force and topic.sinks is not None and await topic.sinks.has_pending():
            raise PreconditionError(
                f"a committed batch of a sink is being applied to {name}: wait for it"
                " (`daybook sinks list`), or use force"
            )
        # `_close` looks here when the machine asks for the close.
        self._deleting.add(name.full)
        try:
            await self.unload(name)
        finally:
            self._deleting.discard(name.full)
        if await self.logs.exists(name):
            raise UnavailableError(f"{name} could not be deleted: try again")

    async def _delete_unused(self, topic: Topic) -> None:
        """Delete a topic that nobody uses; do nothing if it is in use.

        Its policies and schemas stay: a client may be creating the topic again at this moment.
        """
        name = topic.name
        try:
            if topic.sinks is not None and await topic.sinks.has_pending():
                return
        except UnavailableError:
            return  # A later look knows if a sink writes to it.
        self._deleting_unused.add(name.full)
        try:
            await self.unload(name)
        finally:
            self._deleting_unused.discard(name.full)

    async def close_bundle(self, bundle: BundleName, to: SuccessorUrls = NO_SUCCESSOR) -> None:
        """Close all topics of a bundle in order, several at a time.

        `to` is the broker to which their clients are sent, if it is known.
        """
        self.non_persistent.close_bundle(bundle, to)
        await self.close_names(self._names_of(bundle), to)

    async def close_names(self, names: Sequence[str], to: SuccessorUrls = NO_SUCCESSOR) -> None:
        """Close these topics in order, several at a time."""

        async def work(start: int) -> None:
            for name in names[start::_CLOSES_AT_ONCE]:
                topic = self._loaded.get(name)
                if topic is not None:
                    topic.successor = to
                await self.unload(TopicName.parse(name))

        async with trio.open_nursery() as nursery:
            for start in range(min(_CLOSES_AT_ONCE, len(names))):
                nursery.start_soon(work, start)

    def drop_bundle(self, bundle: BundleName) -> None:
        """Drop all topics of a bundle, because another broker may own it now."""
        self.non_persistent.close_bundle(bundle)
        for name in self._names_of(bundle):
            self.loads.stop(name)
            self._perform(self._protocol.drop(name))

    async def close_all(self) -> None:
        """Close all topics in order, several at a time."""
        self.non_persistent.close_all()
        await self.close_names(self._protocol.names)

    def _names_of(self, bundle: BundleName) -> list[str]:
        """Return the topics in the range of the bundle, even if it has been split since."""
        found: list[str] = []
        for full in self._protocol.names:
            name = self._parsed(full)
            if contains(bundle, name.namespace, name.bundle_hash):
                found.append(full)
        return found

    def with_hashes(self, bundle: BundleName) -> list[tuple[str, int]]:
        """Return the bundle's topics that are loaded, or are being loaded, with their hashes."""
        return [(name, self._parsed(name).bundle_hash) for name in self._names_of(bundle)]

    def _parsed(self, full: str) -> TopicName:
        # Parsing and hashing the names of 100,000 topics takes a second for each bundle.
        topic = self._loaded.get(full)
        return TopicName.parse(full) if topic is None else topic.name

    def in_use(self, names: Iterable[str]) -> list[str]:
        """Return those of these topics to which producers or consumers are connected."""
        found = ((name, self._loaded.get(name)) for name in names)
        return [name for name, topic in found if topic is not None and topic.in_use]

    # -- the protocol

    def _perform(self, effects: list[Effect]) -> None:
        """Perform the effects of an input to the machine.

        This has no checkpoint, so no other task can see the machine ahead of the topics.
        """
        for effect in effects:
            match effect:
                case Load(name, load, create):
                    self._start(self._load, TopicName.parse(name), load, create)
                case Discard(_, load):
                    self._by_load.pop(load).drop()
                case Close(name, load):
                    self._start(self._close, name, load)
                case Abandon(name, load):
                    self._loaded.pop(name, None)
                    self._by_load.pop(load).drop()
                case Give(name, load, waiter):
                    self._loaded[name] = self._by_load[load]
                    self._answer(waiter, self._by_load[load], None)
                case Fail(name, load, waiter):
                    self._answer(waiter, None, self._failures[load])
                case NotNow(name, waiter, reason):
                    self._answer(waiter, None, UnavailableError(f"{name}: {reason}"))
                case Gone(waiter):
                    self._answer(waiter, None, None)
                case _:
                    assert_never(effect)

    def _answer(self, number: int, topic: Topic | None, error: BrokerError | None) -> None:
        waiter = self._waiters.get(number)
        if waiter is not None:
            waiter.answer(topic, error)

    def _start(self, task: Callable[..., object], *args: object) -> None:
        if self._nursery is not None:  # It is None while the broker ends.
            self._nursery.start_soon(task, *args)  # type: ignore[arg-type]

    async def _load(self, name: TopicName, load: int, create: bool) -> None:
        """Load a topic, and run it: a second task for that would cost more than many loads."""
        try:
            async with self.loads.begin(name) as progress:
                # It may have waited for its place for so long that another broker serves the
                # topic now, whose ledger it would fence.
                if not self._protocol.wants(name.full, load) or not self._owns(name):
                    raise NotOwnerError(f"this broker lost {name}: look it up again")
                topic = await self._open(name, create, progress)
        except FencedError as fence:
            self._load_failed(name, load, UnavailableError(f"{name}: {fence}"), fenced=True)
        except BrokerError as refused:
            self._load_failed(name, load, refused)
        except Exception as bug:  # All other topics are unaffected.
            self.bugs.note(name, "loading it", bug)
            self._load_failed(name, load, _cannot_load(name))
        else:
            del progress  # This task lives as long as the topic.
            self._by_load[load] = topic
            # If the topic fails, it is dropped, and all other topics are unaffected.
            with self.contained(topic, "serving it"):
                await topic.run(partial(self._runs, topic, load))
            self._crowd.left(len(self._by_load))
            if self._by_load.get(load) is topic and self._loaded.get(name.full) is not topic:
                # It failed before anybody got it, and those who wait for it must not wait on.
                del self._by_load[load]
                self._load_failed(name, load, _cannot_load(name))

    def _runs(self, topic: Topic, load: int) -> None:
        """Give a topic to those who wait for it: it runs."""
        name = topic.name
        if not topic.closed:
            self._loads_log.info("a topic is loaded", topic=name.full)
            self._perform(self._protocol.loaded(name.full, load))
            return
        # The log was lost before anybody got the topic: another broker may have it now.
        del self._by_load[load]
        error = UnavailableError(
            f"another broker may have taken over {name} while it was loaded: look it up again"
        )
        self._load_failed(name, load, error, fenced=True)

    def _load_failed(
        self, name: TopicName, load: int, error: BrokerError, *, fenced: bool = False
    ) -> None:
        kind = (name.full, type(error))
        self._log_limiter.info("a topic could not be loaded", kind, topic=name.full, why=str(error))
        self._failures[load] = error
        now_s, spread = trio.current_time(), self._spread()
        self._perform(
            self._protocol.load_failed(name.full, load, fenced=fenced, now_s=now_s, spread=spread)
        )
        self._failures.pop(load)

    async def _open(self, name: TopicName, create: bool, load: LoadUnderWay) -> Topic:
        create = await self._check_partition(name, create)
        if create:
            await self._check_new(name)
        log = await self.logs.open(name, create=create, on_step=load.step)
        try:
            policies = await self._policies.effective(name)
            load.step("reading which messages its producers have sent")
            known = await self._load_deduplication(name, log, policies, load.advance)
            if not self._owns(name):
                # The bundle was lost meanwhile.  Its next owner recovers the log.
                raise NotOwnerError(f"this broker lost {name} while it loaded it: look it up again")
        except BaseException:
            log.abandon()
            raise
        return Topic(
            name,
            log,
            self.logs,
            limits=self.limits,
            clock=self._clock,
            keys=self._keys,
            compactions=self._compactions,
            unacked=self.unacked,
            readers=self._readers,
            policies=policies,
            published_by_broker=self._published,
            deduplication=known,
            sinks=self.sinks,
            on_failed=self._topic_failed,
            on_bug=self._has_bug,
        )

    async def _load_deduplication(
        self,
        name: TopicName,
        log: TopicLog,
        policies: EffectivePolicies,
        on_progress: Callable[[], None],
    ) -> Deduplication | None:
        if policies.deduplication:
            limits = self.limits.deduplication
            return await deduplication.load(name, log, self.logs, limits, on_progress)
        await deduplication.remove(name, log)
        return None

    async def _check_partition(self, name: TopicName, create: bool) -> bool:
        """Return True if the topic may be created.  Raise NotAllowedError if it cannot exist."""
        partitions = await self._policies.partitions(name.base)
        if name.partition < 0:
            if partitions:
                raise NotAllowedError(
                    f"{name} has {partitions} partitions: name one of them, such as"
                    f" {name}-partition-0"
                )
            return create
        if name.partition >= partitions:  # Another broker may have just added it.
            partitions = await self._policies.newest_partitions(name.base)
        if name.partition < partitions:
            return True  # Its partitioned topic exists, so it exists too.
        if partitions:
            raise NotAllowedError(
                f"{name} does not exist: {name.base} has only {partitions} partitions"
            )
        # Pulsar has such topics.  None is made, or a right on one topic would make thousands.
        if create and not await self.exists(name):
            raise NotAllowedError(
                f"{name} does not exist, and {name.base} is no partitioned topic: create it with"
                " its number of partitions, or use a name that does not end like a partition"
            )
        return False

    def _topic_failed(self, topic: Topic, error: Exception) -> None:
        name = topic.name.full
        if self._loaded.get(name) is not topic:
            topic.drop()  # It is not served yet, or no longer.
            return
        self._log.warning(
            "a topic failed and is loaded again when a client asks for it",
            topic=name,
            why=str(error),
        )
        now_s, spread = trio.current_time(), self._spread()
        self._perform(self._protocol.drop(name, fenced=True, now_s=now_s, spread=spread))

    async def _close(self, name: str, load: int) -> None:
        topic = self._by_load.get(load)
        if topic is not None:
            if self._protocol.rests(name) and not self._idle.may_rest(topic):
                self._perform(self._protocol.kept(name, load))
                return
            # No checkpoint between the look above and the first steps of the close.
            try:
                if name in self._deleting:
                    await topic.delete()
                elif name in self._deleting_unused:
                    await topic.delete(unless_used=_is_used)
                else:
                    await topic.close()
            except (BrokerError, FencedError) as error:
                # The next owner recovers the log.
                self._log.warning(
                    "a topic was not closed in order; its next owner recovers it",
                    topic=name,
                    why=str(error),
                )
            except Exception as error:  # All other topics are unaffected.
                self.bugs.note(topic.name, "closing it", error)
                topic.drop()
        # A drop during the close has removed the topic already, and a new load may be there now.
        if self._by_load.pop(load, None) is not None:
            self._loaded.pop(name, None)
        self._perform(self._protocol.unloaded(name, load))

    def _spread(self) -> float:
        return self._rng.uniform(*_SPREAD)


def _cannot_load(name: TopicName) -> UnavailableError:
    return UnavailableError(
        f"this broker cannot load {name} because of a bug; its log has the reason"
    )
