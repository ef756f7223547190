"""The consumers of one connection: opened, closed and dropped as `protocol.consuming` decides.

That machine knows of an opening from the moment in which the client asked for it, so a close that
arrives meanwhile finds it.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, assert_never

import trio

from daybook.broker.context import BrokerContext
from daybook.broker.dispatch.consumer import ConsumedSubscription, Consumer
from daybook.broker.dispatch.non_persistent import NonPersistentSubscription
from daybook.broker.dispatch.subscription import EXCLUSIVE, FAILOVER, TYPE_NAMES, Subscription
from daybook.broker.errors import BrokerError, NotAllowedError, RefusedError, UnavailableError
from daybook.broker.protocol import consuming
from daybook.broker.service.client_rights import ClientRights
from daybook.broker.service.command_bodies import (
    check_metadata,
    check_names,
    consumer_request,
    schema_of,
    topic_name,
)
from daybook.broker.service.connection import ClientConnection
from daybook.broker.service.connection_use import ConnectionUse
from daybook.broker.service.openings import Opening, Openings
from daybook.broker.service.request_turns import RequestQueue
from daybook.broker.service.topic_queries import TopicQueries
from daybook.broker.topics.non_persistent import NonPersistentTopic
from daybook.broker.topics.topic_subscriptions import ConsumerRequest
from daybook.wire.messages.consumer import Ack
from daybook.wire.messages.registry import signed
from daybook.wire.proto import pulsar_pb2 as pb

T = pb.BaseCommand
_LEAVE_AT_ONCE = 100  # consumers; then other tasks run
ACKS_WAITING_MAX = 100_000  # acknowledgements of one connection that wait for their receipts


class ClientConsumers:
    """The consumers that are open or being opened on one connection."""

    def __init__(
        self,
        connection: ClientConnection,
        broker: BrokerContext,
        rights: ClientRights,
        queries: TopicQueries,
        requests: RequestQueue,
        use: ConnectionUse,
        *,
        refuse: Callable[[int, Any, BrokerError], None],
        hold: Callable[[BrokerError, AbstractContextManager[None]], Awaitable[None]],
    ) -> None:
        self.opened: dict[int, Consumer] = {}
        self._connection = connection
        self._broker = broker
        self._rights = rights
        self._queries = queries
        self._openings = Openings("consumer", requests)
        self._refuse = refuse
        self._hold = hold
        self._use = use
        self._protocol = consuming.ConsumingProtocol(consumers_max=broker.limits.consumers_max)
        self._acks_waiting = 0  # for their receipts

    def __len__(self) -> int:
        return len(self.opened) + len(self._openings)

    def ack(self, ack: Ack) -> None:
        consumer = self.opened.get(ack.consumer_id)
        if consumer is None:
            if ack.request_id is not None:
                error = RefusedError(
                    pb.ConsumerNotFound, f"this connection has no consumer {ack.consumer_id}"
                )
                self._refuse(T.ACK, ack, error)
            return
        try:
            consumer.subscription.ack(consumer, ack)
        except BrokerError as error:
            if ack.request_id is not None:
                self._refuse(T.ACK, ack, error)
            else:
                # The next acknowledgement that asks for a receipt gets this error.
                consumer.refused_ack = error
            return
        if ack.request_id is None:
            return
        refused, consumer.refused_ack = consumer.refused_ack, None
        if refused is not None:
            # Clients take a receipt for one of all their earlier acknowledgements, too.
            self._refuse(T.ACK, ack, refused)
        elif self._acks_waiting >= ACKS_WAITING_MAX:
            too_many = UnavailableError(
                f"the acknowledgement may be lost: {self._acks_waiting} earlier ones of this"
                " connection wait to be stored; send it again when they have their receipts"
            )
            self._refuse(T.ACK, ack, too_many)
        else:
            self._acks_waiting += 1
            consumer.subscription.when_durable(self._ack_answer(ack))

    def _ack_answer(self, ack: Ack) -> Callable[[BrokerError | None], None]:
        connection = self._connection

        def answer(error: BrokerError | None) -> None:
            self._acks_waiting -= 1
            if error is not None:
                self._refuse(T.ACK, ack, error)
                return
            assert ack.request_id is not None
            connection.send_command(
                pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
            )

        return answer

    def flow(self, body: pb.CommandFlow) -> None:
        if not body.messagePermits:
            self._connection.violated("the client sent FLOW without permits")
            return
        consumer = self.opened.get(body.consumer_id)
        if consumer is not None:
            consumer.subscription.flow(consumer, body.messagePermits)

    def redeliver(self, body: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self.opened.get(body.consumer_id)
        if consumer is not None:
            places = [(signed(each.ledgerId), signed(each.entryId)) for each in body.message_ids]
            epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
            consumer.subscription.redeliver(consumer, places, epoch)

    def open(self, body: pb.CommandSubscribe, frame_bytes: int) -> None:
        effects = self._protocol.open(body.consumer_id, body.request_id)
        self._perform(effects, body, frame_bytes)

    def close(self, body: pb.CommandCloseConsumer) -> None:
        self._perform(self._protocol.close(body.consumer_id, body.request_id))

    async def leave(self) -> None:
        """Take all consumers off their subscriptions: the connection has ended.

        Tens of thousands of key_shared consumers take seconds, so other tasks run in between.
        """
        while self.opened:
            for consumer_id in list(islice(self.opened, _LEAVE_AT_ONCE)):
                _leave(self.opened.pop(consumer_id))
            if self.opened:
                await trio.lowlevel.checkpoint()

    def known(
        self, consumer_id: int, consumer: Consumer | None, code: int = pb.MetadataError
    ) -> Consumer:
        """Return the consumer that a request was for, if it is still open."""
        if consumer is None or self.opened.get(consumer_id) is not consumer:
            raise RefusedError(code, f"this connection has no consumer {consumer_id}")
        return consumer

    def forget(self, consumer: Consumer) -> None:
        """Note that the subscription has closed a consumer and told the client."""
        if self.opened.get(consumer.consumer_id) is consumer:
            del self.opened[consumer.consumer_id]
            self._perform(self._protocol.dropped(consumer.consumer_id))

    def _perform(
        self,
        effects: list[consuming.Effect],
        body: pb.CommandSubscribe | None = None,
        frame_bytes: int = 0,
    ) -> None:
        connection = self._connection
        for effect in effects:
            match effect:
                case consuming.Attach(_, attempt):
                    assert body is not None
                    self._openings.begin(
                        attempt,
                        partial(self._open, body, attempt),
                        frame_bytes,
                        partial(self._not_opened, body, attempt),
                    )
                case consuming.Abort(_, attempt):
                    self._openings.abort(attempt)
                case consuming.Detach(consumer_id):
                    _leave(self.opened.pop(consumer_id))
                case consuming.Confirm(request_id):
                    connection.send_command(pb.CommandSuccess(request_id=request_id))
                case consuming.Refuse(_, code, reason):
                    assert body is not None
                    self._refuse(T.SUBSCRIBE, body, RefusedError(code, reason))
                case _:
                    assert_never(effect)
        self._use.count_consumers(len(self))

    def _not_opened(self, body: pb.CommandSubscribe, attempt: int, error: BrokerError) -> None:
        self._refuse(T.SUBSCRIBE, body, error)
        self._perform(self._protocol.open_failed(body.consumer_id, attempt))

    async def _open(self, body: pb.CommandSubscribe, attempt: int, opening: Opening) -> None:
        connection, consumer_id, scope = self._connection, body.consumer_id, opening.scope
        found: tuple[Subscription | NonPersistentSubscription, Callable[[], Consumer]] | None
        found = None
        error: BrokerError = self._openings.closed_early()
        request = consumer_request(body)
        changes = self._rights.changes
        try:
            with scope:
                try:
                    found = await self._prepare(body, request)
                except BrokerError as refused:
                    error = refused.with_traceback(None)  # It would hold this frame, which has it.
                    await self._hold(refused, self._openings.giving_way(opening))
        finally:
            self._openings.end(attempt)
        # A volatile subscription that was created for this consumer goes with it.
        if found is not None and (scope.cancel_called or connection.closing):
            found[0].drop_if_unused()
            found = None
        if found is None:
            self._not_opened(body, attempt, error)
            return
        subscription, join = found
        # The answer has to be sent before anything that the subscription sends.
        success = pb.CommandSuccess(request_id=body.request_id)
        add_move(success, connection, subscription)
        _add_properties(success, connection, subscription)
        connection.send_command(success)
        # No checkpoint since `_prepare`: the subscription is still the one that was made ready.
        consumer = join()
        assert consumer_id not in self.opened
        self.opened[consumer_id] = consumer
        self._rights.recheck_since(changes, subscription.topic.name)
        self._perform(self._protocol.opened(consumer_id, attempt))

    async def _prepare(
        self, body: pb.CommandSubscribe, request: ConsumerRequest
    ) -> tuple[Subscription | NonPersistentSubscription, Callable[[], Consumer]]:
        """Return the subscription, and a function that adds the consumer to it.

        The caller has to call it before its next checkpoint.
        """
        broker = self._broker
        await self._rights.check(T.SUBSCRIBE, body)
        request = replace(request, reader_of=await self._rights.reader_of(body))
        broker.role_use.check_consumer(self._rights.role)
        if body.subType not in TYPE_NAMES:
            raise NotAllowedError(
                f"this broker has no subscriptions of type {body.subType}, only"
                f" {', '.join(TYPE_NAMES.values())}"
            )
        if body.read_compacted and body.subType not in (EXCLUSIVE, FAILOVER):
            raise NotAllowedError(
                "a consumer can read a compacted topic only on an exclusive or a failover"
                " subscription: choose one of these types"
            )
        if body.replicate_subscription_state:
            raise NotAllowedError("this broker does not replicate subscriptions")
        if request.durable and request.start_offset is not None:
            raise NotAllowedError(
                "a durable subscription cannot start at an offset: use a reader, or seek afterwards"
            )
        check_names(broker.limits, body.subscription, body.consumer_name)
        check_metadata(broker.limits, "consumer", body.metadata)
        name = topic_name(body.topic)
        create = (
            request.creates and body.force_topic_creation and await self._queries.may_create(name)
        )
        topic = await broker.topics.open(name, create=create)
        await broker.schemas.consumer(topic, schema_of(body))
        client = self._connection.client
        if isinstance(topic, NonPersistentTopic):
            volatile = await topic.subscriptions.prepare(request, client)
            return volatile, partial(topic.subscriptions.join, volatile, request, client)
        subscription = await topic.subscriptions.prepare(request, client)
        return subscription, partial(topic.subscriptions.join, subscription, request, client)


def add_move(
    success: pb.CommandSuccess, connection: ClientConnection, subscription: ConsumedSubscription
) -> None:
    """Add the number of the subscription's latest move, if the client knows the field."""
    if connection.is_ours and subscription.moved is not None:
        success.moved = subscription.moved


def _add_properties(
    success: pb.CommandSuccess, connection: ClientConnection, subscription: ConsumedSubscription
) -> None:
    """Add the stored properties of the subscription, if the client knows the field."""
    if connection.is_ours and isinstance(subscription, Subscription):
        for key, value in subscription.properties.items():
            success.subscription_properties.add(key=key, value=value)


def _leave(consumer: Consumer) -> None:
    consumer.subscription.remove(consumer)
