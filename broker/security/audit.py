"""The audit log: the deeds of clients, where they came from, and if they were allowed, in a file.

    {"time": "2026-11-28T06:00:00.000Z", "role": "alice", "original": "", "method": "token",
     "peer": "10.0.0.7:51234", "action": "PRODUCER", "object": "the topic persistent://...",
     "allowed": false, "reason": "the role 'alice' lacks the right 'produce' on ..."}

Each connection is noted, each producer and consumer that is opened, each request of the REST that
changes something, and everything that is refused, violations of the protocol before the
authentication included.  Messages are not.  Credentials and bodies are never part of a line.

Nobody waits for the file: lines wait in a bounded queue, and a line with `dropped` says how many
found no room.  Refusals have a bounded number of lines (`refusal_budget`), and a line with `source`
and `refusals` says how many there were beyond it.  So has an allowed action that is repeated
(`action_sums`), and a line with `times` says how often it was done beyond that.  The files are
bounded, too (`audit_file`).

Refusals before any credentials came (TLS that breaks off, bytes that are no protocol, clients
without credentials) have a budget of their own, so that they hide no wrong credentials.  Their sums
have `"credentials": false`.  Requests of the REST that read messages are noted, too.
"""

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import trio

from daybook.broker.errors import BrokerError
from daybook.broker.security.action_sums import Action, ActionSums
from daybook.broker.security.audit_file import AuditFile
from daybook.broker.security.identity import Caller
from daybook.broker.security.refusal_budget import (
    OTHERS,
    WINDOW_S,
    RefusalBudget,
    Source,
    host_source,
)
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log

_LINES_MAX = 10_000
_CHARS_MAX = 512  # the longest text that a client has chosen
_WRITTEN_AT_ONCE = 500
_GATHER_S = 0.2
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class _Line:
    time_ms: int
    caller: Caller | None
    peer: str
    action: str
    target: str
    reason: str | None  # None: it was allowed

    def encoded(self) -> bytes:
        caller = self.caller
        return msgspec.json.encode(
            {
                "time": _iso(self.time_ms),
                "role": "" if caller is None else caller.identity.role[:_CHARS_MAX],
                "original": "" if caller is None else caller.original[:_CHARS_MAX],
                "method": "" if caller is None else caller.identity.method,
                "peer": self.peer,
                "action": self.action,
                "object": self.target,
                "allowed": self.reason is None,
                "reason": self.reason or "",
            }
        )


@dataclass(frozen=True, slots=True)
class _Refusals:
    """Refusals of one role or host, or of all others, that have no line of their own."""

    time_ms: int
    source: Source
    count: int
    with_credentials: bool

    def encoded(self) -> bytes:
        source = self.source.name if self.source != OTHERS else "others"
        return msgspec.json.encode(
            {
                "time": _iso(self.time_ms),
                "source": source,
                "refusals": self.count,
                "credentials": self.with_credentials,
            }
        )


@dataclass(frozen=True, slots=True)
class _Repeated:
    """An allowed action that was repeated so often that it has no further lines of its own."""

    time_ms: int
    what: Action
    times: int

    def encoded(self) -> bytes:
        what = self.what
        return msgspec.json.encode(
            {
                "time": _iso(self.time_ms),
                "role": what.role,
                "original": what.original,
                "method": what.method,
                "peer": what.host,
                "action": what.action,
                "object": what.target,
                "allowed": True,
                "reason": "",
                "times": self.times,
            }
        )


class Audit:
    """One instance per broker.  Without a file, nothing is noted."""

    def __init__(
        self,
        path: str,
        clock: WallClock,
        log: Log,
        *,
        lines_max: int = _LINES_MAX,
        bytes_max: int = 0,
        files_max: int = 1,
        refusals: RefusalBudget | None = None,
        actions: ActionSums | None = None,
    ) -> None:
        self.dropped = 0  # lines for which there was no room, since the broker started
        self.failures = 0  # attempts to write that have failed
        self.refusals = refusals or RefusalBudget()
        self.of_strangers = RefusalBudget()  # clients without credentials
        self.actions = actions or ActionSums()
        self._path = path
        self._file = AuditFile(Path(path), bytes_max=bytes_max, files_max=files_max)
        self._clock = clock
        self._log = log
        self._lines_max = lines_max
        self._waiting: deque[_Line | _Refusals | _Repeated] = deque()
        self._untold = 0  # dropped lines of which the file does not know
        self._some = trio.Event()

    def __len__(self) -> int:
        """Return how many lines wait to be written."""
        return len(self._waiting)

    def note(
        self,
        action: str,
        peer: str,
        caller: Caller | None,
        target: str = "",
        refused: BrokerError | None = None,
        *,
        with_credentials: bool = True,
    ) -> None:
        """Note that somebody did something, or was refused with this error."""
        if not self._path:
            return
        now_ms = self._clock.now_ms()
        self._tell_sums()
        if refused is None:
            admitted = self.actions.admit(_action(action, peer, caller, target))
        else:
            budget = self.refusals if caller or with_credentials else self.of_strangers
            admitted = budget.admit(_source(caller, peer))
        if admitted:
            # Cut here: lines wait, and clients choose how long the names are.
            reason = None if refused is None else refused.reason[:_CHARS_MAX]
            self._add(_Line(now_ms, caller, peer, action, target[:_CHARS_MAX], reason))

    def _add(self, line: "_Line | _Refusals | _Repeated") -> None:
        if len(self._waiting) >= self._lines_max:
            self.dropped += 1
            self._untold += 1
        else:
            self._waiting.append(line)
        self._some.set()

    def _tell_sums(self, *, end: bool = False) -> None:
        """Note what was only counted in the last minute; with `end`, also in this one."""
        now_ms = self._clock.now_ms()
        now_s = now_ms / 1000
        actions = self.actions
        for refusals in (self.refusals, self.of_strangers):
            shown = refusals is self.refusals
            for source, count in refusals.end(now_s) if end else refusals.next_window(now_s):
                self._add(_Refusals(now_ms, source, count, shown))
        for what, times in actions.end(now_s) if end else actions.next_window(now_s):
            self._add(_Repeated(now_ms, what, times))

    async def run(self) -> None:
        """Write the lines, until cancelled; then write those that wait."""
        failed = False
        try:
            while True:
                with trio.move_on_after(WINDOW_S):
                    await self._some.wait()
                self._tell_sums()
                await trio.sleep(_GATHER_S)  # so that many lines cost one write
                try:
                    await trio.to_thread.run_sync(self._write)
                    failed = False
                except OSError as error:
                    self.failures += 1
                    if not failed:
                        self._log.error(
                            "the audit log cannot be written; its lines wait, and are lost when"
                            " there are too many",
                            audit_file=self._path,
                            why=str(error),
                        )
                    failed = True
                    await trio.sleep(_RETRY_S)
        finally:
            self._tell_sums(end=True)
            try:
                self._write()
            except OSError as error:
                self._log.error("the end of the audit log is lost", why=str(error))

    def _write(self) -> None:
        """Append all lines to the file.  Raise OSError, and keep what is not written."""
        self._some = trio.Event()
        while self._waiting or self._untold:
            try:
                self._write_some()
            except OSError:
                self._some.set()
                raise

    def _write_some(self) -> None:
        # The lines leave the queue when they are in the file.
        count, untold = min(len(self._waiting), _WRITTEN_AT_ONCE), self._untold
        lines = [self._waiting[index].encoded() for index in range(count)]
        if untold:
            told = {"time": _iso(self._clock.now_ms()), "dropped": untold}
            lines.append(msgspec.json.encode(told))
        self._file.append(b"\n".join(lines) + b"\n")
        for _ in range(count):
            self._waiting.popleft()
        self._untold -= untold


def _source(caller: Caller | None, peer: str) -> Source:
    if caller is None:
        return host_source(_host(peer))
    return Source(caller.identity.role[:_CHARS_MAX])


def _action(action: str, peer: str, caller: Caller | None, target: str) -> Action:
    role, original, method = "", "", ""
    if caller is not None:
        role, original, method = caller.identity.role, caller.original, caller.identity.method
    return Action(
        action, _host(peer), role[:_CHARS_MAX], original[:_CHARS_MAX], method, target[:_CHARS_MAX]
    )


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]


def _iso(time_ms: int) -> str:
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
