"""The check of unknown ledgers: a ledger without a record may have been here before.

The bookie may have forgotten the ledger because it was deleted (`tombstones`), or because records
were lost (`markers`), perhaps with a fence.  So it asks the metadata, once for all adds that wait:

    answer of the metadata                     plain adds         recovery adds
    open, newer than the cookie generation     accepted           accepted
    open, older                                READ_ONLY          accepted
    closed or in recovery                      FENCED             accepted, behind a new fence
    deleted                                    FENCED             FENCED
    no answer                                  READ_ONLY          READ_ONLY

READ_ONLY makes a writer choose another bookie.  A bookie that has never lost records asks only
about ledgers that it may have deleted, and only if they exist.  While the bookie does not know yet
what it lost, every ledger counts as older: a ledger that was created meanwhile would be on this
bookie without a mark.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

import trio

from daybook.bookie.storage.markers import NEVER_LOST
from daybook.bookie.storage.status import StoreStatus

_ASKED_MAX = 5000  # ledgers asked about at once; each takes a task


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The newest state of a ledger in the metadata."""

    there: bool
    open: bool = False
    created_txid: int = 0


AskMetadata: TypeAlias = Callable[[int], Awaitable[LedgerFacts | None]]
"""Returns the facts of a ledger; None if the metadata cannot be asked."""


class LedgerStatus(Enum):
    """The rows of the table above, in the same order."""

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
    """Return the status for an add to such a ledger: OK if it may be accepted."""
    match status:
        case LedgerStatus.WELCOME:
            return StoreStatus.OK
        case LedgerStatus.OLDER:
            return StoreStatus.OK if recovery else StoreStatus.READ_ONLY
        case LedgerStatus.ENDED:
            return StoreStatus.OK if recovery else StoreStatus.FENCED
        case LedgerStatus.GONE:
            return StoreStatus.FENCED  # forever
        case LedgerStatus.UNKNOWN:
            return StoreStatus.READ_ONLY  # the writer may choose another bookie
        case _:
            assert_never(status)


class UnknownLedgerCheck:
    """Asks the metadata about unknown ledgers; the adds of a ledger wait for one answer.

    `generation` is the cookie generation; it rises when the bookie loses records.
    """

    def __init__(self, ask: AskMetadata, *, bytes_max: int) -> None:
        self.bytes_waiting = 0
        self.generation = NEVER_LOST
        self._ask_metadata = ask
        self._bytes_max = bytes_max
        self._waiting: dict[int, list[tuple[int, OnLedgerStatus]]] = {}

    def is_full(self, ledger_id: int) -> bool:
        """Return True if the waiting adds or the ledgers asked about have reached their limit."""
        many = len(self._waiting) >= _ASKED_MAX and ledger_id not in self._waiting
        return many or self.bytes_waiting >= self._bytes_max

    def ask(self, nursery: trio.Nursery, ledger_id: int, size: int, answer: OnLedgerStatus) -> None:
        """Call `answer` once with the status of the ledger, in the order of the calls."""
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
