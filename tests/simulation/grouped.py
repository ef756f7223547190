"""A simulated session whose writes share requests, as those of the store on ZooKeeper do.

The product's `GroupedWrites` decides which writes go together and what became of each.  A group is
one request of the host: it is carried out as a whole or not at all, or is lost, or loses its
answer.  A connection that is lost takes the waiting writes with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import trio
from kazoo.exceptions import ConnectionLoss

from daybook.wire.metadata.acl import Acl
from daybook.wire.metadata.kazoo_client import AsyncResult, Kazoo, Transaction
from daybook.wire.metadata.memory import Link, MemorySession, NoAnswerError, Request
from daybook.wire.metadata.session import create_with_parents
from daybook.wire.metadata.store import (
    Create,
    Delete,
    MetadataError,
    Operation,
    OutcomeUnknownError,
    SessionState,
    Set,
    Stat,
    request_bytes,
)
from daybook.wire.metadata.tree import Tree
from daybook.wire.metadata.write_groups import GroupedWrites, WriteResult

T = TypeVar("T")
GROUP, _MULTI = "group", "multi"

Submit = Callable[[GroupedWrites], AsyncResult[Any]]


class GroupedSession(MemorySession):
    """The view of one host; `nursery` is one of its tasks'."""

    def __init__(
        self, tree: Tree, host: str, link: Link, request_timeout_s: float, nursery: trio.Nursery
    ) -> None:
        super().__init__(tree, host, link, request_timeout_s)
        self._nursery = nursery
        self._grouped: tuple[int, GroupedWrites] | None = None  # a session, and its writes
        self._last_sent = trio.Event()
        self._last_sent.set()

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
        acl: Acl | None = None,
    ) -> str:
        if sequential:  # The tree has no such creation in a transaction.
            return await super().create(
                path, value, ephemeral=ephemeral, sequential=True, make_parents=make_parents
            )

        async def create_one(operation: Create) -> str:
            await self._group(
                path,
                lambda writes: writes.create_async(
                    operation.path,
                    operation.value,
                    lambda: [operation.acl],
                    ephemeral=operation.ephemeral,
                ),
            )
            return operation.path

        operation = Create(path, value, ephemeral, acl)
        if not make_parents:
            return await create_one(operation)
        return await create_with_parents(
            path,
            lambda: create_one(operation),
            lambda parent: create_one(Create(parent, b"")),
        )

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        stat = await self._group(path, lambda writes: writes.set_async(path, value, version))
        return cast("Stat", stat)

    async def delete(self, path: str, version: int) -> None:
        await self._group(path, lambda writes: writes.delete_async(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        operations = list(operations)
        if not operations:
            return []

        def add(transaction: Transaction) -> None:
            cast("_Transaction", transaction).add(operations)

        results: list[Any] = await self._group(
            operations[0].path,
            lambda writes: writes.commit_async(add, len(operations), request_bytes(operations)),
        )
        for result in results:
            if isinstance(result, Exception):
                raise result
        return [cast("Stat", result).version for result in results]

    async def _read(self, operation: str, path: str, act: Callable[[Tree, int], T]) -> T:
        # A write that was sent before the read leaves before it.
        if not self._last_sent.is_set():
            await self._last_sent.wait()
        return await super()._read(operation, path, act)

    # -- groups

    async def _group(self, path: str, submit: Submit) -> Any:
        """Wait for the outcome of a write, as the store on ZooKeeper does."""
        await self._view.wait_connected(self._request_timeout_s)
        result, settled = submit(self._writes()), trio.Event()
        result.rawlink(lambda _: settled.set())
        with trio.move_on_after(self._request_timeout_s) as scope:
            await settled.wait()
        if scope.cancelled_caught or isinstance(result.exception, ConnectionLoss):
            raise OutcomeUnknownError(f"the metadata store did not answer to a write of {path}")
        if result.exception is not None:
            raise result.exception
        return result.value

    def _writes(self) -> GroupedWrites:
        session_id = self.session_id
        if self._grouped is None or self._grouped[0] != session_id:
            client = cast("Kazoo", _Client(self, session_id))
            self._grouped = session_id, GroupedWrites(client, _call)
        return self._grouped[1]

    def send(self, session_id: int, kind: str, operations: Sequence[Operation]) -> WriteResult:
        """Send a request; all requests leave in the order of these calls.

        `kind` is its operation: create, set, delete, multi, or a group of writes.
        """
        result, before, sent = WriteResult(), self._last_sent, trio.Event()
        self._last_sent = sent

        async def carry() -> None:
            await before.wait()
            sent.set()  # This task goes on, without a checkpoint, until the request has left.
            result.settle(*await self._outcome(session_id, kind, operations))

        self._nursery.start_soon(carry)
        return result

    async def _outcome(
        self, session_id: int, kind: str, operations: Sequence[Operation]
    ) -> tuple[object, Exception | None]:
        if self.session_state is not SessionState.CONNECTED or self.session_id != session_id:
            return None, ConnectionLoss()  # It went to a connection that is gone.
        single = kind not in (_MULTI, GROUP)
        request = Request(self._host, kind, operations[0].path, True)
        try:
            stats = await self._request(request, lambda tree, me: _apply(tree, me, operations))
        except NoAnswerError:
            return None, ConnectionLoss()
        except MetadataError as error:
            return (None, error) if single else ([error] * len(operations), None)
        return (stats[0] if single else stats), None


def _apply(tree: Tree, session_id: int, operations: Sequence[Operation]) -> list[Stat]:
    """Carry out all operations, and return the state of each record behind its operation."""
    versions, stats = tree.multi(session_id, operations), list[Stat]()
    for operation, version in zip(operations, versions, strict=True):
        record = tree.get(session_id, operation.path, None)
        stat = record.stat if record is not None else Stat(0, 0, 0, 0, 0, 0, 0, 0)
        stats.append(replace(stat, version=version))
    return stats


def _call(call: Callable[..., None], *args: object) -> None:
    call(*args)


class _Client:
    """The part of a client of kazoo that `GroupedWrites` uses."""

    def __init__(self, session: GroupedSession, session_id: int) -> None:
        self._session = session
        self._session_id = session_id

    def transaction(self) -> "_Transaction":
        return _Transaction(self)

    def create_async(
        self,
        path: str,
        value: bytes,
        *,
        acl: Sequence[Acl | None],
        ephemeral: bool,
        sequence: bool,
    ) -> WriteResult:
        assert not sequence
        return self.send("create", [Create(path, value, ephemeral, acl[0])])

    def set_async(self, path: str, value: bytes, version: int) -> WriteResult:
        return self.send("set", [Set(path, value, version)])

    def delete_async(self, path: str, version: int) -> WriteResult:
        return self.send("delete", [Delete(path, version)])

    def send(self, kind: str, operations: Sequence[Operation]) -> WriteResult:
        return self._session.send(self._session_id, kind, operations)


class _Transaction:
    def __init__(self, client: _Client) -> None:
        self._client = client
        self._operations: list[Operation] = []
        self._writes = 0

    def add(self, operations: Sequence[Operation]) -> None:
        """Add a write of one or several operations."""
        self._operations += operations
        self._writes += 1

    def create(
        self,
        path: str,
        value: bytes,
        *,
        acl: Sequence[Acl | None],
        ephemeral: bool,
        sequence: bool,
    ) -> None:
        assert not sequence
        self.add([Create(path, value, ephemeral, acl[0])])

    def set_data(self, path: str, value: bytes, version: int) -> None:
        self.add([Set(path, value, version)])

    def delete(self, path: str, version: int) -> None:
        self.add([Delete(path, version)])

    def commit_async(self) -> WriteResult:
        return self._client.send(GROUP if self._writes > 1 else _MULTI, self._operations)
