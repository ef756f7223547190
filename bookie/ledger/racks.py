"""Where to learn in which rack a bookie stands.

    RegisteredRacks     what bookies say of themselves: the setting `rack` of ours
    RackFile            a file of lines `bookie rack`, looked at again when it has changed
    RackScript          a program that is given hosts, and prints a rack for each (as Hadoop's)
    RackTable           a mapping

Names in a file or a table are ids of bookies, or hosts.  Who is not named is in DEFAULT_RACK.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from daybook.bookie.ledger.protocol.racks import DEFAULT_RACK, RackRule
from daybook.bookie.registry.registrations import BookieInfo

RACK_PROPERTY = "daybook.rack"  # of a bookie's registration


class RackError(Exception):
    """The source cannot say; what it said last stays true."""


class RackSource(Protocol):
    async def racks(self, bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
        """The racks of these bookies, by id, as far as they are known.  RackError."""
        ...


class RegisteredRacks:
    """What bookies have announced."""

    async def racks(self, bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
        await trio.lowlevel.checkpoint()
        return {info.bookie_id: info.properties.get(RACK_PROPERTY, "") for info in bookies}


class RackTable:
    """Fixed ones."""

    def __init__(self, racks: Mapping[str, str]) -> None:
        self._racks = dict(racks)

    async def racks(self, bookies: Sequence[BookieInfo]) -> Mapping[str, str]:
        await trio.lowlevel.checkpoint()
        return _by_name(self._racks, bookies)


class RackFile:
    """Lines `bookie rack`; what follows a # is a remark.  ValueError if it cannot be used."""

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
    """`command host host...` prints as many racks, with white space in between."""

    def __init__(self, *command: str, timeout_s: float = 10.0) -> None:
        if not command:
            raise ValueError("a program that tells racks has a name")
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
            raise RackError(f"{command[0]}: not done in {self._timeout_s:g} s") from None
        except (OSError, subprocess.CalledProcessError) as error:
            raise RackError(f"the program that tells racks: {error}") from error
        racks = done.stdout.decode(errors="replace").split()
        if len(racks) != len(bookies):
            raise RackError(f"{command[0]}: {len(racks)} racks for {len(bookies)} hosts")
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
    """Which bookies are to hold an entry."""

    racks: RackSource = field(default_factory=RegisteredRacks)
    rule: RackRule = field(default_factory=RackRule)
