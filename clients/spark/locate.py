"""Ask the owners of partitions for their sealed ledgers, and plan the tasks over them.

The driver asks once for each partition when it plans a query, or a trigger with much to read.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Iterable

from daybook.clients.python.reader import TopicLedgers
from daybook.clients.spark import worker
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.read import partition_topic
from daybook.clients.spark.sealed import with_ledgers

OFFSETS_MIN = 10_000
"""With `read=auto`, a task with fewer offsets is left to the broker: the newest messages, which a
stream reads in each trigger, are seldom in a sealed ledger."""


def locate(tasks: Iterable[ReadTask]) -> list[ReadTask]:
    """Return tasks for the same offsets that know the sealed ledgers, cut where these are large.

    With `read=brokers` nobody is asked.
    """
    known: dict[str, TopicLedgers] = {}
    found: list[ReadTask] = []
    for task in tasks:
        if task.read_from == "brokers" or (
            task.read_from == "auto" and len(task.part) < OFFSETS_MIN
        ):
            found.append(task)
            continue
        client = worker.client_of(task.service_url)
        topic = task.stored_in or partition_topic(client, task.topic, task.part.partition)
        if topic not in known:
            (known[topic],) = client.ledgers(topic)
        found += with_ledgers(task, known[topic])
    return found
