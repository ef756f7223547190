"""The producers of a topic: who is admitted, by name and by access mode.

A name has one producer.  When a second one comes with it, the client of the first is asked for a
sign of life; one that gives none is taken for dead.  Then the access mode decides (see
`broker.protocol.access`), which may take until others have left.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import trio

from daybook.broker.errors import BrokerError, ProducerBusyError, RefusedError
from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.access import (
    AccessMode,
    AccessProtocol,
    Admit,
    EpochNotStored,
    EpochStored,
    Event,
    Expel,
    Join,
    Leave,
    Refuse,
    StoreEpoch,
    Wait,
)
from daybook.broker.topics.producer import Producer, ProducerConnection, ProducerTopic
from daybook.broker.topics.topic_log import TopicLog, TopicLogs, translated
from daybook.wire.topics import TopicName


@dataclass(frozen=True, slots=True)
class ProducerRequest:
    """What a client asks for when it opens a producer."""

    producer_id: int
    name: str
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    metadata: Mapping[str, str] | None = None


class _Applicant:
    """A producer that waits to be admitted."""

    def __init__(self, producer: Producer, on_wait: Callable[[], None]) -> None:
        self.producer = producer
        self.on_wait = on_wait
        self.decided = trio.Event()
        self.error: BrokerError | None = None


class TopicProducers:
    """`check_open` raises if the topic takes no producers now."""

    def __init__(
        self,
        topic: ProducerTopic,
        name: TopicName,
        log: TopicLog,
        logs: TopicLogs,
        *,
        limits: TopicLimits,
        keys: Iterator[int],
        nursery: Callable[[], trio.Nursery],
        check_open: Callable[[], None],
    ) -> None:
        self.by_name: dict[str, Producer] = {}
        self._topic = topic
        self._name = name
        self._log = log
        self._logs = logs
        self._limits = limits
        self._keys = keys
        self._nursery = nursery
        self._check_open = check_open
        self._access = AccessProtocol(logs.epoch_of(log))
        self._by_key: dict[int, Producer] = {}
        self._applicants: dict[int, _Applicant] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def epoch(self) -> int | None:
        """What exclusive producers count; None if there never was one."""
        return self._access.epoch

    @property
    def waiting(self) -> int:
        return self._access.waiting

    async def add(
        self,
        request: ProducerRequest,
        connection: ProducerConnection,
        *,
        on_wait: Callable[[], None],
    ) -> Producer:
        """Admit a producer, as soon as its access mode allows; `on_wait` if that is not at once."""
        await self._prepare(request, connection)
        producer = Producer(
            next(self._keys),
            request.producer_id,
            request.name,
            connection,
            self._topic,
            access_mode=request.access_mode.value,
            metadata=dict(request.metadata or {}),
        )
        applicant = self._applicants[producer.key] = _Applicant(producer, on_wait)
        try:
            self._feed_access(Join(producer.key, request.access_mode, request.topic_epoch))
            await applicant.decided.wait()
        except BaseException:
            self.remove(producer)
            raise
        finally:
            self._applicants.pop(producer.key, None)
        if applicant.error is not None:
            raise applicant.error
        return producer

    async def _prepare(self, request: ProducerRequest, connection: ProducerConnection) -> None:
        """When this returns the topic is open, and the name free; that holds for this turn."""
        while True:
            await self._topic.wait_decided()
            self._check_open()
            if len(self.by_name) >= self._limits.producers_max:
                raise ProducerBusyError(f"{self._name} has too many producers")
            await self._make_way(request, connection)
            if not self._topic.ending:
                self._check_open()
                return

    async def _make_way(self, request: ProducerRequest, connection: ProducerConnection) -> None:
        """A name has one producer.  One whose client does not answer is taken for dead."""
        holder = self._holder(request.name)
        if holder is None:
            return
        if holder.connection is connection or await holder.connection.is_alive(
            self._limits.probe_s
        ):
            raise ProducerBusyError(f"{self._name} has a producer named {request.name}")
        if self._holder(request.name) is holder:
            self._disconnect(holder)

    def _holder(self, name: str) -> Producer | None:
        holder = self.by_name.get(name)
        if holder is None:
            applying = (a.producer for a in self._applicants.values())
            holder = next((p for p in applying if p.name == name), None)
        return holder

    def remove(self, producer: Producer) -> None:
        """It has left, or is lost; what it has outstanding gets no receipt."""
        producer.close()
        self._by_key.pop(producer.key, None)
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
        self._feed_access(Leave(producer.key))

    def _feed_access(self, event: Event) -> None:
        for effect in self._access.step(event):
            match effect:
                case Admit(key, epoch):
                    self._admit(key, epoch)
                case Wait(key):
                    self._applicants[key].on_wait()
                case Refuse(key, code, reason):
                    self._decide(key, RefusedError(code, f"{self._name}: {reason}"))
                case Expel(key):
                    producer = self._by_key.pop(key)
                    del self.by_name[producer.name]
                    producer.disconnect()
                case StoreEpoch(key, epoch):
                    self._nursery().start_soon(self._store_epoch, key, epoch)
                case _:
                    assert_never(effect)

    def _admit(self, key: int, epoch: int | None) -> None:
        producer = self._applicants[key].producer
        producer.epoch = epoch
        self._by_key[key] = producer
        self.by_name[producer.name] = producer
        self._decide(key, None)

    def _decide(self, key: int, error: BrokerError | None) -> None:
        applicant = self._applicants.get(key)
        if applicant is not None and not applicant.decided.is_set():
            applicant.error = error
            applicant.decided.set()

    async def _store_epoch(self, key: int, epoch: int) -> None:
        try:
            with translated(self._name):
                await self._logs.store_epoch(self._log, epoch)
        except BrokerError:
            self._feed_access(EpochNotStored(key))
        else:
            self._feed_access(EpochStored(key))

    def end(self, error: BrokerError) -> None:
        """The log has ended: nobody is admitted any more, and the others are told."""
        for key, applicant in list(self._applicants.items()):
            if not applicant.decided.is_set():
                self._decide(key, error)
                self._feed_access(Leave(key))
        for producer in list(self.by_name.values()):
            if producer.is_told_of_the_end:
                producer.refuse_held()
            else:
                self._disconnect(producer)

    def go_on(self) -> None:
        """The log did not end: what was sent meanwhile has to be sent again, in order."""
        for producer in list(self.by_name.values()):
            if producer.holds_sends:
                self._disconnect(producer)

    def _disconnect(self, producer: Producer) -> None:
        producer.disconnect()
        self.remove(producer)

    def let_go(self, error: BrokerError) -> None:
        """Tell all clients; those that wait get the error."""
        for key in list(self._applicants):
            self._decide(key, error)
        for producer in list(self.by_name.values()):
            producer.disconnect()
        self.by_name.clear()
        self._by_key.clear()
