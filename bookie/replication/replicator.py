"""The replicator copies entries to a bookie, and names the bookie in the metadata.

An entry is sent with the bytes of its other copies, after a check of its digest, as a recovery add:
a fenced ledger accepts it, and an existing copy stays as it is.  The metadata change after every
entry is acknowledged, which means durable; `replica_check.replace_bookie` says when they may.  They
change only if the newcomer still has the cookie generation in which it acknowledged the first
entry: a bookie that lost its disks finds in the metadata what it has to restore
(`metadata_store.update`).

Entries are copied in pieces, runs of consecutive entries; many pieces are pending at once, bounded
in number and in bytes.  A bookie of a striped ledger holds short runs only: copied one after the
other, each would cost a round trip and a sync.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import assert_never

import trio

from daybook.bookie.errors import NoSuchEntryError, ReadUnknownError
from daybook.bookie.ledger.bookie_client import LedgerChannel, Purpose
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.protocol.update import Gone, NotAllowed, NotDone, Settled
from daybook.bookie.ledger.reader import digester_of, read_entries
from daybook.bookie.registry.cookies import CookieGeneration
from daybook.bookie.replication.protocol.replica_check import (
    Replacement,
    SealedFragment,
    entry_bytes,
    replace_bookie,
)
from daybook.wire.digest import master_key
from daybook.wire.entry import Entry, encode_header
from daybook.wire.messages.bookie import Status, encode_add_header
from daybook.wire.rate_limit import RateLimit


class TargetError(Exception):
    """The target bookie did not accept the copies."""

    def __init__(self, bookie: BookieId, reason: str) -> None:
        super().__init__(f"bookie {bookie}: {reason}")
        self.bookie = bookie


class Replaced(Enum):
    YES = auto()
    OTHERWISE = auto()  # the metadata or the newcomer changed: check again
    GONE = auto()  # the ledger was deleted
    NOT_NOW = auto()  # the metadata store does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLimits:
    piece_bytes: int = 1 << 20
    pieces_max: int = 64  # pending at once
    bytes_max: int = 8 << 20  # in all pending pieces


class Replicator:
    """`copied` is called with counts of entries and bytes as they become durable."""

    def __init__(
        self,
        context: LedgerContext,
        rate_limit: RateLimit,
        copied: Callable[[int, int], None] = lambda entries, size: None,
        limits: CopyLimits | None = None,
    ) -> None:
        self._context = context
        self._rate_limit = rate_limit
        self._copied = copied
        self._limits = limits or CopyLimits()

    async def copy(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        entries: Sequence[range],
        to: BookieId,
    ) -> None:
        """Return when all entries are durable on the target.

        Raise TargetError if the target fails, NoSuchEntryError or ReadUnknownError if a read does.
        """
        sending = _Sending(self._context, ledger_id, metadata, to)
        flow = _Flow(sending, Room(self._limits), entry_bytes(metadata))
        try:
            async with trio.open_nursery() as nursery:
                for run in entries:
                    first = run.start
                    while first < run.stop:
                        size = max(
                            1, min(self._limits.piece_bytes, flow.entry_bytes * (run.stop - first))
                        )
                        count = max(1, size // flow.entry_bytes)
                        piece = range(first, min(run.stop, first + count))
                        # Both before the task starts: pending pieces stay bounded in memory.
                        await self._wait_turn(size)
                        await flow.room.enter(size)
                        nursery.start_soon(
                            self._copy_piece, flow, ledger_id, metadata, piece, size, nursery
                        )
                        first = piece.stop
        finally:
            flow.sending.close()
        if flow.failure is not None:
            raise flow.failure

    async def _copy_piece(
        self,
        flow: "_Flow",
        ledger_id: int,
        metadata: LedgerMetadata,
        piece: range,
        size: int,
        nursery: trio.Nursery,
    ) -> None:
        """Return when the piece is durable on the target; a failure ends all other pieces."""
        try:
            first = piece.start
            while first < piece.stop:
                read = await read_entries(
                    self._context,
                    ledger_id,
                    metadata,
                    first,
                    piece.stop - 1,
                    max_bytes=self._limits.piece_bytes,
                    entry_bytes=flow.entry_bytes,
                )
                await flow.sending.send(read)
                read_bytes = sum(len(entry.payload) for entry in read)
                # The measured size replaces the estimate, so that later pieces fit their bound.
                flow.entry_bytes = max(1, read_bytes // len(read))
                self._copied(len(read), read_bytes)
                first = read[-1].entry_id + 1
        except (TargetError, NoSuchEntryError, ReadUnknownError) as error:
            flow.failure = flow.failure or error  # the first one: others may follow from it
            nursery.cancel_scope.cancel()
        finally:
            flow.room.leave(size)

    async def _wait_turn(self, size: int) -> None:
        await self._rate_limit.spend(size)

    async def replace(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        fragment: SealedFragment,
        position: int,
        newcomer: CookieGeneration,
    ) -> Replaced:
        """Name the newcomer in the metadata, after it has acknowledged all entries of the position.

        It has acknowledged them in the cookie generation that `newcomer` names.
        """
        decide = replace_bookie(Replacement(fragment, position, BookieId(newcomer.bookie_id)))
        result = await self._context.metadata_store.update(ledger_id, stored, decide, [newcomer])
        match result:
            case Settled():
                return Replaced.YES
            case NotAllowed():
                return Replaced.OTHERWISE
            case Gone():
                return Replaced.GONE
            case NotDone():
                return Replaced.NOT_NOW
            case _:
                assert_never(result)


class Room:
    """A bound on pending pieces; a piece larger than the bound is sent alone."""

    def __init__(self, limits: CopyLimits) -> None:
        self._limits = limits
        self._pieces = self._bytes = 0
        self._left = trio.Event()

    async def enter(self, size: int) -> None:
        while self._pieces and (
            self._pieces >= self._limits.pieces_max or self._bytes + size > self._limits.bytes_max
        ):
            await self._left.wait()
        self._pieces += 1
        self._bytes += size

    def leave(self, size: int) -> None:
        self._pieces -= 1
        self._bytes -= size
        assert self._pieces >= 0
        assert self._bytes >= 0
        self._left.set()
        self._left = trio.Event()


@dataclass(slots=True)
class _Flow:
    """The state that the pieces of one copy share."""

    sending: "_Sending"
    room: Room
    entry_bytes: int  # payload of an average entry, as far as is known
    failure: NoSuchEntryError | ReadUnknownError | TargetError | None = None


@dataclass(slots=True)
class _Unconfirmed:
    """A batch of entries that was sent and is not acknowledged."""

    left: int
    done: trio.Event = field(default_factory=trio.Event)


class _Sending:
    """Recovery adds to one bookie."""

    def __init__(
        self, context: LedgerContext, ledger_id: int, metadata: LedgerMetadata, to: BookieId
    ) -> None:
        self._ledger_id = ledger_id
        self._digester = digester_of(metadata)
        self._master_key = master_key(metadata.password or b"")
        self._under_way: dict[int, _Unconfirmed] = {}
        self._failure: TargetError | None = None
        self._channel: LedgerChannel = context.bookies.open_channel(
            to, ledger_id, Purpose.RECOVER, self
        )

    async def send(self, entries: Sequence[Entry]) -> None:
        """Return when all entries are acknowledged; raise TargetError if the bookie fails."""
        assert entries, "nothing would ever set the event"
        together = _Unconfirmed(len(entries))
        # All are registered before the first add: a failure may come during an add.
        for entry in entries:
            self._under_way[entry.entry_id] = together
        for entry in entries:
            self._channel.add(entry.entry_id, self._frame(entry))
        if self._failure is None:
            await together.done.wait()
        # The event is also set by a failure; only without one are the entries durable.
        if self._failure is not None:
            raise self._failure

    def _frame(self, entry: Entry) -> list[bytes | memoryview]:
        payload = [entry.payload]
        header = encode_header(
            self._ledger_id, entry.entry_id, entry.lac, entry.length, self._digester, payload
        )
        size = len(header) + len(entry.payload)
        return [encode_add_header(self._master_key, size, recovery=True) + header, entry.payload]

    def close(self) -> None:
        self._channel.close()

    # -- answers of the bookie

    def added(self, bookie: BookieId, first: int, count: int) -> None:
        for entry_id in range(first, first + count):
            together = self._under_way.pop(entry_id, None)
            if together is not None:
                together.left -= 1
                if not together.left:
                    together.done.set()

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        self._fail(TargetError(bookie, reason))

    def add_refused(self, bookie: BookieId, status: Status) -> None:
        self._fail(TargetError(bookie, f"it answered {status.name}"))

    def _fail(self, failure: TargetError) -> None:
        self._failure = failure
        for together in self._under_way.values():
            together.done.set()
