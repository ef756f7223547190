"""Read-ahead: it fills the link, and stops when the client is closed."""

import pytest
import trio
from trio.abc import Clock

from daybook.clients.ledgers.entries import ClientScope, EntryStream, copied
from daybook.clients.ledgers.errors import LedgerClosedError
from daybook.clients.ledgers.limits import Limits
from daybook.wire.entry import Entry

LIMITS = Limits()
_ENTRY_BYTES = 8 << 10
_PART = LIMITS.read_bytes // _ENTRY_BYTES


class Link:
    """A ledger behind a link that carries one response after the other."""

    def __init__(self, mb_per_s: float) -> None:
        self.took_s: list[float] = []
        self.most = 0
        self._part_s = LIMITS.read_bytes / (mb_per_s * 1e6)
        self._free = trio.Lock()
        self._under_way = 0

    def reach(self, first: int, last: int, *, max_bytes: int) -> int:
        return min(first + _PART - 1, last)

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[Entry]:
        started_s = trio.current_time()
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        async with self._free:
            await trio.sleep(self._part_s)
        self._under_way -= 1
        self.took_s.append(trio.current_time() - started_s)
        payload = memoryview(bytes(_ENTRY_BYTES))
        return [Entry(0, n, n - 1, n * _ENTRY_BYTES, payload) for n in range(first, last + 1)]


@pytest.mark.parametrize("mb_per_s", [1.2, 2.5, 4, 5, 7, 10, 20, 700])
async def test_nothing_waits_so_long_behind_others_that_it_seems_slow(
    mb_per_s: float, autojump_clock: Clock
) -> None:
    link = Link(mb_per_s)
    async with trio.open_nursery() as nursery:
        stream = EntryStream(ClientScope(nursery), link, 0, 100 * _PART - 1, LIMITS, copied)
        assert [entry.entry_id async for entry in stream] == list(range(100 * _PART))
    assert max(link.took_s) < LIMITS.ledger.slow_read_s
    assert link.most == LIMITS.read_ahead or mb_per_s < 20


async def test_a_stream_of_a_client_that_was_closed_says_so_each_time(
    autojump_clock: Clock,
) -> None:
    async with trio.open_nursery() as nursery:
        scope = ClientScope(nursery)
        stream = EntryStream(scope, Link(700), 0, 100 * _PART - 1, LIMITS, copied)
        await stream.next_batch()
        await trio.sleep(1)
        scope.end()
        for _ in range(2):
            with pytest.raises(LedgerClosedError):
                await stream.next_batch()
