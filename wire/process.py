"""What a server sets for its own process: memory, the collector, the number of open files.

`prepare` comes before anything else, `settle` when everything is made and serving begins.  For
applications that do as much as a server both are in `daybook.ledgers`, too; no library calls them.

A server receives, reads and forgets buffers of 100 KB and more without an end.  The C library of
Linux maps each such buffer anew and gives it back afterwards, so that every page of it is a fault;
told to keep what is free, it makes reading twice as fast (`make bench`, consume).  Where the C
library has no such knob, nothing happens.
"""

import ctypes
import gc
import resource
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MAPPED_ALONE_BYTES = 32 << 20  # and above; the most that the C library takes
_KEPT_FREE_BYTES = 128 << 20
_YOUNG_OBJECTS = 50_000  # between two collections; little in a server is ever in a cycle
_GONE_MIN = 1000  # connections; a collection takes some tens of milliseconds, so it has to pay


def prepare() -> None:
    """Use as many files as the system allows; keep freed memory at hand."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_ALONE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)


def settle() -> None:
    """What is here now stays: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)


def give_back_memory() -> None:
    """Collect cycles, and return what is free to the system.  Takes tens of milliseconds."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


class Crowd:
    """Gives memory back when most of many connections have gone.

    The C library is told to keep what is free, and the collector to come rarely.  So after a
    thousand clients their memory would stay with the process for as long as it lives.
    """

    def __init__(self, give_back: Callable[[], None] = give_back_memory) -> None:
        self._give_back = give_back
        self._peak = 0

    def left(self, connections: int) -> None:
        """One connection has ended, and so many are left."""
        self._peak = max(self._peak, connections + 1)
        if self._peak - connections >= _GONE_MIN and connections <= self._peak // 2:
            self._peak = connections
            self._give_back()
