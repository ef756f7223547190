"""Starts are counted: a restored image is noticed, and nothing else is taken for one.

The bookie is a whole one, on a simulated disk and the metadata store in memory.  A host dies before
an operation of its disk, or before a request to the metadata store.  Nothing is copied back
meanwhile, so limbo stays visible.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

import pytest
import trio

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.ledger.admin_states import AdminStates
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.cookies import create_cookie, delete_cookie, read_cookie
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.start_counts import StartRecord, read_starts
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.cookie_validation import NEW_FILE, StartError
from daybook.bookie.server.data_integrity import DataIntegrityCheck
from daybook.bookie.server.host import START_ERRORS, RunningBookie, run_bookie
from daybook.bookie.server.start_count import STARTS_FILE, StartCounter, read_number, write_number
from daybook.bookie.storage.disk import UNFINISHED
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import Log, LogLimits
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import DirectLink, MemoryStore, Request
from daybook.wire.metadata.store import OutcomeUnknownError
from daybook.wire.tcp import TcpNetwork
from tests.bookie.server.test_hostile import wait_until
from tests.bookie.storage.conftest import Answers, has, status_of
from tests.harness.clocks import FixedClock
from tests.harness.disk import HostCrashedError, Image, Platter, SimulatedDisk

PATHS = LedgerPaths()
Work = Callable[[RunningBookie], Awaitable[None]]


class MortalLink(DirectLink):
    """The link of a host that may die before each request, as before a disk operation."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__()
        self._disk = disk

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        await self._disk.operate(f"metadata {request.operation}")
        await super().request(request, execute)


class World:
    """One bookie through its starts."""

    def __init__(self, *directories: str, seed: int = 1) -> None:
        self.platter = Platter(random.Random(seed))
        self.metadata = MemoryStore(SystemClock())
        self.looking = self.metadata.session("observer")
        self.config = BookieConfig(
            directories=directories or ("d0",), bookie_id="b1", port=0, position_interval_s=0.01
        )
        self._rng = Random(seed)

    async def live(self, work: Work | None = None, *, stop: bool = False) -> bool:
        """Start the bookie and do `work`; then the host is killed, or stopped in good order.

        Return False if it died before that.
        """
        self.platter.kill()
        disk = self.platter.mount()
        session = self.metadata.session("bookie", link=MortalLink(disk))
        ended = False
        try:
            async with trio.open_nursery() as nursery:
                running: RunningBookie = await nursery.start(self._run, disk, session)
                if work is not None:
                    await work(running)
                ended = True
                if not stop:
                    self.platter.kill()
                nursery.cancel_scope.cancel()
        except (HostCrashedError, BaseExceptionGroup) as error:
            if not has(error, HostCrashedError) or has(error, AssertionError):
                raise
        finally:
            session.crash()
            self.metadata.expire(session.store_session_id)
        return ended

    async def _run(
        self, disk: SimulatedDisk, session: object, task_status: trio.TaskStatus[RunningBookie]
    ) -> None:
        await run_bookie(
            self.config,
            network=TcpNetwork(),
            metadata=session,  # type: ignore[arg-type]
            disk=disk,
            index=self.platter.indexes().open,
            clock=FixedClock(),
            rng=self._rng,
            store_limits=StoreLimits(
                log=LogLimits(segment_bytes=2000), checkpoint_entries=4, free_bytes_min=0
            ),
            task_status=task_status,
        )

    async def record(self) -> StartRecord | None:
        stored = await read_starts(self.looking, PATHS, "b1")
        return None if stored is None else stored.record

    async def numbers(self) -> list[int | None]:
        disk = self.platter.mount()
        return [await read_number(disk, each) for each in self.config.directories]

    def images(self) -> list[Image]:
        return [self.platter.image(each) for each in self.config.directories]

    def put_back(self, images: Sequence[Image]) -> None:
        self.platter.kill()
        for image in images:
            self.platter.put_back(image)


@pytest.fixture(autouse=True)
def _nothing_is_copied_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(repair: DataIntegrityCheck) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(DataIntegrityCheck, "run", wait)


async def add(store: LedgerStore, ledger_id: int, entries: range) -> None:
    answers = Answers(store)
    for entry_id in entries:
        answers.add(ledger_id, entry_id)
    assert set(await answers.all()) <= {StoreStatus.OK}


def adds(*ledger_ids: int, entries: range = range(3)) -> Work:
    async def work(running: RunningBookie) -> None:
        for ledger_id in ledger_ids:
            await add(running.store, ledger_id, entries)

    return work


async def trusts(running: RunningBookie) -> None:
    assert not running.store.limbo, "there was no reason to doubt"


async def doubts(running: RunningBookie) -> None:
    assert running.store.limbo
    assert not running.store.writable
    for runner in running.store._directories.runners:
        assert runner.directory.in_doubt, "all directories, durably"


async def recorded(world: World, running: RunningBookie) -> None:
    """Return when the record has the present ends of the logs."""
    with trio.fail_after(20):
        while True:
            record = await world.record()
            if record is not None and record.positions == running.store.log_ends():
                return
            await trio.sleep(0.005)


# -- images


@pytest.mark.parametrize("stop", [False, True])
async def test_an_image_of_an_earlier_life_is_noticed(stop: bool) -> None:
    world = World()
    assert await world.live(adds(1), stop=stop)
    images = world.images()
    assert await world.live(adds(2), stop=stop)
    world.put_back(images)

    async def work(running: RunningBookie) -> None:
        await doubts(running)
        assert await status_of(running.store.read(2, 0)) is StoreStatus.UNKNOWN
        assert await status_of(running.store.read(1, 0)) is StoreStatus.OK

    assert await world.live(work)
    assert await world.live(doubts), "the doubt is durable"


async def test_an_image_of_the_same_life_is_noticed_by_its_position() -> None:
    world, images = World(), list[Image]()

    async def work(running: RunningBookie) -> None:
        await add(running.store, 1, range(3))
        images.extend(world.images())
        await add(running.store, 2, range(3))
        await recorded(world, running)

    assert await world.live(work)
    world.put_back(images)
    assert await world.live(doubts)
    assert await world.live(doubts)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("same_life", [False, True])
async def test_an_image_of_one_of_several_directories(which: int, same_life: bool) -> None:
    world, images = World("d0", "d1"), list[Image]()

    async def work(running: RunningBookie) -> None:
        await adds(1, 2)(running)
        images.extend(world.images())
        if same_life:
            await add(running.store, 1, range(3, 6))
            await add(running.store, 2, range(3, 6))
            await recorded(world, running)

    assert await world.live(work)
    if not same_life:
        assert await world.live(adds(1, 2, entries=range(3, 6)))
    world.put_back([images[which]])
    assert await world.live(doubts)
    for directory in world.config.directories:
        world.put_back([world.platter.image(directory)])
    assert await world.live(doubts)


async def images_of_a_start(world: World) -> list[list[Image]]:
    """Return the directories before each step of a start that goes well."""
    taken: list[list[Image]] = []

    def tap(operation: str) -> None:
        taken.append(world.images())

    world.platter._tap = tap
    try:
        assert await world.live()
    finally:
        world.platter._tap = None
    return taken


async def test_an_image_of_any_moment_of_an_earlier_start() -> None:
    """Images between limbo and the new number, and with only some directories, are included."""
    world = World("d0", "d1")
    assert await world.live(adds(1, 2))
    taken = await images_of_a_start(world)
    assert len(taken) > 30
    assert await world.live(adds(1, 2, entries=range(3, 6)))
    now = world.images()
    record = await world.looking.get(PATHS.starts("b1"))
    assert record is not None
    for number, images in enumerate(taken):
        for some in (images, images[:1], images[1:]):
            world.put_back(now)
            world.put_back(some)
            found = await world.looking.get(PATHS.starts("b1"))
            assert found is not None
            await world.looking.set(PATHS.starts("b1"), record.value, found.stat.version)
            assert await world.live(doubts), f"step {number}"


@pytest.mark.parametrize("same_life", [False, True])
async def test_a_doubt_survives_a_crash_before_any_step_of_the_start(
    same_life: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image has a whole batch without a mark, so its log grows at the start by itself; or only
    its number tells that it is old.
    """
    if not same_life:

        async def never(starts: StartCounter, ends: object) -> None:
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr(StartCounter, "_write", never)
    step = 0
    while True:
        world, images = World("d0", "d1", seed=step), list[Image]()

        async def work(
            running: RunningBookie, world: World = world, images: list[Image] = images
        ) -> None:
            await adds(1, 2)(running)
            images.extend(world.images())
            if same_life:
                await adds(1, 2, entries=range(3, 4))(running)
                await recorded(world, running)

        assert await world.live(work, stop=not same_life)
        if not same_life:
            images = world.images()
            assert await world.live(adds(1, 2, entries=range(3, 4)))
        world.put_back(images[step % 2 : step % 2 + 1])
        world.platter.kill()
        world.platter.crash_before(step)
        died = not await live_as_is(world)
        if Random(step).random() < 0.5:
            world.platter.lose_power()
        assert await world.live(doubts), f"after a crash before step {step}"
        if not died:
            return
        step += 1


async def live_as_is(world: World) -> bool:
    """Start the bookie with the crash that was arranged for it."""
    arranged = world.platter._crash_at - world.platter.operations
    kill = world.platter.kill

    def keep() -> None:
        kill()
        world.platter.crash_before(arranged)
        world.platter.kill = kill  # type: ignore[method-assign]

    world.platter.kill = keep  # type: ignore[method-assign]
    return await world.live()


# -- not an image


@pytest.mark.parametrize("directories", [("d0",), ("d0", "d1")])
async def test_a_start_that_is_killed_before_any_step_is_no_reason_for_doubt(
    directories: tuple[str, ...],
) -> None:
    step, next_entry, world = 0, 3, World(*directories)
    while True:
        if step % 8 == 0:  # each start leaves the next one more to read
            world = World(*directories, seed=step)
            assert await world.live(adds(1, 2))
            next_entry = 3
        world.platter.kill()
        world.platter.crash_before(step)
        died = not await live_as_is(world)
        if step % 3 == 0:
            world.platter.lose_power()

        async def work(
            running: RunningBookie, first: int = next_entry, world: World = world
        ) -> None:
            await trusts(running)
            await adds(1, 2, entries=range(first, first + 2))(running)
            if first % 4 == 1:
                await recorded(world, running)

        assert await world.live(work, stop=step % 4 == 3), f"step {step}"
        next_entry += 2
        step += 1
        if not died:
            return


async def test_what_a_killed_process_had_not_synced_is_no_reason_for_doubt() -> None:
    """Seed 920446: a start counted a batch that was in the page cache only, and power was lost.

    The batch has a mark and no records, so the start does not write it again.
    """
    step, died = 0, True
    while died:
        world = World("d0", "d1", seed=step)

        async def work(running: RunningBookie, world: World = world, step: int = step) -> None:
            await adds(1, 2)(running)
            world.platter.crash_before(step)

        await world.live(work, stop=True)
        died = world.platter._crash_at < 0
        assert await world.live(trusts), f"after a crash before step {step}"
        world.platter.lose_power()
        assert await world.live(trusts), f"after a crash before step {step}, and a loss of power"
        step += 1


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("directories", [("d0",), ("d0", "d1")])
async def test_a_first_start_that_is_killed_before_any_step_is_repeated(
    directories: tuple[str, ...], power: bool
) -> None:
    """Seeds 31647 and 920750: leftovers of a write were taken for another bookie's data."""
    step, died = 0, True
    while died:
        world = World(*directories, seed=step)
        world.platter.kill()
        world.platter.crash_before(step)
        died = not await live_as_is(world)
        if power:
            world.platter.lose_power()
        assert await world.live(trusts), f"after a crash before step {step}"
        step += 1


async def test_a_first_start_on_a_full_disk_is_repeated_when_there_is_room() -> None:
    world = World("d0", "d1")
    world.platter.full = True
    with pytest.raises(BaseExceptionGroup) as caught:
        await world.live()
    assert caught.group_contains(OSError, match="no space left")
    world.platter.full = False
    assert await world.live(trusts)


async def test_what_a_write_had_begun_is_nothing_of_the_log() -> None:
    """A directory whose log was removed has lost it, although an unfinished file exists."""
    world = World()
    assert await world.live(adds(1))
    disk = world.platter.mount()
    for name in await disk.list_directory("d0/log"):
        await disk.remove(f"d0/log/{name}")
    await disk.write_file(f"d0/log/{NEW_FILE}{UNFINISHED}", b"")
    with pytest.raises(BaseExceptionGroup) as caught:
        await world.live()
    assert caught.group_contains(StartError, match="nothing of the log that was there")


async def test_the_first_start_that_counts() -> None:
    world = World()
    assert await world.live(adds(1))
    await world.looking.delete(PATHS.starts("b1"), -1)
    await world.platter.mount().remove(f"d0/{STARTS_FILE}")
    assert await world.live(trusts)
    record = await world.record()
    assert record is not None
    assert (record.starts, await world.numbers()) == (1, [1])


async def test_only_the_directories_have_a_number() -> None:
    world = World("d0", "d1")
    assert await world.live(adds(1))
    assert await world.live()
    await world.looking.delete(PATHS.starts("b1"), -1)
    assert await world.live(trusts)
    record = await world.record()
    assert record is not None
    assert (record.starts, await world.numbers()) == (3, [3, 3])


async def test_only_the_record_has_a_number() -> None:
    world = World("d0", "d1")
    assert await world.live(adds(1))
    await world.platter.mount().remove(f"d1/{STARTS_FILE}")
    assert await world.live(doubts)


async def test_a_number_that_does_not_parse_is_behind() -> None:
    world = World()
    assert await world.live(adds(1))
    await world.platter.mount().write_file(f"d0/{STARTS_FILE}", b"1 x\n")
    assert await world.live(doubts)


async def test_directories_that_differ_among_themselves_are_no_finding() -> None:
    """A start was cut short after it had written some of them."""
    world = World("d0", "d1")
    assert await world.live(adds(1))
    await write_number(world.platter.mount(), "d1", 2)
    assert await world.live(trusts)
    assert await world.numbers() == [3, 3]


async def test_the_end_of_a_log_that_is_gone_is_noticed() -> None:
    """Without the recorded position the missing end looks like a torn write."""
    world = World()

    async def work(running: RunningBookie) -> None:
        await add(running.store, 1, range(3))
        await recorded(world, running)
        await add(running.store, 1, range(3, 4))
        await recorded(world, running)

    assert await world.live(work)
    record = await world.record()
    assert record is not None
    last = world.platter.paths()
    path = max(each for each in last if each.startswith("d0/log/0"))
    size = len(world.platter.content(path))
    world.platter.truncate(path, size - 10)
    assert await world.live(doubts)


async def test_an_idle_log_and_one_that_was_emptied_are_whole() -> None:
    world = World()

    async def work(running: RunningBookie) -> None:
        await trusts(running)
        store = running.store
        for ledger_id in range(5):
            await add(store, ledger_id, range(8))
            await store.delete(ledger_id)
        for _ in range(3):
            await store.maintenance.reclaim()
        await recorded(world, running)

    assert await world.live(work)
    assert "d0/log/REMOVED" in world.platter.paths()
    for stop in (True, False, True):
        assert await world.live(trusts, stop=stop)
    world.platter.lose_indexes()
    assert await world.live(trusts)


async def test_a_directory_that_was_moved_is_compared_with_its_position() -> None:
    world = World()

    async def work(running: RunningBookie) -> None:
        await add(running.store, 1, range(3))
        images.extend(world.images())
        await add(running.store, 1, range(3, 6))
        await recorded(world, running)

    images: list[Image] = []
    assert await world.live(work)
    (image,) = images
    moved = Image(
        "d9",
        {"d9" + path[2:]: content for path, content in image.files.items()},
        {"d9" + path[2:]: index for path, index in image.indexes.items()},
    )
    world.put_back([moved])
    world.platter._directories |= {"d9", "d9/log"}
    world.config = BookieConfig(directories=("d9",), bookie_id="b1", port=0)
    assert await world.live(doubts)


# -- the record


async def test_somebody_else_counts_the_same_start(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    assert await world.live(adds(1))
    swap = StartCounter._swap

    async def late(starts: StartCounter, record: StartRecord) -> None:
        monkeypatch.setattr(StartCounter, "_swap", swap)
        other = StartRecord(record.starts, "another", record.positions)
        await world.looking.set(PATHS.starts("b1"), other.encode(), -1)
        await swap(starts, record)

    monkeypatch.setattr(StartCounter, "_swap", late)
    with pytest.raises((*START_ERRORS, BaseExceptionGroup)) as caught:
        await world.live()
    assert "another process with its identity" in _why(caught.value)


def _why(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


@pytest.mark.parametrize("lost", ["request", "answer", "late"])
async def test_an_outcome_that_is_unknown_is_read_again(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`late`: the first request is carried out after the second one has been given up, too."""
    world = World()
    assert await world.live(adds(1))
    swap, tries = StartCounter._swap, list[StartRecord]()

    async def flaky(starts: StartCounter, record: StartRecord) -> None:
        tries.append(record)
        if len(tries) == 1:
            if lost == "answer":
                stored = starts._stored
                await swap(starts, record)
                starts._stored = stored
            raise OutcomeUnknownError("no answer")
        if lost == "late" and len(tries) == 2:
            stored = starts._stored
            await swap(starts, tries[0])
            starts._stored = stored
        await swap(starts, record)

    monkeypatch.setattr(StartCounter, "_swap", flaky)
    monkeypatch.setattr("daybook.bookie.server.start_count._RETRY_S", 0.0)

    async def work(running: RunningBookie) -> None:
        await trusts(running)
        assert running.start_counter.number == 2
        await add(running.store, 2, range(2))
        await recorded(world, running)

    assert await world.live(work)


async def test_the_last_positions_of_a_killed_process_may_come_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()

    async def first(running: RunningBookie) -> None:
        await add(running.store, 1, range(3))
        await recorded(world, running)

    assert await world.live(first)
    swap, tried = StartCounter._swap, list[int]()

    async def late(starts: StartCounter, record: StartRecord) -> None:
        if not tried:
            found = await world.record()
            assert found is not None
            await world.looking.set(PATHS.starts("b1"), found.encode(), -1)
        tried.append(1)
        await swap(starts, record)

    monkeypatch.setattr(StartCounter, "_swap", late)
    assert await world.live(trusts)
    assert len(tried) >= 2


async def test_a_record_that_does_not_parse_is_not_ignored() -> None:
    world = World()
    assert await world.live(adds(1))
    await world.looking.set(PATHS.starts("b1"), b'{"version": 2}', -1)
    with pytest.raises((*START_ERRORS, BaseExceptionGroup)) as caught:
        await world.live()
    assert "delete it" in _why(caught.value)


async def test_another_process_and_a_decommission_end_the_writing_of_positions() -> None:
    world = World()

    async def counted(running: RunningBookie) -> None:
        found = await world.record()
        assert found is not None
        other = StartRecord(found.starts + 1, "another", found.positions)
        await world.looking.set(PATHS.starts("b1"), other.encode(), -1)
        await add(running.store, 1, range(2))
        await wait_until(lambda: bool(running.start_counter.problem))
        assert "another process" in running.why_unhealthy()

    async def taken_out(running: RunningBookie) -> None:
        cookie = await read_cookie(world.looking, PATHS, "b1")
        assert cookie is not None
        await delete_cookie(world.looking, PATHS, "b1", cookie.version)
        assert await world.record() is None
        await add(running.store, 2, range(2))
        await wait_until(lambda: bool(running.start_counter.problem))
        assert await world.record() is None, "it is not made again"

    assert await world.live(counted)
    world.platter.kill()
    found = await world.record()
    assert found is not None
    await write_number(world.platter.mount(), "d0", found.starts)
    assert await world.live(taken_out)


async def test_without_the_metadata_store_positions_come_later() -> None:
    world = World()

    async def work(running: RunningBookie) -> None:
        world.metadata.suspend()
        await add(running.store, 1, range(30))
        world.metadata.resume()
        await recorded(world, running)

    assert await world.live(work)
    assert await world.live(trusts)


async def test_a_new_identity_forgets_the_starts_of_the_one_before() -> None:
    """An older version decommissioned the bookie: it deleted the cookie alone."""
    world = World()
    assert await world.live(adds(1))
    assert await world.live()
    cookie = await read_cookie(world.looking, PATHS, "b1")
    assert cookie is not None
    await world.looking.delete(PATHS.cookie("b1"), -1)
    await create_cookie(world.looking, PATHS, cookie.cookie)
    assert await world.record() is None
    assert await AdminStates(world.looking, PATHS).read(BookieId("b1")) is None


# -- the start of the storage


async def test_a_start_that_is_cancelled_forgets_neither_its_doubt_nor_its_last_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, a checkpoint at the stop went behind records that were not applied."""
    world = World()
    assert await world.live(adds(1))
    await world.platter.mount().remove(f"d0/{STARTS_FILE}")
    wait_durable = Log.wait_durable

    async def cancelled(log: Log[object], position: int) -> None:
        await wait_durable(log, position)
        monkeypatch.setattr(Log, "wait_durable", wait_durable)
        raise trio.TooSlowError

    monkeypatch.setattr(Log, "wait_durable", cancelled)
    with pytest.raises((trio.TooSlowError, BaseExceptionGroup)):
        await world.live()
    disk = world.platter.mount()
    await write_number(disk, "d0", 1)

    async def work(running: RunningBookie) -> None:
        await doubts(running)
        for entry_id in range(3):
            assert await status_of(running.store.read(1, entry_id)) is StoreStatus.OK

    assert await world.live(work)


async def test_what_is_written() -> None:
    """The record is compared byte by byte; see docs/formats/bookie_storage.md."""
    golden = Path(__file__).parents[2] / "golden" / "bookie_starts_v1"
    process = "5f0c1a2b3c4d5e6f708192a3b4c5d6e7"
    record = StartRecord(7, process, {"/d0": 81920, "/d1": 0})
    assert record.encode() == (golden / "starts.json").read_bytes()
    assert StartRecord.decode((golden / "starts.json").read_bytes()) == record
    disk = Platter(Random(1)).mount()
    await disk.write_file(f"d0/{STARTS_FILE}", (golden / "STARTS").read_bytes())
    assert await read_number(disk, "d0") == 7
    await write_number(disk, "d0", 7)
    assert await disk.read_file(f"d0/{STARTS_FILE}") == (golden / "STARTS").read_bytes()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"7",
        b'{"version": 2, "starts": 1, "process": "", "positions": {}}',
        b'{"version": 1, "starts": -1, "process": "", "positions": {}}',
        b'{"version": 1, "starts": true, "process": "", "positions": {}}',
        b'{"version": 1, "starts": 1, "process": "", "positions": {"/d0": 1.5}}',
        b'{"version": 1, "starts": 1, "process": "", "positions": []}',
        b"\xff",
    ],
)
def test_what_is_no_record(value: bytes) -> None:
    with pytest.raises(MalformedRecordError):
        StartRecord.decode(value)
