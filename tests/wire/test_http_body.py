"""The body of a request between its connection and its application: `wire.http_body`."""

from typing import Any

import pytest
import trio
import trio.testing

from daybook.wire.http_body import PIECES_MAX, RequestBody


def piece(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


END = piece(b"", more=False)
GONE = {"type": "http.disconnect"}


async def blocked() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def put_all(body: RequestBody, count: int, done: list[int]) -> None:
    for number in range(count):
        await body.put(piece(b"%d" % number))
        done.append(number)


async def test_pieces_that_wait_come_as_one() -> None:
    body = RequestBody()
    for data in (b"a", b"b", b"c"):
        await body.put(piece(data))
    await body.put(END)
    assert await body.receive() == piece(b"abc", more=False)


async def test_the_end_comes_once_and_then_the_end_of_the_connection() -> None:
    body = RequestBody()
    await body.put(END)
    assert await body.receive() == END
    async with trio.open_nursery() as nursery:
        nursery.start_soon(body.receive)  # It waits for its answer to be sent, or its client to go.
        await blocked()
        assert body.is_awaited
        nursery.cancel_scope.cancel()
    await body.put(GONE)
    assert [await body.receive() for _ in range(2)] == [GONE, GONE]


async def test_what_came_before_the_end_of_a_connection_is_received() -> None:
    body = RequestBody()
    await body.put(piece(b"a"))
    await body.put(GONE)
    assert [await body.receive() for _ in range(2)] == [piece(b"a"), GONE]


async def test_an_application_that_does_not_read_holds_few_pieces() -> None:
    body, done = RequestBody(), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put_all, body, 3 * PIECES_MAX, done)
        await blocked()
        assert len(done) == PIECES_MAX - 1
        first = await body.receive()
        assert first["body"] == b"".join(b"%d" % number for number in range(PIECES_MAX))
        await blocked()
        assert len(done) == 2 * PIECES_MAX - 1
        await body.put(GONE)


async def test_a_piece_goes_to_an_application_that_waits_before_another_one_is_read() -> None:
    body, received = RequestBody(), list[bytes]()

    async def read() -> None:
        while (message := await body.receive())["more_body"]:
            received.append(message["body"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for data in (b"a", b"b", b"c"):
            await blocked()
            assert body.is_awaited
            await body.put(piece(data))
            assert received[-1:] == [data]
        await body.put(END)
    assert received == [b"a", b"b", b"c"]
    assert not body.is_awaited


@pytest.mark.parametrize("pieces", [PIECES_MAX - 1, PIECES_MAX])
async def test_the_end_of_a_connection_never_waits(pieces: int) -> None:
    body, done = RequestBody(), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put_all, body, pieces, done)
        await blocked()
        await body.put(GONE)
        await blocked()
        assert len(done) == pieces
        nursery.cancel_scope.cancel()


async def test_an_application_that_gives_up_waiting_holds_up_nobody() -> None:
    body = RequestBody()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(body.receive)
        await blocked()
        nursery.start_soon(body.put, piece(b"a"))
        nursery.cancel_scope.cancel()
    assert not body.is_awaited
    await body.put(piece(b"b"))
    assert (await body.receive())["body"].endswith(b"b")
