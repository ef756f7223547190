"""Run a Spark task: read its range of offsets and return it as Arrow batches.

The messages of sealed ledgers come straight from the bookies, if the driver has sent the ledgers
with the task; those of the ledger that is open come from the broker that owns the partition.  The
driver only asks for offsets and ledgers, and never receives a message.

If a ledger cannot be read, the task asks the owner of the partition again.  Offsets that the owner
no longer retains are data loss.  A ledger that it still has is no gap: with `read=auto` the broker
is asked for the messages if ZooKeeper or the bookies do not answer, and otherwise the task fails.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Iterator

import pyarrow as pa

from daybook.bookie.errors import LedgerError, ReadUnknownError, Remedy
from daybook.clients.ledgers.errors import MetadataDeniedError
from daybook.clients.python import blocking
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.message_id import Offset
from daybook.clients.python.reader import SealedLedger
from daybook.clients.spark import worker
from daybook.clients.spark.columns import arrow_schema
from daybook.clients.spark.direct import SealedLedgerReader
from daybook.clients.spark.entry import StoredEntry
from daybook.clients.spark.offsets import is_another_topic
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.typed_rows import TypedRows
from daybook.clients.spark.walk import RangeWalk
from daybook.wire.messages.bookie import Status
from daybook.wire.topics import TopicName

QUEUE_MESSAGES = 20_000  # The broker may send so many ahead.

ARROW_SCHEMA = arrow_schema()


class LedgerUnreadableError(Exception):
    """A ledger that the topic has cannot be read now: nothing is left out for that."""


def partition_topic(client: blocking.Client, topic: str, partition: int) -> str:
    """Return the full name of the topic of one partition: the topic itself if it has none."""
    name = topic
    if client.partitions(topic, create=False):
        name = f"{topic}-partition-{partition}"
    return TopicName.parse(name).full


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Read the messages of the range, in order, as Arrow batches.

    Raise DataLossError if an offset of the range no longer exists, UnreadableMessageError for a
    message that cannot be read, and LedgerUnreadableError.
    """
    client = worker.client_of(task.service_url, task.patience_s, task.tls, task.credentials)
    try:
        yield from _TaskReader(task, client).run()
    except (BrokerError, TimeoutError):
        worker.discard(client)
        raise


class _TaskReader:
    """Reads the range of one task."""

    def __init__(self, task: ReadTask, client: blocking.Client) -> None:
        self._task = task
        self._client = client
        self._topic = task.stored_in or partition_topic(client, task.topic, task.part.partition)
        self._walk = RangeWalk(task, self._topic, self._look_back)
        self._typed = self._typed_rows()

    def run(self) -> Iterator[pa.RecordBatch]:
        walk = self._walk
        for entry in self._entries():
            walk.take(entry)
            if walk.rows.full:
                yield self._take()
            if walk.done:
                break
        if walk.rows.rows:
            yield self._take()

    def _take(self) -> pa.RecordBatch:
        raw = self._walk.rows.take()
        return raw if self._typed is None else self._typed.typed(raw)

    def _typed_rows(self) -> TypedRows | None:
        if self._task.typed is None:
            return None
        topic = TopicName.parse(self._topic).base.full
        where = f"{self._topic}, partition {self._task.part.partition}"
        return TypedRows(
            self._task.typed, topic, where, lambda version: self._client.schema(topic, version).info
        )

    def _entries(self) -> Iterator[StoredEntry]:
        """Return the entries from the expected offset on, which the walk moves meanwhile."""
        walk = self._walk
        if self._task.ledgers is not None:
            url = self._task.ledgers.url
            for ledger in self._task.ledgers.sealed:
                if ledger.first <= walk.expected < ledger.next and not walk.done:
                    yield from self._from_bookies(url, ledger)
        if not walk.done:
            yield from self._from_broker()

    # -- from bookies

    def _from_bookies(self, url: str, ledger: SealedLedger) -> Iterator[StoredEntry]:
        """Return the entries of a ledger; none or a part of them if the broker is to be asked."""
        may_ask_broker = self._task.read_from == "auto"
        if may_ask_broker and worker.are_away(url):
            return
        client = None
        try:
            client = worker.ledgers_of(url, self._task.zookeeper, self._task.bookies)
            yield from SealedLedgerReader(client, self._topic, ledger).read_from(
                self._walk.expected
            )
        except (LedgerError, TimeoutError) as error:
            self._check_retained(ledger, error)
            if self._walk.expected >= ledger.next or self._walk.done:
                return
            transient = isinstance(error, TimeoutError) or error.remedy is Remedy.RETRY
            if transient and client is not None:
                worker.discard(client)
            # The broker has the rights that this worker lacks.
            denied = isinstance(error, MetadataDeniedError)
            if not ((transient or denied) and may_ask_broker):
                raise LedgerUnreadableError(
                    f"{self._topic}: the messages from offset {self._walk.expected} on are in"
                    f" ledger {ledger.ledger_id}, which cannot be read: {error}{_hint(error)}"
                ) from error
            worker.note_away(url, error)

    def _check_retained(self, ledger: SealedLedger, error: Exception) -> None:
        """Ask the owner again for a ledger that cannot be read.

        If it was trimmed, move the walk behind what was lost, or raise DataLossError.
        """
        (now,) = self._client.ledgers(self._topic)
        if is_another_topic(self._task.created, now.held.created):
            self._walk.lose(self._task.part.end)  # These offsets are other messages now.
            return
        if any(each.ledger_id == ledger.ledger_id for each in now.sealed):
            return
        if now.held.first <= self._walk.expected:
            raise LedgerUnreadableError(
                f"{self._topic}: ledger {ledger.ledger_id} is not one of its ledgers any more, but"
                f" offset {self._walk.expected} is retained: start the query again, because the"
                " topic may have been created again"
            ) from error
        self._walk.lose(now.held.first)

    # -- from the broker

    def _from_broker(self) -> Iterator[StoredEntry]:
        walk, topic = self._walk, self._topic
        # The driver checked the range when it planned the query; trimming may have passed it since.
        held = self._client.offsets(topic)
        if is_another_topic(self._task.created, held.created):
            walk.lose(self._task.part.end)  # These offsets are other messages now.
        elif held.first > walk.expected:
            walk.lose(held.first)
        if walk.done:
            return
        queue_size = min(QUEUE_MESSAGES, self._task.part.end - walk.expected)
        with self._client.create_reader(
            topic, start=Offset(walk.expected), receiver_queue_size=queue_size
        ) as reader:
            while True:
                try:
                    got = reader.receive_entries(self._task.patience_s)
                except TimeoutError:
                    got = []
                if not got:
                    raise TimeoutError(
                        f"{topic}: no message arrived from offset {walk.expected} on for"
                        f" {self._task.patience_s:g} s"
                    )
                for each in got:
                    yield StoredEntry.of(each.ledger_id, each.entry_id, each.data)

    def _look_back(self, offset: int, until: tuple[int, int]) -> Iterator[StoredEntry]:
        """Return the entries from an offset on, or the first one, up to the one at a position."""
        with self._client.create_reader(self._topic, start=Offset(offset)) as reader:
            while got := reader.receive_entries(self._task.patience_s):
                for each in got:
                    entry = StoredEntry.of(each.ledger_id, each.entry_id, each.data)
                    if entry.position > until:
                        return
                    yield entry
                    if entry.position == until:
                        return


def _hint(error: Exception) -> str:
    """Return what helps if bookies refuse this worker."""
    if isinstance(error, ReadUnknownError) and Status.UNAUTHORIZED.name in str(error):
        return (
            " (the bookie demands TLS or credentials of its clients: set the options bookie.tls, or"
            " bookie.user and bookie.password.file, or read=brokers)"
        )
    return ""
