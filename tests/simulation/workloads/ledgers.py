"""Ledgers without brokers: written in every manner, tailed, taken over, read.

Confirmed entries are on disks in either way: through each add, or through a force.  A ledger may
end closed, abandoned, taken over while it is written, or left by a killed writer.  `read_all` is
the end of a run: each ledger is closed, and read whole.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from zlib import crc32

import trio

from daybook.clients import ledgers
from daybook.clients.ledgers.writer import LedgerHandle
from tests.history.events import Event
from tests.history.ledger_events import (
    Append,
    Confirmed,
    Entries,
    LacSeen,
    LedgerCreate,
    LedgerEnd,
    LedgerRead,
    NoEntry,
    Recover,
    WriterStopped,
)
from tests.history.recorder import Recorder
from tests.simulation.plan import WatchLedgers, WriteLedgers
from tests.simulation.workloads.messages import payload
from tests.simulation.workloads.stage import Stage

_AGAIN_S = 0.3
_CLOSE_TRIES = 5
_PATIENCE_S = 5.0  # for taking a ledger over
_WRITERS = {
    "plain": "a plain writer",
    "advanced": "an advanced writer",
    "deferred": "a deferred writer",
}
_SHUFFLED = 4  # ids of an advanced writer come out of order within so many


@dataclass(slots=True)
class LedgerActor:
    """A client of ledgers that notes its actions."""

    scene: Stage
    client: ledgers.Client
    recorder: Recorder

    def note(self, event: Event) -> None:
        self.recorder.note(event)

    def mark(self, what: str) -> None:
        self.scene.marks[what] += 1


# -- writing


async def write_ledgers(scene: Stage, client: ledgers.Client, work: WriteLedgers) -> None:
    """Write one ledger after the other, until the storm is over."""
    rng = scene.rng(work.name)
    actor = LedgerActor(scene, client, scene.recorder(work.name))
    left = work.ledgers
    while left and not scene.calm.is_set():
        try:
            handle = await _create(client, work)
        except ledgers.LedgerError:
            await scene.wait_calm(_AGAIN_S)  # The ledger may exist now; nobody has its id.
            continue
        left -= 1
        await _Writing(actor, work, rng, f"{work.name}.{scene.number(work.name)}").run(handle)


async def _create(client: ledgers.Client, work: WriteLedgers) -> LedgerHandle:
    create = {
        "plain": client.create,
        "advanced": client.create_advanced,
        "deferred": client.create_deferred,
    }[work.manner]
    ensemble, write_quorum, ack_quorum = work.quorums
    return await create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)


class _Writing:
    """One ledger, from its creation to the end that its writer chooses."""

    def __init__(self, actor: LedgerActor, work: WriteLedgers, rng: Random, name: str) -> None:
        self._actor = actor
        self._work = work
        self._rng = rng
        self._name = name
        self._confirmed = -1

    async def run(self, handle: LedgerHandle) -> None:
        actor, work, scene = self._actor, self._work, self._actor.scene
        ledger = handle.ledger_id
        actor.note(LedgerCreate(ledger, self._name, work.quorums, work.manner))
        scene.ledgers[ledger] = None
        try:
            while handle.last_add_pushed + 1 < work.entries and not scene.calm.is_set():
                await self._append_burst(handle)
                self._note_confirmed(handle)
                await scene.wait_calm(self._rng.expovariate(1 / work.pace_s))
            if self._rng.random() < work.abandon:
                self._stopped(handle, "abandoned")
            else:
                await self._close(handle)
        except ledgers.LedgerError as error:
            actor.mark(f"a writer of a ledger met {type(error).__name__}")
            self._stopped(handle, type(error).__name__)
        handle.abandon()

    async def _append_burst(self, handle: LedgerHandle) -> None:
        first = handle.last_add_pushed + 1
        entries = list(range(first, min(first + self._work.burst, self._work.entries)))
        match handle:
            case ledgers.AdvancedWriter():
                for start in range(0, len(entries), _SHUFFLED):
                    some = entries[start : start + _SHUFFLED]
                    self._rng.shuffle(some)
                    for entry in some:
                        await handle.append_soon(entry, self._data(handle.ledger_id, entry))
            case ledgers.Writer():
                for entry in entries:
                    given = await handle.append_soon(self._data(handle.ledger_id, entry))
                    assert given == entry
            case _:
                raise ValueError(handle)
        if self._rng.random() < self._work.flush:
            await handle.flush()  # flush forces if that is needed
            self._actor.mark(f"{_WRITERS[self._work.manner]} flushed")

    def _data(self, ledger: int, entry: int) -> bytes:
        """Note that an entry is about to be sent, and return its data."""
        data = payload(f"{self._name}/{entry}", self._work.payload_bytes)
        self._actor.note(Append(ledger, self._name, entry, _digest(data), len(data)))
        return data

    def _note_confirmed(self, handle: LedgerHandle) -> None:
        if handle.last_add_confirmed > self._confirmed:
            self._confirmed = handle.last_add_confirmed
            self._actor.note(Confirmed(handle.ledger_id, self._name, self._confirmed))

    def _stopped(self, handle: LedgerHandle, why: str) -> None:
        self._note_confirmed(handle)
        self._actor.note(WriterStopped(handle.ledger_id, self._name, why))

    async def _close(self, handle: LedgerHandle) -> None:
        for attempt in range(1, _CLOSE_TRIES + 1):
            try:
                await handle.close()
                break
            except (ledgers.MetadataUnavailableError, ledgers.MetadataInDoubtError):
                if attempt == _CLOSE_TRIES:
                    raise
                await trio.sleep(_AGAIN_S)
        self._note_confirmed(handle)
        end, metadata = handle.ledger_id, handle.metadata
        self._actor.note(
            LedgerEnd(end, self._name, metadata.last_entry_id, metadata.length, "close")
        )
        self._actor.mark(f"{_WRITERS[self._work.manner]} closed its ledger")


# -- watching


async def watch_ledgers(scene: Stage, client: ledgers.Client, work: WatchLedgers) -> None:
    """Watch other clients' ledgers, one after the other, until the storm is over."""
    rng = scene.rng(work.name)
    actor = LedgerActor(scene, client, scene.recorder(work.name))
    act = {"follow": _follow, "recover": _recover}[work.how]
    while not await scene.wait_calm(rng.expovariate(1 / work.pace_s)):
        if scene.ledgers:
            ledger = rng.choice(list(scene.ledgers))
            name = f"{work.name}.{scene.number(work.name)}"
            await _noting_no(actor, ledger, name, act)


_Act = Callable[[LedgerActor, int, str], Awaitable[None]]


async def _noting_no(actor: LedgerActor, ledger: int, name: str, act: _Act) -> bool:
    """Return False if the action failed.  Only certain failures are noted; the others may pass."""
    try:
        await act(actor, ledger, name)
    except ledgers.NoSuchEntryError as error:
        actor.note(NoEntry(ledger, name, error.entry_id))
    except ledgers.NoSuchLedgerError:
        actor.note(NoEntry(ledger, name, -1))
    except ledgers.LedgerError:
        return False
    return True


async def _follow(actor: LedgerActor, ledger: int, name: str) -> None:
    """Tail the ledger until its end, or until the storm is over."""
    reader = await actor.client.open(ledger, recover=False)
    _note_place(actor, reader, name)
    async with trio.open_nursery() as nursery:

        async def until_calm() -> None:
            await actor.scene.calm.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_calm)
        try:
            tail = reader.tail()
            while batch := await tail.next_batch():
                _note_entries(actor, ledger, name, batch)
            actor.mark("a ledger was followed to its end")
        except ledgers.LedgerError as error:
            actor.mark(f"a follower of a ledger met {type(error).__name__}")
        nursery.cancel_scope.cancel()
    _note_place(actor, reader, name)


async def _recover(actor: LedgerActor, ledger: int, name: str) -> None:
    """Recover the ledger; its writer, if alive, is stopped by that."""
    actor.note(Recover(ledger, name))
    reader = await actor.client.open(ledger, recover=True, patience_s=_PATIENCE_S)
    actor.mark("a ledger was taken over")
    _note_place(actor, reader, name, "recovery")
    await _read(actor, reader, name)


async def _read(actor: LedgerActor, reader: ledgers.Reader, name: str) -> None:
    stream = reader.read()
    while batch := await stream.next_batch():
        _note_entries(actor, reader.ledger_id, name, batch)


def _note_place(actor: LedgerActor, reader: ledgers.Reader, name: str, how: str = "read") -> None:
    """Note the reader's LAC, or its end, as the reader was told."""
    ledger, last = reader.ledger_id, reader.last_add_confirmed
    if reader.closed:
        actor.note(LedgerEnd(ledger, name, last, reader.length, how))
    elif last >= 0:
        actor.note(LacSeen(ledger, name, last))


def _note_entries(actor: LedgerActor, ledger: int, name: str, batch: list[ledgers.Entry]) -> None:
    digests = tuple(_digest(bytes(entry.data)) for entry in batch)
    actor.note(Entries(ledger, name, batch[0].entry_id, digests))


def _digest(data: bytes) -> str:
    return f"{crc32(data):08x}"


# -- the end


async def read_all(scene: Stage, client: ledgers.Client) -> None:
    """Close each ledger and read it whole, now that all is well again."""
    actor = LedgerActor(scene, client, scene.recorder("auditor"))
    for ledger in scene.ledgers:
        while True:
            name = f"reader of ledgers.{scene.number('reader of ledgers')}"
            if await _noting_no(actor, ledger, name, _read_whole):
                break
            await trio.sleep(_AGAIN_S)


async def _read_whole(actor: LedgerActor, ledger: int, name: str) -> None:
    await _recover(actor, ledger, name)
    actor.note(LedgerRead(ledger, name))
