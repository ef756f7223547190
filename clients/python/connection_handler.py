"""Keeps one producer or consumer of one topic attached to the broker that serves the topic.

    looking up, connecting, registering  --->  attached  --->  detached, and the same again
                    |                                              (connection lost, topic moved)
                    v
                  ended: closed by its owner, or refused for good

A broker may carry out a registration at any time after it was asked.  Therefore, when an attempt
or the handler itself ends, the broker is told to close the producer or consumer again; otherwise it
would keep a place, and send messages, to nobody.

The subclasses TopicProducer and TopicConsumer do the work; this module only finds the broker, and
finds it again.  Before the first attachment, a refusal that would not change ends the handler, and
so does a quota whose policy asks for an exception.  After it, errors that may follow from a
takeover are tried again, and quotas, because there may be room later.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TypeVar

import trio

from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.errors import (
    BrokerError,
    BusyError,
    ClosedError,
    Remedy,
    UnavailableError,
    is_quota_exception,
    is_refused_for_now,
    may_retry,
)
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.lookup import Lookups
from daybook.clients.python.protocol.retry import Backoff
from daybook.wire.topics import TopicName

_log = logging.getLogger("daybook.client")
CLOSE_TIMEOUT_S = 5.0
_SHORT_S = 0.05  # brokers that hand a topic over faster than this are not followed at once
_T = TypeVar("_T")


class ConnectionHandler(ABC):
    """The base of TopicProducer and TopicConsumer.

    `run` is started in the nursery of the client; `opened` waits for the first attachment.
    """

    def __init__(
        self, topic: TopicName, *, lookups: Lookups, limits: ClientLimits, rng: Random
    ) -> None:
        self.topic = topic
        self.connection: BrokerConnection | None = None
        self.failure: BrokerError | None = None  # why it ended
        self._trouble: BrokerError | None = None  # why the last attempt to attach failed
        self._lookups = lookups
        self._limits = limits
        self._rng = rng
        self._backoff = Backoff(limits.backoff_initial_s, limits.backoff_max_s)
        self._detached = trio.Event()
        self._opened = trio.Event()
        self._assigned_url = ""  # the broker that serves the topic next, if the last one has said
        self._changed = trio.Event()  # attached again, or ended
        self._ever_attached = False
        self._scope = trio.CancelScope()

    # -- what subclasses do

    @abstractmethod
    async def _register(self, connection: BrokerConnection) -> None:
        """Ask the broker to register the producer or consumer.  Raise BrokerError."""

    @abstractmethod
    def _attached(self, connection: BrokerConnection) -> None:
        """Resume where the last connection ended: the broker has accepted the registration."""

    @abstractmethod
    def _unregister(self, connection: BrokerConnection) -> None:
        """Ignore what arrives on this connection from now on."""

    @abstractmethod
    async def _close_at_broker(self, connection: BrokerConnection) -> None:
        """Ask the broker to close the producer or consumer, and wait.  Raise BrokerError."""

    @abstractmethod
    def _take_back(self, connection: BrokerConnection) -> None:
        """Ask the broker to close what it may have registered, without waiting for the answer."""

    @abstractmethod
    def _ended(self, failure: BrokerError) -> None:
        """Handle the end: fail what is pending, and wake the tasks that wait."""

    # -- from the start to the end

    async def run(self) -> None:
        """Attach, and attach again, until the handler is closed or refused."""
        with self._scope:
            deadline = trio.current_time() + self._limits.operation_timeout_s
            while self.failure is None:
                try:
                    await self._attach()
                    await self._stay()
                except BrokerError as error:
                    if self._is_final(error, deadline):
                        self._end(error)
                        break
                    self._note_trouble(error)
                    await trio.sleep(self._backoff.next(self._rng.random()))
        self._end(ClosedError(f"{self.topic}: the producer or consumer was closed"))

    def _note_trouble(self, error: BrokerError) -> None:
        """Keep the reason why an attempt to attach failed, which will be repeated."""
        was_refused = self._trouble is not None and is_refused_for_now(self._trouble)
        if is_refused_for_now(error) and not was_refused:  # Once, not for each attempt.
            _log.warning("a broker refused, and the client is trying again: %s", error)
        self._trouble = self._lookups.trouble = error

    async def _stay(self) -> None:
        """Wait until the next attempt is due: immediately, unless the attachment was short."""
        began = trio.current_time()
        await self._detached.wait()
        if trio.current_time() - began >= self._limits.backoff_max_s:
            self._backoff.reset()
        # After a long attachment the first attempt is immediate: this is the usual takeover.  It is
        # also immediate if the broker has handed the topic over, and serves it no longer.
        handed_over = self._assigned_url and trio.current_time() - began >= _SHORT_S
        if self._backoff.attempts and not handed_over:
            await trio.sleep(self._backoff.next(self._rng.random()))
        self._backoff.attempts += 1

    async def opened(self) -> None:
        """Return after the first attachment; raise the error if there will be none."""
        await self._opened.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Ask the broker to close, wait `CLOSE_TIMEOUT_S` at most, and end."""
        connection = self.connection
        try:
            if self.failure is None and connection is not None and not connection.closed:
                with trio.move_on_after(CLOSE_TIMEOUT_S), suppress(BrokerError):
                    await self._close_at_broker(connection)
                    self._detach(connection)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End at once.  Idempotent."""
        self._end(ClosedError(f"{self.topic}: the producer or consumer was closed"))
        self._scope.cancel()

    def on_forked(self, error: BrokerError) -> None:
        """End in a process that was forked, without telling the broker."""
        self.connection = None
        self.failure = error

    async def wait_connection(self) -> BrokerConnection:
        """Return the connection, as soon as there is one; raise the error if it has ended."""
        while self.connection is None:
            if self.failure is not None:
                raise self.failure
            await self._changed.wait()
        return self.connection

    async def persist(self, ask: Callable[[BrokerConnection], Awaitable[_T]]) -> _T:
        """Ask, again after a takeover, until the broker answers; `ask` must be idempotent.

        Raise an error that would not change at once, others after `operation_timeout_s`.
        """
        backoff = Backoff(self._limits.backoff_initial_s, self._limits.backoff_max_s)
        deadline = trio.current_time() + self._limits.operation_timeout_s
        while True:
            try:
                return await ask(await self._connection_until(deadline))
            except BrokerError as error:
                if not may_retry(error, idempotent=True) or trio.current_time() >= deadline:
                    raise
            await trio.sleep(backoff.next(self._rng.random()))

    async def _connection_until(self, deadline: float) -> BrokerConnection:
        with trio.move_on_at(deadline):
            return await self.wait_connection()
        why = self._trouble or self._lookups.trouble or "it is not attached"
        raise UnavailableError(f"{self.topic}: no broker could serve the topic in time: {why}")

    def on_assigned(self, url: str) -> None:
        """Note which broker serves the topic next; `on_detached` follows."""
        self._assigned_url = url

    def on_detached(self, reason: str) -> None:
        """Handle the end of the connection, or a close by the broker: `run` attaches again."""
        del reason
        if self.connection is not None:
            self._detach(self.connection)
        self._detached.set()

    def _detach(self, connection: BrokerConnection) -> None:
        """Forget the connection; the broker needs no request to close."""
        if self.connection is connection:
            self.connection = None
        self._unregister(connection)

    async def _attach(self) -> None:
        # The assignment is good for one attempt; if it leads nowhere, the topic is looked up.
        url, self._assigned_url = self._assigned_url, ""
        connection = await self._lookups.assigned(url) if url else None
        if connection is None:
            connection = await self._lookups.connection(self.topic)
        detached = self._detached = trio.Event()
        registered = False
        # From the request on, every way out that does not lead to an attachment (an error, a
        # cancellation, a close by the broker in between) must take the request back.
        try:
            await self._register(connection)
            registered = not detached.is_set()  # It may have been lost, or ended, meanwhile.
        finally:
            if not registered:
                self._unregister(connection)
                self._take_back(connection)
        if not registered:
            return
        assert self.connection is None
        # No checkpoint from here on: nothing uses the connection before `_attached` has run.
        self.connection = connection
        self._ever_attached = True
        self._trouble = self._lookups.trouble = None
        self._attached(connection)
        self._opened.set()
        self._wake_waiting()

    def _is_final(self, error: BrokerError, deadline: float) -> bool:
        if self._ever_attached:
            # BusyError: the broker may not have noticed yet that our old connection is lost.
            return error.remedy is Remedy.GIVE_UP and not isinstance(error, BusyError)
        return (
            error.remedy is Remedy.GIVE_UP
            or is_quota_exception(error)
            or trio.current_time() >= deadline
        )

    def _end(self, failure: BrokerError) -> None:
        if self.failure is not None:
            return
        self.failure = failure
        connection = self.connection
        if connection is not None:
            self._detach(connection)
            self._take_back(connection)
        self._ended(failure)
        self._opened.set()
        self._detached.set()
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


async def attach_all(nursery: trio.Nursery, handlers: Sequence[ConnectionHandler]) -> None:
    """Start handlers; return when all are attached.  If one is refused, close all."""
    for handler in handlers:
        nursery.start_soon(handler.run)
    try:
        for handler in handlers:
            await handler.opened()
    except BaseException:
        for handler in handlers:
            handler.abandon()
        raise
