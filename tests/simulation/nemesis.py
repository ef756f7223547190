"""Draws a plan from a seed: swarm.

Each run draws its cluster, mostly a small one, which kinds of work there are, which kinds of faults
are on at all, and how many of them.  Most faults wait for a moment of the protocol (`moments`);
the others strike at any time.  Every fault ends, so a majority of every copy comes back: what is
drawn is survivable, and nothing may be lost.

Off until the code that answers to them exists: rot of what is on a disk, disks that are wiped or
exchanged, entries that are kept without a sync, bookies that leave the cluster for ever.
"""

from random import Random

from tests.simulation import plan as plans
from tests.simulation.cluster import Settings
from tests.simulation.plan import (
    PEER,
    SUBJECT,
    Act,
    Administer,
    At,
    Consume,
    Follow,
    Mishap,
    On,
    Plan,
    Produce,
    Shape,
    Topic,
    Work,
)

_QUORUMS = {
    1: [(1, 1, 1)],
    2: [(2, 2, 2), (2, 2, 1)],
    3: [(3, 3, 2), (2, 2, 2), (3, 2, 2), (3, 3, 3)],
    4: [(3, 3, 2), (4, 3, 2), (4, 2, 2), (2, 2, 2)],
    5: [(3, 3, 2), (5, 3, 2), (4, 3, 2)],
}
_SMALL, _LARGE = 0.85, 0.97  # shares: up to here small, then medium; the rest is large
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
_OFTEN = ("add", "add answered", "sync", "read")
_RARE = ("segment", "checkpoint", "fenced", "broker joined", "owner gone", "cursor deleted")


def draw_plan(seed: int) -> Plan:
    return _Draw(seed).plan()


class _Draw:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = Random(f"plan {seed}")
        self._size = self._rng.random()
        self._storm_s = self._rng.choice([8.0, 12.0, 20.0])
        self._shape = self._draw_shape()
        self._topics = self._draw_topics()

    def plan(self) -> Plan:
        work = self._draw_work()
        return Plan(
            self._seed,
            self._shape,
            self._topics,
            tuple(work),
            tuple(self._draw_faults()),
            storm_s=self._storm_s,
            power_cycle=self._rng.random() < 0.7,
        )

    def _chance(self, odds: float) -> bool:
        return self._rng.random() < odds

    # -- the cluster

    def _draw_shape(self) -> Shape:
        rng = self._rng
        if self._size < _SMALL:
            bookies, brokers, clients = rng.choice([1, 2, 3, 3, 3, 4]), rng.choice([1, 2, 2]), 1
        elif self._size < _LARGE:
            bookies, brokers, clients = rng.choice([3, 4]), rng.choice([2, 3]), 2
        else:
            bookies, brokers, clients = 5, 3, 3
        return Shape(bookies, brokers, clients, self._draw_settings(bookies))

    def _draw_settings(self, bookies: int) -> Settings:
        rng = self._rng
        return Settings(
            quorums=None if self._chance(0.4) else rng.choice(_QUORUMS[bookies]),
            roll_entries=rng.choice([3, 10, 30, 50_000]),
            roll_age_s=rng.choice([2.0, 4 * 3600.0]),
            cursor_roll_records=rng.choice([2, 5, 20, 5_000]),
            trim_interval_s=rng.choice([1.0, 3.0, 60.0]),
            retention=self._chance(0.6),
            checkpoint_entries=rng.choice([5, 50, 200]),
            segment_bytes=rng.choice([2_000, 20_000, 512 << 20]),
            split=rng.choice([0.0, 0.0, 0.1, 0.5]),
        )

    def _draw_topics(self) -> tuple[Topic, ...]:
        rng = self._rng
        count = 1 if self._size < 0.5 else 2 if self._size < _LARGE else rng.randint(3, 6)
        return tuple(
            Topic(
                f"persistent://public/default/t{index + 1}",
                rng.choice([2, 3]) if self._chance(0.12) else 0,
            )
            for index in range(count)
        )

    # -- work

    def _client(self) -> str:
        return self._rng.choice(self._shape.client_names())

    def _draw_work(self) -> list[Work]:
        work: list[Work] = []
        for topic in self._topics:
            work += self._producers(topic)
            work += self._consumers(topic)
            if self._chance(0.4) and not topic.partitions:
                by_offset = self._chance(0.5)
                name = f"follower-{topic.name[-2:]}"
                work.append(Follow(name, self._client(), topic.name, by_offset))
        work += self._administration()
        return work

    def _producers(self, topic: Topic) -> list[Work]:
        rng = self._rng
        count = rng.choice([1, 1, 2]) if self._size < _LARGE else rng.randint(1, 4)
        return [
            Produce(
                f"p{index + 1}-{topic.name[-2:]}",
                self._client(),
                topic.name,
                messages=rng.choice([20, 50, 100]),
                pace_s=rng.choice([0.02, 0.1, 0.3]),
                burst=rng.choice([1, 5, 20]),
                batching=self._chance(0.6),
                payload_bytes=rng.choice([0, 20, 20, 500]),
                compression=rng.choice(["none", "none", "lz4", "zstd"]),
                send_timeout_s=rng.choice([None, None, 30.0, 2.0]),
                reopen=rng.choice([0.0, 0.0, 0.1]),
                wait=self._chance(0.2),
            )
            for index in range(count)
        ]

    def _consumers(self, topic: Topic) -> list[Work]:
        rng = self._rng
        work: list[Work] = []
        for index in range(rng.choice([1, 1, 2, 3])):
            kind = rng.choice(["exclusive", "failover", "shared"])
            shaky = self._chance(0.4)
            subscription = f"s{index + 1}"
            start = rng.choice(["earliest", "earliest", "latest"])
            for number in range(1 if kind == "exclusive" else rng.choice([1, 2, 3])):
                work.append(
                    Consume(
                        f"c{index + 1}{'abc'[number]}-{topic.name[-2:]}",
                        self._client(),
                        topic.name,
                        subscription,
                        kind,
                        start,
                        receipts=self._chance(0.6),
                        cumulative=rng.choice([0.0, 0.0, 0.3, 1.0]),
                        linger_s=rng.choice([0.01, 0.1, 0.5]),
                        nack=rng.choice([0.0, 0.0, 0.05]),
                        forget=rng.choice([0.0, 0.0, 0.05]),
                        leave=rng.choice([0.0, 0.05]) if shaky else 0.0,
                        abandon=rng.choice([0.0, 0.5]),
                        seek=rng.choice([0.0, 0.03]) if shaky else 0.0,
                        unsubscribe=rng.choice([0.0, 0.02]) if shaky else 0.0,
                        queue=rng.choice([1, 10, 100]),
                    )
                )
        return work

    def _administration(self) -> list[Work]:
        rng = self._rng
        acts = ["unload", "unload", "unload bundle", "stats", "list", "create subscription"]
        acts += ["delete subscription", "skip all", "reset", "delete"]
        work: list[Work] = []
        for index in range(rng.choice([0, 0, 1, 2, 4])):
            topic, act = rng.choice(self._topics), rng.choice(acts)
            if topic.partitions and act == "delete":
                continue
            subscription = rng.choice(["s1", "s2", "extra"])
            at_s = rng.uniform(0.0, self._storm_s)
            name = f"admin{index + 1}"
            work.append(Administer(name, self._client(), act, topic.name, at_s, subscription))
        return work

    # -- faults

    def _draw_faults(self) -> list[Mishap]:
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
        on = [kind for kind in kinds if self._chance(rng.choice([0.1, 0.3]))]
        count = rng.choice([0, 1, 2, 3, 5, 8]) if on else 0
        return [
            Mishap(f"f{index + 1}", *self._draw_fault(rng.choice(on))) for index in range(count)
        ]

    def _draw_fault(self, kind: "object") -> tuple[At | On, Act]:
        triggered = self._chance(0.65)
        assert callable(kind)
        act: Act = kind(triggered)
        if not triggered:
            return At(self._rng.uniform(0.0, self._storm_s * 0.9)), act
        return self._moment(), act

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
        return rng.choice([0.05, rng.uniform(0.1, 2.0), rng.uniform(2.0, 8.0)])

    def _kill(self, triggered: bool) -> Act:
        kinds = ("broker", "broker", "bookie", "client")
        return plans.Kill(
            self._host(triggered, *kinds),
            self._down_s(),
            power=self._chance(0.4),
            torn=self._chance(0.3),
            silent=self._chance(0.2),
        )

    def _power(self, triggered: bool) -> Act:
        if self._chance(0.3):
            return plans.KillAll(self._down_s(), power=self._chance(0.7))
        name = self._host(triggered, "bookie")
        return plans.Kill(name, self._down_s(), power=True, silent=self._chance(0.5))

    def _restart(self, triggered: bool) -> Act:
        return plans.Restart(self._host(triggered, "broker", "bookie"), self._down_s())

    def _freeze(self, triggered: bool) -> Act:
        host = self._host(triggered, "broker", "broker", "bookie", "client")
        return plans.Freeze(host, self._rng.choice([0.3, 1.5, 3.0, 6.0, 10.0]))

    def _pair(self, triggered: bool) -> tuple[str, str]:
        host = self._host(triggered, "broker")
        other = self._host(triggered, "bookie", "bookie", "client", "broker")
        return (SUBJECT, PEER) if host == other else (host, other)

    def _cut(self, triggered: bool) -> Act:
        return plans.Cut(
            *self._pair(triggered),
            self._rng.choice([0.5, 3.0, 8.0]),
            one_way=self._chance(0.5),
            reset=self._chance(0.5),
        )

    def _isolate(self, triggered: bool) -> Act:
        host = self._host(triggered, "broker", "bookie")
        return plans.Isolate(host, self._rng.choice([0.5, 3.0, 8.0]))

    def _reset(self, triggered: bool) -> Act:
        other = self._host(triggered, "bookie", "client") if self._chance(0.5) else ""
        host = self._host(triggered, "broker", "bookie", "client")
        return plans.Reset(host, other, torn=self._chance(0.5))

    def _slow_link(self, triggered: bool) -> Act:
        rng = self._rng
        return plans.SlowLink(
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
        return plans.Swizzle(tuple(some), tuple(freed), rng.choice([0.1, 0.5, 1.0]))

    def _lose_contact(self, triggered: bool) -> Act:
        host = self._host(triggered, "broker", "broker", "bookie")
        return plans.LoseContact(host, self._rng.choice([0.5, 3.0, 6.0]))

    def _expire(self, triggered: bool) -> Act:
        return plans.Expire(self._host(triggered, "broker", "broker", "bookie"))

    def _outage(self, triggered: bool) -> Act:
        del triggered
        return plans.Outage(self._rng.choice([0.5, 3.0, 10.0]))

    def _flaky(self, triggered: bool) -> Act:
        del triggered
        rng = self._rng
        return plans.Flaky(
            rng.uniform(1.0, self._storm_s),
            rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.3]),
            rng.choice([1.0, 20.0, 300.0]),
        )

    def _stale(self, triggered: bool) -> Act:
        del triggered
        return plans.Flaky(self._storm_s, stale=self._rng.choice([0.1, 0.5, 0.9]))

    def _slow_disk(self, triggered: bool) -> Act:
        host, for_s = self._host(triggered, "bookie"), self._rng.choice([1.0, 4.0, 8.0])
        if self._chance(0.3):
            return plans.StuckDisk(host, for_s)
        return plans.SlowDisk(host, for_s, self._rng.choice([10.0, 100.0, 1000.0]))

    def _fail_disk(self, triggered: bool) -> Act:
        operation = self._rng.choice(
            ["write", "sync", "sync", "create", "sync_names", "read", "index_write"]
        )
        return plans.FailDisk(self._host(triggered, "bookie"), operation, self._down_s())

    def _full_disk(self, triggered: bool) -> Act:
        host = self._host(triggered, "bookie")
        return plans.FullDisk(host, self._rng.choice([1.0, 6.0]), hard=self._chance(0.5))

    def _jump_clock(self, triggered: bool) -> Act:
        host = self._host(triggered, "broker", "bookie", "client")
        return plans.JumpClock(host, self._rng.choice([-86400.0, -10.0, 10.0, 86400.0]))
