"""Unsafe recovery of a ledger that recovery can never close: the shell of `protocol.accept_loss`.

A bookie of the last fragment is given up if it is not registered, if it answers that it is in
doubt, or if it has the decisive entry and cannot read it.  A bookie that is registered and silent
is not given up: it may answer in a moment.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import trio

from daybook.bookie.errors import RecoveryAbortedError
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.recovery import recover_ledger
from daybook.bookie.registry.registrations import readonly_bookies, writable_bookies
from daybook.bookie.replication.protocol.accept_loss import AcceptLoss
from daybook.wire.errors import ConnectionLostError
from daybook.wire.messages.bookie import LAST_ENTRY, Status
from daybook.wire.messages.bookie_v3 import encode_read, from_v3

_NEVER = 1 << 62  # an entry id that no ledger reaches
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Entries from `lost_from` on may be lost though confirmed; None if none were given up."""

    stored: StoredMetadata
    given_up: Sequence[BookieId]
    lost_from: int | None


async def accept_loss(
    context: LedgerContext, ledger_id: int, stored: StoredMetadata
) -> AcceptedLoss:
    """Fence, recover and close the ledger; bookies that are given up count as a no.

    Raise RecoveryAbortedError if a bookie that may know an entry does not answer.
    """
    given_up = await _given_up(context, ledger_id, stored.metadata)
    attempts: list[AcceptLoss] = []

    def make_protocol(metadata: LedgerMetadata, reads_max: int) -> AcceptLoss:
        protocol = AcceptLoss(
            metadata.quorums, metadata.fragments, given_up=given_up, reads_max=reads_max
        )
        attempts.append(protocol)
        return protocol

    while True:
        try:
            closed = await recover_ledger(context, ledger_id, stored, make_protocol)
            break
        except RecoveryAbortedError:
            # A bookie that answers "unknown" or fails to read this entry will never say more.
            stuck = attempts[-1].stuck if attempts else None
            if stuck is None:
                raise
            stored = await context.metadata_store.read(ledger_id)
            more = await _who_cannot_say(context, ledger_id, stored.metadata, stuck)
            if set(more) <= set(given_up):
                raise  # Another attempt would end in the same way.
            given_up = sorted({*given_up, *more})
    lost_from = attempts[-1].lost_from if attempts else None
    _log.warning(
        "ledger %d was closed at entry %d with loss accepted: given up were %s; %s",
        ledger_id,
        closed.metadata.last_entry_id,
        ", ".join(given_up) or "none",
        "nothing was in doubt" if lost_from is None else f"lost may be entry {lost_from} and on",
    )
    return AcceptedLoss(closed, given_up, lost_from)


async def _given_up(
    context: LedgerContext, ledger_id: int, metadata: LedgerMetadata
) -> list[BookieId]:
    store, paths = context.metadata_store.store, context.metadata_store.paths
    await store.sync(paths.available)
    here = {*await writable_bookies(store, paths), *await readonly_bookies(store, paths)}
    away = [bookie for bookie in metadata.last_fragment.ensemble if bookie not in here]
    # A bookie in doubt answers "unknown" for an entry it never had; it knows its own.
    in_doubt = await _who_cannot_say(context, ledger_id, metadata, _NEVER)
    # A bookie that cannot read its last entry cannot confirm a fence either.
    mute = await _who_cannot_say(context, ledger_id, metadata, LAST_ENTRY)
    return sorted({*away, *in_doubt, *mute})


async def _who_cannot_say(
    context: LedgerContext, ledger_id: int, metadata: LedgerMetadata, entry_id: int
) -> list[BookieId]:
    """Return the last fragment's bookies that answer, but neither with the entry nor "no"."""
    found: list[BookieId] = []

    async def ask(bookie: BookieId) -> None:
        encode = partial(encode_read, ledger_id=ledger_id, entry_id=entry_id)
        timeout_s = context.limits.bookies.read_timeout_s
        try:
            answer = await context.requests.ask(bookie, encode, timeout_s)
        except ConnectionLostError:
            return
        if from_v3(answer.status) in (Status.UNKNOWN_LEDGER_STATE, Status.IO_ERROR):
            found.append(bookie)

    async with trio.open_nursery() as nursery:
        for bookie in metadata.last_fragment.ensemble:
            nursery.start_soon(ask, bookie)
    return sorted(found)
