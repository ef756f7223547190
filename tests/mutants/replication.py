"""Rules of re-replication, broken one at a time; its own tests have to notice."""

from tests.mutants.patch import Edit, Mutant

_TESTS = "tests:tests/bookie/replication"
_COPIES = f"{_TESTS}/test_copies.py"
_WORKER = f"{_TESTS}/test_worker.py"
_P_COPIES = "bookie.replication.protocol.copies"
_P_REPLACE = "bookie.replication.protocol.replace"
_MENDER = "bookie.replication.mender"

MUTANTS = [
    Mutant(
        id="RR01",
        rule="metadata name a newcomer when all is durable there -> when all was sent",
        module="bookie.replication.replicator",
        name="_Sending.send",
        replacement=Edit("while self._under_way and self._failure is None:", "while False:"),
        source_hash="db57fb5e02e9",
        caught_by=f"{_WORKER} -k only_when_it_has_everything",
    ),
    Mutant(
        id="RR02",
        rule="the metadata of a ledger in recovery stay as they are -> its fragments may change",
        module=_P_COPIES,
        name="settled_stretches",
        replacement=Edit("            return []\n", "            fragments = fragments[:-1]\n"),
        source_hash="95441cb62d93",
        caught_by=_COPIES,
    ),
    Mutant(
        id="RR03",
        rule="the last fragment of an open ledger is its writer's -> it is copied as well",
        module=_P_COPIES,
        name="settled_stretches",
        replacement=Edit(
            "            fragments = fragments[:-1]\n", "            starts.append(1 << 62)\n"
        ),
        source_hash="95441cb62d93",
        caught_by=_COPIES,
    ),
    Mutant(
        id="RR04",
        rule="a copy that nobody has heard of is not missing -> it is",
        module=_P_COPIES,
        name="judge",
        replacement=Edit(
            "(Copy.MISSING, Copy.DOUBTFUL), stretch.first",
            "(Copy.MISSING, Copy.DOUBTFUL, Copy.UNHEARD), stretch.first",
        ),
        source_hash="28d6a163fdc2",
        caught_by=_COPIES,
    ),
    Mutant(
        id="RR05",
        rule="whole lists of entries are compared -> from the first one on a run is believed",
        module=_P_COPIES,
        name="listed",
        replacement=Edit("group.first + group.size - stretch.first)", "len(there))"),
        source_hash="91b13623e0a8",
        caught_by=_COPIES,
    ),
    Mutant(
        id="RR06",
        rule="a damaged copy is replaced by another bookie's -> written again where it is",
        module=_P_COPIES,
        name="_why_moved",
        replacement=Edit("if Copy.DAMAGED in codes:", "if False:"),
        source_hash="626497e854f3",
        caught_by=_COPIES,
    ),
    Mutant(
        id="RR07",
        rule="a bookie takes one place of a fragment -> it may take a second one",
        module=_P_REPLACE,
        name="newcomers",
        replacement=Edit(" if bookie not in stretch.ensemble", ""),
        source_hash="3440a3e14570",
        caught_by=_COPIES,
    ),
    Mutant(
        id="RR08",
        rule="a place that holds more by now stays -> what was copied is taken for all",
        module=_P_REPLACE,
        name="replace_bookie",
        replacement=Edit("if now.last > stretch.last:", "if False:"),
        source_hash="ac1636ff0cdf",
        caught_by=_COPIES,
    ),
    Mutant(
        id="RR09",
        rule="whoever may have the last copy keeps its place -> it is replaced",
        module=_MENDER,
        name="Mender._move",
        replacement=Edit("if _without(move.entries, report) != move.entries:", "if False:"),
        source_hash="2c5c79e65adc",
        caught_by=f"{_WORKER} -k no_copy_left",
    ),
    Mutant(
        id="RR10",
        rule="an open ledger is not fenced because a bookie is gone -> it is",
        module=_MENDER,
        name="Mender._close_if_due",
        replacement=Edit("self._limits.fence_open_after_s if lost else None", "0.0"),
        source_hash="0dce47c297ac",
        caught_by=f"{_WORKER} -k left_to_its_writer",
    ),
    Mutant(
        id="RR11",
        rule="copying ends when the bookie is back -> it goes on",
        module=_MENDER,
        name="Mender._unless_back",
        replacement=Edit("if not was_here and self._members.is_here(bookie):", "if False:"),
        source_hash="7d3f3773098f",
        caught_by=f"{_WORKER} -k when_the_bookie_is_back",
    ),
    Mutant(
        id="RR12",
        rule="without a spare nothing is locked -> it is",
        module=_MENDER,
        name="Mender._has_spares",
        replacement=Edit("return not needy or", "return True or"),
        source_hash="a208c3c97b85",
        caught_by=f"{_WORKER} -k nothing_is_locked",
    ),
    Mutant(
        id="RR13",
        rule="a mark goes under the version that was read before the work -> under the present one",
        module="bookie.replication.marks",
        name="Marks.resolve",
        replacement=Edit("delete(path, mark.version)", "delete(path, record.stat.version)"),
        source_hash="76ca0c3fdb6f",
        caught_by=f"{_TESTS}/test_marks.py",
    ),
    Mutant(
        id="RR14",
        rule="a bookie is forgotten when nothing names it -> whatever names it",
        module="bookie.replication.decommission",
        name="Decommission.forget",
        replacement=Edit("if kept.ledgers or kept.unreadable:", "if False:"),
        source_hash="21b7dad7f40d",
        caught_by=f"{_TESTS}/test_decommission.py -k what_is_named",
    ),
    Mutant(
        id="RR15",
        rule="with loss accepted only who was given up counts as a no -> whoever does not know",
        module="bookie.replication.protocol.accept_loss",
        name="AcceptLoss._read_answered",
        replacement=Edit(" and inquiry.unknown <= self._given_up", ""),
        source_hash="dcafbae1a2f7",
        caught_by=f"{_TESTS}/test_accept_loss.py",
    ),
    Mutant(
        id="RR16",
        rule="one bookie that goes is waited for -> it is lost at once",
        module="bookie.replication.protocol.lost",
        name="LostBookies.look",
        replacement=Edit("len(fresh) + len(waited_before) > 1", "True"),
        source_hash="05e848f36921",
        caught_by=f"{_TESTS}/test_lost.py",
    ),
]
