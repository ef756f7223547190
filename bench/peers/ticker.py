"""A beat that is as exact as the kernel's timers: trio's own sleep is rounded up to a millisecond.

    with Ticker(0.001) as ticker:
        for _ in range(await ticker.wait()):    # so many beats since the last time
            ...

Linux only (a timerfd).
"""

import ctypes
import os
from struct import Struct
from types import TracebackType
from typing import Self

import trio

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = 0o4000
_COUNT = Struct("Q")
_TIMES = Struct("llll")  # interval, first; seconds and nanoseconds of each


class Ticker:
    """Beats from now on, the first after one interval; a context manager, for one task."""

    def __init__(self, interval_s: float) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK)
        whole, nanoseconds = divmod(round(interval_s * 1e9), 1_000_000_000)
        times = _TIMES.pack(whole, nanoseconds, whole, nanoseconds)
        if self._fd < 0 or libc.timerfd_settime(self._fd, 0, times, None):
            raise OSError(ctypes.get_errno(), "no timer")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    async def wait(self) -> int:
        await trio.lowlevel.wait_readable(self._fd)
        return int(_COUNT.unpack(os.read(self._fd, _COUNT.size))[0])
