"""The simulated metadata store: lost and late requests, and which hosts notice them."""

import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from daybook.wire.metadata.store import (
    MetadataError,
    MetadataStore,
    OutcomeUnknownError,
    SessionState,
)
from daybook.wire.metadata.update import update
from tests.harness.clocks import VirtualClock
from tests.simulation import scheduler
from tests.simulation.metadata import Odds, SimulatedMetadata
from tests.simulation.scheduler import HOST, Scheduler

Body = Callable[["Run"], Awaitable[None]]


class Run:
    """One simulated run; hosts are named tasks."""

    def __init__(self, seed: int, odds: Odds | None) -> None:
        self.seed = seed
        self.odds = odds
        self.scheduler: Scheduler
        self.metadata: SimulatedMetadata
        self.nursery: trio.Nursery

    def play(self, body: Body) -> str:
        async def main(handle: Scheduler) -> str:
            self.scheduler = handle
            self.metadata = SimulatedMetadata(
                random.Random(self.seed), VirtualClock(), odds=self.odds, trace=handle.record
            )
            async with trio.open_nursery() as self.nursery:
                self.nursery.start_soon(self.metadata.run)
                await body(self)
                for host in list(handle.policy.held):
                    handle.release(host)
                self.nursery.cancel_scope.cancel()
            return handle.trace.hexdigest()

        return scheduler.run(main, seed=self.seed)

    async def host(self, name: str) -> MetadataStore:
        store: MetadataStore = await self.nursery.start(self._host, name)
        return store

    async def _host(self, name: str, task_status: trio.TaskStatus[MetadataStore]) -> None:
        HOST.set(name)
        async with self.metadata.open(name) as store:
            task_status.started(store)
            await trio.sleep_forever()


@pytest.mark.parametrize(("late_s", "done"), [((1.0, 1.5), True), ((3.0, 4.0), False)])
def test_a_write_may_be_carried_out_after_its_author_has_died(
    late_s: tuple[float, float], done: bool
) -> None:
    """A late write may be carried out while its session lives: two seconds more."""

    async def body(run: Run) -> None:
        one, two = await run.host("one"), await run.host("two")
        run.metadata.odds = Odds(late=1.0, give_up_s=(0.1, 0.2), late_s=late_s)
        with pytest.raises(OutcomeUnknownError):
            await one.create("/a", b"")
        run.metadata.odds = Odds()
        run.scheduler.hold("one")
        run.metadata.crash("one")
        assert await two.get("/a") is None
        await trio.sleep(5.0)
        assert (await two.get("/a") is not None) is done

    for seed in range(5):
        Run(seed, None).play(body)


def test_a_dead_host_loses_its_ephemeral_records_after_the_session_timeout() -> None:
    async def body(run: Run) -> None:
        one, two = await run.host("one"), await run.host("two")
        await one.create("/e", b"", ephemeral=True)
        run.scheduler.hold("one")
        run.metadata.crash("one")
        await trio.sleep(1.9)
        assert await two.get("/e") is not None
        await trio.sleep(0.2)
        assert await two.get("/e") is None

    Run(1, None).play(body)


def test_a_dead_host_does_not_ping_again_when_its_link_is_mended() -> None:
    """Once, a broker that was killed just before the end of the storm owned its topics forever."""

    async def body(run: Run) -> None:
        one, two = await run.host("one"), await run.host("two")
        await one.create("/e", b"", ephemeral=True)
        run.scheduler.hold("one")
        run.metadata.crash("one")
        run.metadata.heal("one")
        await trio.sleep(2.1)
        assert await two.get("/e") is None

    Run(1, None).play(body)


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_a_paused_host_learns_of_its_loss_when_it_goes_on(seconds: float) -> None:
    async def body(run: Run) -> None:
        one, two = await run.host("one"), await run.host("two")
        await one.create("/e", b"", ephemeral=True)
        states: list[SessionState] = []
        one.add_session_listener(states.append)
        run.scheduler.hold("one")
        run.metadata.pause("one")
        await trio.sleep(seconds)
        lost = seconds > 2.0
        assert (await two.get("/e") is None) is lost
        assert one.session_state is SessionState.CONNECTED  # its own belief
        run.metadata.resume("one")
        run.scheduler.release("one")
        await trio.sleep(5.0)
        assert states == ([SessionState.LOST, SessionState.CONNECTED] if lost else [])

    Run(1, None).play(body)


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_a_host_that_is_cut_off_is_suspended_then_lost(seconds: float) -> None:
    async def body(run: Run) -> None:
        one = await run.host("one")
        states: list[SessionState] = []
        one.add_session_listener(states.append)
        run.metadata.cut("one")
        await trio.sleep(seconds)
        assert states == [SessionState.SUSPENDED]
        run.metadata.heal("one")
        await trio.sleep(1.0)
        if seconds > 2.0:
            assert states[1:] == [SessionState.LOST, SessionState.CONNECTED]
        else:
            assert states[1:] == [SessionState.CONNECTED]

    Run(1, None).play(body)


STALE = Odds(stale=0.5, stale_s=(0.5, 1.0))


def test_reads_may_be_old_and_never_go_back() -> None:
    seen: list[int] = []

    async def body(run: Run) -> None:
        writer, reader = await run.host("writer"), await run.host("reader")
        await writer.create("/a", b"")
        for number in range(100):
            await writer.set("/a", b"%d" % number, number)
            record = await reader.get("/a")
            if record is not None:
                seen.append(record.stat.version)
                own = await writer.get("/a")
                assert own is not None
                assert own.stat.version == number + 1, "its own writes are seen"

    Run(1, STALE).play(body)
    assert seen == sorted(seen)
    assert 10 < sum(version < number + 1 for number, version in enumerate(seen)) < 90


def test_after_a_sync_a_read_is_not_old() -> None:
    async def body(run: Run) -> None:
        writer, reader = await run.host("writer"), await run.host("reader")
        await writer.create("/a", b"")
        for number in range(50):
            await writer.set("/a", b"%d" % number, number)
            if number % 2:
                await reader.sync("/a")
                record = await reader.get("/a")
            else:
                record = await reader.get_newest("/a")
            assert record is not None
            assert record.stat.version == number + 1

    Run(1, STALE).play(body)


def test_a_watch_on_an_old_state_says_that_there_is_a_newer_one() -> None:
    async def body(run: Run) -> None:
        writer, reader = await run.host("writer"), await run.host("reader")
        await writer.create("/a", b"")
        await reader.sync("/a")
        for number in range(50):
            changed = trio.Event()
            await writer.set("/a", b"%d" % number, number)
            record = await reader.get("/a", changed.set)
            assert record is not None
            if record.stat.version < number + 1:
                with trio.fail_after(0.1):
                    await changed.wait()

    Run(1, STALE).play(body)


async def count_to_ten(run: Run) -> None:
    """Two hosts append numbers despite lost requests; in the end each number is there once."""
    hosts = [await run.host("one"), await run.host("two")]
    await run.metadata.store.session("setup").create("/a", b"")

    async def add(store: MetadataStore, number: int) -> None:
        def change(value: bytes) -> bytes | None:
            return None if number in value else value + bytes([number])

        while True:
            try:
                await update(store, "/a", change)
            except MetadataError:
                continue
            return

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(add, hosts[number % 2], number)
    await trio.sleep(Odds().late_s[1])
    record = await run.metadata.store.session("auditor").get("/a")
    assert record is not None
    assert sorted(record.value) == list(range(10))


@pytest.mark.parametrize("seed", range(10))
def test_updates_are_made_once_whatever_is_lost_or_late(seed: int) -> None:
    Run(seed, Odds(lose_request=0.1, lose_answer=0.1, late=0.1)).play(count_to_ten)


def test_one_seed_is_one_run() -> None:
    odds = Odds(lose_request=0.1, lose_answer=0.1, late=0.1)
    first = Run(7, odds).play(count_to_ten)
    assert Run(7, odds).play(count_to_ten) == first
    assert Run(8, odds).play(count_to_ten) != first


def test_notices_that_are_late_come_in_a_burst_and_never_behind_an_answer() -> None:
    async def body(run: Run) -> None:
        one, two = await run.host("one"), await run.host("two")
        heard: list[str] = []
        for path in ("/a", "/b"):
            await two.create(path, b"")
            await one.get(path, partial(heard.append, path))
        run.metadata.hold_notices("one")
        for path in ("/a", "/b"):
            await two.set(path, b"new", 0)
        await trio.sleep(5.0)
        assert heard == []
        record = await one.get("/b")
        assert record is not None
        assert (record.value, heard) == (b"new", ["/a", "/b"])
        await one.get("/a", lambda: heard.append("again"))
        await two.set("/a", b"newer", 1)
        await trio.sleep(1.0)
        assert heard == ["/a", "/b"]
        run.metadata.release_notices("one")
        await trio.sleep(0.1)
        assert heard == ["/a", "/b", "again"]

    Run(1, None).play(body)


def test_a_session_that_moves_lives_on_and_hears_what_it_has_missed() -> None:
    async def body(run: Run) -> None:
        one, two = await run.host("one"), await run.host("two")
        await one.create("/e", b"", ephemeral=True)
        heard: list[str] = []
        states: list[SessionState] = []
        one.add_session_listener(states.append)
        await one.get("/e", lambda: heard.append("/e"))
        run.metadata.hold_notices("one")
        await two.set("/e", b"new", 0)
        await trio.sleep(1.0)
        assert heard == []
        run.metadata.release_notices("one")
        run.metadata.move("one")
        await trio.sleep(1.0)
        assert heard == ["/e"]
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert await two.get("/e") is not None

    Run(1, None).play(body)
