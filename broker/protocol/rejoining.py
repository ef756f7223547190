"""Pure: how long a broker that others have removed waits before it joins again.

A broker that is removed once joins again at once: it was stopped for a while, or the network was.
One that is removed soon after each join cannot be reached, and would make its peers remove it, and
clients move, many times a second.  It waits longer each time, until it has stayed in for a while.
"""

from dataclasses import dataclass

FIRST_S = 1.0
MOST_S = 60.0
CALM_S = 60.0  # A broker that has been in for so long starts from the beginning.


@dataclass(slots=True)
class RejoinPauses:
    """The pauses of one broker.  Time is an argument."""

    _next_s: float = 0.0
    _joined_s: float | None = None

    def joined(self, now_s: float) -> None:
        self._joined_s = now_s

    def removed(self, now_s: float) -> float:
        """Return how long to wait before the next join."""
        if self._joined_s is not None and now_s - self._joined_s >= CALM_S:
            self._next_s = 0.0
        pause_s = self._next_s
        self._next_s = min(max(FIRST_S, 2 * pause_s), MOST_S)
        return pause_s
