"""Long answers of the admin REST share one bound, from before they are made until they are sent."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from starlette.applications import Starlette
from trio.testing import MockClock

from daybook.broker.admin.answer_budget import AnswerBudget, HeldAnswer
from daybook.broker.admin.handling import Call, Endpoints
from daybook.broker.errors import NoRoomError
from daybook.wire.logging import silent_log

MB = 1 << 20
NAMESPACE = "/{tenant}/{namespace}"


async def made(budget: AnswerBudget, path: str, size: int, client: str = "a") -> HeldAnswer:
    held = await budget.hold(path, client, is_list=True)
    try:
        held.made(size)
    except NoRoomError:
        held.release()
        raise
    return held


async def test_an_answer_beyond_the_bound_is_refused_after_a_while(
    autojump_clock: MockClock,
) -> None:
    budget = AnswerBudget(32 * MB)
    held = [await made(budget, str(number), 7 * MB, str(number)) for number in range(4)]
    began = trio.current_time()
    with pytest.raises(NoRoomError, match="try again"):
        await made(budget, "one more", 7 * MB, "b")
    with pytest.raises(NoRoomError, match="try again"):
        await budget.hold("0", "c", is_list=True)
    assert trio.current_time() - began == 5, "the first was made before there was no room"
    assert budget.taken == 28 * MB
    assert budget.refused == 2
    for each in held:
        each.release()
        each.release()
    assert budget.taken == 0
    (await made(budget, "one more", 7 * MB)).release()
    assert budget.taken == 0


async def test_a_request_waits_for_room(autojump_clock: MockClock) -> None:
    budget = AnswerBudget(32 * MB)
    slow = [await made(budget, str(number), 15 * MB, str(number)) for number in range(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made, budget, "0", 15 * MB, "b")
        await trio.sleep(1)
        slow[0].release()
    assert trio.current_time() == 1
    assert budget.taken == 30 * MB


async def test_an_answer_takes_more_while_it_is_made(autojump_clock: MockClock) -> None:
    budget = AnswerBudget(128 * MB)
    (await made(budget, "topics", 4 * MB)).release()
    held = await budget.hold("topics", "a", is_list=True)
    assert budget.taken == 16 * MB
    held.made(4 * MB)
    assert budget.taken == 4 * MB
    page = await budget.hold("topics", "a", is_list=True)
    page.made(100)
    assert budget.taken == 4 * MB, "a short answer is not counted"
    await budget.hold("topics", "a", is_list=True)
    assert budget.taken == 16 * MB, "a page says little about the length of the list"


async def test_a_list_of_unknown_length_is_made_once_first(autojump_clock: MockClock) -> None:
    budget = AnswerBudget(128 * MB)
    first = await budget.hold("topics", "a", is_list=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made, budget, "topics", 16 * MB, "b")
        await trio.sleep(1)
        assert budget.taken == 4 * MB
        other = await budget.hold("other", "b", is_list=True)
        other.release()
        first.made(16 * MB)
    assert budget.taken == 32 * MB
    await budget.hold("stats", "c", is_list=False)
    assert budget.taken == 32 * MB, "most statistics are short"


async def test_one_client_keeps_no_other_out(autojump_clock: MockClock) -> None:
    budget = AnswerBudget(64 * MB)
    for number in range(4):
        await made(budget, str(number), 7 * MB, "greedy")
    with pytest.raises(NoRoomError):
        await made(budget, "another", 7 * MB, "greedy")
    await made(budget, "another", 7 * MB, "modest")


async def test_each_list_can_be_read_whatever_its_length(autojump_clock: MockClock) -> None:
    budget = AnswerBudget(8 * MB)
    for _ in range(2):
        held = await made(budget, "topics", 100 * MB)
        assert budget.taken == 100 * MB
        held.release()


async def test_the_paths_that_are_remembered_are_bounded(autojump_clock: MockClock) -> None:
    budget = AnswerBudget()
    for number in range(3_000):
        (await made(budget, str(number), 10)).release()
    assert len(budget._sizes) == 1_000
    assert not budget._of_client
    assert not budget._learning


class Site:
    """Lists of names, and clients that read their answers or do not."""

    def __init__(self, budget: AnswerBudget, nursery: trio.Nursery) -> None:
        async def names(_: Call[None]) -> object:
            return ["x" * 98] * 10_000  # about a megabyte

        async def broken(_: Call[None]) -> object:
            raise RuntimeError

        endpoints = Endpoints(None, 1 << 10, silent_log(), answers=budget)
        self._app = Starlette(
            routes=[
                endpoints.route(f"/admin/v2/persistent{NAMESPACE}", {"GET": names}),
                endpoints.route(f"/admin/v2/non-persistent{NAMESPACE}", {"GET": broken}),
            ]
        )
        self._nursery = nursery

    async def ask(
        self, host: str, *, reads: bool = True, path: str = "persistent/public/default"
    ) -> tuple[int, dict[str, str]]:
        """Return the status and the headers of the answer."""
        started: list[Any] = []
        has_begun = trio.Event()

        async def receive() -> Any:
            return await trio.sleep_forever()

        async def send(message: Any) -> None:
            started.append(message)
            has_begun.set()
            if not reads and message["type"] == "http.response.body":
                await trio.sleep_forever()

        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/admin/v2/{path}",
            "query_string": b"",
            "headers": [],
            "client": (host, 1),
        }
        if reads:
            await self._app(scope, receive, send)
        else:
            self._nursery.start_soon(self._app, scope, receive, send)
            await has_begun.wait()
        headers = {k.decode(): v.decode() for k, v in started[0]["headers"]}
        return started[0]["status"], headers


@asynccontextmanager
async def site(budget: AnswerBudget) -> AsyncGenerator[Site]:
    async with trio.open_nursery() as nursery:
        yield Site(budget, nursery)
        nursery.cancel_scope.cancel()


async def test_lists_that_nobody_reads_are_bounded_and_others_are_told_when_to_try_again(
    autojump_clock: MockClock,
) -> None:
    budget = AnswerBudget(8 * MB)
    async with site(budget) as served:
        for number in range(5):
            assert (await served.ask(f"10.0.0.{number}", reads=False))[0] == 200
        assert 4 * MB < budget.taken < 5 * MB
        status, headers = await served.ask("10.0.1.1")
        assert (status, headers["retry-after"]) == (503, "5")
    assert budget.taken == 0, "the clients have gone"
    async with site(budget) as served:
        assert (await served.ask("10.0.1.1"))[0] == 200
        assert budget.taken == 0


async def test_an_answer_that_fails_takes_no_memory(autojump_clock: MockClock) -> None:
    budget = AnswerBudget(8 * MB)
    async with site(budget) as served:
        for _ in range(3):
            assert (await served.ask("a", path="non-persistent/public/default"))[0] == 500
            assert budget.taken == 0
        assert not budget._learning
