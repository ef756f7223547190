"""The producers of one connection: opened, closed and dropped as `protocol.producing` decides.

That machine knows of an opening from the moment in which the client asked for it, so a close that
arrives meanwhile finds it.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, assert_never

import trio

from daybook.broker.context import BrokerContext
from daybook.broker.errors import BrokerError, NotAllowedError, PreconditionError, RefusedError
from daybook.broker.protocol import producing
from daybook.broker.protocol.access import AccessMode
from daybook.broker.protocol.deduplication import NOTHING, RESERVED
from daybook.broker.protocol.producing import Sending
from daybook.broker.service.client_rights import ClientRights
from daybook.broker.service.command_bodies import (
    check_metadata,
    check_names,
    pairs_of,
    producer_success,
    schema_of,
    success_of,
    topic_name,
)
from daybook.broker.service.connection import ClientConnection
from daybook.broker.service.connection_use import ConnectionUse
from daybook.broker.service.openings import Opening, Openings
from daybook.broker.service.request_turns import RequestQueue
from daybook.broker.service.topic_queries import TopicQueries
from daybook.broker.topics.producer import ProducedTopic, Producer
from daybook.broker.topics.topic_producers import ProducerRequest
from daybook.wire.messages.client import Send
from daybook.wire.proto import pulsar_pb2 as pb

T = pb.BaseCommand


class ClientProducers:
    """The producers that are open or being opened on one connection."""

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
        self.opened: dict[int, Producer] = {}
        # The topics that this client has appended to since the last `take_appended_to`.
        self._appended_to: dict[ProducedTopic, None] = {}
        self._connection = connection
        self._broker = broker
        self._rights = rights
        self._queries = queries
        self._openings = Openings("producer", requests)
        self._refuse = refuse
        self._hold = hold
        self._use = use
        self._protocol = producing.ProducingProtocol(
            producers_max=broker.limits.producers_max, ignore_s=broker.config.keep_alive_s
        )

    def __len__(self) -> int:
        return len(self.opened) + len(self._openings)

    def send(self, send: Send) -> None:
        match self._protocol.sending(send.producer_id, trio.current_time()):
            case Sending.TAKE:
                producer = self.opened[send.producer_id]
                producer.send(send)
                self._appended_to[producer.topic] = None
            case Sending.IGNORE:
                pass  # The topic has dropped the producer; the client will repeat the send.
            case Sending.VIOLATION:
                reason = f"the client sent to producer {send.producer_id}, which is not open"
                self._connection.violated(reason)

    def take_appended_to(self) -> dict[ProducedTopic, None]:
        """Return the topics that this client has appended to since the last call."""
        topics, self._appended_to = self._appended_to, {}
        return topics

    def open(self, body: pb.CommandProducer, frame_bytes: int) -> None:
        effects = self._protocol.open(body.producer_id, body.request_id, body.epoch)
        self._perform(effects, body, frame_bytes)

    def close(self, body: pb.CommandCloseProducer) -> None:
        self._perform(self._protocol.close(body.producer_id, body.request_id))

    def leave(self) -> None:
        """Take all producers off their topics: the connection has ended."""
        for producer in list(self.opened.values()):
            producer.leave()
        self.opened.clear()

    def forget(self, producer: Producer) -> None:
        """Note that the topic has closed a producer and told the client."""
        # The client may have opened another producer under the same id already.
        if self.opened.get(producer.producer_id) is producer:
            del self.opened[producer.producer_id]
            now_s = trio.current_time()
            self._perform(self._protocol.dropped(producer.producer_id, now_s))

    def _perform(
        self,
        effects: list[producing.Effect],
        body: pb.CommandProducer | None = None,
        frame_bytes: int = 0,
    ) -> None:
        connection = self._connection
        for effect in effects:
            match effect:
                case producing.Attach(_, attempt):
                    assert body is not None
                    self._openings.begin(
                        attempt,
                        partial(self._open, body, attempt),
                        frame_bytes,
                        partial(self._not_opened, body, attempt),
                    )
                case producing.Abort(_, attempt):
                    self._openings.abort(attempt)
                case producing.Drain(producer_id):
                    self._drain(self.opened[producer_id])
                case producing.Detach(producer_id):
                    self.opened.pop(producer_id).leave()
                case producing.Confirm(request_id):
                    connection.send_command(pb.CommandSuccess(request_id=request_id))
                case producing.Repeat(producer_id, request_id):
                    opened = self.opened[producer_id]
                    connection.send_command(producer_success(request_id, opened))
                case producing.Refuse(_, code, reason):
                    assert body is not None
                    self._refuse(T.PRODUCER, body, RefusedError(code, reason))
                case _:
                    assert_never(effect)
        self._use.count_producers(len(self))

    def _drain(self, producer: Producer) -> None:
        producer_id = producer.producer_id
        producer.drain(lambda: self._perform(self._protocol.drained(producer_id)))

    def _not_opened(self, body: pb.CommandProducer, attempt: int, error: BrokerError) -> None:
        self._refuse(T.PRODUCER, body, error)
        self._perform(self._protocol.open_failed(body.producer_id, attempt))

    async def _open(self, body: pb.CommandProducer, attempt: int, opening: Opening) -> None:
        connection, producer_id, scope = self._connection, body.producer_id, opening.scope
        producer: Producer | None = None
        error: BrokerError = self._openings.closed_early()
        changes = self._rights.changes
        try:
            with scope:
                try:
                    producer = await self._attach(body, opening)
                except BrokerError as refused:
                    error = refused.with_traceback(None)  # It would hold this frame, which has it.
                    await self._hold(refused, self._openings.giving_way(opening))
        finally:
            self._openings.end(attempt)
        # The client may have closed the producer, or the topic dropped it, after it was admitted
        # and before this task ran again.
        if producer is not None and (scope.cancel_called or connection.closing or producer.closed):
            producer.leave()
            producer = None
        if producer is None:
            self._not_opened(body, attempt, error)
            return
        assert producer_id not in self.opened
        self.opened[producer_id] = producer
        self._rights.recheck_since(changes, producer.topic.name)
        self._perform(self._protocol.opened(producer_id, attempt))
        success = producer_success(body.request_id, producer)
        if connection.is_ours:
            success.deduplicated = producer.topic.deduplication is not None
        connection.send_command(success)

    async def _attach(self, body: pb.CommandProducer, opening: Opening) -> Producer:
        broker = self._broker
        await self._rights.check(T.PRODUCER, body)
        broker.role_use.check_producer(self._rights.role)
        if body.txn_enabled:
            raise NotAllowedError("this broker does not offer transactions")
        check_names(broker.limits, body.producer_name, body.initial_subscription_name)
        check_metadata(broker.limits, "producer", body.metadata)
        if body.producer_name.startswith(RESERVED):
            raise PreconditionError(
                f"the producer name {body.producer_name[:64]!r} is reserved: choose another one"
            )
        name = topic_name(body.topic)
        topic = await broker.topics.open(name, create=await self._queries.may_create(name))
        schema_version = await broker.schemas.producer(topic, schema_of(body))
        if body.initial_subscription_name:
            await topic.subscriptions.ensure(body.initial_subscription_name)
        request = ProducerRequest(
            body.producer_id,
            body.producer_name or broker.topics.producer_name(),
            AccessMode(body.producer_access_mode),
            body.topic_epoch if body.HasField("topic_epoch") else None,
            pairs_of(body.metadata),
            schema_version,
        )

        def must_wait() -> None:
            success = success_of(body.request_id, request.name, NOTHING, schema_version)
            success.producer_ready = False
            self._connection.send_command(success)
            # This one waits for as long as another producer stays.  It gives its place to
            # other requests.
            self._openings.step_aside(opening)

        return await topic.producers.add(
            request,
            self._connection.client,
            on_wait=must_wait,
            on_held=partial(self._openings.step_aside, opening),
        )
