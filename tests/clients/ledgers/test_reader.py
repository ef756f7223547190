"""Reading: ranges, read-ahead and its bound; ledgers that are tailed while they grow."""

from collections.abc import AsyncGenerator
from functools import partial
from typing import TypeAlias

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.registry.paths import LedgerPaths
from daybook.clients import ledgers
from daybook.clients.ledgers import Client, Limits, Reader, Writer
from daybook.wire.digest import master_key
from daybook.wire.messages.bookie import LAST_ENTRY
from daybook.wire.messages.bookie_v3 import encode_read
from daybook.wire.metadata.store import Record, Watch
from tests.clients.ledgers.world import ROOT, World, open_world

SMALL = Limits(read_bytes=1000, read_ahead=2)  # ten entries at a time


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    async with open_world() as world:
        yield world


async def written(client: Client, count: int) -> int:
    async with await client.create() as writer:
        await append(writer, range(count))
    return writer.ledger_id


async def append(writer: Writer, numbers: range) -> None:
    for number in numbers:
        await writer.append_soon(b"%100d" % number)


def expected(numbers: range) -> list[tuple[int, bytes]]:
    return [(number, b"%100d" % number) for number in numbers]


Source: TypeAlias = ledgers.EntryStream[ledgers.Entry] | ledgers.Tail


async def told(source: Source) -> list[tuple[int, bytes]]:
    return [(entry.entry_id, entry.data) async for entry in source]


class Following:
    """A task that tails a ledger, and its entries with their times."""

    def __init__(self, reader: Reader, first: int = 0) -> None:
        self.tail = reader.tail(first)
        self.seen: list[int] = []
        self.last_s = 0.0
        self.ended = False
        self.failure: ledgers.LedgerError | None = None

    async def run(self) -> None:
        try:
            async for entry in self.tail:
                assert entry.data == b"%100d" % entry.entry_id
                self.seen.append(entry.entry_id)
                self.last_s = trio.current_time()
            self.ended = True
        except ledgers.LedgerError as error:
            self.failure = error


@pytest.mark.parametrize("first", [0, 1, 55, 99])
@pytest.mark.parametrize("last", [None, 99, 98, 60])
async def test_a_range_is_given_whole_and_in_order(
    world: World, first: int, last: int | None, autojump_clock: Clock
) -> None:
    async with world.client(SMALL) as client:
        reader = await client.open(await written(client, 100), recover=False)
        if last is not None and last < first:
            with pytest.raises(ValueError, match="not a range"):
                reader.read(first, last)
            return
        end = 100 if last is None else last + 1
        assert await told(reader.read(first, last)) == expected(range(first, end))


async def test_views_have_the_same_bytes_and_keep_them_while_more_is_read(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client(SMALL) as client:
        ledger_id = await written(client, 100)
        reader = await client.open(ledger_id, recover=False)
        views = [entry async for entry in reader.read_views(10, 89)]
        for _ in range(5):  # This would overwrite the memory of the views, if nobody kept it.
            assert await told(reader.read()) == expected(range(100))
        assert all(isinstance(each.data, memoryview) for each in views)
        assert [(each.entry_id, bytes(each.data)) for each in views] == expected(range(10, 90))
        with pytest.raises(ledgers.NoSuchEntryError, match="the last one is 99"):
            reader.read_views(50, 100)


async def test_what_is_not_confirmed_is_not_there(world: World, autojump_clock: Clock) -> None:
    async with world.client() as client:
        empty = await client.open(await written(client, 0), recover=False)
        assert (empty.last_add_confirmed, await told(empty.read())) == (-1, [])
        reader = await client.open(await written(client, 3), recover=False)
        assert await told(reader.read(3)) == []
        for first, last in ((4, None), (0, 3), (3, 3)):
            with pytest.raises(ledgers.NoSuchEntryError, match="the last one is 2"):
                reader.read(first, last)
        with pytest.raises(ValueError, match="not a range"):
            reader.read(-1)
        with pytest.raises(ValueError, match="an entry id must be"):
            reader.tail(-1)


async def test_reading_ahead_is_bounded(world: World, autojump_clock: Clock) -> None:
    async with world.client(SMALL) as client:
        reader = await client.open(await written(client, 200), recover=False)
        asked: list[int] = []
        read = reader._reader.read

        async def counted(first: int, last: int, *, max_bytes: int) -> object:
            asked.append(first)
            return await read(first, last, max_bytes=max_bytes)

        reader._reader.read = counted  # type: ignore[method-assign, assignment]
        stream = reader.read()
        entries = [await anext(stream)]
        await trio.sleep(10)
        assert len(asked) == 3  # the one that is being returned, and two that wait
        entries += [entry async for entry in stream]
        assert [entry.entry_id for entry in entries] == list(range(200))
        assert len(asked) > 15


async def test_what_all_streams_read_at_once_is_bounded(
    world: World, autojump_clock: Clock
) -> None:
    limits = Limits(read_bytes=1000, read_ahead=6, reads_max=3)
    async with world.client(limits) as client:
        ledger_id = await written(client, 200)
        reader = await client.open(ledger_id, recover=False)
        under_way: set[object] = set()
        most = 0
        read = reader._reader.read

        async def counted(first: int, last: int, *, max_bytes: int) -> object:
            nonlocal most
            under_way.add(one := object())
            most = max(most, len(under_way))
            try:
                return await read(first, last, max_bytes=max_bytes)
            finally:
                under_way.remove(one)

        reader._reader.read = counted  # type: ignore[method-assign, assignment]
        assert await told(reader.read()) == expected(range(200))
        assert most == 3

        most = 0
        seen: list[list[tuple[int, bytes]]] = []

        async def all_of_it() -> None:
            seen.append(await told(reader.read()))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(all_of_it)
        assert seen == [expected(range(200))] * 5
        assert 5 <= most <= 7  # one of each, though three are too many; some had more before


async def test_entries_larger_than_most_are_neither_left_out_nor_all_read_at_once(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client(SMALL) as client:
        async with await client.create() as writer:
            for size in [10] * 100 + [600] * 50 + [10] * 50:
                await writer.append_soon(bytes(size))
        stream = (await client.open(writer.ledger_id, recover=False)).read()
        batches: list[list[ledgers.Entry]] = []
        while batch := await stream.next_batch():
            batches.append(batch)
        ids = [entry.entry_id for batch in batches for entry in batch]
        assert ids == list(range(200))
        sizes = [sum(len(entry.data) for entry in batch) for batch in batches]
        assert max(sizes) <= SMALL.read_bytes


async def test_a_cancelled_read_loses_nothing(world: World, autojump_clock: Clock) -> None:
    async with world.client(SMALL) as client:
        reader = await client.open(await written(client, 100), recover=False)
        stream = reader.read()
        seen: list[int] = []
        while True:
            with trio.move_on_after(0.001):
                entry = await anext(stream, None)
                if entry is None:
                    break
                seen.append(entry.entry_id)
        assert seen == list(range(100))


@pytest.mark.parametrize("how", ["read", "tail"])
async def test_a_second_task_is_told_and_takes_nothing_from_the_first(
    world: World, how: str, autojump_clock: Clock
) -> None:
    seen: list[tuple[int, bytes]] = []
    refused: list[trio.BusyResourceError] = []

    async def follow(source: Source) -> None:
        try:
            seen.extend(await told(source))
        except trio.BusyResourceError as error:
            refused.append(error)

    async with world.client(SMALL) as client:
        reader = await client.open(await written(client, 100), recover=False)
        source = reader.read() if how == "read" else reader.tail()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, source)
            nursery.start_soon(follow, source)
    assert (seen, len(refused)) == (expected(range(100)), 1)


async def test_an_entry_that_cannot_be_had_raises_behind_those_before_it(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client(SMALL) as client:
        reader = await client.open(await written(client, 100), recover=False)
        stream = reader.read()
        seen = [(await anext(stream)).entry_id]
        for name in world.platters:
            world.stop(name)

        async def read_on() -> None:
            async for entry in stream:
                seen.append(entry.entry_id)

        with pytest.raises(ledgers.ReadUnknownError) as caught:
            await read_on()
        assert seen == list(range(len(seen)))
        assert caught.value.remedy is ledgers.Remedy.RETRY
        for name in world.platters:
            await world.start(name)
        rest = await told(reader.read(len(seen)))
        assert rest == expected(range(len(seen), 100))


# -- tailing


async def test_each_entry_is_seen_soon_after_it_is_confirmed(
    world: World, autojump_clock: Clock
) -> None:
    async with (
        world.client() as client,
        world.client(name="other") as other,
        trio.open_nursery() as nursery,
    ):
        writer = await client.create()
        following = Following(await other.open(writer.ledger_id, recover=False))
        nursery.start_soon(following.run)
        await trio.sleep(5)
        for number in range(5):
            await trio.sleep(3)
            await writer.append(b"%100d" % number)
            confirmed_s = trio.current_time()
            await trio.sleep(2)
            assert following.seen == list(range(number + 1))
            assert following.last_s - confirmed_s < (1.2 if number == 0 else 0.1)
        await append(writer, range(5, 500))
        await writer.close()
        await trio.sleep(1)
        assert following.seen == list(range(500))
        assert following.ended


async def test_following_a_ledger_that_waits_asks_little(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client() as client, trio.open_nursery() as nursery:
        writer = await client.create()
        await writer.append(b"%100d" % 0)
        await trio.sleep(1)
        reader = await client.open(writer.ledger_id, recover=False)
        nursery.start_soon(Following(reader, 1).run)
        await trio.sleep(1)
        exchange = client._client._context.requests
        before = exchange._request_id
        await trio.sleep(100)
        assert exchange._request_id - before <= 3 * 2 * 11  # polls of ten seconds, and checks
        nursery.cancel_scope.cancel()


async def test_following_goes_over_an_ensemble_change_and_ends_with_recovery(
    world: World, autojump_clock: Clock
) -> None:
    await world.start("b4")
    async with (
        world.client() as client,
        world.client(name="other") as other,
        trio.open_nursery() as nursery,
    ):
        writer = await client.create()
        following = Following(await other.open(writer.ledger_id, recover=False))
        nursery.start_soon(following.run)
        await append(writer, range(10))
        await writer.flush()
        world.stop(writer.metadata.last_fragment.ensemble[0].partition(":")[0])
        await append(writer, range(10, 20))
        await writer.flush()
        assert len(writer.metadata.fragments) == 2
        await trio.sleep(2)
        assert following.seen == list(range(20))
        assert not following.ended
        await other.open(writer.ledger_id, recover=True)
        await trio.sleep(1)
        assert following.ended
        assert following.seen == list(range(20))


async def test_following_a_striped_ledger_misses_nothing(
    world: World, autojump_clock: Clock
) -> None:
    for name in ("b4", "b5"):
        await world.start(name)
    async with world.client() as client, trio.open_nursery() as nursery:
        writer = await client.create(ensemble=5, write_quorum=2, ack_quorum=2)
        following = Following(await client.open(writer.ledger_id, recover=False))
        nursery.start_soon(following.run)
        for number in range(12):
            await writer.append(b"%100d" % number)
            await trio.sleep(2)
            assert following.seen == list(range(number + 1))
        nursery.cancel_scope.cancel()


async def test_following_survives_bookies_and_metadata_that_are_away(
    world: World, autojump_clock: Clock
) -> None:
    async with (
        world.client() as client,
        world.client(name="other") as other,
        trio.open_nursery() as nursery,
    ):
        writer = await client.create()
        await append(writer, range(5))
        await writer.flush()
        await trio.sleep(1)
        following = Following(await other.open(writer.ledger_id, recover=False))
        nursery.start_soon(following.run)
        await trio.sleep(1)
        for name in world.platters:
            world.stop(name)
        await trio.sleep(60)
        for name in world.platters:
            await world.start(name)
        await append(writer, range(5, 10))
        await writer.flush()
        await trio.sleep(12)
        assert following.seen == list(range(10))
        world.metadata.suspend()
        await append(writer, range(10, 15))
        await writer.flush()
        await trio.sleep(12)
        assert following.seen == list(range(15))
        world.metadata.resume()
        await writer.close()
        await trio.sleep(2)
        assert following.ended


async def test_a_closed_ledger_stays_closed_when_a_server_of_the_store_lags(
    world: World, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    async with world.client() as client:
        session = world.sessions["client"]
        async with await client.create() as writer:
            path = LedgerPaths(ROOT).ledger(writer.ledger_id)
            get, before = session.get, await session.get(path)
            await append(writer, range(10))
        reader = await client.open(writer.ledger_id, recover=False)

        async def lagging(asked: str, watch: Watch | None = None) -> Record | None:
            return before if asked == path else await get(asked, watch)

        monkeypatch.setattr(session, "get", lagging)
        assert await reader.read_last_add_confirmed() == 9
        assert (reader.closed, reader.length) == (True, 1000)
        assert await told(reader.tail(8)) == expected(range(8, 10))


async def test_following_a_ledger_that_is_deleted_says_so(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client() as client, trio.open_nursery() as nursery:
        writer = await client.create()
        await append(writer, range(3))
        await writer.flush()
        await trio.sleep(1)
        following = Following(await client.open(writer.ledger_id, recover=False))
        nursery.start_soon(following.run)
        await trio.sleep(1)
        await client.delete(writer.ledger_id)
        await trio.sleep(2)
        assert following.seen == [0, 1, 2]
        assert isinstance(following.failure, ledgers.NoSuchLedgerError)


async def test_a_tail_says_where_to_go_on(world: World, autojump_clock: Clock) -> None:
    async with world.client(SMALL) as client:
        reader = await client.open(await written(client, 100), recover=False)
        tail = reader.tail(5)
        assert tail.next_entry == 5
        assert (await anext(tail)).entry_id == 5
        assert tail.next_entry == 6
        batch = await tail.next_batch()
        assert batch[0].entry_id == 6
        assert tail.next_entry == batch[-1].entry_id + 1
        assert await told(reader.tail(tail.next_entry)) == expected(range(tail.next_entry, 100))


async def test_a_ledger_that_a_recovery_has_left_half_done_is_waited_for_gently(
    world: World, autojump_clock: Clock
) -> None:
    """Fenced bookies answer a long poll at once: repeating it at once would be a storm."""
    async with world.client() as client, trio.open_nursery() as nursery:
        writer = await client.create()
        await append(writer, range(3))
        await writer.flush()
        await trio.sleep(1)
        following = Following(await client.open(writer.ledger_id, recover=False))
        nursery.start_soon(following.run)
        exchange = client._client._context.requests
        for bookie in writer.metadata.last_fragment.ensemble:
            fence = partial(
                encode_read,
                ledger_id=writer.ledger_id,
                entry_id=LAST_ENTRY,
                fence_key=master_key(b""),
            )
            assert (await exchange.ask(bookie, fence, 5)).status == 0
        await trio.sleep(1)
        before = exchange._request_id
        await trio.sleep(20)
        assert 20 < exchange._request_id - before < 20 * 6 * 2
        assert not following.ended
        await client.open(writer.ledger_id, recover=True)
        await trio.sleep(2)
        assert following.ended
        assert following.seen == [0, 1, 2]
