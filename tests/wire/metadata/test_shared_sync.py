"""Reads that are asked for together share a sync that was sent after all of them."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from daybook.wire.metadata.memory import DirectLink, MemorySession, MemoryStore, Request
from daybook.wire.metadata.shared_sync import SharedSyncs
from daybook.wire.metadata.store import NoRecordError, StoreUnavailableError
from tests.harness.clocks import VirtualClock


class Server:
    """Answers syncs and reads.  A read shows what was written before the last sync was sent."""

    def __init__(self) -> None:
        self.written = 0
        self.synced = 0
        self.syncs = 0
        self.session_id = 1
        self.error: Exception | None = None
        self.shared = SharedSyncs(lambda: self.session_id)

    async def read_newest(self) -> int:
        return await self.shared.read(self._sync_and_read, self._read)

    async def _sync_and_read(self) -> int:
        self.syncs += 1
        seen, error = self.written, self.error
        await trio.sleep(1)
        if error is not None:
            raise error
        self.synced = max(self.synced, seen)
        return await self._read()

    async def _read(self) -> int:
        await trio.sleep(0.1)
        return self.synced


async def at(when_s: float, act: Callable[[], Awaitable[object]]) -> None:
    await trio.sleep(when_s)
    await act()


async def test_a_read_that_comes_alone_has_a_sync_of_its_own(autojump_clock: MockClock) -> None:
    server = Server()
    for number in range(3):
        server.written = number
        assert await server.read_newest() == number
    assert server.syncs == 3


async def test_a_hundred_reads_share_two_syncs(autojump_clock: MockClock) -> None:
    server = Server()
    server.written = 7
    found: list[int] = []

    async def read() -> None:
        found.append(await server.read_newest())

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(read)
    assert found == [7] * 100
    assert server.syncs == 2


async def test_a_read_does_not_share_a_sync_that_was_sent_before_it(
    autojump_clock: MockClock,
) -> None:
    """The read would not find what was written between that sync and itself."""
    server = Server()
    found: list[int] = []

    async def write_and_read() -> None:
        server.written = 1
        found.append(await server.read_newest())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.read_newest)
        nursery.start_soon(at, 0.5, write_and_read)
        nursery.start_soon(at, 0.6, write_and_read)
    assert found == [1, 1]
    assert server.syncs == 2


async def test_a_failed_sync_fails_all_that_share_it(autojump_clock: MockClock) -> None:
    """Without that, each of them would wait for a time-out of its own, one after the other."""
    server = Server()
    failed: list[float] = []

    async def read() -> None:
        try:
            await server.read_newest()
        except StoreUnavailableError:
            failed.append(trio.current_time())

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.read_newest)
        await trio.testing.wait_all_tasks_blocked()
        server.error = StoreUnavailableError("no answer")
        for _ in range(10):
            nursery.start_soon(read)
    assert len(failed) == 10
    assert max(failed) - begin < 3
    server.error = None
    assert await server.read_newest() == 0


async def test_a_caller_that_gives_up_takes_no_other_with_it(autojump_clock: MockClock) -> None:
    server = Server()
    server.written = 3
    found: list[int] = []

    async def read() -> None:
        found.append(await server.read_newest())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)  # the first sync
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1.5):  # leads the second one, and ends in its middle
            nursery.start_soon(at, 0.1, read)
            await server.read_newest()
    assert found == [3, 3]


async def test_a_missing_record_does_not_spoil_the_sync(autojump_clock: MockClock) -> None:
    server = Server()
    server.error = NoRecordError("/a")
    found: list[int] = []

    async def read() -> None:
        found.append(await server.read_newest())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(at, 0.5, read)
        nursery.start_soon(at, 0.5, read)
        with pytest.raises(NoRecordError):
            await server.read_newest()
        server.error = None
    assert found == [0, 0]


async def test_a_sync_of_a_lost_session_serves_nobody(autojump_clock: MockClock) -> None:
    server = Server()
    failed: list[bool] = []

    async def read() -> None:
        try:
            await server.read_newest()
        except StoreUnavailableError:
            failed.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.read_newest)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(read)
        nursery.start_soon(read)
        await trio.sleep(2.25)  # The second sync is answered, and a read behind it is under way.
        server.session_id = 2
    assert failed == [True]


class _CountingLink(DirectLink):
    def __init__(self) -> None:
        super().__init__()
        self.delay_s = 0.01
        self.requests: list[str] = []

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        self.requests.append(request.operation)
        await super().request(request, execute)


async def test_the_store_in_memory_shares_syncs(autojump_clock: MockClock) -> None:
    link = _CountingLink()
    store: MemorySession = MemoryStore(VirtualClock()).session(link=link)
    await store.create("/a", b"x")
    link.requests.clear()

    async def read() -> None:
        record = await store.get_newest("/a")
        assert record is not None
        assert await store.get_newest_children("/a") == []

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(read)
    assert link.requests.count("sync") <= 5
    assert link.requests.count("get") == link.requests.count("get_children") == 50
