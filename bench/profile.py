"""Where the time goes: what each process of the cluster used while something was measured."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from daybook.clients.testing.standalone import StandaloneProcess

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Profile:
    """A context manager; `text` says how busy the cores were, by kind of process."""

    cluster: StandaloneProcess
    text: str = ""
    _before: tuple[float, dict[str, float]] = (0.0, {})

    def __enter__(self) -> Self:
        self._before = time.perf_counter(), self._used()
        return self

    def __exit__(self, *_: object) -> None:
        since, before = self._before
        elapsed = time.perf_counter() - since
        shares: dict[str, float] = {}
        for name, used in self._used().items():
            kind = name.partition("-")[0]
            shares[kind] = shares.get(kind, 0.0) + (used - before.get(name, 0.0)) / elapsed
        self.text = "cores: " + ", ".join(f"{kind} {share:.2f}" for kind, share in shares.items())

    def _used(self) -> dict[str, float]:
        """Return the processor seconds so far, by name of the process."""
        parts: list[dict[str, object]] = self.cluster.parts()
        used = {str(part["name"]): _seconds(part["pid"]) for part in parts}
        mine = os.times()
        return {"client": mine.user + mine.system, **used}


def _seconds(pid: object) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
