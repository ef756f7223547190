"""Draws the faults of a run: which kinds are on at all, how many, when, on which host.

Most of them wait for a moment of the protocol (`moments`); the others strike at any time.
"""

from collections.abc import Callable
from random import Random

from tests.simulation import acts
from tests.simulation.acts import PEER, SUBJECT, Act, At, On
from tests.simulation.plan import Mishap, Shape

_UNTIL_HEALED_S = 1000.0
_WIRE = ("fence", "fence answered", "recovery read", "recovery add", "no entry")
_STORE = (
    "ledger created",
    "ledger in recovery",
    "ledger closed",
    "ledger fragments",
    "list created",
    "list changed",
    "cursor created",
    "cursor changed",
    "owner taken",
)
_OFTEN = ("add", "add answered", "write", "sync", "read")
_RARE = ("segment", "checkpoint", "fenced", "broker joined", "owner gone", "cursor deleted")


def draw_faults(rng: Random, shape: Shape, storm_s: float) -> tuple[Mishap, ...]:
    return tuple(_Draw(rng, shape, storm_s).draw())


class _Draw:
    def __init__(self, rng: Random, shape: Shape, storm_s: float) -> None:
        self._rng = rng
        self._shape = shape
        self._storm_s = storm_s

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
            self._slow_disk,
            self._fail_disk,
            self._full_disk,
            self._jump_clock,
        ]
        kinds += [self._crash_loop, self._stutter, self._lose_index, self._drift_clock]
        on = [kind for kind in kinds if self._chance(rng.choice([0.1, 0.3]))]
        count = rng.choice([0, 1, 2, 3, 5, 8]) if on else 0
        drawn = [self._draw_fault(rng.choice(on)) for _ in range(count)]
        spare = self._shape.bookies > (self._shape.settings.quorums or (3,))[0]
        if spare and self._chance(0.3):
            drawn.append((self._when(), acts.Join(self._shape.bookie_names()[-1])))
        return [Mishap(f"f{index + 1}", *each) for index, each in enumerate(drawn)]

    def _when(self) -> At | On:
        if self._chance(0.65):
            return self._moment()
        return At(self._rng.uniform(0.0, self._storm_s * 0.9))

    def _draw_fault(self, kind: Callable[[bool], Act]) -> tuple[At | On, Act]:
        triggered = self._chance(0.65)
        act = kind(triggered)
        if not triggered:
            return At(self._rng.uniform(0.0, self._storm_s * 0.9)), act
        return self._moment(), act

    def _chance(self, odds: float) -> bool:
        return self._rng.random() < odds

    def _moment(self) -> On:
        rng = self._rng
        moment = rng.choice(rng.choice([_WIRE, _STORE, _STORE, _OFTEN, _RARE]))
        nth = rng.randint(1, 60) if moment in _OFTEN else rng.choice([1, 1, 2, 3, 5])
        after_s = rng.choice([0.0, 0.0, rng.uniform(0.0, 0.003), rng.uniform(0.0, 0.1)])
        return On(moment, nth, after_s)

    def _host(self, triggered: bool, *kinds: str) -> str:
        rng, shape = self._rng, self._shape
        if triggered and rng.random() < 0.7:
            return rng.choice([SUBJECT, SUBJECT, PEER])
        names = {
            "bookie": shape.bookie_names(),
            "broker": shape.broker_names(),
            "client": shape.client_names(),
        }
        return rng.choice(names[rng.choice(kinds)])

    def _down_s(self) -> float:
        rng = self._rng
        some = [0.05, rng.uniform(0.1, 2.0), rng.uniform(2.0, 8.0)]
        return rng.choice([*some, *some, _UNTIL_HEALED_S])

    def _kill(self, triggered: bool) -> Act:
        kinds = ("broker", "broker", "bookie", "client")
        return acts.Kill(
            self._host(triggered, *kinds),
            self._down_s(),
            power=self._chance(0.4),
            torn=self._chance(0.3),
            silent=self._chance(0.2),
        )

    def _power(self, triggered: bool) -> Act:
        if self._chance(0.3):
            return acts.KillAll(self._down_s(), power=self._chance(0.7))
        name = self._host(triggered, "bookie")
        return acts.Kill(name, self._down_s(), power=True, silent=self._chance(0.5))

    def _crash_loop(self, triggered: bool) -> Act:
        rng = self._rng
        return acts.CrashLoop(
            self._host(triggered, "broker", "bookie"),
            rng.randint(2, 6),
            rng.choice([0.001, 0.02, 0.1, 1.0]),
            rng.choice([0.01, 0.5]),
            power=self._chance(0.5),
        )

    def _stutter(self, triggered: bool) -> Act:
        host, rng = self._host(triggered, "broker", "bookie", "client"), self._rng
        return acts.Stutter(
            host, rng.choice([2.0, 6.0]), rng.choice([0.02, 0.3, 1.0]), rng.choice([0.01, 0.3])
        )

    def _restart(self, triggered: bool) -> Act:
        return acts.Restart(self._host(triggered, "broker", "bookie"), self._down_s())

    def _freeze(self, triggered: bool) -> Act:
        host = self._host(triggered, "broker", "broker", "bookie", "client")
        return acts.Freeze(host, self._rng.choice([0.3, 1.5, 3.0, 6.0, 10.0]))

    def _pair(self, triggered: bool) -> tuple[str, str]:
        host = self._host(triggered, "broker")
        other = self._host(triggered, "bookie", "bookie", "client", "broker")
        return (SUBJECT, PEER) if host == other else (host, other)

    def _cut(self, triggered: bool) -> Act:
        return acts.Cut(
            *self._pair(triggered),
            self._rng.choice([0.5, 3.0, 8.0]),
            one_way=self._chance(0.5),
            reset=self._chance(0.5),
        )

    def _isolate(self, triggered: bool) -> Act:
        host = self._host(triggered, "broker", "bookie")
        return acts.Isolate(host, self._rng.choice([0.5, 3.0, 8.0]))

    def _reset(self, triggered: bool) -> Act:
        other = self._host(triggered, "bookie", "client") if self._chance(0.5) else ""
        host = self._host(triggered, "broker", "bookie", "client")
        return acts.Reset(host, other, torn=self._chance(0.5))

    def _slow_link(self, triggered: bool) -> Act:
        rng = self._rng
        return acts.SlowLink(
            *self._pair(triggered),
            rng.choice([2.0, 8.0]),
            rng.choice([20.0, 200.0, 1000.0]),
            rng.choice([2_000.0, 20_000.0, 1e9]),
        )

    def _swizzle(self, triggered: bool) -> Act:
        del triggered
        rng, shape = self._rng, self._shape
        names = [*shape.bookie_names(), *shape.broker_names()]
        some = rng.sample(names, rng.randint(1, len(names)))
        freed = rng.sample(some, len(some))
        return acts.Swizzle(tuple(some), tuple(freed), rng.choice([0.1, 0.5, 1.0]))

    def _lose_contact(self, triggered: bool) -> Act:
        host = self._host(triggered, "broker", "broker", "bookie")
        return acts.LoseContact(host, self._rng.choice([0.5, 3.0, 6.0]))

    def _expire(self, triggered: bool) -> Act:
        return acts.Expire(self._host(triggered, "broker", "broker", "bookie"))

    def _outage(self, triggered: bool) -> Act:
        del triggered
        return acts.Outage(self._rng.choice([0.5, 3.0, 10.0]))

    def _flaky(self, triggered: bool) -> Act:
        del triggered
        rng = self._rng
        return acts.Flaky(
            rng.uniform(1.0, self._storm_s),
            rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.3]),
            rng.choice([1.0, 20.0, 300.0]),
        )

    def _stale(self, triggered: bool) -> Act:
        del triggered
        return acts.Flaky(self._storm_s, stale=self._rng.choice([0.1, 0.5, 0.9]))

    def _slow_disk(self, triggered: bool) -> Act:
        host, for_s = self._host(triggered, "bookie"), self._rng.choice([1.0, 4.0, 8.0])
        if self._chance(0.3):
            return acts.StuckDisk(host, for_s)
        return acts.SlowDisk(host, for_s, self._rng.choice([10.0, 100.0, 1000.0]))

    def _fail_disk(self, triggered: bool) -> Act:
        operation = self._rng.choice(
            ["write", "sync", "sync", "create", "sync_names", "read", "index_write"]
        )
        return acts.FailDisk(self._host(triggered, "bookie"), operation, self._down_s())

    def _full_disk(self, triggered: bool) -> Act:
        host = self._host(triggered, "bookie")
        return acts.FullDisk(host, self._rng.choice([1.0, 6.0]), hard=self._chance(0.5))

    def _jump_clock(self, triggered: bool) -> Act:
        host = self._host(triggered, "broker", "bookie", "client")
        return acts.JumpClock(host, self._rng.choice([-86400.0, -10.0, 10.0, 86400.0]))

    def _drift_clock(self, triggered: bool) -> Act:
        host = self._host(triggered, "broker", "bookie", "client")
        return acts.DriftClock(host, self._storm_s, self._rng.choice([0.5, 0.99, 1.01, 3.0]))

    def _lose_index(self, triggered: bool) -> Act:
        return acts.LoseIndex(self._host(triggered, "bookie"), self._rng.choice([0.1, 2.0]))
