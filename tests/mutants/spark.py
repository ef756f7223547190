"""Rules of the Spark tasks, broken one at a time: no offset goes missing without a word."""

from tests.mutants.patch import Edit, Mutant

_READ = "daybook.clients.spark.read"
_WALK = "daybook.clients.spark.walk"
_DIRECT = "daybook.clients.spark.direct"
_BY_DIRECT = "tests:tests/clients/spark/test_direct.py"
_BY_READ = "tests:tests/clients/spark/test_read.py"

MUTANTS = [
    Mutant(
        id="SP1 listed",
        rule="a ledger that its topic still lists is never a gap -> it is taken for trimmed",
        module=_READ,
        name="_TaskReader._check_retained",
        replacement=Edit("each.ledger_id == ledger.ledger_id", "False"),
        caught_by=f"{_BY_DIRECT} -k never_a_gap",
    ),
    Mutant(
        id="SP1 owner",
        rule="a ledger that names another topic is never read -> it is",
        module=_DIRECT,
        name="SealedLedgerReader.__init__",
        replacement=Edit("if other is not None", "if False"),
        caught_by=f"{_BY_DIRECT} -k another_topic",
    ),
    Mutant(
        id="SP1 gap",
        rule="offsets that are missing between two entries are data loss -> nobody notices",
        module=_WALK,
        name="RangeWalk.take",
        replacement=Edit("first > self.expected", "False"),
        caught_by=f"{_BY_READ} -k gap",
    ),
    Mutant(
        id="SP1 unreadable",
        rule="a message that cannot be read fails the query, by default -> it is left out",
        module=_WALK,
        name="RangeWalk._unreadable",
        replacement=Edit('case "fail"', 'case "never"'),
        caught_by=f"{_BY_READ} -k end_no_topic",
    ),
]
