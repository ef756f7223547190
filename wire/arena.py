"""Arenas: recycled memory into which connections receive.  A view into an arena keeps it in use.

Receiving into fresh memory is the largest cost of a broker that only passes bytes on, so arenas
are recycled.  An arena is free when no view into it is left, as its reference count shows; no
bookkeeping per message is needed.

An arena is a mapping of its own and not a piece of the heap, so an arena that is dropped is free
memory for every process at once.  `run` drops arenas that nobody needed for some seconds, so that
a host does not keep the memory of its busiest minute.  Arenas with views stay.

The pool bounds the memory that all connections of a host hold together, in bytes of arenas and not
of payloads: a single small view pins a whole arena.  A cache or a slow consumer that keeps a
payload for long must copy it out.  When the bound is reached, the pool first takes back arenas that
connections hold without need; after that receiving waits for an arena.

A connection that has little to receive needs no arena: it receives into `scratch`, which all
connections of the pool share, and copies the bytes.  So only frames of more than `LITTLE_BYTES`
ever wait for memory.  Frames that need more than one standard arena do not get the last quarter of
the pool.  The bound may be exceeded by one arena, so that waiting connections never wait for each
other in a circle.  While a connection waits, the peer with the slowest unfinished frame is cut.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from sys import getrefcount
from typing import TypeAlias

import trio

Arena: TypeAlias = mmap

ARENA_BYTES = 1 << 20
LITTLE_BYTES = 1 << 16
_RETRY_S = 0.01
_TRIES_MAX = 10
_LOOK_S = 0.1  # between looks at half frames while a connection waits for an arena
_LOOKS_MAX = 10  # looks without progress after which a half frame is cut
_LOOK_BYTES = 1638  # needed between two looks, to count as progress: 16 KiB/s
_LENT_S = 1.0  # An arena that was lent for longer is taken back before new memory is allocated.
_LOOK_UNUSED_S = 5.0  # An arena that nobody needed between two looks is dropped.
_LARGE_TRIES = 8
_KEPT_ARENAS = 2  # standard arenas that a pool never drops for that
_DROPPED_BYTES_MAX = 16 << 20  # in one turn of the loop: unmapping takes 0.1 ms a megabyte
_FREE_REFERENCES = 2  # the local variable and the argument of getrefcount


def _nothing(_reason: str) -> None:
    """Do nothing about a connection that has ended."""


@dataclass(slots=True, eq=False)
class HalfFrame:
    """A frame that a peer has begun to send, which keeps an arena until it is complete."""

    cut: Callable[[str], None]
    received_bytes: int = 0
    seen_bytes: int = 0  # `received_bytes` at the last look that found progress
    looks: int = 0  # since then, all without progress

    def forget(self) -> None:
        """Drop the reference to the connection, which has ended and refers to this object."""
        self.cut = _nothing

    def begin(self) -> None:
        """Start to count for a new frame."""
        self.received_bytes = self.seen_bytes = self.looks = 0

    def look(self) -> None:
        if self.received_bytes - self.seen_bytes >= _LOOK_BYTES:
            self.seen_bytes, self.looks = self.received_bytes, 0
        else:
            self.looks += 1


class ArenaPool:
    """The arenas of one host.  `total_bytes_max` bounds their sum, which is `total_bytes`."""

    def __init__(
        self, *, arena_bytes: int = ARENA_BYTES, total_bytes_max: int = 256 * ARENA_BYTES
    ) -> None:
        self.arena_bytes = arena_bytes
        self.total_bytes_max = total_bytes_max
        self.scratch = memoryview(bytearray(LITTLE_BYTES))  # never used across an `await`
        self._all_bytes = 0
        self._retired: deque[Arena] = deque()  # given back; views into them may still exist
        # Standard arenas without views that a look found; the one that was used last is at the end.
        self._free: list[Arena] = []
        self._unused = 0  # So many at the front of `_free` were not used since the last look.
        self._kept_bytes = _KEPT_ARENAS * arena_bytes
        self._grown = trio.Event()  # There are more arenas than a pool keeps; `run` waits for it.
        # Idle connections that hold an arena: since when, and the function that takes it back.
        self._holders: dict[object, tuple[float, Callable[[], None]]] = {}
        self._half_frames: dict[HalfFrame, None] = {}
        self._looked_at = 0.0
        self._turn, self._large_turn = trio.Lock(), trio.Lock()

    @property
    def total_bytes(self) -> int:
        """Bytes of all arenas that exist, in use or not."""
        return self._all_bytes

    def is_half_full(self, size: int) -> bool:
        """Return True if an arena of `size` bytes would bring the total above half the bound."""
        return self._all_bytes + size > self.total_bytes_max // 2

    def try_acquire(self, size: int) -> Arena | None:
        """Return an arena of at least `size` bytes, or None if the bound does not allow one now."""
        size = max(size, self.arena_bytes)
        standard = size == self.arena_bytes
        if (arena := self._recycled(3) if standard else self._recycled_large(size)) is not None:
            return arena
        if self._holders and self._take_back_oldest() and size == self.arena_bytes:
            arena = self._recycled(len(self._retired))
            if arena is not None:
                return arena
        if self._all_bytes + size > self._bound(size):
            self._reclaim(size)
            if size == self.arena_bytes and (arena := self._recycled(len(self._retired))):
                return arena
            # A lone arena may exceed the bound, or a small pool could never receive a large frame.
            if self._all_bytes and self._all_bytes + size > self._bound(size):
                return None
        return self._allocate(size)

    def _bound(self, size: int) -> int:
        """Return the bound for a size: only standard arenas may use the last quarter of the pool.

        So large frames that stall do not block other connections.
        """
        return self.total_bytes_max if size == self.arena_bytes else self.total_bytes_max * 3 // 4

    def _allocate(self, size: int) -> Arena | None:
        """Allocate an arena and count it; None if there is no memory, even without free arenas."""
        try:
            arena = new_arena(size)
        except OSError:
            self._drop_free()
            try:
                arena = new_arena(size)
            except OSError:
                return None
        self._all_bytes += size
        if self._all_bytes > self._kept_bytes:
            self._grown.set()
        return arena

    async def acquire(
        self, size: int, given_up: Callable[[], bool] = lambda: False
    ) -> Arena | None:
        """Wait until `try_acquire` returns an arena; None if `given_up` returns True before."""
        # The callers queue for the lock, so that only the first of each queue polls.
        turn = self._turn if size <= self.arena_bytes else self._large_turn
        if not turn.locked() and (arena := self.try_acquire(size)) is not None:
            return arena
        async with turn:
            tries = 0
            while not given_up():
                if (arena := self.try_acquire(size)) is not None:
                    return arena
                tries += 1
                # Connections that hold one arena and wait for another could wait for each other in
                # a circle, so one arena at a time may exceed the bound.
                if (
                    tries > _TRIES_MAX
                    and self._all_bytes <= self.total_bytes_max
                    and (arena := self._allocate(max(size, self.arena_bytes))) is not None
                ):
                    return arena
                self._look()
                # No event says that the last view has gone, so this polls; the path is rare.
                await trio.sleep(_RETRY_S)
        return None

    def release(self, arena: Arena) -> None:
        """Give an arena back.  Views into it stay valid; it is recycled when they are gone."""
        self._retired.append(arena)

    # -- connections that hold an arena

    def lend(self, holder: object, give_back: Callable[[], None]) -> None:
        """Mark the arena of `holder` as idle: the pool calls `give_back` when it needs memory."""
        self._holders[holder] = trio.current_time(), give_back

    def keep(self, holder: object) -> None:
        """Unmark the arena of `holder`, which needs it again.  Does nothing if it was taken."""
        self._holders.pop(holder, None)

    def await_rest(self, half: HalfFrame) -> None:
        """Watch a half frame: its peer is cut if it sends little while others need memory."""
        self._half_frames[half] = None

    def rest_came(self, half: HalfFrame) -> None:
        """Stop watching a half frame: bytes have come, or the connection has ended."""
        self._half_frames.pop(half, None)

    def _look(self) -> None:
        """Cut the peer whose frame makes the least progress, if ten looks found none.

        Looks are counted instead of seconds, because a pause of this process must not count.
        """
        now = trio.current_time()
        if now - self._looked_at < _LOOK_S or not self._half_frames:
            return
        self._looked_at = now
        for half in self._half_frames:
            half.look()
        slowest = max(self._half_frames, key=lambda half: half.looks)
        if slowest.looks >= _LOOKS_MAX:
            slowest.cut("a frame was begun and does not get on, and memory is short")

    # -- memory that nobody needs

    async def run(self) -> None:
        """Drop the arenas that nobody needs, forever.  Nothing wakes up while there are few."""
        while True:
            if self._all_bytes <= self._kept_bytes:
                if self._grown.is_set():
                    self._grown = trio.Event()
                await self._grown.wait()
            await trio.sleep(_LOOK_UNUSED_S)
            while self._drop_unused():
                await trio.lowlevel.checkpoint()
            self._look_for_free()

    def _drop_unused(self) -> bool:
        """Drop some arenas that were not used since the last look; return False if none is left."""
        turn_bytes = 0
        while self._unused and self._all_bytes - self.arena_bytes >= self._kept_bytes:
            if turn_bytes >= _DROPPED_BYTES_MAX:
                return True
            del self._free[0]
            self._unused -= 1
            self._all_bytes -= self.arena_bytes
            turn_bytes += self.arena_bytes
        return False

    def _look_for_free(self) -> None:
        """Take back arenas of idle connections, and find out which arenas have no views."""
        while self._holders and self._take_back_oldest():
            pass
        for _ in range(len(self._retired)):
            arena = self._retired.popleft()
            if getrefcount(arena) != _FREE_REFERENCES:
                self._retired.append(arena)
            elif len(arena) == self.arena_bytes:
                self._free.append(arena)
            else:
                self._all_bytes -= len(arena)
        self._unused = len(self._free)

    def _recycled(self, tries: int) -> Arena | None:
        # Arenas that were given back lately come first: the others can be dropped if that suffices.
        for _ in range(min(tries, len(self._retired))):
            arena = self._retired.popleft()
            if getrefcount(arena) == _FREE_REFERENCES:
                if len(arena) == self.arena_bytes:
                    return arena
                self._all_bytes -= len(arena)
            else:
                self._retired.append(arena)
        if not self._free:
            return None
        arena = self._free.pop()
        self._unused = min(self._unused, len(self._free))
        return arena

    def _recycled_large(self, size: int) -> Arena | None:
        """Return a large arena that fits: its pages are there, which takes 0.4 ms a megabyte."""
        for _ in range(min(_LARGE_TRIES, len(self._retired))):
            arena = self._retired.popleft()
            if size <= len(arena) <= 2 * size and getrefcount(arena) == _FREE_REFERENCES:
                return arena
            self._retired.append(arena)
        return None

    def _take_back_oldest(self) -> bool:
        """Take back the arena that was lent first, if that was `_LENT_S` ago; True if taken."""
        holder = next(iter(self._holders))
        since, give_back = self._holders[holder]
        if trio.current_time() - since < _LENT_S:
            return False
        del self._holders[holder]
        give_back()
        return True

    def _reclaim(self, size: int) -> None:
        """Take back the arenas of idle connections; for a large size also drop the free ones."""
        holders, self._holders = self._holders, {}
        for _, give_back in holders.values():
            give_back()
        if size != self.arena_bytes:
            self._drop_free()

    def _drop_free(self) -> None:
        self._all_bytes -= len(self._free) * self.arena_bytes
        self._free.clear()
        self._unused = 0
        for _ in range(len(self._retired)):
            arena = self._retired.popleft()
            if getrefcount(arena) == _FREE_REFERENCES:
                self._all_bytes -= len(arena)
            else:
                self._retired.append(arena)


def new_arena(size: int) -> Arena:
    """Map fresh memory, which is unmapped when nothing refers to it.  Raise OSError without any."""
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)


def release_view(view: memoryview) -> None:
    """Release a view, unless its buffer is exported to another object at this moment."""
    try:  # noqa: SIM105  A context manager costs ten times as much as the release.
        view.release()
    except BufferError:
        pass
