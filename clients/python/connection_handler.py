"""One producer or consumer of one topic, kept attached to the broker that serves the topic.

    looking up, connecting, registering  --->  attached  --->  detached, and the same again
                    |                                              (connection lost, topic moved)
                    v
                  ended: closed by its owner, or refused for good

A broker that was asked to register it may do so whenever it likes.  So whatever ends an attempt, or
the link, the broker is told that nobody is there: it would keep a place, and messages, for nobody.

What a producer or a consumer is made of is in the subclasses; here is only how it gets to its
broker, and back to it.  Before it was attached for the first time, a refusal that will not go away
ends it; later, what may be a consequence of the takeover is tried again.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
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
    may_retry,
)
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.lookup import Lookups
from daybook.clients.python.protocol.retry import Backoff
from daybook.wire.topics import TopicName

_CLOSE_TIMEOUT_S = 5.0
_T = TypeVar("_T")


class ConnectionHandler(ABC):
    """`run` belongs into the nursery of the client; `opened` waits for the first attachment."""

    def __init__(
        self, topic: TopicName, *, lookups: Lookups, limits: ClientLimits, rng: Random
    ) -> None:
        self.topic = topic
        self.connection: BrokerConnection | None = None
        self.failure: BrokerError | None = None  # why it ended
        self._lookups = lookups
        self._limits = limits
        self._rng = rng
        self._backoff = Backoff(limits.backoff_initial_s, limits.backoff_max_s)
        self._detached = trio.Event()
        self._opened = trio.Event()
        self._changed = trio.Event()  # attached again, or ended
        self._ever_attached = False
        self._scope = trio.CancelScope()

    # -- what subclasses do

    @abstractmethod
    async def _register(self, connection: BrokerConnection) -> None:
        """Tell the broker.  Raises BrokerError."""

    @abstractmethod
    def _attached(self, connection: BrokerConnection) -> None:
        """It is registered: go on where the last connection ended."""

    @abstractmethod
    def _unregister(self, connection: BrokerConnection) -> None:
        """Nothing that arrives there is of interest any more."""

    @abstractmethod
    async def _say_goodbye(self, connection: BrokerConnection) -> None:
        """Tell the broker that it ends.  Raises BrokerError."""

    @abstractmethod
    def _take_back(self, connection: BrokerConnection) -> None:
        """Tell the broker, without waiting, that nobody is there; maybe nobody ever was."""

    @abstractmethod
    def _ended(self, failure: BrokerError) -> None:
        """It never comes back: tell whoever waits."""

    # -- its life

    async def run(self) -> None:
        """Attach, and attach again, until the link is closed or refused."""
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
                    self._lookups.trouble = error
                    await trio.sleep(self._backoff.next(self._rng.random()))
        self._end(ClosedError(f"{self.topic}: closed"))

    async def _stay(self) -> None:
        """Return when the next attempt is due: at once, unless this one was a short pleasure."""
        began = trio.current_time()
        await self._detached.wait()
        if trio.current_time() - began >= self._limits.backoff_max_s:
            self._backoff.reset()
        if self._backoff.attempts:
            await trio.sleep(self._backoff.next(self._rng.random()))
        self._backoff.attempts += 1

    async def opened(self) -> None:
        """Return when it was attached for the first time; raise if it will never be."""
        await self._opened.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Say goodbye to the broker, for a while at most, and end."""
        connection = self.connection
        try:
            if self.failure is None and connection is not None and not connection.closed:
                with trio.move_on_after(_CLOSE_TIMEOUT_S), suppress(BrokerError):
                    await self._say_goodbye(connection)
                    self._detach(connection)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End at once.  Idempotent."""
        self._end(ClosedError(f"{self.topic}: closed"))
        self._scope.cancel()

    async def wait_connection(self) -> BrokerConnection:
        """The connection that it is attached to, now or later; raises if it never will be."""
        while self.connection is None:
            if self.failure is not None:
                raise self.failure
            await self._changed.wait()
        return self.connection

    async def persist(self, ask: Callable[[BrokerConnection], Awaitable[_T]]) -> _T:
        """What the broker answers, now or after a takeover.  Twice must be as good as once.

        Raises at once what will not change; else the last failure, after `operation_timeout_s`.
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
        why = self._lookups.trouble or "it is not attached"
        raise UnavailableError(f"{self.topic}: no broker serves it in time: {why}")

    def on_detached(self, reason: str) -> None:
        """The connection ended, or the broker let go; `run` attaches it again."""
        del reason
        if self.connection is not None:
            self._detach(self.connection)
        self._detached.set()

    def _detach(self, connection: BrokerConnection) -> None:
        """The broker knows, there, that nobody is there."""
        if self.connection is connection:
            self.connection = None
        self._unregister(connection)

    async def _attach(self) -> None:
        connection = await self._lookups.connection(self.topic)
        detached = self._detached = trio.Event()
        registered = False
        try:
            await self._register(connection)
            registered = not detached.is_set()  # It may be lost again, or ended, in the meantime.
        finally:
            if not registered:
                self._unregister(connection)
                self._take_back(connection)
        if not registered:
            return
        self.connection = connection
        self._ever_attached = True
        self._lookups.trouble = None
        self._attached(connection)
        self._opened.set()
        self._tell_waiting()

    def _is_final(self, error: BrokerError, deadline: float) -> bool:
        if self._ever_attached:
            # The broker may still see us on the connection that we have lost.
            return error.remedy is Remedy.GIVE_UP and not isinstance(error, BusyError)
        return error.remedy is Remedy.GIVE_UP or trio.current_time() >= deadline

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
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
