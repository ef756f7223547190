"""The audit log: the deeds of clients, where they came from, and if they were allowed, in a file.

    {"time": "2026-11-28T06:00:00.000Z", "role": "alice", "original": "", "method": "token",
     "peer": "10.0.0.7:51234", "action": "PRODUCER", "object": "the topic persistent://...",
     "allowed": false, "reason": "the role 'alice' lacks the right 'produce' on ..."}

Each connection is noted, each producer and consumer that is opened, each request of the REST that
changes something, and everything that is refused.  Messages are not.  Credentials and bodies are
never part of a line.

Nobody waits for the file: lines wait in a bounded queue, and a line with `dropped` says how many
found no room.  A file that was renamed, to rotate it, is created anew.
"""

import os
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import trio

from daybook.broker.errors import BrokerError
from daybook.broker.security.identity import Caller
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log

_LINES_MAX = 10_000
_CHARS_MAX = 512  # the longest text that a client has chosen
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
                "role": "" if caller is None else caller.identity.role,
                "original": "" if caller is None else caller.original,
                "method": "" if caller is None else caller.identity.method,
                "peer": self.peer,
                "action": self.action,
                "object": self.target,
                "allowed": self.reason is None,
                "reason": self.reason or "",
            }
        )


class Audit:
    """One instance per broker.  Without a file, nothing is noted."""

    def __init__(
        self, path: str, clock: WallClock, log: Log, *, lines_max: int = _LINES_MAX
    ) -> None:
        self.dropped = 0  # lines for which there was no room, since the broker started
        self._path = path
        self._clock = clock
        self._log = log
        self._lines_max = lines_max
        self._waiting: deque[_Line] = deque()
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
    ) -> None:
        """Note that somebody did something, or was refused with this error."""
        if not self._path:
            return
        if len(self._waiting) >= self._lines_max:
            self.dropped += 1
            self._untold += 1
        else:
            # Cut here: lines wait, and clients choose how long the names are.
            reason = None if refused is None else refused.reason[:_CHARS_MAX]
            now_ms = self._clock.now_ms()
            self._waiting.append(_Line(now_ms, caller, peer, action, target[:_CHARS_MAX], reason))
        self._some.set()

    async def run(self) -> None:
        """Write the lines, until cancelled; then write those that wait."""
        failed = False
        try:
            while True:
                await self._some.wait()
                await trio.sleep(_GATHER_S)  # so that many lines cost one write
                try:
                    await trio.to_thread.run_sync(self._write)
                    failed = False
                except OSError as error:
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
            try:
                self._write()
            except OSError as error:
                self._log.error("the end of the audit log is lost", why=str(error))

    def _write(self) -> None:
        """Append all lines to the file.  Raise OSError, and keep what may not be written."""
        if not self._waiting and not self._untold:
            return
        self._some = trio.Event()
        # The lines leave the queue when they are in the file.
        count, untold = len(self._waiting), self._untold
        lines = [self._waiting[index].encoded() for index in range(count)]
        if untold:
            told = {"time": _iso(self._clock.now_ms()), "dropped": untold}
            lines.append(msgspec.json.encode(told))
        try:
            descriptor = os.open(Path(self._path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(b"\n".join(lines) + b"\n")
        except OSError:
            self._some.set()
            raise
        for _ in range(count):
            self._waiting.popleft()
        self._untold -= untold


def _iso(time_ms: int) -> str:
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
