"""Shortens a schedule that breaks a rule: fewer steps, a smaller set-up, smaller numbers.

Steps are left out in ever smaller groups, then single decisions are set to 0 or lowered, as long as
the same rule is broken.  The result is rarely the shortest schedule, but short enough to read.
"""

from collections.abc import Callable

from tests.storms.chance import Schedule

_RUNS_MAX = 6000
_PAIR_MAX = 8


class Shrinker:
    """Shortens one schedule; `breaks` returns True if a schedule still breaks the rule."""

    def __init__(self, schedule: Schedule, breaks: Callable[[Schedule], bool]) -> None:
        self.schedule = schedule
        self._breaks = breaks
        self._runs = 0

    def run(self) -> Schedule:
        before = -1
        while self._size() != before and self._runs < _RUNS_MAX:
            before = self._size()
            self._leave_out_steps()
            self._leave_out_pairs()
            self._lower_numbers()
        return self.schedule

    def _size(self) -> int:
        return sum(1 + len(step) + sum(step) for step in self.schedule)

    def _try(self, schedule: Schedule) -> bool:
        self._runs += 1
        if self._runs > _RUNS_MAX or not self._breaks(schedule):
            return False
        self.schedule = schedule
        return True

    def _leave_out_steps(self) -> None:
        group = len(self.schedule) // 2
        while group:
            at = len(self.schedule) - 1 - group
            while at >= 1:  # The set-up and the last step are kept.
                self._try(self.schedule[:at] + self.schedule[at + group :])
                at -= group
            group //= 2

    def _leave_out_pairs(self) -> None:
        """Leave out two steps at once: neither a request nor its answer can go alone."""
        for apart in range(1, _PAIR_MAX):
            for at in reversed(range(1, len(self.schedule) - 1 - apart)):
                if at + apart < len(self.schedule) - 1:
                    kept = [s for i, s in enumerate(self.schedule) if i not in (at, at + apart)]
                    self._try(kept)

    def _lower_numbers(self) -> None:
        for step in reversed(range(len(self.schedule))):
            for at in reversed(range(len(self.schedule[step]))):
                if at >= len(self.schedule[step]):
                    continue  # `_with` has dropped the zeros at the end of the step.
                number = self.schedule[step][at]
                for lower in (0, number // 2, number - 1):
                    if 0 <= lower < number and self._try(self._with(step, at, lower)):
                        break

    def _with(self, step: int, at: int, number: int) -> Schedule:
        changed = [list(numbers) for numbers in self.schedule]
        changed[step][at] = number
        while changed[step] and not changed[step][-1]:
            changed[step].pop()
        return changed


def shrink(schedule: Schedule, breaks: Callable[[Schedule], bool]) -> Schedule:
    return Shrinker(schedule, breaks).run()
