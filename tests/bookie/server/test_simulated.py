"""A bookie on simulated seams: power fails during writes, and one seed gives one run."""

import random
from contextlib import suppress

import pytest
import trio

from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.host import RunningBookie, run_bookie
from daybook.bookie.storage.limits import StoreLimits
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError
from daybook.wire.messages.bookie import (
    FRAME_BYTES_MAX,
    ReadAnswer,
    Status,
    decode_add_answers,
    decode_answer,
    encode_read,
)
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.outbox import Flusher
from tests.bookie.server.peer import KEY, add_frame, make_entry
from tests.harness.clocks import VirtualClock
from tests.harness.disk import HostCrashedError, Platter
from tests.harness.network import SimulatedNetwork
from tests.simulation import scheduler
from tests.simulation.scheduler import HOST, Scheduler

PORT = 3181
LIVES = 4


class World:
    """One bookie and its clients in one run."""

    def __init__(self, run: Scheduler, seed: int, nursery: trio.Nursery) -> None:
        self.rng = random.Random(seed)
        self.run = run
        self.network = SimulatedNetwork(self.rng, trace=run.record)
        self.platter = Platter(self.rng, latency_s=(0.0002, 0.004))
        self.metadata = MemoryStore(VirtualClock())
        self.nursery = nursery
        self.acknowledged: dict[int, bytes] = {}
        self.fenced: list[int] = []
        self.next_entry = 0
        self._lives: list[tuple[str, trio.CancelScope]] = []
        self._session: MemorySession | None = None

    async def start(self) -> None:
        name = f"bookie#{len(self._lives)}"
        session = self._session = self.metadata.session(name)
        scope = trio.CancelScope()
        self._lives.append((name, scope))

        async def live(*, task_status: trio.TaskStatus[RunningBookie]) -> None:
            HOST.set(name)
            try:
                with scope:
                    await run_bookie(
                        BookieConfig(directories=("d0",), port=PORT, host="bookie"),
                        network=self.network.of("bookie"),
                        metadata=session,
                        disk=self.platter.mount(),
                        index=self.platter.indexes().open,
                        clock=VirtualClock(),
                        rng=self.rng,
                        store_limits=StoreLimits(checkpoint_entries=40),
                        task_status=task_status,
                    )
            except (HostCrashedError, BaseExceptionGroup):
                assert session is not self._session, "it died by itself"

        await self.nursery.start(live)

    def cut_power(self) -> None:
        """End the process: nothing of it runs again; its `finally`s wait for the run's end."""
        name, _ = self._lives[-1]
        assert self._session is not None
        self.run.hold(name)
        self.network.crash("bookie")
        self.platter.lose_power()
        self._session.crash()
        self._session = None

    def end(self) -> None:
        self._session = None
        for name, scope in self._lives:
            self.run.release(name)
            scope.cancel()

    async def dial(self, flusher: Flusher) -> FrameConnection:
        stream = await self.network.of("client").connect("bookie", PORT)
        return FrameConnection(
            stream, arenas=ArenaPool(), flusher=flusher, frame_bytes_max=FRAME_BYTES_MAX
        )

    async def write(self, flusher: Flusher) -> None:
        """Add to ledger 7, a few at a time, until the connection breaks."""
        with suppress(ConnectionLostError):
            connection = await self.dial(flusher)
            sent: dict[int, bytes] = {}
            while not connection.closed:
                for _ in range(self.rng.randint(1, 8)):
                    payload = self.rng.randbytes(self.rng.randint(0, 3000))
                    sent[self.next_entry] = payload
                    connection.send([add_frame(7, self.next_entry, payload)])
                    self.next_entry += 1
                runs, _ = decode_add_answers(await connection.receive())
                for run in runs:
                    assert run.status == Status.OK
                    for entry_id in range(run.first, run.last + 1):
                        self.acknowledged[entry_id] = sent[entry_id]

    async def fence(self, flusher: Flusher, ledger_id: int) -> None:
        with suppress(ConnectionLostError):
            connection = await self.dial(flusher)
            connection.send([encode_read(ledger_id, -1, fence_key=KEY)])
            if await connection.receive():
                self.fenced.append(ledger_id)

    async def check(self, flusher: Flusher) -> None:
        connection = await self.dial(flusher)
        for entry_id, payload in self.acknowledged.items():
            connection.send([encode_read(7, entry_id)])
            (frame,) = await connection.receive()
            answer = decode_answer(frame)
            assert isinstance(answer, ReadAnswer)
            assert answer.status == Status.OK, f"entry {entry_id} is gone"
            assert answer.entry == make_entry(7, entry_id, payload)
        for ledger_id in self.fenced:
            connection.send([add_frame(ledger_id, 0)])
            (run,), _ = decode_add_answers(await connection.receive())
            assert run.status == Status.FENCED
        connection.close()


async def power_cuts(run: Scheduler, seed: int) -> tuple[int, int]:
    async with trio.open_nursery() as nursery:
        world = World(run, seed, nursery)
        flusher = Flusher()
        nursery.start_soon(flusher.run)
        for life in range(LIVES):
            await world.start()
            await world.check(flusher)
            nursery.start_soon(world.write, flusher)
            await trio.sleep(world.rng.uniform(0.01, 0.3))
            nursery.start_soon(world.fence, flusher, 100 + life)
            await trio.sleep(world.rng.uniform(0, 0.02))
            world.cut_power()
            await trio.sleep(0.01)
        await world.start()
        await world.check(flusher)
        world.end()
        nursery.cancel_scope.cancel()
    return len(world.acknowledged), len(world.fenced)


def play(seed: int) -> tuple[int, int, str]:
    traces: list[Scheduler] = []

    async def main(run: Scheduler) -> tuple[int, int]:
        traces.append(run)
        return await power_cuts(run, seed)

    acknowledged, fenced = scheduler.run(main, seed=seed)
    return acknowledged, fenced, traces[0].trace.hexdigest()


@pytest.mark.parametrize("seed", range(8))
def test_what_was_acknowledged_survives_power_cuts(seed: int) -> None:
    acknowledged, _, _ = play(seed)
    assert acknowledged > 10


def test_one_seed_is_one_run() -> None:
    assert play(3) == play(3)
    assert play(3)[2] != play(4)[2]
