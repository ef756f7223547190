"""How far an open ledger has got, beyond what its entries say: LACs that are told by themselves.

An entry carries the LAC from before it, so nobody learns of the last entry from the entries alone.
A writer that is idle therefore tells its LAC (`LacAnnouncer`), in a packet with a digest of its
own; a reader asks for the newest entry and the newest packet (`read_lac`), or to be told when there
is something new (`lac_moved`).

What is believed has a digest: a LAC that a bookie merely says is a hint to look.  A LAC that was
confirmed stays confirmed, so any copy of one will do, and the largest is the one to take.

FROM follower: Follows a ledger while its writer appends: waits until there is more to read.

Two things tell that a ledger has grown: bookies, which are asked to say when the LAC moves (a long
poll to each member of the last ensemble: with striping, no single one hears of every entry), and
its record in the metadata store, which is watched for another ensemble and for the end.  Both only
say "look again".

Bookies and metadata stores that are away for a while are waited for: what a follower knows stays
true, and it goes on when one of them is back.  It fences nobody, and the writer does not notice.
"""

from functools import partial
from math import inf
from typing import Protocol

import trio

from daybook.bookie.errors import LedgerError, ReadUnknownError
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import NO_ENTRY, BookieId
from daybook.bookie.ledger.reader import LastConfirmed, LedgerReader, digester_of
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
    """The largest LAC that the bookies of the last fragment can prove; fences nothing.

    Asks all, and waits for so many that no confirmed entry can be unknown to them.
    ReadUnknownError if nobody answers.
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
    """What one bookie can prove; None if it knows nothing of the ledger."""
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
    if answer.HasField("lastEntryBody"):
        entry = decode_entry(memoryview(answer.lastEntryBody), digester, ledger_id, None)
        lac, length, entry_id = entry.lac, entry.length, entry.entry_id
    if answer.HasField("lacBody"):
        lac = max(lac, decode_lac(memoryview(answer.lacBody), digester, ledger_id))
    return LastConfirmed(lac, length, entry_id) if lac > NO_ENTRY or length else None


async def lac_moved(context: LedgerContext, ledger_id: int, bookie: BookieId, after: int) -> bool:
    """Wait until the bookie says that the LAC is above `after`; False if it says anything else.

    A hint.  It waits for `lac_poll_s` at most, and not at all once the ledger is fenced.
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
    """Tell the LAC to the bookies that hold that entry; whom it does not reach hears it later."""
    packet = encode_lac(ledger_id, lac, digester_of(metadata))
    encode = partial(
        encode_write_lac,
        ledger_id=ledger_id,
        lac=lac,
        master_key=master_key(metadata.password or b""),
        packet=packet,
    )
    ensemble = metadata.ensemble_at(lac)

    async def tell(bookie: BookieId) -> None:
        try:
            await context.requests.ask(bookie, encode, context.limits.bookies.add_timeout_s)
        except ConnectionLostError:
            return  # Readers believe the largest LAC that anybody has.

    async with trio.open_nursery() as nursery:
        for position in metadata.quorums.write_set(lac):
            nursery.start_soon(tell, ensemble[position])


class Announced(Protocol):
    """What is needed of a writer."""

    ledger_id: int

    @property
    def metadata(self) -> LedgerMetadata: ...

    @property
    def last_add_confirmed(self) -> int: ...

    @property
    def pending_entries(self) -> int: ...

    @property
    def error(self) -> LedgerError | None: ...


class LacAnnouncer:
    """Tells the LAC of a writer that has become idle, so that readers see its last entry, too.

    A writer that goes on appending tells it with its entries; so this costs a message for each
    pause of `explicit_lac_s`, and nothing for a ledger to which nothing is added.
    """

    def __init__(self, context: LedgerContext, writer: Announced) -> None:
        self._context = context
        self._writer = writer
        self._told = NO_ENTRY
        self._work = trio.Event()
        self._scope = trio.CancelScope()
        context.nursery.start_soon(self._run)

    def confirmed(self) -> None:
        """To be called when entries of the writer were confirmed."""
        if not self._work.is_set() and not self._writer.pending_entries:
            self._work.set()

    def stop(self) -> None:
        self._scope.cancel()

    async def _run(self) -> None:
        with self._scope:
            while self._writer.error is None:
                await self._work.wait()
                self._work = trio.Event()
                lac = await self._settled()
                if lac > self._told and not self._writer.pending_entries:
                    self._told = lac
                    await write_lac(
                        self._context, self._writer.ledger_id, self._writer.metadata, lac
                    )

    async def _settled(self) -> int:
        """The LAC, when it has not moved for a while."""
        lac = NO_ENTRY
        while lac != self._writer.last_add_confirmed:
            lac = self._writer.last_add_confirmed
            await trio.sleep(self._context.limits.explicit_lac_s)
        return lac


class TailingReader:
    """One task at a time may wait.  See `LedgerClient.follower`."""

    def __init__(self, context: LedgerContext, reader: LedgerReader) -> None:
        self._context = context
        self._reader = reader
        self._changed: trio.Event | None = None  # the watch that lies on the metadata

    async def look(self) -> int:
        """Ask all bookies how far the ledger has got, as far as they can prove it; the LAC."""
        if self._context.metadata_store.reachable:
            self._reader.learn(
                await self._context.metadata_store.read(self._reader.ledger_id), None
            )
        await self._look_at_lac()
        return self._reader.last_add_confirmed

    async def wait(self, after: int) -> int:
        """Return the LAC when it is above `after`, or the ledger is closed.

        NoSuchLedgerError if it is deleted.
        """
        limits = self._context.limits
        pause_s = limits.lac_pause_s
        while not self._arrived(after):
            if self._watch_is_gone and await self._look_again(after):
                continue
            await self._wait_for_a_hint(after)
            if await self._look_again(after):
                continue
            # Fenced and not closed yet, or nobody answers: then polls do not wait.
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
        """Until the metadata change, a bookie says that the LAC moved, or none has more to say."""
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
