"""The ledgers that one log writes: the present one, the next one, and the one before.

What happens when, says `protocol.log`; this carries it out: creates ledgers and puts them on the
list, closes those that are full, and asks for a roll when one is due.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.ack_set import ENTRIES_MAX
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.ledger_list import LedgerList, Row, set_sealed
from daybook.managed_ledger.protocol.healing import Healing
from daybook.managed_ledger.protocol.log import CreateFailed, Event, Listed, RollDue, Sealed, State
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.records import custom_metadata
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.wire.metadata.store import MetadataError

ROLL_ENTRIES_MAX = ENTRIES_MAX // 4 * 3  # However full the list is, a ledger is rolled here,
APPEND_ENTRIES_MAX = ENTRIES_MAX // 8 * 7  # and takes none beyond this, but for what is pending.
_CREATE_RETRY_S = 1.0
_TIDY_S = 2.0
_REFUSALS = ManagedLedgerError | MetadataError | LedgerError


class RollingLog(Protocol):
    """What is needed of the log."""

    name: str
    config: LogConfig
    ledgers: LedgerList

    @property
    def context(self) -> LogContext: ...

    @property
    def state(self) -> State: ...

    @property
    def usable(self) -> bool: ...

    @property
    def confirmed_offset(self) -> int: ...

    @property
    def room(self) -> Room:
        """How much room the list of ledgers has left."""
        ...

    def feed(self, event: Event) -> None:
        """Give an event to the machine, and wake whoever waits for its state."""
        ...

    def listen(self, writer: LedgerWriter) -> None:
        """Hear of what the writer confirms."""
        ...

    def lost(self, reason: str) -> None: ...

    async def update_list(self, change: Callable[[ManagedLedgerInfo], None]) -> None:
        """ManagedLedgerError, MetadataError."""
        ...

    async def trim(self) -> list[int]: ...


class Rolling:
    """`by_id`: writers of the ledgers that are not closed, by which they are read, too."""

    def __init__(self, log: RollingLog, writer: LedgerWriter) -> None:
        self.present = writer
        self.by_id = {writer.ledger_id: writer}
        self._log = log
        self._next: LedgerWriter | None = None
        self._previous: tuple[LedgerWriter, Row] | None = None
        self._opened_s = trio.current_time()
        self._healing = Healing(log.context.rng.random())

    @property
    def sealed(self) -> list[Row]:
        """The ledgers that are closed, for everybody."""
        end = self.present if self._previous is None else self._previous[0]
        return [row for row in self._log.ledgers.rows if row.ledger_id < end.ledger_id]

    @property
    def unclosed(self) -> list[LedgerWriter]:
        """The present ledger first."""
        previous = None if self._previous is None else self._previous[0]
        return [each for each in (self.present, self._next, previous) if each is not None]

    def abandon(self) -> None:
        for writer in self.unclosed:
            writer.abandon()

    # -- when

    def check(self) -> None:
        """Roll if the present ledger is full, or old, or could be healthier."""
        room = self._log.room
        if not room.allows_roll:
            return
        config, writer, now_s = self._log.config, self.present, trio.current_time()
        entries, age_s, stretch = (
            writer.last_add_confirmed + 1,
            now_s - self._opened_s,
            room.stretch,
        )
        full = (
            entries >= config.roll_entries * stretch or writer.length >= config.roll_bytes * stretch
        )
        old = entries > 0 and age_s >= config.roll_age_s * stretch
        due = full and age_s >= config.roll_age_min_s * stretch
        due |= old or entries >= ROLL_ENTRIES_MAX or writer.crowded
        if due or self._could_be_whole(config.heal_interval_s * stretch, now_s):
            self._log.feed(RollDue())

    def _could_be_whole(self, interval_s: float, now_s: float) -> bool:
        if not self.present.under_replicated:
            self._healing.whole(now_s)
            return False
        replaceable = self.present.replaceable
        return self._healing.due(now_s, interval_s, replaceable=replaceable)

    # -- how

    async def create_next(self) -> None:
        log = self._log
        if not log.room.allows_roll:  # The list has grown since the roll was asked for.
            log.feed(CreateFailed())
            return
        try:
            writer = await create_ledger(log.context, log.name, log.config)
            await put_on_list(log.context, log.ledgers, writer, log.update_list)
        except ManagedLedgerError:
            return  # The log has ended.
        except (LedgerError, MetadataError):
            await trio.sleep(_CREATE_RETRY_S)
            log.feed(CreateFailed())
            return
        if not log.usable:
            writer.abandon()
            return
        self._next = writer
        log.listen(writer)
        log.feed(Listed())

    def switch(self) -> None:
        """The next ledger is the present one from here on."""
        assert self._next is not None
        log, old = self._log, self.present
        row = Row(
            old.ledger_id,
            old.last_add_confirmed + 1,
            old.length,
            log.context.clock.now_ms(),
            log.confirmed_offset if old.last_add_confirmed >= 0 else None,
        )
        log.ledgers.seal(row)
        self._previous = (old, row)
        self.present, self._next = self._next, None
        self.by_id[self.present.ledger_id] = self.present
        self._opened_s = trio.current_time()

    async def seal_previous(self) -> None:
        """Close the ledger before, tell the list how long it is, and trim."""
        assert self._previous is not None
        log, (writer, row) = self._log, self._previous
        while True:
            try:
                await writer.close()
                await log.update_list(lambda info: set_sealed(info, row))
                break
            except MetadataError:
                await log.context.pause()
            except ManagedLedgerError:
                return  # The log has ended.
            except LedgerError as error:
                log.lost(str(error))
                return
        self._previous = None
        del self.by_id[row.ledger_id]
        log.feed(Sealed())
        if not row.entries:
            await log.context.forget([row.ledger_id], log.ledgers.owner)
        with suppress(ManagedLedgerError, MetadataError):  # It is tried again, after the next roll.
            await log.trim()


async def create_ledger(context: LogContext, name: str, config: LogConfig) -> LedgerWriter:
    """A ledger for the data of a log."""
    return await context.client.create(
        config.quorums, custom=custom_metadata(name, tree=context.tree)
    )


async def put_on_list(
    context: LogContext,
    ledgers: LedgerList,
    writer: LedgerWriter,
    update: Callable[[Callable[[ManagedLedgerInfo], None]], Awaitable[None]],
) -> None:
    """Append a new ledger to the list.

    If that fails the ledger is abandoned; and deleted, unless the list may name it after all.
    """

    def add(info: ManagedLedgerInfo) -> None:
        info.ledgerInfo.add(ledgerId=writer.ledger_id, timestamp=0)

    try:
        await update(add)
    except BaseException as error:
        writer.abandon()
        if isinstance(error, _REFUSALS) and not ledgers.doubtful:
            with trio.move_on_after(_TIDY_S):
                await context.forget([writer.ledger_id], ledgers.owner)
        raise
