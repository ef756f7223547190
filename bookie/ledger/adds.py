"""Consecutive adds on their way to several bookies.

A writer makes one `Adds` for what has gathered in a turn, and gives it to the lane of each bookie.
Each entry is framed as a plain v2 add; small ones are copied together, once for all bookies, since
a system call costs more for each buffer than a kilobyte costs to copy.  Large ones are not copied.
"""

from collections.abc import Sequence
from functools import cached_property

from daybook.wire.transport import Buffer

_COPIED_BYTES_MAX = 8 << 10  # of an entry, on the average


class Adds:
    """Entries `first` and on; each frame is one add, its size included, in parts."""

    def __init__(self, first: int, frames: Sequence[Sequence[Buffer]]) -> None:
        self.first = first
        self.frames = frames

    @property
    def last(self) -> int:
        return self.first + len(self.frames) - 1

    @cached_property
    def buffers(self) -> Sequence[Buffer]:
        """All frames, one behind the other."""
        parts = [part for frame in self.frames for part in frame]
        if len(self.frames) > 1 and sum(map(len, parts)) <= len(self.frames) * _COPIED_BYTES_MAX:
            return [b"".join(parts)]
        return parts

    @cached_property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.buffers))
