"""Ask the owners of partitions for their sealed ledgers, and plan the tasks over them.

The driver asks once for each partition when it plans a query, or a trigger with much to read.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Iterable

from daybook.clients.python.errors import BrokerError
from daybook.clients.python.reader import TopicLedgers
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.sealed import with_ledgers

OFFSETS_MIN = 10_000
"""With `read=auto`, a task with fewer offsets is left to the broker: the newest messages, which a
stream reads in each trigger, are seldom in a sealed ledger."""


def locate(tasks: Iterable[ReadTask], ask: Callable[[str], TopicLedgers]) -> list[ReadTask]:
    """Return tasks for the same offsets that know the sealed ledgers, cut where these are large.

    `ask` asks the owner of a topic, or of a partition, for them.  With `read=brokers` nobody is
    asked.  With `read=auto` an owner that does not answer leaves its messages to tasks that read
    from brokers, and wait for them.  Raise BrokerError with `read=bookies`.
    """
    known: dict[str, TopicLedgers] = {}
    found: list[ReadTask] = []
    for task in tasks:
        if task.read_from == "brokers" or (
            task.read_from == "auto" and len(task.part) < OFFSETS_MIN
        ):
            found.append(task)
            continue
        if task.stored_in not in known:
            try:
                known[task.stored_in] = ask(task.stored_in)
            except BrokerError:
                if task.read_from == "bookies":
                    raise
                found.append(task)
                continue
        found += with_ledgers(task, known[task.stored_in])
    return found
