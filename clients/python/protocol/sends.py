"""Entries that were sent, or are to be, and have no receipt yet: one queue, in order.

Receipts come in the order of the sends.  So a receipt is for the head of the queue; an older one
is for an entry that was given up or resent, and a newer one means that a receipt was lost: then
nothing that this connection says can be trusted.  After a takeover the whole queue is sent again as
it is, with the same sequence ids: nothing is reordered, and a broker that knows them drops
duplicates.

An entry that no connection has taken was not stored; of one that was sent, nobody can say it until
its receipt comes.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from daybook.wire.transport import Buffer


@dataclass(slots=True)
class PendingSend:
    """One entry: its frame, and whom to tell."""

    sequence_id: int  # of the first message; what receipts name
    highest_sequence_id: int
    count: int
    size: int
    frame: tuple[Buffer, Buffer]
    deadline: float
    results: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    sent: bool = False
    sent_before: bool = False  # on another connection than this, which may have taken it


class Surprise(Enum):
    """What a receipt may be, other than that of the head."""

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
        """How many there are in all entries."""
        return sum(send.count for send in self._queue)

    def push(self, send: PendingSend) -> None:
        self._queue.append(send)
        self.size += send.size

    def receipt(self, sequence_id: int) -> PendingSend | Surprise:
        """The entry that this receipt is for, which leaves the queue."""
        queue = self._queue
        if not queue or sequence_id < queue[0].sequence_id:
            return Surprise.OLD
        if sequence_id > queue[0].sequence_id:
            return Surprise.LOST_ONE
        return self._pop()

    def refused(self, sequence_id: int) -> PendingSend | None:
        """The entry that the broker refused, by its first or last id; it leaves the queue.

        A refusal may overtake the receipts of earlier entries, which wait for their disks.
        """
        for send in self._queue:
            if sequence_id in (send.sequence_id, send.highest_sequence_id):
                self._queue.remove(send)
                self.size -= send.size
                return send
        return None

    def expired(self, now: float) -> list[PendingSend]:
        """The entries whose time is over; they leave the queue."""
        found: list[PendingSend] = []
        while self._queue and self._queue[0].deadline <= now:
            found.append(self._pop())
        return found

    @property
    def deadline(self) -> float | None:
        """When the next entry is given up."""
        return self._queue[0].deadline if self._queue else None

    @property
    def oldest(self) -> int | None:
        """The sequence id of the head."""
        return self._queue[0].sequence_id if self._queue else None

    def all(self) -> list[PendingSend]:
        """Everything, in order: what to send again."""
        return list(self._queue)

    def clear(self) -> list[PendingSend]:
        found = list(self._queue)
        self._queue.clear()
        self.size = 0
        return found

    def _pop(self) -> PendingSend:
        send = self._queue.popleft()
        self.size -= send.size
        return send
