"""What a broker says of the requests that it refuses: one line an interval, with their number."""

from collections import Counter
from typing import Final

import trio

from daybook.broker.errors import BrokerError
from daybook.broker.logs import Log
from daybook.broker.service.request_counts import RequestCounts, command_name, error_name

INTERVAL_S: Final = 60.0
_KINDS_MAX = 5  # in one line, the most frequent ones
_REASON_CHARS_MAX = 200


class RefusalLog:
    """Of all connections.  `run` belongs into the broker's nursery."""

    def __init__(self, log: Log, counts: RequestCounts) -> None:
        self._log = log
        self._total = counts
        self._counts: Counter[tuple[int, int]] = Counter()  # by command and code
        self._last = ("", "")  # whose request it was, and why it was refused
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
        """Say what has gathered, and begin to count anew."""
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
