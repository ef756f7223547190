"""Rules for ledgers that no longer reach an ack quorum, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_LEDGER = "tests:tests/bookie/ledger"
_STUCK = "tests:tests/managed_ledger/test_stalled.py"

MUTANTS = [
    Mutant(
        id="H02",
        rule="a ledger without an ack quorum is left late -> at once",
        module="daybook.managed_ledger.stalled",
        name="StallWatch.may_leave",
        replacement=Edit("self._stall.seconds(confirmed, now_s) < config.stuck_s or ", ""),
        caught_by=f"{_STUCK}::test_two_of_three_take_no_more_of_this_ledger",
    ),
    Mutant(
        id="H03",
        rule="a confirmation ends a stall -> it goes on",
        module="daybook.managed_ledger.protocol.stalled",
        name="Stall.seconds",
        replacement=Edit(" or confirmed != self._confirmed", ""),
        caught_by=f"{_STUCK}::test_a_stall_begins_anew_with_each_confirmation",
    ),
    Mutant(
        id="H04",
        rule="repeatedly stalled ledgers are left less often -> each interval",
        module="daybook.managed_ledger.protocol.stalled",
        name="Backoffs.may_leave",
        replacement=Edit("pause.number + 1", "0"),
        caught_by=f"{_STUCK}::test_who_is_stuck_again_and_again_is_opened_less_and_less_often",
    ),
    Mutant(
        id="H04c",
        rule="a ledger that was kept is checked again soon -> as if it had been left",
        module="daybook.managed_ledger.protocol.stalled",
        name="Backoffs.was_kept",
        replacement=Edit("self._pauses[key].number - 1", "self._pauses[key].number"),
        caught_by=f"{_STUCK}::test_what_was_kept_after_all_is_looked_at_again_and_does_not_count",
    ),
    Mutant(
        id="H04b",
        rule="the number of give-ups survives a reopen -> it is forgotten",
        module="daybook.managed_ledger.stalled",
        name="StallWatch.may_leave",
        replacement=Edit("context.backoffs.may_leave", "type(context.backoffs)().may_leave"),
        caught_by=f"{_STUCK}::test_who_is_stuck_again_and_again_is_opened_less_and_less_often",
    ),
    Mutant(
        id="H05",
        rule="a log that could not be recovered is not given up -> it is",
        module="daybook.managed_ledger.log",
        name="ManagedLedger._leave_stalled",
        replacement=Edit("not (recoverable and same", "not (same"),
        caught_by=f"{_STUCK}::test_what_could_not_be_recovered_is_not_given_up",
    ),
    Mutant(
        id="H05b",
        rule="nor is one with a cursor that could not be recovered -> it is",
        module="daybook.managed_ledger.log",
        name="ManagedLedger._unclosed",
        replacement=Edit(", *self._cursors.writers", ""),
        caught_by=f"{_STUCK}::test_a_cursor_that_could_not_be_recovered_keeps_its_log_from_being_given_up",
    ),
    Mutant(
        id="H06",
        rule='a bookie that answers "unknown" does not help a recovery -> it does',
        module="daybook.bookie.ledger.recovery",
        name="can_recover",
        replacement=Edit("verdict_of(status) is Verdict.ABSENT", "status is not None"),
        caught_by=f"{_STUCK}::test_what_could_not_be_recovered_is_not_given_up",
    ),
    Mutant(
        id="H07",
        rule="a ledger is left when enough bookies for a new one answer -> with fewer",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter.stuck",
        replacement=Edit("waits and len(answering) >= self.metadata.quorums.ensemble", "waits"),
        caught_by=f"{_STUCK}::test_with_too_few_bookies_for_a_new_ledger_it_waits",
    ),
    Mutant(
        id="H07b",
        rule="bookies that reject a ledger count for a new one -> they do not",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter.stuck",
        replacement=Edit("directory.answering()", "directory.usable()"),
        caught_by=f"{_STUCK}::test_two_of_three_take_no_more_of_this_ledger",
    ),
    Mutant(
        id="H08",
        rule="a log that recovers meanwhile is not given up -> it is",
        module="daybook.managed_ledger.log",
        name="ManagedLedger._leave_stalled",
        replacement=Edit("not (recoverable and same and writer.stuck)", "not recoverable"),
        caught_by=f"{_STUCK}::test_a_log_that_goes_on_while_its_bookies_are_asked_is_not_given_up",
    ),
    Mutant(
        id="H09",
        rule="a cursor leaves a ledger without an ack quorum -> waits for it",
        module="daybook.managed_ledger.cursor",
        name="Cursor.check_stalled",
        replacement=Edit("writer.abandon()", "pass"),
        caught_by=f"{_STUCK}::test_a_cursor_goes_over_to_a_ledger_that_takes_its_records",
    ),
    Mutant(
        id="M26b",
        rule="bookies that reject writers are asked to take recovered entries -> they are not",
        module="daybook.bookie.ledger.ensemble",
        name="BookieDirectory.replace",
        replacement=Edit(
            "self.usable() if refused_by is None else self.answering()", "self.usable()"
        ),
        caught_by=f"{_LEDGER}/test_ensemble.py::test_who_refuses_the_entries_of_writers_may_take_those_of_recoveries",
    ),
    Mutant(
        id="M26c",
        rule="recovery asks no rejecting bookie twice -> in turn, forever",
        module="daybook.bookie.ledger.recovery",
        name="Recovery.add_failed",
        replacement=Edit("self._failed.add(bookie)", "pass"),
        caught_by=f"{_LEDGER}/test_recovery.py::test_a_recovery_asks_nobody_twice_who_takes_nothing",
    ),
    Mutant(
        id="M26d",
        rule="a failed bookie does not count as answering -> it does if it rejected before",
        module="daybook.bookie.ledger.ensemble",
        name="Quarantine.failed",
        replacement=Edit("self._refusing.discard(bookie)", "pass"),
        caught_by=f"{_LEDGER}/test_ensemble.py::test_one_that_refuses_answers_until_it_fails",
    ),
    Mutant(
        id="M26e",
        rule="a spare takes the place of a silent bookie -> never, and sends wait for it",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter._replaced",
        replacement=Edit("return self._context", "return None and self._context"),
        caught_by="tests:tests/simulation/test_runs.py -k a_spare_takes",
    ),
]
