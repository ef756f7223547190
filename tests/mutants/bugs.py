"""Rules about errors that nobody expected, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_BUGS = "daybook.broker.topics.bugs"
_LOG = "daybook.managed_ledger.log"
_TESTS = "tests:tests/broker/test_bugs.py"
_LOGS = "tests:tests/managed_ledger/test_bugs.py"

MUTANTS = [
    Mutant(
        id="BUG10",
        rule="a topic that fails before it runs is refused to those who wait -> they wait on",
        module="daybook.broker.topics.topics",
        name="Topics._load",
        replacement=Edit("self._by_load.get(load) is topic and", "False and"),
        caught_by=f"{_TESTS} -k before_it_runs",
    ),
    Mutant(
        id="BUG1",
        rule="a bug in the work for a topic ends that topic -> the whole broker",
        module=_BUGS,
        name="TopicBugs.contained",
        replacement=Edit("except Exception as bug:", "except KeyboardInterrupt as bug:"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BUG2",
        rule="a topic with a bug is dropped -> it goes on with what it has in memory",
        module=_BUGS,
        name="TopicBugs.contained",
        replacement=Edit("if drop is not None:", "if False:"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BUG3",
        rule="a command that has changed half of a topic ends the topic -> only its connection",
        module="daybook.broker.service.handlers",
        name="Handlers._blame_topic",
        replacement=Edit("if user is not None:", "if False:"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BUG4",
        rule="a move that ends with a bug ends its topic -> the topic goes on",
        module="daybook.broker.to_the_end",
        name="to_the_end",
        replacement=Edit("if not isinstance(error, _EXPECTED):", "if False:"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BUG5",
        rule="a bug at the end of a turn ends one connection -> the flusher of the broker",
        module="daybook.broker.service.connection",
        name="ClientConnection.flush",
        replacement=Edit("except Exception as bug:", "except KeyboardInterrupt as bug:"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="BUG6",
        rule="a bug in a task of a log ends that log -> all logs of the host",
        module="daybook.managed_ledger.log_tasks",
        name="LogTasks._hold",
        replacement=Edit("except Exception as bug:", "except KeyboardInterrupt as bug:"),
        caught_by=_LOGS,
    ),
    Mutant(
        id="BUG7",
        rule="a log with a bug ends -> it takes further appends",
        module=_LOG,
        name="ManagedLedger.failed",
        replacement=Edit("self.lost(", "str("),
        caught_by=_LOGS,
    ),
    Mutant(
        id="BUG8",
        rule="an append that cannot hear of its end stops no other -> the others never hear",
        module="daybook.managed_ledger.pending_adds",
        name="PendingAdds.fail",
        replacement=Edit("except Exception:", "except KeyboardInterrupt:"),
        caught_by=_LOGS,
    ),
    Mutant(
        id="BUG9",
        rule="a topic that stores nothing is dropped after a bug -> it goes on",
        module="daybook.broker.topics.non_persistent",
        name="NonPersistentTopics._contained",
        replacement=Edit("lambda _: self._drop(topic)", "lambda _: None"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="MS1",
        rule="other tasks run while the numbers of a scrape are computed -> they wait",
        module="daybook.broker.metrics",
        name="BrokerMetrics.scrape",
        replacement=Edit("if not count % _TOPICS_PER_TURN:", "if False:"),
        caught_by="tests:tests/broker/control/test_metrics.py",
    ),
    Mutant(
        id="MS2",
        rule="the text of a family is made in pieces -> in one",
        module="daybook.broker.exposition",
        name="_pieces",
        replacement=Edit("if len(family.samples) <= _SAMPLES:", "if True:"),
        caught_by="tests:tests/broker/control/test_metrics.py",
    ),
    Mutant(
        id="MS3",
        rule="a family has its type once -> once in each piece",
        module="daybook.broker.exposition",
        name="in_pieces",
        replacement=Edit("lines if not number else _without_comments(lines)", "lines"),
        caught_by="tests:tests/broker/control/test_metrics.py",
    ),
    Mutant(
        id="EX90",
        rule="explain says why a served topic stores nothing -> only that it is served",
        module="daybook.broker.topics.explain",
        name="_served",
        replacement=Edit("if topic.log.waiting_for:", "if False:"),
        caught_by="tests:tests/broker/test_loads.py -k tells_its_step",
    ),
    Mutant(
        id="EX91",
        rule="explain says that a topic is loading from the first turn on -> not before its task",
        module="daybook.broker.topics.explain",
        name="explain",
        replacement=Edit("case None:", "case None | TopicState.LOADING:"),
        caught_by="tests:tests/broker/test_loads.py -k not_called_unused",
    ),
    Mutant(
        id="EX92",
        rule="a bundle of a drained broker is listed with it -> without a broker",
        module="daybook.broker.admin.bundle_operations",
        name="BundleOperations.rows",
        replacement=Edit(
            "ids.get(found.session) or _host(found.record)", "ids.get(found.session, '')"
        ),
        caught_by="tests:tests/broker/control/test_hand_overs.py -k under_way_is_listed",
    ),
    Mutant(
        id="EX93",
        rule="requests of a connection that ends wait no longer -> they count for ever",
        module="daybook.broker.service.request_turns",
        name="RequestQueue.close",
        replacement=Edit("-len(self._waiting), ", "0, "),
        caught_by="tests:tests/broker/test_request_turns.py",
    ),
]
