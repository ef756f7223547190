"""How far an open ledger has got, beyond what its entries say: LACs that are told by themselves.

An entry carries the LAC from before it, so nobody learns of the last entry from the entries alone.
A writer that is idle therefore tells its LAC (`LacAnnouncer`), in a packet with a digest of its
own; a reader asks for the newest entry and the newest packet (`read_lac`), or to be told when there
is something new (`lac_moved`).

What is believed has a digest: a LAC that a bookie merely says is a hint to look.  A LAC that was
confirmed stays confirmed, so any copy of one will do, and the largest is the one to take.
"""

from functools import partial
from typing import Protocol

import trio

from daybook.bookie.errors import LedgerError, ReadUnknownError
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import NO_ENTRY, BookieId
from daybook.bookie.ledger.reader import LastConfirmed, digester_of
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
    answer = (await context.exchange.ask(bookie, encode, timeout_s)).readLacResponse
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
        answer = (await context.exchange.ask(bookie, encode, timeout_s)).readResponse
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
            await context.exchange.ask(bookie, encode, context.limits.bookies.add_timeout_s)
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
