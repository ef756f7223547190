"""Operations of administrators, carried out by any broker that can."""

from collections.abc import Awaitable, Callable
from functools import partial

from daybook.broker.admin.operations import Operations
from daybook.broker.errors import BrokerError, NotFoundError, NotOwnerError
from tests.simulation.cluster import HostDiedError
from tests.simulation.workloads.scene import Scene

_TRIES = 6
_AGAIN_S = 0.5

Operate = Callable[[Operations], Awaitable[object]]


class NotDoneError(Exception):
    """No broker confirmed the operation; it may have been carried out."""


async def ask(scene: Scene, name: str, operate: Operate) -> None:
    """Ask brokers until one carries out the operation.  Raise NotDoneError if none confirms it.

    `name` is that of the work.  NotFoundError passes: it is an answer.
    """
    cluster, rng = scene.cluster, scene.rng(name)
    brokers = scene.plan.shape.broker_names()
    rng.shuffle(brokers)
    for _round in range(_TRIES):
        for broker in brokers:
            running = cluster.broker(broker)
            if running is None:
                continue
            operations = running.operations
            try:
                await cluster.call(broker, partial(operate, operations))
            except NotFoundError:
                raise
            except NotOwnerError:
                continue
            except (BrokerError, HostDiedError):
                raise NotDoneError from None
            else:
                return
        if await scene.wait_calm(_AGAIN_S):
            break
    raise NotDoneError


async def ask_until_done(scene: Scene, name: str, operate: Operate) -> None:
    """Ask again and again.  NotFoundError passes."""
    while True:
        try:
            await ask(scene, name, operate)
        except NotDoneError:  # Time has to pass, also when everybody is to leave.
            await scene.cluster.run.sleep(_AGAIN_S)
        else:
            return
