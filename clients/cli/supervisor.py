"""Run the parts of a cluster as child processes, and restart those that die.

    STARTING -> RUNNING <-> PAUSED            `pause`, `resume`
       ^           | died
       |           v
       +------ RESTARTING                     after a second
       +------ DOWN                           entered by `kill` and `stop`, left by `start` only

A part is RUNNING once it prints a line of JSON that says so, or answers a probe.  A part that does
not get ready is restarted forever, with growing pauses, and the last line of its log is kept as the
reason.  The cluster comes up without that part, unless it is ZooKeeper or the only broker
(`Supervisor.wait_ready`): a bookie with a lost disk must not prevent the other bookies, and the
tools that repair it, from running.
"""

import json
import re
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

import trio

from daybook.clients.cli.child import Child, describe_exit

RESTART_DELAY_S = 1.0
RESTART_DELAY_S_MAX = 30.0  # after failed starts in a row: a start takes 1 s of processor time
STOP_TIMEOUT_S = 75.0  # A broker takes up to a minute to hand over many topics.
_LOG_BYTES_MAX = 16 << 20
_FAILED_STARTS_MAX = 10  # more failed starts do not make the delay longer
_LAST_WORDS_BYTES = 4096
_REASON = re.compile(r'\bwhy=(?:"([^"]*)"|(\S+))')


class PartFailedError(Exception):
    """A part ended before it was ready, or did not get ready in time."""


class PartState(Enum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Part:
    """The command, environment and addresses of one part."""

    name: str
    kind: str  # zookeeper, bookie or broker
    command: Callable[[], Sequence[str]]
    log: Path
    environ: Mapping[str, str]
    facts: Mapping[str, Any]  # addresses and URLs, for people and programs
    probe: Callable[[], Awaitable[None]] | None = None  # returns when ready; None: the part prints
    exited: Callable[[int], None] = field(default=lambda code: None)
    lone_stop: signal.Signals = signal.SIGTERM  # ends this part while the others keep running


class Keeper:
    """Keeps one part running, or keeps it down, as ordered."""

    def __init__(self, part: Part, report: Callable[[str], None]) -> None:
        self.part = part
        self.state = PartState.STARTING
        self.starts = 0
        self.lock = trio.Lock()  # held during a command from outside: one at a time
        self._report = report
        self._wanted = True
        self._child: Child | None = None
        self._changed = trio.Event()
        self._failure: str | None = None
        self._failed_starts = 0  # in a row
        self._was_ready = False

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def failure(self) -> str | None:
        """The reason why the last start failed; None if it succeeded or is under way."""
        return self._failure

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.part.name,
            "state": self.state.value,
            "pid": self.pid,
            "restarts": max(0, self.starts - 1),
            **self.part.facts,
            "why": self._failure,
        }

    # -- commands

    async def wait_ready(self) -> None:
        """Wait until the part runs.  Raise `PartFailedError` if its start fails."""
        while self.state is not PartState.RUNNING:
            if self._failure is not None:
                raise PartFailedError(self._failure)
            await self._changed.wait()

    async def start(self) -> None:
        if self.state in (PartState.DOWN, PartState.RESTARTING):
            self._wanted = True
            self._set(PartState.STARTING)
        self._failure = None
        await self.wait_ready()

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop this part while the others keep running."""
        await self._stop(self.part.lone_stop)

    async def stop_with_all(self) -> None:
        """Stop this part as one step of stopping the cluster."""
        await self._stop(signal.SIGTERM)

    async def _stop(self, number: signal.Signals) -> None:
        """Send the signal; kill the part if it still runs after `STOP_TIMEOUT_S`."""
        with trio.move_on_after(STOP_TIMEOUT_S):
            await self._end(number)
            return
        self._report(f"{self.part.name} does not stop, and is killed")
        await self._end(signal.SIGKILL)

    def pause(self) -> None:
        if self.state is not PartState.RUNNING:
            raise PartFailedError(f"{self.part.name} is {self.state.value}, not running")
        self._signal(signal.SIGSTOP)
        self._set(PartState.PAUSED)

    def resume(self) -> None:
        if self.state is not PartState.PAUSED:
            raise PartFailedError(f"{self.part.name} is {self.state.value}, not paused")
        self._signal(signal.SIGCONT)
        self._set(PartState.RUNNING)

    def kill_now(self) -> None:
        self._wanted = False
        self._signal(signal.SIGKILL)
        self._wake()

    async def _end(self, number: signal.Signals) -> None:
        self._wanted = False  # before the signal: `run` must not restart the part
        self._signal(number)
        if self.state is PartState.PAUSED:
            self._signal(signal.SIGCONT)  # a stopped process handles no other signal
        self._wake()
        while self._child is not None or self.state is not PartState.DOWN:
            await self._changed.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    # -- the task

    async def run(self) -> None:
        """Keep the part running until cancelled; cancelling kills the part."""
        while True:
            while not self._wanted:
                self._set(PartState.DOWN)
                await self._changed.wait()
            self._set(PartState.STARTING)
            end = await self._run_once()
            if self._wanted:
                self._set(PartState.RESTARTING)
                delay_s = min(RESTART_DELAY_S * 2**self._failed_starts, RESTART_DELAY_S_MAX)
                if self._was_ready:
                    self._report(f"{self.part.name} {end}, starting it again in {delay_s:g} s")
                with trio.move_on_after(delay_s):
                    while self._wanted and self.state is PartState.RESTARTING:
                        await self._changed.wait()

    async def _run_once(self) -> str:
        """Run the part until it ends; return a phrase for how it ended."""
        part = self.part
        _rotate(part.log)
        child: Child | None = None
        stdout: trio.lowlevel.FdStream | None = None
        try:
            with part.log.open("ab") as log:
                since = log.tell()
                child = Child(
                    part.command(), output=log, pipe_stdout=part.probe is None, environ=part.environ
                )
            if part.probe is None:
                stdout = child.open_stdout()
        except OSError as error:
            # The machine is short of descriptors, memory or processes.  Other parts keep running.
            if child is not None:
                child.send_signal(signal.SIGKILL)
                await child.wait()
            self._failure = f"{part.name} cannot be started: {error}"
            self._failed_starts = min(self._failed_starts + 1, _FAILED_STARTS_MAX)
            self._wake()
            return f"cannot be started ({error})"
        assert self._child is None, "one process for each part"
        self._child = child
        self.starts += 1
        try:
            async with trio.open_nursery() as nursery:
                if stdout is not None:
                    nursery.start_soon(self._listen, stdout)
                if part.probe is not None:
                    nursery.start_soon(self._probe, part.probe)
                code = await child.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._child = None
            if child.exit_code is None:  # cancelled: nobody else would end the process
                child.send_signal(signal.SIGKILL)
        part.exited(code)
        if self.state is PartState.STARTING:
            # Read only what this start logged: `since` excludes the reason of an earlier failure.
            words = last_words(part.log, since) or describe_exit(code)
            self._failure = f"{part.name} did not start: {words}"
            self._failed_starts = min(self._failed_starts + 1, _FAILED_STARTS_MAX)
            self._wake()
        return f"ended ({describe_exit(code)})"

    async def _probe(self, probe: Callable[[], Awaitable[None]]) -> None:
        await probe()
        self._ready()

    async def _listen(self, stdout: trio.lowlevel.FdStream) -> None:
        """Copy the output of the part to its log, and watch for the line that says `ready`."""
        line = bytearray()
        async with stdout:
            async for chunk in stdout:
                with suppress(OSError), self.part.log.open("ab") as log:
                    log.write(chunk)
                if self.state is PartState.STARTING:
                    line += chunk
                    *lines, line = line.split(b"\n")
                    if any(_says_ready(one) for one in lines):
                        self._ready()

    def _ready(self) -> None:
        if self.state is PartState.STARTING:
            self._was_ready = True
            self._failure = None
            self._failed_starts = 0
            self._set(PartState.RUNNING)

    def _set(self, state: PartState) -> None:
        if state is not self.state:
            self.state = state
            self._wake()

    def _wake(self) -> None:
        # Waiters hold the old event and look at the state again; the next change needs a new one.
        self._changed.set()
        self._changed = trio.Event()


class Supervisor:
    """The parts of a cluster.  ZooKeeper starts first, and all others then start together.

    A ZooKeeper that is still starting may accept a connection and never answer on it; a bookie that
    met this would wait for 10 s.  The parts stop one kind after the other.

    `ack_quorum` is the number of bookies that store an entry before it is acknowledged.
    """

    def __init__(
        self, parts: Sequence[Part], report: Callable[[str], None], *, ack_quorum: int = 1
    ) -> None:
        self.ack_quorum = ack_quorum
        self.keepers = {part.name: Keeper(part, report) for part in parts}

    async def run(self) -> None:
        first = [k for k in self.keepers.values() if k.part.kind == "zookeeper"]
        async with trio.open_nursery() as nursery:
            for keeper in first:
                nursery.start_soon(keeper.run)
                with suppress(PartFailedError):  # `wait_ready` raises it, too.
                    await keeper.wait_ready()
            for keeper in self.keepers.values():
                if keeper not in first:
                    nursery.start_soon(keeper.run)

    async def wait_ready(self) -> list[str]:
        """Wait until each part runs or has failed to start; return the reasons for the failures.

        Raise `PartFailedError` if ZooKeeper or every broker failed: the cluster is of no use then.
        """
        failures: dict[str, PartFailedError] = {}

        async def wait(keeper: Keeper) -> None:
            try:
                await keeper.wait_ready()
            except PartFailedError as error:
                failures[keeper.part.name] = error
                if self._is_vital(keeper.part, failures):
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for keeper in self.keepers.values():
                nursery.start_soon(wait, keeper)
        # `failures` is in order of time: the earliest vital failure is raised.
        for name, error in failures.items():
            if self._is_vital(self.keepers[name].part, failures):
                raise error
        return [str(error) for error in failures.values()]

    def _is_vital(self, part: Part, failed: Mapping[str, object]) -> bool:
        """Return True if the cluster is of no use without the parts that failed.

        A cluster needs ZooKeeper and at least one broker.
        """
        alike = [name for name, keeper in self.keepers.items() if keeper.part.kind == part.kind]
        return part.kind != "bookie" and all(name in failed for name in alike)

    async def stop(self, kinds: Sequence[str]) -> None:
        """Stop one kind of parts after the other; parts of the same kind stop together."""
        for kind in kinds:
            async with trio.open_nursery() as nursery:
                for keeper in self.keepers.values():
                    if keeper.part.kind == kind:
                        nursery.start_soon(keeper.stop_with_all)

    def kill_now(self) -> None:
        for keeper in self.keepers.values():
            keeper.kill_now()


def last_words(log: Path, since: int = 0) -> str:
    """Return the reason in the last line of a log, ignoring all before byte `since`; or ''."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - _LAST_WORDS_BYTES))
        return reason_in(file.read().decode(errors="replace"))
    return ""


def reason_in(text: str) -> str:
    """Return the last line that is not empty, or the value of `why` in it."""
    for line in reversed(text.splitlines()):
        if line.strip():
            reason = _REASON.search(line)
            return (reason[1] or reason[2]) if reason else line.strip()
    return ""


def _says_ready(line: bytes | bytearray) -> bool:
    try:
        said: object = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and cast("dict[str, object]", said).get("ready") is True


def _rotate(log: Path) -> None:
    """Start a new log file if the log is large; only one old file is kept."""
    with suppress(OSError):
        if log.stat().st_size > _LOG_BYTES_MAX:
            log.replace(log.with_name(f"{log.name}.1"))
