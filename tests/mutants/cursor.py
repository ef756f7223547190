"""Rules of cursors, broken one at a time: their state, records and recovery."""

from tests.mutants.patch import Edit, Mutant

_STATE = "daybook.managed_ledger.protocol.cursor"
_LEDGER = "daybook.managed_ledger.cursor_ledger"
_ACK_SET = "daybook.managed_ledger.ack_set"
_SHELL = "tests.storms.cursor_owner"
_STORMS = "storms:cursor"
_TESTS = "tests:tests/managed_ledger/test_cursors.py"

MUTANTS = [
    Mutant(
        id="C68",
        rule="the mark-delete position is stored -> the read position is",
        module=_STATE,
        name="CursorState.take_change",
        replacement=Edit(
            "Change(self.mark_delete,", "Change(self._next_position(self.mark_delete),"
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C70",
        rule="the record points to a ledger when its snapshot is durable -> before",
        module=_SHELL,
        name="Owner._start_ledger",
        replacement=Edit(
            "    self.storm.append(self, ledger_id, parts, written)",
            "    written(True)\n    self.storm.append(self, ledger_id, parts, lambda ok: None)",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C70b",
        rule="a snapshot counts when all of its parts exist -> the first ones suffice",
        module=_LEDGER,
        name="Recovered._part",
        replacement=Edit("len(self._parts) == count", "len(self._parts) >= count - 1"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C71",
        rule="one record at a time, in order -> any confirmed record counts",
        module=_SHELL,
        name="Owner.record_changes",
        replacement=Edit("self._busy or not self.serves", "not self.serves"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C71b",
        rule="a change's mark-delete position is not behind the previous one -> it may be",
        module=_STATE,
        name="CursorState.ack_cumulative",
        replacement=Edit("if position <= self.mark_delete:", "if False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C72",
        rule="holes are stored at a clean close -> only the mark-delete position",
        module="daybook.managed_ledger.cursor_ledger",
        name="folded",
        replacement=Edit("message_ranges(runs)", "()"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C75",
        rule="a change holds all acknowledgements since the last one -> only the newest run",
        module=_STATE,
        name="CursorState.take_change",
        replacement=Edit("tuple(fresh.ranges())", "tuple(fresh.ranges())[-1:]"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C76",
        rule="a seek replaces earlier records -> is added to them",
        module=_STATE,
        name="apply_change",
        replacement=Edit("if change.reset:", "if False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C77",
        rule="the mark-delete position moves over acknowledged entries -> one entry further",
        module=_STATE,
        name="CursorState._advance",
        replacement=Edit("self.acked.run_end(following))", "self.acked.run_end(following) + 1)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C78",
        rule="Pulsar's ranges are open below and closed above -> closed below, too",
        module=_LEDGER,
        name="add_ranges",
        replacement=Edit("first = lower.entry_id + 1", "first = max(lower.entry_id, 0)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C79",
        rule="the dense form has a bit for each entry -> begins with the first word in use",
        module=_ACK_SET,
        name="AckSet.words",
        replacement=Edit("bytes(bits.base // 8) + ", ""),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C80",
        rule="bits are removed up to the mark-delete position -> the whole word around it",
        module=_ACK_SET,
        name="_Bits.cut",
        replacement=Edit("below >> (end - self.base) << (end - self.base)", "0"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C81",
        rule="a receipt is given when the record is durable -> when it was sent",
        module=_SHELL,
        name="Owner.want_receipt",
        replacement=Edit("self._settle(self.recorded)", "self._settle(self.state.changes)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="C92",
        rule="the acknowledged messages of a batch are recorded -> only in memory",
        module=_STATE,
        name="CursorState.ack_part",
        replacement=Edit("self._fresh_parts.add(position)", "pass"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="C92 old",
        rule="parts of batches are recorded in the old format, too -> lost there",
        module="daybook.managed_ledger.cursor",
        name="Cursor._write",
        replacement=Edit(" or (change is not None and bool(change.parts))", ""),
        caught_by=_TESTS,
    ),
    Mutant(
        id="C93",
        rule="a cursor with parts of batches is not folded into its record -> it is",
        module="daybook.managed_ledger.cursor",
        name="Cursor._store_whole",
        replacement=Edit("self._state.parts\n", "False\n"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="C94",
        rule="a set is stored as the messages that are pending -> that are acknowledged",
        module=_LEDGER,
        name="_add_parts",
        replacement=Edit("encode_ack_set(left)", "encode_ack_set(~left & ((1 << 256) - 1))"),
        caught_by="tests:tests/managed_ledger/test_cursor_ledger.py",
    ),
    Mutant(
        id="C95",
        rule="a part that names no messages leaves the entry pending -> acknowledges it",
        module=_LEDGER,
        name="_parts_of",
        replacement=Edit("if left:", "if left is not None:"),
        caught_by="tests:tests/managed_ledger/test_cursor_ledger.py",
    ),
    Mutant(
        id="C96",
        rule="parts of entries that are not there are ignored -> kept",
        module="daybook.managed_ledger.cursor",
        name="Cursor.ack_part",
        replacement=Edit("if not self._is_there(position):", "if False:"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="C121",
        rule="a close that fails confirms nothing -> the next record confirms what it has taken",
        module="daybook.managed_ledger.cursor",
        name="Cursor.close",
        replacement=Edit("finally:\n", "finally:\n            pass\n        if True:\n"),
        caught_by=f"{_TESTS} -k close_that_fails",
    ),
    Mutant(
        id="C121 ended",
        rule="a cursor that ended while its task waited to record confirms nothing -> it does",
        module="daybook.managed_ledger.cursor",
        name="Cursor._record_changes",
        replacement=Edit("if self._error is not None:", "if False:"),
        caught_by=f"{_TESTS} -k close_that_fails",
    ),
    Mutant(
        id="C122",
        rule="a cumulative ack of the rest of a batch acknowledges the batch -> it does not",
        module="daybook.broker.dispatch.acknowledgements",
        name="Acknowledgements._add_cumulative",
        replacement=Edit("if self._cursor.ack_part(position, last.ack_set):", "if False:"),
        caught_by="tests:tests/broker/test_produce_consume.py -k covers_its_rest",
    ),
    Mutant(
        id="C15390",
        rule="the ledger of a cursor has a bounded number of records -> it grows with the cursor",
        module="daybook.managed_ledger.cursor",
        name="Cursor._write",
        replacement=Edit(
            "full = self._records >= self._config().cursor_roll_records", "full = False"
        ),
        caught_by="tests:tests/managed_ledger/test_cursors.py -k 15390",
    ),
    Mutant(
        id="C97",
        rule="an acknowledgement gets its receipt when it is durable -> at once",
        module="daybook.managed_ledger.cursor",
        name="Cursor.flush",
        replacement=Edit("while self.durable and self._recorded < goal:", "while False:"),
        caught_by="tests:tests/simulation/test_runs.py -k with_a_receipt_stay",
    ),
]
