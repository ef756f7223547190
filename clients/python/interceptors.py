"""Interceptors: see the messages of producers and consumers, and change them.

    class Tracing(daybook.ProducerInterceptor):
        def before_send(self, message):
            message.properties["trace"] = current_trace()

    producer = client.create_producer("orders", interceptors=[Tracing()])

Interceptors are called in the order of the list.  They must not wait.  One that raises an exception
is logged, the message goes on as it was before its call, and the next one is called.

`before_send` and `before_receive` are called by the call of the application, and in its thread.
The others are called in the thread of the client.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from daybook.clients.python.errors import BrokerError
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.messages import Message

_log = logging.getLogger("daybook.client")
_T = TypeVar("_T")


@dataclass(slots=True)
class OutgoingMessage:
    """A message on its way to a producer's batch.  `before_send` may change everything in it."""

    topic: str
    data: bytes | None  # by the schema of the producer
    key: str | bytes | None = None
    ordering_key: bytes | None = None
    properties: dict[str, str] = field(default_factory=dict[str, str])
    event_time_ms: int | None = None

    def __len__(self) -> int:
        return len(self.data or b"")


class ProducerInterceptor:
    """Override the methods that you need."""

    def before_send(self, message: OutgoingMessage) -> None:
        """Look at a message that the application sends, or change it."""

    def after_send(
        self, message: OutgoingMessage, message_id: MessageId | None, error: BrokerError | None
    ) -> None:
        """Note that a message is stored, or has failed."""


class ConsumerInterceptor:
    """Override the methods that you need."""

    def before_receive(self, message: Message[Any]) -> Message[Any]:
        """Return the message that the application receives: this one, or a changed copy.

        A message that a cancelled call had received is passed in again.
        """
        return message

    def on_ack(self, message_ids: Sequence[MessageId], *, cumulative: bool) -> None:
        """Note that the application has acknowledged messages."""

    def on_nack(self, message_id: MessageId) -> None:
        """Note that the application has asked for a message again."""

    def on_ack_timeout(self, message_ids: Sequence[MessageId]) -> None:
        """Note that entries were not acknowledged in time, and come again."""


class ProducerInterceptors:
    """The interceptors of one producer."""

    def __init__(self, chain: Sequence[ProducerInterceptor]) -> None:
        self._chain = chain

    def before_send(self, message: OutgoingMessage) -> OutgoingMessage:
        for each in self._chain:
            before = replace(message, properties=dict(message.properties))
            if not _called(each.before_send, message):
                message = before
        return message

    def after_send(
        self, message: OutgoingMessage, message_id: MessageId | None, error: BrokerError | None
    ) -> None:
        for each in self._chain:
            _called(each.after_send, message, message_id, error)


class ConsumerInterceptors:
    """The interceptors of one consumer."""

    def __init__(self, chain: Sequence[ConsumerInterceptor]) -> None:
        self._chain = chain

    def before_receive(self, message: Message[Any]) -> Message[Any]:
        for each in self._chain:
            try:
                changed = each.before_receive(message)
                if not isinstance(changed, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise TypeError(
                        f"before_receive must return a Message, not {type(changed).__name__}"
                    )
                message = changed
            except Exception:  # The application gets its message all the same.
                _log.exception("the interceptor %r failed; the message goes on as it was", each)
        return message

    def on_ack(self, message_ids: Sequence[MessageId], *, cumulative: bool) -> None:
        for each in self._chain:
            _called(each.on_ack, message_ids, cumulative=cumulative)

    def on_nack(self, message_id: MessageId) -> None:
        for each in self._chain:
            _called(each.on_nack, message_id)

    def on_ack_timeout(self, message_ids: Sequence[MessageId]) -> None:
        for each in self._chain:
            _called(each.on_ack_timeout, message_ids)


def _called(function: Callable[..., None], *arguments: object, **options: object) -> bool:
    """Call an interceptor; return False if it raised an exception."""
    try:
        function(*arguments, **options)
    except Exception:  # Interceptors belong to the application, and must not stop its messages.
        _log.exception("the interceptor %r failed; the message goes on as it was", function)
        return False
    return True


def check_interceptors(interceptors: Iterable[_T], kind: type[_T]) -> tuple[_T, ...]:
    """Return the interceptors.  Raise TypeError for one that is none of this kind."""
    chain = tuple(interceptors)
    for each in chain:
        if not isinstance(each, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"an interceptor must be an object of a class of {kind.__name__}, not"
                f" {type(each).__name__}"
            )
    return chain
