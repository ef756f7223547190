"""The topics that this broker serves: the shell of `protocol.topics`.

    topic = await topics.get(name, create=True)

A topic is loaded once for all who ask, if its bundle is ours and may be loaded from.  One that is
loaded stays until it is unloaded, deleted, or dropped: by the loss of its bundle, or because its
log failed.  `run` belongs into the nursery of the broker.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from random import Random
from typing import Protocol, assert_never

import trio

from daybook.bookie.errors import LedgerError
from daybook.broker.errors import (
    BrokerError,
    ConflictError,
    NotAllowedError,
    NotOwnerError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.topics import (
    Abandon,
    Close,
    Discard,
    Drop,
    Effect,
    Event,
    Fail,
    Get,
    Give,
    Gone,
    Load,
    Loaded,
    LoadFailed,
    NotNow,
    TopicsProtocol,
    Unload,
    Unloaded,
)
from daybook.broker.topics.rates import PERIOD_S
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topic_log import TopicLogs
from daybook.managed_ledger.errors import FencedError, ManagedLedgerError
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.metadata.store import MetadataError
from daybook.wire.topics import TopicName

_SPREAD = (0.5, 1.5)  # of a back-off


class OwnershipPort(Protocol):
    """What topics ask of `Ownership`."""

    def owns(self, topic: TopicName) -> bool: ...

    def may_load(self, topic: TopicName) -> bool: ...


class PoliciesPort(Protocol):
    """What topics ask of `Policies`."""

    async def partitions(self, topic: TopicName) -> int: ...

    async def list_partitioned(self, namespace: str) -> list[TopicName]: ...

    def known_bundle_of(self, topic: TopicName) -> BundleName | None: ...


class _Asker:
    """Somebody who waits for a topic, or for its end."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.topic: Topic | None = None
        self.error: BrokerError | None = None

    def answer(self, topic: Topic | None, error: BrokerError | None) -> None:
        self.topic, self.error = topic, error
        self.answered.set()


class Topics:
    """`name_prefix` begins the names of producers that come without one; unique to this life."""

    def __init__(
        self,
        logs: TopicLogs,
        policies: PoliciesPort,
        *,
        clock: WallClock,
        rng: Random,
        log: Log,
        name_prefix: str,
        maintain_interval_s: float = 60.0,
        limits: TopicLimits | None = None,
    ) -> None:
        self.logs = logs
        self.limits = limits or TopicLimits()
        self._policies = policies
        self._ownership: OwnershipPort | None = None
        self._clock = clock
        self._rng = rng
        self._log = log
        self._log_limiter = LogLimiter(log)
        self._name_prefix = name_prefix
        self._maintain_interval_s = maintain_interval_s
        self._protocol = TopicsProtocol()
        self._nursery: trio.Nursery | None = None
        self._loaded: dict[str, Topic] = {}
        self._by_load: dict[int, Topic] = {}
        self._failures: dict[int, BrokerError] = {}  # why a load failed, while it is told
        self._askers: dict[int, _Asker] = {}
        self._ask_ids = count(1)
        self._keys: Iterator[int] = count(1)  # of producers and consumers
        self._names = count()
        self._doomed: set[str] = set()  # to be deleted when they are closed
        self._lists_told: dict[str, int] = {}  # how full the lists of topics were when we told

    def attach(self, ownership: OwnershipPort) -> None:
        """Who says what may be loaded; ownership itself needs the topics."""
        self._ownership = ownership

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            nursery.start_soon(self._tick_rates)
            try:
                while True:
                    await trio.sleep(self._maintain_interval_s)
                    for topic in list(self._loaded.values()):
                        await self._maintain(topic)
                    told = self._lists_told
                    self._lists_told = {name: told[name] for name in told if name in self._loaded}
            finally:
                self._nursery = None

    async def _tick_rates(self) -> None:
        while True:
            for topic in self._loaded.values():
                topic.tick_rates(trio.current_time())
            await trio.sleep(PERIOD_S)

    async def _maintain(self, topic: Topic) -> None:
        """Roll what is old, trim what nobody needs."""
        if not topic.serving:
            return
        try:
            topic.log.check_roll()
            await topic.log.trim()
            self._check_list(topic)
        except FencedError as error:
            self._topic_failed(topic, error)
        except (ManagedLedgerError, LedgerError, MetadataError) as error:
            self._log.info("not trimmed now", topic=topic.name.full, why=str(error))

    def _check_list(self, topic: Topic) -> None:
        """Tell people while there is time: once for each sixteenth that is used, from half on."""
        room, name = topic.log.room, topic.name.full
        told, parts = self._lists_told.get(name, 0), 16 * room.bytes // room.bytes_max
        if room.alarming and parts > told:
            self._log.warning(
                "the list of ledgers of a topic fills up",
                topic=name,
                bytes=room.bytes,
                bytes_max=room.bytes_max,
                roll_stretch=room.stretch,
                why=topic.log.full or "its ledgers are kept by subscriptions or by retention",
            )
        if room.alarming:
            self._lists_told[name] = parts
        else:
            self._lists_told.pop(name, None)

    # -- what there is

    @property
    def loaded(self) -> Mapping[str, Topic]:
        """Those that are served, by full name."""
        return self._loaded

    def producer_name(self) -> str:
        """A name that no other producer has."""
        return f"{self._name_prefix}-{next(self._names)}"

    async def exists(self, name: TopicName) -> bool:
        return name.full in self._loaded or await self.logs.exists(name)

    async def names_in(self, namespace: str) -> list[str]:
        """The full names of a namespace's topics, partitions included, sorted."""
        names = {name.full for name in await self.logs.stored(namespace)}
        for topic in await self._policies.list_partitioned(namespace):
            partitions = await self._policies.partitions(topic)
            names |= {topic.partition_name(index).full for index in range(partitions)}
        return sorted(names)

    # -- having one

    async def get(self, name: TopicName, *, create: bool) -> Topic:
        """The topic, loaded if need be.  NotFoundError, NotOwnerError, UnavailableError, ..."""
        topic = self._loaded.get(name.full)
        if topic is not None and topic.serving:
            return topic
        if not name.persistent:
            raise NotAllowedError(f"{name}: this broker has persistent topics only")
        self._check_ours(name)
        asker, number = _Asker(), next(self._ask_ids)
        self._askers[number] = asker
        try:
            self._feed(Get(name.full, number, create, trio.current_time()))
            await asker.answered.wait()
        finally:
            self._askers.pop(number, None)
        if asker.error is not None:
            raise asker.error
        assert asker.topic is not None
        return asker.topic

    def _check_ours(self, name: TopicName) -> None:
        if self._ownership is None or not self._ownership.may_load(name):
            raise NotOwnerError(f"{name} is not served by this broker")

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """An empty one.  ConflictError if it exists."""
        self._check_ours(name)
        if not await self.logs.create(name, properties):
            raise ConflictError(f"the topic {name} exists already")

    # -- letting go

    async def unload(self, name: TopicName) -> None:
        """In good order; nothing happens if it is not loaded."""
        await self._ask_end(Unload, name)

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Delete it and all that belongs to it.  PreconditionError while anybody is connected."""
        topic = await self.get(name, create=False)
        if topic.in_use and not force:
            raise PreconditionError(f"{name} has producers or consumers that are connected")
        self._doomed.add(name.full)
        try:
            await self._ask_end(Unload, name)
        finally:
            self._doomed.discard(name.full)
        if await self.logs.exists(name):
            raise UnavailableError(f"{name} could not be deleted")

    async def _ask_end(self, event: Callable[[str, int], Unload], name: TopicName) -> None:
        asker, number = _Asker(), next(self._ask_ids)
        self._askers[number] = asker
        try:
            self._feed(event(name.full, number))
            await asker.answered.wait()
        finally:
            self._askers.pop(number, None)

    async def close_bundle(self, bundle: BundleName) -> None:
        """Close all topics of a bundle in good order, several at a time."""
        async with trio.open_nursery() as nursery:
            for name in self._names_of(bundle):
                nursery.start_soon(self.unload, TopicName.parse(name))

    def drop_bundle(self, bundle: BundleName) -> None:
        """They are somebody else's now."""
        for name in self._names_of(bundle):
            self._feed(Drop(name))

    def drop_all(self, reason: str) -> None:
        """Let go of everything at once."""
        if self._protocol.names:
            self._log.warning("all topics are dropped", why=reason)
        for name in self._protocol.names:
            self._feed(Drop(name))

    async def close_all(self) -> None:
        """Close everything in good order."""
        async with trio.open_nursery() as nursery:
            for name in self._protocol.names:
                nursery.start_soon(self.unload, TopicName.parse(name))

    def _names_of(self, bundle: BundleName) -> list[str]:
        known = self._policies.known_bundle_of
        return [n for n in self._protocol.names if known(TopicName.parse(n)) == bundle]

    # -- the protocol

    def _feed(self, event: Event) -> None:
        """Synchronous from the event to its last effect: no other task can run in between."""
        for effect in self._protocol.step(event):
            self._do(effect)

    def _do(self, effect: Effect) -> None:
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
            case Give(name, load, asker):
                self._loaded[name] = self._by_load[load]
                self._answer(asker, self._by_load[load], None)
            case Fail(name, load, asker):
                self._answer(asker, None, self._failures[load])
            case NotNow(name, asker, reason):
                self._answer(asker, None, UnavailableError(f"{name}: {reason}"))
            case Gone(asker):
                self._answer(asker, None, None)
            case _:
                assert_never(effect)

    def _answer(self, number: int, topic: Topic | None, error: BrokerError | None) -> None:
        asker = self._askers.get(number)
        if asker is not None:
            asker.answer(topic, error)

    def _start(self, task: Callable[..., object], *args: object) -> None:
        if self._nursery is not None:  # else this broker is at its end
            self._nursery.start_soon(task, *args)  # type: ignore[arg-type]

    async def _load(self, name: TopicName, load: int, create: bool) -> None:
        fenced = False
        try:
            topic = await self._open(name, create)
        except FencedError as fence:
            fenced = True
            self._failures[load] = UnavailableError(f"{name}: {fence}")
        except BrokerError as refused:
            self._failures[load] = refused
        else:
            self._by_load[load] = topic
            if self._nursery is not None:
                await self._nursery.start(self._run_topic, topic)
            self._log.info("loaded", topic=name.full)
            self._feed(Loaded(name.full, load))
            return
        error = self._failures[load]
        kind = (name.full, type(error))
        self._log_limiter.info("not loaded", kind, topic=name.full, why=str(error))
        self._feed(LoadFailed(name.full, load, fenced, trio.current_time(), self._spread()))
        self._failures.pop(load)

    async def _open(self, name: TopicName, create: bool) -> Topic:
        create = await self._check_partition(name, create)
        log = await self.logs.open(name, create=create)
        if self._ownership is None or not self._ownership.owns(name):
            log.abandon()
            raise NotOwnerError(f"{name} has just been given up by this broker")
        return Topic(
            name,
            log,
            self.logs,
            limits=self.limits,
            clock=self._clock,
            keys=self._keys,
            on_failed=self._topic_failed,
        )

    async def _check_partition(self, name: TopicName, create: bool) -> bool:
        """May a topic of this name be, and may it be created?"""
        partitions = await self._policies.partitions(name.base)
        if name.partition < 0:
            if partitions:
                raise NotAllowedError(f"{name} has {partitions} partitions; name one of them")
            return create
        if partitions and name.partition >= partitions:
            raise NotAllowedError(f"{name.base} has {partitions} partitions only")
        return create or bool(partitions)  # The whole was created, and its partitions with it.

    async def _run_topic(self, topic: Topic, *, task_status: trio.TaskStatus[None]) -> None:
        """A topic that fails takes nobody else with it."""
        try:
            await topic.run(task_status=task_status)
        except Exception as error:
            self._log.error("a topic failed", topic=topic.name.full, exc_info=error)
            self._topic_failed(topic, error)

    def _topic_failed(self, topic: Topic, error: Exception) -> None:
        name = topic.name.full
        if self._loaded.get(name) is not topic:
            topic.drop()
            return
        self._log.warning("a topic is dropped", topic=name, why=str(error))
        self._feed(Drop(name, fenced=True, now_s=trio.current_time(), spread=self._spread()))

    async def _close(self, name: str, load: int) -> None:
        topic = self._by_load.get(load)
        if topic is not None:
            try:
                await (topic.delete() if name in self._doomed else topic.close())
            except (BrokerError, FencedError) as error:
                # The next owner's recovery does the rest.
                self._log.warning("not closed in good order", topic=name, why=str(error))
        if self._by_load.pop(load, None) is not None:
            self._loaded.pop(name, None)
        self._feed(Unloaded(name, load))

    def _spread(self) -> float:
        return self._rng.uniform(*_SPREAD)
