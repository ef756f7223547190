"""Requests to ZooKeeper: each ends in its time, and leaves nothing to the garbage collector."""

import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
import trio
import trio.testing
from kazoo import exceptions

from daybook.wire.logging import silent_log
from daybook.wire.metadata.access import ZooKeeperAccess
from daybook.wire.metadata.kazoo_answer import Answer, PathAnswer
from daybook.wire.metadata.store import (
    NoRecordError,
    OutcomeUnknownError,
    SessionState,
    StoreUnavailableError,
    VersionConflictError,
)
from daybook.wire.metadata.zookeeper import ZooKeeperStore

T = TypeVar("T")
TIMEOUT_S = 10.0


class Kazoo:
    """A client of kazoo whose answers the test gives.  `asked` has those that are not given."""

    def __init__(self) -> None:
        self.asked: list[Answer] = []

    def get_async(self, path: str, watch: object) -> Answer:
        return self._ask()

    def get_children_async(self, path: str, watch: object) -> Answer:
        return self._ask()

    def set_async(self, path: str, value: bytes, version: int) -> Answer:
        return self._ask()

    def _ask(self) -> Answer:
        answer = Answer()
        self.asked.append(answer)
        return answer


@asynccontextmanager
async def opened() -> AsyncGenerator[tuple[ZooKeeperStore, Kazoo]]:
    """Yield a store with contact, and its client of kazoo."""
    kazoo = Kazoo()
    store = ZooKeeperStore("host:1", "", 4.0, TIMEOUT_S, ZooKeeperAccess(), silent_log())
    store._kazoo = kazoo  # type: ignore[assignment]
    store._session.move(SessionState.CONNECTED, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.end_late_requests)
        yield store, kazoo
        nursery.cancel_scope.cancel()


def play(scenario: Callable[[ZooKeeperStore, Kazoo], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened() as (store, kazoo):
            await scenario(store, kazoo)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def take(ended: dict[str, float], name: str, call: Callable[[], Awaitable[object]]) -> None:
    """Note when a call of which nothing is known has ended."""
    with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
        await call()
    ended[name] = trio.current_time()


def test_each_request_without_an_answer_ends_in_its_time() -> None:
    async def scenario(store: ZooKeeperStore, kazoo: Kazoo) -> None:
        ended: dict[str, float] = {}
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, ended, "first", lambda: store.get_children("/a"))
            await trio.sleep(3.0)
            nursery.start_soon(take, ended, "second", lambda: store.set("/a", b"", 0))
            await trio.sleep(3.0)
            nursery.start_soon(store.get_children, "/b")
            await trio.testing.wait_all_tasks_blocked()
            kazoo.asked[2].set([])
        assert {name: at - began for name, at in ended.items()} == {
            "first": TIMEOUT_S,
            "second": TIMEOUT_S + 3.0,
        }

    play(scenario)


def test_the_time_that_a_request_waited_for_contact_counts() -> None:
    async def scenario(store: ZooKeeperStore, kazoo: Kazoo) -> None:
        ended: dict[str, float] = {}
        began = trio.current_time()
        store._session.move(SessionState.SUSPENDED)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, ended, "waited", lambda: store.get_children("/a"))
            await trio.sleep(4.0)
            store._session.move(SessionState.CONNECTED, 1)
            # This one goes first, and has more time left than the one that has waited.
            nursery.start_soon(take, ended, "came", lambda: store.get_children("/b"))
        assert {name: at - began for name, at in ended.items()} == {
            "waited": TIMEOUT_S,
            "came": TIMEOUT_S + 4.0,
        }

    play(scenario)


@pytest.mark.parametrize("overtaken", [True, False])
def test_a_loss_that_is_heard_of_after_the_next_contact_does_not_end_that(overtaken: bool) -> None:
    """The reports of kazoo wait for trio's thread, and the outcome of a grouped write once more."""

    async def scenario(store: ZooKeeperStore, kazoo: Kazoo) -> None:
        ended: dict[str, float] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, ended, "write", lambda: store.set("/a", b"", 0))
            await trio.testing.wait_all_tasks_blocked()
            kazoo.asked[0].set_exception(exceptions.ConnectionLoss())
            store._handle_state(kazoo, SessionState.SUSPENDED, 0)  # type: ignore[arg-type]
            if overtaken:
                store._handle_state(kazoo, SessionState.CONNECTED, 1)  # type: ignore[arg-type]
        expected = SessionState.CONNECTED if overtaken else SessionState.SUSPENDED
        assert store.session_state is expected

    play(scenario)


def test_a_write_of_the_next_contact_is_not_lost_with_those_of_the_last_one() -> None:
    """The loss of a write is heard of when others have been made in the next contact."""

    async def scenario(store: ZooKeeperStore, kazoo: Kazoo) -> None:
        ended: dict[str, float] = {}
        refused = trio.Event()

        async def write() -> None:
            with pytest.raises(VersionConflictError):
                await store.set("/b", b"", 0)
            refused.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, ended, "lost", lambda: store.set("/a", b"", 0))
            await trio.testing.wait_all_tasks_blocked()
            store._handle_state(kazoo, SessionState.SUSPENDED, 0)  # type: ignore[arg-type]
            store._handle_state(kazoo, SessionState.CONNECTED, 1)  # type: ignore[arg-type]
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            kazoo.asked[0].set_exception(exceptions.ConnectionLoss())
            await trio.testing.wait_all_tasks_blocked()
            kazoo.asked[1].set_exception(exceptions.BadVersionError())
        assert list(ended) == ["lost"]
        assert refused.is_set()
        assert store.session_state is SessionState.CONNECTED

    play(scenario)


def test_an_answer_that_comes_too_late_is_dropped() -> None:
    async def scenario(store: ZooKeeperStore, kazoo: Kazoo) -> None:
        with trio.move_on_after(1.0):
            await store.get_children("/a")
        with pytest.raises(StoreUnavailableError):
            await store.get_children("/b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.get_children, "/c")
            await trio.testing.wait_all_tasks_blocked()
            for answer in kazoo.asked:
                answer.set([])
        assert not store._under_way

    play(scenario)


def test_requests_leave_no_cycles() -> None:
    async def ask(
        kazoo: Kazoo, call: Callable[[], Awaitable[T]], error: Exception | None, value: object
    ) -> list[T]:
        results: list[T] = []

        async def run() -> None:
            try:
                results.append(await call())
            except (NoRecordError, VersionConflictError):
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            answer = kazoo.asked.pop()
            answer.set(value) if error is None else answer.set_exception(error)
        return results

    async def scenario(store: ZooKeeperStore, kazoo: Kazoo) -> None:
        async def all_kinds() -> None:
            assert await ask(kazoo, lambda: store.get_children("/a"), None, ["b"]) == [["b"]]
            missing = exceptions.NoNodeError()
            assert await ask(kazoo, lambda: store.get("/a"), missing, None) == [None]
            other = exceptions.BadVersionError()
            assert await ask(kazoo, lambda: store.set("/a", b"", 1), other, None) == []

        await all_kinds()
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await all_kinds()
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, Answer | Exception)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        assert left == []

    play(scenario)


@pytest.mark.parametrize("before", [True, False])
def test_an_answer_calls_each_callback_once(before: bool) -> None:
    answer, heard = PathAnswer(lambda path: path[1:]), list[object]()
    if before:
        answer.rawlink(lambda result: heard.append(result.value))
        assert not heard
        answer.set("/a")
    else:
        answer.set("/a")
        answer.rawlink(lambda result: heard.append(result.value))
    assert heard == ["a"]
    answer.rawlink(lambda result: heard.append("later"))
    assert heard == ["a", "later"]
