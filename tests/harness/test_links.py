"""Links have the weather that they are told to have, and lose nothing within a connection."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.harness.links import FINE, NEVER, Link, Weather, open_links

_HOST = "127.0.0.1"
_QUIET_S = 0.1  # in which nothing may come


@asynccontextmanager
async def echo() -> AsyncGenerator[Link]:
    """A link that leads to somebody who says everything again."""

    async def say_again(stream: trio.SocketStream) -> None:
        try:
            async for chunk in stream:
                await stream.send_all(chunk)
        except trio.BrokenResourceError:
            await stream.aclose()

    async with trio.open_nursery() as nursery:
        (server,) = await trio.open_tcp_listeners(0, host=_HOST)
        nursery.start_soon(trio.serve_listeners, say_again, [server])
        (other,) = await trio.open_tcp_listeners(0, host="127.0.0.2")
        port = other.socket.getsockname()[1]
        await other.aclose()
        link = Link("echo", ("127.0.0.2", port), (_HOST, server.socket.getsockname()[1]))
        async with open_links([link]):
            yield link
        nursery.cancel_scope.cancel()


async def is_silent(stream: trio.SocketStream) -> bool:
    with trio.move_on_after(_QUIET_S):
        return not await stream.receive_some()
    return True


@pytest.mark.parametrize("weather", [Weather(there_s=NEVER), Weather(back_s=NEVER)])
async def test_what_does_not_pass_arrives_when_the_weather_is_fine_again(weather: Weather) -> None:
    async with echo() as link, await trio.open_tcp_stream(*link.listens) as stream:
        await stream.send_all(b"one")
        assert await stream.receive_some() == b"one"
        link.weather = weather
        await stream.send_all(b"two")
        assert await is_silent(stream)
        link.weather = FINE
        assert await stream.receive_some() == b"two"


async def test_a_slow_link_delays_both_ways() -> None:
    async with echo() as link, await trio.open_tcp_stream(*link.listens) as stream:
        link.weather = Weather(there_s=0.05, back_s=0.05)
        began_s = trio.current_time()
        await stream.send_all(b"one")
        assert await stream.receive_some() == b"one"
        assert trio.current_time() - began_s >= 0.1


async def test_a_cut_resets_what_is_open_and_new_connections_go_through() -> None:
    async with echo() as link, await trio.open_tcp_stream(*link.listens) as stream:
        await stream.send_all(b"one")
        assert await stream.receive_some() == b"one"
        link.cut()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        await trio.testing.wait_all_tasks_blocked()
        assert link.connections == 0
        async with await trio.open_tcp_stream(*link.listens) as again:
            await again.send_all(b"two")
            assert await again.receive_some() == b"two"


async def test_a_link_that_refuses_resets_new_connections_and_leaves_the_others() -> None:
    async with echo() as link, await trio.open_tcp_stream(*link.listens) as stream:
        await stream.send_all(b"one")
        assert await stream.receive_some() == b"one"
        link.weather = Weather(refuse=True)
        async with await trio.open_tcp_stream(*link.listens) as refused:
            with pytest.raises(trio.BrokenResourceError):
                await refused.receive_some()
        await stream.send_all(b"two")
        assert await stream.receive_some() == b"two"


async def test_where_nobody_listens_a_connection_is_reset() -> None:
    async with echo() as link:
        link.leads_to = (_HOST, 1)
        async with await trio.open_tcp_stream(*link.listens) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()


@pytest.mark.parametrize("there", [True, False])
async def test_a_lost_request_or_answer_cuts_the_connection(there: bool) -> None:
    async with echo() as link, await trio.open_tcp_stream(*link.listens) as stream:
        await stream.send_all(b"one")
        assert await stream.receive_some() == b"one"
        link.lose_next(there=there)
        await stream.send_all(b"two")
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        async with await trio.open_tcp_stream(*link.listens) as again:
            await again.send_all(b"three")
            assert await again.receive_some() == b"three"
