"""One answer to several adds."""

from collections.abc import Callable

from daybook.bookie.storage.status import StoreStatus


class Together:
    """Told of each of `count` adds; tells `done` once, of all: OK only if each of them is."""

    __slots__ = ("_done", "_left", "_status")

    def __init__(self, count: int, done: Callable[[StoreStatus], None]) -> None:
        assert count > 0
        self._left = count
        self._done = done
        self._status = StoreStatus.OK

    def __call__(self, status: StoreStatus) -> None:
        if self._status is StoreStatus.OK or status is StoreStatus.FENCED:
            self._status = status  # a fence says most: no add will be taken any more
        self._left -= 1
        if self._left == 0:
            self._done(self._status)
