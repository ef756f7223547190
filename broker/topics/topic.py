"""A topic: producers and subscriptions over one log.

    SERVING --close--> CLOSING --> CLOSED
       +-----drop, or the log failed-+

Closing is in good order: no sends are taken any more, those outstanding are stored and receipted,
then clients are told, cursors stored, the log closed.  Dropping is at once: clients are told that
producers and consumers are closed, and nothing else is said.  In particular, a send that the log
could not confirm is *in doubt*: it is answered with neither receipt nor error.

A topic can also be terminated: it serves on, and takes no messages.  What is outstanding is stored
and receipted; sends that come meanwhile get no answer until the log has ended, or goes on.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum, auto

import trio

from daybook.broker.dispatch.dispatcher import Feeder
from daybook.broker.dispatch.entries import delivered_head
from daybook.broker.errors import BrokerError, TopicTerminatedError, UnavailableError
from daybook.broker.limits import TopicLimits
from daybook.broker.topics.producer import Producer
from daybook.broker.topics.rates import Counters, OutCounters, Rates
from daybook.broker.topics.topic_ending import TopicEnding
from daybook.broker.topics.topic_log import TopicLog, TopicLogs, translated
from daybook.broker.topics.topic_producers import TopicProducers
from daybook.broker.topics.topic_subscriptions import TopicSubscriptions
from daybook.managed_ledger.position import Position
from daybook.wire.clock import WallClock
from daybook.wire.topics import TopicName

_LOOK_S = 2.0


class State(Enum):
    SERVING = auto()
    CLOSING = auto()
    CLOSED = auto()


class Topic:
    """`run` belongs into the nursery of `Topics`.  `on_failed` is called once, if the log fails."""

    def __init__(
        self,
        name: TopicName,
        log: TopicLog,
        logs: TopicLogs,
        *,
        limits: TopicLimits,
        clock: WallClock,
        keys: Iterator[int],
        on_failed: Callable[["Topic", Exception], None],
    ) -> None:
        self.name = name
        self.log = log
        self.state = State.SERVING
        self.terminated = logs.is_terminated(log)
        self.loaded_ms = clock.now_ms()
        self.messages = 0
        self.bytes = 0
        self.chunks = 0
        self.rates = Rates()
        self._logs = logs
        self._limits = limits
        self._on_failed = on_failed
        self._waiting: dict[Feeder, None] = {}  # for the next entry
        self._nursery: trio.Nursery | None = None
        self._failed = False
        self._ending: TopicEnding | None = None
        self.producers = TopicProducers(
            self,
            name,
            log,
            logs,
            limits=limits,
            keys=keys,
            nursery=lambda: self.nursery,
            check_open=self._check_open,
        )
        self.subscriptions = TopicSubscriptions(self, limits=limits, clock=clock, keys=keys)
        log.on_fenced = self._fenced
        log.on_confirmed = self._confirmed

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            if self.state is not State.CLOSED:
                await trio.sleep_forever()

    @property
    def nursery(self) -> trio.Nursery:
        assert self._nursery is not None
        return self._nursery

    @property
    def serving(self) -> bool:
        return self.state is State.SERVING

    @property
    def ending(self) -> bool:
        """Is it being terminated?"""
        return self._ending is not None

    async def wait_decided(self) -> None:
        """Return when it is not being terminated, whatever came of that."""
        while self._ending is not None:
            await self._ending.wait_decided()

    @property
    def in_use(self) -> bool:
        """Is anybody connected?"""
        subscriptions = self.subscriptions.by_name.values()
        return bool(len(self.producers)) or any(s.consumers for s in subscriptions)

    def check_serving(self) -> None:
        """Raises UnavailableError if it is being closed."""
        if self.state is not State.SERVING:
            raise UnavailableError(f"{self.name} is being closed")

    def _check_open(self) -> None:
        self.check_serving()
        if self.terminated:
            raise TopicTerminatedError(f"{self.name} is terminated")

    # -- what producers and feeders call

    def append(
        self, payload: memoryview, messages: int, producer: Producer, *, is_chunk: bool
    ) -> None:
        self.messages += messages
        self.chunks += is_chunk
        self.bytes += len(payload)
        self.log.append((payload,), messages, producer.stored)

    def _confirmed(self) -> None:
        """The log says so: then it does not matter what became of the producer meanwhile."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for feeder in waiting:
                feeder.wake()

    def wake_when_appended(self, feeder: Feeder) -> None:
        self._waiting[feeder] = None

    def append_failed(self, error: Exception) -> None:
        self._fail(error)

    def removal_failed(self, error: Exception) -> None:
        """A cursor that records nothing more may be stored: the next loading finds it."""
        if self.serving:
            self._fail(error)

    def _fenced(self) -> None:
        self._fail(UnavailableError(f"{self.name} was taken over"))

    def _fail(self, error: Exception) -> None:
        if not self._failed and self.state is not State.CLOSED:
            self._failed = True
            self._on_failed(self, error)

    # -- numbers

    def tick_rates(self, now_s: float) -> None:
        """A period is over."""
        out = {
            name: OutCounters(s.feeder.messages, s.feeder.bytes, s.feeder.redelivered)
            for name, s in self.subscriptions.by_name.items()
        }
        self.rates.tick(Counters(self.messages, self.bytes, out), now_s)

    def internal_stats(self) -> dict[str, object]:
        return self._logs.internal_stats(self.log)

    # -- positions

    async def position_of_time(self, publish_ms: int) -> Position:
        with translated(self.name):
            return await self._logs.position_of_time(self.log, publish_ms)

    async def position_of_offset(self, offset: int) -> Position:
        with translated(self.name):
            return await self._logs.position_of_offset(self.log, offset)

    def position_of_id(self, position: Position) -> Position:
        """That very entry; the next one if it is not there; before the first and behind the end."""
        log = self.log
        first = log.next_position(log.before_first)
        if position <= first:
            return first
        if position > log.last_confirmed:
            return log.next_position(log.last_confirmed)
        return log.next_position(log.previous_position(position))

    async def offset_before(self, position: Position) -> int:
        """The offset of the last message at, or before, a position."""
        with translated(self.name):
            return await self._logs.offset_before(self.log, position)

    async def look_at_backlogs(self) -> None:
        """Know the backlogs in messages, where that takes a read, as far as it is quickly done."""
        with trio.move_on_after(_LOOK_S):
            for subscription in list(self.subscriptions.by_name.values()):
                with suppress(BrokerError):  # Then it stays an estimate.
                    await subscription.look_at_backlog()

    async def first_offset(self) -> int:
        with translated(self.name):
            return await self._logs.first_offset(self.log)

    async def last_message(self) -> tuple[Position, int] | None:
        """The last entry, and the index of its last message (-1: no batch); None if it is empty."""
        log = self.log
        last = log.last_confirmed
        if last.entry_id < 0 or log.next_position(log.before_first) > last:
            return None
        with translated(self.name):
            found = await log.read(last, max_entries=1, max_bytes=1)
        if not found:
            return None
        head = delivered_head(found[0].data)
        return found[0].position, head.messages - 1 if head.is_batch else -1

    async def terminate(self) -> Position:
        """Take no more messages; returns the last one's position.

        What was begun goes on if the one who asked for it stops waiting.
        """
        self.check_serving()
        if self._ending is None:
            self._ending = TopicEnding()
            self.nursery.start_soon(self._end, self._ending)
        return await self._ending.outcome()

    async def _end(self, ending: TopicEnding) -> None:
        outcome: Position | BrokerError = UnavailableError(f"{self.name} is being closed")
        try:
            with translated(self.name):
                outcome = await self._logs.terminate(self.log)
        except BrokerError as error:
            outcome = error
        finally:
            self._ending = None
            if isinstance(outcome, BrokerError):
                self.producers.go_on()
            else:
                self._ended()
            ending.decide(outcome)

    def _ended(self) -> None:
        self.terminated = True
        self.producers.end(TopicTerminatedError(f"{self.name} is terminated"))
        for subscription in list(self.subscriptions.by_name.values()):
            subscription.check_end()

    # -- the end

    async def close(self) -> None:
        """In good order.  Raises UnavailableError if the log cannot be closed like that."""
        if not await self._quiesce():
            return
        try:
            with translated(self.name):
                await self.log.close()
        except BaseException:
            self.log.abandon()
            raise
        finally:
            self._finish()

    async def delete(self) -> None:
        """Close it, and delete all that belongs to it."""
        if not await self._quiesce():
            return
        try:
            with translated(self.name):
                await self._logs.delete(self.log)
        except BaseException:
            self.log.abandon()
            raise
        finally:
            self._finish()

    async def _quiesce(self) -> bool:
        """Store what is outstanding, then let all clients go."""
        if self.state is not State.SERVING:
            return False
        self.state = State.CLOSING
        with trio.move_on_after(self._limits.drain_s):
            for producer in list(self.producers.by_name.values()):
                await producer.wait_drained()
        self._let_go()
        return self.state is State.CLOSING

    def drop(self) -> None:
        """At once; touches nothing that is stored."""
        if self.state is not State.CLOSED:
            self.log.abandon()
            self._finish()

    def _finish(self) -> None:
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            self._let_go()
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()

    def _let_go(self) -> None:
        self.producers.let_go(UnavailableError(f"{self.name} is not served here any more"))
        self.subscriptions.let_go()
