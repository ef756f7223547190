"""The list of faults that can happen to a cluster of real processes, and the draw of one.

Each fault needs a layer: the part of the cluster that suffers it.  A run without brokers draws no
faults of brokers, and so on.

No fault may cost an acknowledged entry, so faults stay within what the quorums tolerate (`Budget`).
A power failure hits all parts at once, and comes alone.  Only one disk in a run may lose stored
entries (`ROTTEN`), which an ack quorum of two survives.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.harness.links import FINE, NEVER, Weather
from tests.soak.disk import Mood

ZOOKEEPER, BOOKIE, BROKER, CLIENT = "zookeeper", "bookie", "broker", "client"
EVERYTHING = "everything"
ROTTEN = "bookie-1"  # the only bookie whose disk may lose stored entries
_SLOW_S = 0.2
_LONG = 0.4  # the share of faults that last longer than a session
_RESET = 0.3  # the share of silent links whose connections are reset as well
_BOOKIES_ILL = 2  # the most at a time; 1 with brokers, whose topics need two of three bookies
_CLIENTS_ILL = 2

WEATHERS = {
    "cut": Weather(refuse=True),  # the connections are reset as well
    "no connection": Weather(refuse=True),
    "silent": Weather(there_s=NEVER, back_s=NEVER),
    "silent there": Weather(there_s=NEVER),
    "silent back": Weather(back_s=NEVER),
    "slow": Weather(there_s=_SLOW_S, back_s=_SLOW_S),
}
MOODS = {
    "has little room": Mood(no_room=True),
    "is full": Mood(full=True),
    "tears writes": Mood(torn=True),
    "fails reads": Mood(read_errors=0.3),
    "is slow": Mood(write_s=0.3),
    "hangs": Mood(stuck=True),
}
RUIN = frozenset({"is full", "tears writes"})  # the bookie has to restart afterwards


@dataclass(frozen=True, slots=True)
class Times:
    """Bounds of durations.  The session is the part's session in ZooKeeper."""

    down: tuple[float, float]  # after a kill
    short: tuple[float, float]  # shorter than the session
    long: tuple[float, float]  # longer than the session


_TIMES = {
    BROKER: Times((0.0, 4.0), (0.2, 1.5), (3.0, 7.0)),
    BOOKIE: Times((0.0, 8.0), (0.2, 5.0), (11.0, 16.0)),
    ZOOKEEPER: Times((0.0, 4.0), (0.2, 1.5), (2.0, 6.0)),
    CLIENT: Times((0.0, 4.0), (0.2, 3.0), (5.0, 12.0)),
    EVERYTHING: Times((0.0, 2.0), (0.0, 2.0), (0.0, 2.0)),
}
_LAYERS = {BROKER: 6.0, BOOKIE: 5.0, CLIENT: 2.5, ZOOKEEPER: 1.5}  # how often each suffers


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A line of the list of faults."""

    act: str  # kill, pause, weather, mood, or a kind of damage to files
    layer: str  # the layer that suffers, or EVERYTHING
    what: str = ""  # the name of the weather or of the mood
    link: str = ""  # for weather: "to it" or "to zookeeper"
    weight: float = 1.0  # its weight among the faults of its layer
    loses: bool = False  # the disk loses stored entries, so only ROTTEN may suffer it

    def __str__(self) -> str:
        """Return a text without names and numbers, which is the same for all faults of the kind."""
        match self.act:
            case "weather":
                return f"{self.layer}: {self.what}, {self.link}"
            case "mood":
                return f"{self.layer}: disk {self.what}"
            case "kill" | "pause":
                return f"{self.act} {self.layer}"
            case _:
                return f"{self.layer}: {self.act}"


def _weathers(layer: str, link: str, weight: float) -> list[FaultKind]:
    return [FaultKind("weather", layer, what, link, weight / len(WEATHERS)) for what in WEATHERS]


OLD_IMAGE = "old image"  # an older copy of the directory is restored
NO_INDEX = "loses its index"
ROT = "rots"  # old bytes of the log change
DAMAGED_INDEX = "damages its index"  # bytes of RocksDB's files change

FAULTS: Sequence[FaultKind] = (
    *(FaultKind(act, layer) for act in ("kill", "pause") for layer in _LAYERS),
    FaultKind("kill", EVERYTHING),
    *_weathers(BROKER, "to it", 2.0),
    *_weathers(BROKER, "to zookeeper", 1.0),
    *_weathers(BOOKIE, "to it", 1.5),
    *_weathers(BOOKIE, "to zookeeper", 1.0),
    *_weathers(CLIENT, "to zookeeper", 1.0),
    *(FaultKind("mood", BOOKIE, mood, weight=0.3) for mood in MOODS),
    FaultKind(NO_INDEX, BOOKIE, weight=0.3),
    FaultKind(ROT, BOOKIE, weight=1.0, loses=True),
    FaultKind(DAMAGED_INDEX, BOOKIE, weight=1.0, loses=True),
    FaultKind(OLD_IMAGE, BOOKIE, weight=1.5, loses=True),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that one part suffers for a while."""

    kind: FaultKind
    subject: str  # the part, or EVERYTHING
    seconds: float
    reset: bool = False  # open connections are reset when it begins and when it ends

    @property
    def link(self) -> str:
        """Return the name of the link that the fault is about."""
        if self.kind.link == "to zookeeper":
            return f"{self.subject} to zookeeper"
        return f"to {self.subject}" if self.kind.link else ""

    @property
    def weather(self) -> Weather:
        return WEATHERS.get(self.kind.what, FINE)

    def __str__(self) -> str:
        kind = self.kind
        where = f" ({self.link})" if self.link else ""
        what = f"disk {kind.what}" if kind.act == "mood" else kind.what or kind.act
        return f"{what} {self.subject}{where} for {self.seconds:.1f} s"


def kinds_of(layers: Iterable[str]) -> list[FaultKind]:
    """Return the faults of a cluster that has these layers."""
    there = {*layers, EVERYTHING}
    return [kind for kind in FAULTS if kind.layer in there]


def layer_of(part: str) -> str:
    """Return the layer of a part; one that is neither a server nor EVERYTHING is a client."""
    kind = part.partition("-")[0]
    return kind if kind in (BROKER, BOOKIE, ZOOKEEPER, EVERYTHING) else CLIENT


def draw_layer(rng: Random, layers: Iterable[str]) -> str:
    there = sorted(layers)
    return rng.choices(there, weights=[_LAYERS[layer] for layer in there])[0]


def draw_fault(rng: Random, subject: str) -> Fault:
    """Draw a fault that this part suffers."""
    layer = layer_of(subject)
    kinds = [
        kind for kind in FAULTS if kind.layer == layer and (subject == ROTTEN or not kind.loses)
    ]
    (kind,) = rng.choices(kinds, weights=[kind.weight for kind in kinds])
    times = _TIMES[layer]
    if kind.act == "kill":
        return Fault(kind, subject, rng.uniform(*times.down))
    seconds = rng.uniform(*(times.long if rng.random() < _LONG else times.short))
    reset = kind.what == "cut" or ("silent" in kind.what and rng.random() < _RESET)
    return Fault(kind, subject, seconds, reset)


class Budget:
    """The parts that may suffer at the same time.

    At least one broker stays well.  Without brokers two bookies may suffer at a time, which stops
    some ledgers; with brokers only one may.
    """

    def __init__(self, parts: Mapping[str, Sequence[str]]) -> None:
        """Begin with all parts well; `parts` are the names of the parts of each layer."""
        brokers = parts.get(BROKER, ())
        self._parts = parts
        self._ill_max = {
            ZOOKEEPER: 1,
            BOOKIE: 1 if brokers else _BOOKIES_ILL,
            BROKER: len(brokers) - 1,
            CLIENT: _CLIENTS_ILL,
        }
        self._suffering: dict[str, None] = {}

    def take(self, subject: str) -> None:
        self._suffering[subject] = None

    def give_back(self, subject: str) -> None:
        del self._suffering[subject]

    def free(self, layer: str) -> list[str]:
        """Return the parts of the layer that may suffer next."""
        if EVERYTHING in self._suffering:
            return []
        if layer == EVERYTHING:
            return [] if self._suffering else [EVERYTHING]
        names = self._parts[layer]
        well = [name for name in names if name not in self._suffering]
        return well if len(names) - len(well) < self._ill_max[layer] else []
