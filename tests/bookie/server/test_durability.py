"""No answer is sent before its data is durable: the disk of these tests waits for permission."""

from collections.abc import Sequence

import trio

from daybook.bookie.server.session import STATUSES, ServerLimits
from daybook.bookie.server.v2 import CODES
from daybook.bookie.storage.disk import Appender, FileDisk
from daybook.bookie.storage.status import StoreStatus
from daybook.wire.messages import bookie_v3
from daybook.wire.messages.bookie import AddRun, ReadAnswer, Status, encode_read
from daybook.wire.proto import bookkeeper_pb2 as pb
from daybook.wire.transport import Buffer
from tests.bookie.server.conftest import Start
from tests.bookie.server.peer import KEY, Peer, add_frame, make_entry
from tests.bookie.server.test_hostile import wait_until


class GatedAppender:
    def __init__(self, disk: "GatedDisk", inner: Appender) -> None:
        self._disk = disk
        self._inner = inner

    async def start(self, path: str, buffers: Sequence[Buffer]) -> None:
        await self._disk.pass_gate()
        await self._inner.start(path, buffers)

    async def write(self, buffers: Sequence[Buffer]) -> None:
        await self._disk.pass_gate()
        await self._inner.write(buffers)

    async def aclose(self) -> None:
        await self._inner.aclose()


class GatedDisk(FileDisk):
    """A disk whose writes wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._gate = trio.Event()
        self._gate.set()
        self.waiting = 0

    def shut(self) -> None:
        self._gate = trio.Event()

    def open_gate(self) -> None:
        self._gate.set()

    async def pass_gate(self) -> None:
        self.waiting += 1
        await self._gate.wait()
        self.waiting -= 1

    def open_appender(self) -> Appender:
        return GatedAppender(self, super().open_appender())


async def says_nothing(*peers: Peer) -> bool:
    for peer in peers:
        with trio.move_on_after(0.02):
            await peer.receive()
            return False
    return True


async def test_an_add_is_answered_when_it_is_on_the_disk(start: Start) -> None:
    disk = GatedDisk()
    async with start(disk=disk) as running, running.connect() as peer:
        disk.shut()
        await peer.send(add_frame(7, 0))
        await wait_until(lambda: disk.waiting == 1)
        assert await says_nothing(peer)
        disk.open_gate()
        assert await peer.answer() == AddRun(Status.OK, 7, 0, 0)


async def test_a_fencing_read_sees_what_was_accepted_before_it(start: Start) -> None:
    """Answering "no such entry" for an add that is acknowledged a moment later would lose it."""
    disk = GatedDisk()
    async with (
        start(disk=disk) as running,
        running.connect() as writer,
        running.connect() as recoverer,
        running.connect() as new,
    ):
        disk.shut()
        await writer.send(add_frame(7, 0))
        await wait_until(lambda: disk.waiting == 1)
        await recoverer.send(encode_read(7, 0, fence_key=KEY), encode_read(7, 1, fence_key=KEY))
        await new.send(bookie_v3.encode_read(1, 7, -1, fence_key=KEY))
        assert await says_nothing(writer, recoverer, new)
        await writer.send(add_frame(7, 1))
        assert await writer.answer() == AddRun(Status.FENCED, 7, 1, 1)
        disk.open_gate()
        assert await writer.answer() == AddRun(Status.OK, 7, 0, 0)
        answers = [await recoverer.answer(), await recoverer.answer()]
        statuses = {a.entry_id: a.status for a in answers if isinstance(a, ReadAnswer)}
        assert statuses == {0: Status.OK, 1: Status.NO_ENTRY}
        assert (await new.response()).readResponse.body == make_entry(7, 0)


async def test_a_fence_is_answered_when_it_is_on_the_disk_also_with_a_no(start: Start) -> None:
    disk = GatedDisk()
    async with start(disk=disk) as running, running.connect() as peer, running.connect() as new:
        disk.shut()
        await peer.send(encode_read(7, 0, fence_key=KEY))
        await new.send(bookie_v3.encode_read(1, 8, 0, fence_key=KEY))
        await wait_until(lambda: disk.waiting == 1)
        assert await says_nothing(peer, new)
        disk.open_gate()
        answer = await peer.answer()
        assert isinstance(answer, ReadAnswer)
        assert answer.status == Status.NO_ENTRY
        assert (await new.response()).status == pb.ENOENTRY


async def test_fences_that_are_not_on_the_disk_yet_are_bounded(start: Start) -> None:
    disk = GatedDisk()
    limits = ServerLimits(connection_calls_max=4)
    async with start(limits, disk=disk) as running, running.connect() as peer:
        disk.shut()
        await peer.send(*(encode_read(ledger_id, 0, fence_key=KEY) for ledger_id in range(9)))
        await wait_until(lambda: len(running.store.ledgers()) == 4)
        assert await says_nothing(peer)
        assert len(running.store.ledgers()) == 4
        disk.open_gate()
        answers = [await peer.answer() for _ in range(9)]
        assert {a.status for a in answers if isinstance(a, ReadAnswer)} == {Status.NO_ENTRY}
        assert len(running.store.ledgers()) == 9


async def test_a_peer_that_has_left_gets_no_answer_to_its_fence(start: Start) -> None:
    disk = GatedDisk()
    async with start(disk=disk) as running, running.connect() as other:
        disk.shut()
        async with running.connect() as peer:
            await peer.send(encode_read(7, 0, fence_key=KEY))
            await wait_until(lambda: disk.waiting == 1)
        await wait_until(lambda: running.server.statistics().connections == 1)
        disk.open_gate()
        assert (await other.read(7, 0)).status == Status.NO_ENTRY
        assert running.store.is_fenced(7)


async def test_a_read_waits_for_what_may_soon_be_acknowledged(start: Start) -> None:
    disk = GatedDisk()
    async with start(disk=disk) as running, running.connect() as peer, running.connect() as reader:
        disk.shut()
        await peer.send(add_frame(7, 0))
        await wait_until(lambda: disk.waiting == 1)
        await reader.send(encode_read(7, 0))
        assert await says_nothing(reader)
        disk.open_gate()
        assert await reader.answer() == ReadAnswer(Status.OK, 7, 0, memoryview(make_entry(7, 0)))


async def test_lacs_and_forces_wait_for_the_disk(start: Start) -> None:
    disk = GatedDisk()
    async with start(disk=disk) as running, running.connect() as peer, running.connect() as other:
        assert await other.add(7, 0) is Status.OK
        disk.shut()
        await other.send(add_frame(7, 1))
        await wait_until(lambda: disk.waiting == 1)
        await peer.send(bookie_v3.encode_write_lac(1, 7, 0, KEY, b"packet"))
        await peer.send(bookie_v3.encode_force(2, 7))
        await peer.send(bookie_v3.encode_long_poll(3, 7, -1, 60_000))
        assert await says_nothing(peer)
        disk.open_gate()
        responses = [await peer.response() for _ in range(3)]
        assert {r.header.txnId: r.status for r in responses} == {1: pb.EOK, 2: pb.EOK, 3: pb.EOK}


async def test_the_same_add_again_is_answered_though_nothing_is_written_for_it(
    start: Start,
) -> None:
    """The answer comes at once, and after a restart, when the store must read its index first."""
    async with start() as running, running.connect() as peer:
        assert await peer.add(7, 0) is Status.OK
        assert await peer.add(7, 1) is Status.OK
        assert await peer.add(7, 0) is Status.OK
    async with start() as running, running.connect() as peer:
        assert await peer.add(7, 0, b"something else") is Status.OK
        assert (await peer.read(7, 0)).entry == make_entry(7, 0)


async def test_a_peer_that_goes_away_takes_its_bytes_with_it(start: Start) -> None:
    disk = GatedDisk()
    async with start(disk=disk) as running:
        disk.shut()
        async with running.connect() as peer:
            await peer.send(*(add_frame(7, i) for i in range(100)))
            await wait_until(lambda: running.server.statistics().add_bytes > 5_000)
        await wait_until(lambda: running.server.statistics().connections == 0)
        assert running.server.statistics().add_bytes > 5_000, (
            "they are still on their way to the disk"
        )
        disk.open_gate()
        await wait_until(lambda: running.server.statistics().add_bytes == 0)
        async with running.connect() as peer:
            assert (await peer.read(7, 99)).status == Status.OK


async def test_who_waits_for_the_bytes_of_others_goes_on_when_they_are_gone(start: Start) -> None:
    disk = GatedDisk()
    async with start(ServerLimits(add_bytes_max=100_000), disk=disk) as running:
        disk.shut()
        async with running.connect() as first, running.connect() as second:
            await first.send(add_frame(7, 0, bytes(200_000)))
            await wait_until(lambda: running.server.statistics().add_bytes > 200_000)
            await second.send(*(add_frame(8, i) for i in range(3)))
            assert await says_nothing(second)
            assert running.server.statistics().add_bytes < 201_000
            disk.open_gate()
            assert await first.answer() == AddRun(Status.OK, 7, 0, 0)
            for i in range(3):
                assert await second.answer() == AddRun(Status.OK, 8, i, i)


def test_unknown_is_never_no() -> None:
    """apache/bookkeeper#4097, #3302, #2927: "no such entry" of entries that exist."""
    assert CODES[StoreStatus.UNKNOWN] == Status.IO_ERROR
    assert STATUSES[StoreStatus.UNKNOWN] is Status.UNKNOWN_LEDGER_STATE
    assert set(STATUSES) == set(StoreStatus)
    negative = {Status.NO_ENTRY, Status.NO_LEDGER}
    saying_no = {status for status in StoreStatus if STATUSES[status] in negative}
    assert saying_no == {StoreStatus.NO_ENTRY, StoreStatus.NO_LEDGER}
