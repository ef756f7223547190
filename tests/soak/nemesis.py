"""The task that carries out faults, several at once, and records when each begins and ends."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from random import Random

import trio

from tests.harness.links import FINE as FINE_WEATHER
from tests.history import events
from tests.history.recorder import Recorder
from tests.soak.cluster import Cluster
from tests.soak.damage import copy_image, damage_index, remove_index, restore_image, rot
from tests.soak.disk import FINE as FINE_DISK
from tests.soak.faults import (
    BROKER,
    DAMAGED_INDEX,
    EVERYTHING,
    MOODS,
    NO_INDEX,
    OLD_IMAGE,
    ROT,
    RUIN,
    Budget,
    Fault,
    draw_fault,
    draw_layer,
)
from tests.soak.topics.workload import Topics

_OWNERS = 0.7  # the share of brokers' faults that hit the owner of a topic
_POWER = 0.02
_PACE_S = 1.5
_SETTLE_S = 5.0  # the time after a fault in which it still has effects: sessions, back-off
_DOWN_FROM_S = 3.0  # while its index is damaged for longer than this, the bookie is down


class Nemesis:
    """Breaks a cluster; `strike` returns when all faults have ended."""

    def __init__(
        self,
        cluster: Cluster,
        recorder: Recorder,
        rng: Random,
        counts: Counter[str],
        topics: Topics | None,
    ) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._rng = rng
        self._counts = counts  # the number of faults of each kind
        self._topics = topics
        self._layers = cluster.layers()
        self._budget = Budget({layer: cluster.names(layer) for layer in self._layers})
        self._number = 0
        self._ends_s: dict[str, float] = {}  # by fault; inf if it has not ended
        self._power_due = False  # a power failure waits for all other faults to end
        self._over = trio.Event()

    async def strike(self, seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(seconds):
                while True:
                    await trio.sleep(self._rng.expovariate(1 / _PACE_S))
                    await self._strike_once(nursery)
            self._over.set()

    async def _strike_once(self, nursery: trio.Nursery) -> None:
        rng = self._rng
        self._power_due = self._power_due or rng.random() < _POWER
        layer = EVERYTHING if self._power_due else draw_layer(rng, self._layers)
        topic = owner = None
        if layer == BROKER and self._topics is not None and rng.random() < _OWNERS:
            topic = rng.choice(self._topics.concrete_topics())
            owner = await self._cluster.owner_of(topic)
        free = self._budget.free(layer)
        if not free:
            return
        self._power_due = False
        fault = draw_fault(rng, owner if owner in free else rng.choice(free))
        self._budget.take(fault.subject)
        killed = fault.kind.act == "kill" and fault.subject == owner
        nursery.start_soon(self._carry_out, fault, topic if killed else None, nursery)

    async def _carry_out(self, fault: Fault, served: str | None, nursery: trio.Nursery) -> None:
        """Carry out a fault; `served` is a topic of the broker if the fault kills its owner."""
        self._number += 1
        name = f"fault-{self._number}"
        self._recorder.note(events.Fault(name, str(fault)))
        self._counts[str(fault.kind)] += 1
        self._ends_s[name] = inf
        await self._begin(fault)
        if served is not None and self._topics is not None:
            troubled = partial(self._troubled, name)
            nursery.start_soon(self._topics.note_takeover, served, troubled)
        with trio.move_on_after(fault.seconds):
            await self._over.wait()
        await self._end(fault)
        self._recorder.note(events.FaultEnd(name))
        self._ends_s[name] = trio.current_time()
        self._budget.give_back(fault.subject)

    def _troubled(self, name: str, seconds: float) -> bool:
        """Return True if another fault had effects in so many seconds before now."""
        since_s = trio.current_time() - seconds - _SETTLE_S
        return any(end_s > since_s for other, end_s in self._ends_s.items() if other != name)

    async def _begin(self, fault: Fault) -> None:
        cluster, subject, act = self._cluster, fault.subject, fault.kind.act
        match act:
            case "kill" | "pause":
                await cluster.order(act, *self._parts(fault))
            case "weather":
                link = cluster.links[fault.link]
                link.weather = fault.weather
                if fault.reset:
                    link.cut()
            case "mood":
                cluster.disk_failed(subject)
                cluster.moods(subject).write(MOODS[fault.kind.what])
            case _ if act == OLD_IMAGE:
                await self._while_down(subject, copy_image)
            case _ if act == NO_INDEX:
                await cluster.order("kill", subject)
                await trio.to_thread.run_sync(remove_index, cluster.data(subject))
            case _ if act == DAMAGED_INDEX:
                # Half of the time the bookie finds the damage when it starts.
                cluster.disk_failed(subject)
                if fault.seconds > _DOWN_FROM_S:
                    await cluster.order("kill", subject)
                await trio.to_thread.run_sync(damage_index, cluster.data(subject), self._rng)
            case _:
                assert act == ROT, fault
                cluster.disk_failed(subject)
                await trio.to_thread.run_sync(rot, cluster.data(subject) / "log", self._rng)

    async def _end(self, fault: Fault) -> None:
        cluster, subject, act = self._cluster, fault.subject, fault.kind.act
        match act:
            case "kill":
                await cluster.order("start", *self._parts(fault))
            case "pause":
                await cluster.order("resume", subject)
            case "weather":
                link = cluster.links[fault.link]
                if fault.reset:
                    link.cut()
                link.weather = FINE_WEATHER
            case "mood":
                cluster.moods(subject).write(FINE_DISK)
                if fault.kind.what in RUIN:
                    await cluster.order("kill", subject)
                    await cluster.order("start", subject)
            case _ if act == OLD_IMAGE:
                await self._while_down(subject, restore_image)
            case _ if act == NO_INDEX:
                await cluster.order("start", subject)
            case _ if act == DAMAGED_INDEX and fault.seconds > _DOWN_FROM_S:
                await cluster.order("start", subject)
            case _:
                pass

    async def _while_down(self, bookie: str, work: Callable[[Path], None]) -> None:
        await self._cluster.order("kill", bookie)
        await trio.to_thread.run_sync(work, self._cluster.data(bookie))
        await self._cluster.order("start", bookie)

    def _parts(self, fault: Fault) -> list[str]:
        if fault.subject != EVERYTHING:
            return [fault.subject]
        return [name for layer in self._layers for name in self._cluster.names(layer)]
