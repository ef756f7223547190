"""Rules of re-replication, broken one at a time; its own tests must notice."""

from daybook.bookie.replication.protocol.replica_check import ReplicaState
from tests.mutants.patch import Edit, Mutant

_TESTS = "tests:tests/bookie/replication"
_CHECK_TESTS = f"{_TESTS}/test_replica_check.py"
_WORKER = f"{_TESTS}/test_worker.py"
_CHECK = "daybook.bookie.replication.protocol.replica_check"

_REREPLICATOR = "daybook.bookie.replication.rereplicator"
_METADATA_STORE = "daybook.bookie.ledger.metadata_store"
_LIVES = "tests:tests/bookie/ledger/test_metadata_store.py"
_NEWCOMERS = f"{_TESTS}/test_newcomers.py"

MUTANTS = [
    Mutant(
        id="RR01",
        rule="metadata names a new bookie when all is durable there -> when all was sent",
        module="daybook.bookie.replication.replicator",
        name="_Sending.send",
        replacement=Edit("if self._failure is None:", "if False:"),
        caught_by=f"{_WORKER} -k only_when_it_has_everything",
    ),
    Mutant(
        id="RR02",
        rule="the metadata of a ledger in recovery is not changed -> its fragments may change",
        module=_CHECK,
        name="sealed_fragments",
        replacement=Edit("            return []\n", "            fragments = fragments[:-1]\n"),
        caught_by=_CHECK_TESTS,
    ),
    Mutant(
        id="RR03",
        rule="the last fragment of an open ledger belongs to its writer -> it is copied as well",
        module=_CHECK,
        name="sealed_fragments",
        replacement=Edit(
            "            fragments = fragments[:-1]\n", "            starts.append(1 << 62)\n"
        ),
        caught_by=_CHECK_TESTS,
    ),
    Mutant(
        id="RR04",
        rule="a copy whose bookie does not answer is not missing -> it is",
        module=_CHECK,
        name="plan_repairs",
        replacement=Edit(
            "runs_of(codes, _TO_REWRITE, fragment.first)",
            "runs_of(codes, (*_TO_REWRITE, ReplicaState.NO_ANSWER), fragment.first)",
        ),
        caught_by=_CHECK_TESTS,
    ),
    Mutant(
        id="RR05",
        rule="whole lists of entries are compared -> a run is assumed from the first one on",
        module=_CHECK,
        name="apply_entry_list",
        replacement=Edit("group.first + group.size - fragment.first)", "len(there))"),
        caught_by=_CHECK_TESTS,
    ),
    Mutant(
        id="RR06",
        rule="a damaged copy is replaced by another bookie's -> rewritten in place",
        module=_CHECK,
        name="_why_moved",
        replacement=Edit("if ReplicaState.DAMAGED in codes:", "if False:"),
        caught_by=_CHECK_TESTS,
    ),
    Mutant(
        id="RR07",
        rule="a bookie occurs once in a fragment -> it may occur twice",
        module=_CHECK,
        name="newcomers",
        replacement=Edit(" if bookie not in fragment.ensemble", ""),
        caught_by=_CHECK_TESTS,
    ),
    Mutant(
        id="RR08",
        rule="a fragment that has grown is not changed -> copying a part suffices",
        module=_CHECK,
        name="replace_bookie",
        replacement=Edit("if now.last > fragment.last:", "if False:"),
        caught_by=_CHECK_TESTS,
    ),
    Mutant(
        id="RR09",
        rule="a bookie that may have the last copy stays in the ensemble -> it is replaced",
        module=_REREPLICATOR,
        name="Rereplicator._move",
        replacement=Edit("if _readable(move.entries, report) != move.entries:", "if False:"),
        caught_by=f"{_WORKER} -k no_copy_left",
    ),
    Mutant(
        id="RR10",
        rule="an open ledger is not fenced because a bookie is missing -> it is",
        module=_REREPLICATOR,
        name="Rereplicator._close_if_due",
        replacement=Edit("self._limits.fence_open_after_s if lost else None", "0.0"),
        caught_by=f"{_WORKER} -k left_to_its_writer",
    ),
    Mutant(
        id="RR11",
        rule="copying ends when the bookie is back -> it goes on",
        module=_REREPLICATOR,
        name="Rereplicator._cancelled_if_back",
        replacement=Edit("if not was_staying and self._watcher.is_staying(bookie):", "if False:"),
        caught_by=f"{_WORKER} -k when_the_bookie_is_back",
    ),
    Mutant(
        id="RR12",
        rule="without a spare nothing is locked -> it is",
        module=_REREPLICATOR,
        name="Rereplicator._has_spares",
        replacement=Edit("return not needy or", "return True or"),
        caught_by=f"{_WORKER} -k nothing_is_locked",
    ),
    Mutant(
        id="RR13",
        rule="a mark is deleted at the version read before the work -> at the present one",
        module="daybook.bookie.registry.underreplication",
        name="Underreplication.resolve",
        replacement=Edit("delete(path, mark.version)", "delete(path, record.stat.version)"),
        caught_by="tests:tests/bookie/registry/test_underreplication.py",
    ),
    Mutant(
        id="RR14",
        rule="a bookie is forgotten when no ledger names it -> although some do",
        module="daybook.bookie.replication.decommission",
        name="Decommission.forget",
        replacement=Edit("if remaining.ledgers or remaining.unreadable:", "if False:"),
        caught_by=f"{_TESTS}/test_decommission.py -k what_is_named",
    ),
    Mutant(
        id="RR15",
        rule="with loss accepted, only given-up bookies count as a no -> all that do not know",
        module="daybook.bookie.replication.protocol.accept_loss",
        name="AcceptLoss._read_answered",
        replacement=Edit(" and inquiry.unknown <= self._given_up", ""),
        caught_by=f"{_TESTS}/test_accept_loss.py",
    ),
    Mutant(
        id="RR16",
        rule="a single missing bookie is waited for -> it is lost at once",
        module="daybook.bookie.replication.bookie_watcher",
        name="LostBookies.look",
        replacement=Edit("len(fresh) + len(waited_before) > 1", "True"),
        caught_by=f"{_TESTS}/test_lost.py",
    ),
    Mutant(
        id="RR17",
        rule="damage found again is written to the mark again -> the mark stays as it is",
        module="daybook.bookie.registry.underreplication",
        name="mark_under_replicated",
        replacement=Edit(
            "        mark.ctime = now_ms\n",
            "        if record is not None and mark.ctime and len(missing) == len(mark.replica):\n"
            "            return\n"
            "        mark.ctime = now_ms\n",
        ),
        caught_by="tests:tests/bookie/registry/test_underreplication.py -k found_again",
    ),
    Mutant(
        id="RR18",
        rule="no new ledger names a leaving bookie -> one short of bookies does",
        module="daybook.bookie.ledger.ensemble",
        name="BookieDirectory.choose",
        replacement=Edit("await AdminStates(self._store, self._paths).leaving()", "set[str]()"),
        caught_by=f"{_TESTS}/test_decommission.py -k not_named_by_new",
    ),
    Mutant(
        id="RR19",
        rule="a busy bookie has no damage -> entries that it does not return are damaged",
        module="daybook.bookie.replication.checker",
        name="_LedgerCheck._copy_of",
        replacement=Edit(
            "        case _:\n            return ReplicaState.NO_ANSWER",
            "        case _:\n            return ReplicaState.DAMAGED",
        ),
        caught_by=f"{_TESTS}/test_rereplicator.py -k too_much_to_do",
    ),
    Mutant(
        id="RR20",
        rule="after an unreadable source every copy is read -> it is tried forever",
        module=_REREPLICATOR,
        name="Rereplicator._repair_locked",
        replacement=Edit("except (NoSuchEntryError, ReadUnknownError):", "except KeyError:"),
        caught_by=f"{_TESTS}/test_rereplicator.py -k is_an_alarm_and_no_loop",
    ),
    Mutant(
        id="RR21",
        rule="an entry whose bookies are all in limbo raises an alarm -> it is waited for",
        module=_REREPLICATOR,
        name="_without_copy",
        replacement=Edit("if report.silent", "if True"),
        caught_by=f"{_TESTS}/test_rereplicator.py -k in_doubt",
    ),
    Mutant(
        id="RR22",
        rule="an entry that a disk has lost is written there again -> it is not",
        module=_CHECK,
        name="_TO_REWRITE",
        replacement=(ReplicaState.MISSING, ReplicaState.DOUBTFUL),
        caught_by=f"{_CHECK_TESTS} -k does_not_give",
    ),
    Mutant(
        id="RR23",
        rule="a bookie accepts an entry that its disk has lost -> says that it has it",
        module="daybook.bookie.storage.ledger_directory",
        name="LedgerDirectory._add_known",
        replacement=Edit("if recovery and", "if False and"),
        caught_by="tests:tests/bookie/storage/test_entry_repair.py -k taken_again",
    ),
    Mutant(
        id="RR24",
        rule="a readable entry keeps its first bytes -> a recovery add replaces it",
        module="daybook.bookie.storage.ledger_directory",
        name="LedgerDirectory._add_known",
        replacement=Edit(" and self.damaged.get((state.ledger_id, entry_id)) == location", ""),
        caught_by="tests:tests/bookie/storage/test_entry_repair.py -k not_replaced",
    ),
    Mutant(
        id="RR25",
        rule="damage that a bookie finds is marked for repair -> it is logged",
        module="daybook.bookie.server.damage_reporter",
        name="DamageReporter._is_named",
        replacement=Edit("    try:\n", "    return False\n    try:\n"),
        caught_by=f"{_TESTS}/test_repairs.py -k bits_that_flip",
    ),
    Mutant(
        id="RR26",
        rule="a bookie with new disks gets its fences before it takes entries -> after",
        module="daybook.bookie.replication.replace_disk",
        name="Readmission.admit",
        replacement=Edit("await fence.begin(nursery, ledger_id, metadata)", "pass"),
        caught_by=f"{_TESTS}/test_replace_disk.py -k old_disks",
        also=(
            Mutant(
                id="RR26 reborn",
                rule="it also reads metadata for unknown ledgers: each check alone suffices",
                module="daybook.bookie.storage.unknown_ledgers",
                name="ledger_status",
                replacement=Edit("if generation == NEVER_LOST:", "if True:"),
                caught_by=f"{_TESTS}/test_replace_disk.py -k old_disks",
            ),
        ),
    ),
    Mutant(
        id="RR27",
        rule="an unanswered fence keeps the bookie out -> it is admitted",
        module="daybook.bookie.replication.replace_disk",
        name="Readmission.admit",
        replacement=Edit("raise DecommissionError(fence.failure)", "pass"),
        caught_by=f"{_TESTS}/test_replace_disk.py -k without_its_fences",
    ),
    Mutant(
        id="RR28",
        rule="with loss accepted, a silent bookie is waited for -> given up",
        module="daybook.bookie.replication.unsafe_recovery",
        name="_who_cannot_say",
        replacement=Edit("            return\n", "            return found.append(bookie)\n"),
        caught_by=f"{_TESTS}/test_unsafe_recovery.py -k silent",
    ),
    Mutant(
        id="RR29",
        rule="a copy goes to a bookie with which its write sets span racks -> to any bookie",
        module=_REREPLICATOR,
        name="Rereplicator._best",
        replacement=Edit("return best", "return drawn[0]"),
        caught_by=f"{_TESTS}/test_moved_copies.py -k rack_that_is_missing",
    ),
    Mutant(
        id="RR30",
        rule="a read-only member counts in its rack -> in none",
        module="daybook.bookie.ledger.ensemble",
        name="BookieDirectory.racks_of",
        replacement=Edit("infos.get(bookie) or await self._info(bookie)", "infos.get(bookie)"),
        caught_by=f"{_TESTS}/test_moved_copies.py -k whether_these_take_entries",
    ),
    Mutant(
        id="RR31",
        rule="a copy of many pieces is done when each is durable -> although one failed",
        module="daybook.bookie.replication.replicator",
        name="Replicator.copy",
        replacement=Edit("if flow.failure is not None:", "if False:"),
        caught_by=f"{_TESTS}/test_moved_copies.py -k among_many",
    ),
    Mutant(
        id="RR32",
        rule="a bookie without lists is asked for each entry -> counts as silent",
        module="daybook.bookie.replication.checker",
        name="Checker._list",
        replacement=Edit("if had_time and await", "if False and await"),
        caught_by=f"{_TESTS}/test_checker.py -k never_answers_a_question",
    ),
    Mutant(
        id="RR33",
        rule="a lock of ours without work is released -> is taken for another worker's",
        module="daybook.bookie.replication.worker",
        name="Worker._locked_by_others",
        replacement=Edit("if lock.ours:", "if False:"),
        caught_by=f"{_TESTS}/test_locks.py -k came_about_late",
    ),
    Mutant(
        id="RR34",
        rule="a leftover lock is released before the next ledger -> after all of them",
        module="daybook.bookie.replication.worker",
        name="Worker._round",
        replacement=Edit("if self._rereplicator.lock_left:", "if False:"),
        caught_by=f"{_TESTS}/test_locks.py -k before_the_next",
    ),
    Mutant(
        id="RR35",
        rule="a bookie that lost its disks during the change is not named -> it is",
        module=_METADATA_STORE,
        name="LedgerMetadataStore._write",
        replacement=Edit(", *checks]", "]"),
        caught_by=f"{_LIVES} -k on_its_way",
    ),
    Mutant(
        id="RR36",
        rule="a recreated cookie means new disks -> only its version counts",
        module="daybook.bookie.registry.cookies",
        name="read_cookie_generation",
        replacement=Edit("record.stat.created_txid", "0"),
        caught_by=f"{_LIVES} -k life_is_over",
    ),
    Mutant(
        id="RR37",
        rule="copies count under the cookie under which they were written -> under any",
        module="daybook.bookie.replication.replicator",
        name="Replicator.replace",
        replacement=Edit(", [newcomer])", ")"),
        caught_by=f"{_NEWCOMERS} -k copies",
    ),
    Mutant(
        id="RR38",
        rule="a new bookie's cookie is read before the first copy -> after the last one",
        module=_REREPLICATOR,
        name="Rereplicator._move",
        replacement=Edit(
            """        (generation,) = await self._context.metadata_store.generations_of([newcomer])
        try:
            await self._replicator.copy(ledger_id, stored.metadata, move.entries, newcomer)
""",
            """        try:
            await self._replicator.copy(ledger_id, stored.metadata, move.entries, newcomer)
            (generation,) = await self._context.metadata_store.generations_of([newcomer])
""",
        ),
        caught_by=f"{_NEWCOMERS} -k copies",
    ),
    Mutant(
        id="RR39",
        rule="recovered entries count under the cookie under which they were written -> under any",
        module="daybook.bookie.ledger.recovery",
        name="recover_ledger",
        replacement=Edit("decide, generations)", "decide)"),
        caught_by=f"{_NEWCOMERS} -k recovery",
    ),
    Mutant(
        id="RR40",
        rule="a new cookie is written before the metadata is read for losses -> it is not",
        module="daybook.bookie.server.data_integrity",
        name="DataIntegrityCheck._find_suspects",
        replacement=Edit("await renew_cookie(self._metadata, self._paths, self._cookie)", "1"),
        caught_by=f"{_NEWCOMERS} -k copies",
    ),
]
