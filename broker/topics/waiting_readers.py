"""The readers that wait for new entries, of all topics of a broker: one task serves them all.

A log confirms entries while answers of bookies are handled, and the receipts of these entries leave
before anything else is done.  So the readers are called a moment later, by this task.  It wakes
once for all readers of all logs that have grown since, which may be many: ten subscriptions of one
topic, or a thousand topics.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import trio

from daybook.broker.dispatch.newest import Newest
from daybook.wire.parking import Parking

if TYPE_CHECKING:
    from daybook.broker.topics.stored_topic import StoredTopic

_CALLS_PER_TURN = 64  # then other tasks have their turn

Call: TypeAlias = Callable[[Newest], None]


class WaitingReaders:
    """One instance per broker.  `run` belongs in the broker's nursery."""

    def __init__(self) -> None:
        self._due: deque[tuple[StoredTopic, Call, Newest]] = deque()
        self._parking = Parking()

    def serve(self, topic: "StoredTopic", calls: Iterable[Call], newest: Newest) -> None:
        """Make these calls soon, with what the log of the topic has got.

        A bug in one of them costs the topic, and no other.
        """
        self._due.extend((topic, call, newest) for call in calls)
        self._parking.wake()

    async def run(self) -> None:
        due = self._due
        while True:
            for _ in range(min(len(due), _CALLS_PER_TURN)):
                topic, call, newest = due.popleft()
                try:
                    call(newest)
                except Exception as bug:
                    topic.has_bug("delivering new entries", bug)
            if due:
                await trio.lowlevel.checkpoint()
            else:
                await self._parking.park()
