"""The log of a topic, its policies, and whether it serves: what its parts need to know of it.

Producers, subscriptions, quotas and sinks work on a `StoredTopic`.  `topic.Topic` is one, and has
these parts.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence

import trio

from daybook.broker.compaction.topic_compaction import Compactions, TopicCompaction
from daybook.broker.connected_client import NO_SUCCESSOR
from daybook.broker.dispatch.entries import delivered_head
from daybook.broker.dispatch.newest import Newest
from daybook.broker.dispatch.unacked_limit import UnackedLimit
from daybook.broker.errors import BrokerError, TopicTerminatedError, UnavailableError
from daybook.broker.limits import TopicLimits
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.protocol.publish_rate import PublishRateLimit
from daybook.broker.topics.deduplication import Deduplication
from daybook.broker.topics.producer import Producer
from daybook.broker.topics.publish_limits import PublishLimits
from daybook.broker.topics.rate_limits import TopicRateLimits
from daybook.broker.topics.rates import Rates
from daybook.broker.topics.topic_log import Done, TopicCursor, TopicLog, TopicLogs, translated
from daybook.broker.topics.waiting_readers import WaitingReaders
from daybook.managed_ledger.behind import EntryStart
from daybook.managed_ledger.offsets import LedgerOffsets
from daybook.managed_ledger.position import Position
from daybook.wire.clock import WallClock
from daybook.wire.topics import TopicName
from daybook.wire.transport import Buffer
from daybook.wire.weakly import weakly


class Termination:
    """One attempt to terminate a topic, and the tasks that wait for its outcome."""

    def __init__(self) -> None:
        self._decided = trio.Event()
        self._outcome: Position | BrokerError | None = None

    def decide(self, outcome: Position | BrokerError) -> None:
        """Set the outcome: the position of the last message, or why the topic continues."""
        assert self._outcome is None
        self._outcome = outcome
        self._decided.set()

    async def wait_decided(self) -> None:
        await self._decided.wait()

    async def outcome(self) -> Position:
        """Return the last position.  Raise a BrokerError if the topic continues."""
        await self._decided.wait()
        assert self._outcome is not None
        if isinstance(self._outcome, BrokerError):
            raise self._outcome
        return self._outcome


class StoredTopic:
    """One loaded topic, for its parts.

    `policies` are those in force now.  `deduplication` is None if it is switched off for this
    topic.  `on_failed` is called at most once, if the log fails.  `on_bug` is told of errors that
    nobody expected, with what the topic was doing.
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
        published_by_broker: PublishRateLimit | None,
        deduplication: Deduplication | None,
        on_failed: Callable[[Exception], None],
        on_bug: Callable[[str, Exception], None],
    ) -> None:
        self.name = name
        self.log = log
        self.logs = logs
        self.limits = limits
        self.unacked = unacked
        self._readers = readers
        self.clock = clock
        self.policies = policies
        self.deduplication = deduplication
        self.keys = keys  # numbers for producers and consumers, none of which is used twice
        self.closing = False  # for good, from the begin of a close or a drop on
        self.successor = NO_SUCCESSOR  # where a close sends the clients
        self.closed = False
        self.terminated = logs.is_terminated(log)
        self.termination: Termination | None = None  # set while the outcome is open
        self.messages = 0
        self.bytes = 0
        self.chunks = 0
        self.rates = Rates()
        self.rate_limits = TopicRateLimits(policies, self.rates)
        self.compaction = TopicCompaction(name, log, logs, compactions, weakly(self.start_task))
        self._publish_limits = PublishLimits(policies.publish_rate, published_by_broker)
        self._on_failed = on_failed
        self._on_bug = on_bug
        self._call_when_appended: dict[Callable[[Newest], None], None] = {}
        self._nursery: trio.Nursery | None = None
        self._failed = False

    def start_task(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task until the topic is closed."""
        assert self._nursery is not None
        self._nursery.start_soon(task, *args)

    @property
    def serving(self) -> bool:
        return not self.closing

    async def wait_termination_decided(self) -> None:
        """Return when no termination is under way, whatever its outcome was."""
        while self.termination is not None:
            await self.termination.wait_decided()

    def check_serving(self) -> None:
        """Raise UnavailableError if the topic is being closed."""
        if self.closing:
            raise UnavailableError(f"{self.name} is being closed by this broker: look it up again")

    def check_open(self) -> None:
        """Raise a BrokerError if the topic accepts no producers."""
        self.check_serving()
        if self.terminated:
            raise TopicTerminatedError(f"{self.name} is terminated: it takes no messages any more")

    @property
    def stored_epoch(self) -> int | None:
        """The epoch that an exclusive producer has stored; None if there never was one."""
        return self.logs.epoch_of(self.log)

    async def store_epoch(self, epoch: int) -> None:
        with translated(self.name):
            await self.logs.store_epoch(self.log, epoch)

    # -- appending

    def append(
        self, payload: memoryview, messages: int, producer: Producer, *, is_chunk: bool
    ) -> None:
        """Append an entry; the log reports the result to `producer.stored`."""
        self.messages += messages
        self.chunks += is_chunk
        self.bytes += len(payload)
        self._publish_limits.take(messages, len(payload))
        self.log.append((payload,), messages, producer.stored)

    def append_for_sink(self, payload: Sequence[Buffer], messages: int, done: Done) -> None:
        """Append an entry of a committed batch of a sink, whatever the policies say."""
        self.messages += messages
        self.bytes += sum(map(len, payload))
        self.log.append(payload, messages, done)

    @property
    def has_room(self) -> bool:
        return self.log.has_room and not self._publish_limits.are_set

    async def wait_room(self) -> None:
        """Wait until the log takes more entries, and the policies allow more."""
        await self.log.wait_room()
        await self._publish_limits.wait_room(lambda: self.closing)

    def _confirmed(self) -> None:
        """Have the readers called that wait for new entries.

        The log reports this itself.  A producer could be closed between its append and the
        confirmation, and would then not report it.
        """
        if self._call_when_appended:
            calls, self._call_when_appended = self._call_when_appended, {}
            self._readers.serve(self, calls, Newest(self.log))

    def call_when_appended(self, call: Callable[[Newest], None]) -> None:
        """Call once, soon after the next entry is confirmed.  Asking twice makes one call."""
        self._call_when_appended[call] = None
        self.log.await_next()

    def append_failed(self, error: Exception) -> None:
        """Give the topic up, because its log takes no more entries."""
        self._fail(error)

    def has_bug(self, doing: str, bug: Exception) -> None:
        """Give the topic up after an error that nobody expected: its state may be half changed."""
        self._on_bug(doing, bug)

    def removal_failed(self, error: Exception) -> None:
        """Give the topic up, because a removed subscription may still have its cursor.

        The next loading of the topic finds that cursor.
        """
        if self.serving:
            self._fail(error)

    def _fenced(self) -> None:
        self._fail(UnavailableError(f"another broker took over {self.name}: look it up again"))

    def _fail(self, error: Exception) -> None:
        if not self._failed and not self.closed:
            self._failed = True
            self._on_failed(error)

    # -- positions

    async def position_of_time(self, publish_ms: int) -> Position:
        with translated(self.name):
            return await self.logs.position_of_time(self.log, publish_ms)

    async def position_of_offset(self, offset: int) -> Position:
        with translated(self.name):
            return await self.logs.position_of_offset(self.log, offset)

    def position_of_id(self, position: Position) -> Position:
        """Return the position itself, or the next one that exists.

        The result is never before the first entry, and at most directly behind the last one.
        """
        log = self.log
        first = log.next_position(log.before_first)
        if position <= first:
            return first
        if position > log.last_confirmed:
            return log.next_position(log.last_confirmed)
        return log.next_position(log.previous_position(position))

    async def entry_start(self, position: Position) -> EntryStart | None:
        """Return where an entry begins; None if there is none, or no longer."""
        with translated(self.name):
            return await self.logs.entry_start(self.log, position)

    async def recount(self, cursor: TopicCursor) -> None:
        """Count the entries of a cursor whose size is not known, by reading them."""
        with translated(self.name):
            await self.logs.recount(self.log, cursor)

    async def first_offset(self) -> int:
        with translated(self.name):
            return await self.logs.first_offset(self.log)

    async def sealed_offsets(self) -> list[LedgerOffsets]:
        """Return the sealed ledgers that hold messages, in order, with their offsets."""
        with translated(self.name):
            return await self.logs.sealed_offsets(self.log)

    async def last_message(self) -> tuple[Position, int] | None:
        """Return the last entry and the index of its last message, or None if the log is empty.

        The index is -1 if the entry is not a batch.
        """
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

    async def messages_of(self, position: Position) -> int:
        """Return how many messages an entry has; 0 if it is not there, or no longer."""
        log = self.log
        if not log.before_first < position <= log.last_confirmed:
            return 0
        with translated(self.name):
            found = await log.read(position, max_entries=1, max_bytes=1)
        if not found or found[0].position != position:
            return 0
        return delivered_head(found[0].data).messages
