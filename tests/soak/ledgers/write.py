"""Writers of ledgers, one after the other: plain, with entry ids of the caller, or synced later.

A ledger is closed, abandoned, or resumed after an idle time; or another client ends it.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from random import Random

import trio

from daybook.clients import ledgers
from daybook.clients.ledgers.writer import LedgerHandle
from tests.history.ledger_events import Append, Confirmed, LedgerCreate, LedgerEnd, WriterStopped
from tests.soak.ledgers.worker import CUSTOM, PASSWORD, Worker, digest_of

_QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (5, 3, 2), (3, 3, 3), (4, 3, 2))
_SHUFFLED = 8  # an advanced writer shuffles the order of so many ids
_RETRY_S = 0.5
_CLOSE_TRIES = 5


@dataclass(frozen=True, slots=True)
class Draft:
    """The plan of one ledger."""

    manner: str
    quorums: tuple[int, int, int]
    digest: ledgers.Digest
    own_id: bool
    entries: int
    burst: int
    pace_s: float
    sizes: tuple[int, int]  # the least and the largest
    idle_s: float  # the pause in the middle; 0 for none
    ending: str  # close or abandon


def draw_draft(rng: Random) -> Draft:
    manner = rng.choice(["plain", "plain", "advanced", "deferred"])
    digests: list[ledgers.Digest] = ["crc32c", "crc32c", "crc32", "hmac"]
    large = rng.random() < 0.15
    return Draft(
        manner,
        rng.choice(_QUORUMS),
        rng.choice(digests),
        own_id=manner == "advanced" and rng.random() < 0.3,
        entries=rng.choice([1, 20, 300, 300, 1000, 3000]) // (10 if large else 1) or 1,
        burst=rng.choice([1, 5, 20, 60]),
        pace_s=rng.choice([0.05, 0.1, 0.2]),
        sizes=(5_000, 60_000) if large else rng.choice([(0, 50), (100, 1500)]),
        idle_s=rng.uniform(5.0, 20.0) if rng.random() < 0.2 else 0.0,
        ending=rng.choice(["close", "close", "abandon"]),
    )


async def write(worker: Worker, client: ledgers.Client, number: int) -> None:
    """Write ledgers until cancelled."""
    for serial in count():
        rng = worker.rng(f"{number}/{serial}")
        writing = _Writing(worker, f"{worker.name}/{number}/{serial}", draw_draft(rng), rng)
        try:
            handle = await _create(worker, client, writing.draft, rng)
        except ledgers.LedgerError:
            await trio.sleep(_RETRY_S)  # The ledger may exist now; a recoverer will find it.
            continue
        await writing.write(handle)


async def _create(
    worker: Worker, client: ledgers.Client, draft: Draft, rng: Random
) -> LedgerHandle:
    create = {
        "plain": client.create,
        "advanced": client.create_advanced,
        "deferred": client.create_deferred,
    }[draft.manner]
    ensemble, write_quorum, ack_quorum = draft.quorums
    ledger_id = worker.own_ids + rng.randrange(1 << 39) if draft.own_id else None
    return await create(
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest=draft.digest,
        password=PASSWORD,
        ledger_id=ledger_id,
        custom=CUSTOM,
    )


class _Writing:
    """The writing of one ledger."""

    def __init__(self, worker: Worker, name: str, draft: Draft, rng: Random) -> None:
        self.draft = draft
        self._worker = worker
        self._name = name
        self._rng = rng
        self._confirmed = -1

    async def write(self, handle: LedgerHandle) -> None:
        """Write the ledger to its end, or until an error; record the way it ended."""
        ledger, draft, worker = handle.ledger_id, self.draft, self._worker
        worker.note(LedgerCreate(ledger, self._name, draft.quorums, draft.manner))
        try:
            async for _ in self._paced():
                await self._append_burst(handle)
                self._note_confirmed(handle)
            if draft.ending == "close":
                await self._close(handle)
            else:
                self._note_confirmed(handle)
                worker.note(WriterStopped(ledger, self._name, "abandoned"))
        except ledgers.LedgerError as error:
            self._note_confirmed(handle)
            worker.note(WriterStopped(ledger, self._name, type(error).__name__))
        handle.abandon()

    async def _paced(self) -> AsyncIterator[None]:
        """Yield for each burst; pause longer in the middle."""
        bursts = -(-self.draft.entries // self.draft.burst)
        for number in range(bursts):
            yield
            idle = self.draft.idle_s if number == bursts // 2 else 0.0
            await trio.sleep(idle or self._rng.expovariate(1 / self.draft.pace_s))

    async def _append_burst(self, handle: LedgerHandle) -> None:
        first = handle.last_add_pushed + 1
        match handle:
            case ledgers.AdvancedWriter():
                entries = list(range(first, first + self.draft.burst))
                for start in range(0, len(entries), _SHUFFLED):
                    some = entries[start : start + _SHUFFLED]
                    self._rng.shuffle(some)
                    for entry in some:
                        await handle.append_soon(entry, self._payload(handle.ledger_id, entry))
            case ledgers.Writer():
                for entry in range(first, first + self.draft.burst):
                    given = await handle.append_soon(self._payload(handle.ledger_id, entry))
                    assert given == entry
            case _:
                raise ValueError(handle)
        if self._rng.random() < 0.2:
            await handle.flush()  # With deferred sync, this forces.

    def _payload(self, ledger: int, entry: int) -> bytes:
        """Make the payload of an entry, and record that it is about to be sent."""
        name = f"{self._name} {entry} ".encode()
        data = (name + self._rng.randbytes(self._rng.randint(*self.draft.sizes)))[:70_000]
        self._worker.note(Append(ledger, self._name, entry, digest_of(data), len(data)))
        return data

    def _note_confirmed(self, handle: LedgerHandle) -> None:
        if handle.last_add_confirmed > self._confirmed:
            self._confirmed = handle.last_add_confirmed
            self._worker.note(Confirmed(handle.ledger_id, self._name, self._confirmed))

    async def _close(self, handle: LedgerHandle) -> None:
        for attempt in count(1):
            try:
                await handle.close()
                break
            except (ledgers.MetadataUnavailableError, ledgers.MetadataInDoubtError):
                if attempt == _CLOSE_TRIES:
                    raise
                await trio.sleep(_RETRY_S)
        self._note_confirmed(handle)
        metadata = handle.metadata
        end = LedgerEnd(
            handle.ledger_id, self._name, metadata.last_entry_id, metadata.length, "close"
        )
        self._worker.note(end)
