"""A client in a process that was forked: it says so, and neither waits nor sends.

The child of a fork has a copy of the client's memory, but not its tasks, and it shares the client's
sockets with its parent: a byte that it sent would damage the connections of the parent.  So every
open client is told in the child, and its calls raise ClosedError there.
"""

import os
from typing import TYPE_CHECKING
from weakref import WeakSet

from daybook.clients.python.errors import ClosedError

if TYPE_CHECKING:
    from daybook.clients.python.client import Client


class _Forks:
    """How often this process was forked since it was a child itself, and from which process."""

    def __init__(self) -> None:
        self.count = 0
        self.parent = 0
        self.clients: WeakSet[Client] = WeakSet()


_forks = _Forks()


def _error() -> ClosedError:
    return ClosedError(
        f"this client belongs to process {_forks.parent}, from which this process was forked:"
        " connect again in this process"
    )


def _before() -> None:
    _forks.parent = os.getpid()


def _in_child() -> None:
    _forks.count += 1
    for client in list(_forks.clients):
        client.on_forked(_error())


class Birth:
    """The process in which something was made.  `check` is an attribute's comparison."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = _forks.count

    def check(self) -> None:
        """Raise ClosedError in a process that was forked since."""
        if self._count != _forks.count:
            raise _error()


def tell_of_forks(client: "Client") -> None:
    """Call `client.on_forked` in every process that is forked from this one."""
    _forks.clients.add(client)


if hasattr(os, "register_at_fork"):  # pragma: no branch  (there are systems without fork)
    os.register_at_fork(before=_before, after_in_child=_in_child)
