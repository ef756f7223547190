"""The end of the demo: a table of figures, and the list of what went wrong."""

from examples.flights.pipelines import SparkResult
from examples.flights.tally import Tally


def failures(tally: Tally, spark: SparkResult) -> list[str]:
    """Return a sentence for each thing that went wrong; an empty list is a success."""
    found: list[str] = []
    if tally.killed is None:
        found.append("no broker was killed")
    if tally.refused:
        found.append(f"{len(tally.refused):,} rows were refused, the first: {tally.refused[0]}")
    for what, count in [
        ("sent", tally.sent),
        ("acknowledged", tally.acknowledged),
        ("delivered", tally.delivered),
    ]:
        if count != tally.rows:
            found.append(f"{count:,} of {tally.rows:,} rows were {what}")
    if tally.lost:
        found.append(f"{tally.lost:,} acknowledged rows are lost")
    if tally.out_of_order:
        found.append(f"{tally.out_of_order:,} rows were delivered out of order")
    for what, count in [("batch", spark.rows), ("stream", spark.totals.flights)]:
        if count < tally.rows:
            found.append(f"the {what} read {count:,} of {tally.rows:,} rows")
        if count > tally.rows:
            found.append(
                f"the {what} read {count - tally.rows:,} rows too many: they are stored twice"
            )
    return found + spark.differences + spark.totals.differences


def table(tally: Tally, spark: SparkResult) -> list[tuple[str, str]]:
    """Return the figures of the run, in the order in which they are shown."""
    totals = spark.totals
    return [
        ("sent", f"{tally.sent:,}"),
        ("stored", _stored(tally, spark)),
        ("acknowledged", f"{tally.acknowledged:,}"),
        ("delivered", f"{tally.delivered:,}"),
        ("lost", f"{tally.lost:,}"),
        ("out of order", f"{tally.out_of_order:,}"),
        (
            "delivered again",
            f"{tally.duplicated:,} (at-least-once: what the dead broker had not yet stored as "
            "acknowledged comes again)",
        ),
        (
            "pause at the kill",
            f"{tally.pause_s:.2f} s, the longest in which a partition acknowledged nothing",
        ),
        ("Spark, batch", f"{spark.rows:,} messages in {spark.batch_s:.1f} s"),
        (
            "Spark, stream",
            f"{totals.flights:,} messages aggregated to {totals.messages} in"
            f" {totals.seconds:.1f} s, each written once: {totals.micro_batches} micro-batches,"
            f" the owner of the target killed, {totals.restarts} restart from the checkpoint",
        ),
        ("Spark and pandas", "DIFFERENT" if spark.differences or totals.differences else "equal"),
    ]


def _stored(tally: Tally, spark: SparkResult) -> str:
    if spark.rows != tally.sent:
        return f"{spark.rows:,}"
    if not tally.repeated:
        return f"{spark.rows:,} = sent"
    return (
        f"{spark.rows:,} = sent; {tally.repeated:,} were sent again after the kill, and not stored"
        " again"
    )
