"""Kills owners of topics, one after the other, without any other fault."""

import trio

from tests.history.events import Fault, FaultEnd
from tests.simulation.workloads.drain import LivenessError
from tests.soak.storm import LIVENESS_S, Round

_PAUSE_S = 0.3  # in which the next owner serves


async def kill_owners(one: Round, count: int) -> None:
    """The topics take turns.  What is dead starts again while the next owner is killed."""
    topics, recorder = one.concrete_topics, one.stage.recorder("nemesis")
    spare = len(one.cluster.names("broker")) - 2
    starting: dict[str, trio.Event] = {}

    async def start(name: str, fault: str) -> None:
        await one.cluster.order("start", name)
        recorder.note(FaultEnd(fault))
        starting.pop(name).set()

    async with trio.open_nursery() as nursery:
        for number in range(count):
            while len(starting) > spare:  # Somebody has to be there to take over.
                await next(iter(starting.values())).wait()
            topic = topics[number % len(topics)]
            owner = await _owner_of(one, topic)
            if owner in starting:  # It is not quite up, and serves already.
                await starting[owner].wait()
            fault = f"kill-{number}"
            recorder.note(Fault(fault, f"kill {owner}, the owner of {topic}"))
            await one.cluster.order("kill", owner)
            one.faults["kill broker"] += 1
            starting[owner] = trio.Event()
            nursery.start_soon(start, owner, fault)
            with trio.move_on_after(LIVENESS_S) as scope:
                await one.note_takeover(topic)
            if scope.cancelled_caught:
                raise LivenessError(f"nobody has taken {topic} over in {LIVENESS_S:g} s")
            await trio.sleep(_PAUSE_S)


async def _owner_of(one: Round, topic: str) -> str:
    with trio.move_on_after(LIVENESS_S):
        while (owner := await one.cluster.owner_of(topic)) is None:  # noqa: ASYNC110  it is asked
            await trio.sleep(0.1)
        return owner
    raise LivenessError(f"nobody says who serves {topic}")
