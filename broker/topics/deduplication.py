"""Deduplication of one topic: what is known is restored when the topic is loaded, and kept stored.

    deduplication = await load(name, log, logs, limits)     before the topic takes any message
    deduplication.run                                       stores snapshots; the topic runs it
    deduplication.store()                                   the last snapshot, at an orderly close

A snapshot is a record of the cursor `pulsar.dedup`, as Pulsar keeps it: the cursor stands at the
last entry that the snapshot contains, and its properties are the ids.  Both change in one record.
The next owner restores the last snapshot and replays the entries behind it, so nothing is lost with
a broker.  Snapshots are frequent enough to keep that replay short.

If there is no snapshot, the log is replayed from its first entry.  This is the case when
deduplication was just switched on, or when the cursor is lost.  A log with more than
`replay_bytes_max` is replayed from a later entry on, and the repeats of messages before that one
are not found.
"""

import logging
from collections.abc import Callable

import trio

from daybook.broker.limits import DeduplicationLimits
from daybook.broker.protocol.deduplication import (
    ID_MAX,
    Chunk,
    DeduplicationState,
    EntryIds,
    Verdict,
    shape_of,
)
from daybook.broker.topics.topic_log import TopicCursor, TopicLog, TopicLogs, translated
from daybook.managed_ledger.position import Position
from daybook.wire.batch import (
    highest_id,
    is_batch,
    messages_counted,
    parse_metadata,
    split_broker_metadata,
)
from daybook.wire.compression import decompress
from daybook.wire.errors import WireError
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

CURSOR = "pulsar.dedup"
_READ_ENTRIES = 1_000
_READ_BYTES = 4 << 20
# A batch is opened to read its last id only if it has few messages, absolutely and for its bytes:
# a few bytes can hold hundreds of thousands of empty messages.
_OPENED_MESSAGES_MAX = 4_096  # C++ clients put 1,000 into a batch by default, in 128 KiB.
_OPENED_MESSAGES_ALWAYS = 64
_OPENED_MESSAGES_PER_BYTE = 2
_UNCOMPRESSED_BYTES_MAX = 8 << 20
_UNCOMPRESSED_BYTES_ALWAYS = 256 << 10
_UNCOMPRESSED_RATIO_MAX = 64
_REPLAYED_AT_ONCE = 16  # entries, before other tasks have their turn
_log = logging.getLogger(__name__)


class Deduplication:
    """The knowledge of one loaded topic about the messages that it has.

    `appended`, `confirmed` and `refused` have to be called in the order in which the log takes and
    confirms entries.
    """

    def __init__(
        self, state: DeduplicationState, cursor: TopicCursor, limits: DeduplicationLimits
    ) -> None:
        self.repeats = 0  # entries that were not appended, because the topic has them
        self.first_offset = 0  # Repeats of messages before this one are not found.
        self._state = state
        self._cursor = cursor
        self._limits = limits
        self._position = cursor.mark_delete  # the last entry that `_state` contains
        self._entries = 0  # confirmed behind the last snapshot
        self._entries_max = limits.snapshot_entries
        self._bytes = 0  # appended behind the last snapshot
        self._begun = trio.Event()  # there is something to be stored
        self._due = trio.Event()  # there is so much that it cannot wait
        self._settled: dict[str, trio.Event] = {}  # by producer, while a task waits for it

    @property
    def names(self) -> int:
        return len(self._state)

    @property
    def forgotten(self) -> int:
        """The number of names that were forgotten because the topic has too many."""
        return self._state.forgotten

    # -- producers

    def joined(self, name: str) -> None:
        self._state.joined(name, trio.current_time())

    def left(self, name: str) -> None:
        self._state.left(name, trio.current_time())

    async def last_stored(self, name: str) -> int | None:
        """Return the sequence id of the last stored message of a producer; -1 if there is none.

        This waits until no entry of it is pending.  Return None if that takes too long.
        """
        with trio.move_on_after(self._limits.settle_s):
            while self._state.is_pending(name):
                await self._settled.setdefault(name, trio.Event()).wait()
        return None if self._state.is_pending(name) else self._state.last_seen(name)

    # -- entries

    def judge(self, ids: EntryIds) -> Verdict:
        return self._state.judge(ids)

    def appended(self, ids: EntryIds, size: int) -> None:
        self._state.appended(ids)
        self._bytes += size

    def refused(self) -> None:
        self._state.refused()

    def confirmed(self, position: Position) -> None:
        name = self._state.confirmed()
        self._position = position
        if not self._entries:
            self._begun.set()
        self._entries += 1
        if self._entries >= self._entries_max or self._bytes >= self._limits.snapshot_bytes:
            self._due.set()
        if self._settled and not self._state.is_pending(name):
            settled = self._settled.pop(name, None)
            if settled is not None:
                settled.set()

    # -- snapshots

    def replayed(self, position: Position, entries: int, size: int) -> None:
        """Note that entries behind the last snapshot were replayed, up to a position."""
        self._position = position
        self._entries, self._bytes = entries, size
        if entries:
            self._begun.set()

    async def run(self) -> None:
        """Store snapshots for as long as the topic is loaded."""
        while True:
            await self._begun.wait()
            with trio.move_on_after(self._limits.snapshot_s):
                await self._due.wait()
            self.store()

    def store(self) -> None:
        """Store a snapshot.  The cursor writes it in its own time, or when the log is closed."""
        self._state.forget(trio.current_time())
        self._entries = self._bytes = 0
        # With many names a snapshot is large, and is written less often.
        self._entries_max = max(self._limits.snapshot_entries, self.names)
        self._begun, self._due = trio.Event(), trio.Event()
        self._cursor.advance(self._position, self._state.snapshot())

    async def flush(self) -> None:
        """Store a snapshot, and return when it is durable."""
        self.store()
        await self._cursor.flush()


# -- loading


async def load(
    name: TopicName,
    log: TopicLog,
    logs: TopicLogs,
    limits: DeduplicationLimits,
    on_progress: Callable[[], None],
) -> Deduplication:
    """Return the deduplication of a topic whose log was just opened.

    `on_progress` is called now and then, because a long log may take minutes.  Raise
    UnavailableError if the log cannot be read now.
    """
    state = DeduplicationState(
        names_max=limits.names_max,
        names_bytes_max=limits.names_bytes_max,
        generated_s=limits.generated_s,
    )
    with translated(name):
        cursor = log.cursors.get(CURSOR)
        if cursor is None:
            first, start = await _replay_start(name, log, logs, limits.replay_bytes_max)
            await _replay(log, start, state, on_progress)
            # Until the snapshot is stored, the cursor says that everything has to be replayed.
            cursor = await log.open_cursor(CURSOR, initial=start)
            cursor.advance(log.last_confirmed, state.snapshot())
            deduplication = Deduplication(state, cursor, limits)
            deduplication.first_offset = first
            return deduplication
        state.restore(cursor.properties, trio.current_time())
        entries, size = await _replay(log, cursor.mark_delete, state, on_progress)
        deduplication = Deduplication(state, cursor, limits)
        deduplication.replayed(log.last_confirmed, entries, size)
        return deduplication


async def remove(name: TopicName, log: TopicLog) -> None:
    """Delete the stored state, because deduplication is switched off for this topic.

    The cursor would otherwise keep every ledger from here on.
    """
    if CURSOR in log.cursors:
        with translated(name):
            await log.delete_cursor(CURSOR)


async def _replay(
    log: TopicLog,
    behind: Position,
    state: DeduplicationState,
    on_progress: Callable[[], None],
) -> tuple[int, int]:
    """Fold in all entries behind a position; return how many there were, and their bytes."""
    count = size = 0
    position = log.next_position(behind)
    while position <= log.last_confirmed:
        entries = await log.read(position, max_entries=_READ_ENTRIES, max_bytes=_READ_BYTES)
        if not entries:
            break
        for index, entry in enumerate(entries, 1):
            if not index % _REPLAYED_AT_ONCE:
                await trio.lowlevel.checkpoint()
            ids = _stored_ids(entry.data)
            if ids is not None:
                state.replay(ids, trio.current_time())
            size += len(entry.data)
        count += len(entries)
        state.forget(trio.current_time())
        position = log.next_position(entries[-1].position)
        on_progress()
    return count, size


async def _replay_start(
    name: TopicName, log: TopicLog, logs: TopicLogs, bytes_max: int
) -> tuple[int, Position]:
    """Return where to begin so that at most so many bytes follow; they are estimated.

    The result is an offset, 0 for the whole log, and the position in front of it.
    """
    if log.behind(log.before_first).bytes <= bytes_max:
        return 0, log.before_first
    # Find the first offset that is near enough to the end.
    low, high = await logs.first_offset(log), log.confirmed_offset
    while low < high:
        middle = (low + high) // 2
        position = log.previous_position(await logs.position_of_offset(log, middle))
        if log.behind(position).bytes <= bytes_max:
            high = middle
        else:
            low = middle + 1
    _log.warning(
        "%s has no stored deduplication state and more than %s bytes, so repeats of messages before"
        " the offset %s are not found",
        name,
        bytes_max,
        low,
    )
    return low, log.previous_position(await logs.position_of_offset(log, low))


# -- the ids of an entry


def _stored_ids(data: memoryview) -> EntryIds | None:
    """Return the ids of a stored entry, None if it has none that can be read."""
    try:
        metadata, body = parse_metadata(split_broker_metadata(data)[2])
    except WireError:
        return None
    ids = entry_ids(metadata, body)
    return ids if 0 <= ids.first <= ids.last <= ID_MAX else None


def entry_ids(metadata: pb.MessageMetadata, body: memoryview) -> EntryIds:
    """Return the ids of an entry.  They are as the client sent them, and may be out of order."""
    first = metadata.sequence_id
    if is_batch(metadata):
        last = metadata.highest_sequence_id or _last_of_batch(metadata, body)
        return EntryIds(metadata.producer_name, first, last)
    chunks = metadata.num_chunks_from_msg
    if chunks > 1:
        number = metadata.chunk_id
        shape = shape_of(first, metadata.uuid, chunks, metadata.total_chunk_msg_size, len(body))
        chunk = Chunk(shape, number, completes=number == chunks - 1)
        return EntryIds(metadata.producer_name, first, first, chunk)
    # Java names a highest id for single messages, too.
    return EntryIds(metadata.producer_name, first, max(first, metadata.highest_sequence_id))


def _last_of_batch(metadata: pb.MessageMetadata, body: memoryview) -> int:
    """Return the last id of a batch whose client names only the first, as C++ clients do.

    The messages name their own ids.  If they cannot be read, or only with more work than their
    bytes are worth, the first id has to do: a repeat of the whole batch is found by it, and other
    batches have other ids.  No higher id can be guessed: a later message could be taken for a
    repeat, and would be lost.
    """
    first, count = metadata.sequence_id, messages_counted(metadata)
    if metadata.encryption_keys or count > _opened_messages_max(len(body)):
        return first
    bytes_max = max(_UNCOMPRESSED_BYTES_ALWAYS, _UNCOMPRESSED_RATIO_MAX * len(body))
    bytes_max = min(bytes_max, _UNCOMPRESSED_BYTES_MAX)
    try:
        plain = decompress(metadata.compression, body, metadata.uncompressed_size, bytes_max)
        return highest_id(bytes(plain), count, first)
    except WireError:
        return first


def _opened_messages_max(body_bytes: int) -> int:
    """Return how many messages a batch of so many bytes may have to be opened."""
    worth = max(_OPENED_MESSAGES_ALWAYS, _OPENED_MESSAGES_PER_BYTE * body_bytes)
    return min(worth, _OPENED_MESSAGES_MAX)
