"""A listener: a function that a consumer calls with each message, one after the other.

    def work(consumer, message):
        consumer.ack(message)

    consumer = client.subscribe("orders", "billing", listener=work)

The listener acknowledges messages itself.  If it raises an exception, this is logged, and the
message is given to `nack`.  On trio and asyncio it may be an async function; without an event loop
it is called in a thread of its own.

The calls end with the consumer: `close` waits for the call that is under way, unless the listener
itself closes the consumer.  They also end behind the last message of a terminated topic, and with
an error that no attempt can mend, which is logged.
"""

import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

import trio

from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import (
    BrokerError,
    ClosedError,
    CorruptMessageError,
    EndOfTopicError,
)
from daybook.clients.python.messages import Message, ValueT

Call: TypeAlias = Callable[[Message[Any]], Any]
"""Hands a message to the listener; what it returns is awaited, if it can be."""

ConsumerT = TypeVar("ConsumerT")
Listener: TypeAlias = Callable[[ConsumerT, Message[ValueT]], Any]
"""A function of the application, perhaps async."""

_log = logging.getLogger("daybook.client")
_calling: ContextVar[Consumer[Any] | None] = ContextVar("daybook_listener", default=None)


def check_listener(listener: object) -> None:
    if listener is not None and not callable(listener):
        raise TypeError(f"listener must be a function, not {type(listener).__name__}")


def calling() -> Consumer[Any] | None:
    """Return the consumer whose listener runs here, if one does."""
    return _calling.get()


def is_inside(consumer: Consumer[Any]) -> bool:
    """Return True in a call of the listener of this consumer."""
    return _calling.get() is consumer


class Listening:
    """The calls of one listener.  `run` is a task in the nursery of the client."""

    def __init__(self, consumer: Consumer[Any], call: Call) -> None:
        self._consumer = consumer
        self._call = call
        self._receiving = trio.CancelScope()
        self._ended = trio.Event()
        self._stopped = False
        consumer.listen(self.stop)

    async def run(self) -> None:
        _calling.set(self._consumer)  # In the context of this task, and of what it starts.
        try:
            while (message := await self._next()) is not None:
                await self._handle(message)
        except (EndOfTopicError, ClosedError):
            pass
        except BrokerError:
            _log.exception("%s: its listener gets no more messages", self._consumer)
        finally:
            self._ended.set()

    async def _next(self) -> Message[Any] | None:
        """Return the next message; None if the listener was stopped."""
        while not self._stopped:
            with trio.CancelScope() as self._receiving:
                try:
                    return await self._consumer.receive()
                except CorruptMessageError as error:
                    _log.warning("%s: a message cannot be read: %s", self._consumer, error)
        return None

    async def _handle(self, message: Message[Any]) -> None:
        try:
            made = self._call(message)
            if inspect.isawaitable(made):
                await made
        except Exception:  # The listener belongs to the application, and must not end its consumer.
            _log.exception(
                "the listener of %s failed, so message %s comes again",
                self._consumer,
                message.message_id,
            )
            if not self._consumer.closed:
                self._consumer.nack(message)

    async def stop(self, inside: bool) -> None:
        """Call the listener no more.  Return when it has returned, or at once if `inside` of it."""
        self._stopped = True
        self._receiving.cancel()
        if not inside and not is_inside(self._consumer):
            await self._ended.wait()
