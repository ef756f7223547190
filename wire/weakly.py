"""References from a part to what it is a part of, which do not keep that in memory.

    self._cursors = Cursors(..., on_lost=weakly(self.lost))

    self._topic = weak(topic)
    ...
    self._topic().check_serving()

An object and a part that refer to each other wait for the garbage collector when both are done.  It
stops the whole process, for more than a second where thousands of topics are loaded.  So a part
refers weakly to its whole, and both are freed as soon as nobody else has the whole.  A part is used
only by those who have the whole.  ReferenceError is raised if it is gone all the same.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod, ref

P = ParamSpec("P")
T = TypeVar("T")


def weak(whole: T) -> Callable[[], T]:
    """Return a function that returns `whole`."""
    weak_ref = ref(whole)

    def get() -> T:
        there = weak_ref()
        if there is None:
            raise ReferenceError("the whole that a part belongs to is gone")
        return there

    return get


def weakly(method: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls a bound method of the whole."""
    weak_method = WeakMethod(method)

    def call(*args: P.args, **named: P.kwargs) -> T:
        there = weak_method()
        if there is None:
            raise ReferenceError("the whole that a part belongs to is gone")
        return there(*args, **named)

    return call
