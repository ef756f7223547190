"""SEAM: the log under a topic, and where logs come from.

`managed_ledger.ManagedLedger` is such a log; tests have one in memory.  Its docstring has the
promises: appends are confirmed in order, `done` is called in the trio thread, and an append that
ends with FencedError is *in doubt*.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from daybook.bookie.errors import LedgerError
from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.behind import Behind, EntryStart
from daybook.managed_ledger.compacted import CompactedReader, CompactedWriter
from daybook.managed_ledger.entry_sizes import EntrySizes
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.offsets import LedgerOffsets
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.reading import LogEntry
from daybook.managed_ledger.sinks.progress import Progress
from daybook.managed_ledger.traffic import TrafficMeter
from daybook.wire.metadata.store import MetadataError
from daybook.wire.topics import TopicName
from daybook.wire.transport import Buffer

Done: TypeAlias = Callable[[Position | None, Exception | None], None]
"""Called once for an append: with the position of the entry, or with an error."""


class TopicCursor(Protocol):
    """The position of a subscription.  Changes count at once, and are durable after `flush`."""

    @property
    def name(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, int]:
        """The numbers that are stored with the cursor, by name."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """The texts that are stored with the cursor, by name."""
        ...

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        """Replace the texts, durably."""
        ...

    @property
    def mark_delete(self) -> Position: ...

    @property
    def read_start(self) -> Position: ...

    @property
    def backlog_entries(self) -> int: ...

    @property
    def acked_above(self) -> int:
        """The number of acknowledged entries above the mark-delete position."""
        ...

    def range_count(self, at_most: int) -> int:
        """Return the number of acknowledged runs above mark-delete; stop above `at_most`."""
        ...

    @property
    def old_records(self) -> int:
        """The number of stored records of the cursor that a Pulsar broker would misread."""
        ...

    @property
    def partly_acked(self) -> int:
        """The number of entries of which some messages are acknowledged."""
        ...

    def pending_of(self, position: Position) -> int | None:
        """Return the bits of the pending messages of an entry, or None for all of them."""
        ...

    @property
    def holes_top(self) -> Position:
        """The position behind which nothing is acknowledged."""
        ...

    @property
    def holes(self) -> tuple[int, int]:
        """The messages and bytes that are not acknowledged up to `holes_top`."""
        ...

    @property
    def uncounted(self) -> AckSet:
        """The entries up to `holes_top` that are not acknowledged and not in `holes`."""
        ...

    def is_acked(self, position: Position) -> bool: ...

    def ack(self, positions: Sequence[Position]) -> None: ...

    def ack_part(self, position: Position, pending: int) -> bool:
        """Acknowledge the messages of an entry whose bits are not in `pending`.

        Return True if none is pending any more; the caller then acknowledges the entry.
        """
        ...

    def ack_cumulative(self, position: Position) -> None: ...

    def advance(self, mark_delete: Position, properties: Mapping[str, int]) -> None:
        """Move the cursor forward and replace its properties, in one stored record."""
        ...

    async def flush(self) -> None: ...

    async def reset(
        self,
        mark_delete: Position,
        properties: Mapping[str, int],
        part: tuple[Position, int] | None = None,
    ) -> None:
        """Move the cursor and set its properties.  Both are durable when this returns.

        `part` is an entry, and the bits of its messages that are pending.
        """
        ...


class TopicLog(Protocol):
    """An endless log."""

    on_fenced: Callable[[], None]
    on_bug: Callable[[Exception], None]  # called when the log ends because of a bug
    on_confirmed: Callable[[], None]  # called when `last_confirmed` has moved
    traffic: TrafficMeter

    @property
    def created(self) -> int:
        """The transaction that created the log: higher for a log that was created again."""
        ...

    @property
    def instance(self) -> str | None:
        """The INSTANCEID of the ledgers; None if brokers have not bound it."""
        ...

    @property
    def pending_bytes(self) -> int: ...

    def await_next(self) -> None:
        """Note that a reader waits for the next entry, however long that takes."""
        ...

    @property
    def last_confirmed(self) -> Position: ...

    @property
    def confirmed_offset(self) -> int: ...

    @property
    def before_first(self) -> Position: ...

    @property
    def sizes(self) -> EntrySizes:
        """The sizes of recent entries, which readers note and cursors look up."""
        ...

    def entries_between(self, after: Position, through: Position) -> int:
        """Return the number of entries behind `after`, up to and including `through`."""
        ...

    def position_after(self, position: Position, entries: int) -> Position:
        """Return the position of the entry that is so many entries behind `position`."""
        ...

    def bytes_after(self, start: EntryStart) -> int:
        """Return the bytes of the confirmed entries from `start` on."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def waiting_for(self) -> str:
        """The reason why nothing is confirmed, in words.  It is empty if all is well."""
        ...

    @property
    def full(self) -> str:
        """The reason, in words, if no entry is taken because the list of ledgers is full."""
        ...

    @property
    def room(self) -> Room:
        """The room that the list of ledgers has left."""
        ...

    @property
    def cursors(self) -> Mapping[str, TopicCursor]: ...

    def holders(self, position: Position) -> str:
        """Return where an entry is, in words: its ledger, and bookies that are slow or away."""
        ...

    def append(self, payload: Sequence[Buffer], messages: int, done: Done) -> None:
        """Append an entry without waiting.  A refusal calls `done` before the return."""
        ...

    @property
    def has_room(self) -> bool:
        """True if few enough bytes are pending, or the log has ended."""
        ...

    async def wait_room(self) -> None:
        """Wait until few enough bytes are pending."""
        ...

    async def read(
        self, start: Position, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]: ...

    def read_now(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        """Return what `read` would return if it is in memory, else nothing."""
        ...

    def count_read(self, entries: int) -> None:
        """Count entries that a reader got from another one, which has read them in memory."""
        ...

    def next_position(self, position: Position) -> Position: ...

    def previous_position(self, position: Position) -> Position: ...

    def behind(self, position: Position) -> Behind:
        """Return how much is behind `position`, up to the last confirmed entry."""
        ...

    async def open_cursor(
        self,
        name: str,
        *,
        initial: Position,
        properties: Mapping[str, str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> TopicCursor: ...

    def new_volatile_cursor(self, name: str, initial: Position) -> TopicCursor: ...

    async def delete_cursor(self, name: str) -> None: ...

    def check_roll(self) -> None: ...

    async def trim(self) -> list[int]: ...

    async def close(self) -> None: ...

    def abandon(self) -> None: ...


class TopicLogs(Protocol):
    """The logs of all topics.

    Methods raise only BrokerErrors, and FencedError where their docstrings say so.
    """

    @property
    def in_contact(self) -> bool:
        """True while the broker has contact with ZooKeeper; else another may own its topics."""
        ...

    async def exists(self, name: TopicName) -> bool: ...

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> bool:
        """Create an empty log.  Return False if there is one already."""
        ...

    async def stored(self, namespace: str) -> list[TopicName]: ...

    async def open(
        self, name: TopicName, *, create: bool, on_step: Callable[[str], None] = ...
    ) -> TopicLog:
        """Take the log over.  `on_step` is told in words what is done next.

        Raise NotFoundError, or FencedError if another broker takes it over at the same time.
        """
        ...

    async def apply(self, policies: EffectivePolicies, logs: Iterable[TopicLog]) -> None:
        """Keep these logs as the policies say from now on."""
        ...

    async def delete(self, log: TopicLog) -> None: ...

    async def position_of_offset(self, log: TopicLog, offset: int) -> Position:
        """Return the entry that holds the offset.

        Before the first retained entry it is that entry, and behind the last one it is the end.
        """
        ...

    async def position_of_time(self, log: TopicLog, publish_ms: int) -> Position:
        """Return the position behind the newest entry that was published before that time."""
        ...

    async def stored_ms(self, log: TopicLog, position: Position) -> int | None:
        """Return when the first entry at or behind a position was stored; None at the end."""
        ...

    async def first_stored_since(self, log: TopicLog, start: Position, since_ms: int) -> Position:
        """Return the first entry at or behind `start` that is not older, or the end.

        No entry that lies between is as young as that.
        """
        ...

    def position_with_behind(self, log: TopicLog, start: Position, bytes_max: int) -> Position:
        """Return the first position from `start` on with at most so many bytes behind it."""
        ...

    async def entry_start(self, log: TopicLog, position: Position) -> EntryStart | None:
        """Return where an entry begins; None if there is none, or no longer."""
        ...

    async def recount(self, log: TopicLog, cursor: TopicCursor) -> None:
        """Count the entries that are `uncounted`, by reading them."""
        ...

    async def first_offset(self, log: TopicLog) -> int:
        """Return the offset of the first retained message, or of the next one if none is."""
        ...

    async def sealed_offsets(self, log: TopicLog) -> list[LedgerOffsets]:
        """Return the sealed ledgers that hold messages, in order, with their offsets."""
        ...

    def epoch_of(self, log: TopicLog) -> int | None:
        """Return the epoch of the topic, which each exclusive producer raises."""
        ...

    async def store_epoch(self, log: TopicLog, epoch: int) -> None: ...

    def properties(self, log: TopicLog) -> dict[str, str]:
        """Return the properties of the topic, without those that are reserved for brokers."""
        ...

    async def change_properties(
        self, log: TopicLog, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Replace the properties of the topic durably by what `change` makes of them.

        Errors of `change` are raised, and then nothing is changed.
        """
        ...

    def sink_progress(self, log: TopicLog) -> dict[str, Progress]:
        """Return the progress of sinks in the log, by sink id.  Raise LogCorruptError."""
        ...

    async def store_sink_progress(
        self,
        log: TopicLog,
        sink_id: str,
        make: Callable[[], Progress],
        forgotten: Iterable[str] = (),
    ) -> None:
        """Store the progress of one sink durably, and remove that of forgotten ones.

        `make` is called when no other write of the list is under way.
        """
        ...

    def is_terminated(self, log: TopicLog) -> bool: ...

    async def terminate(self, log: TopicLog) -> Position: ...

    async def create_compacted(self, log: TopicLog, horizon: Position) -> CompactedWriter:
        """Create a ledger for a compaction that reads up to `horizon`."""
        ...

    async def open_compacted(self, log: TopicLog, ledger_id: int) -> CompactedReader: ...

    async def delete_compacted(self, log: TopicLog, ledger_id: int) -> None:
        """Delete a compacted ledger of the log that nothing names.

        If that does not work now, the ledger is an orphan.
        """
        ...

    async def truncate(self, log: TopicLog) -> None:
        """Drop all ledgers that no cursor needs, whatever the retention says."""
        ...

    def internal_info(self, log: TopicLog) -> dict[str, object]:
        """Return what the metadata store has of the log, for people."""
        ...

    def internal_stats(self, log: TopicLog) -> dict[str, object]:
        """Return the ledgers, cursors and pending appends, for people."""
        ...


@contextmanager
def translated(what: object) -> Generator[None]:
    """Translate errors of logs, ledgers and the metadata store to UnavailableError.

    FencedError, too: the topic hears of a fence by `on_fenced`.
    """
    try:
        yield
    except (ManagedLedgerError, LedgerError, MetadataError) as error:
        raise UnavailableError(f"{what}: {error}") from error
