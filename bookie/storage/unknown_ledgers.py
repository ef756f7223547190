"""Ledgers that come here for the first time, and may have been here before.

Of a ledger without a record nobody here knows whether it was forgotten: because it was deleted
(`tombstones`), or because this bookie has lost its memory (`markers`) and with it a fence.  Then
the metadata are asked, once for all that wait:

    what they say                               plain adds         adds of recoveries
    open, and created since the bookie's birth  taken              taken
    open, and older                             READ_ONLY          taken
    not open any more                           FENCED             taken, behind a fence of ours
    gone                                        FENCED             FENCED
    nothing                                     READ_ONLY          READ_ONLY

READ_ONLY makes a writer take another bookie.  Who has never lost its memory asks only for ledgers
that may have been deleted, and whether they are there at all.  While it is not known yet what was
lost, every ledger is older: one that came meanwhile would be here, and marked by nobody.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

import trio

from daybook.bookie.storage.markers import NEVER_LOST
from daybook.bookie.storage.status import StoreStatus

_ASKED_MAX = 5000  # ledgers at once: each is a task


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What the metadata say of a ledger, by their newest state."""

    there: bool
    open: bool = False
    created_txid: int = 0


# None if the metadata cannot be asked.
AskMetadata: TypeAlias = Callable[[int], Awaitable[LedgerFacts | None]]


class LedgerStatus(Enum):
    WELCOME = auto()
    OLDER = auto()
    ENDED = auto()
    GONE = auto()
    UNKNOWN = auto()


OnLedgerStatus: TypeAlias = Callable[[LedgerStatus], None]


def ledger_status(facts: LedgerFacts | None, generation: int) -> LedgerStatus:
    if facts is None:
        return LedgerStatus.UNKNOWN
    if not facts.there:
        return LedgerStatus.GONE
    if generation == NEVER_LOST:
        return LedgerStatus.WELCOME
    if not facts.open:
        return LedgerStatus.ENDED
    return LedgerStatus.WELCOME if facts.created_txid > generation else LedgerStatus.OLDER


def refusal_for(status: LedgerStatus, *, recovery: bool) -> StoreStatus:
    """OK if such an add may be taken."""
    match status:
        case LedgerStatus.WELCOME:
            return StoreStatus.OK
        case LedgerStatus.OLDER:
            return StoreStatus.OK if recovery else StoreStatus.READ_ONLY
        case LedgerStatus.ENDED:
            return StoreStatus.OK if recovery else StoreStatus.FENCED
        case LedgerStatus.GONE:
            return StoreStatus.FENCED  # for ever
        case LedgerStatus.UNKNOWN:
            return StoreStatus.READ_ONLY  # somebody else may take it
        case _:
            assert_never(status)


class UnknownLedgerCheck:
    """`generation` may become later."""

    def __init__(self, ask: AskMetadata, *, bytes_max: int) -> None:
        self.bytes_waiting = 0
        self.generation = NEVER_LOST
        self._ask_metadata = ask
        self._bytes_max = bytes_max
        self._waiting: dict[int, list[tuple[int, OnLedgerStatus]]] = {}

    def is_full(self, ledger_id: int) -> bool:
        """As much waits as may, or so many are asked for that this one would be too many."""
        many = len(self._waiting) >= _ASKED_MAX and ledger_id not in self._waiting
        return many or self.bytes_waiting >= self._bytes_max

    def ask(self, nursery: trio.Nursery, ledger_id: int, size: int, answer: OnLedgerStatus) -> None:
        """`answer` is told where the ledger stands; in order, and once."""
        self.bytes_waiting += size
        if ledger_id in self._waiting:
            self._waiting[ledger_id].append((size, answer))
        else:
            self._waiting[ledger_id] = [(size, answer)]
            nursery.start_soon(self._ask, ledger_id)

    async def _ask(self, ledger_id: int) -> None:
        status = LedgerStatus.UNKNOWN
        try:
            status = await self.ledger_status(ledger_id)
        finally:
            for size, answer in self._waiting.pop(ledger_id):
                self.bytes_waiting -= size
                answer(status)

    async def ledger_status(self, ledger_id: int) -> LedgerStatus:
        return ledger_status(await self._ask_metadata(ledger_id), self.generation)
