"""The configurations: each test run searches the small ones, `make check-model` the large ones."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from daybook.bookie.ledger.protocol.placement import Quorums
from tests.model.ledger.settings import LedgerSettings
from tests.model.ledger.system import LedgerSystem
from tests.model.log.system import LogSettings, LogSystem
from tests.model.ownership.system import OwnershipSettings, OwnershipSystem
from tests.model.search import System


class Size(Enum):
    SMALL = auto()  # seconds
    LARGE = auto()  # minutes, or longer than the limit of time


@dataclass(frozen=True, slots=True)
class Configuration:
    """A system by name; each `build` makes a new one, so that it sees mutants applied before."""

    name: str
    build: Callable[[], System]
    size: Size = Size.SMALL


def ledger(
    bookies: int, quorums: tuple[int, int, int], size: Size = Size.SMALL, /, **more: Any
) -> Configuration:
    """Return a configuration; a large one is reduced, which can hide the shortest violation."""
    reduced = size is Size.LARGE
    settings = LedgerSettings(
        bookies=bookies, quorums=Quorums(*quorums), **{"reduced": reduced, **more}
    )
    return Configuration(f"ledger {settings}", lambda: LedgerSystem(settings), size)


def ownership(size: Size = Size.SMALL, /, **more: Any) -> Configuration:
    settings = OwnershipSettings(**more)
    return Configuration(f"ownership {settings}", lambda: OwnershipSystem(settings), size)


def log(size: Size = Size.SMALL, /, **more: Any) -> Configuration:
    settings = LogSettings(**more)
    return Configuration(f"log {settings}", lambda: LogSystem(settings), size)


W1 = {"give_ups": 1, "changes": 1}
R1 = {"recovery_give_ups": 1, "recovery_changes": 1}
CURSOR = {"subscribes": 1}
PAIR = {"entries": 2, "in_flight": 2}

LEDGER = [
    ledger(2, (2, 2, 1)),
    ledger(2, (2, 2, 2)),
    ledger(2, (2, 2, 2), **R1, give_ups=1, fence_give_ups=True, stale=True),
    ledger(2, (2, 2, 2), **R1, fifo=False),
    ledger(2, (2, 2, 2), **PAIR, closes=True),
    ledger(2, (2, 2, 2), **PAIR, reads_max=2, recovery_give_ups=1),
    ledger(2, (2, 2, 2), **PAIR, give_ups=1, cuts=1),
    ledger(2, (2, 2, 2), give_ups=1, closes=True, lost_answers=1),
    ledger(2, (2, 2, 2), recoverers=2),
    ledger(2, (2, 2, 2), recoverers=2, lost_answers=1),
    ledger(2, (2, 2, 2), readers=1, read_give_ups=1),
    ledger(2, (2, 2, 1), **PAIR, fifo=False),
    ledger(3, (2, 2, 1), **W1, **R1),
    ledger(3, (2, 2, 2), **W1),
    ledger(3, (2, 2, 2), **W1, **R1),
    ledger(3, (2, 2, 2), entries=2, readers=1, recoverers=0, **W1),
    ledger(3, (3, 2, 2), **PAIR, reads_max=2),
    ledger(3, (3, 3, 2)),
    ledger(3, (3, 3, 2), fifo=False),
    ledger(3, (3, 3, 2), recovery_give_ups=1),
    ledger(2, (2, 2, 2), Size.LARGE, **PAIR, **R1, recoverers=2, reads_max=2),
    ledger(2, (2, 2, 2), Size.LARGE, recoverers=2, **R1, give_ups=1, lost_answers=1, closes=True),
    ledger(2, (2, 2, 2), Size.LARGE, recoverers=2, **R1, give_ups=1, fifo=False),
    ledger(3, (2, 2, 2), Size.LARGE, **W1, lost_answers=1),
    ledger(3, (2, 2, 2), Size.LARGE, **W1, **R1, lost_answers=1),
    ledger(3, (2, 2, 2), Size.LARGE, **W1, **R1, entries=2),
    ledger(3, (2, 2, 2), Size.LARGE, **W1, **R1, cuts=1, postponed=True),
    ledger(3, (2, 2, 2), Size.LARGE, **PAIR, **W1, **R1),
    ledger(3, (2, 2, 1), Size.LARGE, **PAIR, **W1, **R1),
    ledger(3, (2, 2, 2), Size.LARGE, **W1, recoverers=2),
    ledger(3, (2, 2, 2), Size.LARGE, **W1, **R1, recoverers=2),
    ledger(3, (2, 2, 2), Size.LARGE, **W1, entries=2, readers=1),
    ledger(3, (3, 2, 2), Size.LARGE, **PAIR, recovery_give_ups=1, give_ups=1, reads_max=2),
    ledger(3, (3, 3, 2), Size.LARGE, **R1, give_ups=1, closes=True),
    ledger(3, (3, 3, 2), Size.LARGE, **PAIR),
    ledger(3, (3, 3, 2), Size.LARGE, **PAIR, reads_max=2, fifo=False),
    ledger(3, (3, 3, 2), Size.LARGE, recoverers=2),
    ledger(4, (3, 3, 2), Size.LARGE, **W1),
    ledger(4, (3, 3, 2), Size.LARGE, **W1, **R1),
    ledger(4, (3, 3, 2), Size.LARGE, **PAIR, **W1),
]

OWNERSHIP = [
    ownership(brokers=1, cuts=1, expiries=1, removals=1),
    ownership(brokers=1, lost_answers=1, releases=1),
    ownership(releases=1),
    ownership(releases=1, gives=True),
    ownership(cuts=1),
    ownership(expiries=1),
    ownership(Size.LARGE, brokers=1, cuts=1, expiries=1, removals=1, lost_answers=1, releases=1),
    ownership(Size.LARGE, releases=1, gives=True, lost_answers=1),
    ownership(Size.LARGE, releases=1, gives=True, cuts=1, expiries=1),
    ownership(Size.LARGE, brokers=3, releases=1, gives=True),
    ownership(Size.LARGE, removals=1),
    ownership(Size.LARGE, releases=1, lost_answers=1),
    ownership(Size.LARGE, cuts=1, expiries=1),
    ownership(Size.LARGE, cuts=1, removals=1, releases=1),
    ownership(Size.LARGE, cuts=1, expiries=1, removals=1, lost_answers=1, releases=1),
]

LOG = [
    log(brokers=1, appends=1, rolls=1, lost_answers=1),
    log(appends=2),
    log(appends=1, rolls=1),
    log(appends=1, lost_answers=1),
    log(brokers=3, appends=1),
    log(brokers=1, appends=2, **CURSOR, acks=2, flushes=2, calm=True),
    log(appends=1, **CURSOR, acks=1, flushes=1),
    log(appends=1, **CURSOR, acks=1, closes=1),
    log(Size.LARGE, brokers=3, appends=1, lost_answers=1),
    log(Size.LARGE, appends=2, rolls=1),
    log(Size.LARGE, appends=2, rolls=2, calm=True),
    log(Size.LARGE, appends=1, rolls=1, lost_answers=1),
    log(Size.LARGE, brokers=3, appends=2, rolls=1, calm=True),
    log(Size.LARGE, appends=2, **CURSOR, acks=2, flushes=2, calm=True),
    log(Size.LARGE, appends=2, **CURSOR, acks=2, flushes=1, closes=1, calm=True),
    log(Size.LARGE, appends=2, rolls=1, **CURSOR, acks=2, trims=True, calm=True),
    log(Size.LARGE, appends=2, rolls=1, **CURSOR, acks=1, lost_answers=1, calm=True),
]

CONFIGURATIONS = sorted([*LEDGER, *OWNERSHIP, *LOG], key=lambda c: c.size.value)


def named(name: str) -> Configuration:
    """Find a configuration by its name, or by a part of it that no other has."""
    found = [c for c in CONFIGURATIONS if c.name == name] or [
        c for c in CONFIGURATIONS if name in c.name
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} configurations are called {name!r}")
    return found[0]
