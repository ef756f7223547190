"""The messages of a consumer or reader that have arrived and were not received yet.

One queue per consumer or reader, for all its topics and partitions.  Partition consumers put
entries in as the broker delivers them; an entry is unpacked when the application gets to it.

Topics take turns, one entry each.  So a message of a quiet topic waits behind one entry of every
busy topic, and not behind all that the busy ones have sent ahead.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from daybook.clients.python.entries import permits_of
from daybook.clients.python.errors import (
    BrokerError,
    CorruptMessageError,
    TopicNotFoundError,
)
from daybook.clients.python.messages import Message
from daybook.clients.python.protocol.permits import Shares
from daybook.wire.messages.consumer import Delivery

if TYPE_CHECKING:
    from daybook.clients.python.topic_consumer import TopicConsumer

_TURNS = 64  # messages that are handed out between two checkpoints
_TURN_ENTRIES = 8  # messages of a batch between two turns of the loop


@dataclass(slots=True)
class Waiting:
    """An entry that has arrived and was not unpacked yet."""

    source: "TopicConsumer"
    delivery: Delivery
    payload: bytes


class MessageQueue:
    """One instance per consumer or reader."""

    def __init__(self, *, endless: bool = False) -> None:
        """`endless`: more topics may join, so that the end of all present ones is not the end."""
        self.shares = Shares()
        self._endless = endless
        # The entries of each topic or partition; only those that have any are in the dictionary,
        # in the order of their turns.
        self._entries: dict[TopicConsumer, deque[Waiting]] = {}
        self._ready: deque[Message] = deque()
        self._arrived = trio.Event()
        self._failure: CorruptMessageError | None = None
        self._turn = 0

    # -- what partition consumers call

    def put(self, waiting: Waiting) -> None:
        """Append an entry."""
        entries = self._entries.get(waiting.source)
        if entries is None:
            entries = self._entries[waiting.source] = deque()
        entries.append(waiting)
        self._arrived.set()

    def waiting_of(self, source: "TopicConsumer") -> list[Waiting]:
        """Return the entries of this consumer that were not unpacked yet."""
        return list(self._entries.get(source, ()))

    def drop(self, source: "TopicConsumer") -> list[Waiting]:
        """Drop the messages of this consumer; return its entries that were not unpacked yet."""
        dropped = list(self._entries.pop(source, ()))
        if self._ready:
            self._ready = deque(m for m in self._ready if m.entry.source() is not source)
        return dropped

    @property
    def messages(self) -> int:
        """The number of messages that have arrived and were not taken."""
        waiting = (each for entries in self._entries.values() for each in entries)
        return len(self._ready) + sum(permits_of(each.delivery, each.payload) for each in waiting)

    def put_back(self, message: Message) -> None:
        """Put a message that was taken in front of all others."""
        self._ready.appendleft(message)
        self._arrived.set()

    def wake(self) -> None:
        """Wake all tasks that wait for a message: a partition consumer has changed."""
        self._arrived.set()

    def clear(self) -> None:
        """Drop all messages."""
        self._entries.clear()
        self._ready.clear()

    # -- what the application calls

    @property
    def has_messages(self) -> bool:
        """Return True if a message has arrived that was not taken yet."""
        return bool(self._ready or self._entries)

    async def take(self, sources: "list[TopicConsumer]") -> Message | None:
        """Return the next message; None behind the last one of terminated topics."""
        self._turn += 1
        if self._ready and self._turn % _TURNS:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
            if not await self._fill(sources):
                return None
        return self._ready.popleft()

    def take_nowait(self, count_max: int, sources: "list[TopicConsumer]") -> list[Message]:
        """Return messages that have arrived, or [] behind the last one.

        Raise trio.WouldBlock if none has arrived.
        """
        found: list[Message] = []
        if not self._fill_nowait(sources):
            return found
        while True:
            room = min(count_max - len(found), len(self._ready))
            found += [self._ready.popleft() for _ in range(room)]
            if len(found) >= count_max or not self._entries:
                return found
            try:
                self._unpack()
            except CorruptMessageError as error:
                self._failure = error  # The next call raises it.
                return found

    async def take_many(self, count_max: int, sources: "list[TopicConsumer]") -> list[Message]:
        """Return at least one message, at most `count_max`; [] behind the last one."""
        await trio.lowlevel.checkpoint()
        if not self._ready and not await self._fill(sources):
            return []
        found: list[Message] = []
        entries = 0
        while True:
            ready = self._ready  # Read it anew: `drop` replaces it, at the checkpoint below.
            room = count_max - len(found)
            if len(ready) <= room:
                found += ready
                ready.clear()
            else:
                found += [ready.popleft() for _ in range(room)]
            if len(found) >= count_max or not self._entries:
                return found
            try:
                self._unpack()
            except CorruptMessageError as error:
                self._failure = error  # The next call raises it.
                return found
            entries += 1
            if entries % _TURN_ENTRIES == 0:
                # The permits of the messages taken so far must be sent, or the broker stops.  The
                # checkpoint is shielded: a cancellation would lose the messages in `found`.
                await trio.lowlevel.cancel_shielded_checkpoint()

    async def take_entries(self, sources: "list[TopicConsumer]") -> list[Waiting]:
        """Return the entries that have arrived, at least one, which nobody unpacks any more.

        Return [] behind the last one.
        """
        await trio.lowlevel.checkpoint()
        while not self._entries:
            if self._has_ended(sources):
                return []
            await self._wait_for_news()
        found = [waiting for entries in self._entries.values() for waiting in entries]
        self._entries.clear()
        for waiting in found:
            waiting.source.hand_out(waiting)
        return found

    async def _fill(self, sources: "list[TopicConsumer]") -> bool:
        """Wait until a message is ready; return False if there will never be one again."""
        while True:
            try:
                return self._fill_nowait(sources)
            except trio.WouldBlock:
                await self._wait_for_news()

    def _fill_nowait(self, sources: "list[TopicConsumer]") -> bool:
        """Return as `_fill`; raise trio.WouldBlock if no message has arrived."""
        while not self._ready:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._entries:
                self._unpack()
                continue
            if self._has_ended(sources):
                return False
            raise trio.WouldBlock
        return True

    def _has_ended(self, sources: "list[TopicConsumer]") -> bool:
        """Return True behind the last message of terminated topics; raise what ended a consumer."""
        for source in sources:
            if source.failure is not None and not self._is_left_out(source.failure):
                raise source.failure
        return not self._endless and all(source.end_of_topic for source in sources)

    def _is_left_out(self, failure: BrokerError) -> bool:
        """Return True if a topic was deleted whose absence is no error: that of a pattern."""
        return self._endless and isinstance(failure, TopicNotFoundError)

    async def _wait_for_news(self) -> None:
        """Wait until something arrives or ends; all waiting tasks wake up and look again."""
        if self._arrived.is_set():
            self._arrived = trio.Event()  # No task waits for an event that is set.
        await self._arrived.wait()

    def _unpack(self) -> None:
        source, entries = next(iter(self._entries.items()))
        waiting = entries.popleft()
        if not entries or len(self._entries) > 1:
            del self._entries[source]
            if entries:  # Its next turn comes behind those of the others.
                self._entries[source] = entries
        self._ready.extend(source.unpack(waiting))
