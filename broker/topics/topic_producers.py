"""The producers of one topic, of either kind: who may produce, and who has to wait."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import trio

from daybook.broker.connected_client import ConnectedClient
from daybook.broker.errors import BrokerError, ProducerBusyError, RefusedError, UnavailableError
from daybook.broker.protocol.access import (
    AccessMode,
    AccessProtocol,
    Admit,
    Effect,
    Expel,
    Refuse,
    StoreEpoch,
    Wait,
)
from daybook.broker.topics.producer import ProducedTopic, Producer
from daybook.wire.weakly import weak

WaitRoom: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]
"""Waits until the backlog quota allows one more producer; calls its argument if that takes time."""


@dataclass(frozen=True, slots=True)
class ProducerRequest:
    """The properties of a producer that a client asks for."""

    producer_id: int
    name: str
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    metadata: Mapping[str, str] | None = None
    schema_version: bytes = b""


def _nothing() -> None:
    pass


class _Applicant:
    """A producer that waits to be admitted."""

    def __init__(self, producer: Producer, on_wait: Callable[[], None]) -> None:
        self.producer = producer
        self.on_wait = on_wait
        self.decided = trio.Event()
        self.error: BrokerError | None = None


class TopicProducers:
    """The producers of one topic, and those that wait to become one.

    A name has one producer.  When a second one comes with the same name, the client of the first is
    asked for a sign of life; a client that gives none is taken for dead.  Then the access mode
    decides (see `broker.protocol.access`), which may take until other producers have left.
    """

    def __init__(self, topic: ProducedTopic, wait_room: WaitRoom | None = None) -> None:
        self.by_name: dict[str, Producer] = {}
        self.arriving = 0  # producers that are being admitted, or wait to be
        self._topic = weak(topic)
        self._wait_room = wait_room
        self._access = AccessProtocol(topic.stored_epoch)
        self._by_key: dict[int, Producer] = {}
        self._applicants: dict[int, _Applicant] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def epoch(self) -> int | None:
        """The epoch of the topic.  It is None if the topic never had an exclusive producer."""
        return self._access.epoch

    @property
    def is_exclusive(self) -> bool:
        """True if one producer has the topic for itself."""
        return self._access.is_exclusive

    @property
    def waiting(self) -> int:
        return self._access.waiting

    async def add(
        self,
        request: ProducerRequest,
        connection: ConnectedClient,
        *,
        on_wait: Callable[[], None],
        on_held: Callable[[], None] = _nothing,
    ) -> Producer:
        """Admit a producer as soon as its access mode and the backlog quota allow.

        `on_wait` or `on_held` is called if that is not immediately.
        """
        self.arriving += 1
        try:
            return await self._add(request, connection, on_wait=on_wait, on_held=on_held)
        finally:
            self.arriving -= 1

    async def _add(
        self,
        request: ProducerRequest,
        connection: ConnectedClient,
        *,
        on_wait: Callable[[], None],
        on_held: Callable[[], None],
    ) -> Producer:
        if self._wait_room is not None:
            await self._wait_room(on_held)
        await self._prepare(request, connection)
        producer = Producer(
            next(self._topic().keys),
            request.producer_id,
            request.name,
            connection,
            self._topic(),
            on_left=self.remove,
            access_mode=request.access_mode.value,
            metadata=dict(request.metadata or {}),
            schema_version=request.schema_version,
        )
        # No checkpoint since `_prepare`, so the name is still free.
        applicant = self._applicants[producer.key] = _Applicant(producer, on_wait)
        try:
            self._perform(self._access.join(producer.key, request.access_mode, request.topic_epoch))
            await applicant.decided.wait()
        except BaseException:
            self.remove(producer)
            raise
        finally:
            self._applicants.pop(producer.key, None)
        if applicant.error is not None:
            raise applicant.error
        try:
            await self._begin_numbering(producer)
        except BaseException:
            self.remove(producer)
            raise
        return producer

    async def _begin_numbering(self, producer: Producer) -> None:
        """Tell the producer which of its messages the topic has.

        An earlier producer of the same name may have entries that are not confirmed yet.  Their
        fate is waited for, because the client goes on behind the last id that it is told.
        """
        topic = self._topic()
        if topic.deduplication is None:
            return
        topic.deduplication.joined(producer.name)
        last = await topic.deduplication.last_stored(producer.name)
        if last is None:
            raise UnavailableError(
                f"{topic.name}: earlier messages of the producer {producer.name} are still being"
                " stored: try again"
            )
        producer.last_sequence_id = last

    async def _prepare(self, request: ProducerRequest, connection: ConnectedClient) -> None:
        """Return when the topic is open and the name is free.

        Both hold until the caller's next checkpoint.
        """
        topic = self._topic()
        while True:
            await topic.wait_termination_decided()
            topic.check_open()
            self._check_room()
            await self._make_way(request, connection)
            # A termination may have begun while another client was asked for a sign of life.
            if topic.termination is None:
                topic.check_open()
                self._check_room()
                return

    def _check_room(self) -> None:
        """Raise ProducerBusyError if the topic has as many producers as it may have."""
        topic = self._topic()
        limit = topic.policies.max_producers or topic.limits.producers_max
        # Those that wait to be admitted count, so that many that come at once are not too many.
        if len(self.by_name) + len(self._applicants) >= limit:
            raise ProducerBusyError(
                f"{topic.name} has {limit} producers, which is the limit: close some, or raise the"
                " policy maxProducers"
            )

    async def _make_way(self, request: ProducerRequest, connection: ConnectedClient) -> None:
        """Disconnect the producer that has the name if its client is dead.

        Raise ProducerBusyError if that client answers.
        """
        probe_s = self._topic().limits.probe_s
        # While one was asked, another newcomer may have taken the name.
        while (holder := self._holder(request.name)) is not None:
            if holder.connection is connection or await holder.connection.is_alive(probe_s):
                raise ProducerBusyError(
                    f"{self._topic().name} has a producer named {request.name} already: close that"
                    " one, or choose another name"
                )
            if self._holder(request.name) is holder:  # It may have left meanwhile.
                self.disconnect(holder)

    async def stop_all(self) -> None:
        """Close all producers, and tell them when what they have sent is stored."""
        at_most_s = self._topic().limits.drain_s
        producers = list(self.by_name.values())
        async with trio.open_nursery() as nursery:
            for producer in producers:
                nursery.start_soon(producer.stop, at_most_s)
        for producer in producers:
            self.remove(producer)

    def _holder(self, name: str) -> Producer | None:
        """Return the producer or the applicant that has the name."""
        holder = self.by_name.get(name)
        if holder is None:
            applying = (a.producer for a in self._applicants.values())
            holder = next((p for p in applying if p.name == name), None)
        return holder

    def remove(self, producer: Producer) -> None:
        """Remove a producer that has left or is lost.  Its outstanding sends get no receipt."""
        producer.close()
        self._by_key.pop(producer.key, None)
        if self.by_name.get(producer.name) is producer:
            self._forget(producer)
        self._perform(self._access.left(producer.key))

    def _forget(self, producer: Producer) -> None:
        del self.by_name[producer.name]
        deduplication = self._topic().deduplication
        if deduplication is not None:
            deduplication.left(producer.name)

    def _perform(self, effects: list[Effect]) -> None:
        if self._topic().closed:
            return  # All producers are gone, and those that waited have their error.
        for effect in effects:
            match effect:
                case Admit(key, epoch):
                    self._admit(key, epoch)
                case Wait(key):
                    self._applicants[key].on_wait()
                case Refuse(key, code, reason):
                    self._decide(key, RefusedError(code, f"{self._topic().name}: {reason}"))
                case Expel(key):
                    producer = self._by_key.pop(key)
                    self._forget(producer)
                    producer.disconnect()
                case StoreEpoch(key, epoch):
                    self._topic().start_task(self._store_epoch, key, epoch)
                case _:
                    assert_never(effect)

    def _admit(self, key: int, epoch: int | None) -> None:
        producer = self._applicants[key].producer
        assert producer.name not in self.by_name
        producer.epoch = epoch
        self._by_key[key] = producer
        self.by_name[producer.name] = producer
        self._decide(key, None)

    def _decide(self, key: int, error: BrokerError | None) -> None:
        """Tell an applicant that it is admitted, or why it is not.  The first decision counts."""
        applicant = self._applicants.get(key)
        if applicant is not None and not applicant.decided.is_set():
            applicant.error = error
            applicant.decided.set()

    async def _store_epoch(self, key: int, epoch: int) -> None:
        try:
            await self._topic().store_epoch(epoch)
        except BrokerError:
            self._perform(self._access.epoch_not_stored(key))
        else:
            self._perform(self._access.epoch_stored(key))

    def end(self, error: BrokerError) -> None:
        """Refuse all applicants and tell all producers, because the log has ended."""
        for key, applicant in list(self._applicants.items()):
            if not applicant.decided.is_set():
                self._decide(key, error)
                self._perform(self._access.left(key))
        for producer in list(self.by_name.values()):
            if producer.understands_end_of_topic:
                producer.refuse_held()
            else:
                self.disconnect(producer)

    def resume(self) -> None:
        """Disconnect the producers with held sends, because the log did not end.

        Their clients come back and repeat the held sends, in order.
        """
        for producer in list(self.by_name.values()):
            if producer.holds_sends:
                self.disconnect(producer)

    def disconnect(self, producer: Producer) -> None:
        """Close a producer, tell its client, and take it off the topic."""
        producer.disconnect()
        self.remove(producer)
        # An applicant has its name no more, also before its task runs again.
        self._decide(producer.key, UnavailableError(f"{producer.name} is disconnected"))
        self._applicants.pop(producer.key, None)

    def close(self, error: BrokerError) -> None:
        """Disconnect all producers.  All applicants get the error."""
        for key in list(self._applicants):
            self._decide(key, error)
        for producer in list(self.by_name.values()):
            producer.disconnect()
        self.by_name.clear()
        self._by_key.clear()
