"""What travels from Spark's driver to a worker: one task of a query."""

from dataclasses import dataclass

from daybook.clients.spark.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class ReadTask:
    """All that a task needs to know."""

    service_url: str
    topic: str
    part: OffsetRange
    fail_on_data_loss: bool
