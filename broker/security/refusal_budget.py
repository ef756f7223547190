"""How many refusals get a line of their own in the audit log.

A client can be refused without end.  So each source, which is a role or a host, has a
number of lines in a minute, and all sources together have one.  The refusals beyond that are
counted by source, for a line of the next minute.
"""

from collections import Counter

WINDOW_S = 60.0
_OF_ONE_MAX = 100
_OF_ALL_MAX = 1_000
_SOURCES_MAX = 1_000  # that are told apart
_SUMMED_MAX = 20  # sources with a line of their own about what was not noted
OTHERS = ""


class RefusalBudget:
    def __init__(self, of_one: int = _OF_ONE_MAX, of_all: int = _OF_ALL_MAX) -> None:
        self.left_out = 0  # since the broker started
        self._of_one = of_one
        self._of_all = of_all
        self._began_s = 0.0
        self._noted = Counter[str]()
        self._left_out = Counter[str]()

    def admit(self, source: str) -> bool:
        """Return True if a refusal of this source gets a line; else count it."""
        known = source in self._noted or len(self._noted) < _SOURCES_MAX
        if known and self._noted[source] < self._of_one and self._noted.total() < self._of_all:
            self._noted[source] += 1
            return True
        self.left_out += 1
        told_apart = source in self._left_out or len(self._left_out) < _SOURCES_MAX
        self._left_out[source if told_apart else OTHERS] += 1
        return False

    def next_window(self, now_s: float) -> list[tuple[str, int]]:
        """Begin a new minute if one has passed; return the sources with what was left out."""
        if 0 <= now_s - self._began_s < WINDOW_S:
            return []
        return self.end(now_s)

    def end(self, now_s: float) -> list[tuple[str, int]]:
        """Begin a new minute now, and return what was left out in the last one."""
        self._began_s = now_s
        left_out, self._left_out = self._left_out, Counter[str]()
        self._noted.clear()
        rest = left_out.total()
        del left_out[OTHERS]
        told = left_out.most_common(_SUMMED_MAX)
        rest -= sum(count for _, count in told)
        return [*told, (OTHERS, rest)] if rest else told
