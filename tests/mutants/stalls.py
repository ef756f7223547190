"""Rules of the watch over subscriptions and of `explain`, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MACHINE = "daybook.broker.protocol.dispatch.stall"
_EXPLAIN = "daybook.broker.dispatch.explain"
_WATCH = "daybook.broker.dispatch.watch"
_DISPATCHER = "daybook.broker.dispatch.dispatcher"
_SHARED = "daybook.broker.protocol.dispatch.shared"
_TESTS = "tests:tests/broker/protocol/test_stall.py"
_SHELL = "tests:tests/broker/test_explain.py"

MUTANTS = [
    Mutant(
        id="ST01",
        rule="a delivery restarts the time of a stall -> it does not",
        module=_MACHINE,
        name="StallWatch.sample",
        replacement=Edit("not waits or sent != self._sent", "not waits"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ST02",
        rule="silence before a message is no part of a stall -> it is",
        module=_MACHINE,
        name="StallWatch.sample",
        replacement=Edit(
            "self._since_s = now_s if waits else None", "self._since_s = self._since_s or now_s"
        ),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ST03",
        rule="each stall is told once -> at each sample",
        module=_MACHINE,
        name="StallWatch.first_told",
        replacement=Edit("return not told", "return True"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ST04",
        rule="a subscription stalls only if a consumer has permits -> without permits, too",
        module=_EXPLAIN,
        name="_can_be_sent",
        replacement=Edit("dispatch.permits_of(dispatch.active) > 0", "True"),
        caught_by=f"{_SHELL}::test_without_permits_it_names_the_consumer",
    ),
    Mutant(
        id="ST05",
        rule="what is delivered and not acknowledged makes no stall -> it does",
        module=_DISPATCHER,
        name="Dispatcher.has_more",
        replacement=property(lambda self: self._cursor.backlog_entries > 0),
        caught_by=f"{_SHELL}::test_what_is_delivered_and_not_acknowledged_is_no_stall",
    ),
    Mutant(
        id="ST06",
        rule="explain names the consumer with too many unacknowledged messages -> it does not",
        module=_SHARED,
        name="SharedDispatch._explain_consumer",
        replacement=Edit("if consumer.blocked:", "if False:"),
        caught_by=_SHELL,
    ),
    Mutant(
        id="ST07",
        rule="a read that hangs is named -> it is not",
        module=_DISPATCHER,
        name="Dispatcher.reading",
        replacement=property(lambda _: None),
        caught_by=f"{_SHELL}::test_a_read_that_hangs_names_ledger_and_bookies",
    ),
    Mutant(
        id="ST08",
        rule="a subscription is stalled after the time that is set -> at its first sample",
        module=_WATCH,
        name="DispatchWatch._stalls",
        replacement=Edit("waits_s < self._stalled_s", "waits_s < 0.0"),
        caught_by=_SHELL,
    ),
]
