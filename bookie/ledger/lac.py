"""The LAC of an open ledger: announced by its writer, asked for and followed by readers.

An entry carries the LAC as it was before that entry, so the entries alone never prove that the last
one is confirmed.  An idle writer therefore sends its LAC (`LacAnnouncer`) in a packet with a digest
of its own.  A reader asks bookies for the newest entry and the newest packet (`read_lac`), or waits
until there is something new (`lac_moved`).

Readers believe only a LAC with a valid digest; a LAC that a bookie merely reports is a hint to look
again.  A confirmed LAC stays confirmed, so the largest copy is right, whichever bookie has it.

`TailingReader` follows a ledger while its writer appends.  Two sources report that the ledger has
grown.  Each bookie of the last ensemble answers a long poll when its LAC moves; with striping, no
single bookie sees every entry.  The record in the metadata store is watched for another ensemble
and for the end.  Both sources only cause another look.  The reader waits for bookies and metadata
stores that are away, since what it knows stays true.  It fences nothing: the writer does not
notice.
"""

from functools import partial
from math import inf

import trio

from daybook.bookie.errors import ReadUnknownError
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import NO_ENTRY, BookieId
from daybook.bookie.ledger.reader import LastConfirmed, LedgerReader, digester_of
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.wire.digest import master_key
from daybook.wire.entry import decode_entry, decode_lac, encode_lac
from daybook.wire.errors import ConnectionLostError, WireError
from daybook.wire.messages.bookie import LAST_ENTRY, Status
from daybook.wire.messages.bookie_v3 import (
    encode_long_poll,
    encode_read_lac,
    encode_write_lac,
    from_v3,
)
from daybook.wire.metadata.store import StoreUnavailableError
from daybook.wire.proto import bookkeeper_pb2 as pb

_NEGATIVE = (Status.NO_ENTRY, Status.NO_LEDGER)


async def read_lac(
    context: LedgerContext, ledger_id: int, metadata: LedgerMetadata
) -> LastConfirmed:
    """Return the largest LAC that the bookies of the last fragment can prove, without fencing.

    All bookies are asked.  The function returns when no confirmed entry can be unknown to all that
    answered.  Raise ReadUnknownError if no bookie answers.
    """
    fragment = metadata.last_fragment
    before = LastConfirmed(fragment.first_entry_id - 1, 0, fragment.first_entry_id - 1)
    found: list[LastConfirmed] = []
    answered: list[int] = []
    why: list[str] = []

    async def ask(position: int, bookie: BookieId) -> None:
        try:
            found.append(await _read_lac(context, ledger_id, metadata, bookie) or before)
        except (ConnectionLostError, WireError) as error:
            why.append(str(error))
            return
        answered.append(position)
        if metadata.quorums.is_covered(answered):
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for position, bookie in enumerate(fragment.ensemble):
            nursery.start_soon(ask, position, bookie)
    if not found:
        raise ReadUnknownError(ledger_id, LAST_ENTRY, "; ".join(why))
    return max([before, *found], key=lambda answer: answer.lac)


async def _read_lac(
    context: LedgerContext, ledger_id: int, metadata: LedgerMetadata, bookie: BookieId
) -> LastConfirmed | None:
    """Return the LAC that one bookie can prove, or None if it does not know the ledger."""
    encode = partial(encode_read_lac, ledger_id=ledger_id)
    timeout_s = context.limits.bookies.read_timeout_s
    answer = (await context.requests.ask(bookie, encode, timeout_s)).readLacResponse
    status = from_v3(answer.status)
    if status in _NEGATIVE:
        return None
    if status is not Status.OK:
        raise ConnectionLostError(f"bookie {bookie} answered {status.name}")
    return _proven(answer, ledger_id, metadata)


def _proven(
    answer: pb.ReadLacResponse, ledger_id: int, metadata: LedgerMetadata
) -> LastConfirmed | None:
    digester = digester_of(metadata)
    lac, length, entry_id = NO_ENTRY, 0, NO_ENTRY
    # Both values are verified by their digests; `answer` has other fields, which are not.
    if answer.HasField("lastEntryBody"):
        entry = decode_entry(memoryview(answer.lastEntryBody), digester, ledger_id, None)
        lac, length, entry_id = entry.lac, entry.length, entry.entry_id
    if answer.HasField("lacBody"):
        lac = max(lac, decode_lac(memoryview(answer.lacBody), digester, ledger_id))
    return LastConfirmed(lac, length, entry_id) if lac > NO_ENTRY or length else None


async def lac_moved(context: LedgerContext, ledger_id: int, bookie: BookieId, after: int) -> bool:
    """Wait until the bookie reports a LAC above `after`; return False for any other answer.

    The result is only a hint.  The bookie waits for at most `lac_poll_s`, and does not wait once
    the ledger is fenced.
    """
    limits = context.limits
    encode = partial(
        encode_long_poll,
        ledger_id=ledger_id,
        previous_lac=after,
        timeout_ms=round(limits.lac_poll_s * 1000),
    )
    timeout_s = limits.lac_poll_s + limits.bookies.read_timeout_s
    try:
        answer = (await context.requests.ask(bookie, encode, timeout_s)).readResponse
    except ConnectionLostError:
        return False
    return from_v3(answer.status) is Status.OK and answer.maxLAC > after


async def write_lac(
    context: LedgerContext, ledger_id: int, metadata: LedgerMetadata, lac: int
) -> None:
    """Send the LAC to the bookies that hold that entry.

    A bookie that the packet does not reach gets the next one.
    """
    packet = encode_lac(ledger_id, lac, digester_of(metadata))
    encode = partial(
        encode_write_lac,
        ledger_id=ledger_id,
        lac=lac,
        master_key=master_key(metadata.password or b""),
        packet=packet,
    )
    ensemble = metadata.ensemble_at(lac)

    async def send(bookie: BookieId) -> None:
        try:
            await context.requests.ask(bookie, encode, context.limits.bookies.add_timeout_s)
        except ConnectionLostError:
            return  # Readers take the largest LAC that any bookie has.

    async with trio.open_nursery() as nursery:
        for position in metadata.quorums.write_set(lac):
            nursery.start_soon(send, ensemble[position])


class LacAnnouncer:
    """Sends the LAC of a writer that has become idle, so that readers see its last entry.

    A busy writer sends the LAC with its entries.  The announcer thus costs one message for each
    pause of `explicit_lac_s`, and nothing for a ledger without appends.
    """

    __slots__ = ("_announced", "_asleep", "_context", "_scope", "_work", "_writer")

    def __init__(self, context: LedgerContext, writer: LedgerWriter) -> None:
        self._context = context
        self._writer = writer
        self._announced = NO_ENTRY
        self._work = trio.Event()
        self._asleep = True  # until there is work
        self._scope = trio.CancelScope()
        context.nursery.start_soon(self._run)

    def confirmed(self) -> None:
        """Note that entries of the writer were confirmed; the owner of the writer calls this."""
        if self._asleep and not self._writer.pending_entries:
            self._asleep = False
            self._work.set()

    def stop(self) -> None:
        self._scope.cancel()

    async def _run(self) -> None:
        with self._scope:
            while self._writer.error is None:
                await self._work.wait()
                # The event is replaced first: a confirmation during the pause sets the new one.
                self._work, self._asleep = trio.Event(), True
                lac = await self._settled()
                if lac > self._announced and not self._writer.pending_entries:
                    self._announced = lac
                    await write_lac(
                        self._context, self._writer.ledger_id, self._writer.metadata, lac
                    )

    async def _settled(self) -> int:
        """Return the LAC once it has not moved for `explicit_lac_s`."""
        lac = NO_ENTRY
        while lac != self._writer.last_add_confirmed:
            lac = self._writer.last_add_confirmed
            await trio.sleep(self._context.limits.explicit_lac_s)
        return lac


class TailingReader:
    """Waits for an open ledger to grow; one task at a time may wait."""

    def __init__(self, context: LedgerContext, reader: LedgerReader) -> None:
        self._context = context
        self._reader = reader
        self._changed: trio.Event | None = None  # set when the metadata change

    async def look(self) -> int:
        """Ask all bookies for the LAC, and return the largest one that they can prove."""
        if self._context.metadata_store.reachable:
            self._reader.learn(
                await self._context.metadata_store.read(self._reader.ledger_id), None
            )
        await self._look_at_lac()
        return self._reader.last_add_confirmed

    async def wait(self, after: int) -> int:
        """Return the LAC once it is above `after` or the ledger is closed.

        Raise NoSuchLedgerError if the ledger is deleted.
        """
        limits = self._context.limits
        pause_s = limits.lac_pause_s
        while not self._arrived(after):
            if self._watch_is_gone and await self._look_again(after):
                continue
            await self._wait_for_a_hint(after)
            if await self._look_again(after):
                continue
            # The ledger is fenced and not yet closed, or no bookie answers.  Polls return at once
            # in both cases, so the pause keeps this loop from spinning.
            with trio.move_on_after(pause_s):
                await self._wait_for_change()
            pause_s = min(2 * pause_s, limits.lac_pause_s_max)
        return self._reader.last_add_confirmed

    @property
    def _watch_is_gone(self) -> bool:
        return self._changed is None or self._changed.is_set()

    def _arrived(self, after: int) -> bool:
        return self._reader.closed or self._reader.last_add_confirmed > after

    async def _look_again(self, after: int) -> bool:
        try:
            if self._watch_is_gone:
                await self._watch_metadata()
            if not self._reader.closed:
                await self._look_at_lac()
        except (ReadUnknownError, StoreUnavailableError):
            return False
        return self._arrived(after)

    async def _watch_metadata(self) -> None:
        if self._context.metadata_store.reachable:
            changed = trio.Event()
            stored = await self._context.metadata_store.read(self._reader.ledger_id, changed.set)
            self._changed = changed
            self._reader.learn(stored, None)

    async def _look_at_lac(self) -> None:
        stored = self._reader.stored
        if not stored.metadata.closed:
            last = await read_lac(self._context, self._reader.ledger_id, stored.metadata)
            self._reader.learn(stored, last)

    async def _wait_for_a_hint(self, after: int) -> None:
        """Return when the metadata change, a bookie reports a new LAC, or all polls have ended."""
        asking = 0

        async def poll(bookie: BookieId) -> None:
            nonlocal asking
            moved = await lac_moved(self._context, self._reader.ledger_id, bookie, after)
            asking -= 1
            if moved or not asking:
                nursery.cancel_scope.cancel()

        async def follow_metadata() -> None:
            await self._wait_for_change()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_metadata)
            for bookie in self._reader.metadata.last_fragment.ensemble:
                asking += 1
                nursery.start_soon(poll, bookie)

    async def _wait_for_change(self) -> None:
        if self._changed is None:
            await trio.sleep(inf)
        else:
            await self._changed.wait()
