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
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MAPPED_ALONE_BYTES = 32 << 20  # and above; the most that the C library takes
_KEPT_FREE_BYTES = 128 << 20
# Between two collections, each of which stops the process for 4 ms.  Few objects of a server are
# ever in a cycle, so collections find little and are rare.
_YOUNG_OBJECTS = 20_000
# Every second collection looks at the survivors of the one before, too.  With twenty passes in
# between, a broker that takes over 1,500 topics stopped for 210 ms, and now for 40.
_YOUNG_PASSES = 0
# A full one looks at all that came since the start, which takes a second with thousands of topics.
# Connections and topics are freed as they end, so it finds next to nothing.
_MIDDLE_PASSES = 1_000
_GONE_MIN = 1000  # connections or topics: fewer are not worth the time of a trim


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


def trim() -> None:
    """Return free memory to the system."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


class Crowd:
    """Returns memory to the system when most of many objects have gone: connections, or topics.

    The C library keeps freed memory.  So without this the memory of a thousand clients would stay
    with the process for as long as it lives.  These objects are freed as they end, so no collection
    is needed, which would hold up everybody whenever a crowd goes.
    """

    def __init__(self, give_back: Callable[[], None] = trim) -> None:
        self._give_back = give_back
        self._peak = 0

    def left(self, remaining: int) -> None:
        """Note that one object has gone and `remaining` are left."""
        self._peak = max(self._peak, remaining + 1)
        if self._peak - remaining >= _GONE_MIN and remaining <= self._peak // 2:
            self._peak = remaining
            self._give_back()
