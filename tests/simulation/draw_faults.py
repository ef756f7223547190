"""Draws the faults of a run: which kinds are on at all, how many, when, on which host.

Most faults wait for a step of the protocol (`steps`); the others strike at any time.  If a step
only occurs after something has failed, that failure is drawn, too.
"""

from collections.abc import Callable, Sequence
from random import Random

from tests.simulation import acts
from tests.simulation.acts import PEER, SUBJECT, Act, At, On
from tests.simulation.plan import Mishap, Shape
from tests.simulation.steps import BOOKIE, BROKER, COPIES, STEPS, Moment, Step

_UNTIL_HEALED_S = 1000.0
_TRIGGERED = 0.75  # share of faults that wait for a step; the others strike at any time
_CAUSED = 0.8  # share of steps that need another fault for which that fault is drawn
_PAIRED = 0.25  # share of faults that have another one at the same moment
_IMAGE_AT_A_STEP = 0.3  # share of old images that wait for a step
_IMAGE_AT_A_SEGMENT = 0.5  # share of those that wait for a new segment
_COPIES_LOST = 0.6  # share of the runs with re-replication that lose copies
_FILE_LOST = 0.15  # share of rot that damages a whole file
_INDEX_LOST = 0.1  # share of rot that damages an index, which is noticed at a start only
_STALL_S = 14.0  # longer than a broker tries to close its topics in good order
_STALLED = 0.3  # share of the runs that are long enough


def draw_faults(rng: Random, shape: Shape, storm_s: float) -> tuple[Mishap, ...]:
    return tuple(_Draw(rng, shape, storm_s).draw())


def draw_rot(rng: Random, host: str) -> Act:
    down_s = rng.choice([0.05, rng.uniform(0.1, 2.0)])
    if rng.random() < _FILE_LOST:
        return acts.Rot(host, rng.choice(["cut", "gone"]), 1, down_s)
    if rng.random() < _INDEX_LOST:
        return acts.Rot(host, "files", 1, down_s)
    how = rng.choice(["flipped", "zeroed", "unreadable", "blocks", "blocks"])
    return acts.Rot(host, how, rng.choice([1, 1, 3, 20]), rng.choice([None, down_s]))


def draw_old_image(rng: Random, shape: Shape, host: str, storm_s: float) -> tuple[At | On, Act]:
    """Draw an old image for the disk of `host`, or of the bookie that a step is about.

    Half of the images that wait for a step wait for a new segment: a bookie that starts writes one.
    """
    age_s, down_s = rng.uniform(0.3, storm_s / 2), rng.uniform(0.02, 1.0)
    directory = rng.choice([None, 0, 1])
    if rng.random() >= _IMAGE_AT_A_STEP:
        at = At(rng.uniform(0.0, storm_s * 0.7))
        return at, acts.OldImage(host, age_s, down_s, directory)
    if rng.random() < _IMAGE_AT_A_SEGMENT:
        when = On("segment", rng.randint(1, 40), rng.choice([0.0, rng.uniform(0.0, 0.01)]))
        return when, acts.OldImage(SUBJECT, age_s, down_s, directory)
    moment = rng.choice(rng.choice(STEPS).moments)
    roles = dict(zip(moment.roles, (SUBJECT, PEER), strict=False))
    when = On(moment.name, rng.choice(moment.nth), rng.choice([0.0, rng.uniform(0.0, 0.01)]))
    return when, acts.OldImage(roles.get(BOOKIE, host), age_s, down_s, directory)


Roles = Sequence[str]
"""The kinds of a moment's subject and peer; empty if the fault waits for no moment."""


class _Draw:
    def __init__(self, rng: Random, shape: Shape, storm_s: float) -> None:
        self._rng = rng
        self._shape = shape
        self._storm_s = storm_s
        self._drawn: list[tuple[At | On, Act]] = []
        there = [s for s in STEPS if s.cause != COPIES or shape.settings.recovery is not None]
        # Steps that need a cause count twice.
        self._steps = [*there, *(step for step in there if step.cause)]

    def draw(self) -> list[Mishap]:
        rng = self._rng
        kinds = [
            self._kill,
            self._kill,
            self._power,
            self._restart,
            self._freeze,
            self._cut,
            self._isolate,
            self._reset,
            self._slow_link,
            self._swizzle,
            self._lose_contact,
            self._expire,
            self._outage,
            self._flaky,
            self._stale,
            self._late_notices,
            self._slow_disk,
            self._fail_disk,
            self._full_disk,
            self._jump_clock,
        ]
        kinds += [self._crash_loop, self._stutter, self._lose_index, self._drift_clock]
        if self._shape.settings.recovery is not None:
            kinds += [self._lose_disk, self._lose_disk, self._decommission]
            kinds += [self._wipe_disk, self._rot]
        on = [kind for kind in kinds if self._chance(rng.choice([0.1, 0.3]))]
        for _ in range(rng.choice([0, 1, 2, 3, 5, 8]) if on else 0):
            self._draw_fault(on)
        spare = self._shape.bookies > (self._shape.settings.quorums or (3,))[0]
        if spare and self._chance(0.3):
            join = acts.Join(self._shape.bookie_names()[-1])
            self._drawn.append((self._when()[0], join))
        if self._shape.settings.recovery is not None and self._chance(_COPIES_LOST):
            act = rng.choice([self._lose_disk, self._lose_disk, self._decommission])(())
            self._drawn.append((self._any_time(0.4), act))
        if self._storm_s > _STALL_S and self._chance(_STALLED):
            self._draw_stall()
        return [Mishap(f"f{index + 1}", *each) for index, each in enumerate(self._drawn)]

    def _draw_fault(self, on: Sequence[Callable[[Roles], Act]]) -> None:
        """Draw one fault, or two at the same moment."""
        when, roles = self._when()
        self._drawn.append((when, self._rng.choice(on)(roles)))
        if self._chance(_PAIRED):
            self._drawn.append((when, self._rng.choice(on)(roles)))

    def _draw_stall(self) -> None:
        """Stall all bookies for so long that a broker that is to stop gives up on them."""
        rng, shape = self._rng, self._shape
        at = At(rng.uniform(0.0, self._storm_s - _STALL_S))
        self._drawn += [(at, acts.StuckDisk(name, _STALL_S)) for name in shape.bookie_names()]
        soon = At(at.seconds + rng.uniform(0.1, 1.0))
        self._drawn.append((soon, acts.Restart(rng.choice(shape.broker_names()), _STALL_S)))

    def _when(self) -> tuple[At | On, Roles]:
        if not self._chance(_TRIGGERED):
            return self._any_time(0.9), ()
        step = self._rng.choice(self._steps)
        moment = self._rng.choice(step.moments)
        if step.cause and self._chance(_CAUSED):
            at = self._any_time(0.6)
            self._drawn += [(at, act) for act in self._cause(step)]
        return self._on(moment), moment.roles

    def _any_time(self, share: float) -> At:
        return At(self._rng.uniform(0.0, self._storm_s * share))

    def _on(self, moment: Moment) -> On:
        rng = self._rng
        after_s = rng.choice([0.0, 0.0, rng.uniform(0.0, 0.003), rng.uniform(0.0, 0.1)])
        return On(moment.name, rng.choice(moment.nth), after_s)

    def _cause(self, step: Step) -> tuple[Act, ...]:
        """Draw a failure that makes others take over for a while."""
        rng, shape = self._rng, self._shape
        causes: list[tuple[Act, ...]]
        if step.cause == BROKER:
            name = rng.choice(shape.broker_names())
            late = acts.SlowLink(name, "", 6.0, 10_000.0, 1e9)  # so that the host hears of it later
            causes = [
                (acts.Kill(name, rng.choice([0.05, 3.0])),),
                (acts.Expire(name),),
                (acts.Freeze(name, rng.choice([3.0, 5.0])),),
                (acts.LoseContact(name, 5.0),),
                (late, acts.LoseContact(name, 5.0)),
            ]
        elif step.cause == BOOKIE:
            name = rng.choice(shape.bookie_names())
            causes = [(acts.Kill(name, 6.0),), (acts.StuckDisk(name, 8.0),)]
        else:
            causes = [(self._lose_disk(()),), (self._lose_disk(()),), (self._decommission(()),)]
        return rng.choice(causes)

    def _chance(self, odds: float) -> bool:
        return self._rng.random() < odds

    def _host(self, roles: Roles, *kinds: str) -> str:
        """Draw a host of one of these kinds; mostly one that the moment is about."""
        rng, shape = self._rng, self._shape
        there = [name for name, role in zip((SUBJECT, PEER), roles, strict=False) if role in kinds]
        if there and rng.random() < 0.7:
            return rng.choice(there)
        names = {
            BOOKIE: shape.bookie_names(),
            BROKER: shape.broker_names(),
            "client": shape.client_names(),
        }
        return rng.choice(names[rng.choice(kinds)])

    def _down_s(self) -> float:
        rng = self._rng
        some = [0.05, rng.uniform(0.1, 2.0), rng.uniform(2.0, 8.0)]
        return rng.choice([*some, *some, _UNTIL_HEALED_S])

    def _kill(self, roles: Roles) -> Act:
        kinds = ("broker", "broker", "bookie", "client")
        return acts.Kill(
            self._host(roles, *kinds),
            self._down_s(),
            power=self._chance(0.4),
            torn=self._chance(0.3),
            silent=self._chance(0.2),
        )

    def _power(self, roles: Roles) -> Act:
        if self._chance(0.3):
            return acts.KillAll(self._down_s(), power=self._chance(0.7))
        name = self._host(roles, "bookie")
        return acts.Kill(name, self._down_s(), power=True, silent=self._chance(0.5))

    def _crash_loop(self, roles: Roles) -> Act:
        rng = self._rng
        return acts.CrashLoop(
            self._host(roles, "broker", "bookie"),
            rng.randint(2, 6),
            rng.choice([0.001, 0.02, 0.1, 1.0]),
            rng.choice([0.01, 0.5]),
            power=self._chance(0.5),
        )

    def _lose_disk(self, roles: Roles) -> Act:
        host = self._host(roles, "bookie")
        return acts.LoseDisk(host, self._rng.choice([0.1, 1.0, 4.0]), again=self._chance(0.3))

    def _wipe_disk(self, roles: Roles) -> Act:
        return acts.WipeDisk(self._host(roles, "bookie"), self._rng.choice([0.05, 2.0]))

    def _rot(self, roles: Roles) -> Act:
        return draw_rot(self._rng, self._host(roles, "bookie"))

    def _decommission(self, roles: Roles) -> Act:
        interrupted_s = self._rng.choice([None, None, 0.05, 1.0])
        return acts.Decommission(self._host(roles, "bookie"), interrupted_s)

    def _stutter(self, roles: Roles) -> Act:
        host, rng = self._host(roles, "broker", "bookie", "client"), self._rng
        return acts.Stutter(
            host, rng.choice([2.0, 6.0]), rng.choice([0.02, 0.3, 1.0]), rng.choice([0.01, 0.3])
        )

    def _restart(self, roles: Roles) -> Act:
        return acts.Restart(self._host(roles, "broker", "bookie"), self._down_s())

    def _freeze(self, roles: Roles) -> Act:
        host = self._host(roles, "broker", "broker", "bookie", "client")
        return acts.Freeze(host, self._rng.choice([0.3, 1.5, 3.0, 6.0, 10.0]))

    def _pair(self, roles: Roles) -> tuple[str, str]:
        host = self._host(roles, "broker")
        other = self._host(roles, "bookie", "bookie", "client", "broker")
        return host, self._rng.choice(self._shape.bookie_names()) if host == other else other

    def _cut(self, roles: Roles) -> Act:
        return acts.Cut(
            *self._pair(roles),
            self._rng.choice([0.5, 3.0, 8.0]),
            one_way=self._chance(0.5),
            reset=self._chance(0.5),
        )

    def _isolate(self, roles: Roles) -> Act:
        host = self._host(roles, "broker", "bookie")
        return acts.Isolate(host, self._rng.choice([0.5, 3.0, 8.0]))

    def _reset(self, roles: Roles) -> Act:
        other = self._host(roles, "bookie", "client") if self._chance(0.5) else ""
        host = self._host(roles, "broker", "bookie", "client")
        return acts.Reset(host, other, torn=self._chance(0.5))

    def _slow_link(self, roles: Roles) -> Act:
        rng = self._rng
        return acts.SlowLink(
            *self._pair(roles),
            rng.choice([2.0, 8.0]),
            rng.choice([20.0, 200.0, 1000.0]),
            rng.choice([2_000.0, 20_000.0, 1e9]),
        )

    def _swizzle(self, roles: Roles) -> Act:
        del roles
        rng, shape = self._rng, self._shape
        names = [*shape.bookie_names(), *shape.broker_names()]
        some = rng.sample(names, rng.randint(1, len(names)))
        freed = rng.sample(some, len(some))
        return acts.Swizzle(tuple(some), tuple(freed), rng.choice([0.1, 0.5, 1.0]))

    def _lose_contact(self, roles: Roles) -> Act:
        host = self._host(roles, "broker", "broker", "bookie")
        return acts.LoseContact(host, self._rng.choice([0.5, 3.0, 6.0]))

    def _expire(self, roles: Roles) -> Act:
        return acts.Expire(self._host(roles, "broker", "broker", "bookie"))

    def _outage(self, roles: Roles) -> Act:
        del roles
        return acts.Outage(self._rng.choice([0.5, 3.0, 10.0]))

    def _flaky(self, roles: Roles) -> Act:
        del roles
        rng = self._rng
        return acts.Flaky(
            rng.uniform(1.0, self._storm_s),
            rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.3]),
            rng.choice([1.0, 20.0, 300.0]),
        )

    def _stale(self, roles: Roles) -> Act:
        del roles
        return acts.Flaky(self._storm_s, stale=self._rng.choice([0.1, 0.5, 0.9]))

    def _late_notices(self, roles: Roles) -> Act:
        host = self._host(roles, "broker", "broker", "bookie")
        return acts.LateNotices(host, self._rng.choice([1.0, 4.0, 8.0]), moves=self._chance(0.5))

    def _slow_disk(self, roles: Roles) -> Act:
        host, for_s = self._host(roles, "bookie"), self._rng.choice([1.0, 4.0, 8.0])
        if self._chance(0.3):
            return acts.StuckDisk(host, for_s)
        return acts.SlowDisk(host, for_s, self._rng.choice([10.0, 100.0, 1000.0]))

    def _fail_disk(self, roles: Roles) -> Act:
        operation = self._rng.choice(
            ["write", "sync", "sync", "create", "sync_names", "read", "index_write"]
        )
        return acts.FailDisk(self._host(roles, "bookie"), operation, self._down_s())

    def _full_disk(self, roles: Roles) -> Act:
        host = self._host(roles, "bookie")
        return acts.FullDisk(host, self._rng.choice([1.0, 6.0]), hard=self._chance(0.5))

    def _jump_clock(self, roles: Roles) -> Act:
        host = self._host(roles, "broker", "bookie", "client")
        return acts.JumpClock(host, self._rng.choice([-86400.0, -10.0, 10.0, 86400.0]))

    def _drift_clock(self, roles: Roles) -> Act:
        host = self._host(roles, "broker", "bookie", "client")
        return acts.DriftClock(host, self._storm_s, self._rng.choice([0.5, 0.99, 1.01, 3.0]))

    def _lose_index(self, roles: Roles) -> Act:
        return acts.LoseIndex(self._host(roles, "bookie"), self._rng.choice([0.1, 2.0]))
