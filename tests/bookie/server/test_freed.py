"""A connection of a bookie that has ended is freed at once, not by the garbage collector."""

import gc

import pytest
import trio
import trio.testing

from tests.bookie.server.conftest import Start
from tests.bookie.server.peer import add_frame


@pytest.mark.parametrize("sent", [b"", add_frame(7, 0), b"\0\0\0\5abcde", b"\0\0\0\5a"])
async def test_a_client_that_has_gone_is_freed_at_once(start: Start, sent: bytes) -> None:
    async with start() as running:

        async def come_and_go() -> None:
            stream = await trio.open_tcp_stream("127.0.0.1", running.port)
            async with stream:
                if sent:
                    await stream.send_all(sent)
                await trio.testing.wait_all_tasks_blocked(0.02)
            while running.server.statistics().connections:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked(0.02)

        with trio.fail_after(60):
            await come_and_go()
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                await come_and_go()
                gc.collect()
                names = [
                    f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage
                ]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
    assert not [name for name in names if name.startswith("daybook.")]
