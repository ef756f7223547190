"""How many commands the clients of a broker sent, how many were refused, and the log line for that.

SEND and ACK come once per entry and are not counted here unless they are refused: topics count
messages.
"""

from collections import Counter
from typing import Final, TypeAlias

import trio

from daybook.broker.errors import BrokerError
from daybook.wire.logging import Log
from daybook.wire.messages.registry import type_name
from daybook.wire.proto import pulsar_pb2 as pb

INTERVAL_S: Final = 60.0
_LINES_MAX = 10  # an interval, for the most frequent refusals
_KINDS_MAX = 1_000  # clients and commands that are told apart within an interval
_REASON_CHARS_MAX = 200


_Kind: TypeAlias = tuple[str, int, int]  # the host of the client, the command, the error


class RequestCounts:
    """Counts since the broker started.  Keys are numbers of commands and of errors."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()  # by command
        self.refused: Counter[tuple[int, int]] = Counter()  # by command and error
        # delayed refusals, by port ("service" or "http") and by whose pace it is
        self.held: Counter[tuple[str, str]] = Counter()
        self.cut: Counter[str] = Counter()  # clients, by "greeting", "open" or "http"
        self.bugs = 0  # connections that were ended because of a bug in a task of the broker


def command_name(command: int) -> str:
    return type_name(command)


def error_name(code: int) -> str:
    return pb.ServerError.Name(code) if code in pb.ServerError.values() else str(code)


class RefusalLog:
    """Logs the refusals of all connections: one line an interval for each client and command.

    A client is a host: its connections come and go.  The most frequent refusals have lines, and the
    others are counted in one more line.  `run` belongs in the broker's nursery.
    """

    def __init__(self, log: Log, counts: RequestCounts) -> None:
        self._log = log
        self._total = counts
        self._counts: Counter[_Kind] = Counter()
        self._reasons: dict[_Kind, str] = {}  # the last one of each
        self._others = 0  # refusals of further clients, when there were too many
        self._some = trio.Event()

    def __len__(self) -> int:
        """Return how many clients and commands are told apart at the moment."""
        return len(self._counts)

    def refused(self, command: int, error: BrokerError, peer: str) -> None:
        self._total.refused[command, error.code] += 1
        kind = peer.rpartition(":")[0] or peer, command, error.code
        if kind in self._counts or len(self._counts) < _KINDS_MAX:
            self._counts[kind] += 1
            self._reasons[kind] = error.reason[:_REASON_CHARS_MAX]
        else:
            self._others += 1
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            await trio.sleep(INTERVAL_S)
            self.write()

    def write(self) -> None:
        """Log what was counted, and start counting again from zero."""
        self._some = trio.Event()
        counts, self._counts = self._counts, Counter()
        reasons, self._reasons = self._reasons, {}
        left, self._others = counts.total() + self._others, 0
        for kind, count in counts.most_common(_LINES_MAX):
            client, command, code = kind
            left -= count
            self._log.info(
                "requests were refused",
                client=client,
                command=command_name(command),
                error=error_name(code),
                count=count,
                within_s=INTERVAL_S,
                last_why=reasons[kind],
            )
        if left:
            self._log.info("more requests were refused", count=left, within_s=INTERVAL_S)
