"""What a bookie owes that may have lost records, broken one rule at a time."""

from tests.mutants.patch import Edit, Mutant

_STORAGE = "tests:tests/bookie/storage"
_EARLY = f"{_STORAGE}/test_ack_early.py"
_LIMBO = f"{_STORAGE}/test_limbo.py"
_REPAIRED = "tests:tests/bookie/replication/test_limbo.py"
_VOLUME = "bookie.storage.volume"
_STATES = "bookie.storage.states"
_READS = "bookie.storage.reads"
_UPKEEP = "bookie.storage.upkeep"
_SERVER = "bookie.server.limbo"

MUTANTS = [
    Mutant(
        id="M36",
        rule="after an unclean stop absence is unknown -> a no",
        module=_UPKEEP,
        name="Upkeep.start",
        replacement=Edit(" or self._forgetful", ""),
        source_hash="ba372248bc36",
        caught_by=_EARLY,
    ),
    Mutant(
        id="M36b",
        rule="only plain adds are answered before the sync -> those of recoveries, too",
        module=_VOLUME,
        name="Volume._accept",
        replacement=Edit(" and not recovery", ""),
        source_hash="1f50b8ce89c5",
        caught_by=_EARLY,
    ),
    Mutant(
        id="M36c",
        rule="an add waits for the key of its ledger -> it does not",
        module=_VOLUME,
        name="Volume._may_lose",
        replacement=Edit("state.key_position < log.durable and ", ""),
        source_hash="a6bf8a990447",
        caught_by=_EARLY,
    ),
    Mutant(
        id="M37b",
        rule="after an unclean stop open ledgers are fenced -> in limbo only",
        module=_SERVER,
        name="suspicion",
        replacement=Edit("bookie in metadata.last_fragment.ensemble)", "False)"),
        source_hash="2a2a83463172",
        caught_by=f"{_REPAIRED} -k what_a_ledger_says",
    ),
    Mutant(
        id="M41b",
        rule="a bookie that may lose adds is marked before it serves -> it is not",
        module=_UPKEEP,
        name="Upkeep.start",
        replacement=Edit("self._set_dirty(self._limits.ack_early)", "self._set_dirty(False)"),
        source_hash="ba372248bc36",
        caught_by=_EARLY,
    ),
    Mutant(
        id="M41c",
        rule="the mark goes when all is on the disk -> at any stop in order",
        module=_UPKEEP,
        name="Upkeep.close",
        replacement=Edit("if self._log.failure is None:", "if True:"),
        source_hash="4d6543756a20",
        caught_by=_EARLY,
    ),
    Mutant(
        id="M42",
        rule="limbo ends when nothing is missing any more -> when the end of the ledger is known",
        module=_SERVER,
        name="LimboRepair._repair",
        replacement=Edit("while missing := ", "while False and "),
        source_hash="f6a6bc6e7f4f",
        caught_by=f"{_REPAIRED} -k lost_without",
    ),
    Mutant(
        id="M42b",
        rule="that a ledger is in limbo is in the log -> in memory",
        module=_STATES,
        name="States.suspect",
        replacement=Edit(
            'self._log.append(Kind.LIMBO, ledger_id, NO_ENTRY_ID, b"", None)', "self._log.end - 1"
        ),
        source_hash="a168f36862a3",
        caught_by=_LIMBO,
    ),
    Mutant(
        id="M42c",
        rule="the end of a limbo is in the log -> in memory",
        module=_STATES,
        name="States.clear",
        replacement=Edit(
            'self._log.append(Kind.LIMBO_END, ledger_id, NO_ENTRY_ID, b"", None)',
            "self._log.end - 1",
        ),
        source_hash="399827776b36",
        caught_by=_LIMBO,
    ),
    Mutant(
        id="M42d",
        rule="whoever rewrites a segment takes the limbo marks along -> not",
        module="bookie.storage.reclaim",
        name="Reclaimer._known_of",
        replacement=Edit("if state.limbo:", "if False:"),
        source_hash="a38db66a8209",
        caught_by=_LIMBO,
    ),
    Mutant(
        id="M42e",
        rule="a ledger in limbo takes no plain adds -> the next ones of its writer",
        module=_VOLUME,
        name="Volume.add",
        replacement=Edit("        and not state.limbo\n", ""),
        source_hash="eeb3c378af18",
        caught_by=_LIMBO,
    ),
    Mutant(
        id="M42f",
        rule="a ledger in limbo takes no plain adds -> the next run of its writer",
        module=_VOLUME,
        name="Volume._takes_run",
        replacement=Edit("not state.limbo", "True"),
        source_hash="9d9eef1f88c7",
        caught_by=_LIMBO,
    ),
    Mutant(
        id="M43f",
        rule="of a ledger in limbo absence is unknown -> a no",
        module=_READS,
        name="Reads.absent",
        replacement=Edit("state is not None and state.limbo", "False"),
        source_hash="ff7aa822d110",
        caught_by=_LIMBO,
    ),
    Mutant(
        id="M47e",
        rule="doubt ends when all metadata have come -> what does not come names nobody",
        module=_SERVER,
        name="LimboRepair._all_metadata",
        replacement=Edit("except NoSuchLedgerError:", "except (NoSuchLedgerError, MetadataError):"),
        source_hash="2742f0b8a906",
        caught_by=f"{_REPAIRED} -k do_not_all_come",
    ),
    Mutant(
        id="M49b",
        rule="who has lost its memory asks for what it does not know -> takes it",
        module="bookie.storage.contacts",
        name="standing_of",
        replacement=Edit("birth == NEVER_LOST", "True"),
        source_hash="7e9933ce7b2d",
        caught_by=f"{_REPAIRED} -k late_writer",
    ),
    Mutant(
        id="M49c",
        rule="a copy of a ledger that has ended comes behind a fence -> without one",
        module="bookie.storage.store",
        name="LedgerStore.add",
        replacement=Edit("standing is Standing.ENDED", "False"),
        source_hash="548a21fb1223",
        caught_by=f"{_REPAIRED} -k late_writer",
    ),
    Mutant(
        id="M40b",
        rule="directories that are older than the last loss are in doubt -> believed",
        module="bookie.server.identity",
        name="examine",
        replacement=Edit("birth != expected", "False"),
        source_hash="0f08452dc56e",
        caught_by=f"{_REPAIRED} -k old_image",
    ),
]
