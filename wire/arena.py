"""Where received bytes live.  Whoever holds a view into an arena keeps that arena.

Receiving into fresh memory is what costs most in a broker that only passes bytes on: so arenas
are recycled.  An arena is free when nobody holds a view into it any more, which its reference
count says; no bookkeeping per message is needed.

The pool bounds what all connections of a host may hold together, in bytes of arenas and not of
payloads: a single small view pins a whole arena.  Who keeps a payload for long (a cache, a slow
consumer) must copy it out.  When the bound is reached, arenas that connections hold without need
are taken back; then receiving waits for one.
"""

from collections import deque
from collections.abc import Callable
from sys import getrefcount

import trio

ARENA_BYTES = 1 << 20
_RETRY_S = 0.01
_FREE_REFERENCES = 2  # the local variable and the argument of getrefcount


class ArenaPool:
    """The arenas of one host.  `total_bytes_max` bounds them; `held_bytes` says where they are."""

    def __init__(
        self, *, arena_bytes: int = ARENA_BYTES, total_bytes_max: int = 256 * ARENA_BYTES
    ) -> None:
        self.arena_bytes = arena_bytes
        self.total_bytes_max = total_bytes_max
        self._all_bytes = 0
        self._retired: deque[bytearray] = deque()  # given back; views into them may still be held
        self._holders: dict[object, Callable[[], None]] = {}  # idle connections that hold an arena

    @property
    def total_bytes(self) -> int:
        """Bytes of all arenas that exist, in use or not."""
        return self._all_bytes

    def try_acquire(self, size: int) -> bytearray | None:
        """An arena of at least `size` bytes, or None if the bound does not allow one now."""
        size = max(size, self.arena_bytes)
        if size == self.arena_bytes and (arena := self._recycled(3)) is not None:
            return arena
        if self._all_bytes + size > self.total_bytes_max:
            self._reclaim(size)
            if size == self.arena_bytes and (arena := self._recycled(len(self._retired))):
                return arena
            # One frame at a time may exceed the bound, or a small pool could never receive it.
            if self._all_bytes and self._all_bytes + size > self.total_bytes_max:
                return None
        self._all_bytes += size
        return bytearray(size)

    async def acquire(self, size: int) -> bytearray:
        """As `try_acquire`, but wait until there is one."""
        # Nothing tells when the last view goes, so this asks again; it is the rare path.
        while (arena := self.try_acquire(size)) is None:  # noqa: ASYNC110
            await trio.sleep(_RETRY_S)
        return arena

    def release(self, arena: bytearray) -> None:
        """Give an arena back.  Views into it stay valid; it is used again when they are gone."""
        self._retired.append(arena)

    def lend(self, holder: object, give_back: Callable[[], None]) -> None:
        """`holder` can do without its arena: `give_back` is called when it is missed."""
        self._holders[holder] = give_back

    def keep(self, holder: object) -> None:
        """`holder` needs its arena again (if it was not asked for it)."""
        self._holders.pop(holder, None)

    def _recycled(self, tries: int) -> bytearray | None:
        for _ in range(min(tries, len(self._retired))):
            arena = self._retired.popleft()
            if getrefcount(arena) == _FREE_REFERENCES:
                if len(arena) == self.arena_bytes:
                    return arena
                self._all_bytes -= len(arena)
            else:
                self._retired.append(arena)
        return None

    def _reclaim(self, size: int) -> None:
        """Make room: what idle connections hold comes back, what is free is dropped."""
        holders, self._holders = self._holders, {}
        for give_back in holders.values():
            give_back()
        if size == self.arena_bytes:
            return
        for _ in range(len(self._retired)):
            arena = self._retired.popleft()
            if getrefcount(arena) == _FREE_REFERENCES:
                self._all_bytes -= len(arena)
            else:
                self._retired.append(arena)
