"""A round: clients work while faults strike, everything is healed, read and judged.

storm      the work goes on while faults strike, or while owners are killed
healing    everything works again: each topic gives a receipt for something new
calm       clients come to their end
drain      topics are read from their first message, subscriptions are emptied
judging    the checkers of `tests/history` over what is in the file
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.limits import ClientLimits
from tests.history.check import check
from tests.history.events import Healed, HistoryError, Run
from tests.history.record import Violation
from tests.history.recorder import FileSink, load
from tests.real.parts import admin_of
from tests.simulation.plan import Consume, Follow, Plan, Produce
from tests.simulation.workloads.consume import consume
from tests.simulation.workloads.drain import LivenessError, drain, within
from tests.simulation.workloads.follow import follow
from tests.simulation.workloads.messages import digest_of, position_of
from tests.simulation.workloads.produce import produce
from tests.soak.cluster import Cluster
from tests.soak.stage import RealStage, Tally, add_content

LIVENESS_S = 120.0  # for each step of the end
_IN_FLIGHT_S = 5.0
_ACK_LOSS_S = 5.0
_SETTLE_S = 20.0
_LIMITS = ClientLimits(partitions_refresh_s=5.0)

Trouble = Callable[["Round"], Awaitable[None]]


@dataclass(slots=True)
class Round:
    """What happens in it, and what came of it."""

    plan: Plan
    cluster: Cluster
    stage: RealStage
    history: Path
    phase: str = "start"
    violations: list[str] = field(default_factory=list[str])
    judged: list[Violation] = field(default_factory=list[Violation])
    faults: Counter[str] = field(default_factory=Counter[str])
    takeovers_s: list[float] = field(default_factory=list[float])
    troubled_s: list[float] = field(default_factory=list[float])  # those with something else broken

    @property
    def concrete_topics(self) -> list[str]:
        return [each for topic in self.stage.topics for each in self.stage.concrete(topic)]

    def describe(self) -> str:
        counts, takeovers = self.stage.tally.counts, len(self.takeovers_s) + len(self.troubled_s)
        return (
            f"round {self.plan.seed} {self.phase}: {counts['Send']} sent, {counts['Ok']} receipts,"
            f" {counts['Deliver']} delivered, {counts['Acked']} acked, {counts['Read']} read,"
            f" {counts['Fault']} faults, {takeovers} takeovers"
        )

    async def note_takeover(
        self, topic: str, troubled: Callable[[float], bool] = lambda seconds: False
    ) -> None:
        """Its owner has just been killed: wait until another one gives a receipt.

        `troubled` says whether anything else was broken in so many seconds before now.
        """
        since_ns = self.stage.now_ns()
        await self.stage.tally.wait_receipt(topic, since_ns)
        seconds = (self.stage.now_ns() - since_ns) / 1e9
        (self.troubled_s if troubled(seconds) else self.takeovers_s).append(seconds)


async def run_round(
    cluster: Cluster, plan: Plan, history: Path, trouble: Trouble, started: Callable[[Round], None]
) -> Round:
    """A round in which `trouble` strikes; the rest is as the plan says."""
    with FileSink(history) as sink:
        stage = RealStage(plan, tally=Tally(sink))
        one = Round(plan, cluster, stage, history)
        started(one)
        stage.recorder("run").note(
            Run(
                name=f"python -m tests.soak, round {plan.seed}",
                in_flight_s=_IN_FLIGHT_S,
                ack_loss_s=_ACK_LOSS_S,
                settle_s=_SETTLE_S,
            )
        )
        try:
            await _play(one, trouble)
        except (LivenessError, BaseExceptionGroup) as error:
            one.violations += [f"liveness: {each}" for each in _liveness(error)]
    one.violations += one.stage.problems
    one.phase = "judging"
    try:
        one.judged = await trio.to_thread.run_sync(lambda: check(load(history)))
    except HistoryError as error:
        one.violations.append(f"history: {error}")
    one.violations += map(str, one.judged)
    return one


async def read_again(one: Round) -> None:
    """Much later: what was read at the end of the round is still there, and nothing else is."""
    async with connect(one.cluster.service_url, timeout_s=None, limits=_LIMITS) as client:
        for topic, content in one.stage.tally.contents.items():
            compare = partial(_compare, one, client, topic, content)
            try:
                await within(LIVENESS_S, f"reading {topic} again", compare)
            except LivenessError as error:
                one.violations.append(f"liveness: {error}")


async def _compare(one: Round, client: Client, topic: str, content: int) -> None:
    found = 0
    async with await client.create_reader(topic, start="earliest") as reader:
        while await reader.has_message_available():
            for message in await reader.receive_batch():
                where = position_of(message.message_id)
                found = add_content(found, where, digest_of(message))
    if found != content:
        one.violations.append(f"changed: {topic} has other contents than it had")


async def _play(one: Round, trouble: Trouble) -> None:
    stage, cluster = one.stage, one.cluster
    async with connect(cluster.service_url, timeout_s=None, limits=_LIMITS) as client:
        await within(LIVENESS_S, "creating topics", partial(_create_topics, one))
        async with trio.open_nursery() as nursery:
            _start_work(nursery, one, client)
            one.phase = "storm"
            await _wait_receipts(one)
            await trouble(one)
            one.phase = "healing"
            stage.recorder("nemesis").note(Healed())
            await _wait_receipts(one)
            one.phase = "calm"
            stage.begin_calm()
            stage.end.set()
            nursery.cancel_scope.deadline = trio.current_time() + LIVENESS_S
        if nursery.cancel_scope.cancelled_caught:
            raise LivenessError(f"clients do not come to their end in {LIVENESS_S:g} s")
    one.phase = "drain"
    async with connect(cluster.service_url, timeout_s=None, limits=_LIMITS) as auditor:
        await drain(stage, auditor, LIVENESS_S)


async def _create_topics(one: Round) -> None:
    """Those with partitions; the others come by themselves."""
    for topic in one.plan.topics:
        one.stage.topics[topic.name] = topic.partitions
        if topic.partitions:
            admin = admin_of(one.cluster.process)
            await admin.create_topic(topic.name, partitions=topic.partitions)


def _start_work(nursery: trio.Nursery, one: Round, client: Client) -> None:
    for work in one.plan.work:
        match work:
            case Produce():
                nursery.start_soon(produce, one.stage, client, work)
            case Consume():
                nursery.start_soon(consume, one.stage, client, work)
            case Follow():
                nursery.start_soon(follow, one.stage, client, work)
            case _:
                raise ValueError(work)


async def _wait_receipts(one: Round) -> None:
    """Each topic gives a receipt for something that is sent from now on."""
    since_ns = one.stage.now_ns()
    async with trio.open_nursery() as nursery:
        for topic in one.concrete_topics:
            wait = partial(one.stage.tally.wait_receipt, topic, since_ns)
            nursery.start_soon(within, LIVENESS_S, f"a receipt of {topic}", wait)


def _liveness(error: BaseException) -> Iterator[str]:
    """What of it says that something does not work; the rest, which is a bug, is raised."""
    match error:
        case LivenessError():
            yield str(error)
        case BaseExceptionGroup():
            for each in _parts(error):
                yield from _liveness(each)
        case _:
            raise error


def _parts(group: BaseExceptionGroup[BaseException]) -> Sequence[BaseException]:
    return group.exceptions
