"""The answer to one request, in place of kazoo's `AsyncResult`.

kazoo's has a lock and a condition, for threads that wait; here nobody waits in a thread.  It also
keeps its callbacks when they were called.  Callbacks refer to the request, and the request refers
to the answer, so each request would leave a cycle to the garbage collector.  With many topics to
load, the collector took a fifth of a broker's time.
"""

from collections import deque
from collections.abc import Callable
from typing import Any


class Answer:
    """The value or the exception of one request, once it is there.

    kazoo's thread gives the answer, and trio's thread adds callbacks, at any time.  Each callback
    is called once: a thread that finds the answer takes the callbacks out of the queue, one by one,
    and no two threads take the same one.
    """

    __slots__ = ("_callbacks", "_ready", "exception", "value")

    def __init__(self) -> None:
        self.exception: Exception | None = None
        self.value: Any = None
        self._ready = False
        self._callbacks: deque[Callable[[Any], None]] = deque()

    def ready(self) -> bool:
        return self._ready

    def set(self, value: object = None) -> None:
        self.value = value
        self._answered()

    def set_exception(self, exception: Exception) -> None:
        self.exception = exception
        self._answered()

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with this answer when it is there, in the thread that has it."""
        self._callbacks.append(callback)
        # The answer may have come before the callback was in the queue.
        if self._ready:
            self._call_back()

    def _answered(self) -> None:
        self._ready = True
        self._call_back()

    def _call_back(self) -> None:
        while True:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            callback(self)


class PathAnswer(Answer):
    """The answer of a request for a path; `shown` turns ZooKeeper's path into the caller's."""

    __slots__ = ("_shown",)

    def __init__(self, shown: Callable[[str], str]) -> None:
        super().__init__()
        self._shown = shown

    def set(self, value: object = None) -> None:
        assert isinstance(value, str)
        super().set(self._shown(value))
