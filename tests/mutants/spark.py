"""Rules of the Spark tasks, broken one at a time: no offset goes missing without a word."""

from tests.mutants.patch import Edit, Mutant

_READ = "daybook.clients.spark.read"
_WALK = "daybook.clients.spark.walk"
_DIRECT = "daybook.clients.spark.direct"
_BY_DIRECT = "tests:tests/clients/spark/test_direct.py"
_BY_READ = "tests:tests/clients/spark/test_read.py"

MUTANTS = [
    Mutant(
        id="SPK01",
        rule="a ledger that its topic still lists is never a gap -> it is taken for trimmed",
        module=_READ,
        name="_TaskReader._check_retained",
        replacement=Edit("each.ledger_id == ledger.ledger_id", "False"),
        caught_by=f"{_BY_DIRECT} -k never_a_gap",
    ),
    Mutant(
        id="SPK02",
        rule="a ledger that names another topic is never read -> it is",
        module=_DIRECT,
        name="SealedLedgerReader.__init__",
        replacement=Edit("if other is not None", "if False"),
        caught_by=f"{_BY_DIRECT} -k another_topic",
    ),
    Mutant(
        id="SPK03",
        rule="offsets that are missing between two entries are data loss -> nobody notices",
        module=_WALK,
        name="RangeWalk.take",
        replacement=Edit("first > self.expected", "False"),
        caught_by=f"{_BY_READ} -k gap",
    ),
    Mutant(
        id="SPK04",
        rule="a message that cannot be read fails the query, by default -> it is left out",
        module=_WALK,
        name="RangeWalk._unreadable",
        replacement=Edit('case "fail"', 'case "never"'),
        caught_by=f"{_BY_READ} -k end_no_topic",
    ),
    Mutant(
        id="SPK05",
        rule="a topic that was deleted and created again is another one -> offsets alone decide",
        module="daybook.clients.spark.offsets",
        name="is_another_topic",
        replacement=Edit("before != now", "False"),
        caught_by="tests:tests/clients/spark/test_offsets.py",
    ),
    Mutant(
        id="SPK06",
        rule="a task reads no offsets of a topic that was made anew since the plan -> it does",
        module=_READ,
        name="_TaskReader._from_broker",
        replacement=Edit("is_another_topic(self._task.created, held.created)", "False"),
        caught_by=f"{_BY_READ} -k made_anew",
    ),
    Mutant(
        id="SPK07",
        rule="a cursor stays behind the batch that may be read again -> it moves with the commit",
        module="daybook.clients.spark.cursors",
        name="Cursors.commit",
        replacement=Edit("self._committed.items()", "end.items()"),
        caught_by="tests:tests/clients/spark/test_cursors.py",
    ),
    Mutant(
        id="SPK08",
        rule="an outage is not the end of an availableNow run -> it is",
        module="daybook.clients.spark.source",
        name="StreamReader.latestOffset",
        replacement=Edit("self._target is not None", "False"),
        caught_by="tests:tests/clients/spark/test_source.py -k outage_for_its_end",
    ),
    Mutant(
        id="SP70",
        rule="a pipeline reads from bookies as the command says -> without TLS and passwords",
        module="daybook.clients.pipelines.spec",
        name="_source",
        replacement=Edit("**cluster.storage, ", ""),
        caught_by="tests:tests/clients/pipelines/test_spec.py -k bookies_of_the_command",
    ),
    Mutant(
        id="SP71",
        rule="a sink knows no bookies -> it gets the options about them",
        module="daybook.clients.pipelines.spec",
        name="_of_cluster",
        replacement=Edit("**credentials}", "**credentials, **cluster.storage}"),
        caught_by="tests:tests/clients/pipelines/test_spec.py -k bookies_of_the_command",
    ),
    Mutant(
        id="SP72",
        rule="the variables about bookies are for the cluster of the command -> for any source",
        module="daybook.clients.cli.streams",
        name="_storage_of_source",
        replacement=Edit("if option or source.address == service_url else {}", ""),
        caught_by="tests:tests/clients/cli/test_spark.py -k source_of_a_copy",
    ),
    Mutant(
        id="SP73",
        rule="plain brokers with bookies over TLS can be set -> the files of TLS are refused",
        module="daybook.clients.cli.options",
        name="tls_options",
        replacement=Edit("and not _others_use_tls(meta)", ""),
        caught_by="tests:tests/clients/cli/test_spark.py -k to_the_source",
    ),
    Mutant(
        id="SP74",
        rule="an archive reads from bookies as the job says -> without TLS and passwords",
        module="daybook.clients.pipelines.archive.run",
        name="_step",
        replacement=Edit("**job.storage,", ""),
        caught_by="tests:tests/clients/pipelines/test_archive_run.py -k from_bookies",
    ),
]
