"""The watchdog: a broker that no longer answers ends itself, so that its supervisor restarts it.

    WATCHING --(silent for long enough)--> ASK: does another broker serve?
        ^                                     |
        +----(none does, or unknown)----------+--(one does)--> END

A probe is sent to the broker's own port again and again.  Time counts only if the process could
have answered in it.  So the count restarts at a tick that comes late, after a time in which other
processes kept the processors busy, and at a probe that could not even be sent.  A broker that holds
the only live registration is never ended, because a broker that serves badly is better than none.

A process ends itself at most once, and not before it is `quiet_s` old.  So restarts are at least
that far apart, and nothing has to be stored to ensure it.
"""

from dataclasses import dataclass
from enum import Enum, auto

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    silent_s: float = 60.0  # without any answer, in time in which the process ran
    quiet_s: float = 600.0  # from its start, in which a process does not end itself
    tick_s: float = 1.0  # between two ticks
    late_s: float = 2.0  # a tick that comes later than this shows that the process was stopped
    starved_share: float = (
        0.25  # the share of `silent_s` in which it was ready and had no processor
    )
    ask_s: float = 20.0  # a later answer to ASK is ignored


class Effect(Enum):
    ASK = auto()  # find out whether another broker would be left, and call `others_serve`
    END = auto()  # write all stacks, and end the process


class WatchdogProtocol:
    """One instance per process.  All times are of one monotonic clock, in seconds."""

    def __init__(self, limits: WatchdogLimits, *, now_s: float) -> None:
        self.limits = limits
        self._started_s = now_s
        self._silent_since_s = now_s
        self._ticked_s = now_s
        self._starved_s: float | None = None  # at the last tick
        self._starved_before_s: float | None = None  # when the count began
        self._asked_s = _NEVER
        self._ended = False

    def answered(self, now_s: float) -> None:
        """Handle the answer to a probe."""
        self._restart(now_s)

    def not_asked(self, now_s: float) -> None:
        """Handle a probe that could not be sent.

        Such a probe does not show whether the port would have answered.
        """
        self._restart(now_s)

    def ticked(self, now_s: float, starved_s: float | None) -> list[Effect]:
        """Handle a tick, after some time has passed.

        `starved_s` is how long the process has been ready to run without a processor, since its
        start.  It is None if the operating system does not tell.
        """
        passed_s, self._ticked_s = now_s - self._ticked_s, now_s
        self._starved_s = starved_s
        if self._starved_before_s is None:
            self._starved_before_s = starved_s
        late = passed_s > self.limits.tick_s + self.limits.late_s
        starved = (
            starved_s is not None
            and self._starved_before_s is not None
            and starved_s - self._starved_before_s
            > self.limits.starved_share * self.limits.silent_s
        )
        if late or starved:
            self._restart(now_s)
        if not self._may_end(now_s) or self._asked_s != _NEVER:
            return []
        self._asked_s = now_s
        return [Effect.ASK]

    def others_serve(self, serve: bool | None, now_s: float) -> list[Effect]:
        """Handle the answer to ASK.

        `serve` is True if another live registration would be left, False if none would, and None if
        that is unknown.
        """
        asked_s, self._asked_s = self._asked_s, _NEVER
        if now_s - asked_s <= self.limits.ask_s and serve and self._may_end(now_s):
            self._ended = True
            return [Effect.END]
        self._restart(now_s)
        return []

    def _may_end(self, now_s: float) -> bool:
        return (
            not self._ended
            and now_s - self._silent_since_s >= self.limits.silent_s
            and now_s - self._started_s >= self.limits.quiet_s
        )

    def _restart(self, now_s: float) -> None:
        self._silent_since_s = now_s
        self._starved_before_s = self._starved_s
