"""Hosts of the simulated cluster: which tasks belong to which host."""

from random import Random
from typing import cast

import msgspec
import trio

from daybook.broker.errors import CannotJoinError
from daybook.broker.server import RunningBroker, run_broker
from tests.harness.disk import Platter
from tests.simulation import scheduler
from tests.simulation.cluster import Cluster, Life, start_cluster
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
    """Seed 9, once: operations that had waited since the first time waited forever."""
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


def test_a_broker_with_the_ledgers_of_another_root_is_refused_and_touches_nothing() -> None:
    """Two clusters by accident share one metadata store, with different `ledgers_root`s."""

    async def main(handle: Scheduler) -> None:
        async with trio.open_nursery() as nursery:
            cluster = await start_cluster(handle, 1, nursery, brokers=1)
            said: list[str] = []

            async def stranger(life: Life, status: trio.TaskStatus[object]) -> None:
                seams = cluster.seams(life)
                config = msgspec.structs.replace(
                    cluster.settings.broker(life.host), ledgers_root="/other", cluster="other"
                )
                try:
                    async with seams.metadata.open(life.host) as session:
                        await run_broker(
                            config,
                            store=session,
                            network=seams.network,
                            clock=seams.clock,
                            rng=seams.chance(),
                            task_status=cast("trio.TaskStatus[RunningBroker]", status),
                        )
                except BaseExceptionGroup as group:
                    refused, others = group.split(CannotJoinError)
                    assert refused is not None
                    assert others is None
                    said.append(str(_leaf(refused)))
                    status.started(None)

            await trio.sleep(5.0)  # Wait until there is a leader.
            before = _records(cluster)
            await cluster.live("broker-9", stranger)
            await trio.sleep(5.0)
            assert len(said) == 1
            assert "cannot join" in said[0]
            assert _records(cluster) == before
            assert cluster.broker("broker-1") is not None
            assert cluster.deaths == []
            cluster.end()

    scheduler.run(main, seed=1)


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _records(cluster: Cluster) -> dict[str, tuple[bytes, int]]:
    nodes = cluster.metadata.tree._nodes
    return {path: (node.value, node.version) for path, node in nodes.items()}
