"""The entries of a producer that wait to be sent or for their receipt: one queue, in order.

Receipts come in the order of the sends, so a receipt is for the head of the queue.  A receipt for
an older entry is for one that was given up or sent again.  A receipt for a newer entry means that
one was lost: then no receipt of this connection can be trusted.  After a takeover the whole queue
is sent again with the same sequence ids: the order is kept, and a broker that knows the ids drops
duplicates.

An entry that was never sent on a connection is not stored.  Until the receipt of an entry that was
sent arrives, it is unknown whether the entry is stored.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from daybook.wire.transport import Buffer


@dataclass(slots=True)
class PendingSend:
    """One entry: its frame, and the callbacks of its messages."""

    sequence_id: int  # the id of the first message; receipts name it
    highest_sequence_id: int
    count: int
    size: int
    frame: tuple[Buffer, Buffer]
    deadline: float
    results: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    sent: bool = False
    queued_at: float = 0.0
    sent_before: bool = False  # on an earlier connection, whose broker may have stored it


class Surprise(Enum):
    """A receipt that is not for the head of the queue."""

    OLD = auto()
    LOST_ONE = auto()


class PendingSends:
    """The queue of one producer on one topic."""

    __slots__ = ("_queue", "size")

    def __init__(self) -> None:
        self._queue: deque[PendingSend] = deque()
        self.size = 0  # bytes of messages

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def messages(self) -> int:
        """The number of messages in the entries."""
        return sum(send.count for send in self._queue)

    def push(self, send: PendingSend) -> None:
        """Append an entry."""
        # Receipts and refusals find an entry by its ids, which only grow.  The chunks of a message
        # have the same id, and only the last one counts as a message.
        assert not self._queue or (
            self._queue[-1].highest_sequence_id < send.sequence_id
            or (not self._queue[-1].count and self._queue[-1].sequence_id == send.sequence_id)
        )
        self._queue.append(send)
        self.size += send.size

    def receipt(self, sequence_id: int) -> PendingSend | Surprise:
        """Remove the entry of this receipt from the queue, and return it."""
        queue = self._queue
        if not queue or sequence_id < queue[0].sequence_id:
            return Surprise.OLD
        if sequence_id > queue[0].sequence_id:
            return Surprise.LOST_ONE
        return self._pop()

    def refused(self, sequence_id: int) -> PendingSend | None:
        """Remove the entry that the broker refused, and return it; the id is its first or last.

        A refusal may overtake the receipts of earlier entries, which wait for disks.
        """
        for send in self._queue:
            if sequence_id in (send.sequence_id, send.highest_sequence_id):
                self._queue.remove(send)
                self.size -= send.size
                return send
        return None

    def expired(self, now: float) -> list[PendingSend]:
        """Remove the entries whose deadline is over, and return them."""
        found: list[PendingSend] = []
        while self._queue and self._queue[0].deadline <= now:
            found.append(self._pop())
        return found

    def take_unsent(self) -> list[PendingSend]:
        """Remove the entries that were sent to no broker, and return them, in order.

        If a chunk of a message was sent, the others stay with it.
        """
        queue = self._queue
        found: list[PendingSend] = []
        while queue and not (queue[-1].sent or queue[-1].sent_before):
            found.append(queue.pop())
        while found and queue and found[-1].sequence_id == queue[-1].sequence_id:
            queue.append(found.pop())
        found.reverse()
        self.size -= sum(send.size for send in found)
        return found

    @property
    def deadline(self) -> float | None:
        """The deadline of the head; None if the queue is empty."""
        return self._queue[0].deadline if self._queue else None

    @property
    def oldest(self) -> int | None:
        """The sequence id of the head."""
        return self._queue[0].sequence_id if self._queue else None

    def all(self) -> list[PendingSend]:
        """Return all entries, in order."""
        return list(self._queue)

    def clear(self) -> list[PendingSend]:
        """Remove all entries, and return them."""
        found = list(self._queue)
        self._queue.clear()
        self.size = 0
        return found

    def _pop(self) -> PendingSend:
        send = self._queue.popleft()
        self.size -= send.size
        assert self.size >= 0
        return send
