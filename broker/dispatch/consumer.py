"""One consumer of a subscription: entries on their way out, and what it is told beside them.

An entry goes out as it was stored: a head in front of a view, nothing is copied.  The broker's own
metadata in front of the producer's bytes are for our own clients only; for all others that part of
the view is left out.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from daybook.broker.errors import BrokerError
from daybook.broker.protocol.dispatch.events import ConsumerKey, Entry, Place
from daybook.wire.messages.consumer import Ack, encode_message
from daybook.wire.messages.registry import VERSION_ACTIVE_CONSUMER, encode, unsigned
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer

OnDurable: TypeAlias = Callable[[BrokerError | None], None]
"""Called when acknowledgements are durable, or with why they may not be."""


class ConsumerConnection(Protocol):
    """What a consumer needs of the client's connection."""

    @property
    def peer(self) -> str: ...

    @property
    def client_version(self) -> str: ...

    @property
    def protocol_version(self) -> int: ...

    @property
    def connected_ms(self) -> int: ...

    @property
    def is_ours(self) -> bool: ...

    @property
    def sends_broker_metadata(self) -> bool: ...

    @property
    def room_bytes(self) -> int:
        """How much it should be fed at most; with nothing or less, nothing."""
        ...

    def send(self, buffers: Sequence[Buffer]) -> None: ...

    def call_when_writable(self, call: Callable[[], None]) -> None:
        """Call once, when there is room again."""
        ...

    @property
    def forget_consumer(self) -> Callable[["Consumer"], None]:
        """Called when the subscription has closed the consumer."""
        ...

    async def is_alive(self, within_s: float) -> bool: ...


class ConsumerSubscription(Protocol):
    """What is said about a consumer, and by it."""

    def writable(self, consumer: "Consumer") -> None: ...

    def flow(self, consumer: "Consumer", messages: int) -> None: ...

    def ack(self, consumer: "Consumer", ack: Ack) -> None: ...

    def when_durable(self, call: OnDurable) -> None: ...

    def redeliver(
        self, consumer: "Consumer", places: Sequence[Place], epoch: int | None
    ) -> None: ...


class Consumer:
    """See the module."""

    def __init__(
        self,
        key: ConsumerKey,
        consumer_id: int,
        name: str,
        connection: ConsumerConnection,
        subscription: ConsumerSubscription,
        *,
        partition: int,
        priority: int = 0,
        epoch: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        self.key = key
        self.consumer_id = consumer_id
        self.name = name
        self.priority = priority
        self.connection = connection
        self.subscription = subscription
        self.epoch = epoch
        self.metadata = metadata or {}
        self.closed = False
        self.messages = 0
        self.bytes = 0
        self.entries = 0
        self.redelivered = 0
        self.chunks = 0
        self.acked_ms = 0
        self.consumed_ms = 0
        self.refused_ack: BrokerError | None = None  # of one that asked for no answer
        self._end_told = False
        self._active: bool | None = None  # what the client is to be told when it is registered
        self._registered = False
        self._partition = partition
        self._with_metadata = connection.sends_broker_metadata

    def deliver(
        self,
        entries: Sequence[Entry],
        redeliveries: Sequence[int] | None,
        ack_sets: Sequence[int | None] | None,
        now_ms: int,
    ) -> None:
        """Send entries; `ack_sets`: the messages of each that are still pending, if not all are."""
        buffers: list[Buffer] = []
        messages = size = 0
        whole = self._with_metadata
        for index, entry in enumerate(entries):
            data: memoryview
            start: int
            data, start = entry.token
            if start and not whole:
                data = data[start:]
            length = len(data)
            buffers.append(
                encode_message(
                    self.consumer_id,
                    entry.place[0],
                    entry.place[1],
                    self._partition,
                    redeliveries[index] if redeliveries else 0,
                    ack_sets[index] if ack_sets else None,
                    length,
                    self.epoch,
                )
            )
            buffers.append(data)
            messages += entry.messages
            size += length
        self.messages += messages
        self.bytes += size
        self.entries += len(entries)
        self.consumed_ms = now_ms
        self.connection.send(buffers)

    def writable(self) -> None:
        if not self.closed:
            self.subscription.writable(self)

    def tell_active(self, active: bool) -> None:
        """Go's client knows the consumer a moment after SUBSCRIBE's answer: it is told then."""
        self._active = active
        if self._registered:
            self._tell_active()

    def note_registered(self) -> None:
        """The client has shown that it knows the consumer, or has had the time to."""
        if not self._registered:
            self._registered = True
            if not self.closed:
                self._tell_active()

    def _tell_active(self) -> None:
        active, self._active = self._active, None
        told = self.connection.protocol_version >= VERSION_ACTIVE_CONSUMER
        if told and active is not None:
            self._tell(
                pb.CommandActiveConsumerChange(consumer_id=self.consumer_id, is_active=active)
            )

    def tell_end_of_topic(self) -> None:
        """Only those are told that do not drop the connection for it: ours, and Java's."""
        if self._end_told:
            return
        self._end_told = True
        if self.connection.is_ours or self.connection.client_version.startswith("Pulsar-Java"):
            self._tell(pb.CommandReachedEndOfTopic(consumer_id=self.consumer_id))

    def disconnect(self) -> None:
        """The broker closes it: the client is told, and looks the topic up again."""
        if not self.closed:
            self.closed = True
            self._tell(
                pb.CommandCloseConsumer(consumer_id=self.consumer_id, request_id=unsigned(-1))
            )
            self.connection.forget_consumer(self)

    def _tell(
        self,
        message: pb.CommandActiveConsumerChange
        | pb.CommandReachedEndOfTopic
        | pb.CommandCloseConsumer,
    ) -> None:
        self.connection.send((encode(message),))
