"""Draws a plan from a seed, in swarm style.

Each run draws its cluster, mostly a small one, which kinds of work there are, which kinds of faults
are on at all (`draw_faults`), and how many of them.  Every fault ends, so a majority of every copy
comes back: a run can survive all its faults, and may lose nothing.
"""

from dataclasses import replace
from random import Random

from daybook.bookie.ledger.protocol.placement import Quorums
from daybook.broker.topics.managed_ledger_factory import automatic
from tests.simulation.acts import Act, At, Kill, WipeDisk
from tests.simulation.draw_faults import draw_faults, draw_old_image, draw_rot
from tests.simulation.draw_more import draw_more
from tests.simulation.hosts import UNSYNCED
from tests.simulation.plan import (
    Administer,
    Consume,
    Follow,
    Mishap,
    Plan,
    Produce,
    Shape,
    Topic,
    WatchLedgers,
    Work,
    WriteLedgers,
)
from tests.simulation.settings import AutoRecovery, Settings
from tests.simulation.workloads.administer import ACTS

_QUORUMS = {
    1: [(1, 1, 1)],
    2: [(2, 2, 2), (2, 2, 1)],
    3: [(3, 3, 2), (2, 2, 2), (3, 2, 2), (3, 3, 3)],
    4: [(3, 3, 2), (4, 3, 2), (4, 2, 2), (2, 2, 2)],
    5: [(3, 3, 2), (5, 3, 2), (4, 3, 2)],
}
# Bounds of the shares of tiny, small and medium runs; the rest are large.
_TINY, _SMALL, _LARGE = 0.75, 0.94, 0.985
_WITH_LEDGERS = 0.35  # share of all runs
_UNSYNCED = 0.4  # share of the runs in which the other bookies have what one loses
_DAMAGED = 0.4  # share of the runs with re-replication
_WIPED = 0.15  # share of these damages that erase all disks
_OLD = 0.3  # share of the runs with re-replication
_AUTOMATIC = 3  # bookies, each with all copies
OLD_IMAGES = 70_000_000  # a million seeds from this one on have old images each
_MESSAGE_BYTES_MAX = 10_000  # in some runs, so that messages of that size occur


def draw_plan(seed: int) -> Plan:
    return draw_more(_Draw(seed).plan())


class _Draw:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = Random(f"plan {seed}")
        # Ledgers without brokers have a generator of their own.
        self._of_ledgers = Random(f"ledgers {seed}")
        self._of_lists = Random(f"lists {seed}")  # so has the limit on lists of ledgers
        self._size = self._rng.random()
        self._tiny = self._size < _TINY
        self._storm_s = self._rng.choice([3.0, 5.0, 8.0] if self._tiny else [8.0, 12.0, 20.0])
        self._shape = self._draw_shape()
        self._topics = self._draw_topics()

    def plan(self) -> Plan:
        work = self._draw_work()
        plan = Plan(
            self._seed,
            self._shape,
            self._topics,
            tuple(work),
            draw_faults(self._rng, self._shape, self._storm_s),
            storm_s=self._storm_s,
            power_cycle=self._rng.random() < 0.7,
        )
        return self._with_old_images(self._formats(self._damaged(self._unsynced(plan))))

    def _formats(self, plan: Plan) -> Plan:
        """Draw how often cursors write snapshots, and brokers of an older release, by itself."""
        rng = Random(f"formats {self._seed}")
        settings = replace(
            plan.shape.settings,
            cursor_snapshot_records=rng.choice([1, 3, 20, 1_000]),
            cursor_snapshot_s=rng.choice([0.2, 2.0, 30.0]),
            old_brokers=rng.choice([0.0, 0.0, 0.5, 1.0]),
        )
        return replace(plan, shape=replace(plan.shape, settings=settings))

    def _unsynced(self, plan: Plan) -> Plan:
        """Add a bookie that syncs late and loses its power, in some runs.

        It is drawn by itself, so that the rest of a seed's plan does not change.
        """
        rng, settings = Random(f"unsynced {self._seed}"), plan.shape.settings
        alone = plan.shape.bookies == 1 or (settings.quorums or (3, 3, 2))[2] == 1
        if alone or settings.recovery is not None or rng.random() > _UNSYNCED:
            return plan
        losses = (
            Mishap(f"u{number}", At(rng.uniform(0.0, plan.storm_s * 0.9)), self._loss(rng))
            for number in range(rng.choice([1, 1, 2, 3]))
        )
        shape = replace(plan.shape, settings=replace(settings, unsynced=True))
        return replace(plan, shape=shape, faults=(*plan.faults, *losses))

    def _loss(self, rng: Random) -> Act:
        return Kill(UNSYNCED, rng.uniform(0.0, 2.0), power=rng.random() < 0.8)

    def _damaged(self, plan: Plan) -> Plan:
        """Add a bookie that loses some or all of its synced data, in some runs, drawn by itself."""
        rng = Random(f"damaged {self._seed}")
        if plan.shape.settings.recovery is None or rng.random() > _DAMAGED:
            return plan
        name = rng.choice(plan.shape.bookie_names())
        damages = (
            Mishap(f"d{number}", At(rng.uniform(0.2, plan.storm_s)), self._damage(rng, name))
            for number in range(rng.choice([1, 1, 2, 4]))
        )
        return replace(plan, faults=(*plan.faults, *damages))

    def _with_old_images(self, plan: Plan) -> Plan:
        """In some runs, put a bookie's disk back to an earlier state; this is drawn by itself."""
        rng = Random(f"old images {self._seed}")
        if OLD_IMAGES <= self._seed < OLD_IMAGES + 1_000_000:
            plan = _able_to_lose(plan)
        elif plan.shape.settings.recovery is None or rng.random() > _OLD:
            return plan
        name = rng.choice(plan.shape.bookie_names())
        images = (
            Mishap(f"o{number}", *draw_old_image(rng, plan.shape, name, plan.storm_s))
            for number in range(rng.choice([1, 2, 3, 4]))
        )
        interval_s = rng.choice([0.05, 0.2, 0.5])
        settings = replace(plan.shape.settings, position_interval_s=interval_s)
        shape = replace(plan.shape, settings=settings)
        return replace(plan, shape=shape, faults=(*plan.faults, *images))

    def _damage(self, rng: Random, name: str) -> Act:
        wiped = rng.random() < _WIPED
        return WipeDisk(name, rng.uniform(0.05, 2.0)) if wiped else draw_rot(rng, name)

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
            roll_entries=rng.choice([1, 3, 10, 30, 50_000] if self._tiny else [3, 10, 30, 50_000]),
            roll_age_s=rng.choice([2.0, 4 * 3600.0]),
            cursor_roll_records=rng.choice([2, 5, 20, 5_000]),
            trim_interval_s=rng.choice([1.0, 3.0, 60.0]),
            retention=self._chance(0.6),
            checkpoint_entries=rng.choice([5, 50, 200]),
            segment_bytes=rng.choice([2_000, 20_000, 512 << 20]),
            directories=rng.choice([1, 1, 2, 3]),
            reclaim_interval_s=rng.choice([1.0, 3.0, 10.0]),
            scrub_interval_s=rng.choice([4.0, 60.0, 60.0]),
            session_timeout_s=rng.choice([1.0, 2.0, 2.0]),
            message_bytes_max=rng.choice([1 << 20, 1 << 20, 1 << 20, _MESSAGE_BYTES_MAX]),
            split=rng.choice([0.0, 0.0, 0.1, 0.5]),
            recovery=self._draw_recovery() if bookies > 1 and self._chance(0.5) else None,
            racks=self._of_ledgers.choice([0, 0, 2, 3]) if bookies > 1 else 0,
            roll_age_min_s=self._of_lists.choice([0.0, 0.0, 0.5]),
            list_bytes_max=self._of_lists.choice([512, 512, 1024, 1_000_000]),
        )

    def _draw_recovery(self) -> AutoRecovery:
        rng = self._rng
        return AutoRecovery(
            lost_delay_s=rng.choice([0.5, 1.0, 5.0]),
            check_interval_s=rng.choice([2.0, 10.0, 3600.0]),
            bytes_per_s=rng.choice([50e6, 50e6, 50_000.0]),
            thorough=self._chance(0.3),
            fence_open_after_s=rng.choice([None, None, 0.5, 2.0]),
        )

    def _draw_topics(self) -> tuple[Topic, ...]:
        rng = self._rng
        count = (
            1 if self._tiny else rng.choice([1, 2]) if self._size < _LARGE else rng.randint(3, 6)
        )
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
                start = self._rng.choice(["earliest", "earliest", "offset", "offset", "time"])
                again = self._rng.choice([0.0, 0.05])
                name = f"follower-{topic.name[-2:]}"
                work.append(Follow(name, self._client(), topic.name, start, again))
        work += self._administration()
        work += self._ledger_work()
        return work

    def _producers(self, topic: Topic) -> list[Work]:
        rng = self._rng
        count = rng.choice([1, 1, 2])
        if self._chance(0.04):
            return [self._flood(topic)]
        return [
            Produce(
                f"p{index + 1}-{topic.name[-2:]}",
                self._client(),
                topic.name,
                messages=rng.choice([5, 10, 20] if self._tiny else [20, 50, 100]),
                pace_s=rng.choice([0.02, 0.1, 0.3]),
                burst=rng.choice([1, 5, 20]),
                batching=self._chance(0.6),
                payload_bytes=self._payload_bytes(),
                compression=rng.choice(["none", "none", "none", "lz4", "zlib", "zstd", "snappy"]),
                send_timeout_s=rng.choice([None, None, 30.0, 2.0]),
                reopen=rng.choice([0.0, 0.0, 0.1]),
                wait=self._chance(0.2),
            )
            for index in range(count)
        ]

    def _payload_bytes(self) -> int:
        """Return a size; in some runs, messages are just below or just above the limit."""
        rng, most = self._rng, self._shape.settings.message_bytes_max
        if most == _MESSAGE_BYTES_MAX:
            return rng.choice([20, 500, most // 3, most - 100, most, most + 1])
        return rng.choice([0, 20, 20, 20, 500, 500, 60_000])

    def _flood(self, topic: Topic) -> Work:
        """Send small messages faster than they are stored."""
        rng = self._rng
        return Produce(
            f"p1-{topic.name[-2:]}",
            self._client(),
            topic.name,
            messages=rng.choice([200, 400]),
            pace_s=0.001,
            burst=rng.choice([50, 200]),
            batching=self._chance(0.6),
            payload_bytes=rng.choice([0, 20]),
            send_timeout_s=rng.choice([None, 2.0]),
        )

    def _consumers(self, topic: Topic) -> list[Work]:
        rng = self._rng
        work: list[Work] = []
        counts = [0, 1, 1, 1, 2] if self._tiny else [0, 1, 1, 1, 1, 2, 2, 3]
        for index in range(rng.choice(counts)):
            kind = rng.choice(["exclusive", "failover", "shared"])
            shaky = self._chance(0.4)
            subscription = f"s{index + 1}"
            start = rng.choice(["earliest", "earliest", "latest"])
            most = 1 if kind == "exclusive" else 2 if self._tiny else 3
            for number in range(rng.randint(1, most)):
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
                        linger_s=rng.choice([0.01, 0.1, 0.5, 3.0]),
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
        work: list[Work] = []
        for index in range(rng.choice([0, 0, 1, 2] if self._tiny else [0, 0, 1, 2, 4])):
            topic = rng.choice(self._topics)
            act = rng.choice([name for name, needs in ACTS if needs.suits(topic)])
            subscription = rng.choice(["s1", "s2", "extra"])
            at_s = rng.uniform(0.0, self._storm_s)
            name = f"admin{index + 1}"
            work.append(Administer(name, self._client(), act, topic.name, at_s, subscription))
        return work

    # -- ledgers

    def _ledger_work(self) -> list[Work]:
        """Written past all brokers, in some runs; by whom they are followed and taken over."""
        rng = self._of_ledgers
        if rng.random() >= _WITH_LEDGERS:
            return []
        hosts = self._shape.client_names()
        quorums = self._shape.settings.quorums or _quorums_of(automatic(self._shape.bookies))
        work: list[Work] = [
            WriteLedgers(
                f"w{index + 1}",
                rng.choice(hosts),
                quorums,
                manner=rng.choice(["plain", "advanced", "deferred", "deferred"]),
                ledgers=rng.choice([1, 2, 3]),
                entries=rng.choice([1, 10, 30]),
                burst=rng.choice([1, 5, 20]),
                pace_s=rng.choice([0.02, 0.1, 0.3]),
                payload_bytes=rng.choice([0, 20, 500, 20_000]),
                flush=rng.choice([0.0, 0.3, 1.0]),
                abandon=rng.choice([0.0, 0.5]),
            )
            for index in range(rng.choice([1, 1, 2]))
        ]
        for how in rng.choice([[], ["follow"], ["follow"], ["recover"], ["follow", "recover"]]):
            work.append(WatchLedgers(how, rng.choice(hosts), how, rng.choice([0.3, 1.0, 3.0])))
        return work


def _able_to_lose(plan: Plan) -> Plan:
    """Return the plan with enough bookies to lose a disk, and with re-replication."""
    settings = replace(plan.shape.settings, unsynced=False)
    recovery = settings.recovery or AutoRecovery()
    # A bookie that syncs late loses acknowledged entries, too, so at most one disk is lost.
    faults = tuple(each for each in plan.faults if not each.name.startswith("u"))
    plan = replace(plan, faults=faults)
    if plan.shape.bookies >= _AUTOMATIC and (settings.quorums or (3, 3, 2))[2] > 1:
        settings = replace(settings, recovery=recovery)
        return replace(plan, shape=replace(plan.shape, settings=settings))
    settings = replace(settings, recovery=recovery, quorums=None)
    work = tuple(
        replace(each, quorums=(3, 3, 2)) if isinstance(each, WriteLedgers) else each
        for each in plan.work
    )
    shape = replace(plan.shape, bookies=_AUTOMATIC, settings=settings)
    return replace(plan, shape=shape, work=work)


def _quorums_of(quorums: Quorums) -> tuple[int, int, int]:
    return quorums.ensemble, quorums.write, quorums.ack
