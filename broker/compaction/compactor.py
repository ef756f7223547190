"""One run of a compaction: two passes over the topic, and a new compacted ledger.

Both passes read the present compacted ledger first, and then the log from its horizon to the new
one.  So a key whose messages are trimmed keeps its last value.  The cursor `__compaction` exists
before the first pass, and holds everything behind the present horizon in the log.

A run has a low priority: it gives way to other tasks after some kilobytes, and sleeps between two
pieces for as long as a piece takes at the permitted rate.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from daybook.broker.compaction.compacted_ledger import CompactedLedger
from daybook.broker.compaction.slices import in_slices
from daybook.broker.limits import CompactionLimits
from daybook.broker.protocol.compaction import Selection
from daybook.broker.topics.topic_log import TopicLog
from daybook.managed_ledger.compacted import CompactedWriter
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry
from daybook.wire.rate_limit import RateLimit

_TURN_BYTES = 16 << 10


@dataclass(slots=True)
class Progress:
    """The numbers of one run, for people."""

    horizon: Position
    began_ms: int
    pass_number: int = 1
    read_entries: int = 0
    read_bytes: int = 0
    written_entries: int = 0
    written_bytes: int = 0
    removed: int = 0
    keys: int = 0


class Compactor:
    """One instance per run.

    `before` is the present compacted ledger with its horizon; None if there is none.
    """

    def __init__(
        self,
        log: TopicLog,
        before: tuple[Position, CompactedLedger] | None,
        selection: Selection,
        progress: Progress,
        limits: CompactionLimits,
        rate: RateLimit,
    ) -> None:
        self._log = log
        self._before = before
        self._selection = selection
        self._progress = progress
        self._limits = limits
        self._rate = rate
        self._worked_bytes = 0

    async def select(self) -> None:
        """Carry out the first pass.

        Raise TooManyKeysError, LedgerError, ManagedLedgerError.
        """
        progress, selection = self._progress, self._selection

        async def add(entries: Sequence[LogEntry]) -> None:
            for entry in entries:
                await in_slices(selection.add(entry.data))
                await self._give_way(len(entry.data))
            progress.keys, progress.removed = selection.keys, selection.removed

        await self._read(add)
        selection.forget_keys()

    async def write(self, writer: CompactedWriter) -> None:
        """Carry out the second pass, and close the ledger.

        Raise ChangedError, LedgerError, ManagedLedgerError, MetadataError.
        """
        progress, selection = self._progress, self._selection
        progress.pass_number = 2

        async def rewrite(entries: Sequence[LogEntry]) -> None:
            for entry in entries:
                data = await in_slices(selection.rewrite(entry.data))
                if data is not None:
                    if not writer.fits(data):
                        # A batch that names what is left of it may be larger than before.  As a
                        # whole it fits, because the log leaves room for that.
                        data = entry.data
                    writer.append(entry.position, data)
                    progress.written_entries += 1
                    progress.written_bytes += len(data)
                await self._give_way(len(entry.data))
            # So no more than one piece waits for bookies.
            with trio.fail_after(self._limits.write_s):
                await writer.wait_confirmed()

        await self._read(rewrite)
        selection.check_complete()
        with trio.fail_after(self._limits.write_s):
            await writer.close()

    # -- reading

    async def _read(self, handle: Callable[[Sequence[LogEntry]], Awaitable[None]]) -> None:
        """Pass all entries up to the horizon to `handle`, in pieces, at the permitted rate."""
        limits, log, horizon = self._limits, self._log, self._progress.horizon
        position = log.next_position(log.before_first)
        if self._before is not None:
            before, ledger = self._before
            at = Position(0, 0)
            while entries := await ledger.read(
                at, before, max_entries=limits.read_entries, max_bytes=limits.read_bytes
            ):
                await self._handle(entries, handle)
                at = entries[-1].position.next_in_ledger()
            position = log.next_position(before)
        while position <= horizon:
            entries = await log.read(
                position, max_entries=limits.read_entries, max_bytes=limits.read_bytes
            )
            entries = [entry for entry in entries if entry.position <= horizon]
            if not entries:
                break
            await self._handle(entries, handle)
            position = log.next_position(entries[-1].position)

    async def _handle(
        self,
        entries: Sequence[LogEntry],
        handle: Callable[[Sequence[LogEntry]], Awaitable[None]],
    ) -> None:
        size = sum(len(entry.data) for entry in entries)
        await self._rate.spend(size)
        await handle(entries)
        self._progress.read_entries += len(entries)
        self._progress.read_bytes += size

    async def _give_way(self, size: int) -> None:
        """Let other tasks run after some work, because a piece of small messages takes long."""
        self._worked_bytes += size
        if self._worked_bytes >= _TURN_BYTES:
            self._worked_bytes = 0
            await trio.lowlevel.checkpoint()
