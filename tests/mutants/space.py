"""Rules of what a bookie gives back, finds damaged, and forgets, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_STORAGE = "tests:tests/bookie/storage"
_COLLECTED = "tests:tests/bookie/server/test_collector.py"
_RECLAIMED = f"{_STORAGE}/test_reclaim.py"

MUTANTS = [
    Mutant(
        id="B07",
        rule="behind a checkpoint inside a gap nothing is missing -> what was removed was lost",
        module="bookie.storage.replay",
        name="replay",
        replacement=Edit("reached=max(removed, default=0)", "reached=0"),
        source_hash="35cc98716baf",
        caught_by=f"{_STORAGE}/test_reclaim_faults.py",
    ),
    Mutant(
        id="B08",
        rule="the scrub finds segments that are gone -> it looks at those that are there",
        module="bookie.storage.scrub",
        name="Scrubber.run_once",
        replacement=Edit("self._holes()", "()"),
        source_hash="4868c6ab03cf",
        caught_by=f"{_STORAGE}/test_scrub.py",
    ),
    Mutant(
        id="B09",
        rule="what is accepted and not written yet has taken its room -> what is written has",
        module="bookie.storage.volume",
        name="Volume._refusal",
        replacement=Edit("self.log.end >= self.plain_end and not recovery", "False"),
        source_hash="403c593f0a83",
        caught_by=f"{_STORAGE}/test_room.py",
    ),
    Mutant(
        id="B10",
        rule="a tombstone ends when no segment holds a record of its ledger -> when asked for",
        module="bookie.storage.tombstones",
        name="Tombstones.end",
        replacement=Edit(" and spread(state) == 0", ""),
        source_hash="eedbe7f6d6f9",
        caught_by=f"{_STORAGE}/test_tombstones.py",
    ),
    Mutant(
        id="B11",
        rule="the metadata let in what may have been forgotten -> anybody may bring it",
        module="bookie.storage.store",
        name="LedgerStore.add",
        replacement=Edit("self._contacts is None or not self._may_be_forgotten(ledger_id)", "True"),
        source_hash="548a21fb1223",
        caught_by=f"{_STORAGE}/test_tombstones.py",
    ),
    Mutant(
        id="B12",
        rule="the highest tombstone stays and speaks for the others -> it ends as well",
        module="bookie.storage.tombstones",
        name="Tombstones._may_end",
        replacement=Edit("highest or ", ""),
        source_hash="53374d5b1734",
        caught_by=f"{_STORAGE}/test_tombstones.py",
    ),
    Mutant(
        id="B13",
        rule="a tombstone ends when its ledger is still gone -> it was gone once",
        module="bookie.server.collector",
        name="Collector._end_tombstones",
        replacement=Edit(" if await self._is_gone(ledger_id)", ""),
        source_hash="4079d454be47",
        caught_by=_COLLECTED,
    ),
    Mutant(
        id="B14",
        rule="a tombstone is forgotten when its row is gone durably -> before",
        module="bookie.storage.tombstones",
        name="Tombstones.end",
        replacement=Edit("    await self._checkpoint()\n", ""),
        source_hash="eedbe7f6d6f9",
        caught_by=f"{_STORAGE}/test_tombstones.py",
    ),
    Mutant(
        id="B15",
        rule="while records are lost no tombstone ends -> it does",
        module="bookie.storage.tombstones",
        name="Tombstones._may_end",
        replacement=Edit("volume.reads.doubt or ", ""),
        source_hash="53374d5b1734",
        caught_by=f"{_STORAGE}/test_tombstones.py",
    ),
    Mutant(
        id="B16",
        rule="the record of a tombstone is written again unless all is gone -> it goes",
        module="bookie.storage.tombstones",
        name="Tombstones.staying",
        replacement=Edit("confirmed and self._may_end(state) and spread(state) == 1", "True"),
        source_hash="79e64d26843b",
        caught_by=_RECLAIMED,
    ),
    Mutant(
        id="B17",
        rule="an unreadable segment keeps no other from being emptied -> it ends the round",
        module="bookie.storage.reclaim",
        name="Reclaimer._reclaim",
        replacement=Edit("except OSError:", "except KeyError:"),
        source_hash="2553a219d6c8",
        caught_by=f"{_STORAGE}/test_reclaim_faults.py",
    ),
]
