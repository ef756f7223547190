"""Rules of the counts of stored and read entries (`managed_ledger.traffic`), broken."""

from tests.mutants.patch import Edit, Mutant

_TRAFFIC = "daybook.managed_ledger.traffic"
_LOG = "daybook.managed_ledger.log"
_BALANCER = "daybook.broker.ownership.balancer"
_METRICS = "daybook.broker.traffic_metrics"
_BY_LOG = "tests:tests/managed_ledger/test_traffic.py"
_BY_METRICS = "tests:tests/broker/control/test_metrics.py"
_BY_BALANCER = "tests:tests/broker/control/test_loads_and_drains.py"

MUTANTS = [
    Mutant(
        id="TR01",
        rule="a bound belongs to its bucket -> to the next one",
        module=_TRAFFIC,
        name="_note_sizes",
        replacement=Edit(
            "buckets[bisect_left(SIZE_BOUNDS, size)]", "buckets[bisect_left(SIZE_BOUNDS, size + 1)]"
        ),
        caught_by=_BY_LOG,
    ),
    Mutant(
        id="TR02",
        rule="entries of other sizes have buckets of their own -> that of the largest",
        module=_TRAFFIC,
        name="_note_sizes",
        replacement=Edit("min(sizes)", "max(sizes)"),
        caught_by=_BY_LOG,
    ),
    Mutant(
        id="TR03",
        rule="each batch has the time of its own append -> that of the first one",
        module=_TRAFFIC,
        name="TrafficMeter.confirmed",
        replacement=Edit(
            "end = min(through, marks[done + 1][0]) if more else through", "end = through"
        ),
        caught_by=_BY_LOG,
    ),
    Mutant(
        id="TR04",
        rule="the time of a batch stays until the batch is confirmed as a whole -> it goes at once",
        module=_TRAFFIC,
        name="TrafficMeter.confirmed",
        replacement=Edit("more and end == marks[done + 1][0]", "more"),
        caught_by=_BY_LOG,
    ),
    Mutant(
        id="TR05",
        rule="counts are those since the last question -> since the log was opened",
        module=_TRAFFIC,
        name="TrafficMeter.take",
        replacement=Edit("self._now, None", "self._now, self._now"),
        caught_by=_BY_LOG,
    ),
    Mutant(
        id="TR06",
        rule="the first batch of a ledger has a time -> the time of the batch before",
        module=_LOG,
        name="ManagedLedger._switch",
        replacement=Edit("    self._marked_batch = 0\n", ""),
        caught_by=_BY_LOG,
    ),
    Mutant(
        id="TR07",
        rule="an entry that waits for a ledger has its own time -> that of the last batch",
        module=_LOG,
        name="ManagedLedger.append",
        replacement=Edit(" or self._protocol.waiting", ""),
        caught_by=_BY_LOG,
    ),
    Mutant(
        id="TR08",
        rule="a window without appends is empty -> it shows the last one",
        module=_TRAFFIC,
        name="WriteLatencies._turn",
        replacement=Edit("self._now if age_s < 2 * WINDOW_S else _Window()", "self._now"),
        caught_by=_BY_LOG,
    ),
    Mutant(
        id="TR09",
        rule="a silent topic has no series -> zeros",
        module=_METRICS,
        name="traffic_of_topics",
        replacement=Edit("\n        if topic.traffic is not NO_TRAFFIC", ""),
        caught_by=_BY_METRICS,
    ),
    Mutant(
        id="TR10",
        rule="a move that failed counts as a failure -> as a success",
        module=_BALANCER,
        name="Balancer._balance_once",
        replacement=Edit('"not known", Outcome.FAILURE', '"not known", Outcome.SUCCESS'),
        caught_by=_BY_BALANCER,
    ),
]
