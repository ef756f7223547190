"""How long a client waits for an answer that it has had already: the refusal of the same command.

A client that repeats a refused command as soon as it is refused would keep a broker busy for ever.
The first refusal goes out at once.  Each one that follows soon is delayed, twice as long as the
one before it, up to a bound.  A command that has not been refused for a while begins anew.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

DELAY_MIN_S = 0.01
DELAY_MAX_S = 1.0
FORGOTTEN_AFTER_S = 3.0
_COMMANDS_MAX = 1_000  # of one connection; those refused longest ago are forgotten first

_SUBJECT = ("topic", "namespace", "subscription", "producer_name", "tc_id", "schema_version")
_IDS = ("consumer_id", "session_id", "watch_id")  # of commands that name nothing else


@dataclass(slots=True)
class _Refused:
    delay_s: float
    answered_s: float


class Repeats:
    """Of one connection."""

    def __init__(self) -> None:
        self._refused: dict[Hashable, _Refused] = {}  # the one refused last is at the end

    def __len__(self) -> int:
        return len(self._refused)

    def delay_s(self, command: Hashable, now_s: float) -> float:
        """The command is refused now: how much later the client is to hear of it."""
        before = self._refused.pop(command, None)
        delay_s = 0.0
        if before is not None and now_s < before.answered_s + FORGOTTEN_AFTER_S:
            delay_s = min(DELAY_MAX_S, max(DELAY_MIN_S, 2 * before.delay_s))
        elif len(self._refused) >= _COMMANDS_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[command] = _Refused(delay_s, now_s + delay_s)
        return delay_s


def repeated_as(command: int, body: Any) -> Hashable:  # noqa: ANN401  generated messages
    """Two commands with an equal result ask for the same thing; ids of requests do not count."""
    named = tuple(str(getattr(body, name, "")) for name in _SUBJECT)
    if any(named):
        return (command, *named)
    return (command, *(getattr(body, name, 0) for name in _IDS))
