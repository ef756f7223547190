"""Hosts of the simulated cluster: whose work is whose."""

from random import Random

import trio

from tests.simulation import scheduler
from tests.simulation.cluster import Cluster, Life
from tests.simulation.disk import Platter
from tests.simulation.scheduler import Scheduler


def test_what_a_host_is_asked_to_do_is_its_own_whoever_asks() -> None:
    """Seed 100432, once: topics that were loaded for an administrator died with its machine."""
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await trio.sleep(1.0)
            ticks.append(trio.current_time())

    async def main(handle: Scheduler) -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(handle, 1, nursery)

            async def broker(life: Life, status: trio.TaskStatus[object]) -> None:
                status.started(life)
                await trio.sleep_forever()

            async def client(life: Life, status: trio.TaskStatus[object]) -> None:
                async def work() -> None:
                    owner = cluster.lives["broker-1"].nursery
                    assert owner is not None
                    owner.start_soon(tick)

                await cluster.call("broker-1", work)
                await broker(life, status)

            await cluster.live("broker-1", broker)
            await cluster.live("client-1", client)
            await trio.sleep(1.5)
            cluster.kill("client-1", silent=True)
            await trio.sleep(2.0)
            cluster.end()

    scheduler.run(main, seed=1)
    assert ticks == [1.0, 2.0, 3.0]


def test_a_disk_that_is_stuck_twice_goes_on_when_it_is_repaired() -> None:
    """Seed 9, once: who had waited since the first time waited for ever."""
    done: list[str] = []

    async def main(handle: Scheduler) -> None:
        platter = Platter(Random(1), sleep=handle.sleep)

        async def operate(name: str) -> None:
            await platter.operate(name, platter.generation)
            done.append(name)

        async with trio.open_nursery() as nursery:
            for name in ("first", "second"):
                platter.stick()
                nursery.start_soon(operate, name)
                await trio.sleep(1.0)
            assert done == []
            platter.repair()

    scheduler.run(main, seed=1)
    assert sorted(done) == ["first", "second"]


def test_a_disk_that_hangs_lets_go_when_the_run_is_over() -> None:
    """Seed 601205, once: a run that had failed ended in a deadlock, and its trace was lost."""

    async def main(handle: Scheduler) -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(handle, 1, nursery)

            async def bookie(life: Life, status: trio.TaskStatus[object]) -> None:
                appender = cluster.platter(life.host).mount().open_appender()
                await appender.start("log", [b"x"])
                status.started(life)
                cluster.platter(life.host).stick()
                await appender.write([b"y"])

            await cluster.live("bookie-1", bookie)
            await trio.sleep(1.0)
            cluster.end()

    scheduler.run(main, seed=1)
