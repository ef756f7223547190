"""A small cluster for sessions: one bookie and one broker, whole, on streams and a disk in memory.

    play(scenario)           async def scenario(world: World)

Time is virtual and jumps.  An error that a host logs or dies of is a finding; so is a task or
a connection that remains when all clients are gone.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

import structlog
import trio
from starlette.types import ASGIApp
from structlog.typing import EventDict
from trio.testing import MockClock

from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.host import RunningBookie, run_bookie
from daybook.bookie.server.security import SecurityOfBookie
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.segments import ReadLimits
from daybook.broker.config import BrokerConfig, QuorumsConfig
from daybook.broker.server import RunningBroker, run_broker
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.logging import Log
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Stream
from tests.fuzz.target import require
from tests.harness.clocks import VirtualClock
from tests.harness.disk import Platter
from tests.harness.network import SimulatedNetwork

BOOKIE, BROKER = "bookie", "broker"
BOOKIE_PORT, BROKER_PORT = 3181, 6650
FRAME_BYTES_MAX = 1 << 16
_MIB = 1 << 20
_PATIENCE_S = 300.0
_TIDY_S = 6.0  # longer than the wait for a broken peer


class AppPort:
    """Replaces an HTTP port: keeps the application, which is then called without HTTP."""

    port = 8080

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def serve(
        self, app: ASGIApp, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self.app = app
        task_status.started()
        await trio.sleep_forever()


@dataclass(frozen=True, slots=True)
class SecuredBookie:
    """The security of the bookie, and the settings that belong to it."""

    security: SecurityOfBookie
    settings: Callable[[BookieConfig], BookieConfig]


@dataclass(slots=True)
class World:
    nursery: trio.Nursery
    network: SimulatedNetwork
    flusher: Flusher
    errors: list[str]
    port: AppPort = field(default_factory=AppPort)
    arenas: ArenaPool = field(default_factory=ArenaPool)
    bookie: RunningBookie | None = None
    broker: RunningBroker | None = None
    clients: int = 0

    async def dial(self, host: str, port: int) -> Stream:
        self.clients += 1
        return await self.network.of(f"client-{self.clients}").connect(host, port)

    async def connect(self, host: str, port: int) -> FrameConnection:
        return FrameConnection(
            await self.dial(host, port),
            arenas=self.arenas,
            flusher=self.flusher,
            frame_bytes_max=8 * _MIB,
        )

    def check_log(self) -> None:
        require(not self.errors, "a host logs an error: " + "; ".join(self.errors[:3]))


def _log(errors: list[str]) -> Log:
    def keep(_: object, level: str, event: EventDict) -> EventDict:
        if level == "error":
            error = event.get("exc_info")
            errors.append(f"{event['event']}: {error!r}")
            if isinstance(error, Exception):
                raise error  # The traceback says more, and ends the host.
        raise structlog.DropEvent

    log: Log = structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
    )
    return log


@asynccontextmanager
async def open_world(
    *, with_broker: bool, secured: SecuredBookie | None = None
) -> AsyncGenerator[World]:
    network = SimulatedNetwork(Random(1), delay_s=(0.0001, 0.0001))
    metadata, platter = MemoryStore(VirtualClock()), Platter(Random(2))
    errors: list[str] = []
    async with trio.open_nursery() as nursery:
        world = World(nursery, network, Flusher(), errors)
        nursery.start_soon(world.flusher.run)
        world.bookie = await nursery.start(
            partial(
                run_bookie,
                _BOOKIE_CONFIG if secured is None else secured.settings(_BOOKIE_CONFIG),
                network=network.of(BOOKIE),
                metadata=metadata.session(BOOKIE),
                disk=platter.mount(),
                index=platter.indexes().open,
                clock=VirtualClock(),
                rng=Random(3),
                log=_log(errors),
                store_limits=_STORE_LIMITS,
                security=None if secured is None else secured.security,
            )
        )
        if with_broker:
            world.broker = await nursery.start(
                partial(
                    run_broker,
                    _BROKER_CONFIG,
                    store=metadata.session(BROKER),
                    network=network.of(BROKER),
                    clock=VirtualClock(),
                    rng=Random(4),
                    http=world.port,
                    log=_log(errors),
                )
            )
        yield world
        nursery.cancel_scope.cancel()


_BOOKIE_CONFIG = BookieConfig(directories=("d0",), port=BOOKIE_PORT, host=BOOKIE)
_STORE_LIMITS = StoreLimits(
    log=LogLimits(segment_bytes=_MIB, reading=ReadLimits(window_bytes=1 << 16)),
    checkpoint_entries=8,
    free_bytes_min=0,
)
_BROKER_CONFIG = BrokerConfig(
    name=BROKER,
    host=BROKER,
    port=BROKER_PORT,
    quorums=QuorumsConfig(1, 1, 1),
    roll_entries=7,
    roll_age_min_s=0.0,
    keep_alive_s=30.0,
)


def play(
    scenario: Callable[[World], Awaitable[None]],
    *,
    with_broker: bool = True,
    secured: SecuredBookie | None = None,
) -> None:
    trio.run(_play, scenario, with_broker, secured, clock=MockClock(autojump_threshold=0))


async def _play(
    scenario: Callable[[World], Awaitable[None]], with_broker: bool, secured: SecuredBookie | None
) -> None:
    with trio.fail_after(_PATIENCE_S * 10):
        async with open_world(with_broker=with_broker, secured=secured) as world:
            await scenario(world)
            world.check_log()


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for the condition.  Time is virtual: a condition that never holds is a finding."""
    with trio.move_on_after(_PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)
        return
    require(False, what)


async def settle(world: World) -> None:
    """Wait until broken clients are gone, and check that nothing of them remains."""
    await trio.sleep(_TIDY_S)
    world.check_log()
