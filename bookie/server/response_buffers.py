"""Response buffers: the limit on the memory that the unsent answers of a peer hold.

The store gives an entry as a view into a window, which has all that was read together: up to 4 MB
for an entry of a few kilobytes.  A view is sent without a copy, and the answers to a peer that
reads in order share their windows.  But a peer that reads everywhere and receives nothing would
hold a window for each answer.  So each window counts from `view_or_copy` until the last answer with
a view of it is sent, against a limit of the connection and a limit of the server.  An entry that
would exceed one of them is copied.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from daybook.wire.connection import FrameConnection
from daybook.wire.transport import Buffer

COPIED_MAX = 8 << 10  # smaller entries are always copied: to count a window would cost more

WindowIds: TypeAlias = list[int]  # one for each view in an answer: the id of its window


@dataclass(slots=True)
class WindowMemory:
    """The memory of the windows that all connections of a server hold.

    A window that two connections hold counts twice.
    """

    bytes_max: int
    total: int = 0
    # The connections that hold a window, in the order in which `has_room` looks at them.
    holders: "dict[ResponseBuffers, None]" = field(default_factory=dict["ResponseBuffers", None])

    def has_room(self, size: int) -> bool:
        """Return True if a window of `size` bytes fits.

        If it does not fit, one holder releases what it has sent, each in turn: a connection that
        is idle would otherwise hold its windows until its next request.
        """
        if self.total + size > self.bytes_max and self.holders:
            holder = next(iter(self.holders))
            del self.holders[holder]
            self.holders[holder] = None
            holder.release_sent()
        return self.total + size <= self.bytes_max


@dataclass(slots=True)
class _Window:
    memory: object  # keeps the object alive, so that no other object gets its id
    size: int
    views: int = 0


class ResponseBuffers:
    """The windows that the unsent answers of one connection hold."""

    def __init__(
        self, connection: FrameConnection, memory: WindowMemory, *, bytes_max: int
    ) -> None:
        self._connection = connection
        self._memory = memory
        self._bytes_max = bytes_max
        self._total = 0
        self._windows: dict[int, _Window] = {}  # by the id of the object
        # Each view that is queued: the count of sent bytes at which it is sent, and its window.
        self._queued: deque[tuple[int, int]] = deque()

    def view_or_copy(self, entry: memoryview, window_ids: WindowIds) -> Buffer:
        """Return `entry` itself and add its window to `window_ids`, or return a copy of it."""
        if len(entry) <= COPIED_MAX or self._connection.closed:
            return bytes(entry)
        self.release_sent()
        window_id = id(entry.obj)
        window = self._windows.get(window_id)
        if window is None:
            size = memoryview(entry.obj).nbytes
            if self._total + size > self._bytes_max or not self._memory.has_room(size):
                return bytes(entry)
            window = self._windows[window_id] = _Window(entry.obj, size)
            self._count(size)
        window.views += 1
        window_ids.append(window_id)
        return entry

    def queued(self, window_ids: Iterable[int]) -> None:
        """Note that the views are in the send queue of the connection, at its end."""
        connection = self._connection
        end = connection.sent_bytes + connection.pending_bytes
        self._queued.extend((end, window_id) for window_id in window_ids)

    def release_sent(self) -> None:
        """Release the windows whose last view is sent."""
        queued, sent = self._queued, self._connection.sent_bytes
        while queued and queued[0][0] <= sent:
            _, window_id = queued.popleft()
            window = self._windows[window_id]
            assert window.views > 0
            window.views -= 1
            if not window.views:
                del self._windows[window_id]
                self._count(-window.size)

    def close(self) -> None:
        """Release all windows, because the connection is closed."""
        self._windows.clear()
        self._queued.clear()
        self._count(-self._total)

    def _count(self, size: int) -> None:
        self._total += size
        self._memory.total += size
        assert self._total >= 0
        if self._total:
            self._memory.holders.setdefault(self)
        else:
            self._memory.holders.pop(self, None)
