"""Writers on trio: which entries are sent to which bookies, confirmed, and readable."""

from dataclasses import replace

import pytest
from trio.abc import Clock

from daybook.bookie.errors import (
    EntryTooLargeError,
    NoSuchEntryError,
)
from daybook.bookie.ledger.client import Quorums
from daybook.wire.messages.bookie import Add, Flag
from tests.bookie.ledger.cluster import Cluster
from tests.bookie.ledger.writing import QUORUMS, append, contents, expected


async def test_entries_are_confirmed_read_and_kept(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS, custom={"application": b"test"})
    await append(writer, 10)
    assert writer.last_add_confirmed == writer.last_add_pushed == 9
    assert writer.length == sum(map(len, expected(10)))
    assert (writer.pending_bytes, writer.pending_entries) == (0, 0)
    assert await contents(writer) == expected(10)
    await writer.close()
    metadata = await client.metadata(writer.ledger_id)
    assert replace(metadata, created_ms=None) == writer.metadata
    assert (metadata.last_entry_id, metadata.length) == (9, writer.length)
    assert metadata.custom == {"application": b"test"}
    for bookie in three.bookies:
        assert bookie.holds(writer.ledger_id) == list(range(10))


async def test_the_listener_hears_of_runs_in_order(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS)
    runs: list[tuple[int, int]] = []
    writer.set_listener(lambda first, last: runs.append((first, last)), lambda error: None)
    for _ in range(50):
        writer.append([b"x", memoryview(b"yz")])
    assert writer.pending_bytes == 150
    await writer.wait_confirmed(49)
    assert [e for first, last in runs for e in range(first, last + 1)] == list(range(50))


async def test_entries_appended_by_the_listener_come_behind(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create(QUORUMS)

    def confirmed(first: int, last: int) -> None:
        if last < 5:
            writer.append([b"more"])

    writer.set_listener(confirmed, lambda error: None)
    writer.append([b"first"])
    await writer.wait_confirmed(5)


async def test_a_large_entry_is_sent_to_all(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS)
    payload = bytes(range(256)) * 12_000
    await writer.wait_confirmed(writer.append([payload]))
    assert await contents(writer) == [payload]


async def test_an_entry_that_no_bookie_takes_is_refused(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create(QUORUMS)
    with pytest.raises(EntryTooLargeError):
        writer.append([bytes(5 << 20)])
    assert writer.append([bytes((5 << 20) - 600)]) == 0
    await writer.wait_confirmed(0)


async def test_striping_sends_each_entry_to_its_write_set(
    four: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await four.client()).create(Quorums(4, 2, 2))
    await append(writer, 8)
    for position, bookie in enumerate(four.of(writer.metadata.last_fragment.ensemble)):
        held = [e for e in range(8) if (position - e) % 4 < 2]
        assert bookie.holds(writer.ledger_id) == held
    assert await contents(writer) == expected(8)


async def test_every_add_carries_the_key_and_the_lac(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS, password=b"secret")
    await append(writer)
    await append(writer)
    adds = [r for r in three.bookies[0].requests if isinstance(r, Add)]
    assert {add.master_key.hex() for add in adds} == {"e793cbc379107648537183605cd361d3bb789a39"}
    assert [int.from_bytes(add.entry[16:24], "big", signed=True) for add in adds] == [-1, 0]
    assert not any(add.flags & Flag.RECOVERY_ADD for add in adds)


async def test_only_what_is_confirmed_can_be_read(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS)
    with pytest.raises(NoSuchEntryError):
        await writer.read(0, 0, max_bytes=100)
    await append(writer, 20)
    assert len(await writer.read(5, 100, max_bytes=1 << 20)) == 15
    assert len(await writer.read(5, 100, max_bytes=1)) == 1
    assert 2 <= len(await writer.read(5, 100, max_bytes=40)) <= 6
