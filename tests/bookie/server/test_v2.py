"""Protocol v2 over TCP, with real files behind it."""

import struct

from daybook.wire.digest import master_key
from daybook.wire.messages import bookie
from daybook.wire.messages.bookie import (
    FRAME_BYTES_MAX,
    AddRun,
    AuthAnswer,
    BatchReadAnswer,
    Status,
)
from tests.bookie.server.conftest import Start
from tests.bookie.server.peer import KEY, add_frame, make_entry

OTHER_KEY = master_key(b"other")


async def test_what_was_added_is_read_as_it_was_sent(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        assert await peer.add(7, 0, b"first") is Status.OK
        assert await peer.add(7, 1, b"") is Status.OK
        assert (await peer.read(7, 0)).entry == make_entry(7, 0, b"first")
        assert (await peer.read(7, 1)).entry == make_entry(7, 1, b"")
        assert (await peer.read(7, 2)).status == Status.NO_ENTRY
        assert (await peer.read(8, 0)).status == Status.NO_LEDGER


async def test_the_last_entry_is_that_with_the_highest_id(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        for entry_id in (0, 3, 1):
            assert await peer.add(7, entry_id) is Status.OK
        answer = await peer.read(7, -1)
        assert answer.entry == make_entry(7, 3)


async def test_everything_is_there_after_a_restart(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        await peer.send(*(add_frame(7, i, b"%d" % i) for i in range(50)))
        answers = [await peer.answer() for _ in range(50)]
        assert all(isinstance(a, AddRun) and a.status == Status.OK for a in answers)
        await peer.read(9, 0, fence_key=KEY)
    async with start() as running, running.connect() as peer:
        for i in range(50):
            assert (await peer.read(7, i)).entry == make_entry(7, i, b"%d" % i)
        assert await peer.add(9, 0) is Status.FENCED


async def test_a_fenced_ledger_takes_recovery_adds_only(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        assert await peer.add(7, 0) is Status.OK
        assert (await peer.read(7, -1, fence_key=KEY)).entry == make_entry(7, 0)
        assert await peer.add(7, 1) is Status.FENCED
        answer = await peer.ask(add_frame(7, 1, recovery=True))
        assert answer == AddRun(Status.OK, 7, 1, 1)
        assert (await peer.read(7, 1)).entry == make_entry(7, 1)


async def test_each_add_of_many_is_answered_whatever_comes_in_between(start: Start) -> None:
    """Adds that arrive together are stored together only if they belong together."""
    frames: list[bytes] = []
    expected: list[tuple[int, int]] = []
    for ledger_id, entry_id, other in [
        (7, 0, b""),
        (7, 1, b""),
        (7, 2, bookie.encode_read(7, 0)),
        (7, 3, b""),
        (7, 4, bookie.encode_auth(bookie.AUTH_DISABLED)),
        (7, 5, b""),
        (8, 0, b""),
        (8, 1, b""),
        (7, 6, b""),
        (7, 7, b""),
        (7, 9, b""),
        (7, 10, bookie.encode_read(9, 0)),
        (7, 10, b""),
        (7, 11, b""),
    ]:
        frames += [add_frame(ledger_id, entry_id, b"%d" % entry_id), other]
        expected.append((ledger_id, entry_id))
    async with start() as running, running.connect() as peer:
        await peer.send(*frames)
        answered: list[tuple[int, int]] = []
        for _ in range(len([frame for frame in frames if frame])):
            answer = await peer.answer()
            if isinstance(answer, AddRun):
                assert answer.status == Status.OK
                answered.append((answer.ledger_id, answer.first))
        assert sorted(answered) == sorted(expected)
        for ledger_id, entry_id in expected:
            found = (await peer.read(ledger_id, entry_id)).entry
            assert found == make_entry(ledger_id, entry_id, b"%d" % entry_id)
        assert (await peer.read(7, 8)).status == Status.NO_ENTRY


async def test_adds_that_differ_in_their_flags_or_keys_are_no_run(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        assert await peer.add(7, 0) is Status.OK
        await peer.read(7, 0, fence_key=KEY)
        await peer.send(
            add_frame(7, 1, recovery=True),
            add_frame(7, 2, recovery=True),
            add_frame(7, 3),
            add_frame(7, 4),
            add_frame(7, 5, key=OTHER_KEY),
            add_frame(7, 6, recovery=True),
        )
        statuses: dict[int, int] = {}
        for _ in range(6):
            answer = await peer.answer()
            assert isinstance(answer, AddRun)
            statuses[answer.first] = answer.status
        assert statuses == {
            1: Status.OK,
            2: Status.OK,
            3: Status.FENCED,
            4: Status.FENCED,
            5: Status.UNAUTHORIZED,
            6: Status.OK,
        }


async def test_a_fence_on_a_ledger_that_nobody_has_written_yet(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        assert (await peer.read(7, 0, fence_key=KEY)).status == Status.NO_ENTRY
        assert (await peer.read(7, -1, fence_key=KEY)).status == Status.NO_ENTRY
        assert (await peer.read(7, -1)).status == Status.NO_ENTRY
        assert await peer.add(7, 0) is Status.FENCED


async def test_another_key_is_not_let_in(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        assert await peer.add(7, 0) is Status.OK
        answer = await peer.ask(add_frame(7, 1, key=OTHER_KEY))
        assert answer == AddRun(Status.UNAUTHORIZED, 7, 1, 1)
        assert (await peer.read(7, 0, fence_key=OTHER_KEY)).status == Status.UNAUTHORIZED
        assert await peer.add(7, 1) is Status.OK, "it was not fenced"


async def test_adds_of_many_ledgers_are_answered_one_by_one(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        wanted = [(ledger, entry) for entry in range(100) for ledger in range(5)]
        await peer.send(*(add_frame(ledger, entry) for ledger, entry in wanted))
        seen: list[tuple[int, int]] = []
        for _ in wanted:
            answer = await peer.answer()
            assert isinstance(answer, AddRun)
            assert answer.status == Status.OK
            seen.append((answer.ledger_id, answer.first))
        assert sorted(seen) == sorted(wanted)
        assert running.server.statistics().add_bytes == 0


async def test_answers_share_a_commit(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        await peer.send(*(add_frame(7, i) for i in range(500)))
        for _ in range(500):
            await peer.answer()
        assert running.store.statistics().commits < 50


async def test_a_batch_read_ends_where_entries_or_room_end(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        for i in (0, 1, 2, 4):
            await peer.add(7, i, bytes(100))

        async def batch(first: int, count: int, size: int) -> BatchReadAnswer:
            request = bookie.encode_batch_read(7, first, 99, entries_max=count, bytes_max=size)
            answer = await peer.ask(request)
            assert isinstance(answer, BatchReadAnswer)
            assert (answer.ledger_id, answer.first_entry_id, answer.request_id) == (7, first, 99)
            return answer

        entries = [make_entry(7, i, bytes(100)) for i in range(3)]
        assert (await batch(0, 10, 100_000)).entries == entries
        assert (await batch(0, 2, 100_000)).entries == entries[:2]
        assert (await batch(1, 0, 0)).entries == entries[1:]
        size = len(entries[0])
        assert len((await batch(0, 10, 36 + 2 * (4 + size))).entries) == 2
        assert len((await batch(0, 10, 36 + 2 * (4 + size) - 1)).entries) == 1
        assert len((await batch(0, 10, 1)).entries) == 1, "one entry, however large it is"
        assert (await batch(3, 10, 1000)).status == Status.NO_ENTRY


async def test_who_wants_to_authenticate_is_told_that_nobody_asks(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        answer = await peer.ask(bookie.encode_auth("some plugin", b"token"))
        assert answer == AuthAnswer(bookie.AUTH_DISABLED, b"")
        assert await peer.add(7, 0) is Status.OK


async def test_an_entry_that_cannot_be_is_a_bad_request(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        short = struct.pack(">qq", 7, 0)
        answer = await peer.ask(bookie.encode_add_header(KEY, len(short)) + short)
        assert answer == AddRun(Status.BAD_REQUEST, 7, 0, 0)
        assert await peer.add(7, -5) is Status.BAD_REQUEST
        assert await peer.add(-7, 0) is Status.BAD_REQUEST
        assert (await peer.read(7, -9)).status in (Status.BAD_REQUEST, Status.NO_LEDGER)
        large = add_frame(7, 0, bytes(FRAME_BYTES_MAX - 24 - 36))
        assert len(large) == FRAME_BYTES_MAX + 4
        assert await peer.ask(large) == AddRun(Status.BAD_REQUEST, 7, 0, 0)
        assert await peer.add(7, 0, bytes(FRAME_BYTES_MAX - 24 - 36 - 500)) is Status.OK
        assert len((await peer.read(7, 0)).entry) == FRAME_BYTES_MAX - 24 - 500
