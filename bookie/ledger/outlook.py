"""Whether a ledger whose writer can not go on could be recovered now.

A recovery that begins fences, and the writer can not go on after it; one that finds too few bookies
ends nothing.  So whoever could as well wait asks first.
"""

from functools import partial

import trio

from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.protocol.read import Verdict
from daybook.bookie.ledger.reader import verdict_of
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.wire.messages.bookie import Status
from daybook.wire.transport import Buffer


async def is_recoverable(context: LedgerContext, writer: LedgerWriter) -> bool:
    """By what its bookies say now, and fencing nothing: would its end be found?

    Of the entry behind the last one that was sent enough bookies have to say that they do not have
    it: the rest can not confirm anything then, and what lies before is there, or is not, for sure.
    A bookie that has lost records does not know, and does not count.

    LedgerError, MetadataError if its metadata cannot be had.
    """
    metadata = (await context.catalog.read(writer.ledger_id)).metadata
    if metadata.closed:
        return True
    ensemble, quorums = metadata.last_fragment.ensemble, metadata.quorums
    absent: set[int] = set()
    unheard = len(ensemble)
    decided = trio.Event()

    def heard(position: int, status: Status | None, entry: Buffer) -> None:
        nonlocal unheard
        unheard -= 1
        if verdict_of(status) is Verdict.ABSENT:
            absent.add(position)
        if not unheard or quorums.is_covered(absent):
            decided.set()

    behind = writer.last_add_pushed + 1
    for position, bookie in enumerate(ensemble):
        context.bookies.read(bookie, writer.ledger_id, behind, partial(heard, position))
    await decided.wait()
    return quorums.is_covered(absent)
