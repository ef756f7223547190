"""Rules of a log as it is served, broken one at a time; the scenarios of the package must notice.

The mutants of the same rules for storms and the model checker are in `chain`, `cursor` and
`tests.model.log.mutants`.
"""

from tests.mutants.patch import Edit, Mutant

_CURSOR = "daybook.managed_ledger.cursor"
_LIST = "daybook.managed_ledger.ledger_list"
_LOG = "daybook.managed_ledger.log"
_OPEN = "daybook.managed_ledger.open"
_PROTOCOL = "daybook.managed_ledger.protocol.log"
_SCENARIOS = "tests:tests/managed_ledger"
_CURSOR_RECOVERY = f"{_SCENARIOS}/test_cursor_recovery.py"
_CURSORS = f"{_SCENARIOS}/test_cursors.py"
_FORMATS = f"{_SCENARIOS}/test_cursor_formats.py"
_GIVEN_UP = f"{_SCENARIOS}/test_given_up.py"
_IDLE = f"{_SCENARIOS}/test_idle.py"
_LOG_PROTOCOL = f"{_SCENARIOS}/test_log_protocol.py"
_READ_AHEAD = f"{_SCENARIOS}/test_read_ahead.py"
_TAKEOVER = f"{_SCENARIOS}/test_takeover.py"
_TRIMMING = f"{_SCENARIOS}/test_trimming.py"
_UNKNOWN = f"{_SCENARIOS}/test_unknown_answers.py"
_WHOSE = f"{_SCENARIOS}/test_ledger_owners.py"

OWNERS = [
    Mutant(
        id="K61 roll",
        rule="a ledger takes entries when the list names it -> while the list is being written",
        module=_LOG,
        name="ManagedLedger._create_next",
        replacement=Edit(
            "await put_on_list(context, self.ledgers, writer, update)",
            "context.nursery.start_soon(\n"
            "                put_on_list, context, self.ledgers, writer, update)",
        ),
        caught_by=f"{_TAKEOVER}::test_a_ledger_takes_nothing_before_the_list_names_it",
    ),
    Mutant(
        id="K61 open",
        rule="a log serves when the list is its own -> while the list is being written",
        module="daybook.managed_ledger.open",
        name="_take_with_ledger",
        replacement=Edit(
            "await put_on_list(context, ledgers, writer, update)",
            "context.nursery.start_soon(put_on_list, context, ledgers, writer, update)\n"
            "    ledgers.ids.append(writer.ledger_id)",
        ),
        caught_by=f"{_TAKEOVER}::test_nothing_is_served_before_the_list_is_ours",
    ),
    Mutant(
        id="K65c",
        rule="a log that may have another owner ends -> goes on with the list it knows",
        module=_LOG,
        name="ManagedLedger.lost",
        replacement=Edit("self._perform(self._protocol.lost(reason))", "pass"),
        caught_by=f"{_TAKEOVER}::test_a_stale_owner_touches_neither_list_nor_cursors",
    ),
    Mutant(
        id="K65d",
        rule="a log that has ended sends nothing -> entries that waited are sent later",
        module=_LOG,
        name="ManagedLedger._drop",
        replacement=Edit("self.context.tasks.cancel()", "pass"),
        caught_by=f"{_GIVEN_UP}::test_after_it_was_given_up_nothing_is_written_that_waited_for_the_store",
    ),
    Mutant(
        id="K65e",
        rule="a log that was lost during its open is not opened -> it is",
        module="daybook.managed_ledger.open",
        name="_recover_cursors",
        replacement=Edit("    log.check()", "    pass"),
        caught_by=f"{_GIVEN_UP}::test_a_log_that_is_lost_while_its_cursors_are_recovered_is_not_opened",
    ),
    Mutant(
        id="K65f",
        rule="a read of a lost log starts nothing -> it reads ahead",
        module="daybook.managed_ledger.reading",
        name="LogReader._has_read",
        replacement=Edit("if reads_on and not self._context.stopped:", "if reads_on:"),
        caught_by=f"{_READ_AHEAD}::test_a_log_that_is_lost_while_it_is_read_begins_nothing",
    ),
    Mutant(
        id="M59 list",
        rule="a list write without an answer is looked up -> it counts as refused",
        module=_LIST,
        name="LedgerList._swap",
        replacement=Edit("lost = True\n", "raise self._fenced() from None\n"),
        caught_by=f"{_UNKNOWN}::test_when_the_log_is_taken_over",
    ),
    Mutant(
        id="M59 kept",
        rule="a ledger that the list may name is kept -> deleted when writing the list fails",
        module=_LIST,
        name="put_on_list",
        replacement=Edit(" and not ledgers.doubtful", ""),
        caught_by=f"{_GIVEN_UP}::test_a_write_that_is_refused_behind_one_in_doubt_may_be_carried_out_yet",
    ),
    Mutant(
        id="M59 to the end",
        rule="a list write goes on without its caller -> ends with it",
        module=_LIST,
        name="LedgerList.update",
        replacement=Edit(
            "await self._context.run_to_end(lambda: self._update(change, next_offset, last))",
            "await self._update(change, next_offset, last)",
        ),
        caught_by=f"{_GIVEN_UP}::test_whoever_stops_waiting_for_a_property_fences_nobody",
    ),
    Mutant(
        id="H01",
        rule="useless rolls become rare -> one per interval, forever",
        module="daybook.managed_ledger.protocol.healing",
        name="Healing.due",
        replacement=Edit("self.rolls += 1", "pass"),
        caught_by=f"{_SCENARIOS}/test_healing.py",
    ),
    Mutant(
        id="C74b",
        rule="an unreadable entry is an error -> it is skipped",
        module="daybook.managed_ledger.reading",
        name="LogReader._fetch",
        replacement=Edit(
            "entries = await self._fetch_whole(at, end, last, max_bytes)\n",
            "try:\n"
            "        entries = await self._fetch_whole(at, end, last, max_bytes)\n"
            "    except LedgerError:\n"
            "        at = at.next_in_ledger()\n"
            "        entries = await self._fetch_whole(at, end, last, max_bytes)\n",
        ),
        caught_by=f"{_SCENARIOS}/test_reading.py",
    ),
]

TRIMMING = [
    Mutant(
        id="K67c",
        rule="a cursor that is set back holds ledgers at once -> when that is stored",
        module=_CURSOR,
        name="Cursor.held_from",
        replacement=Edit("min(self._stored, self._state.mark_delete)", "self._stored"),
        caught_by=f"{_TRIMMING}::test_a_cursor_that_is_set_back_holds_what_lies_there_at_once",
    ),
    Mutant(
        id="K67d",
        rule="a cursor that is being created holds ledgers -> only when it exists",
        module=_CURSOR,
        name="Cursors.held_from",
        replacement=Edit("() if self._new is None else (self._new,)", "()"),
        caught_by=f"{_TRIMMING}::test_a_cursor_that_comes_to_what_is_being_trimmed",
    ),
    Mutant(
        id="T03",
        rule="the ledgers to trim are chosen when the list is written -> before",
        module=_LOG,
        name="ManagedLedger.trim",
        replacement=Edit("gone[:] = self._trimmable(retention)", "pass"),
        caught_by=f"{_TRIMMING}::test_acknowledged_ledgers_go_when_the_acks_are_durable",
    ),
    Mutant(
        id="T04",
        rule="no cursor starts in a ledger that is being trimmed -> until it is gone",
        module=_LIST,
        name="LedgerList.before_first",
        replacement=Edit("Position(self._first, -1)", "Position(self.ids[0], -1)"),
        caught_by=f"{_TRIMMING}::test_a_cursor_that_comes_to_what_is_being_trimmed",
    ),
]

CURSORS = [
    Mutant(
        id="C2 ahead",
        rule="positions that do not exist yet are not acknowledged -> they are, and skipped later",
        module="daybook.managed_ledger.ack_set",
        name="AckSet.keep_within",
        replacement=Edit("lengths.get(ledger_id, 0)", "1 << 20"),
        caught_by=f"{_CURSOR_RECOVERY}::test_a_ledger_that_is_appended_to_later_is_not_acknowledged_before",
    ),
    Mutant(
        id="C2 floor",
        rule="a cursor stands at an entry, or before a ledger -> anywhere",
        module=_LIST,
        name="LedgerList.floor",
        replacement=Edit("return Position(position.ledger_id, -1)", "return position"),
        caught_by=f"{_CURSOR_RECOVERY}::test_a_mark_delete_position_that_cannot_be",
    ),
    Mutant(
        id="C5 list",
        rule="a cursor is written while the list is our own -> at any time",
        module=_LIST,
        name="LedgerList.guarded",
        replacement=Edit("[check, *operations]))[1:]", "[*operations]))"),
        caught_by=f"{_TAKEOVER}::test_a_stale_owner_touches_neither_list_nor_cursors",
    ),
    Mutant(
        id="C5 version",
        rule="a write of a cursor names the version that it replaces -> any",
        module="daybook.managed_ledger.cursor_ledger",
        name="CursorRecord.store",
        replacement=Edit("Set(self.path, value, self.version)", "Set(self.path, value, -1)"),
        caught_by=f"{_UNKNOWN}::test_a_cursor_write_that_comes_late_changes_nothing",
    ),
    Mutant(
        id="C5 strays",
        rule="cursors are removed while the list is our own -> at any time",
        module="daybook.managed_ledger.open",
        name="ManagedLedgers._delete_stray_cursors",
        replacement=Edit(
            "[Check(path, version), Delete(child, record.stat.version)]", "[Delete(child, -1)]"
        ),
        caught_by=f"{_CURSOR_RECOVERY}::test_who_deletes_a_log_that_was_taken_over_removes_no_cursor_of_the_new_owner",
    ),
    Mutant(
        id="C7",
        rule="a range over ledgers covers those between -> only its ends",
        module="daybook.managed_ledger.cursor_ledger",
        name="add_ranges",
        replacement=Edit("ids[behind : bisect_left(ids, upper.ledger_id)]", "()"),
        caught_by=f"{_CURSOR_RECOVERY}::test_ranges_over_ledgers_as_pulsar_writes_them",
    ),
    Mutant(
        id="C68b",
        rule="a new cursor ledger begins with the mark-delete position -> where reading begins",
        module=_CURSOR,
        name="Cursor._snapshot",
        replacement=Edit("self.mark_delete,", "self.read_start,"),
        caught_by=f"{_CURSORS}::test_a_cursor_whose_ledger_is_fenced_goes_on_if_the_log_is_ours",
    ),
    Mutant(
        id="C69b",
        rule="a cursor at the beginning is stored there -> at the end",
        module=_CURSOR,
        name="Cursor.create",
        replacement=Edit(
            "set_position(info, self.mark_delete)",
            "set_position(info, self._ledgers.last_confirmed)",
        ),
        caught_by=f"{_CURSORS}::test_earliest_and_latest_are_stored_as_such",
    ),
    Mutant(
        id="C71c",
        rule="recovery only moves a cursor forward -> to the last record written",
        module="daybook.managed_ledger.protocol.cursor",
        name="apply_change",
        replacement=Edit("max(mark_delete, change.mark_delete)", "change.mark_delete"),
        caught_by=f"{_SCENARIOS}/test_cursor_state.py",
    ),
    Mutant(
        id="C72b",
        rule="a clean close stores individual acknowledgements -> only the mark-delete position",
        module=_CURSOR,
        name="Cursor._store_whole",
        replacement=Edit("list(self._state.acked.ranges())", "[]"),
        caught_by=f"{_CURSORS}::test_a_clean_close_keeps_every_ack",
    ),
    Mutant(
        id="C74c",
        rule="a cursor whose ledger cannot be read keeps it -> falls back to its record",
        module="daybook.managed_ledger.cursor_ledger",
        name="recover_state",
        replacement=Edit("suppress(NoSuchLedgerError, NoSuchEntryError)", "suppress(LedgerError)"),
        caught_by=f"{_CURSOR_RECOVERY}::test_a_cursor_that_cannot_be_read_now_fails_the_open_and_stays_as_it_is",
    ),
]

WHOSE = [
    Mutant(
        id="W01 whose",
        rule="a ledger that names another owner is not opened -> it is",
        module="daybook.managed_ledger.records",
        name="LedgerOwner.contradicted_by",
        replacement=Edit(
            "    named = _UNNAMED if log is None else _shown(log)\n", "    return None\n"
        ),
        caught_by=_WHOSE,
    ),
    Mutant(
        id="W02 whose",
        rule="a ledger's owner is checked before its recovery -> after it",
        module="daybook.managed_ledger.context",
        name="LogContext.open_ledger",
        replacement=Edit(
            "    stored = await self.verified_metadata(ledger_id, owner)\n"
            "    return await self.client.open_stored(ledger_id, stored, recover=recover)\n",
            "    reader = await self.client.open(ledger_id, recover=recover)\n"
            "    await self.verified_metadata(ledger_id, owner)\n"
            "    return reader\n",
        ),
        caught_by=_WHOSE,
    ),
    Mutant(
        id="W03 whose",
        rule="all ledgers' owners are checked before the first recovery -> each before its own",
        module="daybook.managed_ledger.open",
        name="recover_tail",
        replacement=Edit(
            "    unsealed = await _metadata_of(context, ledgers.owner, ids)\n",
            "    unsealed = {}\n"
            "    for each in infos:\n"
            "        if each.ledgerId in ids:\n"
            "            one = await _metadata_of(context, ledgers.owner, [each.ledgerId])\n"
            "            await _recover(context, each, one[each.ledgerId])\n"
            "            unsealed |= one\n",
        ),
        caught_by=_WHOSE,
    ),
    Mutant(
        id="W04 whose",
        rule="a ledger that names another owner is not deleted -> it is",
        module="daybook.managed_ledger.context",
        name="LogContext.delete_ledger",
        replacement=Edit("        await self.verified_metadata(ledger_id, owner)\n", ""),
        caught_by=_WHOSE,
    ),
]

_LONG = f"{_SCENARIOS}/test_long_list.py"

LONG_LISTS = [
    Mutant(
        id="K95 truncate",
        rule="a truncation without a new ledger drops the other ones -> it waits for a new ledger",
        module=_LOG,
        name="ManagedLedger.truncate",
        replacement=Edit("not self._protocol.at_rest", "self.current_entries"),
        caught_by=f"{_SCENARIOS}/test_long_list.py -k truncation",
    ),
    Mutant(
        id="K6a",
        rule="no ledger is rolled above three quarters of its list's limit -> it is",
        module="daybook.managed_ledger.protocol.room",
        name="Room.allows_roll",
        replacement=Edit("return not self._reaches(_NO_ROLL_ABOVE)", "return True"),
        caught_by=f"{_LONG}::test_above_three_quarters_nothing_rolls",
    ),
    Mutant(
        id="K6b",
        rule="rolls are rarer the fuller the list is -> equally frequent",
        module="daybook.managed_ledger.protocol.room",
        name="Room.stretch",
        replacement=Edit("return 1 << min", "return 1 or min"),
        caught_by=f"{_LONG}::test_rolls_become_rarer_and_end_at_three_quarters",
    ),
    Mutant(
        id="K6c",
        rule="nothing is appended above fifteen sixteenths -> it is",
        module="daybook.managed_ledger.protocol.room",
        name="Room.allows_append",
        replacement=Edit("return not self._reaches(_NO_APPEND_ABOVE)", "return True"),
        caught_by=f"{_LONG}::test_takeovers_without_end_do_not_fill_the_list",
    ),
    Mutant(
        id="K6d",
        rule="opening trims only ledgers that no cursor needs -> without reading cursors",
        module="daybook.managed_ledger.open",
        name="_take_with_ledger",
        replacement=Edit("held.values()", "()"),
        caught_by=f"{_LONG}::test_opening_trims_by_the_rule_of_trimming",
    ),
    Mutant(
        id="K6e",
        rule="opening trims by the retention -> whatever the retention is",
        module="daybook.managed_ledger.open",
        name="_take_with_ledger",
        replacement=Edit(
            "trimmable(ledgers.sealed, positions, config.retention, now_ms)",
            "[ledger.ledger_id for ledger in ledgers.sealed]",
        ),
        caught_by=f"{_LONG}::test_opening_trims_by_the_rule_of_trimming",
    ),
    Mutant(
        id="K6f",
        rule="cursors are read when the list is claimed -> without a claim",
        module="daybook.managed_ledger.open",
        name="_take_with_ledger",
        replacement=Edit(
            "            await _claim(ledgers, learned, OPENING, writer.ledger_id, next_offset)\n",
            "",
        ),
        caught_by=f"{_LONG}::test_what_the_old_owner_does_to_a_cursor_before_the_claim_holds_its_ledgers",
    ),
    Mutant(
        id="K6g",
        rule="a claim names the ledger that will be listed -> all claims are the same",
        module="daybook.managed_ledger.open",
        name="_claim",
        replacement=Edit("str(number)", '"claimed"'),
        caught_by=f"{_LONG}::test_a_claim_whose_answer_was_lost_is_not_taken_for_that_of_another",
    ),
]

IDLE = [
    Mutant(
        id="IL01",
        rule="each opening without a ledger writes another number -> all write the same",
        module=_OPEN,
        name="_take_idle",
        replacement=Edit("context.rng.getrandbits(_OWNER_BITS)", "1"),
        caught_by=f"{_IDLE}::test_of_two_who_open_an_idle_log_at_once_one_has_it",
    ),
    Mutant(
        id="IL02",
        rule="a log that was appended to is opened with a ledger -> without one",
        module=_OPEN,
        name="_may_be_idle",
        replacement=Edit("return False", "return True"),
        caught_by=_IDLE,
    ),
    Mutant(
        id="IL03",
        rule="a list with little room is opened with a ledger, and trimmed -> without one",
        module=_OPEN,
        name="_may_be_idle",
        replacement=Edit(" and not Room(ledgers.bytes, config.list_bytes_max).alarming", ""),
        caught_by=_IDLE,
    ),
    Mutant(
        id="IL04",
        rule="a list keeps one ledger, also an empty one -> none",
        module=_OPEN,
        name="_take_idle",
        replacement=Edit(" if each.entries or each.ledger_id != kept", ""),
        caught_by=_IDLE,
    ),
    Mutant(
        id="IL05",
        rule="empty ledgers behind the last one with entries leave the list -> stay",
        module=_OPEN,
        name="_take_idle",
        replacement=Edit("if each.entries or each.ledger_id != kept", "if each.entries"),
        caught_by=_IDLE,
    ),
    Mutant(
        id="IL06",
        rule="appends of an idle log wait for its ledger -> those behind the first do not",
        module=_PROTOCOL,
        name="LogProtocol.append",
        replacement=Edit("(LogState.IDLE, LogState.CREATING)", "(LogState.IDLE,)"),
        caught_by=_LOG_PROTOCOL,
    ),
    Mutant(
        id="IL07",
        rule="a ledger that appends wait for is tried again -> they wait for ever",
        module=_PROTOCOL,
        name="LogProtocol.create_failed",
        replacement=Edit("if self.waiting:", "if False:"),
        caught_by=f"{_IDLE}::test_without_enough_bookies_appends_wait_and_say_so",
    ),
    Mutant(
        id="IL08",
        rule="the first ledger replaces an empty one on the list -> stands behind it",
        module=_LOG,
        name="ManagedLedger._create_next",
        replacement=Edit("drop(info, empty)", "pass"),
        caught_by=_IDLE,
    ),
    Mutant(
        id="IL09",
        rule="the empty ledger that was replaced is deleted -> is left to the removal of orphans",
        module=_LOG,
        name="ManagedLedger._create_next",
        replacement=Edit("if empty:", "if False:"),
        caught_by=_IDLE,
    ),
    Mutant(
        id="IL10",
        rule="an idle log with a full list gets its ledger -> its appends are tried for ever",
        module=_LOG,
        name="ManagedLedger._create_next",
        replacement=Edit(" and self.state is LogState.ROLLING", ""),
        caught_by=f"{_IDLE}::test_a_list_that_filled_up_meanwhile_takes_the_first_ledger",
    ),
    Mutant(
        id="IL11",
        rule="a log tells why its first ledger is not there -> appends wait without a reason",
        module=_LOG,
        name="ManagedLedger._create_next",
        replacement=Edit("if isinstance(self._writer, NoLedger):", "if False:"),
        caught_by=_IDLE,
    ),
    Mutant(
        id="IL15",
        rule="a log for which nobody waits says nothing -> tells of the last ledger that failed",
        module=_LOG,
        name="ManagedLedger.waiting_for",
        replacement=Edit("self.idle and not self._protocol.waiting", "False"),
        caught_by=f"{_IDLE}::test_a_trim_that_gets_no_ledger_makes_nobody_wait",
    ),
    Mutant(
        id="IL12",
        rule="the last ledger of an idle log is dropped when nobody needs it -> stays",
        module=_LOG,
        name="ManagedLedger._free_last",
        replacement=Edit("self._perform(self._protocol.want_ledger())", "pass"),
        caught_by=_IDLE,
    ),
    Mutant(
        id="IL13",
        rule="the last ledger of an idle log stays while somebody needs it -> a new one is made",
        module=_LOG,
        name="ManagedLedger._free_last",
        replacement=Edit(
            " and last.ledger_id in self._unneeded(self.ledgers.sealed, retention)", ""
        ),
        caught_by=_IDLE,
    ),
    Mutant(
        id="IL14",
        rule="a deletion waits for the ledger that is being listed -> that ledger stays",
        module=_LOG,
        name="ManagedLedger.clear",
        replacement=Edit("(LogState.ROLLING, LogState.CREATING)", "(LogState.ROLLING,)"),
        caught_by=f"{_IDLE}::test_a_deletion_waits_for_the_ledger_that_is_being_created",
    ),
]

CURSOR_FORMATS = [
    Mutant(
        id="C82",
        rule="a change carries the mark-delete position after it -> the one before",
        module="daybook.managed_ledger.protocol.cursor",
        name="CursorState.take_change",
        replacement=Edit("Change(self.mark_delete,", "Change(self._taken_mark_delete,"),
        caught_by=f"{_FORMATS}::test_version_2_is_written_when_all_announce_it",
    ),
    Mutant(
        id="C83",
        rule="a cursor with records of version 1 gets a new ledger at the open -> keeps it",
        module="daybook.managed_ledger.open",
        name="_recover_cursors",
        replacement=Edit("await cursor.renew()", "pass"),
        caught_by=f"{_FORMATS}::test_records_of_version_1_are_left_when_the_log_is_opened",
    ),
    Mutant(
        id="C83b",
        rule="a cursor replaces records of version 1 when version 2 is allowed later -> keeps them",
        module=_CURSOR,
        name="Cursor.check_format",
        replacement=Edit("self._renewing = True", "pass"),
        caught_by=f"{_FORMATS}::test_records_of_version_1_are_left_when_the_last_old_broker_has_gone",
    ),
    Mutant(
        id="C84",
        rule="many changes with holes are followed by a snapshot -> never",
        module=_CURSOR,
        name="Cursor._snapshot_is_due",
        replacement=Edit("self._has_holes and", "False and"),
        caught_by=f"{_FORMATS}::test_a_snapshot_is_written_after_so_many_changes_while_there_are_holes",
    ),
    Mutant(
        id="C84b",
        rule="changes with holes are followed by a snapshot in time -> at the next change",
        module=_CURSOR,
        name="Cursor.run",
        replacement=Edit("trio.move_on_at(self._snapshot_due_s)", "trio.CancelScope()"),
        caught_by=f"{_FORMATS}::test_a_snapshot_is_the_last_record_after_so_long_while_there_are_holes",
    ),
    Mutant(
        id="C85",
        rule="a seek is written as a snapshot -> as a change",
        module=_CURSOR,
        name="Cursor._snapshot_is_due",
        replacement=Edit("change.reset or ", ""),
        caught_by=f"{_FORMATS}::test_a_seek_is_written_as_a_snapshot",
    ),
    Mutant(
        id="C86",
        rule="version 2 is written when all brokers announce it -> always",
        module=_CURSOR,
        name="Cursor._may_write_2",
        replacement=Edit("self._context.allows(CHANGE_2)", "True"),
        caught_by=f"{_FORMATS}::test_version_1_is_written_while_a_broker_does_not_announce_the_other",
    ),
    Mutant(
        id="C86b",
        rule="a format is allowed when all brokers announce it -> when one does",
        module="daybook.broker.formats",
        name="Formats._read",
        replacement=Edit("common &= ", "common |= "),
        caught_by="tests:tests/broker/control/test_announced_formats.py",
    ),
    Mutant(
        id="C87",
        rule="a record of ours without a whole snapshot is rejected -> parts count as snapshots",
        module="daybook.managed_ledger.cursor_ledger",
        name="Recovered.apply",
        replacement=Edit("self._part_2(info.part)", "self._snapshot(info)"),
        caught_by=f"{_SCENARIOS}/test_cursor_ledger.py::test_a_large_snapshot_is_several_records_and_counts_when_all_are_there",
    ),
]

MUTANTS = [*OWNERS, *TRIMMING, *CURSORS, *WHOSE, *LONG_LISTS, *IDLE, *CURSOR_FORMATS]
