"""A topic: producers and subscriptions over one log.

    SERVING --close--> CLOSING --> CLOSED
       +-----drop, or the log failed-+

A close is orderly: the topic accepts no more sends, stores and receipts the outstanding ones, tells
the clients, stores the cursors and closes the log.  A drop is immediate: clients are told that
their producers and consumers are closed, and nothing else is sent.  In particular, a send that the
log could not confirm is *in doubt*: it gets neither a receipt nor an error.

A topic can also be terminated.  It then still serves its consumers, and accepts no more messages.
Outstanding sends are stored and receipted.  Sends that arrive meanwhile get no answer until either
the log has ended or the termination has failed.

A `Topic` has the parts of the topic and their common life.  `StoredTopic` has what these parts need
to know: the log, the policies, and whether the topic serves.  `TopicSubscriptions` creates and
removes subscriptions, and `TopicProducers` decides who may produce.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import trio

from daybook.broker.compaction.topic_compaction import Compactions
from daybook.broker.dispatch.unacked_limit import UnackedLimit
from daybook.broker.errors import (
    BrokerError,
    TopicTerminatedError,
    UnavailableError,
)
from daybook.broker.limits import TopicLimits
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.publish_rate import PublishRateLimit
from daybook.broker.sinks.topic_sinks import TopicSinks
from daybook.broker.topics.backlog_quota import BacklogQuotas
from daybook.broker.topics.deduplication import Deduplication
from daybook.broker.topics.rates import Counters, OutCounters
from daybook.broker.topics.stored_topic import StoredTopic, Termination
from daybook.broker.topics.topic_log import TopicLog, TopicLogs, translated
from daybook.broker.topics.topic_producers import TopicProducers
from daybook.broker.topics.topic_subscriptions import TopicSubscriptions
from daybook.broker.topics.waiting_readers import WaitingReaders
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.managed_ledger.traffic import NO_TRAFFIC, Traffic
from daybook.wire.clock import WallClock
from daybook.wire.topics import TopicName
from daybook.wire.weakly import weakly

_BACKLOG_READS_S = 2.0  # for reads that only make the statistics exact


class Topic(StoredTopic):
    """One loaded topic.  `run` belongs in the nursery of `Topics`.

    `policies` are those in force now; `apply_policies` replaces them.  `deduplication` is None if
    it is switched off for this topic.  `on_failed` is called at most once, if the log fails.
    `on_bug` is told of errors that nobody expected, with what the topic was doing.
    """

    def __init__(
        self,
        name: TopicName,
        log: TopicLog,
        logs: TopicLogs,
        *,
        limits: TopicLimits,
        clock: WallClock,
        keys: Iterator[int],
        compactions: Compactions,
        unacked: UnackedLimit,
        readers: WaitingReaders,
        policies: EffectivePolicies,
        published_by_broker: PublishRateLimit | None = None,
        deduplication: Deduplication | None = None,
        sinks: Sinks | None = None,
        on_failed: Callable[["Topic", Exception], None],
        on_bug: Callable[["Topic", str, Exception], None],
    ) -> None:
        super().__init__(
            name,
            log,
            logs,
            limits=limits,
            clock=clock,
            keys=keys,
            compactions=compactions,
            unacked=unacked,
            readers=readers,
            policies=policies,
            published_by_broker=published_by_broker,
            deduplication=deduplication,
            on_failed=weakly(self._tell_failed),
            on_bug=weakly(self._tell_bug),
        )
        self._on_topic_failed = on_failed
        self._on_topic_bug = on_bug
        self.traffic: Traffic = NO_TRAFFIC  # the last whole minute
        self.used_ms = clock.now_ms()  # somebody was connected then, or the topic was loaded
        self.asked_s = trio.current_time()  # somebody asked for the topic then, or was connected
        self.subscriptions = TopicSubscriptions(self)
        self.quotas = BacklogQuotas(self, self.subscriptions.by_name, weakly(self._stop_producers))
        self.producers = TopicProducers(self, self.quotas.wait_room)
        self.sinks = None if sinks is None else TopicSinks(self, sinks)
        log.on_fenced = self._fenced
        log.on_confirmed = self._confirmed
        log.on_bug = partial(on_bug, self, "looking after its log")

    def _tell_failed(self, error: Exception) -> None:
        self._on_topic_failed(self, error)

    def _tell_bug(self, doing: str, bug: Exception) -> None:
        self._on_topic_bug(self, doing, bug)

    async def run(self, started: Callable[[], None]) -> None:
        """Run the topic until it is closed; `started` is called when it may start tasks."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.deduplication is not None:
                nursery.start_soon(self.deduplication.run)
            try:
                started()
                # The log may have been lost before: `_finish` found no nursery to cancel.
                if not self.closed:
                    if self.sinks is not None:
                        await self.sinks.look()
                    await trio.sleep_forever()
            finally:
                # A broker that is cancelled closes no topic.  The topic is dropped before its
                # nursery ends, because a client that leaves later must find no open topic: it
                # could start no task any more.
                self.drop()

    @property
    def in_use(self) -> bool:
        """True if a producer or a consumer is connected."""
        subscriptions = self.subscriptions.by_name.values()
        return bool(len(self.producers)) or any(s.consumers for s in subscriptions)

    @property
    def is_held(self) -> bool:
        """True if somebody is connected, or is about to be."""
        subscriptions = self.subscriptions
        arriving = self.producers.arriving or subscriptions.arriving
        # A volatile subscription without consumers waits for them to come back.
        volatile = any(not each.durable for each in subscriptions.by_name.values())
        return bool(arriving) or volatile or self.in_use

    @property
    def is_busy(self) -> bool:
        """True if something is under way that a close would interrupt."""
        changing = self.subscriptions.changing or self.termination is not None
        applying = self.sinks is not None and self.sinks.active
        return changing or applying or self.compaction.running or bool(self.log.pending_bytes)

    @property
    def remembers(self) -> bool:
        """True if it knows how often messages were redelivered, which is stored nowhere."""
        return any(s.remembers_redeliveries for s in self.subscriptions.by_name.values())

    def apply_policies(self, policies: EffectivePolicies) -> None:
        """Serve by other policies from now on.

        Producers, consumers and subscriptions that are there stay, also if there are too many.
        """
        self._publish_limits.apply(policies.publish_rate)
        if policies.inactive_topics != self.policies.inactive_topics:
            self.used_ms = self.clock.now_ms()
        self.rate_limits.apply(policies)  # before the subscriptions, which share them
        self.policies = policies
        for subscription in self.subscriptions.by_name.values():
            subscription.apply_policies(policies)

    # -- numbers

    def tick_rates(self, now_s: float) -> None:
        """Compute the rates of the period that ends now."""
        out = {
            name: OutCounters(s.messages, s.bytes, s.redelivered, s.expired)
            for name, s in self.subscriptions.by_name.items()
        }
        self.rates.tick(Counters(self.messages, self.bytes, out), now_s)
        self.traffic = self.log.traffic.take()
        self.rate_limits.dispatch.follow()
        for subscription in self.subscriptions.by_name.values():
            subscription.dispatch_rate.follow()
            if subscription.dispatcher.rates is not None:
                subscription.dispatcher.wake()  # It may sleep for as long as a lower rate asks.

    def internal_stats(self) -> dict[str, object]:
        return self.logs.internal_stats(self.log)

    async def read_backlogs(self) -> None:
        """Make the backlogs exact, as far as a few quick reads allow."""
        with trio.move_on_after(_BACKLOG_READS_S):
            for subscription in list(self.subscriptions.by_name.values()):
                with suppress(BrokerError):  # Its backlog stays an estimate.
                    await subscription.read_backlog()

    async def _stop_producers(self) -> None:
        await self.producers.stop_all()

    # -- terminating

    async def terminate(self) -> Position:
        """Accept no more messages, and return the position of the last one.

        A termination that has begun continues even if its caller stops waiting.
        """
        self.check_serving()
        if self.termination is None:
            self.termination = Termination()
            self.start_task(self._terminate, self.termination)
        return await self.termination.outcome()

    async def _terminate(self, termination: Termination) -> None:
        outcome: Position | BrokerError = UnavailableError(f"{self.name} is being closed")
        try:
            with translated(self.name):
                outcome = await self.logs.terminate(self.log)
        except BrokerError as error:
            outcome = error
        finally:  # Also if the topic ends: every caller of `terminate` gets an outcome.
            # No task runs between these steps, so no send sees one without the others.
            self.termination = None
            if isinstance(outcome, BrokerError):
                self.producers.resume()
            else:
                self._ended()
            termination.decide(outcome)

    def _ended(self) -> None:
        self.terminated = True
        self.producers.end(TopicTerminatedError(f"{self.name} is terminated"))
        for subscription in list(self.subscriptions.by_name.values()):
            subscription.check_end()

    # -- the end

    async def release_stored(self) -> None:
        """Have the topic's own cursors need nothing of what is stored, so that it can be dropped.

        Raise a BrokerError, a ManagedLedgerError or a LedgerError if that is not durable.
        """
        await self.compaction.forget()
        if self.deduplication is not None:
            await self.deduplication.flush()

    async def close(self) -> None:
        """Close the topic in order.  Raise UnavailableError if the log cannot be closed."""
        if not await self._quiesce():
            return
        try:
            await self.compaction.stop()
            with translated(self.name):
                if self.deduplication is not None:
                    self.deduplication.store()
                await self.log.close()
        except BaseException:
            self.log.abandon()
            raise
        finally:
            self._finish()

    async def delete(self, *, unless_used: Callable[["Topic"], bool] | None = None) -> None:
        """Close the topic and delete everything that is stored of it.

        `unless_used` returns True if the topic is in use after all, which is known for sure only
        here.  Then the topic is closed, and nothing is deleted.
        """
        used = unless_used is not None and unless_used(self)
        if not await self._quiesce():
            return
        log = self.log
        # All messages that came before the producers were disconnected are stored now.
        used = used or log.next_position(log.before_first) <= log.last_confirmed
        used = used or bool(log.pending_bytes)
        try:
            await self.compaction.stop()
            with translated(self.name):
                if unless_used is not None and used:
                    await log.close()
                    return
                await self.logs.delete(log)
            await self.compaction.delete()
        except BaseException:
            self.log.abandon()
            raise
        finally:
            self._finish()

    async def _quiesce(self) -> bool:
        """Store what is outstanding, then disconnect all clients.

        Return False if the topic was closed or dropped by someone else.
        """
        if self.closing:
            return False
        self.closing = True
        with trio.move_on_after(self.limits.drain_s):
            for producer in list(self.producers.by_name.values()):
                await producer.wait_drained()
        self._disconnect_clients()
        return not self.closed  # A drop may have come while the producers were drained.

    def drop(self) -> None:
        """Close the topic at once, without touching anything that is stored."""
        if not self.closed:
            self.log.abandon()
            self._finish()

    def _finish(self) -> None:
        if not self.closed:
            # The flags are set first: closing a producer runs callbacks, which see a closed topic.
            self.closing = self.closed = True
            self._disconnect_clients()
            self._let_go()
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()

    def _disconnect_clients(self) -> None:
        self.producers.close(
            UnavailableError(f"this broker no longer serves {self.name}: look it up again")
        )
        self.subscriptions.close()

    def _let_go(self) -> None:
        """Drop what refers back to this topic, so that it is freed without the collector."""
        self._call_when_appended.clear()
        self.log.on_fenced = self.log.on_confirmed = _nothing
        self.log.on_bug = _ignore


def _nothing() -> None:
    """Ignore an event of a log that has ended."""


def _ignore(_bug: Exception) -> None:
    """Ignore a bug of a log that has ended.  The log has written it down."""
