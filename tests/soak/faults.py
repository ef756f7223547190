"""What can happen to a cluster of real processes, as data, and how to draw it.

A fault has a subject: the part that suffers.  It is within what the quorums bear: one bookie at a
time, all brokers but one, ZooKeeper; a power failure, which nobody survives, comes alone.  Nothing
that has a receipt may be lost in any of them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from tests.soak.links import FINE, NEVER, Weather
from tests.soak.old_image import OLD_IMAGE

EVERYTHING = "everything"
ROTTEN = "bookie-1"  # the one disk that may lose what it has stored
_SLOW_S = 0.2


@dataclass(frozen=True, slots=True)
class Fault:
    act: str  # kill, pause, weather, disk, old image
    subject: str  # the part, or EVERYTHING
    seconds: float
    link: str = ""  # of weather
    weather: Weather = FINE
    cut: bool = False  # what is open is reset, when it begins and when it ends
    what: str = ""  # the weather, or what the disk does, in words

    @property
    def kind(self) -> str:
        """Without names and numbers, to count by."""
        part = self.subject.partition("-")[0]
        if self.act == "disk":
            return f"{part}: disk {self.what}"
        if self.act != "weather":
            return f"{self.act} {part}"
        where = "to zookeeper" if self.link.endswith("zookeeper") else "to it"
        return f"{part}: {self.what}, {where}"

    def __str__(self) -> str:
        where = f" ({self.link})" if self.link else ""
        what = f"disk {self.what}" if self.act == "disk" else self.what or self.act
        return f"{what} {self.subject}{where} for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Times:
    """Bounds of durations; a session is that of a broker or a bookie, in ZooKeeper."""

    down: tuple[float, float]  # after a kill
    short: tuple[float, float]  # shorter than the session
    long: tuple[float, float]  # longer than the session


BROKER = Times((0.0, 4.0), (0.2, 1.5), (3.0, 7.0))
BOOKIE = Times((0.0, 8.0), (0.2, 5.0), (11.0, 16.0))
ZOOKEEPER = Times((0.0, 4.0), (0.2, 1.5), (2.0, 6.0))
_TIMES = {"broker": BROKER, "bookie": BOOKIE, "zookeeper": ZOOKEEPER}
_WEATHERS = {
    "cut": (Weather(refuse=True), True),
    "no connection": (Weather(refuse=True), False),
    "silent": (Weather(there_s=NEVER, back_s=NEVER), False),
    "silent there": (Weather(there_s=NEVER), False),
    "silent back": (Weather(back_s=NEVER), False),
    "slow": (Weather(there_s=_SLOW_S, back_s=_SLOW_S), False),
}
_LONG = 0.4  # the share of what is longer than a session


class Budget:
    """What may suffer at the same time."""

    def __init__(self, brokers: Iterable[str], bookies: Iterable[str]) -> None:
        self._brokers = list(brokers)
        self._bookies = list(bookies)
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
            case "broker":
                well = [name for name in self._brokers if name not in self._suffering]
                return well if len(well) > 1 else []
            case "bookie":
                ill = any(name in self._suffering for name in self._bookies)
                return [] if ill else self._bookies
            case "zookeeper":
                return [] if kind in self._suffering else [kind]
            case _:
                return [] if self._suffering else [EVERYTHING]


def draw_kind(rng: Random) -> str:
    return rng.choice(["broker", "broker", "broker", "bookie", "bookie", "zookeeper"])


def draw_fault(rng: Random, subject: str) -> Fault:
    """One that this part suffers."""
    if subject == EVERYTHING:
        return Fault("kill", EVERYTHING, rng.uniform(0.0, 2.0))
    times = _TIMES[subject.partition("-")[0]]
    acts: list[Callable[[], Fault]] = [
        lambda: Fault("kill", subject, rng.uniform(*times.down)),
        lambda: Fault("pause", subject, draw_seconds(rng, times)),
    ]
    if subject != "zookeeper":
        acts += [lambda: draw_weather(rng, subject, f"to {subject}", times)] * 2
        acts.append(lambda: draw_weather(rng, subject, f"{subject} to zookeeper", times))
    if subject == ROTTEN:
        acts += [lambda: draw_image(rng, subject)] * 2
    return rng.choice(acts)()


def draw_image(rng: Random, subject: str) -> Fault:
    return Fault(OLD_IMAGE, subject, draw_seconds(rng, BOOKIE))


def draw_seconds(rng: Random, times: Times) -> float:
    return rng.uniform(*(times.long if rng.random() < _LONG else times.short))


def draw_weather(rng: Random, subject: str, link: str, times: Times) -> Fault:
    what = rng.choice(list(_WEATHERS))
    weather, cut = _WEATHERS[what]
    seconds = draw_seconds(rng, times)
    cut = cut or ("silent" in what and rng.random() < 0.3)
    return Fault("weather", subject, seconds, link, weather, cut, what)
