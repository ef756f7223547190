"""Recoverers of ledgers that are being written, that dead writers left, or that are closed.

Sometimes two clients recover one ledger at once; sometimes the ledger is deleted afterwards.
"""

from contextlib import suppress
from itertools import count

import trio

from daybook.clients import ledgers
from tests.history.ledger_events import LedgerDelete, LedgerEnd, Recover
from tests.soak.ledgers.read import note_negative, read_range
from tests.soak.ledgers.worker import PASSWORD, Worker

_PACE_S = 2.0
_PATIENCE_S = 10.0
_AT_ONCE = 0.3  # the share of recoveries with a second one at the same time
_DELETED = 0.03


async def recover(worker: Worker, client: ledgers.Client, number: int) -> None:
    """Recover ledgers until cancelled."""
    rng = worker.rng(number)
    for serial in count():
        await trio.sleep(rng.expovariate(1 / _PACE_S))
        ledger = await worker.choose(client, rng)
        if ledger is None:
            continue
        names = [f"{worker.name}/{number}/{serial}"]
        if rng.random() < _AT_ONCE:
            names.append(f"{names[0]}b")
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(_recover_once, worker, client, ledger, name)
        if rng.random() < _DELETED:
            await _delete(worker, client, ledger, names[0])


async def _recover_once(worker: Worker, client: ledgers.Client, ledger: int, name: str) -> None:
    worker.note(Recover(ledger, name))
    try:
        reader = await client.open(ledger, recover=True, password=PASSWORD, patience_s=_PATIENCE_S)
        last = reader.last_add_confirmed
        worker.note(LedgerEnd(ledger, name, last, reader.length, "recovery"))
        await read_range(worker, reader, name, 0, last)
    except ledgers.LedgerError as error:
        note_negative(worker, ledger, name, error)


async def _delete(worker: Worker, client: ledgers.Client, ledger: int, name: str) -> None:
    """Delete the ledger, even while it is being written."""
    worker.note(LedgerDelete(ledger, name))
    with suppress(ledgers.LedgerError):  # The ledger may be deleted in spite of the error.
        await client.delete(ledger)
