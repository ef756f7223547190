"""The memory of the long answers of the admin REST: lists of topics and subscriptions, statistics.

    held = await budget.hold(path, client, is_list=True)   before the answer is made
    held.made(size)                                         when it is encoded
    held.release()                                          when it is sent, or its client has gone

A list of 100,000 topics is 7 MB of JSON, and takes four times as much while it is made; a client
decides how fast it reads.  So all such answers share one bound.  A request beyond it waits for
room, and is refused with NoRoomError if there is none in time.

The size of an answer is not known before it is made, so the budget remembers how long the latest
answers of each path were.  While a list of unknown length is made, others of the same path wait.
Short answers are not counted.  An answer that turns out to be too long for the room that is left is
refused, unless it is the only one: each list can be read, whatever its length.

One client (an address) may take half of the memory with several answers, so that it keeps no other
out alone.
"""

from collections import Counter

import trio

from daybook.broker.errors import NoRoomError

BYTES_MAX = 256 << 20
_SMALL_BYTES = 64 << 10  # An answer up to that size is not counted.
_UNKNOWN_BYTES = 4 << 20  # for a list, while it is made
_MAKING = 4  # A list of names takes so many times its size in JSON while it is made.
_WAIT_S = 5.0
_PATHS_MAX = 1_000
_FORGET = 0.75  # A page of a list is short, and the whole list is not.


class AnswerBudget:
    """One instance per broker."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.taken = 0
        self.refused = 0
        self._bytes_max = bytes_max
        self._client_max = bytes_max // 2
        self._of_client = Counter[str]()
        self._sizes: dict[str, int] = {}  # by path; the latest is at the end
        self._learning: set[str] = set()
        self._freed = trio.Event()

    async def hold(self, path: str, client: str, *, is_list: bool) -> "HeldAnswer":
        """Take memory for the answer to a request.  Raise NoRoomError."""
        with trio.move_on_after(_WAIT_S):
            while not self._has_room(path, client, is_list=is_list):
                await self._freed.wait()
        if not self._has_room(path, client, is_list=is_list):
            raise self.no_room()
        learns = is_list and path not in self._sizes
        if learns:
            self._learning.add(path)
        wanted = self._wanted(path, is_list=is_list)
        self.take(client, 0, wanted)
        return HeldAnswer(self, path, client, wanted, learns=learns)

    def _has_room(self, path: str, client: str, *, is_list: bool) -> bool:
        if path in self._learning:
            return False
        return self.fits(client, self._wanted(path, is_list=is_list))

    def _wanted(self, path: str, *, is_list: bool) -> int:
        """Return the memory that the answer may take while it is made."""
        size = self._sizes.get(path)
        if size is None:
            return min(_UNKNOWN_BYTES, self._client_max) if is_list else 0
        return min(_MAKING * size, self._client_max) if size > _SMALL_BYTES else 0

    def fits(self, client: str, needed: int, own: int = 0) -> bool:
        """Return True if there is room for an answer, which has `own` of it already."""
        others, of_client = self.taken - own, self._of_client[client] - own
        if needed <= own or not others:
            return True
        fair = not of_client or of_client + needed <= self._client_max
        return fair and others + needed <= self._bytes_max

    def no_room(self) -> NoRoomError:
        self.refused += 1
        return NoRoomError(
            "other requests have long answers, and the memory for them is used up: try again, or"
            " read the list in pages (limit)"
        )

    def learn(self, path: str, size: int) -> None:
        """Remember how long an answer of the path was."""
        before = self._sizes.pop(path, 0)
        if len(self._sizes) >= _PATHS_MAX:
            del self._sizes[next(iter(self._sizes))]
        self._sizes[path] = max(size, int(before * _FORGET))

    def learned(self, path: str) -> None:
        """Let others ask for a path whose answer was of unknown length."""
        self._learning.discard(path)
        self._wake()

    def take(self, client: str, before: int, after: int) -> None:
        """Change what an answer takes."""
        self.taken += after - before
        self._of_client[client] += after - before
        assert self.taken >= 0
        if not self._of_client[client]:
            del self._of_client[client]
        if after < before:
            self._wake()

    def _wake(self) -> None:
        freed, self._freed = self._freed, trio.Event()
        freed.set()


class HeldAnswer:
    """The memory of one answer."""

    def __init__(
        self, budget: AnswerBudget, path: str, client: str, size: int, *, learns: bool
    ) -> None:
        self.bytes = size
        self._budget = budget
        self._path = path
        self._client = client
        self._learns = learns

    def made(self, size: int) -> None:
        """Keep the memory of an answer of that size.  Raise NoRoomError if there is not enough."""
        budget = self._budget
        budget.learn(self._path, size)
        self._end_learning()
        needed = size if size > _SMALL_BYTES else 0
        if not budget.fits(self._client, needed, self.bytes):
            raise budget.no_room()
        self._keep(needed)

    def release(self) -> None:
        """Give back everything.  Idempotent."""
        self._end_learning()
        self._keep(0)

    def _keep(self, needed: int) -> None:
        before, self.bytes = self.bytes, needed
        self._budget.take(self._client, before, needed)

    def _end_learning(self) -> None:
        if self._learns:
            self._learns = False
            self._budget.learned(self._path)
