"""Walk through the entries of a range: turn them into rows, and let no offset go missing.

    walk = RangeWalk(task, topic, look_back)
    for entry in entries:            # in order; some may begin before the range, or come twice
        walk.take(entry)             # raises DataLossError for a gap
        if walk.rows.full: ...

Each entry says the offset of its last message and how many it holds, so a gap shows at once.

A message in chunks has one row, at the offset of its last chunk, as in the Python client.  The
other chunks have none.  The first chunks may lie before the range: `look_back` reads them again.

Messages that are encrypted, damaged, or too large when decompressed cannot be read.  The option
`onUnreadable` decides: the query fails (`fail`), or each of them has a row without content
(`null`), or none (`skip`).

Rows for which a condition of the task fails are left out: see `filters`.  Messages without a row
count as read, as do those that are skipped.
"""

# pyright: basic
# (the libraries underneath have no types)

import logging
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import NoReturn

from daybook.clients.python.protocol.chunks import Chunks
from daybook.clients.spark.columns import Place, RowBuilder, shown_time_ms
from daybook.clients.spark.entry import (
    DECOMPRESSED_MAX,
    Head,
    StoredEntry,
    read_head,
    unpack,
)
from daybook.clients.spark.filters import wanted_keys, wanted_times
from daybook.clients.spark.offsets import DataLossError
from daybook.clients.spark.options import ReadTask
from daybook.wire.errors import MalformedError, WireError
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

_log = logging.getLogger(__name__)
_CHUNKED_MAX = (
    100  # messages in chunks that are not whole yet; of older ones the chunks are read again
)
_LOOK_BACK = 64  # messages before a chunk that are read first; then eight times as many, and so on
_LOOK_BACK_MAX = 1 << 20


class UnreadableMessageError(Exception):
    """A message of the query cannot be read."""


LookBack = Callable[[int, tuple[int, int]], Iterable[StoredEntry]]
"""Returns the entries from an offset on, up to the entry at a position."""


class _Repeat(Enum):
    """The last chunk of a message came again, after the message was whole."""

    REPEAT = auto()


class RangeWalk:
    """The walk of one task.  `expected` is the offset that comes next."""

    def __init__(self, task: ReadTask, topic: str, look_back: LookBack) -> None:
        self.expected = task.part.start
        self._times = wanted_times(task.conditions)
        self.rows = RowBuilder(
            task.columns,
            task.key_type,
            task.topic,
            task.part.partition,
            wanted_keys(task.conditions),
        )
        self._task = task
        self._end = task.part.end
        self._topic = topic
        self._id_partition = TopicName.parse(topic).partition
        self._look_back = look_back
        self._chunks = Chunks(DECOMPRESSED_MAX, _CHUNKED_MAX)
        self._whole: set[str] = set()  # messages in chunks that have their row
        self._warned = False

    @property
    def done(self) -> bool:
        """True if no offset of the range is left."""
        return self.expected >= self._end

    def lose(self, until: int) -> None:
        """Note that the offsets from the expected one up to `until` are no longer retained."""
        if self._task.fail_on_data_loss:
            raise DataLossError(
                f"{self._topic}: the offsets {self.expected} to {until} are no longer retained; set"
                " failOnDataLoss=false to continue without them"
            )
        self.expected = min(until, self._end)

    def take(self, entry: StoredEntry) -> None:
        """Take the next entry.  Raise DataLossError or UnreadableMessageError."""
        last = entry.last_offset
        if last is None:
            self._refuse_unnumbered(entry)
        if last < self.expected:
            return
        try:
            head = read_head(entry.payload)
        except WireError as error:
            # The number of its messages is not known: they are all that are missing up to its end.
            self._unreadable(str(error), entry, None, self.expected, last)
        else:
            first = last - head.messages + 1
            if first > self.expected:
                self.lose(first)
            if not self.done:
                self._take(head, entry, first, last)
        self.expected = min(max(self.expected, last + 1), self._end)

    def _take(self, head: Head, entry: StoredEntry, first: int, last: int) -> None:
        if head.is_chunk:
            self._take_chunk(head, entry, first, last)
            return
        if not self._is_in_time(head.metadata):
            return  # It is not even decompressed.
        low, high = self.expected - first, min(last + 1, self._end) - first
        try:
            self.rows.add(unpack(head.metadata, head.body), self._place(entry), first, low, high)
        except WireError as error:
            self._unreadable(str(error), entry, head, first, last)

    def _is_in_time(self, metadata: pb.MessageMetadata) -> bool:
        """Return False if Spark would drop all rows of an entry because of its time."""
        if not self._times:
            return True
        time_ms = shown_time_ms(metadata.publish_time)
        time_us = None if time_ms is None else time_ms * 1000
        return all(each.holds(time_us) for each in self._times)

    def _refuse_unnumbered(self, entry: StoredEntry) -> NoReturn:
        raise UnreadableMessageError(
            f"{self._topic}: the entry {entry.ledger_id}:{entry.entry_id} behind offset"
            f" {self.expected - 1} states no offset, because a Pulsar broker wrote it: read the"
            " topic with read=bookies, which counts its messages"
        )

    def _place(self, entry: StoredEntry) -> Place:
        return Place(entry.ledger_id, entry.entry_id, self._id_partition)

    def _unreadable(
        self, why: str, entry: StoredEntry, head: Head | None, first: int, last: int
    ) -> None:
        """Treat the messages of the entry that are in the range as the query wants it."""
        low, high = max(self.expected, first), min(last + 1, self._end)
        if low >= high:
            return
        which = f"the message at offset {low}"
        if high - low > 1:
            which = f"the messages at the offsets {low} to {high - 1}"
        text = (
            f"{self._topic}, partition {self._task.part.partition}: {which} cannot be read: {why}"
        )
        match self._task.on_unreadable:
            case "fail":
                raise UnreadableMessageError(
                    f"{text}; set onUnreadable=skip to continue without such messages, or"
                    " onUnreadable=null for rows without content"
                )
            case "null":
                metadata = None if head is None else head.metadata
                self.rows.add_nulls(metadata, self._place(entry), first, low - first, high - first)
            case "skip":
                if not self._warned:
                    self._warned = True
                    _log.warning("%s; it is skipped, like all others (onUnreadable=skip)", text)

    # -- messages in chunks

    def _take_chunk(self, head: Head, entry: StoredEntry, first: int, last: int) -> None:
        metadata = head.metadata
        is_last = metadata.chunk_id == metadata.num_chunks_from_msg - 1
        try:
            _check_chunk(head)
            body = _add(self._chunks, head, entry)
            self._chunks.take_again()  # Nothing comes again: what is missing is looked for.
            self._chunks.take_dropped()
            if not is_last:
                return
            found = self._joined_before(head, entry, first) if body is None else body
            if isinstance(found, _Repeat):
                return
            if self._is_in_time(metadata):
                self.rows.add(unpack(metadata, memoryview(found)), self._place(entry), first, 0, 1)
            self._whole.add(metadata.uuid)
        except WireError as error:
            self._unreadable(str(error), entry, head, first, last)

    def _joined_before(self, head: Head, entry: StoredEntry, offset: int) -> bytes | _Repeat:
        """Return a message of which the last chunk is here, and earlier ones are not.

        Raise MalformedError if it cannot be joined.
        """
        uuid = head.metadata.uuid
        if uuid in self._whole:
            return _Repeat.REPEAT
        distance = max(_LOOK_BACK, head.metadata.num_chunks_from_msg)
        while True:
            start = max(0, offset - distance)
            begun, whole = False, False
            chunks = Chunks(DECOMPRESSED_MAX, 1)
            for each in self._look_back(start, entry.position):
                try:
                    chunk = read_head(each.payload)
                except WireError:
                    continue
                if chunk.metadata.uuid != uuid or not chunk.is_chunk:
                    continue
                begun = begun or chunk.metadata.chunk_id == 0
                body = _add(chunks, chunk, each)
                if body is not None and each.position == entry.position:
                    return body
                whole = whole or body is not None
            if whole:
                return _Repeat.REPEAT
            if begun or start == 0 or distance >= _LOOK_BACK_MAX:
                raise MalformedError("other chunks of it are missing")
            distance *= 8


def _check_chunk(head: Head) -> None:
    metadata = head.metadata
    count, total = metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
    if not 0 <= metadata.chunk_id < count or total > DECOMPRESSED_MAX:
        raise MalformedError(
            f"chunk {metadata.chunk_id} of {count}, of a message of {total} bytes, cannot be"
            f" joined: messages in chunks may have {DECOMPRESSED_MAX} bytes"
        )


def _add(chunks: Chunks, head: Head, entry: StoredEntry) -> bytes | None:
    """Add a chunk; return the body of the message if it is whole now."""
    metadata = head.metadata
    joined = chunks.add(
        metadata.uuid,
        metadata.chunk_id,
        metadata.num_chunks_from_msg,
        entry.position,
        bytes(head.body),
    )
    return None if joined is None else joined.body
