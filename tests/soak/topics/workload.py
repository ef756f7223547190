"""The workload `topics` in one round: producers, consumers and readers work; then all is read."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.limits import ClientLimits
from tests.simulation.plan import Consume, Follow, Plan, Produce
from tests.simulation.workloads.consume import consume
from tests.simulation.workloads.drain import LivenessError, drain, within
from tests.simulation.workloads.follow import follow
from tests.simulation.workloads.messages import digest_of, position_of
from tests.simulation.workloads.produce import produce
from tests.soak.round import Round
from tests.soak.topics.stage import RealStage, Tally, add_content

LIVENESS_S = 120.0  # the time limit of each step once all faults have ended
_LIMITS = ClientLimits(partitions_refresh_s=5.0)


class Topics:
    """SEAM workload: the topics of one round."""

    def __init__(self, one: Round, plan: Plan) -> None:
        self._plan = plan
        self._cluster = one.cluster
        self._violations = one.violations
        self._stage = RealStage(
            plan,
            problems=one.violations,
            tally=Tally(one.recorder.sink),
            history_ns=one.recorder.now_ns,
        )
        self.takeovers_s: list[float] = []
        self.troubled_s: list[float] = []  # takeovers during which there was another fault

    def describe(self) -> str:
        counts, takeovers = self.counts(), len(self.takeovers_s) + len(self.troubled_s)
        return (
            f"{counts['Send']} sent, {counts['Ok']} receipts, {counts['Deliver']} delivered,"
            f" {counts['Acked']} acked, {counts['Read']} read, {takeovers} takeovers"
        )

    def counts(self) -> Counter[str]:
        return self._stage.tally.counts

    def concrete_topics(self) -> list[str]:
        """Return the topics without partitions, and the partitions of the others."""
        return [each for topic in self._stage.topics for each in self._stage.concrete(topic)]

    @asynccontextmanager
    async def work(self) -> AsyncGenerator[None]:
        stage = self._stage
        async with self._connect() as client:
            await within(LIVENESS_S, "creating topics", self._create_topics)
            async with trio.open_nursery() as nursery:
                self._start_work(nursery, client)
                yield
                stage.begin_calm()
                stage.end.set()
                nursery.cancel_scope.deadline = trio.current_time() + LIVENESS_S
            if nursery.cancel_scope.cancelled_caught:
                raise LivenessError(f"clients do not finish in {LIVENESS_S:g} s")

    def _connect(self) -> AbstractAsyncContextManager[Client]:
        return connect(self._cluster.service_url, timeout_s=None, limits=_LIMITS)

    async def _create_topics(self) -> None:
        """Create the partitioned topics; the others are created on first use."""
        for topic in self._plan.topics:
            self._stage.topics[topic.name] = topic.partitions
            if topic.partitions:
                await self._cluster.admin.create_topic(topic.name, partitions=topic.partitions)

    def _start_work(self, nursery: trio.Nursery, client: Client) -> None:
        for work in self._plan.work:
            match work:
                case Produce():
                    nursery.start_soon(produce, self._stage, client, work)
                case Consume():
                    nursery.start_soon(consume, self._stage, client, work)
                case Follow():
                    nursery.start_soon(follow, self._stage, client, work)
                case _:
                    raise ValueError(work)

    async def wait_progress(self) -> None:
        """Wait until each topic acknowledges a message that is sent after the call."""
        since_ns = self._stage.now_ns()
        async with trio.open_nursery() as nursery:
            for topic in self.concrete_topics():
                wait = partial(self._stage.tally.wait_receipt, topic, since_ns)
                nursery.start_soon(within, LIVENESS_S, f"a receipt of {topic}", wait)

    async def note_takeover(
        self, topic: str, troubled: Callable[[float], bool] = lambda seconds: False
    ) -> None:
        """Note the time until a new owner acknowledges a message; the last owner was just killed.

        `troubled` returns True if there was another fault in so many seconds before now.
        """
        since_ns = self._stage.now_ns()
        await self._stage.tally.wait_receipt(topic, since_ns)
        seconds = (self._stage.now_ns() - since_ns) / 1e9
        (self.troubled_s if troubled(seconds) else self.takeovers_s).append(seconds)

    async def read_all(self) -> None:
        async with self._connect() as auditor:
            await drain(self._stage, auditor, LIVENESS_S)

    async def read_again(self) -> None:
        async with self._connect() as client:
            for topic, content in self._stage.tally.contents.items():
                compare = partial(self._compare, client, topic, content)
                try:
                    await within(LIVENESS_S, f"reading {topic} again", compare)
                except LivenessError as error:
                    self._violations.append(f"liveness: {error}")

    async def _compare(self, client: Client, topic: str, content: int) -> None:
        found = 0
        async with await client.create_reader(topic, start="earliest") as reader:
            while await reader.has_message_available():
                for message in await reader.receive_batch():
                    where = position_of(message.message_id)
                    found = add_content(found, where, digest_of(message))
        if found != content:
            self._violations.append(f"changed: {topic} has other contents than it had")
