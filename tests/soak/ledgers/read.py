"""Readers that follow ledgers, or read ranges, while ledgers are written and recovered."""

from itertools import count
from random import Random

import trio

from daybook.clients import ledgers
from tests.history.ledger_events import Entries, LacSeen, LedgerEnd, NoEntry
from tests.soak.ledgers.worker import PASSWORD, Worker, digest_of

_PAUSE_S = (0.1, 1.0)
_FOLLOW_S = (2.0, 40.0)


async def read(worker: Worker, client: ledgers.Client, number: int) -> None:
    """Read ledgers until cancelled."""
    rng = worker.rng(number)
    for serial in count():
        await trio.sleep(rng.uniform(*_PAUSE_S))
        ledger = await worker.choose(client, rng)
        if ledger is None:
            continue
        name = f"{worker.name}/{number}/{serial}"
        try:
            await _read_somehow(worker, client, ledger, name, rng)
        except ledgers.LedgerError as error:
            note_negative(worker, ledger, name, error)


async def _read_somehow(
    worker: Worker, client: ledgers.Client, ledger: int, name: str, rng: Random
) -> None:
    reader = await client.open(ledger, recover=False, password=PASSWORD)
    note_place(worker, reader, name)
    match rng.choice(["tail", "tail", "all", "range", "range", "look"]):
        case "tail":
            await _follow(worker, reader, name, rng)
        case "all":
            await read_range(worker, reader, name, 0, reader.last_add_confirmed)
        case "range":
            for number in range(rng.randint(1, 20)):
                if reader.last_add_confirmed < 0:
                    break
                first = rng.randint(0, reader.last_add_confirmed)
                last = min(first + rng.choice([0, 5, 100]), reader.last_add_confirmed)
                await read_range(worker, reader, f"{name}.{number}", first, last)
        case _:
            await reader.read_last_add_confirmed()
            note_place(worker, reader, name)


async def _follow(worker: Worker, reader: ledgers.Reader, name: str, rng: Random) -> None:
    with trio.move_on_after(rng.uniform(*_FOLLOW_S)):
        tail = reader.tail()
        while batch := await tail.next_batch():
            note_entries(worker, reader.ledger_id, name, batch)
        note_place(worker, reader, name)


async def read_range(
    worker: Worker, reader: ledgers.Reader, name: str, first: int, last: int
) -> None:
    """Read from `first` to `last`, both included; read nothing if `last` is before `first`."""
    if last >= first:
        stream = reader.read(first, last)
        while batch := await stream.next_batch():
            note_entries(worker, reader.ledger_id, name, batch)


def note_place(worker: Worker, reader: ledgers.Reader, name: str) -> None:
    """Record the end of the ledger, or the last confirmed entry that the reader knows."""
    ledger, last = reader.ledger_id, reader.last_add_confirmed
    if reader.closed:
        worker.note(LedgerEnd(ledger, name, last, reader.length, "read"))
    elif last >= 0:
        worker.note(LacSeen(ledger, name, last))


def note_negative(worker: Worker, ledger: int, name: str, error: ledgers.LedgerError) -> None:
    """Record an absence if it is certain; other errors may be temporary."""
    match error:
        case ledgers.NoSuchEntryError():
            worker.note(NoEntry(ledger, name, error.entry_id))
        case ledgers.NoSuchLedgerError():
            worker.note(NoEntry(ledger, name, -1))
        case _:
            pass


def note_entries(worker: Worker, ledger: int, name: str, batch: list[ledgers.Entry]) -> None:
    """Record that the reader has received these entries."""
    digests = tuple(digest_of(entry.data) for entry in batch)
    worker.note(Entries(ledger, name, batch[0].entry_id, digests))
