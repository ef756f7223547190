"""Rules of the Spark tasks, broken one at a time: no offset goes missing without a word."""

from tests.mutants.patch import Edit, Mutant

_READ = "daybook.clients.spark.read"
_WALK = "daybook.clients.spark.walk"
_DIRECT = "daybook.clients.spark.direct"
_FILTERS = "daybook.clients.spark.filters"
_PUSH = "daybook.clients.spark.push_down"
_BY_FILTERS = "tests:tests/clients/spark/test_filters.py"
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
        id="SPK09",
        rule="NOT of a comparison with null is null -> it holds",
        module=_FILTERS,
        name="Condition.holds",
        replacement=Edit(
            "value is not None and self._compare(value)", "bool(value and self._compare(value))"
        ),
        caught_by=f"{_BY_FILTERS} -k known_only",
    ),
    Mutant(
        id="SPK10",
        rule="NOT IN with a null in its list leaves out all rows -> the null counts for nothing",
        module=_FILTERS,
        name="_condition",
        replacement=Edit('if negated or operator != "in":', 'if operator != "in":'),
        caught_by=f"{_BY_FILTERS} -k known_only",
    ),
    Mutant(
        id="SPK11",
        rule="NOT <=> keeps rows with null -> it is taken for <>",
        module=_FILTERS,
        name="_condition",
        replacement=Edit("if negated or inner.value is None:", "if inner.value is None:"),
        caught_by=f"{_BY_FILTERS} -k known_only",
    ),
    Mutant(
        id="SPK12",
        rule="a time in a filter counts to the microsecond -> to the millisecond",
        module=_FILTERS,
        name="_value",
        replacement=Edit("// _MICROSECOND", "// (1000 * _MICROSECOND) * 1000"),
        caught_by=f"{_BY_FILTERS} -k known_only",
    ),
    Mutant(
        id="SPK13",
        rule="an offset up to which a filter reads is read -> it is left out",
        module=_FILTERS,
        name="_bounds",
        replacement=Edit("highs.append(max(values) + 1)", "highs.append(max(values))"),
        caught_by=f"{_BY_FILTERS} -k narrow_the_offsets",
    ),
    Mutant(
        id="SPK14",
        rule="filters make the bounds of a frame narrower -> they also make them wider",
        module=_FILTERS,
        name="narrow",
        replacement=Edit("max(start.next, low)", "low"),
        caught_by=f"{_BY_FILTERS} -k narrow_the_offsets",
    ),
    Mutant(
        id="SPK15",
        rule="typed columns have names of their own -> a field of a record is taken for an offset",
        module=_PUSH,
        name="PushDownReader.pushFilters",
        replacement=Edit("dict(META), None", "names | dict(META), None"),
        caught_by=f"{_BY_FILTERS} -k typed_columns",
    ),
    Mutant(
        id="SPK16",
        rule="Spark tests all filters again -> it trusts the source",
        module=_PUSH,
        name="PushDownReader.pushFilters",
        replacement=Edit("return filters", "return []"),
        caught_by=f"{_BY_FILTERS} -k tests_all_filters_again",
    ),
    Mutant(
        id="SPK17",
        rule="a frame remembers the creations of its topics -> it does not",
        module=_PUSH,
        name="FrameBounds.decode",
        replacement=Edit(
            "cls(begin, until)",
            "cls(begin, {p: at._replace(created=None) for p, at in until.items()})",
        ),
        caught_by=f"{_BY_FILTERS} -k bounds_of_a_frame",
    ),
    Mutant(
        id="SPK18",
        rule="an archive belongs to all partitions of its topic -> some are asked for",
        module=_PUSH,
        name="PushDownReader.partitions",
        replacement=Edit("options.archive is None", "True"),
        caught_by=f"{_BY_FILTERS} -k archive",
    ),
    Mutant(
        id="SPK19",
        rule="pushDown is refused where Spark mixes filters up -> it is accepted",
        module="daybook.clients.spark.options",
        name="_check_push_down",
        replacement=Edit("not by_load", "False"),
        caught_by=f"{_BY_FILTERS} -k frames_of_load",
    ),
    Mutant(
        id="SPK20",
        rule="an entry outside of the times is not decompressed -> it is",
        module=_WALK,
        name="RangeWalk._take",
        replacement=Edit("not self._is_in_time(head.metadata)", "False"),
        caught_by=f"{_BY_FILTERS} -k decompressed",
    ),
    Mutant(
        id="SPK21",
        rule="keys in a regular batch are compared -> their lengths are",
        module="daybook.clients.spark.cutter",
        name="_rows_with",
        replacement=Edit("(column == np.frombuffer(key, np.uint8)).all(axis=1)", "True"),
        caught_by=f"{_BY_FILTERS} -k looked_for",
    ),
    Mutant(
        id="SPK22",
        rule="a message that cannot be read has no key -> a filter on keys keeps it",
        module="daybook.clients.spark.columns",
        name="RowBuilder.add_nulls",
        replacement=Edit("if self._needs_key", "if False"),
        caught_by=f"{_BY_FILTERS} -k without_content",
    ),
    Mutant(
        id="SPK23",
        rule="a scan asks for the partitions in its filters only -> it asks for all",
        module=_PUSH,
        name="PushDownReader.partitions",
        replacement=Edit(
            "selection=_only(options.selection, begin)", "selection=options.selection"
        ),
        caught_by=f"{_BY_FILTERS} -k tests_all_filters_again",
    ),
]
