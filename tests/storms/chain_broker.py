"""A broker of a chain in a storm: what `managed_ledger.open` and `.log` do around the machine.

It opens the log (list, recovery of the tail, a new ledger, the list again), appends, rolls over,
trims; one request to the register at a time, as the lock of the list wants it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daybook.managed_ledger.ledger_list import sealed_ledger, set_sealed
from daybook.managed_ledger.open import RECOVERED_LEDGERS
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol import log, trim
from daybook.managed_ledger.protocol.trim import SealedLedger
from daybook.managed_ledger.records import LedgerInfo
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo

if TYPE_CHECKING:
    from tests.storms.chain import ChainStorm

RETENTION = trim.Retention(time_ms=0)

SERVES_BEFORE_LISTED = False
WRITES_BLINDLY = False
FENCES_OLD_OWNER = True
"""What mutants of this shell change."""


@dataclass(slots=True)
class Sent:
    """An append, and what was known when it was made."""

    payload: str
    behind: Position  # everything that was acknowledged when it was sent lies before this
    epoch: int  # the ledger with which the newest owner began


class Broker:
    def __init__(self, storm: "ChainStorm", name: str, host: int) -> None:
        self.storm = storm
        self.name = name
        self.host = host
        self.dead = False
        self.machine: log.LogProtocol | None = None  # once the log is open
        self.rows: list[SealedLedger] = []
        self.info = ManagedLedgerInfo()
        self.version = 0
        self.owned_from = -1  # the ledger that its opening has put on the list
        self.current = -1
        self.confirmed = 0  # entries of the present ledger
        self.mark_delete = Position(-1, -1)
        self._next = -1
        self._old: SealedLedger | None = None  # being sealed
        self._waiting: deque[Sent] = deque()
        self._submitted: deque[Sent] = deque()
        self._to_do: deque[Callable[[], None]] = deque()  # changes of the list, one at a time
        self._changing = False

    @property
    def serves(self) -> bool:
        return not self.dead and self.machine is not None and self.machine.usable

    @property
    def last(self) -> Position:
        """Of what it has confirmed."""
        if self.confirmed or not self.rows:
            return Position(self.current, self.confirmed - 1)
        return self.rows[-1].last

    # -- opening

    def open(self) -> None:
        self.storm.read_list(self, self._list_read)

    def _list_read(self, info: ManagedLedgerInfo, version: int) -> None:
        self.info, self.version = info, version
        ledgers = list(info.ledgerInfo)
        doubtful = _to_recover(ledgers)
        self.rows = [sealed_ledger(each, 0) for each in ledgers if each.ledgerId not in doubtful]
        self._recover(doubtful)

    def _recover(self, ledger_ids: list[int]) -> None:
        if not ledger_ids or not FENCES_OLD_OWNER:
            self.storm.create_ledger(self, self._created)
            return
        first, *rest = ledger_ids

        def recovered(entries: int) -> None:
            listed = next(each for each in self.info.ledgerInfo if each.ledgerId == first)
            same = not listed.HasField("entries") or listed.entries == entries
            self.storm.rule("K1", same, f"{first} has {entries} entries, listed {listed.entries}")
            self.rows.append(SealedLedger(first, entries, entries, 0))
            self._recover(rest)

        self.storm.recover_ledger(self, first, recovered)

    def _created(self, ledger_id: int) -> None:
        rows = {row.ledger_id: row for row in self.rows}
        if SERVES_BEFORE_LISTED:
            self._opened(ledger_id)

        def change(info: ManagedLedgerInfo) -> None:
            for row in rows.values():
                set_sealed(info, row)
            info.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)

        self.update(change, lambda: self._opened(ledger_id))

    def _opened(self, ledger_id: int) -> None:
        if self.machine is None:
            self.rows = [row for row in self.rows if row.entries]
            self.current = self.owned_from = ledger_id
            self.storm.opened(self, ledger_id)
            self.mark_delete = self.storm.stored_cursor
            self.machine = log.LogProtocol()

    # -- the machine

    def step(self, event: log.Event) -> None:
        if self.machine is None or self.dead:
            return
        for effect in self.machine.step(event):
            match effect:
                case log.Submit(count):
                    for _ in range(count):
                        sent = self._waiting.popleft()
                        self._submitted.append(sent)
                        self.storm.append(self, self.current, sent)
                case log.Create():
                    self.storm.create_ledger(self, self._next_created)
                case log.Switch():
                    self._switch()
                case log.Seal():
                    assert self._old is not None
                    self.storm.close_ledger(self, self._old, self._old_closed)
                case log.Fence(reason):
                    self.storm.say(f"{self.name} is fenced: {reason}")
                    self._submitted.clear()
                    self._waiting.clear()

    def append(self, payload: str) -> None:
        storm = self.storm
        storm.say(f"{self.name} is sent {payload}")
        self._waiting.append(Sent(payload, storm.last_acked, storm.owned_from))
        self.step(log.Append())

    def appended(self, ledger_id: int, ok: bool) -> None:
        """The answer to the oldest append to that ledger."""
        if not ok:
            self.step(log.Lost(f"ledger {ledger_id} is fenced"))
        elif self.serves and ledger_id == self.current:
            sent = self._submitted.popleft()
            self.storm.acked(self, sent, Position(ledger_id, self.confirmed))
            self.confirmed += 1
            self.step(log.Confirmed(1))

    # -- rolling over

    def _next_created(self, ledger_id: int) -> None:
        if ledger_id < 0:
            self.step(log.CreateFailed())
            return
        self._next = ledger_id

        def add(info: ManagedLedgerInfo) -> None:
            info.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)

        self.update(add, lambda: self.step(log.Listed()))

    def _switch(self) -> None:
        self.storm.mark("rolled over")
        self.storm.say(f"{self.name} goes over to ledger {self._next}")
        self._old = SealedLedger(self.current, self.confirmed, self.confirmed, 0)
        self.rows.append(self._old)
        self.current, self.confirmed, self._next = self._next, 0, -1

    def _old_closed(self, ok: bool) -> None:
        row = self._old
        assert row is not None
        if not ok:
            self.step(log.Lost(f"ledger {row.ledger_id} was closed by somebody else"))
            return
        self.update(lambda info: set_sealed(info, row), self._sealed)

    def _sealed(self) -> None:
        assert self._old is not None
        if not self._old.entries:
            self.rows.remove(self._old)
        self._old = None
        self.step(log.Sealed())

    # -- the list

    def update(self, change: Callable[[ManagedLedgerInfo], None], then: Callable[[], None]) -> None:
        """Change the list by compare-and-swap; a conflict fences the log."""

        def go() -> None:
            info = ManagedLedgerInfo()
            info.CopyFrom(self.info)
            change(info)

            def done(outcome: str, version: int) -> None:
                if outcome != "written":
                    self._list_lost(outcome)
                    return
                self.info, self.version = info, version
                self._changing = False
                then()
                self._next_change()

            self.storm.write_list(self, info, None if WRITES_BLINDLY else self.version, done)

        self._to_do.append(go)
        if not self._changing:
            self._next_change()

    def _next_change(self) -> None:
        if self._to_do and not self.dead and not self._changing:
            self._changing = True
            self._to_do.popleft()()

    def _list_lost(self, why: str) -> None:
        if self.machine is None:
            self.storm.say(f"{self.name} cannot open the log: {why}")
            self.dead = True
        self.step(log.Lost(f"the list: {why}"))

    # -- cursor and trimming

    def consume(self, position: Position) -> None:
        self.mark_delete = max(self.mark_delete, position)

    def store_cursor(self) -> None:
        self.storm.write_cursor(self, self.mark_delete, self.version)

    def trim(self) -> None:
        sealed = [
            trim.SealedLedger(row.ledger_id, row.entries, row.bytes, row.closed_ms)
            for row in self.rows
            if row is not self._old and row.ledger_id < self.current
        ]
        held = min(self.storm.stored_cursor, self.mark_delete)
        gone = trim.trimmable(sealed, [held], RETENTION, 1)
        if not gone:
            return

        def cut(info: ManagedLedgerInfo) -> None:
            kept = [each for each in info.ledgerInfo if each.ledgerId not in gone]
            del info.ledgerInfo[:]
            info.ledgerInfo.extend(kept)

        def done() -> None:
            self.rows = [row for row in self.rows if row.ledger_id not in gone]
            self.storm.trimmed(gone)

        self.storm.mark("trimmed")
        self.update(cut, done)


def _to_recover(ledgers: list[LedgerInfo]) -> list[int]:
    """The last two, and any other that the list does not say the length of."""
    first = len(ledgers) - RECOVERED_LEDGERS
    return [
        ledger.ledgerId
        for i, ledger in enumerate(ledgers)
        if i >= first or not ledger.HasField("entries")
    ]
