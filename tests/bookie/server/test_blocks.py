"""Blocks of adds, over TCP, with real files behind them."""

import struct

from daybook.bookie.server.session import ServerLimits
from daybook.wire.digest import master_key
from daybook.wire.messages.blocks import decode_block_answer, encode_block_header
from daybook.wire.messages.bookie import AddRun, Status
from tests.bookie.server.conftest import Start
from tests.bookie.server.peer import KEY, Peer, add_frame, make_entry


def block(ledger_id: int, first: int, count: int, *, key: bytes = KEY, size: int = 10) -> bytes:
    adds = b"".join(
        add_frame(ledger_id, entry_id, b"%d" % entry_id * size, key=key)
        for entry_id in range(first, first + count)
    )
    return encode_block_header(len(adds)) + adds


async def answer(peer: Peer) -> AddRun:
    frame = await peer.receive()
    assert frame is not None, "the bookie has closed the connection"
    return decode_block_answer(memoryview(frame))


async def test_a_block_has_one_answer_and_its_entries_are_there(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        for first in (0, 100):
            await peer.send(block(7, first, 100))
            assert await answer(peer) == AddRun(Status.OK, 7, first, first + 99)
        assert await peer.add(7, 200) is Status.OK
    async with start() as running, running.connect() as peer:
        for entry_id in (0, 1, 99, 100, 199):
            expected = make_entry(7, entry_id, b"%d" % entry_id * 10)
            assert (await peer.read(7, entry_id)).entry == expected
        assert (await peer.read(7, -1)).entry == make_entry(7, 200)


async def test_blocks_of_several_ledgers_are_answered_each_by_itself(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        await peer.send(*(block(ledger_id, 0, 5) for ledger_id in range(20)))
        answers = [await answer(peer) for _ in range(20)]
        assert sorted(run.ledger_id for run in answers) == list(range(20))
        assert all(run == AddRun(Status.OK, run.ledger_id, 0, 4) for run in answers)


async def test_a_fenced_ledger_takes_no_block(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        await peer.send(block(7, 0, 5))
        assert (await answer(peer)).status == Status.OK
        await peer.read(7, 0, fence_key=KEY)
        await peer.send(block(7, 5, 5))
        assert await answer(peer) == AddRun(Status.FENCED, 7, 5, 9)
        assert (await peer.read(7, 5)).status == Status.NO_ENTRY


async def test_a_block_with_another_key_is_refused(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        await peer.send(block(7, 0, 5))
        assert (await answer(peer)).status == Status.OK
        await peer.send(block(7, 5, 5, key=master_key(b"other")))
        assert await answer(peer) == AddRun(Status.UNAUTHORIZED, 7, 5, 9)


async def test_a_block_that_was_sent_again_is_acknowledged_again(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        await peer.send(block(7, 0, 5), block(7, 0, 5), block(7, 3, 5))
        for first, last in ((0, 4), (0, 4), (3, 7)):
            assert await answer(peer) == AddRun(Status.OK, 7, first, last)


async def test_a_block_that_makes_no_sense_costs_its_sender_the_connection(start: Start) -> None:
    async with start() as running, running.connect() as other, running.connect() as peer:
        await peer.send(block(7, 0, 5))
        assert (await answer(peer)).status == Status.OK
        torn = bytearray(block(7, 5, 5))
        struct.pack_into(">q", torn, 8 + 28 + 8, 99)  # the id of its first entry
        await peer.send(bytes(torn))
        assert await peer.receive() is None
        assert (await other.read(7, 5)).status == Status.NO_ENTRY
        assert await other.add(7, 5) is Status.OK


async def test_an_entry_that_would_fit_no_answer_is_refused(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        room = ServerLimits().entry_bytes_max
        await peer.send(block(7, 0, 1, size=room - 30))
        assert await answer(peer) == AddRun(Status.BAD_REQUEST, 7, 0, 0)
        await peer.send(block(7, 0, 1, size=room - 40))
        assert await answer(peer) == AddRun(Status.OK, 7, 0, 0)
