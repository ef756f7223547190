"""How long to wait before the next attempt: twice as long each time, up to a bound, at random.

    attempt   waits between
       1      half of `initial_s` and all of it
       2      half of twice that and all of it
       n      ... never more than `max_s`

The random part spreads clients that have lost the same broker at the same moment.
"""


class Backoff:
    """The waits between the attempts of one operation."""

    def __init__(self, initial_s: float, max_s: float) -> None:
        assert 0 < initial_s <= max_s
        self._initial_s = initial_s
        self._max_s = max_s
        self.attempts = 0

    def next(self, chance: float) -> float:
        """Return the wait before the next attempt; `chance` is drawn from 0 to 1."""
        assert 0 <= chance < 1
        # After 32 doublings the ceiling is `max_s` in any case; more would only be large numbers.
        ceiling = min(self._max_s, self._initial_s * (1 << min(self.attempts, 32)))
        self.attempts += 1
        return ceiling * (0.5 + 0.5 * chance)

    def reset(self) -> None:
        """Note a success: the next failure counts as the first one."""
        self.attempts = 0
