"""What is drawn is within what the quorums bear."""

from random import Random

import pytest

from tests.soak.faults import EVERYTHING, Budget, Fault, draw_fault

BROKERS, BOOKIES = ["broker-1", "broker-2", "broker-3"], ["bookie-1", "bookie-2", "bookie-3"]


def budget(*suffering: str) -> Budget:
    made = Budget(BROKERS, BOOKIES)
    for subject in suffering:
        made.take(subject)
    return made


@pytest.mark.parametrize(
    ("suffering", "kind", "free"),
    [
        ([], "broker", BROKERS),
        (["broker-2"], "broker", ["broker-1", "broker-3"]),
        (["broker-1", "broker-2"], "broker", []),
        ([], "bookie", BOOKIES),
        (["broker-1", "zookeeper"], "bookie", BOOKIES),
        (["bookie-1"], "bookie", []),
        (["bookie-1"], "zookeeper", ["zookeeper"]),
        (["zookeeper"], "zookeeper", []),
        ([], EVERYTHING, [EVERYTHING]),
        (["zookeeper"], EVERYTHING, []),
        ([EVERYTHING], "broker", []),
    ],
)
def test_who_may_suffer_next(suffering: list[str], kind: str, free: list[str]) -> None:
    assert budget(*suffering).free(kind) == free


def test_who_is_well_again_may_suffer_again() -> None:
    one = budget("bookie-1")
    one.give_back("bookie-1")
    assert one.free("bookie") == BOOKIES


def test_the_seed_decides() -> None:
    def draw(seed: int) -> list[Fault]:
        rng = Random(seed)
        return [draw_fault(rng, subject) for subject in ("broker-1", "bookie-2", "zookeeper")]

    assert draw(1) == draw(1) != draw(2)


def test_every_kind_of_fault_is_drawn() -> None:
    rng = Random(0)
    subjects = [*BROKERS, *BOOKIES, "zookeeper", EVERYTHING]
    kinds = {draw_fault(rng, rng.choice(subjects)).kind for _ in range(3000)}
    weathers = ["cut", "no connection", "silent", "silent there", "silent back", "slow"]
    assert kinds == {
        "kill everything",
        "old image bookie",
        *(
            f"{act} {part}"
            for act in ("kill", "pause")
            for part in ("broker", "bookie", "zookeeper")
        ),
        *(
            f"{part}: {what}, {where}"
            for part in ("broker", "bookie")
            for what in weathers
            for where in ("to it", "to zookeeper")
        ),
    }
