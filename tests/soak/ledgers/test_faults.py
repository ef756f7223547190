"""What is drawn is within what an ack quorum of two bears."""

from random import Random

import pytest

from tests.soak.faults import ROTTEN, Fault
from tests.soak.ledgers.faults import (
    DAMAGED_INDEX,
    EVERYTHING,
    MOODS,
    NO_INDEX,
    ROT,
    Budget,
    draw_fault,
    draw_kind,
)
from tests.soak.old_image import OLD_IMAGE

BOOKIES = ["bookie-1", "bookie-2", "bookie-3"]
CLIENTS = ["writer-1", "reader-1"]


def budget(*suffering: str) -> Budget:
    made = Budget(BOOKIES, CLIENTS)
    for subject in suffering:
        made.take(subject)
    return made


@pytest.mark.parametrize(
    ("suffering", "kind", "free"),
    [
        ([], "bookie", BOOKIES),
        (["bookie-1"], "bookie", ["bookie-2", "bookie-3"]),
        (["bookie-1", "bookie-3"], "bookie", []),
        (["bookie-1", "bookie-3"], "client", CLIENTS),
        (["writer-1"], "client", ["reader-1"]),
        (["zookeeper"], "zookeeper", []),
        (["writer-1"], "zookeeper", ["zookeeper"]),
        (["writer-1"], EVERYTHING, []),
        ([], EVERYTHING, [EVERYTHING]),
        ([EVERYTHING], "client", []),
    ],
)
def test_who_may_suffer_next(suffering: list[str], kind: str, free: list[str]) -> None:
    assert budget(*suffering).free(kind) == free


def test_who_is_well_again_may_suffer_again() -> None:
    one = budget("bookie-1", "bookie-2")
    one.give_back("bookie-2")
    assert one.free("bookie") == ["bookie-2", "bookie-3"]


def test_the_seed_decides() -> None:
    def draw(seed: int) -> list[Fault]:
        rng = Random(seed)
        return [draw_fault(rng, subject) for subject in ("writer-1", "bookie-2", "zookeeper")]

    assert draw(1) == draw(1) != draw(2)


def test_every_kind_of_fault_is_drawn_and_one_disk_alone_rots() -> None:
    rng = Random(0)
    faults = [
        draw_fault(rng, subject)
        for subject in (*BOOKIES, *CLIENTS, "zookeeper", EVERYTHING)
        for _ in range(500)
    ]
    disks = {fault.what for fault in faults if fault.act == "disk"}
    assert disks == {*MOODS, NO_INDEX, ROT, DAMAGED_INDEX}
    rotten = {fault.subject for fault in faults if fault.what in (ROT, DAMAGED_INDEX)}
    assert rotten == {ROTTEN}
    images = {fault.subject for fault in faults if fault.act == OLD_IMAGE}
    assert images == {ROTTEN}
    kinds = {fault.kind for fault in faults}
    for part in ("bookie", "writer", "reader", "zookeeper"):
        assert {f"kill {part}", f"pause {part}"} <= kinds
    assert {"bookie: cut, to it", "bookie: silent, to zookeeper", "writer: cut, to zookeeper"} <= (
        kinds
    )
    assert {draw_kind(rng) for _ in range(200)} == {"bookie", "client", "zookeeper"}
