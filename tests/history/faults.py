"""The times of faults, and until when they may have had consequences.

Rules that hold only without faults ask here: a message may be stored twice if its connection broke
meanwhile, and an acknowledgement without a receipt may be lost with its broker.  An operation with
a receipt is never excused.
"""

from bisect import bisect_right
from collections.abc import Iterable

from tests.history.events import Fault, FaultEnd, Healed, Overloaded, Run, Stamped


class Windows:
    """Intervals of time; overlapping ones become one."""

    def __init__(self, intervals: Iterable[tuple[int, int]]) -> None:
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(intervals):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        self._begins = [begin for begin, _ in merged]
        self._ends = [end for _, end in merged]

    def touch(self, begin_ns: int, end_ns: int) -> bool:
        """Return True if one of them has an instant in common with [begin, end]."""
        index = bisect_right(self._begins, end_ns) - 1
        return index >= 0 and self._ends[index] >= begin_ns


class Faults:
    """The faults of one history."""

    def __init__(self, run: Run, events: Iterable[Stamped]) -> None:
        self._settle_ns = round(run.settle_s * 1e9)
        self._in_flight_ns = round(run.in_flight_s * 1e9)
        self._open: dict[str, tuple[int, bool]] = {}
        self._bookies: dict[str, str] = {}  # the bookie of each fault that is about one bookie only
        self._all: list[tuple[int, int, str]] = []
        self._overloads: list[tuple[int, int, str]] = []
        self._crashes: list[tuple[int, int]] = []
        self._handovers: list[tuple[int, int]] = []
        last_ns = 0
        for stamped in events:
            last_ns = stamped.at_ns
            match stamped.event:
                case Fault(fault, _, clean, bookie):
                    self._open[fault] = (stamped.at_ns, clean)
                    self._bookies[fault] = bookie
                case FaultEnd(fault):
                    self._close(fault, stamped.at_ns)
                case Overloaded(bookie):
                    end_ns = stamped.at_ns + self._settle_ns
                    self._overloads.append((stamped.at_ns, end_ns, bookie))
                case Healed():
                    for fault in list(self._open):
                        self._close(fault, stamped.at_ns)
                case _:
                    pass
        for fault in list(self._open):
            self._close(fault, last_ns)
        self.crashes = Windows(self._crashes)
        self.handovers = Windows(self._handovers)

    def _close(self, fault: str, at_ns: int) -> None:
        if fault not in self._open:
            return
        begin, clean = self._open.pop(fault)
        self._all.append((begin, at_ns + self._settle_ns, self._bookies[fault]))
        if clean:
            self._handovers.append((begin, at_ns + self._in_flight_ns))
        else:
            self._crashes.append((begin, at_ns + self._settle_ns))

    def is_one_bookie(self, begin_ns: int, end_ns: int) -> bool:
        """Return True if there was a fault, and only of one bookie, and no other was overloaded."""

        def of(intervals: Iterable[tuple[int, int, str]]) -> set[str]:
            return {each for begin, end, each in intervals if begin <= end_ns and end >= begin_ns}

        faulty = of(self._all)
        return len(faulty) == 1 and "" not in faulty and of(self._overloads) <= faulty

    def touch(self, begin_ns: int, end_ns: int) -> bool:
        """Return True if any fault, or an orderly hand-over, was going on."""
        return self.crashes.touch(begin_ns, end_ns) or self.handovers.touch(begin_ns, end_ns)
