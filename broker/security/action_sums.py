"""How often the same allowed action gets a line of its own in the audit log.

A client may do the same without end: connect, or open a producer again and again.  So the same
action of the same actor on the same object has a number of lines in a minute.  The further times
are counted, for one line.  Actions that differ have a line each.

So many actions are told apart at a time.  When there are more, the one that was done longest ago
is forgotten, and its count gets its line then.
"""

from typing import NamedTuple

from daybook.broker.security.refusal_budget import WINDOW_S

_OF_ONE_MAX = 20
_ACTIONS_MAX = 1_000


class Action(NamedTuple):
    action: str
    host: str
    role: str
    original: str
    method: str
    target: str


class ActionSums:
    def __init__(self, of_one: int = _OF_ONE_MAX, actions_max: int = _ACTIONS_MAX) -> None:
        self.summed = 0  # since the broker started
        self._of_one = of_one
        self._actions_max = actions_max
        self._began_s = 0.0
        self._times: dict[Action, int] = {}  # the one that was done longest ago is first
        self._ended: list[tuple[Action, int]] = []

    def admit(self, action: Action) -> bool:
        """Return True if the action gets a line; else count it.  Take `ended` afterwards."""
        times = self._times.pop(action, 0)
        if not times and len(self._times) >= self._actions_max:
            self._end(next(iter(self._times)))
        self._times[action] = times + 1
        if times < self._of_one:
            return True
        self.summed += 1
        return False

    def _end(self, action: Action) -> None:
        further = self._times.pop(action) - self._of_one
        if further > 0:
            self._ended.append((action, further))

    def ended(self) -> list[tuple[Action, int]]:
        """Return the actions that were summed up and are forgotten, with their further times."""
        ended, self._ended = self._ended, []
        return ended

    def next_window(self, now_s: float) -> list[tuple[Action, int]]:
        """Begin a new minute if one has passed; return what was summed up and is forgotten."""
        if 0 <= now_s - self._began_s < WINDOW_S:
            return self.ended()
        return self.end(now_s)

    def end(self, now_s: float) -> list[tuple[Action, int]]:
        """Begin a new minute now; return what was summed up."""
        self._began_s = now_s
        for action in list(self._times):
            self._end(action)
        return self.ended()
