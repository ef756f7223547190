"""Rules of the Spark tasks, broken one at a time: no offset goes missing without a word."""

from tests.mutants.patch import Edit, Mutant

_READ = "daybook.clients.spark.read"
_WALK = "daybook.clients.spark.walk"
_DIRECT = "daybook.clients.spark.direct"
_ROWS = "daybook.clients.spark.rows"
_MESSAGES = "daybook.clients.spark.row_messages"
_BY_DIRECT = "tests:tests/clients/spark/test_direct.py"
_BY_READ = "tests:tests/clients/spark/test_read.py"
_BY_ROWS = "tests:tests/clients/spark/test_rows.py -k plain_encoder"

MUTANTS = [
    Mutant(
        id="SP01",
        rule="a ledger that its topic still lists is never a gap -> it is taken for trimmed",
        module=_READ,
        name="_TaskReader._check_retained",
        replacement=Edit("each.ledger_id == ledger.ledger_id", "False"),
        caught_by=f"{_BY_DIRECT} -k never_a_gap",
    ),
    Mutant(
        id="SP02",
        rule="a ledger that names another topic is never read -> it is",
        module=_DIRECT,
        name="SealedLedgerReader.__init__",
        replacement=Edit("if other is not None", "if False"),
        caught_by=f"{_BY_DIRECT} -k another_topic",
    ),
    Mutant(
        id="SP03",
        rule="offsets that are missing between two entries are data loss -> nobody notices",
        module=_WALK,
        name="RangeWalk.take",
        replacement=Edit("first > self.expected", "False"),
        caught_by=f"{_BY_READ} -k gap",
    ),
    Mutant(
        id="SP04",
        rule="a message that cannot be read fails the query, by default -> it is left out",
        module=_WALK,
        name="RangeWalk._unreadable",
        replacement=Edit('case "fail"', 'case "never"'),
        caught_by=f"{_BY_READ} -k end_no_topic",
    ),
    Mutant(
        id="SP05",
        rule="a topic that was deleted and created again is another one -> offsets alone decide",
        module="daybook.clients.spark.offsets",
        name="is_another_topic",
        replacement=Edit("before != now", "False"),
        caught_by="tests:tests/clients/spark/test_offsets.py",
    ),
    Mutant(
        id="SP06",
        rule="a task reads no offsets of a topic that was made anew since the plan -> it does",
        module=_READ,
        name="_TaskReader._from_broker",
        replacement=Edit("is_another_topic(self._task.created, held.created)", "False"),
        caught_by=f"{_BY_READ} -k made_anew",
    ),
    Mutant(
        id="SP07",
        rule="a cursor stays behind the batch that may be read again -> it moves with the commit",
        module="daybook.clients.spark.cursors",
        name="Cursors.commit",
        replacement=Edit("self._committed.items()", "end.items()"),
        caught_by="tests:tests/clients/spark/test_cursors.py",
    ),
    Mutant(
        id="SP08",
        rule="an outage is not the end of an availableNow run -> it is",
        module="daybook.clients.spark.source",
        name="StreamReader.latestOffset",
        replacement=Edit("self._target is not None", "False"),
        caught_by="tests:tests/clients/spark/test_source.py -k outage_for_its_end",
    ),
    Mutant(
        id="SP09",
        rule="rows of a partition keep their order -> those that wait come behind later ones",
        module=_ROWS,
        name="_Waiting.take",
        replacement=Edit("self.parts)", "self.parts[::-1])"),
        caught_by=_BY_ROWS,
    ),
    Mutant(
        id="SP10",
        rule="rows that do not fill a batch wait for the next ones -> they are lost",
        module=_ROWS,
        name="_cut",
        replacement=Edit("if last > first", "if is_full and last > first"),
        caught_by=_BY_ROWS,
    ),
    Mutant(
        id="SP11",
        rule="the hash of a task is that of all its rows -> that of its last Arrow batch",
        module=_ROWS,
        name="RowEncoder.add",
        replacement=Edit("(self.hash + messages.hash_sum())", "messages.hash_sum()"),
        caught_by=_BY_ROWS,
    ),
    Mutant(
        id="SP12",
        rule="a key that is given as bytes is base64 -> its filling stays in it",
        module=_MESSAGES,
        name="_base64",
        replacement=Edit("fill > 1", "fill > 2"),
        caught_by=_BY_ROWS,
    ),
]
