"""Carries out the faults of a plan, and heals everything in the end.

Faults run in no task, between two steps of the hosts' tasks, so that a host is hit exactly where
the plan says.  A fault that overlaps another of its kind is undone when the last one ends.
"""

import errno
from collections import Counter
from collections.abc import Callable
from functools import partial

import trio

from tests.history.events import Fault, FaultEnd
from tests.history.recorder import Recorder
from tests.simulation import acts
from tests.simulation.acts import PEER, SUBJECT, Act, At, On
from tests.simulation.bulk_loads import BulkLoads
from tests.simulation.cluster import Cluster, Life
from tests.simulation.drains import Drains
from tests.simulation.link_faults import LinkFaults, Undo, nothing
from tests.simulation.members import Members
from tests.simulation.metadata import Odds
from tests.simulation.moments import Moments
from tests.simulation.old_image import OldImage
from tests.simulation.plan import Mishap, Plan, describe_part
from tests.simulation.rot import rot
from tests.simulation.steps import mark_of

_SPARED = ("caretaker", "auditor")  # hosts of the harness: nobody would start them again
_OF_ONE = (acts.StuckDisk, acts.SlowDisk, acts.Freeze, acts.Isolate, acts.Kill, acts.Stutter)
_TIGHT_BYTES = 1 << 20  # less than the space that a bookie keeps for itself


class Nemesis:
    """The faults of one run."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        moments: Moments,
        members: Members,
        recorder: Recorder,
        nursery: trio.Nursery,
        loads: BulkLoads,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._plan = plan
        self._cluster = cluster
        self._moments = moments
        self._members = members
        self._recorder = recorder
        self._nursery = nursery
        self._loads = loads
        self._healed = False
        self._calm = trio.Event()  # set when everything is healed
        self._silent: Counter[str] = Counter()  # hosts out of contact with the metadata store
        self._outages = 0
        self._frozen: dict[str, Life] = {}
        self._open: dict[str, None] = {}
        self._hosts = [
            *plan.shape.bookie_names(),
            *plan.shape.broker_names(),
            *plan.shape.client_names(),
        ]
        self._links = LinkFaults(cluster, self._hosts, self._lose_contact)
        self._drains = Drains(
            cluster,
            recorder,
            nursery,
            self.counts,
            kill=self._end_drained,
            revive=lambda name: self._revive([name]),
        )

    @property
    def problems(self) -> list[str]:
        """The problems that a fault has shown."""
        return self._drains.problems

    def begin(self) -> None:
        """Begin the storm now."""
        now = self._cluster.run.clock.now
        for mishap in self._plan.faults:
            match mishap.when:
                case At(seconds):
                    self._cluster.run.at(now + seconds, partial(self._strike, mishap, "", ""))
                case On(moment, nth, after_s):
                    self._moments.when(moment, nth, partial(self._soon, mishap, after_s))

    def _soon(self, mishap: Mishap, after_s: float, subject: str, peer: str) -> None:
        run = self._cluster.run
        run.at(run.clock.now + after_s, partial(self._strike, mishap, subject, peer))

    def _strike(self, mishap: Mishap, subject: str, peer: str) -> None:
        if self._healed:
            return
        roles = {SUBJECT: subject, PEER: peer}

        def host(name: str) -> str:
            return roles.get(name, name)

        struck = [host(getattr(mishap.act, which, "")) for which in ("host", "other")]
        if any(name.startswith(_SPARED) for name in struck):
            return
        loading = self._loads.loading()
        end = self._do(mishap.act, host)
        if end is None:
            return
        self._loads.struck(mishap.act, struck, loading)
        self.counts[f"fault {type(mishap.act).__name__}"] += 1
        if isinstance(mishap.when, On):
            self.counts[mark_of(mishap.act, mishap.when.moment)] += 1
        text = self._text(mishap.act, subject, peer)
        alone = struck[0] if isinstance(mishap.act, _OF_ONE) else ""
        bookie = alone if alone.startswith("bookie") else ""
        clean = isinstance(mishap.act, acts.Drain)  # `drains` notes how long each one takes
        self._recorder.note(Fault(mishap.name, text, clean=clean, bookie=bookie))
        self._open[mishap.name] = None
        for_s, undo = end

        def over() -> None:
            if not self._healed:
                undo()
            if self._open.pop(mishap.name, "") is None:
                self._recorder.note(FaultEnd(mishap.name))

        self._cluster.run.at(self._cluster.run.clock.now + for_s, over)

    def _text(self, act: Act, subject: str, peer: str) -> str:
        text = describe_part(act)
        for role, name in ((SUBJECT, subject), (PEER, peer)):
            text = text.replace(f"={role}", f"={name}")
        return text

    # -- one method per fault returns for how long it lasts and how it is undone; None if the fault
    # makes no sense now

    def _do(self, act: Act, host: Callable[[str], str]) -> Undo | None:
        match act:
            case acts.Kill(name, down_s, power, torn, silent):
                return self._kill([host(name)], down_s, power=power, torn=torn, silent=silent)
            case acts.KillAll(down_s, power):
                servers = [name for name in self._hosts if not name.startswith("client")]
                return self._kill(servers, down_s, power=power, torn=False, silent=False)
            case acts.CrashLoop(name, times, up_s, down_s, power):
                return self._crash_loop(host(name), times, up_s, down_s, power=power)
            case acts.Join(name):
                self._revive([name])
                return 0.0, nothing
            case acts.LoseDisk(name, added_after_s, again):
                return self._lose(host(name), added_after_s, again=again)
            case acts.WipeDisk(name, down_s):
                return self._wipe(host(name), down_s)
            case acts.OldImage(name, age_s, down_s, directory):
                return self._take_image(host(name), age_s, down_s, directory)
            case acts.Rot(name, how, places, down_s):
                return self._rot(host(name), how, places, down_s)
            case acts.Decommission(name, interrupted_s):
                return self._take_out(host(name), interrupted_s)
            case acts.Stutter(name, for_s, frozen_s, running_s):
                return self._stutter(host(name), for_s, frozen_s, running_s)
            case acts.Restart(name, down_s):
                return self._restart(host(name), down_s)
            case acts.Drain(name, after_s):
                begun = host(name) not in self._frozen and self._drains.begin(host(name), after_s)
                return (0.0, nothing) if begun else None
            case acts.Freeze(name, for_s):
                return self._freeze(host(name), for_s)
            case acts.JumpClock(name, by_s):
                self._cluster.clock_of(host(name)).offset_ms += round(by_s * 1000)
                return 0.0, nothing
            case acts.DriftClock(name, for_s, rate):
                clock = self._cluster.clock_of(host(name))
                clock.run_at(rate)
                return for_s, partial(clock.run_at, 1.0)
            case acts.Deafen(name, for_s):
                return self._deafen(host(name), for_s)
            case acts.Cut() | acts.Isolate() | acts.Reset() | acts.SlowLink() | acts.Swizzle():
                return self._links.strike(act, host)
            case (
                acts.LoseContact()
                | acts.Expire()
                | acts.Outage()
                | acts.Flaky()
                | acts.Refuse()
                | acts.LateNotices()
            ):
                return self._on_metadata(act, host)
            case (
                acts.SlowDisk()
                | acts.StuckDisk()
                | acts.FailDisk()
                | acts.FullDisk()
                | acts.LoseIndex()
            ):
                return self._on_disk(act, host(act.host))

    # -- processes

    def _kill(
        self, names: list[str], down_s: float, *, power: bool, torn: bool, silent: bool
    ) -> Undo | None:
        alive = [name for name in names if name in self._cluster.lives]
        if not alive:
            return None
        for name in alive:
            self._frozen.pop(name, None)
            self._cluster.kill(name, power=power, torn=torn, silent=silent)
        return down_s, partial(self._revive, alive)

    def _revive(self, names: list[str]) -> None:
        for name in names:
            if not name.startswith("client") and name not in self._cluster.lives:
                self._nursery.start_soon(self._cluster.revive, name)

    def _lose(self, name: str, added_after_s: float, *, again: bool) -> Undo | None:
        if not self._members.can_lose(name):
            return None
        self._frozen.pop(name, None)
        self._members.lose(name, again=again)
        return added_after_s, self._members.add

    def _wipe(self, name: str, down_s: float) -> Undo | None:
        if not self._members.can_harm(name):
            return None
        self._frozen.pop(name, None)
        self._members.wipe(name)
        return down_s, partial(self._revive, [name])

    def _take_image(
        self, name: str, age_s: float, down_s: float, directory: int | None
    ) -> Undo | None:
        if name not in self._members.names() or name not in self._cluster.platters:
            return None
        image = OldImage(self._cluster, name, directory)

        def put_back() -> None:
            if not self._members.can_harm(name) or not image.is_known():
                return
            self._members.harm(name)
            self.counts["old image put back"] += 1
            self._kill([name], down_s, power=False, torn=False, silent=False)
            image.put_back()
            run = self._cluster.run
            run.at(run.clock.now + down_s, partial(self._revive, [name]))

        return age_s, put_back

    def _rot(self, name: str, how: str, places: int, down_s: float | None) -> Undo | None:
        if not self._members.can_harm(name):
            return None
        kill = None
        if down_s is not None:
            kill = self._kill([name], down_s, power=False, torn=False, silent=False)
        if not rot(self._cluster.platter(name), self._cluster.rng, how, places):
            return kill
        self._members.harm(name)
        return kill or (0.0, nothing)

    def _take_out(self, name: str, interrupted_s: float | None) -> Undo | None:
        if not self._members.can_leave(name):
            return None
        self._members.leave(name, interrupted_s)
        return 0.0, nothing

    def _restart(self, name: str, down_s: float) -> Undo | None:
        life = self._cluster.lives.get(name)
        if life is None or life.running is None or life.stopping or name in self._frozen:
            return None

        async def stop() -> None:
            if self._cluster.lives.get(name) is life:  # the process may have been killed since
                with trio.move_on_after(down_s):
                    await self._cluster.stop(name)
            if self._cluster.lives.get(name) is life:
                self._cluster.kill(name)
            with trio.move_on_after(down_s):
                await self._calm.wait()
            self._revive([name])

        self._nursery.start_soon(stop)
        return 2 * down_s, nothing

    def _end_drained(self, name: str) -> None:
        self._kill([name], 0.0, power=False, torn=False, silent=False)

    def _freeze(self, name: str, for_s: float) -> Undo | None:
        if name not in self._cluster.lives or name in self._frozen:
            return None
        life = self._frozen[name] = self._cluster.freeze(name)

        def thaw() -> None:
            if self._frozen.get(name) is life:
                del self._frozen[name]
                self._cluster.thaw(life)

        return for_s, thaw

    def _crash_loop(
        self, name: str, times: int, up_s: float, down_s: float, *, power: bool
    ) -> Undo | None:
        if name not in self._cluster.lives or name.startswith("client"):
            return None

        async def loop() -> None:
            for _ in range(times):
                if self._healed:
                    return
                self._kill([name], down_s, power=power, torn=False, silent=False)
                await self._cluster.run.sleep(down_s)
                self._revive([name])
                await self._cluster.run.sleep(up_s)

        self._nursery.start_soon(loop)
        return times * (up_s + down_s), nothing

    def _stutter(self, name: str, for_s: float, frozen_s: float, running_s: float) -> Undo | None:
        run = self._cluster.run
        until = run.clock.now + for_s

        def stop() -> None:
            if self._healed or run.clock.now >= until:
                return
            frozen = self._freeze(name, frozen_s)
            if frozen is not None:
                run.at(run.clock.now + frozen_s, frozen[1])
            run.at(run.clock.now + frozen_s + running_s, stop)

        stop()
        return for_s, nothing

    # -- the metadata store

    def _on_metadata(self, act: Act, host: Callable[[str], str]) -> Undo | None:
        metadata = self._cluster.metadata
        match act:
            case acts.LoseContact(name, for_s):
                return for_s, self._lose_contact(host(name))
            case acts.Expire(name):
                if host(name) not in self._cluster.lives:
                    return None
                metadata.expire(host(name))
                return 0.0, nothing
            case acts.LateNotices(name, for_s, moves):
                return for_s, self._hold_notices(host(name), moves=moves)
            case acts.Outage(for_s):
                self._outages += 1
                metadata.go_away()
                return for_s, self._come_back
            case acts.Flaky(for_s, lose_request, lose_answer, late, stale, slowness):
                metadata.odds = Odds(lose_request, lose_answer, late, stale)
                metadata.slowness = slowness

                def settle() -> None:
                    metadata.odds, metadata.slowness = Odds(), 1.0

                return for_s, settle
            case acts.Refuse(for_s, share, path, how):
                metadata.refusals = share, path, how
                return for_s, self._accept
            case _:
                raise AssertionError(act)

    def _accept(self) -> None:
        self._cluster.metadata.refusals = 0.0, "", ""

    def _deafen(self, name: str, for_s: float) -> Undo:
        network = self._cluster.network
        network.deafen(name, deaf=True)
        return for_s, partial(network.deafen, name, deaf=False)

    def _hold_notices(self, name: str, *, moves: bool) -> Callable[[], None]:
        metadata = self._cluster.metadata
        metadata.hold_notices(name)

        def release() -> None:
            metadata.release_notices(name)
            if moves:
                metadata.move(name)

        return release

    def _come_back(self) -> None:
        self._outages -= 1
        if not self._outages:
            self._cluster.metadata.come_back()

    def _lose_contact(self, name: str) -> Callable[[], None]:
        metadata = self._cluster.metadata
        self._silent[name] += 1
        metadata.cut(name)

        def heal() -> None:
            self._silent[name] -= 1
            if not self._silent[name]:
                metadata.heal(name)

        return heal

    # -- disks

    def _on_disk(self, act: Act, name: str) -> Undo | None:
        if not name.startswith("bookie"):
            return None
        platter = self._cluster.platter(name)
        match act:
            case acts.SlowDisk(_, for_s, factor):
                platter.slowness = factor
                return for_s, platter.repair
            case acts.StuckDisk(_, for_s):
                platter.stick()
                return for_s, platter.repair
            case acts.FailDisk(_, operation, down_s):
                platter.fail_next(operation, OSError(errno.EIO, "input/output error"))
                return down_s, partial(self._start_over, name)
            case acts.LoseIndex(_, down_s):
                if name not in self._cluster.lives:
                    return None
                kill = self._kill([name], down_s, power=False, torn=False, silent=False)
                platter.lose_indexes()
                return kill
            case acts.FullDisk(_, for_s, hard):
                platter.full, platter.free_bytes = hard, _TIGHT_BYTES

                def make_room() -> None:
                    platter.full, platter.free_bytes = False, 1 << 40
                    self._start_over(name)

                return for_s, make_room
            case _:
                raise AssertionError(act)

    def _start_over(self, name: str) -> None:
        """Let a lost host start, as its operator would."""
        platter = self._cluster.platter(name)
        platter.repair()
        running = self._cluster.bookie(name)
        if running is not None and running.store.statistics().failure and name not in self._frozen:
            self._cluster.kill(name)
        if name not in self._cluster.lives:
            self._revive([name])

    # -- the end

    def heal(self) -> None:
        """Undo everything, finally.  Hosts that are down are started; that takes a while."""
        self._healed = True
        self._calm.set()
        self._drains.heal()
        cluster = self._cluster
        self._links.heal()
        for name in list(self._frozen):
            cluster.thaw(self._frozen.pop(name))
        if self._outages:
            self._outages = 0
            cluster.metadata.come_back()
        cluster.metadata.odds, cluster.metadata.slowness = Odds(), 1.0
        self._accept()
        for name in dict.fromkeys([*self._hosts, *self._members.all_names()]):
            cluster.metadata.heal(name)
            cluster.network.deafen(name, deaf=False)
            cluster.metadata.release_notices(name)
            cluster.clock_of(name).run_at(1.0)
            if (platter := cluster.platters.get(name)) is not None:
                platter.full, platter.free_bytes = False, 1 << 40
                platter.repair()
        self._silent.clear()
        self._members.add()
        for name in self._members.names():
            self._start_over(name)
        self._revive(self._plan.shape.broker_names())
