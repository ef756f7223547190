"""Sources of the racks in which bookies stand.

    RegisteredRacks     racks that bookies announce: the setting `rack` of ours
    RackFile            a file of lines `bookie rack`, read again for each look
    RackScript          a program that gets hosts and prints a rack for each, as with Hadoop
    RackTable           a mapping

The names in a file or table are ids of bookies, or hosts.  Other bookies are in DEFAULT_RACK.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from daybook.bookie.ledger.protocol.racks import DEFAULT_RACK, RackRule
from daybook.bookie.registry.registrations import BookieInfo

RACK_PROPERTY = "daybook.rack"  # a property in the registration of a bookie


class RackError(Exception):
    """The source cannot answer; its last answer stays valid."""


class RackSource(Protocol):
    async def racks(self, bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
        """Return the known racks of these bookies, by id; raise RackError."""
        ...


class RegisteredRacks:
    """Racks that bookies have announced."""

    async def racks(self, bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
        await trio.lowlevel.checkpoint()
        return {info.bookie_id: info.properties.get(RACK_PROPERTY, "") for info in bookies}


class RackTable:
    """Racks from a fixed mapping."""

    def __init__(self, racks: Mapping[str, str]) -> None:
        self._racks = dict(racks)

    async def racks(self, bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
        await trio.lowlevel.checkpoint()
        return _by_name(self._racks, bookies)


class RackFile:
    """Racks from lines `bookie rack`, with comments after #; raise ValueError if it is unusable."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            self._racks = self._parsed()
        except RackError as error:
            raise ValueError(str(error)) from error

    async def racks(self, bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
        self._racks = await trio.to_thread.run_sync(self._parsed)
        return _by_name(self._racks, bookies)

    def _parsed(self) -> dict[str, str]:
        try:
            lines = self._path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RackError(f"the file of racks cannot be read: {error}") from error
        racks: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if words and len(words) != 2:
                what = "a line is the id or host of a bookie, and its rack"
                raise RackError(f"{self._path}, line {number}: {what}")
            if words:
                racks[words[0]] = words[1]
        return racks


class RackScript:
    """Racks from `command host host...`, which prints one rack for each host."""

    def __init__(self, *command: str, timeout_s: float = 10.0) -> None:
        if not command:
            raise ValueError("the rack script needs a command")
        self._command = command
        self._timeout_s = timeout_s

    async def racks(self, bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
        if not bookies:
            return {}
        command = [*self._command, *(info.host for info in bookies)]
        try:
            with trio.fail_after(self._timeout_s):
                done = await trio.run_process(command, capture_stdout=True, check=True)
        except trio.TooSlowError:
            raise RackError(
                f"the rack script {command[0]} did not end within {self._timeout_s:g} s"
            ) from None
        except (OSError, subprocess.CalledProcessError) as error:
            raise RackError(f"the rack script failed: {error}") from error
        racks = done.stdout.decode(errors="replace").split()
        if len(racks) != len(bookies):
            raise RackError(
                f"the rack script {command[0]} printed {len(racks)} racks for {len(bookies)} hosts"
            )
        return {info.bookie_id: rack for info, rack in zip(bookies, racks, strict=True)}


def _by_name(racks: Mapping[str, str], bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for info in bookies:
        host = info.bookie_id.rpartition(":")[0]
        names = (info.bookie_id, info.host, host)
        found[info.bookie_id] = next((racks[n] for n in names if n in racks), DEFAULT_RACK)
    return found


@dataclass(frozen=True, slots=True)
class Placement:
    """Where racks are read from, and which rule ensembles follow."""

    racks: RackSource = field(default_factory=RegisteredRacks)
    rule: RackRule = field(default_factory=RackRule)
