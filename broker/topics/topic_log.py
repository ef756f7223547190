"""SEAM: the log under a topic, and where logs come from.

`managed_ledger.ManagedLedger` is such a log; tests have one in memory.  What is promised here is
said there: appends are confirmed in order, `done` is called in the trio thread, and an append that
ends with FencedError is *in doubt*.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from daybook.bookie.errors import LedgerError
from daybook.broker.errors import UnavailableError
from daybook.managed_ledger.behind import Behind
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.reading import LogEntry
from daybook.wire.metadata.store import MetadataError
from daybook.wire.topics import TopicName
from daybook.wire.transport import Buffer

Done: TypeAlias = Callable[[Position | None, Exception | None], None]


class TopicCursor(Protocol):
    """Where a subscription stands.  Changes are in memory at once, durable after `flush`."""

    @property
    def name(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, int]:
        """What is stored with it, by name."""
        ...

    @property
    def mark_delete(self) -> Position: ...

    @property
    def read_start(self) -> Position: ...

    @property
    def backlog_entries(self) -> int: ...

    @property
    def acked_above(self) -> int:
        """How many entries above the mark-delete position are acknowledged."""
        ...

    @property
    def old_records(self) -> int:
        """How many records of the cursor, as it is stored, a Pulsar broker would misread."""
        ...

    def is_acked(self, position: Position) -> bool: ...

    def ack(self, positions: Sequence[Position]) -> None: ...

    def ack_cumulative(self, position: Position) -> None: ...

    async def flush(self) -> None: ...

    async def reset(self, mark_delete: Position, properties: Mapping[str, int]) -> None:
        """Durable when it returns, with the properties."""
        ...


class TopicLog(Protocol):
    """An endless log."""

    on_fenced: Callable[[], None]
    on_confirmed: Callable[[], None]  # `last_confirmed` has moved

    @property
    def pending_bytes(self) -> int: ...

    @property
    def last_confirmed(self) -> Position: ...

    @property
    def confirmed_offset(self) -> int: ...

    @property
    def before_first(self) -> Position: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def waiting_for(self) -> str:
        """Why nothing is confirmed, in words; empty while all is well."""
        ...

    @property
    def full(self) -> str:
        """Why nothing is taken, in words, if the list of ledgers is full; else empty."""
        ...

    @property
    def room(self) -> Room:
        """How much room the list of ledgers has left."""
        ...

    @property
    def cursors(self) -> Mapping[str, TopicCursor]: ...

    def append(self, payload: Sequence[Buffer], messages: int, done: Done) -> None: ...

    async def wait_room(self) -> None: ...

    async def read(
        self, start: Position, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]: ...

    def next_position(self, position: Position) -> Position: ...

    def previous_position(self, position: Position) -> Position: ...

    def behind(self, position: Position) -> Behind:
        """How much lies behind `position`, up to the last confirmed entry."""
        ...

    def entries_between(self, after: Position, through: Position) -> int: ...

    async def open_cursor(
        self, name: str, *, initial: Position, properties: Mapping[str, str] | None = None
    ) -> TopicCursor: ...

    def new_volatile_cursor(self, name: str, initial: Position) -> TopicCursor: ...

    async def delete_cursor(self, name: str) -> None: ...

    def check_roll(self) -> None: ...

    async def trim(self) -> list[int]: ...

    async def close(self) -> None: ...

    def abandon(self) -> None: ...


class TopicLogs(Protocol):
    """The logs of all topics.  Raises BrokerErrors only, and `FencedError` where it says so."""

    async def exists(self, name: TopicName) -> bool: ...

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> bool:
        """Make an empty one; False if there is one already."""
        ...

    async def stored(self, namespace: str) -> list[TopicName]: ...

    async def open(self, name: TopicName, *, create: bool) -> TopicLog:
        """Take it over.  NotFoundError; FencedError if somebody else does so at the same time."""
        ...

    async def delete(self, log: TopicLog) -> None: ...

    async def position_of_offset(self, log: TopicLog, offset: int) -> Position:
        """The entry that holds the offset; the first retained one, or the end, beyond those."""
        ...

    async def position_of_time(self, log: TopicLog, publish_ms: int) -> Position:
        """The entry behind the newest one that was published before."""
        ...

    async def offset_before(self, log: TopicLog, position: Position) -> int:
        """The offset of the last message at, or before, a position."""
        ...

    async def first_offset(self, log: TopicLog) -> int:
        """Of the first message that is retained; the next one's if there is none."""
        ...

    def epoch_of(self, log: TopicLog) -> int | None:
        """What its exclusive producers count."""
        ...

    async def store_epoch(self, log: TopicLog, epoch: int) -> None: ...

    def is_terminated(self, log: TopicLog) -> bool: ...

    async def terminate(self, log: TopicLog) -> Position: ...

    def internal_stats(self, log: TopicLog) -> dict[str, object]:
        """For people: ledgers, cursors, what is pending."""
        ...


@contextmanager
def translated(what: object) -> Generator[None]:
    """What a log, a ledger or the metadata store cannot do now is an UnavailableError."""
    try:
        yield
    except (ManagedLedgerError, LedgerError, MetadataError) as error:
        raise UnavailableError(f"{what}: {error}") from error
