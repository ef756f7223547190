"""Carries faults out, several at once, and notes when each began and ended."""

from functools import partial
from math import inf

import trio

from tests.history import events
from tests.soak.faults import EVERYTHING, Budget, Fault, draw_fault, draw_kind
from tests.soak.links import FINE
from tests.soak.old_image import OLD_IMAGE, put_back, take_image
from tests.soak.storm import Round

_OWNERS = 0.7  # of what befalls brokers: the share that befalls the owner of a topic
_POWER = 0.04
_PACE_S = 1.5
_SETTLE_S = 5.0  # what a fault may still be felt after its end: sessions, and tries that back off


class Nemesis:
    """`strike` for a while; it returns when everything works again."""

    def __init__(self, one: Round) -> None:
        self._round = one
        self._cluster = one.cluster
        self._recorder = one.stage.recorder("nemesis")
        self._rng = one.stage.rng("nemesis")
        self._budget = Budget(one.cluster.names("broker"), one.cluster.names("bookie"))
        self._number = 0
        self._ends_s: dict[str, float] = {}  # of each fault; inf: it goes on
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
        kind = EVERYTHING if rng.random() < _POWER else draw_kind(rng)
        topic, targeted = rng.choice(self._round.concrete_topics), rng.random() < _OWNERS
        owner = await self._cluster.owner_of(topic) if kind == "broker" and targeted else None
        free = self._budget.free(kind)
        if not free:
            return
        fault = draw_fault(rng, owner if owner in free else rng.choice(free))
        self._budget.take(fault.subject)
        served = topic if fault.act == "kill" and fault.subject == owner else ""
        nursery.start_soon(self._carry_out, fault, served, nursery)

    async def _carry_out(self, fault: Fault, topic: str, nursery: trio.Nursery) -> None:
        self._number += 1
        name = f"fault-{self._number}"
        self._recorder.note(events.Fault(name, str(fault)))
        self._round.faults[fault.kind] += 1
        self._ends_s[name] = inf
        await self._begin(fault)
        if topic:
            nursery.start_soon(self._round.note_takeover, topic, partial(self._troubled, name))
        with trio.move_on_after(fault.seconds):
            await self._over.wait()
        await self._end(fault)
        self._recorder.note(events.FaultEnd(name))
        self._ends_s[name] = trio.current_time()
        self._budget.give_back(fault.subject)

    def _troubled(self, name: str, seconds: float) -> bool:
        """Whether another fault was felt in so many seconds before now."""
        since_s = trio.current_time() - seconds - _SETTLE_S
        return any(end_s > since_s for other, end_s in self._ends_s.items() if other != name)

    async def _begin(self, fault: Fault) -> None:
        match fault.act:
            case "kill":
                await self._cluster.order("kill", *self._parts(fault))
            case "pause":
                await self._cluster.order("pause", fault.subject)
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
            case _ if fault.act == OLD_IMAGE:
                data = self._cluster.data(fault.subject)
                await put_back(self._cluster.order, fault.subject, data)
            case _:
                link = self._cluster.links[fault.link]
                if fault.cut:
                    link.cut()
                link.weather = FINE

    def _parts(self, fault: Fault) -> list[str]:
        return self._cluster.names() if fault.subject == EVERYTHING else [fault.subject]
