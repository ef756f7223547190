"""Rules of the exact backlog, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_HOLES = "daybook.managed_ledger.protocol.holes"
_STATE = "daybook.managed_ledger.protocol.cursor"
_RECOUNT = "daybook.managed_ledger.recount"
_BACKLOG = "daybook.broker.dispatch.backlog"
_TESTS = "tests:tests/managed_ledger/test_holes.py"
_SHELL = "tests:tests/broker/test_exact_backlog.py"

MUTANTS = [
    Mutant(
        id="HO01",
        rule="an entry that an acknowledgement passes over joins the holes -> it does not",
        module=_HOLES,
        name="Holes.acked",
        replacement=Edit("self._extend(Position(ledger_id, entry_id - 1))", "pass"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO02",
        rule="an entry of unknown size is uncounted -> it counts as nothing",
        module=_HOLES,
        name="Holes._extend",
        replacement=Edit("for span in unknown:", "for span in ():"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO03",
        rule="an acknowledged hole leaves the count with what was pending -> with all its messages",
        module=_HOLES,
        name="Holes.acked",
        replacement=Edit("pending_messages(pending, size[0])", "size[0]"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO04",
        rule="a partly acknowledged entry counts with its pending messages -> whole",
        module=_HOLES,
        name="Holes.part_acked",
        replacement=Edit(
            "pending_messages(after, size[0]) - pending_messages(before, size[0])", "0"
        ),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO05",
        rule="holes that a cumulative acknowledgement passes leave the count -> they stay",
        module=_HOLES,
        name="Holes.passed",
        replacement=Edit("self.messages -= messages", "self.messages -= 0"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO06",
        rule="parts that a cumulative acknowledgement passes count as pending -> whole",
        module=_HOLES,
        name="Holes.passed",
        replacement=Edit("if mark_delete < position <= through:", "if False:"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO07",
        rule="a missing size makes all holes uncounted -> the count is kept",
        module=_STATE,
        name="CursorState._lose_count",
        replacement=Edit("self.holes.lose(self.mark_delete, self.acked)", "pass"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO08",
        rule="a stored count is taken over only for its state -> always",
        module=_STATE,
        name="CursorState.take_count",
        replacement=Edit("if count is not None and (", "if count is not None and ((1, 1, 1) or "),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO09",
        rule="a seek forgets the holes -> it keeps them",
        module=_STATE,
        name="CursorState.reset",
        replacement=Edit("self.holes.close()", "pass"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO10",
        rule="forgotten parts count whole again -> as they were",
        module=_STATE,
        name="CursorState.ack_part",
        replacement=Edit("if forgotten or not known:", "if not known:"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO11",
        rule="a count of a run that has changed is dropped -> it counts",
        module=_HOLES,
        name="Holes.count_run",
        replacement=Edit(
            "next(self.uncounted.gaps(ledger_id, first, last), None) is not None", "False"
        ),
        caught_by=_TESTS,
    ),
    Mutant(
        id="HO12",
        rule="a run is counted up to the end of its last entry -> up to its beginning",
        module=_RECOUNT,
        name="_count_by_ends",
        replacement=Edit("end.first_offset + end.messages", "end.first_offset"),
        caught_by=f"{_SHELL}::test_a_long_run_is_counted_by_its_ends",
    ),
    Mutant(
        id="HO13",
        rule="the backlog behind the top is exact if that entry was read -> whatever was read",
        module=_BACKLOG,
        name="Backlog.size",
        replacement=Edit("start.position == self._first_behind", "True"),
        caught_by=_SHELL,
    ),
    Mutant(
        id="HO14",
        rule="an estimate says so while something is uncounted -> it is called exact",
        module=_BACKLOG,
        name="Backlog.size",
        replacement=Edit("exact = bytes_exact = False", "exact = bytes_exact = True"),
        caught_by=f"{_SHELL}::test_if_pulsar_wrote_last_the_holes_are_counted_again",
    ),
]
