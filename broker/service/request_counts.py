"""How many commands the clients of a broker sent, how many were refused, and the log line for that.

SEND and ACK come once per entry and are not counted here unless they are refused: topics count
messages.
"""

from collections import Counter
from typing import Final

import trio

from daybook.broker.errors import BrokerError
from daybook.wire.logging import Log
from daybook.wire.messages.registry import type_name
from daybook.wire.proto import pulsar_pb2 as pb

INTERVAL_S: Final = 60.0
_KINDS_MAX = 5  # in one line, the most frequent ones
_REASON_CHARS_MAX = 200


class RequestCounts:
    """Counts since the broker started.  Keys are numbers of commands and of errors."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()  # by command
        self.refused: Counter[tuple[int, int]] = Counter()  # by command and error


def command_name(command: int) -> str:
    return type_name(command)


def error_name(code: int) -> str:
    return pb.ServerError.Name(code) if code in pb.ServerError.values() else str(code)


class RefusalLog:
    """Logs the refusals of all connections: one line an interval, with their number.

    `run` belongs in the broker's nursery.
    """

    def __init__(self, log: Log, counts: RequestCounts) -> None:
        self._log = log
        self._total = counts
        self._counts: Counter[tuple[int, int]] = Counter()  # by command and code
        self._last = ("", "")  # the peer of the last refused request, and the reason
        self._some = trio.Event()

    def refused(self, command: int, error: BrokerError, peer: str) -> None:
        self._total.refused[command, error.code] += 1
        self._counts[command, error.code] += 1
        self._last = (peer, error.reason)
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            await trio.sleep(INTERVAL_S)
            self.write()

    def write(self) -> None:
        """Log what was counted, and start counting again from zero."""
        self._some = trio.Event()
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        kinds = [
            f"{count} x {command_name(command)} {error_name(code)}"
            for (command, code), count in counts.most_common(_KINDS_MAX)
        ]
        if len(counts) > _KINDS_MAX:
            kinds.append(f"{len(counts) - _KINDS_MAX} more kinds")
        peer, reason = self._last
        self._log.info(
            "requests were refused",
            count=counts.total(),
            within_s=INTERVAL_S,
            which=", ".join(kinds),
            last_peer=peer,
            last_why=reason[:_REASON_CHARS_MAX],
        )
