"""A plan that kills owners of topics, one after the other, without any other fault."""

import trio

from tests.history.events import Fault, FaultEnd
from tests.simulation.workloads.drain import LivenessError
from tests.soak.round import Round
from tests.soak.topics.workload import LIVENESS_S, Topics

_PAUSE_S = 0.3  # the time in which the next owner serves


async def kill_owners(one: Round, topics: Topics, count: int) -> None:
    """Kill owners of the topics in turn; a dead broker restarts while the next one is killed."""
    names, cluster, recorder = topics.concrete_topics(), one.cluster, one.recorder
    spare = len(cluster.names("broker")) - 2
    starting: dict[str, trio.Event] = {}

    async def start(name: str, fault: str) -> None:
        await cluster.order("start", name)
        recorder.note(FaultEnd(fault))
        starting.pop(name).set()

    async def owner_of(topic: str) -> str:
        with trio.move_on_after(LIVENESS_S):
            while (owner := await cluster.owner_of(topic)) is None:  # noqa: ASYNC110  it is asked
                await trio.sleep(0.1)
            return owner
        raise LivenessError(f"no broker says who serves {topic}")

    async with trio.open_nursery() as nursery:
        for number in range(count):
            while len(starting) > spare:  # Another broker has to run, to take over.
                await next(iter(starting.values())).wait()
            topic = names[number % len(names)]
            owner = await owner_of(topic)
            if owner in starting:  # The broker serves already, before its start was noted.
                await starting[owner].wait()
            fault = f"kill-{number}"
            recorder.note(Fault(fault, f"kill {owner}, the owner of {topic}"))
            await cluster.order("kill", owner)
            one.faults["kill broker"] += 1
            starting[owner] = trio.Event()
            nursery.start_soon(start, owner, fault)
            with trio.move_on_after(LIVENESS_S) as scope:
                await topics.note_takeover(topic)
            if scope.cancelled_caught:
                raise LivenessError(f"no broker has taken {topic} over in {LIVENESS_S:g} s")
            await trio.sleep(_PAUSE_S)
