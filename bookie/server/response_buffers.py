"""What the answers that a peer has not taken keep in memory besides themselves.

An entry as the store gives it is a view into a window, all that was read with it: up to 4 MB for a
few kilobytes.  To send views costs no copy, and the answers to somebody who reads on share their
windows.  But one who asks for entries from everywhere, and takes none, would keep a window for
each.  So windows are counted from `take` until the last answer with a view of them is sent: in
all, and for each connection.  What would be too much is copied.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from daybook.wire.connection import FrameConnection
from daybook.wire.transport import Buffer

COPIED_MAX = 8 << 10  # always: to count would cost more than a copy

Taken: TypeAlias = list[int]  # one for each view: its window, by a number


@dataclass(slots=True)
class WindowMemory:
    """Of all connections of a server; a window that two of them keep counts twice."""

    bytes_max: int
    total: int = 0
    holders: "dict[ResponseBuffers, None]" = field(
        default_factory=dict["ResponseBuffers", None]
    )  # of some of it

    def has_room(self, size: int) -> bool:
        """If there is none, one of the holders is looked at, each in turn: it may be idle."""
        if self.total + size > self.bytes_max and self.holders:
            holder = next(iter(self.holders))
            del self.holders[holder]
            self.holders[holder] = None
            holder.forget_sent()
        return self.total + size <= self.bytes_max


@dataclass(slots=True)
class _Window:
    memory: object  # so that nobody else has its id
    size: int
    views: int = 0


class ResponseBuffers:
    """Of one connection."""

    def __init__(
        self, connection: FrameConnection, everybodys: WindowMemory, *, bytes_max: int
    ) -> None:
        self._connection = connection
        self._everybodys = everybodys
        self._bytes_max = bytes_max
        self._total = 0
        self._windows: dict[int, _Window] = {}  # by the id of the object
        self._leaving: deque[tuple[int, int]] = deque()  # how much is sent by then, and a window

    def take(self, entry: memoryview, taken: Taken) -> Buffer:
        """What is to be sent of it: itself, and then `taken` says so, or a copy."""
        if len(entry) <= COPIED_MAX or self._connection.closed:
            return bytes(entry)
        self.forget_sent()
        number = id(entry.obj)
        window = self._windows.get(number)
        if window is None:
            size = memoryview(entry.obj).nbytes
            if self._total + size > self._bytes_max or not self._everybodys.has_room(size):
                return bytes(entry)
            window = self._windows[number] = _Window(entry.obj, size)
            self._count(size)
        window.views += 1
        taken.append(number)
        return entry

    def queued(self, taken: Iterable[int]) -> None:
        """They are behind all that the connection has to send by now."""
        connection = self._connection
        end = connection.sent_bytes + connection.pending_bytes
        self._leaving.extend((end, number) for number in taken)

    def close(self) -> None:
        """The connection is closed: nothing is kept any more."""
        self._windows.clear()
        self._leaving.clear()
        self._count(-self._total)

    def forget_sent(self) -> None:
        """Count what is kept now."""
        leaving, sent = self._leaving, self._connection.sent_bytes
        while leaving and leaving[0][0] <= sent:
            _, number = leaving.popleft()
            window = self._windows[number]
            window.views -= 1
            if not window.views:
                del self._windows[number]
                self._count(-window.size)

    def _count(self, size: int) -> None:
        self._total += size
        self._everybodys.total += size
        if self._total:
            self._everybodys.holders.setdefault(self)
        else:
            self._everybodys.holders.pop(self, None)
