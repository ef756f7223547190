"""Rules of the delivery of new entries, without a task and with it, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_DISPATCHER = "daybook.broker.dispatch.dispatcher"
_READERS = "daybook.broker.topics.waiting_readers"
_TESTS = "tests:tests/broker/test_new_entries.py"
_NEWEST_TESTS = "tests:tests/broker/test_newest.py"

MUTANTS = [
    Mutant(
        id="NE1",
        rule="only while the task sleeps it is done without it -> also during a read of the task",
        module=_DISPATCHER,
        name="Dispatcher._serve_once",
        replacement=Edit("self._sleeps_at_end = False", "pass"),
        caught_by=f"{_TESTS} -k twice",
    ),
    Mutant(
        id="NE2",
        rule="the task learns of an earlier deadline -> it sleeps on",
        module=_DISPATCHER,
        name="Dispatcher._serve_now",
        replacement=Edit("self.dispatch.deadline_ms != deadline_ms", "False"),
        caught_by=f"{_TESTS} -k delayed",
    ),
    Mutant(
        id="NE3",
        rule="the task goes on behind what one read has brought -> it sleeps on",
        module=_DISPATCHER,
        name="Dispatcher._serve_now",
        replacement=Edit("not self._has_passed_end", "False"),
        caught_by=f"{_TESTS} -k read_on",
    ),
    Mutant(
        id="NE4",
        rule="the rates limit new entries -> only what the task reads",
        module=_DISPATCHER,
        name="Dispatcher._want_new",
        replacement=Edit("self.rates is not None", "False"),
        caught_by=f"{_TESTS} -k rate",
    ),
    Mutant(
        id="NE5",
        rule="the limit of the broker holds back new entries -> only what the task reads",
        module=_DISPATCHER,
        name="Dispatcher._want_new",
        replacement=Edit("self.stopped_by_broker", "False"),
        caught_by=f"{_TESTS} -k limit_of_the_broker",
    ),
    Mutant(
        id="NE6",
        rule="other tasks have their turn between many readers -> only when all were called",
        module=_READERS,
        name="WaitingReaders.run",
        replacement=Edit("min(len(due), _CALLS_PER_TURN)", "len(due)"),
        caught_by=f"{_TESTS} -k turn",
    ),
    Mutant(
        id="NE7",
        rule="a bug in the delivery of new entries costs one topic -> the broker",
        module=_READERS,
        name="WaitingReaders.run",
        replacement=Edit("except Exception as bug", "except KeyError as bug"),
        caught_by=f"{_TESTS} -k bug",
    ),
    Mutant(
        id="NE8",
        rule="what cannot be delivered at once is left to the task -> it waits for more",
        module=_DISPATCHER,
        name="Dispatcher._appended",
        replacement=Edit("self.wake()", "self._call_when_appended(self._appended)"),
        caught_by=f"{_TESTS} -k read",
    ),
    Mutant(
        id="NE9",
        rule="what a subscription has acknowledged is not shared -> it is",
        module=_DISPATCHER,
        name="Dispatcher._some_acked",
        replacement=lambda self, raw: False,
        caught_by=f"{_TESTS} -k acknowledged",
    ),
    Mutant(
        id="NE10",
        rule="each subscription acknowledges a marker -> only the first one",
        module=_DISPATCHER,
        name="Dispatcher._entries",
        replacement=Edit("len(entries) == len(raw)", "True"),
        caught_by=f"{_TESTS} -k marker",
    ),
    Mutant(
        id="NE11",
        rule="a read is shared if it fits -> with those that have less room, too",
        module="daybook.broker.dispatch.newest",
        name="Newest.read",
        replacement=Edit("len(raw) <= max_entries and self._bytes <= max_bytes", "True"),
        caught_by=f"{_TESTS} -k fits",
    ),
    Mutant(
        id="NE12",
        rule="a subscription shares with its kind -> with all",
        module=_DISPATCHER,
        name="Dispatcher._entries",
        replacement=Edit("kind = self.shared, self.keyed", "kind = None"),
        caught_by=f"{_TESTS} -k delayed",
    ),
    Mutant(
        id="NE13",
        rule="the last read is given once more if it fits -> to those that want fewer entries, too",
        module="daybook.broker.dispatch.newest",
        name="Newest.small",
        replacement=Edit("len(raw) > max_entries", "False"),
        caught_by=_NEWEST_TESTS,
    ),
    Mutant(
        id="NE14",
        rule="the last read is given once more if it begins there -> wherever the next one begins",
        module="daybook.broker.dispatch.newest",
        name="Newest.small",
        replacement=Edit("raw[0].position != start", "False"),
        caught_by=_NEWEST_TESTS,
    ),
    Mutant(
        id="NE15",
        rule="the task reads what came back to shared consumers meanwhile -> it sleeps on",
        module=_DISPATCHER,
        name="Dispatcher._serve_now",
        replacement=Edit("(self.dispatch.active is None and self._want_new() is None)", "False"),
        caught_by=f"{_TESTS} -k comes_back",
    ),
]
