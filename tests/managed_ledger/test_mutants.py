"""Break one rule, and a scenario here has to notice.

A mutant replaces a piece of source of one function, property or constant, for the time of one test.
Those with a number are those of `safety`, section 3, each with its story there; those without are
rules of this package.  (C73, one message of a batch, is a rule of the broker.)
"""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import pytest

from managed_ledger import cursor, cursor_ledger, recovery, rolling
from managed_ledger import open as opening
from managed_ledger.ack_set import AckSet
from managed_ledger.context import LogContext
from managed_ledger.cursor import Cursor
from managed_ledger.cursor_record import CursorRecord
from managed_ledger.cursors import Cursors
from managed_ledger.ledger_list import LedgerList
from managed_ledger.log import ManagedLedger
from managed_ledger.open import ManagedLedgers
from managed_ledger.protocol import cursor as cursor_rules
from managed_ledger.protocol import log as log_rules
from managed_ledger.protocol import trim as trim_rules
from managed_ledger.protocol.healing import Healing
from managed_ledger.reading import LogReader
from managed_ledger.rolling import Rolling
from tests.managed_ledger import (
    test_cursor_recovery,
    test_cursor_state,
    test_cursors,
    test_followers,
    test_given_up,
    test_healing,
    test_log_protocol,
    test_reading,
    test_takeover,
    test_trim,
    test_trimming,
    test_unknown_answers,
)


@dataclass(frozen=True)
class Mutant:
    rule: str
    holder: ModuleType | type
    name: str  # of what is replaced in it
    old: str
    new: str
    noticed_by: Callable[[], object]


def on_table(test: Callable[[str], None], tables: dict[str, str]) -> Callable[[], None]:
    def run() -> None:
        for table in tables.values():
            test(table)

    return run


MACHINE = on_table(test_log_protocol.test_scenario, test_log_protocol.SCENARIOS)


def patching(test: Callable[[pytest.MonkeyPatch], None]) -> Callable[[], None]:
    def run() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            test(monkeypatch)

    return run


def trim_table() -> None:
    for case in test_trim.CASES.values():
        test_trim.test_table(case)


MUTANTS = [
    # -- the chain
    Mutant(
        "K60 the last two ledgers are recovered -> the last one",
        recovery,
        "recover_tail",
        'i >= len(infos) - RECOVERED_LEDGERS or not ledger.HasField("entries")',
        "i >= len(infos) - 1",
        test_takeover.test_both_open_ledgers_of_a_roll_are_recovered,
    ),
    Mutant(
        "K61 a ledger takes entries when the list names it -> while that is being written",
        Rolling,
        "create_next",
        "await put_on_list(log.context, log.ledgers, writer, log.update_list)",
        "log.context.nursery.start_soon(\n"
        "                put_on_list, log.context, log.ledgers, writer, log.update_list)",
        test_takeover.test_a_ledger_takes_nothing_before_the_list_names_it,
    ),
    Mutant(
        "K61 a log is served when the list is ours -> while that is being written",
        opening,
        "_take_over",
        "await put_on_list(context, ledgers, writer, update)",
        "context.nursery.start_soon(put_on_list, context, ledgers, writer, update)\n"
        "    ledgers.ids.append(writer.ledger_id)",
        test_takeover.test_nothing_is_served_before_the_list_is_ours,
    ),
    Mutant(
        "K62 the list is written by compare-and-swap -> blindly",
        LedgerList,
        "_swap",
        "store.set(self.path, value, self.version)",
        "store.set(self.path, value, -1)",
        test_trimming.test_trimming_when_the_log_is_somebody_elses,
    ),
    Mutant(
        "K63 the old owner is fenced -> trusted to be gone",
        recovery,
        "_recover",
        "recover=True",
        "recover=False",
        partial(test_takeover.test_a_ledger_is_fenced_before_its_successor_is_served, 2),
    ),
    Mutant(
        "K64 a new ledger takes over behind the old one's last confirmation -> at once",
        log_rules.LogProtocol,
        "_maybe_switch",
        "or self.unconfirmed",
        "",
        MACHINE,
    ),
    Mutant(
        "K65 a log that may be somebody else's ends -> goes on with the list it knows",
        ManagedLedger,
        "lost",
        "self._feed(Lost(reason))",
        "pass",
        test_takeover.test_a_stale_owner_touches_neither_list_nor_cursors,
    ),
    Mutant(
        "K65 nothing is appended behind a fence -> the machine goes on",
        log_rules.LogProtocol,
        "step",
        "self.state = State.FENCED",
        "pass",
        MACHINE,
    ),
    Mutant(
        "K66 an empty ledger at the tail is fenced, then deleted -> looked at, then deleted",
        recovery,
        "_recover",
        "recover=True",
        "recover=known.entries > 0",
        partial(test_takeover.test_a_ledger_is_fenced_before_its_successor_is_served, 0),
    ),
    Mutant(
        "K67 ledgers are kept for the stored positions of cursors -> for those in memory",
        Cursor,
        "held_from",
        "min(self._stored, self._state.mark_delete)",
        "self._state.mark_delete",
        test_trimming.test_acknowledged_ledgers_go_when_the_acks_are_durable,
    ),
    Mutant(
        "a cursor that is set back holds ledgers at once -> when that is stored",
        Cursor,
        "held_from",
        "min(self._stored, self._state.mark_delete)",
        "self._stored",
        test_trimming.test_a_cursor_that_is_set_back_holds_what_lies_there_at_once,
    ),
    Mutant(
        "what is trimmed is decided when the list is written -> before",
        ManagedLedger,
        "trim",
        "gone[:] = self._trimmable()  # Cursors may have been set back while we waited.",
        "pass",
        test_trimming.test_acknowledged_ledgers_go_when_the_acks_are_durable,
    ),
    Mutant(
        "nothing begins in what is being trimmed -> until it is gone",
        LedgerList,
        "before_first",
        "Position(self._first, -1)",
        "Position(self.ids[0], -1)",
        partial(test_trimming.test_a_cursor_that_comes_to_what_is_being_trimmed, "reset", "trim"),
    ),
    Mutant(
        "a cursor that is being created holds ledgers -> when it is there",
        Cursors,
        "held_from",
        "() if self._new is None else (self._new,)",
        "()",
        partial(
            test_trimming.test_a_cursor_that_comes_to_what_is_being_trimmed, "new", "another write"
        ),
    ),
    Mutant(
        "a ledger goes when its last entry is acknowledged -> its first",
        trim_rules,
        "trimmable",
        "ledger.entries - 1)",
        "0)",
        trim_table,
    ),
    Mutant(
        "one roll at a time -> the next one begins before the old ledger is closed",
        log_rules.LogProtocol,
        "_maybe_roll",
        "self.state is State.OPEN",
        "self.state in (State.OPEN, State.SEALING)",
        MACHINE,
    ),
    Mutant(
        "rolls that do not help become rare -> one each interval, for ever",
        Healing,
        "due",
        "self.rolls += 1",
        "pass",
        test_healing.test_a_bookie_that_never_takes_anything_does_not_fill_the_list,
    ),
    # -- the list, and what is not known of it
    Mutant(
        "M59 a write of the list without an answer is looked up -> taken for refused",
        LedgerList,
        "_swap",
        "lost = True\n",
        "raise self._fenced() from None\n",
        partial(test_unknown_answers.test_when_the_log_is_taken_over, applied=True, times=1),
    ),
    Mutant(
        "M60 a write of the list without an answer is looked up -> taken for done",
        LedgerList,
        "_swap",
        "if not await self._was_applied(value):\n                await",
        "self.version += 1\n            if False:\n                await",
        partial(test_unknown_answers.test_when_the_log_is_taken_over, applied=False, times=1),
    ),
    Mutant(
        "M61 the list is read from a server that has caught up -> from any",
        LogContext,
        "_synced",
        "await self.store.sync(path)",
        "pass",
        test_followers.test_a_list_that_is_old_is_not_taken_over,
    ),
    Mutant(
        "what one session has seen says nothing about the next -> it does",
        LogContext,
        "_synced",
        "if self.store.session_id == session_id:",
        "if True:",
        partial(test_followers.test_another_session_in_the_middle_of_opening, "list"),
    ),
    Mutant(
        "a ledger that the list may name is kept -> deleted, if writing the list fails",
        rolling,
        "put_on_list",
        " and not ledgers.doubtful",
        "",
        test_given_up.test_a_write_that_is_refused_behind_one_in_doubt_may_be_carried_out_yet,
    ),
    Mutant(
        "a write of the list goes on without whoever asked for it -> ends with him",
        LedgerList,
        "update",
        "await self._context.to_the_end(lambda: self._update(change, next_offset, last))",
        "await self._update(change, next_offset, last)",
        partial(test_given_up.test_whoever_stops_waiting_for_a_property_fences_nobody, True),
    ),
    Mutant(
        "a log that has ended sends nothing -> what waited for the store is sent later",
        ManagedLedger,
        "_drop",
        "self._context.nursery.cancel_scope.cancel()",
        "pass",
        test_given_up.test_after_it_was_given_up_nothing_is_written_that_waited_for_the_store,
    ),
    Mutant(
        "cursors are removed while the list is ours -> whoever has it",
        ManagedLedgers,
        "_delete_stray_cursors",
        "[Check(path, version), Delete(child, record.stat.version)]",
        "[Delete(child, -1)]",
        partial(
            test_cursor_recovery.test_who_deletes_a_log_that_was_taken_over_removes_no_cursor_of_the_new_owner,
            "get",
        ),
    ),
    # -- cursors
    Mutant(
        "C68 the mark-delete position is stored -> the one where reading begins",
        Cursor,
        "_start_ledger",
        "mark_delete = self.mark_delete\n",
        "mark_delete = self.read_start\n",
        test_cursors.test_a_cursor_whose_ledger_is_fenced_goes_on_if_the_log_is_ours,
    ),
    Mutant(
        "C69 a cursor at the beginning is stored there -> at the end",
        Cursor,
        "create",
        "set_position(info, self.mark_delete)",
        "set_position(info, self._log.last_confirmed)",
        test_cursors.test_earliest_and_latest_are_stored_as_such,
    ),
    Mutant(
        "C70 the pointer follows the first whole snapshot -> precedes it",
        Cursor,
        "_ledger_with",
        "await writer.wait_confirmed(writer.last_add_pushed)",
        "pass",
        test_cursors.test_the_pointer_to_a_new_ledger_follows_its_first_whole_snapshot,
    ),
    Mutant(
        "C71 a cursor moves on only -> to what was written last",
        cursor_rules,
        "apply_change",
        "max(mark_delete, change.mark_delete)",
        "change.mark_delete",
        test_cursor_state.test_an_older_change_moves_nothing_back,
    ),
    Mutant(
        "C72 a clean close stores what is acknowledged in between -> where the cursor stands",
        Cursor,
        "_store_whole",
        "list(self._state.acked.ranges())",
        "[]",
        partial(test_cursors.test_a_clean_close_keeps_every_ack, 3),
    ),
    Mutant(
        "C74 an entry that cannot be read is an error -> is skipped",
        LogReader,
        "_fetch",
        "entries = await source.read(at.entry_id, last, max_bytes=max_bytes)\n",
        "try:\n"
        "            entries = await source.read(at.entry_id, last, max_bytes=max_bytes)\n"
        "        except LedgerError:\n"
        "            at = at.next_in_ledger()\n"
        "            entries = await source.read(at.entry_id, last, max_bytes=max_bytes)\n",
        patching(test_reading.test_one_entry_that_cannot_be_read_is_not_skipped),
    ),
    Mutant(
        "C74 a cursor whose ledger cannot be read stays there -> goes back to its record",
        cursor,
        "_recovered",
        "suppress(NoSuchLedgerError, NoSuchEntryError)",
        "suppress(LedgerError)",
        partial(
            test_cursor_recovery.test_a_cursor_that_cannot_be_read_now_fails_the_open_and_stays_as_it_is,
            "out of reach",
        ),
    ),
    Mutant(
        "C5 a cursor is written while the list is ours -> whoever has it",
        LedgerList,
        "guarded",
        "[check, *operations]))[1:]",
        "[*operations]))",
        test_takeover.test_a_stale_owner_touches_neither_list_nor_cursors,
    ),
    Mutant(
        "C5 a write of a cursor names the version that it replaces -> any",
        CursorRecord,
        "store",
        "Set(self.path, value, self.version)",
        "Set(self.path, value, -1)",
        test_unknown_answers.test_a_cursor_write_that_comes_late_changes_nothing,
    ),
    Mutant(
        "C2 what no entry is yet is not acknowledged -> is, and is skipped later",
        AckSet,
        "keep_within",
        "lengths.get(ledger_id, 0)",
        "1 << 20",
        test_cursor_recovery.test_a_ledger_that_is_appended_to_later_is_not_acknowledged_before,
    ),
    Mutant(
        "C7 a range over ledgers covers those between -> only its ends",
        cursor_ledger,
        "add_ranges",
        "ids[behind : bisect_left(ids, upper.ledger_id)]",
        "()",
        partial(test_cursor_recovery.test_ranges_over_ledgers_as_pulsar_writes_them, "record"),
    ),
    Mutant(
        "C2 a cursor stands at an entry, or before a ledger -> anywhere",
        LedgerList,
        "floor",
        "return Position(position.ledger_id, -1)",
        "return position",
        partial(test_cursor_recovery.test_a_mark_delete_position_that_cannot_be, 1, -7, 6),
    ),
]


def mutated(mutant: Mutant) -> Any:
    """What takes the place of the original: its source with one piece replaced."""
    original = inspect.getattr_static(mutant.holder, mutant.name)
    function = original.fget if isinstance(original, property) else original
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{mutant.rule}: the source has changed"
    module = inspect.getmodule(function)
    assert module is not None
    names: dict[str, Any] = {}
    exec(
        "from __future__ import annotations\n" + source.replace(mutant.old, mutant.new),
        vars(module),
        names,
    )
    return names[mutant.name]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.rule for mutant in MUTANTS])
def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    replacement = mutated(mutant)
    original = vars(mutant.holder)[mutant.name]
    monkeypatch.setattr(mutant.holder, mutant.name, replacement)
    for module in list(sys.modules.values()):  # Who has imported it has it by name.
        if vars(module).get(mutant.name) is original and isinstance(mutant.holder, ModuleType):
            monkeypatch.setattr(module, mutant.name, replacement)
    assert fails(mutant.noticed_by), "nobody notices"


def fails(test: Callable[[], object]) -> bool:
    try:
        test()
    except (Exception, BaseExceptionGroup, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize("test", {id(m.noticed_by): m.noticed_by for m in MUTANTS}.values())
def test_what_notices_it_passes_otherwise(test: Callable[[], object]) -> None:
    test()
