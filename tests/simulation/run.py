"""One run: carry out a plan and judge the outcome.

storm      the work goes on while faults strike
calm       everything is healed; receivers get all that exists, before anybody sends or opens
           anything; then clients come to their end
count      a backlog that says that it is exact equals a full count
drain      topics take messages again and are read, and subscriptions are emptied: liveness; the
           clients' ledgers are closed and read
orphans    brokers remove the ledgers that nothing names
stop       brokers stop in order, and no task or connection of them is left
mend       open ledgers are closed, leaving bookies have left, all copies exist again, and deleted
           ledgers take no room
audit      bookies lose their power, start again, and show every copy that they owe
check      the history is checked (`tests.history`), and hosts have logged no errors
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

import trio

from daybook.broker.errors import BrokerError
from daybook.broker.namespaces.policies import DEFAULT_NAMESPACE
from daybook.wire.metadata.store import Record
from daybook.wire.topics import TopicName
from tests.history.check import check
from tests.history.events import (
    Deliver,
    Event,
    Healed,
    HistoryError,
    Ok,
    Overloaded,
    Quiet,
    Run,
    Stamped,
)
from tests.simulation import scheduler
from tests.simulation.acts import Decommission, Join
from tests.simulation.audit import MetadataAudit, audit_copies
from tests.simulation.backlogs import wrong_backlogs
from tests.simulation.bulk_loads import BulkLoads
from tests.simulation.caretaker import close_all, mended, reclaim, replicate
from tests.simulation.cluster import Cluster, Life, Main
from tests.simulation.faults import Nemesis
from tests.simulation.held_back import is_held_back
from tests.simulation.host_log import listening
from tests.simulation.lapses import Lapses
from tests.simulation.members import Members
from tests.simulation.moments import Moments
from tests.simulation.plan import Administer, Consume, Follow, Latest, Plan, Work
from tests.simulation.rates import RateAudit
from tests.simulation.rest import leaks, tasks_left
from tests.simulation.scheduler import Scheduler, SimulationStuckError
from tests.simulation.settings import Limits
from tests.simulation.workloads.administer import lift_limits
from tests.simulation.workloads.drain import LivenessError, drain, within
from tests.simulation.workloads.latest import QUEUE
from tests.simulation.workloads.ledgers import read_all
from tests.simulation.workloads.many_topics import end_unread_topics
from tests.simulation.workloads.process import run_client
from tests.simulation.workloads.restrict import lift_left_policies
from tests.simulation.workloads.scene import Scene

LIVENESS_S = 120.0  # virtual seconds, for each step of the end
STEPS_MAX = 3_000_000
_IN_FLIGHT_S = 1.0
_TASKS_COUNTED = 0.5  # share of the runs; the others stop with their topics open
_ACK_LOSS_S = 2.5  # the flush interval of a log, and that of a client's acknowledgements
_SILENCE_S = 100  # after this a broker has noticed that a client's machine is gone
_QUIET_S = 12.0  # after this a client has noticed that its broker's machine is gone
_LOOK_S = 1.0
_BESIDE = ("metadata", "nemesis")  # their events say nothing about receivers
_SETTLE_S = 12.0  # a late write of the metadata store is carried out 10 s after its caller gave up


@dataclass(slots=True)
class Outcome:
    """The outcome of a run."""

    plan: Plan
    violations: list[str] = field(default_factory=list[str])
    events: list[Stamped] = field(default_factory=list[Stamped])
    steps: int = 0
    virtual_s: float = 0.0
    trace: str = ""
    marks: Counter[str] = field(default_factory=Counter[str])

    @property
    def ok(self) -> bool:
        return not self.violations

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(stamped.event, kind) for stamped in self.events)

    @property
    def line(self) -> str:
        verdict = "ok" if self.ok else "FAILED"
        return f"seed {self.plan.seed}: {verdict}, {self.steps} steps, trace {self.trace}"


@dataclass(frozen=True, slots=True)
class Watching:
    """Observers of a run; observing changes nothing of it."""

    say: Callable[[float, str, str], None] | None = None  # time, host, event
    entry: Callable[[float, str, int, int], None] | None = None  # time, event, ledger, entry


def simulate(plan: Plan, watching: Watching | None = None) -> Outcome:
    """Carry out a plan."""
    outcome = Outcome(plan)
    try:
        scheduler.run(
            lambda handle: _Simulation(plan, handle, outcome, watching or Watching()).run(),
            seed=_number(plan.seed),
            steps_max=STEPS_MAX,
        )
    except SimulationStuckError as error:
        outcome.violations.append(f"stuck: {error}")
    if not outcome.violations:
        _judge(outcome)
    return outcome


def _number(seed: int | str) -> int:
    return seed if isinstance(seed, int) else int.from_bytes(seed.encode(), "big")


def _judge(outcome: Outcome) -> None:
    try:
        outcome.violations += map(str, check(outcome.events))
    except HistoryError as error:
        outcome.violations.append(f"history: {error}")


class _Simulation:
    def __init__(self, plan: Plan, handle: Scheduler, outcome: Outcome, watching: Watching) -> None:
        self._plan = plan
        self._handle = handle
        self._outcome = outcome
        self._watching = watching
        self._moments = Moments()
        self._cluster: Cluster
        self._scene: Scene
        self._audit: MetadataAudit
        self._members: Members
        self._nemesis: Nemesis
        self._rates: RateAudit
        self._lapses: Lapses
        self._loads: BulkLoads

    def _say(self, host: str, text: str) -> None:
        if self._watching.say is not None:
            self._watching.say(self._handle.clock.now, host, text)

    def _entry(self, text: str, ledger_id: int, entry_id: int) -> None:
        if self._watching.entry is not None:
            self._watching.entry(self._handle.clock.now, text, ledger_id, entry_id)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._set_up(nursery)
            try:
                with listening(self._cluster.logs):
                    await self._play()
            except (LivenessError, BaseExceptionGroup) as error:
                found, rest = _split(error)
                self._outcome.violations += [f"liveness: {each}" for each in found]
                if rest is not None:
                    raise rest from None
            self._cluster.end()
            nursery.cancel_scope.cancel()
        self._close()

    def _set_up(self, nursery: trio.Nursery) -> None:
        plan, moments, watching = self._plan, self._moments, self._watching
        limits = plan.shape.settings.limits
        cluster = self._cluster = Cluster(
            self._handle,
            plan.seed,
            nursery,
            plan.shape.settings,
            say=self._say if watching.say is not None else None,
        )
        scene = self._scene = Scene(plan, cluster=cluster)
        scene.memory.events = self._outcome.events
        scene.recorder("run").note(
            Run(
                name=f"python -m tests.simulation --seed {plan.seed}",
                in_flight_s=_IN_FLIGHT_S,
                ack_loss_s=_ACK_LOSS_S,
                settle_s=_SETTLE_S,
                batch_acks_durable=True,
                batch_parts_kept=limits.partial_bytes_max >= Limits().partial_bytes_max,
                deduplicated=tuple(topic.name for topic in plan.topics)
                if plan.shape.settings.deduplication
                else (),
                orphans_removed=not is_held_back("orphans are looked for in the end"),
                auto_recovery=plan.shape.settings.recovery is not None,
                bookies=self._bookies_min(),
            )
        )
        scene.on_moment = moments.happened
        for topic in plan.topics:
            scene.topics[topic.name] = topic.partitions
        audit = self._audit = MetadataAudit(scene.recorder("metadata"), self._process_of)

        def on_write(host: str, path: str, record: Record | None) -> None:
            audit.on_write(host, path, record)
            moments.on_write(host, path, record)

        cluster.metadata.tree.observer = on_write
        refusals = scene.recorder("nemesis")
        moments.overloaded = lambda bookie: refusals.note(Overloaded(bookie))
        cluster.network.tap = moments.on_wire
        cluster.disk_tap = moments.on_disk
        if watching.say is not None:
            moments.say = self._say
        if watching.entry is not None:
            moments.entries = self._entry
        members = self._members = Members(cluster, plan.shape, nursery)
        self._rates = RateAudit(plan, cluster)
        if self._rates.needed:
            nursery.start_soon(self._rates.run)
        self._lapses = Lapses(cluster, plan.shape.broker_names(), scene.recorder("brokers"))
        if self._lapses.needed:
            nursery.start_soon(self._lapses.run)
        self._loads = BulkLoads(cluster, plan.shape.broker_names(), moments)
        self._nemesis = Nemesis(
            plan, cluster, moments, members, scene.recorder("nemesis"), nursery, self._loads
        )

    def _bookies_min(self) -> int:
        """Return the number of bookies that are members from the beginning to the end."""
        names = set(self._plan.shape.bookie_names())
        for mishap in self._plan.faults:
            match mishap.act:
                case Decommission(host) | Join(host):
                    names.discard(host)
                case _:
                    pass
        return max(1, len(names))

    def _process_of(self, host: str) -> str:
        broker = self._cluster.broker(host)
        return "" if broker is None else broker.identity.incarnation

    async def _play(self) -> None:
        cluster, scene, shape = self._cluster, self._scene, self._plan.shape
        later = [each.act.host for each in self._plan.faults if isinstance(each.act, Join)]
        async with trio.open_nursery() as nursery:
            for name in (*shape.bookie_names(), *shape.broker_names()):
                if name not in later:
                    nursery.start_soon(cluster.start, name)
        await within(LIVENESS_S, "creating topics", self._create_topics)
        for name in shape.client_names():
            work = [each for each in self._plan.work if each.host == name]
            await cluster.live(name, partial(run_client, scene, work))
        self._say("nemesis", "the storm begins")
        self._nemesis.begin()
        await trio.sleep(self._plan.storm_s)
        self._say("nemesis", "the storm is over")
        self._nemesis.heal()
        scene.begin_calm()
        await within(LIVENESS_S, "starting what was down", self._all_up)
        scene.recorder("nemesis").note(Healed())
        await within(LIVENESS_S, "lifting limits", self._lift_limits)
        await self._receive_all()
        scene.end.set()
        for name in shape.client_names():
            if (life := cluster.lives.get(name)) is not None:
                await within(LIVENESS_S, f"the end of {name}", life.ended.wait)
        await self._clients_gone()
        await within(LIVENESS_S, "counting backlogs", self._count_backlogs)
        await self._drain()
        await self._wait_for_orphans()
        await self._stop_brokers()
        await self._mend()
        if self._plan.power_cycle:
            for name in self._members.names():
                cluster.kill(name, power=True)
            for name in self._members.names():
                await within(LIVENESS_S, f"starting {name}", partial(cluster.revive, name))
            await within(LIVENESS_S, "the end of limbo", self._nothing_in_limbo)
        await audit_copies(cluster, self._audit, scene.recorder("auditor"))

    async def _count_backlogs(self) -> None:
        names = self._plan.shape.broker_names()
        self._outcome.violations += await wrong_backlogs(self._cluster, names)

    async def _lift_limits(self) -> None:
        """Lift them when the administrators that live have set their last ones."""
        work = [each for each in self._living_work() if isinstance(each, Administer)]
        while any(each.name in self._scene.sending for each in work):
            await self._handle.sleep(_LOOK_S)
        await lift_limits(self._scene)
        await lift_left_policies(self._scene)

    async def _receive_all(self) -> None:
        """Wait, with no other work, until each receiver is attached and has all that it is owed."""
        events, there = self._outcome.events, self._receiving()
        deadline = self._handle.clock.now + LIVENESS_S + self._silence_s()
        known, since = -1, 0.0
        while there and (now := self._handle.clock.now) < deadline:
            count = sum(each.by not in _BESIDE for each in events)
            if count != known or self._under_way(now):
                known, since = count, now
            elif now > since + _QUIET_S + self._silence_s() and all(there.values()):
                break
            await self._handle.sleep(_LOOK_S)
            there = self._receiving()
        for name, receiver in there.items():
            if not receiver:
                self._outcome.violations.append(f"stalled: {name} does not get to its topic")
        if there:
            await self._look_for_leaks(there)
        self._scene.recorder("nemesis").note(Quiet(tuple(filter(None, there.values()))))

    async def _look_for_leaks(self, there: dict[str, str]) -> None:
        """Note what brokers hold in vain: now, and a moment later.

        A policy may delete a subscription in this moment, whose cursor goes after it.
        """
        found = self._leaks(there)
        if found:
            await self._handle.sleep(_LOOK_S)
            later = self._leaks(there)
            for text in found:
                if text in later:
                    self._leak(text)

    def _leaks(self, there: dict[str, str]) -> list[str]:
        work = self._living_work()
        consumers = {
            there.get(each.name, ""): each.queue for each in work if isinstance(each, Consume)
        }
        consumers |= {
            there.get(each.name, ""): QUEUE
            for each in work
            if isinstance(each, Latest) and each.subscription
        }
        readers = sum(isinstance(each, Follow | Latest) for each in work)
        found: list[str] = []
        for name in self._plan.shape.broker_names():
            broker = self._cluster.broker(name)
            if broker is not None:
                found += leaks(name, broker, consumers, readers)
        return found

    def _under_way(self, now: float) -> bool:
        """Return True if a client still sends, or a slow link still carries data."""
        sending = any(each.name in self._scene.sending for each in self._living_work())
        return sending or self._cluster.network.last_arrival > now + _LOOK_S

    def _living_work(self) -> list[Work]:
        return [each for each in self._plan.work if each.host in self._cluster.lives]

    def _receiving(self) -> dict[str, str]:
        """Return the consumers and readers whose hosts live, with their present names."""
        there = self._scene.there
        names = [each.name for each in self._living_work()]
        return {name: there[name] for name in names if name in there}

    def _silence_s(self) -> float:
        """Return how long a broker may take to notice that a client's machine has vanished."""
        clients = self._plan.shape.client_names()
        return _SILENCE_S if any(self._cluster.network.is_down(name) for name in clients) else 0.0

    async def _mend(self) -> None:
        """Let the caretaker finish, now that nobody uses the ledgers."""
        cluster, members = self._cluster, self._members
        await within(LIVENESS_S, "closing ledgers", partial(close_all, cluster, self._audit))
        patience_s = LIVENESS_S + self._reading_s()
        await within(patience_s, "leaving", members.wait_left)
        if self._plan.shape.settings.recovery is not None:
            recorder = self._scene.recorder("caretaker")
            for name in members.harmed:
                await within(
                    patience_s, f"mending {name}", partial(mended, cluster, name, self._audit)
                )
            await within(patience_s, "making copies", partial(replicate, cluster, recorder))
        await within(LIVENESS_S, "the end of limbo", self._nothing_in_limbo)
        for kept in await reclaim(cluster, members.names(), self._audit):
            self._leak(kept)

    def _reading_s(self) -> float:
        """Return the time that auto-recovery's rate limit takes to check everything twice and copy
        it.

        It reads whole copies where a bookie in limbo offers no list.
        """
        recovery = self._plan.shape.settings.recovery
        if recovery is None:
            return 0.0
        copies = sum(each.length * each.quorums.write for each in self._audit.ledgers.values())
        return 3 * copies / recovery.bytes_per_s

    async def _nothing_in_limbo(self) -> None:
        """Wait until every bookie has again what it may have lost."""
        while any(map(self._is_in_limbo, self._members.names())):
            await self._handle.sleep(0.1)

    def _is_in_limbo(self, name: str) -> bool:
        running = self._cluster.bookie(name)
        return running is not None and (
            running.store.limbo or bool(running.store.limbo_ledgers.ledgers())
        )

    async def _create_topics(self) -> None:
        """Create namespaces and partitioned topics; the others are created on demand."""
        broker = self._cluster.broker("broker-1")
        assert broker is not None
        operations, call = broker.operations, partial(self._cluster.call, "broker-1")
        names = [TopicName.parse(each.name) for each in self._plan.topics]
        for namespace in dict.fromkeys(name.namespace for name in names):
            if namespace != DEFAULT_NAMESPACE:
                await call(partial(operations.tenancy.create_namespace, namespace))
        for topic, name in zip(self._plan.topics, names, strict=True):
            if topic.partitions:
                await call(partial(operations.create_partitioned, name, topic.partitions))

    async def _all_up(self) -> None:
        brokers = self._plan.shape.broker_names()
        while not all(map(self._is_up, (*self._members.names(), *brokers))):
            await self._handle.sleep(0.1)

    def _is_up(self, name: str) -> bool:
        life = self._cluster.lives.get(name)
        return life is not None and life.running is not None and not life.stopping

    async def _drain(self) -> None:
        errors: list[BaseException] = []

        async def auditor(life: Life, status: trio.TaskStatus[object]) -> None:
            async with self._scene.connect(life) as client:
                status.started(client)
                try:
                    await drain(self._scene, client, LIVENESS_S)
                    left = partial(end_unread_topics, self._scene, client)
                    await within(LIVENESS_S, "reading the topics of clients that are gone", left)
                    await self._read_ledgers(life)
                except (LivenessError, BaseExceptionGroup) as error:
                    errors.append(error)

        main: Main = auditor
        await self._cluster.live("auditor", main)
        if (life := self._cluster.lives.get("auditor")) is not None:
            await within(LIVENESS_S * 4, "the end of the auditor", life.ended.wait)
        if errors:
            raise errors[0]

    async def _read_ledgers(self, life: Life) -> None:
        if self._scene.ledgers:
            async with self._scene.connect_ledgers(life) as client:
                await within(LIVENESS_S, "reading ledgers", partial(read_all, self._scene, client))

    async def _wait_for_orphans(self) -> None:
        """Give brokers time to remove orphans; the checker reports one that is still there.

        A short run may end before the first search after the last fault.  A topic that has left
        memory meanwhile keeps its orphans until somebody uses it, so it is loaded again.  A broker
        whose clock was set back keeps ledgers from its future: its clock is set right.
        """
        created = [self._audit.ledgers[each].created_ms or 0 for each in self._audit.orphans()]
        for name in self._plan.shape.broker_names():
            clock = self._cluster.clock_of(name)
            clock.offset_ms += max(0, max(created, default=0) - clock.now_ms())
        with trio.move_on_after(LIVENESS_S):
            while self._audit.orphans():
                for topic in self._audit.topics_of_orphans():
                    await self._load(TopicName.parse(topic))
                await self._handle.sleep(_LOOK_S)

    async def _load(self, topic: TopicName) -> None:
        """Load a topic at the broker that owns it."""
        cluster = self._cluster
        for name in self._plan.shape.broker_names():
            if (broker := cluster.broker(name)) is not None:
                with suppress(BrokerError):
                    await cluster.call(name, partial(broker.topics.get, topic, create=False))

    async def _stop_brokers(self) -> None:
        """Stop brokers in good order; then no leftovers of clients and brokers may remain."""
        cluster = self._cluster
        await trio.sleep(1.0)
        await self._clients_gone()
        await self._look_for_leaks({})
        if Random(f"tasks {self._plan.seed}").random() < _TASKS_COUNTED:
            await self._count_tasks()
        for name in self._plan.shape.broker_names():
            await within(LIVENESS_S, f"stopping {name}", partial(cluster.stop, name))
        await trio.sleep(1.0)
        for stream in cluster.network.open_streams:
            if stream.port == 0 and not stream.host.startswith(("bookie", "caretaker")):
                self._leak(f"a connection from {stream.host} to {stream.peer}")

    async def _count_tasks(self) -> None:
        """Check an idle broker's tasks: topics are closed, and no client is there."""
        cluster = self._cluster
        for name in self._plan.shape.broker_names():
            if (broker := cluster.broker(name)) is not None:
                await cluster.call(name, broker.topics.close_all)
                await trio.sleep(_IN_FLIGHT_S)
                streams = [each for each in cluster.network.open_streams if each.host == name]
                for text in tasks_left(cluster.lives[name].name, len(streams)):
                    self._leak(text)

    async def _clients_gone(self) -> None:
        """Wait until brokers have noticed that clients' machines are gone."""
        for name in self._plan.shape.broker_names():
            for _ in range(_SILENCE_S):
                if self._connections(name) > self._peers_of(name):
                    await trio.sleep(1.0)
            if self._connections(name) > self._peers_of(name):
                self._leak(f"{name} has {self._connections(name)} connections")

    def _connections(self, name: str) -> int:
        broker = self._cluster.broker(name)
        return 0 if broker is None else broker.clients.connections

    def _peers_of(self, name: str) -> int:
        """Return the number of connections to other brokers."""
        return len([each for each in self._plan.shape.broker_names() if each != name])

    def _leak(self, text: str) -> None:
        self._outcome.violations.append(f"leak: {text}")

    def _close(self) -> None:
        outcome, cluster, handle = self._outcome, self._cluster, self._handle
        outcome.violations += self._scene.problems
        outcome.violations += self._nemesis.problems + self._rates.problems
        outcome.violations += self._lapses.problems
        outcome.violations += [f"death: {each}" for each in cluster.deaths]
        outcome.violations += [f"error: {each}" for each in cluster.logs.errors]
        outcome.violations += [f"metadata: {each}" for each in self._audit.problems]
        outcome.steps = handle.policy.steps
        outcome.virtual_s = handle.clock.now
        handle.record("end", outcome.count(Ok), outcome.count(Deliver))
        outcome.trace = handle.trace.hexdigest()[:16]
        outcome.marks += self._scene.marks
        for name, count in self._moments.counts.items():
            outcome.marks[name] += count
        outcome.marks += self._nemesis.counts
        outcome.marks += self._loads.marks
        for name, count in cluster.logs.lines.items():
            outcome.marks[f"log {name}"] += count


def _split(error: BaseException) -> tuple[list[str], BaseException | None]:
    """Split an error: messages that something does not work, and the rest, which is a bug."""
    if isinstance(error, LivenessError):
        return [str(error)], None
    if isinstance(error, BaseExceptionGroup):
        mine, rest = error.split(LivenessError)
        return ([] if mine is None else _texts(mine)), rest
    return [], error


def _texts(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for each in error.exceptions for text in _texts(each)]
    return [str(error)]
