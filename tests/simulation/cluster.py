"""A whole cluster in one trio program: bookies, brokers and clients as hosts on simulated seams.

A host is a nursery whose tasks carry its name; killing it holds them back forever and shuts its
seams, so that no `finally` of it runs before the whole run is over.  Its disk stays, less the
writes that a loss of power takes.

A host that ends by itself, with an error that no operator could have caused, is a bug: it is kept
in `deaths`.  So is an error that a host logs.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar, cast

import trio

from daybook.bookie.server.host import START_ERRORS, RunningBookie
from daybook.broker.server import RunningBroker
from daybook.wire.metadata.store import MetadataError
from tests.harness.clocks import VirtualClock
from tests.harness.disk import HostCrashedError, Platter
from tests.harness.network import SimulatedNetwork
from tests.simulation.host_log import HostLogs
from tests.simulation.hosts import Seams, serve_bookie, serve_broker
from tests.simulation.metadata import Odds, SimulatedMetadata
from tests.simulation.scheduler import HOST, Scheduler
from tests.simulation.settings import BROKER_PORT, Settings

_START_AGAIN_S = 1.0
_EXPECTED = (*START_ERRORS, MetadataError)  # errors that an operator may see

T = TypeVar("T")
Main = Callable[["Life", trio.TaskStatus[object]], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Life:
    """One process of a host."""

    host: str
    name: str  # the name of this process: `bookie-1#3`
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    nursery: trio.Nursery | None = None
    running: object = None  # the value that it reported when it was ready
    ended: trio.Event = field(default_factory=trio.Event)
    stopping: bool = False


class HostDiedError(Exception):
    """The host died during the call; nobody knows how far the call got."""


class Cluster:
    """All hosts of one run.  Names: `bookie-1`, `broker-2`, and those of clients."""

    def __init__(
        self,
        run: Scheduler,
        seed: int | str,
        nursery: trio.Nursery,
        settings: Settings | None = None,
        say: Callable[[str, str], None] | None = None,
    ) -> None:
        self.run = run
        self.settings = settings or Settings()
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.logs = HostLogs(say)
        self.network = SimulatedNetwork(
            random.Random(self.rng.random()),
            trace=run.record,
            timers=run,
            split=self.settings.split,
        )
        self.metadata = SimulatedMetadata(
            random.Random(self.rng.random()),
            self.clock,
            session_timeout_s=self.settings.session_timeout_s,
            odds=Odds(),
            trace=run.record,
            timers=run,
            grouped=self.settings.grouped_writes,
        )
        self.platters: dict[str, Platter] = {}
        self.lives: dict[str, Life] = {}
        self.gone: dict[str, str] = {}  # hosts that never run again, and why
        self.forgiven: dict[str, None] = {}  # bookies that may start without their earlier data
        self.deaths: list[str] = []
        self.disk_tap: Callable[[str, str], None] | None = None
        self._seed = seed
        self._clocks: dict[str, VirtualClock] = {}
        self._nursery = nursery
        self._dead: list[Life] = []
        self._count = 0

    # -- hosts

    async def start(self, name: str) -> None:
        """Start `bookie-N` or `broker-N`, with the disk that it had; return when it serves."""
        main = self._bookie if name.startswith("bookie") else self._broker
        await self.live(name, main)

    async def live(self, name: str, main: Main) -> None:
        """Start a process on the host; return when it is ready, or dead."""
        assert name not in self.lives, f"{name} is running"
        self._count += 1
        life = self.lives[name] = Life(name, f"{name}#{self._count}")
        ready = trio.Event()
        self._nursery.start_soon(self._live, life, main, ready)
        await ready.wait()

    async def _live(self, life: Life, main: Main, ready: trio.Event) -> None:
        HOST.set(life.name)

        async def serve(*, task_status: trio.TaskStatus[object]) -> None:
            with life.scope:
                await main(life, task_status)
            if life.nursery is not None:
                # End the process, also for tasks that other hosts asked for.
                life.nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as life.nursery:
                life.running = await life.nursery.start(serve)
                ready.set()
        except (HostCrashedError, BaseExceptionGroup, Exception) as error:
            if self.lives.get(life.host) is life and not life.stopping:
                self._died(life, error)
        finally:
            life.nursery = None
            if self.lives.get(life.host) is life:
                self._bury(life)
            life.ended.set()
            ready.set()

    def _died(self, life: Life, error: BaseException) -> None:
        """Note that the host ended by itself: an operator's error is logged, any other is a bug."""
        unexpected = [each for each in _leaves(error) if not isinstance(each, _EXPECTED)]
        text = "; ".join(f"{type(each).__name__}: {each}" for each in unexpected or _leaves(error))
        self.logs.of(life.host).warning("died", why=text)
        if unexpected:
            self.deaths.append(f"{life.name} died: {text}")

    def _bury(self, life: Life) -> None:
        del self.lives[life.host]
        self.network.crash(life.host)
        self.metadata.crash(life.host)
        platter = self.platters.get(life.host)
        if platter is not None:
            platter.kill()

    async def _bookie(self, life: Life, status: trio.TaskStatus[object]) -> None:
        ready = cast("trio.TaskStatus[RunningBookie]", status)
        platter, forgiven = self.platter(life.host), life.host in self.forgiven
        await serve_bookie(self.seams(life), platter, self.settings, ready, forgiven=forgiven)

    async def _broker(self, life: Life, status: trio.TaskStatus[object]) -> None:
        ready = cast("trio.TaskStatus[RunningBroker]", status)
        await serve_broker(self.seams(life), self.settings, ready)

    def seams(self, life: Life) -> Seams:
        """Return the seams of a process."""
        return Seams(
            host=life.host,
            seed=f"{self._seed}/{life.name}",
            network=self.network.of(life.host),
            metadata=self.metadata,
            clock=self.clock_of(life.host),
            log=self.logs.of(life.host),
        )

    def platter(self, host: str) -> Platter:
        if host not in self.platters:

            def tap(operation: str) -> None:
                if self.disk_tap is not None:
                    self.disk_tap(host, operation)

            rng = random.Random(f"{self._seed}/{host}/disk")
            self.platters[host] = Platter(
                rng, latency_s=(0.0002, 0.002), sleep=self.run.sleep, tap=tap
            )
        return self.platters[host]

    def clock_of(self, host: str) -> VirtualClock:
        return self._clocks.setdefault(host, VirtualClock())

    def broker(self, name: str) -> RunningBroker | None:
        life = self.lives.get(name)
        running = None if life is None else life.running
        return running if isinstance(running, RunningBroker) else None

    def bookie(self, name: str) -> RunningBookie | None:
        life = self.lives.get(name)
        running = None if life is None else life.running
        return running if isinstance(running, RunningBookie) else None

    async def call(self, host: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` in a task of the host.  Raise HostDiedError if the host dies meanwhile."""
        life = self.lives.get(host)
        if life is None or life.nursery is None or life.running is None:
            raise HostDiedError(host)
        done, results, errors = trio.Event(), list[T](), list[Exception]()

        async def task() -> None:
            HOST.set(life.name)  # the tasks it starts belong to this host, whoever asked for them
            try:
                results.append(await work())
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        life.nursery.start_soon(task)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_first, done, nursery.cancel_scope)
            nursery.start_soon(_first, life.ended, nursery.cancel_scope)
        if errors:
            raise errors[0]
        if not results:
            raise HostDiedError(host)
        return results[0]

    # -- faults

    def kill(
        self, name: str, *, power: bool = False, torn: bool = False, silent: bool = False
    ) -> None:
        """Kill the process; with `power`, unsynced writes of its disk are lost, too.

        With `silent` the machine vanishes as well, and nobody is told.  With `torn` a part of the
        data under way still arrives.
        """
        life = self.lives.pop(name)
        self._dead.append(life)
        self.run.hold(life.name)
        if silent:
            self.network.vanish(name)
        else:
            self.network.crash(name, torn=torn)
        self.metadata.crash(name)
        platter = self.platters.get(name)
        if platter is not None:
            if power:
                platter.lose_power()
            else:
                platter.kill()
        life.ended.set()

    async def revive(self, name: str) -> None:
        """Start the host again, as often as it takes; a host that is gone stays down."""
        self.network.appear(name)
        while name not in self.lives and name not in self.gone:
            await self.start(name)
            if name not in self.lives and name not in self.gone:
                await self.run.sleep(_START_AGAIN_S)

    async def stop(self, name: str) -> None:
        """Stop the host in good order."""
        life = self.lives[name]
        life.stopping = True
        broker = self.broker(name)
        if broker is None:
            life.scope.cancel()
        else:
            with suppress(HostDiedError):
                await self.call(name, broker.stop)
        await life.ended.wait()

    def freeze(self, name: str) -> Life:
        """Hold back all tasks of the host, without its noticing; its connections stay."""
        life = self.lives[name]
        self.run.hold(life.name)
        self.metadata.pause(name)
        return life

    def thaw(self, life: Life) -> None:
        """Let the process go on, unless it was killed meanwhile."""
        if self.lives.get(life.host) is life:
            self.run.release(life.name)
            self.metadata.resume(life.host)

    def end(self) -> None:
        """End the run: dead hosts may unwind now; their seams are shut.

        Operations of a disk are shielded from cancellation, so no disk may hang any longer.
        """
        lives, self.lives = list(self.lives.values()), {}
        for platter in self.platters.values():
            platter.repair()
        for life in [*self._dead, *lives]:
            life.stopping = True
            self.run.release(life.name)
            life.scope.cancel()
            if life.nursery is not None:
                life.nursery.cancel_scope.cancel()

    @property
    def service_url(self) -> str:
        return f"pulsar://broker-1:{BROKER_PORT},broker-2:{BROKER_PORT}"


async def _first(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return [leaf for each in inner for leaf in _leaves(each)]
    return [error]


async def start_cluster(
    run: Scheduler,
    seed: int,
    nursery: trio.Nursery,
    *,
    bookies: int = 3,
    brokers: int = 2,
) -> Cluster:
    """Run a cluster; it serves when the body begins."""
    cluster = Cluster(run, seed, nursery)
    for i in range(bookies):
        await cluster.start(f"bookie-{i + 1}")
    for i in range(brokers):
        await cluster.start(f"broker-{i + 1}")
    return cluster


async def eventually(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Let virtual time pass until the condition holds."""
    with trio.fail_after(timeout_s):
        while not condition():
            with suppress(trio.TooSlowError):
                await trio.sleep(0.05)
