"""Hosts of the simulated cluster: whose work is whose."""

import trio

from tests.simulation import scheduler
from tests.simulation.cluster import Cluster, Life
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
