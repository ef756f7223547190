"""Arrow rows become the messages of batches, by columns; no row ever is a Python object.

All rows of an Arrow batch are encoded at once (`row_messages`).  Their messages are sorted by topic
and partition, which keeps their order within each partition, and cut into batches.  The messages
that do not fill a batch wait for the next rows of their partition.

A partition is chosen as by the producer of the Python client (`protocol.routing`): by the column
`partition`, else by the hash of the key, else in turns, about a batch of bytes to each partition.
"""

# pyright: basic, reportAttributeAccessIssue=false
# (the libraries underneath have no types)

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daybook.clients.python.limits import ProducerLimits
from daybook.clients.python.protocol.batching import Batch
from daybook.clients.python.protocol.routing import Router
from daybook.clients.spark.key_partitions import partitions_of_keys
from daybook.clients.spark.row_columns import RowColumns
from daybook.clients.spark.row_messages import HASH_END, RowMessages, offsets_and_data

BATCH_MESSAGES_MAX = ProducerLimits().batch_messages_max
BATCH_BYTES_MAX = ProducerLimits().batch_bytes_max


@dataclass(frozen=True, slots=True)
class Target:
    """A partition of a topic; 0 is the only one of a topic without partitions."""

    topic: str
    partition: int


@dataclass(slots=True)
class _Waiting:
    """The messages of a partition that do not fill a batch yet."""

    parts: list[bytes] = field(default_factory=list[bytes])  # each has one message or more
    count: int = 0
    size: int = 0
    key: tuple[str | None, bool] = (None, False)  # the first message's: the text, is it base64

    def add(self, part: memoryview, count: int, key: tuple[str | None, bool]) -> None:
        """Add neighbouring messages; `key` is the first one's.

        They are copied: otherwise a few messages that wait would keep a whole Arrow batch.
        """
        if not self.count:
            self.key = key
        self.parts.append(bytes(part))
        self.count += count
        self.size += len(part)

    def take(self) -> Batch:
        """Return all messages as a batch; none waits after that."""
        text, is_base64 = self.key
        batch = Batch(b"".join(self.parts), self.count, 0, self.count - 1, text, is_base64)
        self.parts, self.count, self.size = [], 0, 0
        return batch


class RowEncoder:
    """One instance per task.  It is told the number of partitions of each topic that it meets."""

    def __init__(
        self,
        columns: RowColumns,
        topic: str | None,
        first_turn: int = 0,
        *,
        hashes_rows: bool = False,
    ) -> None:
        self._columns = columns
        self._topic = topic
        self._first_turn = first_turn
        self._routers: dict[str, Router] = {}
        self._turn_bytes: dict[str, int] = {}  # messages without a key, in the partition's turn
        self._waiting: dict[Target, _Waiting] = {}
        self._hashes_rows = hashes_rows
        self.rows = 0
        self.hash = 0  # the sum of a hash of each row modulo 2**64, in whatever order they come

    def unknown_topics(self, rows: pa.RecordBatch) -> list[str]:
        """Return the topics of these rows that `add_topic` has not named yet."""
        names: list[Any] = [self._topic]
        if self._columns.topic is not None:
            names = rows.column(self._columns.topic).unique().to_pylist()
            if None in names:
                raise ValueError("the column 'topic' of a row is null, and there is no such option")
        return [name for name in names if name not in self._routers]

    def add_topic(self, topic: str, partitions: int) -> None:
        """Note the number of partitions of a topic; 0 for a topic without partitions."""
        self._routers[topic] = Router(max(1, partitions), first=self._first_turn)
        self._turn_bytes[topic] = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[tuple[Target, Batch]]:
        """Encode rows, and yield the batches that are full.  All their topics must be known."""
        if not rows.num_rows:
            return
        messages = RowMessages.encode(self._columns, rows)
        self.rows += rows.num_rows
        if self._hashes_rows:
            self.hash = (self.hash + messages.hash_sum()) % HASH_END
        for topic, of_topic in self._by_topic(rows):
            partitions = self._partitions(topic, rows, messages, of_topic)
            for partition, selected in _split(of_topic, partitions):
                target = Target(topic, partition)
                waiting = self._waiting.setdefault(target, _Waiting())
                for batch in _cut(messages, selected, waiting):
                    yield target, batch

    def rest(self) -> Iterator[tuple[Target, Batch]]:
        """Yield the batches that are not full."""
        for target, waiting in self._waiting.items():
            if waiting.count:
                yield target, waiting.take()

    # -- the partition of each row; `selected` has the numbers of some rows

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
        """Yield each topic and the numbers of its rows."""
        every_row = pa.array(np.arange(rows.num_rows))
        if self._columns.topic is None:
            assert self._topic is not None
            yield self._topic, every_row
            return
        found = rows.column(self._columns.topic).dictionary_encode()
        names = found.dictionary.to_pylist()
        for index, selected in _split(every_row, found.indices):
            yield names[index], selected

    def _partitions(
        self, topic: str, rows: pa.RecordBatch, messages: RowMessages, selected: pa.Array
    ) -> pa.Array:
        """Return the partition of each selected row."""
        router, count = self._routers[topic], len(selected)
        chosen = pa.nulls(count, pa.int32())
        if self._columns.partition is not None:
            chosen = _of(rows.column(self._columns.partition), selected)
            bounds = pc.min_max(chosen).as_py()
            if bounds["min"] is not None:
                for partition in bounds.values():
                    if not 0 <= partition < router.partitions:
                        raise ValueError(
                            f"the column 'partition' of a row is {partition}, and {topic} has the"
                            f" partitions 0 to {router.partitions - 1}"
                        )
        elif router.partitions == 1:
            return pa.repeat(pa.scalar(0, pa.int32()), count)
        if messages.keys is not None and chosen.null_count:
            keys = _of(messages.keys.plain, selected)
            chosen = pc.coalesce(chosen, partitions_of_keys(keys, router))
        if chosen.null_count:
            sizes = _of(messages.value_sizes, selected)
            chosen = pc.coalesce(chosen, self._turns(topic, router, sizes, chosen))
        return chosen

    def _turns(self, topic: str, router: Router, sizes: pa.Array, chosen: pa.Array) -> pa.Array:
        """Return the partition for each row if it had to take its turn."""
        sizes = pc.add(sizes, BATCH_BYTES_MAX // 2000)
        # Rows that have a partition take no turn from the others.
        ends = pc.cumulative_sum(pc.if_else(chosen.is_null(), sizes, 0))
        ends = pc.add(ends, self._turn_bytes[topic])
        turns = pc.add(pc.divide(ends, BATCH_BYTES_MAX), router.turn)
        whole = pc.multiply(pc.divide(turns, router.partitions), router.partitions)
        found = pc.cast(pc.subtract(turns, whole), pa.int32())
        self._turn_bytes[topic] = ends[-1].as_py() % BATCH_BYTES_MAX
        router.turn = found[-1].as_py()
        return found


def _cut(messages: RowMessages, selected: pa.Array, waiting: _Waiting) -> Iterator[Batch]:
    """Yield the full batches of a partition.  The messages behind them wait."""
    bounds, data = offsets_and_data(_of(messages.encoded, selected))
    first, end = 0, len(selected)
    while True:
        size = waiting.size + int(bounds[end] - bounds[first])
        count = waiting.count + end - first
        is_full = count >= BATCH_MESSAGES_MAX or size >= BATCH_BYTES_MAX
        last = end
        if is_full:
            fits = bounds[first] + BATCH_BYTES_MAX - waiting.size
            last = int(np.searchsorted(bounds, fits, side="right")) - 1
            last = min(last, first + BATCH_MESSAGES_MAX - waiting.count)
            if not waiting.count:
                last = max(last, first + 1)  # A large message is alone in its batch.
        if last > first:
            part = data[bounds[first] : bounds[last]]
            waiting.add(part, last - first, messages.key(selected[first].as_py()))
        if not is_full:
            return
        yield waiting.take()
        first = last


def _split(selected: pa.Array, numbers: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Yield the selected rows of each number, in their order."""
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] == bounds["max"]:
        yield bounds["min"], selected
        return
    order = pc.sort_indices(numbers)  # it is stable
    runs = pc.run_end_encode(numbers.take(order))
    ordered, first = selected.take(order), 0
    for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield number, ordered.slice(first, end - first)
        first = end


def _of(column: pa.Array, selected: pa.Array) -> pa.Array:
    """Return the column of the selected rows."""
    return column if len(selected) == len(column) else column.take(selected)
