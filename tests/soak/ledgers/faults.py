"""What can happen to bookies with their disks, to clients and to ZooKeeper, and how to draw it.

Nothing that is confirmed may be lost in any of it: two bookies may suffer at a time, which stops
some ledgers, and all parts may be killed at once.  Only one disk in a run may lose what it has
stored, which is what an ack quorum of two bears: `ROTTEN`.
"""

from collections.abc import Callable, Iterable
from random import Random

from tests.soak.faults import (
    BOOKIE,
    ROTTEN,
    ZOOKEEPER,
    Fault,
    Times,
    draw_image,
    draw_seconds,
    draw_weather,
)
from tests.soak.ledgers.moods import Mood

EVERYTHING = "everything"
CLIENT = Times((0.0, 4.0), (0.2, 3.0), (5.0, 12.0))  # its session in ZooKeeper is 4 s
_ILL_MAX = 2  # of bookies; likewise of clients: there has to be something to break

MOODS = {
    "has little room": Mood(no_room=True),
    "is full": Mood(full=True),
    "tears writes": Mood(torn=True),
    "fails reads": Mood(read_errors=0.3),
    "is slow": Mood(write_s=0.3),
    "hangs": Mood(stuck=True),
}
NO_INDEX = "loses its index"  # while the bookie is down
ROT = "rots"  # bytes change, of what was written long ago
DAMAGED_INDEX = "damages its index"  # bytes of RocksDB's files change
RUIN = frozenset({"is full", "tears writes"})  # after that the bookie has to start anew


class Budget:
    """What may suffer at the same time."""

    def __init__(self, bookies: Iterable[str], clients: Iterable[str]) -> None:
        self._bookies = list(bookies)
        self._clients = list(clients)
        self._suffering: dict[str, None] = {}

    def take(self, subject: str) -> None:
        self._suffering[subject] = None

    def give_back(self, subject: str) -> None:
        del self._suffering[subject]

    def free(self, kind: str) -> list[str]:
        """Who may suffer next, of a kind of part."""
        if EVERYTHING in self._suffering:
            return []
        match kind:
            case "bookie":
                return self._well(self._bookies)
            case "client":
                return self._well(self._clients)
            case "zookeeper":
                return [] if kind in self._suffering else [kind]
            case _:
                return [] if self._suffering else [EVERYTHING]

    def _well(self, names: list[str]) -> list[str]:
        well = [name for name in names if name not in self._suffering]
        return well if len(names) - len(well) < _ILL_MAX else []


def draw_kind(rng: Random) -> str:
    return rng.choice(["bookie"] * 6 + ["client"] * 3 + ["zookeeper"])


def draw_fault(rng: Random, subject: str) -> Fault:
    """One that this part suffers."""
    if subject == EVERYTHING:
        return Fault("kill", EVERYTHING, rng.uniform(0.0, 2.0))
    kind = subject.partition("-")[0]
    times = {"bookie": BOOKIE, "zookeeper": ZOOKEEPER}.get(kind, CLIENT)
    acts: list[Callable[[], Fault]] = [
        lambda: Fault("kill", subject, rng.uniform(*times.down)),
        lambda: Fault("pause", subject, draw_seconds(rng, times)),
    ]
    if kind != "zookeeper":
        acts.append(lambda: draw_weather(rng, subject, f"{subject} to zookeeper", times))
    if kind == "bookie":
        acts.append(lambda: draw_weather(rng, subject, f"to {subject}", times))
        acts += [lambda: _draw_disk(rng, subject)] * 2
        if subject == ROTTEN:
            acts.append(lambda: draw_image(rng, subject))
    return rng.choice(acts)()


def _draw_disk(rng: Random, subject: str) -> Fault:
    whats = [*MOODS, NO_INDEX]
    if subject == ROTTEN:
        whats += [ROT, DAMAGED_INDEX] * (len(whats) // 2)
    return Fault("disk", subject, draw_seconds(rng, BOOKIE), what=rng.choice(whats))
