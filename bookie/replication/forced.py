"""Ends a ledger that recovery can never end: the shell of `protocol.accept_loss`.

Given up are the bookies of its last fragment that are not registered, and those that say that they
do not know what they had.  One that is registered and silent may be well in a moment: it is not.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import trio

from bookie.ledger.catalog import StoredMetadata
from bookie.ledger.context import LedgerContext
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.protocol.placement import BookieId
from bookie.ledger.recoverer import recover_ledger
from bookie.registry import readonly_bookies, writable_bookies
from bookie.replication.protocol.accept_loss import AcceptLoss
from wire.errors import ConnectionLostError
from wire.messages.bookie import LAST_ENTRY, Status
from wire.messages.bookie_v3 import encode_read, from_v3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """`lost_from` may have been confirmed, and what was behind it; None if nothing was given up."""

    stored: StoredMetadata
    given_up: Sequence[BookieId]
    lost_from: int | None


async def accept_loss(
    context: LedgerContext, ledger_id: int, stored: StoredMetadata
) -> AcceptedLoss:
    """Fence, recover and close, taking those who cannot know for a no.

    RecoveryAbortedError if somebody who may know does not answer.
    """
    given_up = await _given_up(context, ledger_id, stored.metadata)
    attempts: list[AcceptLoss] = []

    def make_protocol(metadata: LedgerMetadata, reads_max: int) -> AcceptLoss:
        protocol = AcceptLoss(
            metadata.quorums, metadata.fragments, given_up=given_up, reads_max=reads_max
        )
        attempts.append(protocol)
        return protocol

    closed = await recover_ledger(context, ledger_id, stored, make_protocol)
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
    store, paths = context.catalog.store, context.catalog.paths
    await store.sync(paths.available)
    here = {*await writable_bookies(store, paths), *await readonly_bookies(store, paths)}
    given_up: list[BookieId] = []

    async def ask(bookie: BookieId) -> None:
        encode = partial(encode_read, ledger_id=ledger_id, entry_id=LAST_ENTRY)
        try:
            answer = await context.exchange.ask(
                bookie, encode, context.limits.bookies.read_timeout_s
            )
        except ConnectionLostError:
            return
        if from_v3(answer.status) is Status.UNKNOWN_LEDGER_STATE:
            given_up.append(bookie)

    async with trio.open_nursery() as nursery:
        for bookie in metadata.last_fragment.ensemble:
            if bookie in here:
                nursery.start_soon(ask, bookie)
            else:
                given_up.append(bookie)
    return sorted(given_up)
