"""Process settings of a server: freed memory, the garbage collector, the number of open files.

A server calls `prepare` before anything else, and `settle` when everything is set up and serving
begins.  Both are also in `daybook.ledgers`, for applications with the load of a server; no library
calls them.

A server continuously allocates and frees buffers of 100 KB and more.  The C library of Linux maps
each such buffer anew and unmaps it afterwards, so that every page of it is a fault.  Reading is
twice as fast when the library is told to keep freed memory (`make bench`, consume).  Where the C
library has no such setting, nothing happens.
"""

import ctypes
import gc
import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MAPPED_ALONE_BYTES = 32 << 20  # and above; the most that the C library takes
_KEPT_FREE_BYTES = 128 << 20
# Between two collections, each of which stops the process for 4 ms.  Few objects of a server are
# ever in a cycle, so collections find little and are rare.
_YOUNG_OBJECTS = 20_000
# Every second collection looks at the survivors of the one before, too.  With twenty passes in
# between, a broker that takes over 1,500 topics stopped for 210 ms, and now for 40.
_YOUNG_PASSES = 0
_MIDDLE_PASSES = 1_000  # `Leftovers` knows better when a full collection is worth its time.
_GONE_MIN = (
    1000  # connections or objects: fewer are not worth the tens of milliseconds of a collection
)


def prepare() -> None:
    """Allow as many open files as the system does, and keep freed memory in the process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_ALONE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)


def settle() -> None:
    """Exempt all present objects from garbage collection, and make collections rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_PASSES, _MIDDLE_PASSES)


def collect_and_trim() -> None:
    """Collect cycles, and return free memory to the system.  Takes tens of milliseconds."""
    gc.collect()
    trim()


def trim() -> None:
    """Return free memory to the system."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


class Leftovers:
    """Returns the memory of objects that have gone, once as many have gone as are left.

    An object such as a topic is a cycle, and the collector runs rarely after `settle`.  So without
    this a server that loads and unloads objects all the time would grow without end.  A collection
    looks at everything that is left, so it waits for that many, or a thousand.

    While objects only go, nothing is collected, because that needs no memory: a server that gives
    thousands of topics away at once is not stopped in the midst of it.
    """

    def __init__(self, give_back: Callable[[], None] = collect_and_trim) -> None:
        self._give_back = give_back
        self._gone = 0

    def left(self) -> None:
        """Note that one object has gone."""
        self._gone += 1

    def look(self, remaining: int) -> None:
        """Collect if that is worth its time; call it when one has come, and now and then."""
        if self._gone >= max(_GONE_MIN, remaining):
            self._gone = 0
            self._give_back()


def each_once(objects: Iterable[T]) -> Iterator[T]:
    """Yield the objects of this moment, and keep none that was yielded.

    A loop that waits between them, as long as a list has them all, keeps those that have gone.
    """
    remaining = deque(objects)
    while remaining:
        yield remaining.popleft()


class Crowd:
    """Returns memory to the system when most of many connections have ended.

    The C library keeps freed memory.  So without this the memory of a thousand clients would stay
    with the process for as long as it lives.  Connections are freed as they end, so no collection
    is needed, which would hold up everybody whenever a crowd of strangers goes.
    """

    def __init__(self, give_back: Callable[[], None] = trim) -> None:
        self._give_back = give_back
        self._peak = 0

    def left(self, connections: int) -> None:
        """Note that one connection has ended and `connections` are left."""
        self._peak = max(self._peak, connections + 1)
        if self._peak - connections >= _GONE_MIN and connections <= self._peak // 2:
            self._peak = connections
            self._give_back()
