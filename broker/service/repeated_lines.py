"""Lines of the log that clients can cause again and again: the same one at most once in a while."""

from collections.abc import Hashable
from dataclasses import dataclass

import trio

from daybook.broker.logs import Log

INTERVAL_S = 60.0
_KINDS_MAX = 1_000  # that are remembered; the one that was said longest ago is forgotten first


@dataclass(slots=True)
class _Said:
    until_s: float
    left_out: int = 0


class Seldom:
    """The next line of a kind says how many were left out before it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._said: dict[Hashable, _Said] = {}

    def __len__(self) -> int:
        """How many kinds are remembered."""
        return len(self._said)

    def info(self, event: str, kind: Hashable, **facts: str) -> None:
        """Say it, unless one of that kind was said within the interval."""
        now_s = trio.current_time()
        said = self._said.get(kind)
        if said is not None and now_s < said.until_s:
            said.left_out += 1
            return
        left_out = 0 if said is None else said.left_out
        self._said.pop(kind, None)
        if len(self._said) >= _KINDS_MAX:
            del self._said[next(iter(self._said))]
        self._said[kind] = _Said(now_s + INTERVAL_S)
        if left_out:
            self._log.info(event, **facts, left_out_before=left_out)
        else:
            self._log.info(event, **facts)
