"""The unavailability of sends: the longest time without a receipt, and the time after each fault.

It is a measure, not a rule, for one topic or for all together; only time in which a send was
waiting counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.history.events import Error, Fault, Ok, Send, Stamped, Unknown


@dataclass(frozen=True, slots=True)
class Gap:
    """The time from `begin_ns` to `end_ns`: sends were waiting, and no receipt came."""

    begin_ns: int
    end_ns: int
    fault: str  # the last fault that had begun before the end of the gap

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9


def gaps(events: Sequence[Stamped], *, at_least_s: float = 0.5) -> list[Gap]:
    """Return the gaps, the longest first."""
    found: list[Gap] = []
    waiting: dict[tuple[str, int], None] = {}
    since_ns, fault = 0, ""
    for stamped in events:
        match stamped.event:
            case Send(_, producer, seq):
                if not waiting:
                    since_ns = stamped.at_ns
                waiting[producer, seq] = None
            case Ok(_, producer, seq):
                if waiting and stamped.at_ns - since_ns >= at_least_s * 1e9:
                    found.append(Gap(since_ns, stamped.at_ns, fault))
                waiting.pop((producer, seq), None)
                since_ns = stamped.at_ns
            case Error(producer, seq) | Unknown(producer, seq):
                waiting.pop((producer, seq), None)
            case Fault(_, text):
                fault = text
            case _:
                pass
    return sorted(found, key=lambda gap: gap.begin_ns - gap.end_ns)
