"""The memory of the answers of the admin REST that hold messages.

    held = await memory.hold()      before the message is read: as much as an answer may take
    held.shrink(size)               when the answer is known
    held.release()                  when it is sent, or its connection has ended

A few bytes can be decompressed to megabytes, and a client decides how fast it reads.  So all such
answers of a broker share one bound.  A request beyond it waits for room, and is refused with
NoRoomError if there is none in time.
"""

import trio

from daybook.broker.errors import NoRoomError

_ANSWERS = 6  # The bound is that many of the largest size.
_WAIT_S = 5.0


class AnswerMemory:
    """One instance per broker."""

    def __init__(self, answer_bytes_max: int) -> None:
        self.answer_bytes_max = answer_bytes_max
        self.bytes_max = _ANSWERS * answer_bytes_max
        self.taken = 0
        self._freed = trio.Event()

    async def hold(self) -> "Held":
        """Take the memory of one answer of any size.  Raise UnavailableError."""
        wanted = self.answer_bytes_max
        with trio.move_on_after(_WAIT_S):
            while self.taken + wanted > self.bytes_max:
                await self._freed.wait()
        if self.taken + wanted > self.bytes_max:
            raise NoRoomError(
                "other clients read so many messages of this broker over HTTP that the memory for"
                " such answers is used up: try again, or read the message with a consumer"
            )
        self.taken += wanted
        return Held(self, wanted)

    def give_back(self, size: int) -> None:
        self.taken -= size
        freed, self._freed = self._freed, trio.Event()
        freed.set()


class Held:
    """The memory of one answer."""

    def __init__(self, memory: AnswerMemory, size: int) -> None:
        self._memory = memory
        self._size = size

    def shrink(self, size: int) -> None:
        """Give back what the answer does not need.  One that is larger keeps what it has."""
        if size < self._size:
            self._memory.give_back(self._size - size)
            self._size = size

    def release(self) -> None:
        """Give back the rest.  Idempotent."""
        self.shrink(0)
