"""A consumer at the broker: the deliveries that its client gets, and the news about itself."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from daybook.broker.connected_client import ConnectedClient, SuccessorUrls
from daybook.broker.dispatch.backlog import BacklogSize
from daybook.broker.dispatch.entries import Payload
from daybook.broker.errors import BrokerError
from daybook.broker.protocol.dispatch.interface import Dispatch, Entry
from daybook.broker.protocol.dispatch.key_shared import KeyPolicy
from daybook.broker.protocol.dispatch.non_persistent import NonPersistentDispatch
from daybook.broker.protocol.dispatch.places import ConsumerKey, Place
from daybook.wire.clock import WallClock
from daybook.wire.messages.consumer import Ack, encode_message
from daybook.wire.messages.registry import VERSION_ACTIVE_CONSUMER, encode, unsigned
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from daybook.wire.transport import Buffer

REGISTERED_S = 0.25  # so long after the answer to SUBSCRIBE a client surely knows its consumer

OnDurable: TypeAlias = Callable[[BrokerError | None], None]
"""Called when acknowledgements are durable, or with the reason why they may be lost."""


class ConsumedTopic(Protocol):
    """The topic of a consumer, of either kind."""

    @property
    def name(self) -> TopicName: ...
    @property
    def clock(self) -> WallClock: ...
    @property
    def successor(self) -> SuccessorUrls: ...
    def has_bug(self, doing: str, bug: Exception) -> None: ...


class ConsumedSubscription(Protocol):
    """The subscription of a consumer: `Subscription`, or `NonPersistentSubscription`."""

    consumers: "dict[int, Consumer]"

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> int | None: ...
    @property
    def topic(self) -> ConsumedTopic: ...
    @property
    def moved(self) -> int | None: ...
    @property
    def dispatch(self) -> Dispatch | NonPersistentDispatch: ...
    @property
    def backlog(self) -> BacklogSize: ...
    def flow(self, consumer: "Consumer", messages: int) -> None: ...
    def writable(self, consumer: "Consumer") -> None: ...
    def redeliver(
        self, consumer: "Consumer", places: Sequence[Place], epoch: int | None
    ) -> None: ...
    def ack(self, consumer: "Consumer", ack: Ack) -> None: ...
    def when_durable(self, call: OnDurable) -> None: ...
    def remove(self, consumer: "Consumer") -> None: ...
    def begin_removal(self) -> Callable[[], Awaitable[None]]: ...


class Consumer:
    """One instance per consumer that a client opened.

    An entry is sent as it was stored: a head in front of a view, and nothing is copied.  The
    broker's own metadata in front of the producer's bytes are for clients of ours only.  For all
    others that part of the view is left out.
    """

    def __init__(
        self,
        key: ConsumerKey,
        consumer_id: int,
        name: str,
        connection: ConnectedClient,
        subscription: ConsumedSubscription,
        *,
        partition: int,
        priority: int = 0,
        epoch: int | None = None,
        metadata: dict[str, str] | None = None,
        read_compacted: bool = False,
        schema_type: int = pb.Schema.NoSchema,
        keys: KeyPolicy | None = None,
    ) -> None:
        self.key = key
        self.consumer_id = consumer_id
        self.name = name
        self.priority = priority
        self.connection = connection
        self.subscription = subscription
        self.epoch = epoch
        self.metadata = metadata or {}
        self.read_compacted = read_compacted
        self.schema_type = schema_type
        self.keys = keys or KeyPolicy()  # for a key_shared subscription
        self.closed = False
        self.messages = 0
        self.bytes = 0
        self.entries = 0
        self.redelivered = 0
        self.chunks = 0
        self.acked_ms = 0
        self.consumed_ms = 0
        self.joined_ms = subscription.topic.clock.now_ms()
        self.refused_ack: BrokerError | None = None  # the error of an ACK that asked for no answer
        self._end_sent = False
        self._active: bool | None = None  # to be sent when the client knows the consumer
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
        """Send entries.

        `ack_sets` has for each entry the messages that are still pending, or None for all of them.
        """
        buffers: list[Buffer] = []
        messages = size = 0
        whole = self._with_metadata
        for index, entry in enumerate(entries):
            payload: Payload = entry.token
            data = payload.data if whole else payload.own
            length = len(data)
            buffers.append(
                encode_message(
                    self.consumer_id,
                    payload.message_id(entry.place, self._partition),
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
        """Resume deliveries, because the client has room again."""
        if not self.closed:
            self.subscription.writable(self)

    def send_active(self, active: bool) -> None:
        """Tell the client whether this consumer is the one that is served.

        Go's client knows a consumer only a moment after the answer to SUBSCRIBE, and ignores news
        of one that it does not know.  So the news waits until the client has registered it.
        """
        self._active = active
        if self._registered:
            self._send_active()

    def note_registered(self) -> None:
        """Send waiting news: the client has used the consumer, or has had enough time."""
        if not self._registered:
            self._registered = True
            if not self.closed:
                self._send_active()

    def _send_active(self) -> None:
        active, self._active = self._active, None
        understood = self.connection.protocol_version >= VERSION_ACTIVE_CONSUMER
        if understood and active is not None:
            self._send(
                pb.CommandActiveConsumerChange(consumer_id=self.consumer_id, is_active=active)
            )

    def send_end_of_topic(self) -> None:
        """Tell the client once that the topic has ended.

        Only our own client and Java's are told: other clients drop the connection at this command.
        """
        if self._end_sent:
            return
        self._end_sent = True
        if self.connection.is_ours or self.connection.client_version.startswith("Pulsar-Java"):
            self._send(pb.CommandReachedEndOfTopic(consumer_id=self.consumer_id))

    def disconnect(self) -> None:
        """Close the consumer and tell its client, which then looks the topic up again.

        A client that may not know the consumer yet is told later; see `send_active`.
        """
        if not self.closed:
            self.closed = True
            if self._registered or self.connection.is_ours:
                self.tell_closed()
            else:
                self.connection.call_later(REGISTERED_S, self.tell_closed)
            self.connection.forget_consumer(self)

    def tell_closed(self) -> None:
        """Tell the client that the consumer is closed: it looks the topic up again."""
        closed = pb.CommandCloseConsumer(consumer_id=self.consumer_id, request_id=unsigned(-1))
        self.subscription.topic.successor.assign(closed, tls=self.connection.encrypted)
        self._send(closed)

    def _send(
        self,
        message: pb.CommandActiveConsumerChange
        | pb.CommandReachedEndOfTopic
        | pb.CommandCloseConsumer,
    ) -> None:
        self.connection.send((encode(message),))
