"""Writes and transactions share requests, and each has the outcome that it would have alone."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo import exceptions

from daybook.wire.metadata import write_groups
from daybook.wire.metadata.write_groups import GroupedWrites, WriteResult


@dataclass(frozen=True)
class Op:
    """One operation, as the server gets it."""

    kind: str
    path: str
    value: bytes = b""
    version: int = -1
    options: tuple[tuple[str, object], ...] = ()


@dataclass(eq=False)
class Stat:
    version: int


class Transaction:
    def __init__(self, server: "Server") -> None:
        self._server = server
        self.operations: list[Op] = []

    def create(self, path: str, value: bytes, **options: object) -> None:
        self.operations.append(Op("create", path, value, options=tuple(options.items())))

    def set_data(self, path: str, value: bytes, version: int) -> None:
        self.operations.append(Op("set", path, value, version))

    def delete(self, path: str, version: int) -> None:
        self.operations.append(Op("delete", path, version=version))

    def check(self, path: str, version: int) -> None:
        self.operations.append(Op("check", path, version=version))

    def commit_async(self) -> WriteResult:
        return self._server.ask(self.operations, alone=False)


class Server:
    """Stands in for kazoo and ZooKeeper.  `answer` lets the oldest request be carried out."""

    def __init__(self) -> None:
        self.records: dict[str, tuple[bytes, int]] = {}
        self.numbers = 0
        self.requests: list[tuple[list[Op], bool, WriteResult]] = []
        self.sizes: list[int] = []
        self.calls: list[Callable[[], None]] = []
        self.writes = GroupedWrites(self, self.soon)  # type: ignore[arg-type]

    def soon(self, call: Callable[..., None], *args: object) -> None:
        self.calls.append(lambda: call(*args))

    def create_async(self, path: str, value: bytes, **options: object) -> WriteResult:
        return self.ask([Op("create", path, value, options=tuple(options.items()))], alone=True)

    def set_async(self, path: str, value: bytes, version: int) -> WriteResult:
        return self.ask([Op("set", path, value, version)], alone=True)

    def delete_async(self, path: str, version: int) -> WriteResult:
        return self.ask([Op("delete", path, version=version)], alone=True)

    def transaction(self) -> Transaction:
        return Transaction(self)

    def get_async(self, path: str) -> str:
        return f"read {path}"

    def ask(self, operations: Sequence[Op], *, alone: bool) -> WriteResult:
        result = WriteResult()
        self.requests.append((list(operations), alone, result))
        self.sizes.append(len(operations))
        return result

    def answer(self, *, lost: str = "") -> None:
        """Answer the oldest request; `lost`: "before" or "after" it was carried out."""
        operations, alone, result = self.requests.pop(0)
        if lost == "before":
            result.settle(None, exceptions.ConnectionLoss())
        else:
            results = self._carry_out(operations)
            if lost:
                result.settle(None, exceptions.ConnectionLoss())
            elif not alone:
                result.settle(results, None)
            elif isinstance(results[0], Exception):
                result.settle(None, results[0])
            else:
                result.settle(results[0], None)
        while self.calls:
            self.calls.pop(0)()

    def _carry_out(self, operations: Sequence[Op]) -> list[Any]:
        before, numbers = dict(self.records), self.numbers
        results: list[Any] = []
        for operation in operations:
            try:
                results.append(self._apply(operation))
            except exceptions.KazooException as error:
                self.records, self.numbers = before, numbers
                done = [exceptions.RolledBackError() for _ in results]
                rest = [exceptions.RuntimeInconsistency() for _ in operations[len(results) + 1 :]]
                return [*done, error, *rest]
        return results

    def _apply(self, operation: Op) -> object:
        path, options = operation.path, dict(operation.options)
        if operation.kind == "create":
            if options.get("sequence"):
                path = f"{path}{self.numbers:010d}"
            if path in self.records:
                raise exceptions.NodeExistsError
            self.numbers += 1
            self.records[path] = (operation.value, 0)
            return path
        if path not in self.records:
            raise exceptions.NoNodeError
        version = self.records[path][1]
        if operation.version not in (-1, version):
            raise exceptions.BadVersionError
        if operation.kind == "check":
            return True
        if operation.kind == "delete":
            del self.records[path]
            return True
        self.records[path] = (operation.value, version + 1)
        return Stat(version + 1)


def test_a_write_that_comes_alone_is_sent_at_once_and_alone() -> None:
    server = Server()
    for number in range(3):
        result = server.writes.create_async(f"/{number}", b"", list)
        server.answer()
        assert result.value == f"/{number}"
    assert server.sizes == [1, 1, 1]


def test_writes_that_come_while_one_is_under_way_go_together() -> None:
    server = Server()
    results = [
        server.writes.create_async("/n-", b"", list, ephemeral=True, sequence=True)
        for _ in range(101)
    ]
    assert server.sizes == [1]
    server.answer()
    server.answer()
    assert [result.value for result in results] == [f"/n-{number:010d}" for number in range(101)]
    assert server.sizes == [1, 100]
    assert not server.requests


def test_a_group_is_bounded_in_number_and_in_bytes() -> None:
    server = Server()
    for number in range(1 + write_groups.OPERATIONS_MAX + 1):
        server.writes.create_async(f"/{number}", b"", list)
    large = bytes(write_groups.BYTES_MAX)
    server.writes.create_async("/large", large, list)
    server.writes.create_async("/behind", b"", list)
    while server.requests:
        server.answer()
    assert server.sizes == [1, write_groups.OPERATIONS_MAX, 1, 1, 1]
    assert server.records["/large"] == (large, 0)


def test_the_refusal_of_one_refuses_no_other() -> None:
    server = Server()
    server.records = {"/a": (b"", 3), "/b": (b"", 0)}
    first = server.writes.create_async("/first", b"", list)
    good = server.writes.set_async("/a", b"x", 3)
    bad = server.writes.set_async("/b", b"x", 7)
    new = server.writes.create_async("/new", b"", list)
    while server.requests:
        server.answer()
    assert first.value == "/first"
    assert good.value.version == 4
    assert isinstance(bad.exception, exceptions.BadVersionError)
    assert new.value == "/new"
    assert server.records["/b"] == (b"", 0)


def checked_set(server: Server, checked: tuple[str, int], path: str, version: int) -> WriteResult:
    """Set a record to `x` if both have these versions."""

    def add(transaction: Any) -> None:
        transaction.check(*checked)
        transaction.set_data(path, b"x", version)

    result = server.writes.commit_async(add, 2, len(path))
    assert isinstance(result, WriteResult)
    return result


def test_transactions_join_a_group_and_have_their_own_results() -> None:
    server = Server()
    server.records = {"/a": (b"", 3), "/b": (b"", 0), "/c": (b"", 5)}
    alone = checked_set(server, ("/a", 3), "/c", 5)
    one = checked_set(server, ("/a", 3), "/b", 0)
    between = server.writes.create_async("/new", b"", list)
    two = checked_set(server, ("/c", 6), "/a", 3)
    while server.requests:
        server.answer()
    assert server.sizes == [2, 5]
    assert [each.version for each in alone.value[1:]] == [6]
    assert [each.version for each in one.value[1:]] == [1]
    assert between.value == "/new"
    assert [each.version for each in two.value[1:]] == [4]


def test_a_refused_transaction_does_nothing_and_refuses_no_other() -> None:
    server = Server()
    server.records = {"/a": (b"", 3), "/b": (b"", 0)}
    server.writes.create_async("/first", b"", list)
    refused = checked_set(server, ("/a", 2), "/b", 0)
    new = server.writes.create_async("/new", b"", list)
    good = checked_set(server, ("/a", 3), "/b", 0)
    while server.requests:
        server.answer()
    error, rest = refused.value
    assert isinstance(error, exceptions.BadVersionError)
    assert isinstance(rest, exceptions.RuntimeInconsistency)
    assert new.value == "/new"
    assert good.value[1].version == 1
    assert server.records["/b"] == (b"x", 1)


def test_the_operations_of_transactions_count_for_the_bound_of_a_group() -> None:
    server = Server()
    server.records = {"/a": (b"", 0), **{f"/{number}": (b"", 0) for number in range(60)}}
    server.writes.create_async("/first", b"", list)
    for number in range(60):
        checked_set(server, ("/a", 0), f"/{number}", 0)
    while server.requests:
        server.answer()
    assert server.sizes == [1, write_groups.OPERATIONS_MAX, 20]


def test_a_transaction_without_an_answer_is_in_doubt() -> None:
    server = Server()
    server.records = {"/a": (b"", 0), "/b": (b"", 0)}
    server.writes.create_async("/first", b"", list)
    sent = [checked_set(server, ("/a", 0), "/b", 0), server.writes.create_async("/c", b"", list)]
    server.answer()
    server.answer(lost="after")
    assert all(isinstance(each.exception, exceptions.ConnectionLoss) for each in sent)


def test_a_refusal_that_another_write_of_the_group_has_caused_is_not_believed() -> None:
    """In the group the second write finds a version that the first one would have made."""
    server = Server()
    server.records = {"/a": (b"", 0)}
    server.writes.create_async("/first", b"", list)
    one = server.writes.set_async("/a", b"1", 0)
    gone = server.writes.delete_async("/missing", -1)
    two = server.writes.set_async("/a", b"2", 1)
    while server.requests:
        server.answer()
    assert (one.value.version, two.value.version) == (1, 2)
    assert isinstance(gone.exception, exceptions.NoNodeError)
    assert server.records["/a"] == (b"2", 2)


@pytest.mark.parametrize("lost", ["before", "after"])
def test_without_an_answer_the_outcome_of_each_is_unknown(lost: str) -> None:
    server = Server()
    server.records = {"/a": (b"", 0)}
    first = server.writes.create_async("/first", b"", list)
    sent = [server.writes.set_async("/a", b"x", 0), server.writes.create_async("/b", b"", list)]
    server.answer()
    queued = server.writes.create_async("/c", b"", list)
    server.answer(lost=lost)
    assert first.exception is None
    for result in (*sent, queued):
        assert isinstance(result.exception, exceptions.ConnectionLoss)
    assert ("/b" in server.records) == (lost == "after")
    assert "/c" not in server.records
    later = server.writes.create_async("/later", b"", list)
    server.answer()
    assert later.value == "/later"


def test_the_rights_of_a_record_are_asked_for_when_the_request_leaves() -> None:
    server = Server()
    rights = ["open"]
    server.writes.create_async("/first", b"", lambda: rights[-1:])
    server.writes.create_async("/second", b"", lambda: rights[-1:])
    rights.append("closed")
    (asked,) = server.requests[0][0]
    assert dict(asked.options)["acl"] == ["open"]
    server.answer()
    (asked,) = server.requests[0][0]
    assert dict(asked.options)["acl"] == ["closed"]


def test_everything_else_goes_to_the_client() -> None:
    assert Server().writes.get_async("/a") == "read /a"


@pytest.mark.parametrize("seed", range(300))
def test_the_outcomes_are_those_of_single_writes_in_some_order(seed: int) -> None:
    """Every write that succeeded is there, every refused one is not, and versions count."""
    rng = random.Random(seed)
    server = Server()
    paths = [f"/{number}" for number in range(4)]
    server.records = dict.fromkeys(paths, (b"", 0))
    made: list[tuple[str, int, bytes, Any]] = []
    for serial in range(60):
        if server.requests and rng.random() < 0.3:
            server.answer(lost=rng.choice(["", "", "", "", "before", "after"]))
        path, value = rng.choice(paths), b"%d" % serial
        version = server.records[path][1] + rng.choice([0, 0, 0, 1])
        made.append((path, version, value, server.writes.set_async(path, value, version)))
    while server.requests:
        server.answer()
    for path in paths:
        mine = [each for each in made if each[0] == path]
        done = {version + 1: value for _, version, value, r in mine if r.exception is None}
        unknown = {
            version + 1: value
            for _, version, value, r in mine
            if isinstance(r.exception, exceptions.ConnectionLoss)
        }
        assert len(done) == sum(1 for each in mine if each[3].exception is None)
        value, version = server.records[path]
        for number in range(1, version + 1):
            assert number in done or number in unknown
        if version:
            assert value == done.get(version, value)
        for _, wrote, _, result in mine:
            if result.exception is None:
                assert result.value.version == wrote + 1 <= version
