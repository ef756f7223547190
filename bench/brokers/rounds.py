"""Turns in alternation: each system in each round, with what the servers and the client used.

A round has one turn of each system; every second round goes the other way around.  Before a turn
the servers of all systems have to be quiet, as far as they ever are.  A turn that fails is printed
and has no figures.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.bookie import cpu_seconds
from bench.brokers.lines import IDLE, LIMIT, OTHERS, Lines
from bench.brokers.loads import JAVA, KAFKA_JAVA, OWN_PYTHON, PULSAR_PYTHON, Load
from bench.brokers.systems import KINDS, System
from bench.spark.lines import Used
from bench.spark.usage import used
from tests.interop.peer import PeerError

_QUIET_CORES = 0.3  # All servers together; three idle brokers of Kafka use half of it.
_LOOK_S = 0.5
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work."""

    rounds: int = 5
    first_s: float = 10.0  # each system, before anything is measured: compilers have their time
    warm_s: float = 1.5  # in each turn
    measure_s: float = 5.0
    backlog: int = 500_000  # messages of 1 KB
    relayed_bytes: int = 1 << 28  # to know the limit

    @classmethod
    def quick(cls) -> "Sizes":
        return cls(
            rounds=1,
            first_s=4.0,
            warm_s=0.5,
            measure_s=2.0,
            backlog=200_000,
            relayed_bytes=1 << 27,
        )


@dataclass(slots=True)
class Turn:
    """One turn: its figures, and how many messages its processor time is for."""

    figures: dict[str, float] = field(default_factory=dict[str, float])
    messages: int = 0
    servers: Used = field(default_factory=Used)
    client: Used = field(default_factory=Used)
    idle: Used = field(default_factory=Used)  # the servers of the systems whose turn it is not

    def all_figures(self) -> dict[str, float]:
        """Return the figures, those of the processor and of the conditions among them."""
        found = dict(self.figures)
        if self.servers.took_s:
            each_us = 1e6 / self.messages
            found["servers, us/message"] = sum(self.servers.by_kind.values()) * each_us
            for kind in ("broker", "bookie"):
                if kind in self.servers.by_kind:
                    found[f"  {kind}s, us/message"] = self.servers.by_kind[kind] * each_us
            found["client, us/message"] = sum(self.client.by_kind.values()) * each_us
            took_s = self.servers.took_s
            found["servers waited"] = self.servers.waited_s / took_s
            found["client waited"] = self.client.waited_s / took_s
            idle_s = sum(self.idle.by_kind.values())
            found[IDLE] = idle_s / took_s
            # Other programs: all that is neither a server nor the client.
            others_s = self.servers.others_s - sum(self.client.by_kind.values()) - idle_s
            found[OTHERS] = max(0.0, others_s) / took_s
        return found


class Run:
    """The systems and the client programs, until the block ends."""

    def __init__(
        self, names: Sequence[str], directory: Path, sizes: Sizes, python: str, lines: Lines
    ) -> None:
        self.names = names
        self.sizes = sizes
        self.lines = lines
        self.systems: dict[str, System] = {}
        self._directory = directory
        self._serial = count()
        self._filled: set[str] = set()
        self._stack = ExitStack()
        self._loads = {
            kind: Load(kind, directory / kind, python)
            for kind in (JAVA, KAFKA_JAVA, OWN_PYTHON, PULSAR_PYTHON)
        }

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name in self.names:
                system = KINDS[name](self._directory / name.lower())
                stack.callback(system.close)
                self.systems[name] = system
            for load in self._loads.values():
                stack.callback(load.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def load(self, kind: str, system: System) -> Load:
        """Return a client program, connected with a system."""
        load = self._loads[kind]
        load.connect(system.name, system.url)
        return load

    def name(self, what: str) -> str:
        """Return a name that nothing else has."""
        return f"{what}-{next(self._serial)}"

    def fill_once(self, system: System, topic: str, fill: Callable[[], None]) -> None:
        """Call `fill` if this topic of the system has no messages yet."""
        key = f"{system.name} {topic}"
        if key not in self._filled:
            fill()
            self._filled.add(key)

    def measure(self, turn: Turn, load: Load, system: System, work: Callable[[], None]) -> None:
        """Do the work, and note in the turn what servers and client used."""
        pids = system.pids()
        idle_pids = self._pids(without=system)
        with (
            used(lambda: {"idle": idle_pids}) as idle,
            used(lambda: pids) as servers,
            used(lambda: {"client": load.pids}) as client,
        ):
            work()
        turn.servers, turn.client, turn.idle = servers, client, idle

    def take_turns(
        self,
        case: str,
        turn: Callable[[System], Turn],
        *,
        systems: Sequence[str],
        limit: Callable[[], Mapping[str, float]] | None,
        rehearse: bool,
    ) -> None:
        """Run all rounds of a case; a rehearsal is a round that does not count."""
        chosen = [self.systems[name] for name in systems if name in self.systems]
        for round_ in range(-1 if rehearse else 0, self.sizes.rounds):
            for system in chosen[:: -1 if round_ % 2 else 1]:
                self.settle()
                try:
                    found = turn(system).all_figures()
                except PeerError as error:
                    # A system that is overrun refuses messages.  The other turns still count.
                    print(f"  {case}, {system.name}: a turn failed: {error}", flush=True)
                    continue
                if round_ >= 0:
                    self.lines.add(case, round_, system.name, found)
            if limit is not None and round_ >= 0:
                self.lines.add(case, round_, LIMIT, limit())

    def settle(self) -> None:
        """Return when the servers have done their postponed work, and it is on the disk."""
        pids = self._pids()
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            before = sum(map(cpu_seconds, pids))
            time.sleep(_LOOK_S)
            busy = (sum(map(cpu_seconds, pids)) - before) / _LOOK_S
            if busy < _QUIET_CORES or time.monotonic() > deadline:
                break
        os.sync()

    def _pids(self, *, without: System | None = None) -> list[int]:
        """Return the servers of all systems, or of all others."""
        systems = (system for system in self.systems.values() if system is not without)
        return [pid for system in systems for some in system.pids().values() for pid in some]
