"""Rules of loads of many topics at once, broken one at a time, for whole clusters to notice.

The runs are `tests/simulation/test_many_topics.py`: most of these rules have unit tests, too.
"""

from tests.mutants.patch import Edit, Mutant

_GROUPS = "daybook.wire.metadata.write_groups"
_SYNCS = "daybook.wire.metadata.shared_sync"
_RUNS = "tests:tests/simulation/test_many_topics.py -k"

MUTANTS = [
    Mutant(
        id="MT1",
        rule="a group that was refused has done nothing -> its writes count as carried out",
        module=_GROUPS,
        name="GroupedWrites._group_answered",
        replacement=Edit("any(isinstance(result, Exception) for result in answer.value)", "False"),
        caught_by=f"{_RUNS} few_requests",
    ),
    Mutant(
        id="MT2",
        rule="loads that share a sync read each its own list -> all get that of the first",
        module=_SYNCS,
        name="SharedSyncs._read_behind",
        replacement=Edit("answer = await read()", "answer = self.answer"),
        caught_by=f"{_RUNS} few_requests",
        also=(
            Mutant(
                id="MT2 answer",
                rule="",
                module=_SYNCS,
                name="SharedSyncs._lead",
                replacement=Edit("return answer", "self.answer = answer; return answer"),
                caught_by="",
            ),
        ),
    ),
    Mutant(
        id="MT3",
        rule="a takeover recovers the cursors of a topic -> it finds none",
        module="daybook.managed_ledger.ledger_list",
        name="LedgerList.read_children",
        replacement=Edit("if self._childless:", "if True:"),
        caught_by=f"{_RUNS} few_requests",
    ),
    Mutant(
        id="MT4",
        rule="a load that ends gives its place to another -> it keeps it",
        module="daybook.broker.topics.loads",
        name="Loads._give_back",
        replacement=Edit("self._places.give_back()", "pass"),
        caught_by=f"{_RUNS} few_loads",
    ),
    Mutant(
        id="MT5",
        rule="a load ends when its bundle is lost -> it goes on, and fences the next load",
        module="daybook.broker.topics.topics",
        name="Topics.drop_bundle",
        replacement=Edit("self.loads.stop(name)", "pass"),
        caught_by="tests:tests/broker/test_loads.py -k ends_with_its_bundle",
    ),
]
