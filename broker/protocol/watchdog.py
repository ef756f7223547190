"""Pure: when a broker that answers nobody ends itself, so that its supervisor restarts it.

    WATCHING --(silent for long enough)--> ASK whether another broker serves
        ^                                     |
        +----(none does, or unknown)----------+--(one does)--> END

A probe asks the broker's own port again and again.  Only time counts in which the process could
have answered.  A late tick shows that the process was stopped, and a starved process had no
processor: both restart the count, and so does a probe that could not even be sent.  A broker that
holds the only live registration is never ended, because a broker that serves badly is better than
none.

A process ends itself at most once, and not before it is `quiet_s` old.  So a broker ends at most
once in that time, however often it is restarted, and nothing has to be remembered.
"""

from dataclasses import dataclass
from enum import Enum, auto

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    silent_s: float = 60.0  # without an answer, counted only while the process ran
    quiet_s: float = 600.0  # after its start, in which a process does not end itself
    tick_s: float = 1.0  # between two ticks
    late_s: float = 2.0  # a tick that is later than this shows that the process was stopped
    starved_share: float = (
        0.25  # more than this share of `silent_s` without a processor restarts the count
    )
    ask_s: float = 20.0  # an answer to ASK that takes longer is ignored


class Effect(Enum):
    ASK = auto()  # find out whether another broker would be left; `others_serve` is the answer
    END = auto()  # write all stacks, and end the process


class WatchdogProtocol:
    """The watchdog of one process.  All times come from one monotonic clock, in seconds."""

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
        """Note that a probe was answered."""
        self._restart(now_s)

    def not_asked(self, now_s: float) -> None:
        """Note that a probe could not be sent, which says nothing about the port."""
        self._restart(now_s)

    def ticked(self, now_s: float, starved_s: float | None) -> list[Effect]:
        """Note that time has passed.

        `starved_s` is how long the process was ready to run without a processor since its start;
        None if the system does not tell.
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
        """Note whether another live registration would be left; None if that is unknown."""
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
