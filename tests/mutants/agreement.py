"""Rules about readers' results and writers' confirmations, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

MUTANTS = [
    Mutant(
        id="R02",
        rule="an entry is absent if its whole write set says so -> if no bookie returns it",
        module="daybook.bookie.ledger.protocol.read",
        name="ReadProtocol.answered",
        replacement=Edit("inquiry.absences == self._quorums.write", "True"),
        caught_by="storms:ledger",
    ),
    Mutant(
        id="R03",
        rule="an entry is returned if its digest matches -> whatever its bytes are",
        module="daybook.wire.entry",
        name="decode_entry",
        replacement=Edit("raise ChecksumError(", "ChecksumError("),
        caught_by="tests:tests/bookie/ledger/test_reader.py",
    ),
    Mutant(
        id="R04",
        rule="every entry of a run is confirmed -> only the last one",
        module="daybook.bookie.ledger.protocol.write",
        name="WriteProtocol._emit_confirmed",
        replacement=Edit("Confirm(self.lac + 1 - count, count)", "Confirm(self.lac, 1)"),
        caught_by="storms:ledger",
    ),
]
