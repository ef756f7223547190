"""The body of a request to the REST of a broker: its size and its time are bounded."""

from collections.abc import Iterable, MutableMapping
from typing import Any, NoReturn, cast

import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from trio.testing import MockClock

from daybook.broker.admin.body_budget import BodyBudget
from daybook.broker.admin.handling import BadBodyError, BodyTooLargeError, Call, Endpoints
from daybook.broker.admin.sink_operations import SinkOperations
from daybook.broker.admin.sinks import _append
from daybook.broker.errors import NoRoomError, NotFoundError
from daybook.wire.logging import silent_log

MAX = 4 << 20


def call(
    pieces: Iterable[bytes],
    each_s: float,
    bodies: BodyBudget | None = None,
    client: str = "10.0.0.1",
) -> Call[None]:
    """Return a call whose body comes in pieces, one after so many seconds."""
    left = iter(pieces)

    async def receive() -> MutableMapping[str, Any]:
        await trio.sleep(each_s)
        piece = next(left, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    request = Request({"type": "http", "client": (client, 1)}, receive)
    return Call(request, None, MAX, bodies or BodyBudget())


@pytest.mark.parametrize(
    ("pieces", "each_s"),
    [([], 9.0), ([b"a", b"b"], 3.0), ([bytes(256 << 10)] * 16, 2.0), ([bytes(MAX)], 4.9)],
)
async def test_a_body_that_comes_at_128_kib_a_second_is_read(
    pieces: list[bytes], each_s: float, autojump_clock: MockClock
) -> None:
    assert await call(pieces, each_s).content() == b"".join(pieces)


@pytest.mark.parametrize(
    ("pieces", "each_s"),
    [([], 11.0), ([b"a"] * 100, 1.0), ([bytes(64 << 10)] * 64, 1.0)],
)
async def test_a_body_that_drips_is_refused(
    pieces: list[bytes], each_s: float, autojump_clock: MockClock
) -> None:
    with pytest.raises(BadBodyError, match="did not arrive within 10 s, and a second more"):
        await call(pieces, each_s).content()


async def test_a_body_that_is_too_large_is_refused_before_its_end(
    autojump_clock: MockClock,
) -> None:
    endless = (bytes(1 << 20) for _ in range(1 << 20))
    with pytest.raises(BodyTooLargeError, match="may have at most 4194304 bytes"):
        await call(endless, 0.0).content()


async def test_all_bodies_share_a_memory_of_which_a_client_has_half(
    autojump_clock: MockClock,
) -> None:
    bodies = BodyBudget(8 << 20)
    body = [bytes(1 << 20)] * 4

    def client(address: str) -> Call[None]:
        return call(body, 0.0, bodies, address)

    first, second = client("10.0.0.1"), client("10.0.0.2")
    await first.content()
    with pytest.raises(NoRoomError, match="the memory for them is used up: try again"):
        await client("10.0.0.1").content()
    await second.content()
    assert bodies.taken == 8 << 20
    with pytest.raises(NoRoomError):
        await client("10.0.0.3").content()
    # Short bodies are always read.
    assert len(await call([bytes(1 << 16)], 0.0, bodies).content()) == 1 << 16
    first.release()
    first.release()
    assert bodies.taken == 4 << 20
    await client("10.0.0.1").content()


async def test_a_body_that_is_refused_gives_its_memory_back(autojump_clock: MockClock) -> None:
    bodies = BodyBudget(8 << 20)
    drips = call([bytes(1 << 20), *[b"a"] * 100], 1.0, bodies)
    with pytest.raises(BadBodyError):
        await drips.content()
    assert bodies.taken > 1 << 20
    drips.release()
    assert bodies.taken == 0


async def test_a_request_gives_the_memory_of_its_body_back_with_its_answer() -> None:
    bodies, taken = BodyBudget(8 << 20), list[int]()

    async def handle(call: Call[None]) -> None:
        await call.content()
        taken.append(bodies.taken)

    endpoints = Endpoints[None](None, MAX, silent_log(), bodies=bodies)
    path = "/admin/v2/daybook/sinks/{sink}/attempts/{attempt}"
    app = Starlette(routes=[endpoints.route(path, {"PUT": handle})])
    body = iter([{"type": "http.request", "body": bytes(1 << 20), "more_body": False}])
    sent = list[MutableMapping[str, Any]]()

    async def receive() -> MutableMapping[str, Any]:
        return next(body)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "PUT",
        "path": "/admin/v2/daybook/sinks/s/attempts/a",
        "query_string": b"",
        "headers": [],
        "client": ("10.0.0.1", 1),
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 204
    assert (taken, bodies.taken) == ([1 << 20], 0)


async def test_rows_for_an_attempt_that_does_not_exist_are_not_read() -> None:
    class Operations:
        def targets_of_attempt(self, sink: str, attempt: str) -> NoReturn:
            raise NotFoundError(f"no attempt {attempt} of {sink}")

    async def receive() -> NoReturn:
        raise AssertionError("nothing is read")

    scope = {
        "type": "http",
        "query_string": b"first=0&topic=t",
        "path_params": {"sink": "s", "attempt": "a"},
    }
    parts = cast("SinkOperations", Operations())
    with pytest.raises(NotFoundError):
        await _append(Call(Request(scope, receive), parts, MAX, BodyBudget()))
