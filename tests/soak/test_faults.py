"""The faults that are drawn stay within what the quorums bear."""

from random import Random

import pytest

from tests.soak.faults import (
    BOOKIE,
    BROKER,
    CLIENT,
    EVERYTHING,
    FAULTS,
    ROTTEN,
    ZOOKEEPER,
    Budget,
    Fault,
    draw_fault,
    draw_layer,
    kinds_of,
    layer_of,
)

SERVERS = {
    ZOOKEEPER: ["zookeeper"],
    BOOKIE: ["bookie-1", "bookie-2", "bookie-3"],
    BROKER: ["broker-1", "broker-2", "broker-3"],
}
BROKERS, BOOKIES = SERVERS[BROKER], SERVERS[BOOKIE]
CLIENTS = ["writer-1", "reader-1"]
LEDGERS_ALONE = {ZOOKEEPER: ["zookeeper"], BOOKIE: BOOKIES, CLIENT: CLIENTS}


def budget(parts: dict[str, list[str]], *suffering: str) -> Budget:
    made = Budget(parts)
    for subject in suffering:
        made.take(subject)
    return made


@pytest.mark.parametrize(
    ("suffering", "layer", "free"),
    [
        ([], BROKER, BROKERS),
        (["broker-2"], BROKER, ["broker-1", "broker-3"]),
        (["broker-1", "broker-2"], BROKER, []),
        ([], BOOKIE, BOOKIES),
        (["broker-1", "zookeeper"], BOOKIE, BOOKIES),
        (["bookie-1"], BOOKIE, []),
        (["bookie-1"], ZOOKEEPER, ["zookeeper"]),
        (["zookeeper"], ZOOKEEPER, []),
        ([], EVERYTHING, [EVERYTHING]),
        (["zookeeper"], EVERYTHING, []),
        ([EVERYTHING], BROKER, []),
    ],
)
def test_with_brokers_one_bookie_and_all_brokers_but_one_may_suffer(
    suffering: list[str], layer: str, free: list[str]
) -> None:
    assert budget(SERVERS, *suffering).free(layer) == free


@pytest.mark.parametrize(
    ("suffering", "layer", "free"),
    [
        ([], BOOKIE, BOOKIES),
        (["bookie-1"], BOOKIE, ["bookie-2", "bookie-3"]),
        (["bookie-1", "bookie-3"], BOOKIE, []),
        (["bookie-1", "bookie-3"], CLIENT, CLIENTS),
        (["writer-1"], CLIENT, ["reader-1"]),
        (["zookeeper"], ZOOKEEPER, []),
        (["writer-1"], ZOOKEEPER, ["zookeeper"]),
        (["writer-1"], EVERYTHING, []),
        ([], EVERYTHING, [EVERYTHING]),
        ([EVERYTHING], CLIENT, []),
    ],
)
def test_without_brokers_two_bookies_and_two_clients_may_suffer(
    suffering: list[str], layer: str, free: list[str]
) -> None:
    assert budget(LEDGERS_ALONE, *suffering).free(layer) == free


def test_a_part_that_is_well_again_may_suffer_again() -> None:
    one = budget(LEDGERS_ALONE, "bookie-1", "bookie-2")
    one.give_back("bookie-2")
    assert one.free(BOOKIE) == ["bookie-2", "bookie-3"]


def test_the_seed_decides() -> None:
    def draw(seed: int) -> list[Fault]:
        rng = Random(seed)
        subjects = ("broker-1", "writer-1", "bookie-2", "zookeeper")
        return [draw_fault(rng, subject) for subject in subjects]

    assert draw(1) == draw(1) != draw(2)


def test_every_fault_of_the_list_is_drawn_and_one_disk_alone_loses_data() -> None:
    rng = Random(0)
    subjects = (*BROKERS, *BOOKIES, *CLIENTS, "zookeeper", EVERYTHING)
    drawn = [draw_fault(rng, subject) for subject in subjects for _ in range(500)]
    assert {fault.kind for fault in drawn} == set(FAULTS)
    assert {fault.subject for fault in drawn if fault.kind.loses} == {ROTTEN}
    assert all(layer_of(fault.subject) == fault.kind.layer for fault in drawn)


def test_the_list_of_faults() -> None:
    weathers = ["cut", "no connection", "silent", "silent there", "silent back", "slow"]
    moods = ["has little room", "is full", "tears writes", "fails reads", "is slow", "hangs"]
    links = [(BROKER, "to it"), (BOOKIE, "to it")]
    links += [(layer, "to zookeeper") for layer in (BROKER, BOOKIE, CLIENT)]
    names = [str(kind) for kind in FAULTS]
    assert len(set(names)) == len(names)
    assert set(names) == {
        "kill everything",
        *(f"{act} {layer}" for act in ("kill", "pause") for layer in (*SERVERS, CLIENT)),
        *(f"{layer}: {weather}, {link}" for layer, link in links for weather in weathers),
        *(f"bookie: disk {mood}" for mood in moods),
        *("bookie: loses its index", "bookie: rots", "bookie: damages its index"),
        "bookie: old image",
    }


@pytest.mark.parametrize("parts", [SERVERS, LEDGERS_ALONE])
def test_a_fault_is_drawn_only_if_its_layer_is_there(parts: dict[str, list[str]]) -> None:
    rng = Random(0)
    assert {draw_layer(rng, parts) for _ in range(300)} == set(parts)
    assert {kind.layer for kind in kinds_of(parts)} == {*parts, EVERYTHING}
