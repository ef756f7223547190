"""Rules of the Spark sink, broken one at a time (`clients.spark`)."""

from tests.mutants.patch import Edit, Mutant

_COMMIT = "daybook.clients.spark.commit"
_SINK = "daybook.clients.spark.sink"
_ROWS = "daybook.clients.spark.rows"
_BY_ONCE = "tests:tests/clients/spark/test_once.py"
_BY_ROWS = "tests:tests/clients/spark/test_rows.py"

MUTANTS = [
    Mutant(
        id="SW01",
        rule="a batch of which a task has no result is not committed -> without its rows",
        module=_COMMIT,
        name="commit_staged",
        replacement=Edit("if len(found) < len(messages):", "if False:"),
        caught_by=f"{_BY_ONCE} -k without_a_result",
    ),
    Mutant(
        id="SW02",
        rule="all tasks of a batch counted the same partitions -> only the first is asked",
        module=_COMMIT,
        name="_one_batch",
        replacement=Edit("if (each.sink, each.batch) != (sink, batch):", "if False:"),
        caught_by=f"{_BY_ONCE} -k another_batch",
    ),
    Mutant(
        id="SW03",
        rule="a batch that waited for an earlier one is committed then -> it is forgotten",
        module=_COMMIT,
        name="commit",
        replacement=Edit('if done.outcome != "wait":', "if True:"),
        caught_by=f"{_BY_ONCE} -k ends_when_the_batch",
    ),
    Mutant(
        id="SW04",
        rule="shares are committed in the order of the tasks -> as Spark names them",
        module=_COMMIT,
        name="staged",
        replacement=Edit("sorted(found, key=lambda each: each.task)", "found"),
        caught_by=f"{_BY_ONCE} -k order_of_the_tasks",
    ),
    Mutant(
        id="SW05",
        rule="exactly-once needs the ids of query and micro-batch -> a missing one is a name",
        module=_SINK,
        name="_micro_batch",
        replacement=Edit("if missing:", "if len(missing) > 1:"),
        caught_by=f"{_BY_ONCE} -k spark_tells_its_tasks",
    ),
    Mutant(
        id="SW06",
        rule="the driver counts the partitions once for a batch -> each time it sends the writer",
        module=_SINK,
        name="_Once.__getstate__",
        replacement=Edit("if self._topic is None:", "if True:"),
        caught_by=f"{_BY_ONCE} -k asked_for_once",
    ),
    Mutant(
        id="SW07",
        rule="a large message is alone in its batch -> it waits for others",
        module=_ROWS,
        name="RowEncoder._cut",
        replacement=Edit(
            "bisect_right(ends, done + BATCH_BYTES_MAX)",
            "bisect_right(ends, done + 4 * BATCH_BYTES_MAX)",
        ),
        caught_by=f"{_BY_ROWS} -k alone",
    ),
    Mutant(
        id="SW08",
        rule="the rest of the rows is sent at the end -> batches that are not full are lost",
        module=_ROWS,
        name="RowEncoder.rest",
        replacement=Edit("everything=True", "everything=False"),
        caught_by=f"{_BY_ROWS} -k every_row",
    ),
]
