"""Rules about messages beside the adds and reads of entries, broken one at a time.

These are explicit LACs, tailing readers, entries whose ids the caller gives.
"""

from tests.mutants.patch import Edit, Mutant

_LAC = "tests:tests/bookie/ledger/test_lac.py"
_ADVANCED = "tests:tests/bookie/ledger/test_advanced_writer.py"
_READER = "tests:tests/clients/ledgers/test_reader.py"

MUTANTS = [
    Mutant(
        id="F01",
        rule="a LAC without a valid digest is rejected -> it is accepted",
        module="daybook.bookie.ledger.lac",
        name="_proven",
        replacement=Edit(
            "decode_lac(memoryview(answer.lacBody), digester, ledger_id)",
            'int.from_bytes(answer.lacBody[8:16], "big")',
        ),
        caught_by=f"{_LAC}::test_a_lac_without_a_proof_is_not_believed",
    ),
    Mutant(
        id="F02",
        rule="an entry is sent when all before it were given -> at once",
        module="daybook.bookie.ledger.deferred_writer",
        name="AdvancedLedgerWriter.append",
        replacement=Edit(
            "if entry_id > self.writer.last_add_pushed + 1:",
            "if entry_id > self.writer.last_add_pushed + 2:",
        ),
        caught_by=f"{_ADVANCED}::test_sent_is_what_has_no_gap_before_it",
    ),
    Mutant(
        id="F03",
        rule="an entry id is accepted once -> one that waits may be given again",
        module="daybook.bookie.ledger.deferred_writer",
        name="AdvancedLedgerWriter.append",
        replacement=Edit(" or entry_id in self._held", ""),
        caught_by=f"{_ADVANCED}::test_an_id_is_taken_once_pending_held_or_confirmed",
    ),
    Mutant(
        id="F04",
        rule="an id that another ledger has is refused -> the ledger is taken over",
        module="daybook.bookie.ledger.metadata_store",
        name="LedgerMetadataStore.create_as",
        replacement=Edit("raise LedgerExistsError(ledger_id)", "pass"),
        caught_by=f"{_ADVANCED}::test_a_ledger_id_that_is_given_is_taken_once",
    ),
    Mutant(
        id="F05",
        rule="a follower asks every member of the ensemble -> the first one",
        module="daybook.bookie.ledger.lac",
        name="TailingReader._wait_for_a_hint",
        replacement=Edit(".last_fragment.ensemble:", ".last_fragment.ensemble[:1]:"),
        caught_by=f"{_READER}::test_following_a_striped_ledger_misses_nothing",
    ),
    Mutant(
        id="F06",
        rule="pauses behind hints that bring nothing grow -> they do not",
        module="daybook.bookie.ledger.lac",
        name="TailingReader.wait",
        replacement=Edit("min(2 * pause_s, limits.lac_pause_s_max)", "pause_s"),
        caught_by=f"{_READER}::test_a_ledger_that_a_recovery_has_left_half_done_is_waited_for_gently",
    ),
    Mutant(
        id="F07",
        rule="a writer that pauses tells its LAC -> it does not",
        module="daybook.bookie.ledger.lac",
        name="LacAnnouncer.confirmed",
        replacement=Edit("self._work.set()", "pass"),
        caught_by=f"{_READER}::test_each_entry_is_seen_soon_after_it_is_confirmed",
    ),
]
