"""The process on a client's host: its actors, and their connections."""

from collections.abc import Sequence

import trio

from daybook.clients import ledgers
from tests.simulation.cluster import Life
from tests.simulation.plan import (
    Administer,
    Carry,
    Consume,
    Follow,
    Latest,
    LedgerWork,
    ManyTopics,
    Produce,
    Restrict,
    Spoil,
    WatchLedgers,
    Work,
    WriteLedgers,
)
from tests.simulation.workloads.administer import administer
from tests.simulation.workloads.consume import consume
from tests.simulation.workloads.follow import follow
from tests.simulation.workloads.latest import follow_latest
from tests.simulation.workloads.ledgers import watch_ledgers, write_ledgers
from tests.simulation.workloads.many_topics import use_many_topics
from tests.simulation.workloads.produce import produce
from tests.simulation.workloads.restrict import restrict
from tests.simulation.workloads.routes import carry
from tests.simulation.workloads.scene import Scene
from tests.simulation.workloads.spoil import spoil

_AGAIN_S = 0.3


async def run_client(
    scene: Scene, work: Sequence[Work], life: Life, status: trio.TaskStatus[object]
) -> None:
    """Run the actors of one client host; return when all have ended."""
    of_ledgers = [each for each in work if isinstance(each, LedgerWork)]
    async with scene.connect(life) as client, trio.open_nursery() as nursery:
        status.started(client)
        if of_ledgers:
            nursery.start_soon(_work_on_ledgers, scene, of_ledgers, life)
        for each in work:
            match each:
                case Produce():
                    nursery.start_soon(produce, scene, client, each)
                case Consume():
                    nursery.start_soon(consume, scene, client, each)
                case Follow():
                    nursery.start_soon(follow, scene, client, each)
                case Latest():
                    nursery.start_soon(follow_latest, scene, client, each)
                case Spoil():
                    nursery.start_soon(spoil, scene, client, each)
                case Administer():
                    nursery.start_soon(administer, scene, client, each)
                case Restrict():
                    nursery.start_soon(restrict, scene, each)
                case Carry():
                    nursery.start_soon(carry, scene, client, each)
                case ManyTopics():
                    nursery.start_soon(use_many_topics, scene, client, each)
                case WriteLedgers() | WatchLedgers():
                    pass


async def _work_on_ledgers(scene: Scene, work: Sequence[LedgerWork], life: Life) -> None:
    while not scene.calm.is_set():
        try:
            async with scene.connect_ledgers(life) as client, trio.open_nursery() as nursery:
                for each in work:
                    match each:
                        case WriteLedgers():
                            nursery.start_soon(write_ledgers, scene, client, each)
                        case WatchLedgers():
                            nursery.start_soon(watch_ledgers, scene, client, each)
        except* ledgers.LedgerError:  # The client could not even begin.
            await scene.wait_calm(_AGAIN_S)
        else:
            break
