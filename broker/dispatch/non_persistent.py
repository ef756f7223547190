"""A subscription of a non-persistent topic: its consumers, and the messages that are dropped.

It exists while it has consumers, and nothing of it is stored.  Each message is sent at once to a
consumer that has permits and whose client reads, or it is dropped and counted.  Acknowledgements
and requests for redelivery mean nothing here: they are accepted, because clients send them for
every topic.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import trio

from daybook.broker.connected_client import ConnectedClient
from daybook.broker.dispatch.backlog import BacklogSize
from daybook.broker.dispatch.consumer import REGISTERED_S, ConsumedTopic, Consumer, OnDurable
from daybook.broker.dispatch.entries import keyed_head
from daybook.broker.dispatch.subscription import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    TYPE_NAMES,
)
from daybook.broker.errors import (
    ConsumerAssignError,
    ConsumerBusyError,
    NotAllowedError,
    UnavailableError,
)
from daybook.broker.limits import TopicLimits
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.dispatch.interface import Activate, Entry
from daybook.broker.protocol.dispatch.key_shared import KeyPolicy, key_ranges
from daybook.broker.protocol.dispatch.non_persistent import NonPersistentDispatch
from daybook.broker.protocol.dispatch.places import Place
from daybook.broker.protocol.dispatch.ranges import ranges_problem
from daybook.wire.messages.consumer import Ack


class NonPersistentHome(ConsumedTopic, Protocol):
    """The topic of a non-persistent subscription."""

    @property
    def policies(self) -> EffectivePolicies: ...
    @property
    def limits(self) -> TopicLimits: ...
    @property
    def start_task(self) -> Callable[..., None]: ...


class NonPersistentSubscription:
    """One instance per subscription.  `on_gone` is called once, when it is removed."""

    durable = False
    moved: int | None = None  # it cannot be moved
    properties: Mapping[str, str] = {}

    def __init__(
        self,
        topic: NonPersistentHome,
        name: str,
        *,
        on_gone: Callable[["NonPersistentSubscription"], None],
    ) -> None:
        self.name = name
        self.topic = topic
        self.type: int | None = None
        self.consumers: dict[int, Consumer] = {}
        self.dispatch = NonPersistentDispatch(shared=False)
        self.reader_of = ""  # the role of the reader that has drawn the name
        self.gone = False
        self.messages = 0  # delivered
        self.bytes = 0
        self.dropped = 0  # messages
        self.redelivered = 0
        self.acked_ms = 0
        self._on_gone = on_gone

    @property
    def backlog(self) -> BacklogSize:
        return BacklogSize(0, 0, 0, exact=True)

    # -- consumers

    async def make_way(
        self, wanted: int, connection: ConnectedClient, keys: KeyPolicy | None = None
    ) -> None:
        """Return when a consumer of the wanted type can join, or raise ConsumerBusyError.

        Raise ConsumerAssignError if the policy or the ranges of a key_shared consumer do not fit.
        Consumers in the way whose clients do not answer are taken for dead.
        """
        if wanted == KEY_SHARED:
            self._check_keys(keys or KeyPolicy())
        in_the_way = self._in_the_way(wanted)
        if not in_the_way:
            self._check_room()
            return
        others: dict[ConnectedClient, list[Consumer]] = {}
        for consumer in in_the_way:
            if consumer.connection is not connection:
                others.setdefault(consumer.connection, []).append(consumer)
        async with trio.open_nursery() as nursery:
            for other, consumers in others.items():
                nursery.start_soon(self._probe, other, consumers)
        if self.gone:
            raise UnavailableError(f"the subscription {self.name} has just ended: try again")
        if self._in_the_way(wanted):
            raise ConsumerBusyError(
                f"the subscription {self.name} is {TYPE_NAMES[self.type or EXCLUSIVE]} and has a"
                " consumer already: close that one first"
            )
        self._check_room()

    def _check_room(self) -> None:
        """Raise ConsumerBusyError if the subscription has as many consumers as it may have."""
        topic = self.topic
        limit = topic.policies.max_consumers_per_subscription or topic.limits.consumers_max
        if len(self.consumers) >= limit:
            raise ConsumerBusyError(
                f"the subscription {self.name} has {len(self.consumers)} consumers, which is the"
                " limit: close some, or raise the policy maxConsumersPerSubscription"
            )

    def _check_keys(self, keys: KeyPolicy) -> None:
        problem = ranges_problem(keys.ranges) if keys.sticky else None
        if problem is None and self.consumers and self.dispatch.ranges is not None:
            first = next(iter(self.consumers.values())).keys
            if not first.agrees(keys):
                problem = f"the subscription has consumers with the policy {first}, not {keys}"
            else:
                problem = self.dispatch.ranges.refusal(keys.ranges)
        if problem is not None:
            raise ConsumerAssignError(f"no consumer can join {self.name}: {problem}")

    def _in_the_way(self, wanted: int) -> list[Consumer]:
        if self.type == wanted and wanted != EXCLUSIVE:
            return []
        return list(self.consumers.values())

    async def _probe(self, connection: ConnectedClient, consumers: Sequence[Consumer]) -> None:
        """Remove the consumers of a client that does not answer."""
        if not await connection.is_alive(self.topic.limits.probe_s):
            for consumer in consumers:
                consumer.disconnect()
                self.remove(consumer)

    def add(self, consumer: Consumer, wanted: int) -> None:
        """Serve the consumer.  The caller has awaited `make_way`, without a checkpoint since."""
        assert not self._in_the_way(wanted)
        if not self.consumers:
            self.type = wanted
            name = self.topic.name
            failover = (name.full, name.partition) if wanted == FAILOVER else None
            ranges = None
            if wanted == KEY_SHARED:
                ranges = key_ranges(consumer.keys, self.topic.limits.dispatch)
            self.dispatch = NonPersistentDispatch(
                shared=wanted == SHARED, failover=failover, ranges=ranges
            )
        self.consumers[consumer.key] = consumer
        self._activate(
            self.dispatch.joined(
                consumer.key, consumer.name, consumer.priority, consumer.keys.ranges
            )
        )
        if wanted == FAILOVER:
            self.topic.start_task(self._wait_registered, consumer)

    async def _wait_registered(self, consumer: Consumer) -> None:
        await trio.sleep(REGISTERED_S)
        consumer.note_registered()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer that has left or is lost; the last one takes the subscription along."""
        consumer.closed = True
        if self.consumers.pop(consumer.key, None) is not None:
            self._activate(self.dispatch.left(consumer.key))
            self.drop_if_unused()

    def _activate(self, effects: Sequence[Activate]) -> None:
        for effect in effects:
            self.consumers[effect.consumer].send_active(effect.active)

    def drop_if_unused(self) -> None:
        if not self.consumers:
            self.drop()

    def drop(self) -> None:
        """Disconnect all consumers, and take the subscription off the topic."""
        if not self.gone:
            self.gone = True
            for consumer in list(self.consumers.values()):
                consumer.disconnect()
                self.remove(consumer)
            self._on_gone(self)

    def begin_removal(self) -> Callable[[], Awaitable[None]]:
        """Remove the subscription, and return a function that waits for nothing."""
        self.drop()
        return trio.lowlevel.checkpoint

    # -- delivering

    def deliver(self, entries: Sequence[Entry], sizes: Sequence[int], now_ms: int) -> None:
        """Send the entries to consumers that can take them, and drop the others."""
        if self.dispatch.ranges is not None:
            for entry in entries:
                # The entries are shared by all subscriptions, so each key is computed once.
                entry.key = entry.key or keyed_head(entry.token.data).key
        rooms = {key: each.connection.room_bytes for key, each in self.consumers.items()}
        assigned = self.dispatch.assign(entries, sizes, rooms)
        self.dropped += assigned.dropped
        for key, taken in assigned.deliveries.items():
            consumer = self.consumers[key]
            before = consumer.messages, consumer.bytes
            consumer.deliver(taken, None, None, now_ms)
            self.messages += consumer.messages - before[0]
            self.bytes += consumer.bytes - before[1]
            if consumer.connection.room_bytes <= 0:
                # The connection counts as slow from now on, and so has less room.
                consumer.connection.call_when_writable(consumer.writable)

    # -- commands of consumers

    def flow(self, consumer: Consumer, messages: int) -> None:
        if consumer.key in self.consumers:
            consumer.note_registered()
            self.dispatch.permits_granted(consumer.key, messages)

    def writable(self, consumer: Consumer) -> None:
        """Do nothing: the next entry finds the room."""

    def redeliver(self, consumer: Consumer, places: Sequence[Place], epoch: int | None) -> None:
        """Do nothing but note the epoch, without which the client would discard messages."""
        if epoch is not None and epoch > (consumer.epoch or -1):
            consumer.epoch = epoch

    def ack(self, consumer: Consumer, ack: Ack) -> None:
        if ack.txn is not None:
            raise NotAllowedError("this broker does not offer transactions")
        self.acked_ms = consumer.acked_ms = self.topic.clock.now_ms()

    def when_durable(self, call: OnDurable) -> None:
        """Call back at once: nothing has to become durable."""
        call(None)
