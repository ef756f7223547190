"""Carries faults out, several at once, and notes when each began and ended."""

import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import trio

from tests.history import events
from tests.history.recorder import Recorder
from tests.soak.faults import Fault
from tests.soak.ledgers.cluster import Cluster
from tests.soak.ledgers.faults import (
    DAMAGED_INDEX,
    EVERYTHING,
    MOODS,
    NO_INDEX,
    ROT,
    RUIN,
    Budget,
    draw_fault,
    draw_kind,
)
from tests.soak.ledgers.moods import FINE
from tests.soak.links import FINE as FINE_WEATHER
from tests.soak.old_image import OLD_IMAGE, put_back, take_image

_POWER = 0.02
_PACE_S = 2.0
_ROT_BYTES = 64
_DOWN_FROM_S = 3.0  # a bookie whose index is damaged for longer is down meanwhile
_YOUNG_BYTES = 256 << 10  # at the end of a file: it may be written again any moment


class Nemesis:
    """`strike` for a while; it returns when nothing is broken any more."""

    def __init__(
        self, cluster: Cluster, recorder: Recorder, rng: Random, faults: Counter[str]
    ) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._rng = rng
        self._faults = faults  # by kind
        self._budget = Budget(cluster.names("bookie"), cluster.names("worker"))
        self._number = 0
        self._power_due = False  # it strikes alone: until the others are over nothing else begins
        self._over = trio.Event()

    async def strike(self, seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(seconds):
                while True:
                    await trio.sleep(self._rng.expovariate(1 / _PACE_S))
                    self._strike_once(nursery)
            self._over.set()

    def _strike_once(self, nursery: trio.Nursery) -> None:
        rng = self._rng
        self._power_due = self._power_due or rng.random() < _POWER
        kind = EVERYTHING if self._power_due else draw_kind(rng)
        free = self._budget.free(kind)
        if not free:
            return
        self._power_due = False
        fault = draw_fault(rng, rng.choice(free))
        self._budget.take(fault.subject)
        nursery.start_soon(self._carry_out, fault)

    async def _carry_out(self, fault: Fault) -> None:
        self._number += 1
        name = f"fault-{self._number}"
        self._recorder.note(events.Fault(name, str(fault)))
        self._faults[fault.kind] += 1
        await self._begin(fault)
        with trio.move_on_after(fault.seconds):
            await self._over.wait()
        await self._end(fault)
        self._recorder.note(events.FaultEnd(name))
        self._budget.give_back(fault.subject)

    async def _begin(self, fault: Fault) -> None:
        match fault.act:
            case "kill" | "pause":
                await self._cluster.order(fault.act, *self._parts(fault))
            case "disk":
                await self._begin_disk(fault)
            case _ if fault.act == OLD_IMAGE:
                data = self._cluster.data(fault.subject)
                await take_image(self._cluster.order, fault.subject, data)
            case _:
                link = self._cluster.links[fault.link]
                link.weather = fault.weather
                if fault.cut:
                    link.cut()

    async def _end(self, fault: Fault) -> None:
        match fault.act:
            case "kill":
                await self._cluster.order("start", *self._parts(fault))
            case "pause":
                await self._cluster.order("resume", fault.subject)
            case "disk":
                await self._end_disk(fault)
            case _ if fault.act == OLD_IMAGE:
                data = self._cluster.data(fault.subject)
                await put_back(self._cluster.order, fault.subject, data)
            case _:
                link = self._cluster.links[fault.link]
                if fault.cut:
                    link.cut()
                link.weather = FINE_WEATHER

    async def _begin_disk(self, fault: Fault) -> None:
        bookie = fault.subject
        match fault.what:
            case _ if fault.what in MOODS:
                self._cluster.moods(bookie).write(MOODS[fault.what])
            case _ if fault.what == NO_INDEX:
                await self._cluster.order("kill", bookie)
                for index in self._cluster.data(bookie).glob("index*"):
                    remove = partial(shutil.rmtree, index, ignore_errors=True)
                    await trio.to_thread.run_sync(remove)
            case _ if fault.what == DAMAGED_INDEX:
                # Half of the time the bookie meets it when it starts.
                if fault.seconds > _DOWN_FROM_S:
                    await self._cluster.order("kill", bookie)
                data = self._cluster.data(bookie)
                await trio.to_thread.run_sync(damage_index, data, self._rng)
            case _:
                assert fault.what == ROT, fault
                await trio.to_thread.run_sync(rot, self._cluster.data(bookie) / "log", self._rng)

    async def _end_disk(self, fault: Fault) -> None:
        bookie = fault.subject
        if fault.what in MOODS:
            self._cluster.moods(bookie).write(FINE)
        if fault.what in RUIN:
            await self._cluster.order("kill", bookie)
        killed = fault.what == DAMAGED_INDEX and fault.seconds > _DOWN_FROM_S
        if fault.what in RUIN or fault.what == NO_INDEX or killed:
            await self._cluster.order("start", bookie)

    def _parts(self, fault: Fault) -> list[str]:
        if fault.subject != EVERYTHING:
            return [fault.subject]
        kinds = ("worker", "bookie", "zookeeper")
        return [name for kind in kinds for name in self._cluster.names(kind)]


def damage_index(data: Path, rng: Random) -> bool:
    """Change bytes of a file of the index in several places; whether there was one to change."""
    tables = [path for path in data.glob("index*/*.sst") if path.stat().st_size]
    if not tables:
        return False
    table = rng.choice(tables)
    size = table.stat().st_size
    descriptor = os.open(table, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for _ in range(rng.choice([1, 5, 20])):
            os.pwrite(descriptor, rng.randbytes(min(_ROT_BYTES, size)), rng.randrange(size))
        os.truncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def rot(log: Path, rng: Random) -> bool:
    """Change some bytes of a segment, behind everybody's back; whether there were any to change."""
    segments = sorted(log.glob("*.log"))
    sizes = [max(0, each.stat().st_size - _YOUNG_BYTES) for each in segments]
    if not sum(sizes):
        return False
    (segment,) = rng.choices(segments, weights=sizes)
    offset = rng.randrange(sizes[segments.index(segment)])
    descriptor = os.open(segment, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, rng.randbytes(_ROT_BYTES), offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True
