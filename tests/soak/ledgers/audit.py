"""The check after the faults: every ledger is opened with recovery and read from 0 to its end."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from zlib import crc32

import trio

from daybook.clients import ledgers
from tests.history.ledger_events import LedgerEnd, LedgerRead
from tests.soak.ledgers.read import note_entries, note_negative
from tests.soak.ledgers.worker import PASSWORD, Worker

_LIVENESS_S = 180.0
_LEDGER_S = 1.0  # the additional time for each ledger
_AT_ONCE = 8
_RETRY_S = 0.5
_SHOWN_MAX = 9


async def audit(
    zookeeper: str, worker: Worker, contents: dict[int, int], violations: list[str]
) -> None:
    """Recover and read all ledgers of the worker's round, and record the results for the judge.

    A ledger that cannot be read is a violation of its own.
    """
    async with ledgers.connect(f"zk://{zookeeper}/ledgers") as client:
        listed = await _list_ours(client, worker)
        with trio.move_on_after(_LIVENESS_S + _LEDGER_S * len(listed)) as scope:
            await _for_each(listed, partial(_audit_ledger, worker, client, contents, violations))
        if scope.cancelled_caught:
            missing = [each for each in listed if each not in contents]
            shown = ", ".join(map(str, missing[:_SHOWN_MAX]))
            violations.append(f"liveness: {len(missing)} ledgers cannot be read, as {shown}")


async def _list_ours(client: ledgers.Client, worker: Worker) -> list[int]:
    """List the ledgers that the clients of this round have created."""
    found: list[int] = []
    async for ledger in client.list_ledgers():
        if worker.of_this_round(ledger):
            with suppress(ledgers.NoSuchLedgerError):  # A broker may delete its ledger meanwhile.
                if await worker.is_ours(client, ledger):
                    found.append(ledger)
    return found


async def _audit_ledger(
    worker: Worker,
    client: ledgers.Client,
    contents: dict[int, int],
    violations: list[str],
    ledger: int,
) -> None:
    name = f"{worker.name}/{worker.number}/{ledger}"
    reading = _Reading(ledger)
    ended = False
    while True:
        try:
            reader = await client.open(ledger, recover=True, password=PASSWORD)
            last = reader.last_add_confirmed
            if not ended:
                worker.note(LedgerEnd(ledger, name, last, reader.length, "recovery"))
                ended = True
            await reading.read(reader, partial(note_entries, worker, ledger, name))
            break
        except ledgers.LedgerError as error:
            note_negative(worker, ledger, name, error)
            if error.remedy is not ledgers.Remedy.RETRY:
                violations.append(f"unreadable: ledger {ledger}: {error}")
                return
            await trio.sleep(_RETRY_S)
    worker.note(LedgerRead(ledger, name))
    contents[ledger] = reading.checksum


async def compare(zookeeper: str, contents: dict[int, int], violations: list[str]) -> None:
    """Read each ledger once more, much later, and check that its contents are the same."""
    async with ledgers.connect(f"zk://{zookeeper}/ledgers") as client:
        with trio.move_on_after(_LIVENESS_S + _LEDGER_S * len(contents)) as scope:
            await _for_each(contents, partial(_compare_ledger, client, contents, violations))
        if scope.cancelled_caught:
            violations.append("liveness: not all ledgers could be read once more")


async def _compare_ledger(
    client: ledgers.Client, contents: dict[int, int], violations: list[str], ledger: int
) -> None:
    reading = _Reading(ledger)
    while True:
        try:
            await reading.read(await client.open(ledger, recover=True, password=PASSWORD))
            break
        except ledgers.LedgerError as error:
            if error.remedy is not ledgers.Remedy.RETRY:
                violations.append(f"unreadable: ledger {ledger}, once more: {error}")
                return
            await trio.sleep(_RETRY_S)
    if reading.checksum != contents[ledger]:
        violations.append(f"changed: ledger {ledger} has other contents than it had")


class _Reading:
    """Reads a ledger from its first entry; after an error it resumes where it was."""

    def __init__(self, ledger: int) -> None:
        self.checksum = ledger
        self._next = 0

    async def read(
        self,
        reader: ledgers.Reader,
        take: Callable[[list[ledgers.Entry]], None] = lambda batch: None,
    ) -> None:
        if self._next > reader.last_add_confirmed:
            return
        stream = reader.read(self._next, reader.last_add_confirmed)
        while batch := await stream.next_batch():
            take(batch)
            self._next = batch[-1].entry_id + 1
            for entry in batch:
                self.checksum = crc32(entry.data, self.checksum & 0xFFFFFFFF)


async def _for_each(ledger_ids: Iterable[int], work: Callable[[int], Awaitable[None]]) -> None:
    """Do the work for a few ledgers at a time."""
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def one(ledger: int) -> None:
        async with limiter:
            await work(ledger)

    async with trio.open_nursery() as nursery:
        for ledger in ledger_ids:
            nursery.start_soon(one, ledger)
