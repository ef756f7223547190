"""Writes that share a request to ZooKeeper.

A write is sent at once if none is under way.  Those that come meanwhile wait, and then go together
in one multi request: it costs ZooKeeper little more than a single write, and of single writes that
were sent at the same time none would have had its answer before that of the first.  A transaction
is a write of several operations.

Each write has the outcome that it would have alone:

    the request was carried out      each write has its own result
    one of its writes was refused    nothing was done; each of them is sent again, alone, in order
    no answer                        the outcome of each is unknown

Everything here runs in trio's thread.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from daybook.wire.metadata.kazoo_client import (
    AsyncResult,
    Kazoo,
    Transaction,
    TransactionResult,
    ZnodeStat,
    is_connection_loss,
)

OPERATIONS_MAX = 100
BYTES_MAX = 256 << 10  # a larger write goes alone
_OPERATION_BYTES = 64  # A write takes these besides its path and value.

Soon = Callable[..., None]


class WriteResult:
    """The outcome of one write, as kazoo gives it."""

    def __init__(self) -> None:
        self.exception: Exception | None = None
        self.value: Any = None
        self._callbacks: list[Callable[[Any], None]] = []

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` when there is an outcome; there is none yet."""
        self._callbacks.append(callback)

    def settle(self, value: object, exception: Exception | None) -> None:
        self.value, self.exception = value, exception
        # A callback refers to what refers to this result: kept, they would be a cycle.
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """A write that was asked for: how to send it alone, and as a part of a transaction.

    `operations` is None for a single operation, whose result is not in a list.
    """

    alone: Callable[[Kazoo], AsyncResult[Any]]
    join: Callable[[Transaction], None]
    bytes: int
    operations: int | None
    result: WriteResult

    def __len__(self) -> int:
        return self.operations or 1


class GroupedWrites:
    """A client of kazoo whose writes are grouped; everything else goes to the client.

    `soon` calls a function in trio's thread, from any thread.
    """

    def __init__(self, kazoo: Kazoo, soon: Soon) -> None:
        self._kazoo = kazoo
        self._soon = soon
        self._waiting: deque[_Write] = deque()
        self._requests = 0  # under way

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._kazoo, name)

    def commit_async(
        self, add: Callable[[Transaction], None], operations: int, size: int
    ) -> AsyncResult[list[TransactionResult]]:
        """Carry out a transaction: all that `add` adds to one, or nothing.

        `operations` is how many it adds, and `size` how many bytes of paths and values.
        """

        def alone(kazoo: Kazoo) -> AsyncResult[list[TransactionResult]]:
            transaction = kazoo.transaction()
            add(transaction)
            return transaction.commit_async()

        return self._add(alone, add, size, operations)

    def create_async(
        self,
        path: str,
        value: bytes,
        acl: Callable[[], Sequence[object]],
        *,
        ephemeral: bool = False,
        sequence: bool = False,
    ) -> AsyncResult[str]:
        """Create a record; `acl` is called when the request is sent."""
        return self._add(
            lambda kazoo: kazoo.create_async(
                path, value, acl=acl(), ephemeral=ephemeral, sequence=sequence
            ),
            lambda transaction: transaction.create(
                path, value, acl=acl(), ephemeral=ephemeral, sequence=sequence
            ),
            len(path) + len(value),
        )

    def set_async(self, path: str, value: bytes, version: int) -> AsyncResult[ZnodeStat]:
        return self._add(
            lambda kazoo: kazoo.set_async(path, value, version),
            lambda transaction: transaction.set_data(path, value, version),
            len(path) + len(value),
        )

    def delete_async(self, path: str, version: int) -> AsyncResult[bool]:
        return self._add(
            lambda kazoo: kazoo.delete_async(path, version),
            lambda transaction: transaction.delete(path, version),
            len(path),
        )

    # -- groups

    def _add(
        self,
        alone: Callable[[Kazoo], AsyncResult[Any]],
        join: Callable[[Transaction], None],
        size: int,
        operations: int | None = None,
    ) -> WriteResult:
        result = WriteResult()
        size += (operations or 1) * _OPERATION_BYTES
        self._waiting.append(_Write(alone, join, size, operations, result))
        self._send_next()
        return result

    def _send_next(self) -> None:
        if not self._waiting or self._requests:
            return
        group = self._next_group()
        if len(group) == 1:
            self._send_alone(group[0])
            return
        transaction = self._kazoo.transaction()
        for write in group:
            write.join(transaction)
        self._requests += 1
        transaction.commit_async().rawlink(
            lambda answer: self._soon(self._group_answered, group, answer)
        )

    def _next_group(self) -> list[_Write]:
        group = [self._waiting.popleft()]
        size, operations = group[0].bytes, len(group[0])
        while self._waiting:
            size += self._waiting[0].bytes
            operations += len(self._waiting[0])
            if size > BYTES_MAX or operations > OPERATIONS_MAX:
                break
            group.append(self._waiting.popleft())
        return group

    def _send_alone(self, write: _Write) -> None:
        self._requests += 1
        write.alone(self._kazoo).rawlink(
            lambda answer: self._soon(self._write_answered, write, answer)
        )

    def _write_answered(self, write: _Write, answer: AsyncResult[Any]) -> None:
        error = answer.exception
        write.result.settle(None if error else answer.value, error)
        self._answered(error)

    def _group_answered(
        self, group: Sequence[_Write], answer: AsyncResult[list[TransactionResult]]
    ) -> None:
        error = answer.exception
        if error is not None:
            for write in group:
                write.result.settle(None, error)
        elif any(isinstance(result, Exception) for result in answer.value):
            # Nothing was done.  The refusal of one may be due to another one that came before it.
            for write in group:
                self._send_alone(write)
        else:
            results = iter(answer.value)
            for write in group:
                own = list(islice(results, len(write)))
                write.result.settle(own[0] if write.operations is None else own, None)
        self._answered(error)

    def _answered(self, error: Exception | None) -> None:
        self._requests -= 1
        if is_connection_loss(error):
            # These were given to a connection that is gone, as kazoo's own queue was.
            lost, self._waiting = self._waiting, deque()
            for write in lost:
                write.result.settle(None, error)
        self._send_next()
