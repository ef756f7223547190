"""The subscription of a stream: durable cursors that follow its checkpoint.

With the option `subscription`, each partition keeps what the stream has not read: retention and
time-to-live see a subscription with a backlog, and so does whoever looks at the topic.

A cursor never passes what the stream may have to read again.  When Spark commits a batch, the
cursors move to the end of the batch before it.

A subscription that is created here has properties that say so, for people and for `daybook doctor`:
PROPERTY_HOST and PROPERTY_TOPICS.  Spark tells a source neither the name nor the id of its query.
"""

# pyright: basic
# (the libraries underneath have no types)

import logging
import socket
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from daybook.clients.python import blocking
from daybook.clients.python.errors import BrokerError, BusyError
from daybook.clients.python.message_id import Offset
from daybook.clients.spark.offsets import Partition, Progress, is_another_topic
from daybook.clients.spark.subscription_marks import PROPERTY_HOST, PROPERTY_TOPICS
from daybook.clients.spark.topics import Held

_MOVES_AT_ONCE = 8

_log = logging.getLogger("daybook.spark")


class Cursors:
    """One instance per query.  The client closes the consumers that hold the cursors."""

    def __init__(self, client: blocking.Client, subscription: str, topics: str) -> None:
        """`topics` is the selection of the query as its option names it."""
        self._client = client
        self._subscription = subscription
        self._marks = {PROPERTY_HOST: socket.gethostname(), PROPERTY_TOPICS: topics}
        self._consumers: dict[Partition, blocking.Consumer] = {}
        self._places: dict[Partition, int] = {}  # the offset where each cursor was put last
        self._committed: Mapping[Partition, Progress] = {}  # the end of the last committed batch
        # A broker takes up to a second to move a cursor, and no trigger waits for that.
        self._pool = ThreadPoolExecutor(_MOVES_AT_ONCE, "daybook-cursors")
        self._moves: dict[Partition, Future[None]] = {}

    def open(self, held: Held) -> None:
        """Create the cursors that lack, at the first retained message of their partitions.

        Raise ValueError if another query, or a consumer, uses the subscription.
        """
        for partition, topic in held.stored_in.items():
            if partition in self._consumers:
                continue
            try:
                # It gets no permits, and so no messages.
                self._consumers[partition] = self._client.subscribe(
                    topic,
                    self._subscription,
                    type="exclusive",
                    initial_position="earliest",
                    receiver_queue_size=0,
                    subscription_properties=self._marks,
                )
            except BusyError as error:
                raise ValueError(
                    f"the subscription {self._subscription!r} of {partition} is in use, and belongs"
                    f" to one query: stop its other consumer, or choose another name ({error})"
                ) from error
            except BrokerError as error:
                self._warn(partition, error)

    def begin(self, start: Mapping[Partition, int]) -> None:
        """Move the cursors to the start of a new query."""
        self.settle()
        for partition, offset in start.items():
            self._begin_move(partition, offset)
        self.settle()

    def commit(self, end: Mapping[Partition, Progress], held: Held) -> None:
        """Move the cursors to the end of the batch before the one that was committed now."""
        for partition, before in self._committed.items():
            here = held.partitions.get(partition)
            # An offset of a topic that is gone means other messages in the one that has its name.
            if here is not None and not is_another_topic(before.created, here.created):
                self._begin_move(partition, before.next)
        self._committed = end

    def settle(self) -> None:
        """Return when no cursor is being moved any more."""
        wait(self._moves.values())
        self._moves.clear()

    def close(self) -> None:
        """Wait for the moves that are under way.  The client closes the consumers."""
        self._pool.shutdown()

    def _begin_move(self, partition: Partition, offset: int) -> None:
        move = self._moves.get(partition)
        if partition not in self._consumers or self._places.get(partition) == offset:
            return
        # A cursor that is still being moved is moved on with the next commit.
        if move is None or move.done():
            self._moves[partition] = self._pool.submit(self._move, partition, offset)
            self._moves[partition].add_done_callback(_report)

    def _move(self, partition: Partition, offset: int) -> None:
        consumer = self._consumers[partition]
        try:
            consumer.seek(Offset(offset))
        except BrokerError as error:
            # A cursor that lags keeps more than necessary, and the next commit moves it.
            self._warn(partition, error)
            del self._consumers[partition]  # `open` makes it again.
            consumer.close()
        else:
            self._places[partition] = offset

    def _warn(self, partition: Partition, error: BrokerError) -> None:
        _log.warning(
            "the cursor of the subscription %s at %s stays behind: %s",
            self._subscription,
            partition,
            error,
        )


def _report(move: Future[None]) -> None:
    """Log an error that nobody expected.  Nobody else looks at the result of a move."""
    error = move.exception()
    if error is not None:
        _log.error("a cursor of a stream was not moved, and stays behind", exc_info=error)
