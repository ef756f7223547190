"""Rules of the watch over subscriptions and of `explain`, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MACHINE = "daybook.broker.protocol.dispatch.stall"
_EXPLAIN = "daybook.broker.dispatch.explain"
_WATCH = "daybook.broker.dispatch.watch"
_DISPATCHER = "daybook.broker.dispatch.dispatcher"
_SHARED = "daybook.broker.protocol.dispatch.shared"
_SUBSCRIPTION = "daybook.broker.dispatch.subscription"
_TESTS = "tests:tests/broker/protocol/test_stall.py"
_PAINS = "tests:tests/broker/test_pains.py"
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
    Mutant(
        id="ST09",
        rule="a consumer is fed again when it has acknowledged -> blocked once is blocked",
        module=_SHARED,
        name="SharedDispatch._unblock",
        replacement=Edit("self._unacked.count_of(key) > few", "True"),
        caught_by=f"{_PAINS}::test_22657_a_consumer_is_fed_again_when_it_has_acknowledged",
    ),
    Mutant(
        id="ST10",
        rule="the limit of unacknowledged messages holds under redelivery -> given back is free",
        module=_SHARED,
        name="SharedDispatch._give",
        replacement=Edit(
            "self._unacked.count_of(consumer.key) >= limits.unacked_messages_max",
            "not redeliveries and"
            " self._unacked.count_of(consumer.key) >= limits.unacked_messages_max",
        ),
        caught_by=f"{_PAINS}::test_22534_the_limit_of_unacknowledged_messages_holds_under_redelivery",
    ),
    Mutant(
        id="ST11",
        rule="counts of redeliveries outlive the last consumer -> they end with it",
        module=_SUBSCRIPTION,
        name="Subscription._remember_redeliveries",
        replacement=Edit("self.dispatch.remember(counts)", "pass"),
        caught_by=f"{_PAINS}::test_redelivery_counts_survive_the_reconnection_of_the_last_consumer",
    ),
    Mutant(
        id="ST12",
        rule="a seek forgets the counts of redeliveries -> they stay",
        module=_SUBSCRIPTION,
        name="Subscription._reset",
        replacement=Edit("self._redeliveries = {}", "pass"),
        caught_by=f"{_PAINS}::test_redelivery_counts_survive_the_reconnection_of_the_last_consumer",
    ),
    Mutant(
        id="ST21",
        rule="a message for a time that no calendar has is explained -> it ends the broker",
        module=_EXPLAIN,
        name="_iso",
        replacement=Edit("except (OverflowError, ValueError, OSError):", "except KeyError:"),
        caught_by=f"{_SHELL} -k calendar",
    ),
    Mutant(
        id="ST22",
        rule="the watch asks rarely why a stall lasts -> at each look",
        module=_WATCH,
        name="_ASKED_EVERY",
        replacement=1,
        caught_by=f"{_SHELL} -k asks_rarely",
    ),
    Mutant(
        id="LE1",
        rule="an entry that cannot be read is put aside -> a shared subscription waits for it",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._go_on_behind",
        replacement=Edit("lasts and may_pass", "False"),
        caught_by="tests:tests/broker/test_lost_entries.py",
    ),
    Mutant(
        id="LE2",
        rule="an entry is put aside if the next one can be read -> also while all bookies are away",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._is_readable",
        replacement=Edit(
            "except (LedgerError, ManagedLedgerError):\n        return False",
            "except (LedgerError, ManagedLedgerError):\n        return True",
        ),
        caught_by="tests:tests/broker/test_lost_entries.py",
    ),
    Mutant(
        id="LE3",
        rule="an entry that was put aside is read again -> never",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._read_aside",
        replacement=Edit("self.dispatch.bring_back(place)", "pass"),
        caught_by="tests:tests/broker/test_lost_entries.py",
    ),
    Mutant(
        id="LE4",
        rule="the other entries of its key wait for an entry that was put aside -> they never come",
        module="daybook.broker.protocol.dispatch.key_shared",
        name="KeySharedDispatch.bring_back",
        replacement=Edit("self._line_up(key)", "pass"),
        caught_by="tests:tests/broker/test_lost_entries.py",
    ),
    Mutant(
        id="LE5",
        rule="a key_shared subscription waits at an entry whose key it does not know -> it goes on",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._go_on_behind",
        replacement=Edit("not self.keyed", "True"),
        caught_by="tests:tests/broker/test_lost_entries.py",
    ),
    Mutant(
        id="LE6",
        rule="an acknowledged entry need not be readable -> reading stands still at it",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._go_on_behind",
        replacement=Edit("if source.is_acked(start):", "if False:"),
        caught_by="tests:tests/broker/test_lost_entries.py",
    ),
]
