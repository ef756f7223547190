"""Storms over a cursor: its acknowledgements, its ledger, its record, and its owners.

The log does not change: it has a few ledgers with a few entries.  Consumers acknowledge single
entries or everything up to a position, sometimes ask for receipts, and seek.  Owners die, lose the
cursor to another owner, or close it.  A request to a ledger or to the register may be carried out,
lost or delayed.  The rules are C of `safety`: no entry is skipped; no acknowledgement with a
receipt is forgotten; after a clean close none is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

from daybook.managed_ledger import cursor_ledger
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.cursor_ledger import IN_RECORD, set_position
from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import CursorState
from daybook.managed_ledger.protocol.trim import SealedLedger
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from tests.storms.chance import Chance
from tests.storms.cursor_owner import Owner
from tests.storms.network import Network
from tests.storms.storm import OFTEN, SOME, Storm

SIZES = ((3, 5), (3, 0, 4), (1, 70, 2), (9, 9), (2, 2, 2, 2))  # entries of the log's ledgers
FIRST_LEDGER = 7
REGISTER, LEDGERS, FIRST_OWNER = 0, 1, 2
OWNERS_MAX = 6
SMALL_PART_BYTES, SMALL_RANGES = 12, 1
DELIVERIES_AT_END = 1000


@dataclass(slots=True)
class CursorLedger:
    records: list[bytes] = field(default_factory=list[bytes])
    half: list[bytes] = field(default_factory=list[bytes])  # on fewer bookies than an ack quorum
    fenced: bool = False
    deleted: bool = False


@dataclass(slots=True)
class Epoch:
    """The acknowledgements since the last seek; those in `durable` must never be forgotten."""

    acked: set[Position]
    durable: set[Position]


class CursorStorm(Storm):
    kind = "cursor"
    steps_max = 200
    wanted: ClassVar[dict[str, float]] = {
        "recovered": 0.3,
        "recovered with holes": 0.05,
        "recovered from a ledger": 0.1,
        "recovered after a clean end": 0.03,
        "receipt": 0.2,
        "receipt after a takeover": 0.001,
        "seek": 0.05,
        "seek forgotten": 0.002,
        "unknown outcome": 0.05,
        "carried out late": 0.005,
        "a record was lost": 0.03,
        "several parts": 0.03,
        "dense": 0.01,
        "closed with a snapshot": 0.005,
    }

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        self.network = Network(
            chance, FIRST_OWNER + OWNERS_MAX, fifo=True, reliable=(REGISTER, LEDGERS)
        )
        self.log = _log(chance.one_of(SIZES))
        self.positions = [
            Position(row.ledger_id, i) for row in self.log.sealed for i in range(row.entries)
        ]
        self.cursor_roll_records = chance.one_of((1, 2, 5))
        self.ranges_in_record_max = chance.one_of((0, 1, 5))
        self.ledgers: list[CursorLedger] = []
        self.info = ManagedCursorInfo(cursorsLedgerId=IN_RECORD)
        set_position(self.info, Position(FIRST_LEDGER, -1))
        self.version = 0
        self.owner_number = 0  # the owner that wrote the log's list last
        self.epochs = [Epoch(set(), set())]
        self._receipts: list[tuple[int, int, set[Position]]] = []  # owner, epoch, acknowledged
        self._found: dict[
            int, tuple[int, set[Position]]
        ] = {}  # by number of the owner that found it: epoch, acknowledged
        self._clean = False  # True if nothing happened since the last clean close
        self._owners: list[Owner] = []
        self._small = chance.happens(0.4)
        self._unknown = chance.one_of((0.0, 0.1, 0.4))
        self._lost = chance.one_of((0.0, 0.05, 0.2))
        self._half = chance.one_of((0.0, 0.2))
        self._take_over()
        self.actor(self.network.deliver, (1.0,))
        self.actor(self._ack, OFTEN)
        self.actor(self._ack_cumulative, (0.0, 0.02, 0.1))
        self.actor(self._record, (0.05, 0.2, 0.5))
        self.actor(self._want_receipt, (0.0, 0.05, 0.2))
        self.actor(self._seek, SOME)
        self.actor(self._close, (0.0, 0.01, 0.05))
        self.actor(self._take_over, (0.005, 0.02, 0.05))

    def run(self) -> None:
        """Lower the limits in some storms, so that small cursors get dense and split snapshots."""
        before = cursor_ledger.PART_BYTES_MAX, cursor_ledger.RANGES_MAX
        if self._small:
            cursor_ledger.PART_BYTES_MAX = SMALL_PART_BYTES
            cursor_ledger.RANGES_MAX = SMALL_RANGES
        try:
            super().run()
        finally:
            cursor_ledger.PART_BYTES_MAX, cursor_ledger.RANGES_MAX = before

    # -- the actors

    @property
    def owner(self) -> Owner:
        return self._owners[-1]

    def _serving(self) -> CursorState | None:
        return self.owner.state if self.owner.serves else None

    def _ack(self) -> None:
        state = self._serving()
        if state is not None:
            first = self.chance.below(len(self.positions))
            count = 1 + self.chance.below(3)
            positions = self.positions[first : first + count]
            self.say(f"consumer acknowledges {', '.join(map(str, positions))}")
            self.epochs[-1].acked.update(positions)
            state.ack(positions)
            self._check_state(state)

    def _ack_cumulative(self) -> None:
        state = self._serving()
        if state is not None:
            position = self.chance.one_of(self.positions)
            self.say(f"consumer acknowledges everything up to {position}")
            self.epochs[-1].acked.update(p for p in self.positions if p <= position)
            state.ack_cumulative(position)
            self._check_state(state)

    def _seek(self) -> None:
        state = self._serving()
        if state is not None:
            behind = self.chance.below(len(self.positions) + 1)
            mark_delete = self.positions[behind - 1] if behind else Position(FIRST_LEDGER, -1)
            self.say(f"the cursor is moved behind {mark_delete}")
            self.mark("seek")
            self.epochs.append(Epoch(set(self.positions[:behind]), set()))
            state.reset(mark_delete)
            self._check_state(state)

    def _record(self) -> None:
        self.owner.record_changes()

    def _want_receipt(self) -> None:
        if self._serving() is not None:
            acked = set(self.epochs[-1].acked)
            self._receipts.append((self.owner.number, len(self.epochs) - 1, acked))
            self.owner.want_receipt(len(self._receipts) - 1)

    def _close(self) -> None:
        self.owner.close()

    def _take_over(self) -> None:
        """Let another owner take over log and cursor; the old one is dead, or believed to be."""
        if len(self._owners) < OWNERS_MAX and self._owners[-1:] == [
            owner for owner in self._owners[-1:] if owner.state is not None
        ]:
            number = len(self._owners)
            owner = Owner(self, number, FIRST_OWNER + number)
            if self._owners and self.chance.happens(0.5):
                self.say(f"owner {self.owner.number} dies")
                self.owner.dead = True
            self._owners.append(owner)
            self.network.send(owner.host, REGISTER, self._list_written, owner)

    def _list_written(self, owner: Owner) -> None:
        self.owner_number = owner.number
        self.say(f"owner {owner.number} takes the log over, and reads {_text(self.info)}")
        info, version = self.info, self.version
        if info.cursorsLedgerId == IN_RECORD:
            self._answer(REGISTER, owner, owner.recovered, info, version, None)
        else:
            self.network.send(owner.host, LEDGERS, self._recover_ledger, owner, info, version)

    def _recover_ledger(self, owner: Owner, info: ManagedCursorInfo, version: int) -> None:
        ledger = self.ledgers[info.cursorsLedgerId]
        self.rule("C5", not ledger.deleted, f"the record points to {info.cursorsLedgerId}")
        if not ledger.fenced:
            ledger.fenced = True
            ledger.records += ledger.half[: self.chance.below(len(ledger.half) + 1)]
        self.mark("recovered from a ledger")
        self._answer(LEDGERS, owner, owner.recovered, info, version, list(ledger.records))

    def _answer(self, source: int, owner: Owner, then: Callable[..., None], *args: object) -> None:
        def arrive() -> None:
            if not owner.dead:
                then(*args)

        self.network.send(source, owner.host, arrive)

    # -- ledgers and register

    def create_ledger(self, owner: Owner) -> int:
        self.ledgers.append(CursorLedger())
        self.say(f"owner {owner.number} creates ledger {len(self.ledgers) - 1}")
        return len(self.ledgers) - 1

    def append(
        self, owner: Owner, ledger_id: int, records: Sequence[bytes], done: Callable[[bool], None]
    ) -> None:
        """Append records; after `done(False)` it is unknown which of them are stored."""
        if len(records) > 1:
            self.mark("several parts")

        def arrive() -> None:
            ledger = self.ledgers[ledger_id]
            stored = len(records)
            if ledger.fenced or ledger.deleted or self.chance.happens(self._lost):
                self.mark("a record was lost")
                stored = 0 if ledger.fenced else self.chance.below(len(records) + 1)
            elif self.chance.happens(self._half):
                ledger.half += records
                self.network.send(LEDGERS, LEDGERS, complete)
                return
            ledger.records += records[:stored]
            ok = stored == len(records) and not ledger.fenced
            ok = ok and not (self._lost and self.chance.happens(self._lost))
            if not ok:
                ledger.fenced = True  # After an error the writer appends nothing more there.
            self.say(f"owner {owner.number} -> ledger {ledger_id}: {stored} records: {ok}")
            self._answer(LEDGERS, owner, done, ok)

        def complete() -> None:
            ledger = self.ledgers[ledger_id]
            ok = not ledger.fenced
            if ok:
                ledger.records += ledger.half
                ledger.half.clear()
            self._answer(LEDGERS, owner, done, ok)

        self.network.send(owner.host, LEDGERS, arrive)

    def delete(self, ledger_id: int) -> None:
        self.network.send(REGISTER, LEDGERS, self._deleted, ledger_id)

    def _deleted(self, ledger_id: int) -> None:
        self.ledgers[ledger_id].deleted = True

    def store_record(
        self, owner: Owner, info: ManagedCursorInfo, version: int, done: Callable[[bool], None]
    ) -> None:
        """Write the record like `CursorRecord._write`: retry until the outcome is known."""

        def arrive() -> None:
            if self.chance.happens(self._unknown):
                self.mark("unknown outcome")
                what = self.chance.below(3)
                if what == 1:
                    write()
                elif what == 2:
                    self.network.send(REGISTER, REGISTER, late)
                self.say(f"owner {owner.number} hears nothing of its record {_text(info)}")
                self._answer(REGISTER, owner, self.network.send, owner.host, REGISTER, look)
                return
            self._answer(REGISTER, owner, done, write() or holds())

        def write() -> bool:
            if owner.number != self.owner_number or version != self.version:
                return False
            self.say(f"owner {owner.number} -> register: {_text(info)}")
            self.info, self.version = info, version + 1
            return True

        def late() -> None:
            if write():
                self.mark("carried out late")

        def holds() -> bool:
            return self.version == version + 1 and self.info == info

        def look() -> None:
            if holds():
                self._answer(REGISTER, owner, done, True)
            else:
                arrive()

        self.network.send(owner.host, REGISTER, arrive)

    # -- rules

    def receipt(self, number: int) -> None:
        """Check a receipt: the acknowledgements before it are durable."""
        by, epoch, acked = self._receipts[number]
        self.mark("receipt")
        self.say(f"consumer is told that {len(acked)} acknowledgements are durable")
        later = [each for each in sorted(self._found) if each > by]
        if later:  # The receipt is late: the next owner must have found the acknowledgements.
            self.mark("receipt after a takeover")
            found_epoch, found = self._found[later[0]]
            self.rule("C4", epoch < found_epoch or acked <= found, "an ack with a receipt is lost")
            return
        self.epochs[epoch].durable |= acked
        for older in range(epoch):
            self.epochs[older].acked = set()  # No owner may find this epoch from now on.
            self.epochs[older].durable = {Position(-1, -1)}

    def ended(self, owner: Owner) -> None:
        self.say(f"owner {owner.number} has stored everything: a clean end")
        self._clean = owner is self.owner
        owner.dead = True

    def _check_state(self, state: CursorState) -> None:
        """The state has exactly the positions that were acknowledged."""
        self._clean = False
        acked = self.epochs[-1].acked
        for position in self.positions:
            if state.is_acked(position) != (position in acked):
                told = "acknowledged" if position in acked else "not acknowledged"
                self.rule("C2", False, f"{position} was {told}, the cursor says otherwise")

    def check_recovered(self, owner: Owner) -> None:
        state = owner.state
        assert state is not None
        self.mark("recovered")
        self.say(f"owner {owner.number} finds {state.mark_delete} and {_runs(state.acked)}")
        if state.acked:
            self.mark("recovered with holes")
        found = {position for position in self.positions if state.is_acked(position)}
        if self._clean:
            self.mark("recovered after a clean end")
            self.rule("C3", found == self.epochs[-1].acked, "something was forgotten")
        fits = [
            number
            for number, epoch in enumerate(self.epochs)
            if epoch.durable <= found <= epoch.acked
        ]
        if not fits:
            epoch = self.epochs[-1]
            forgotten = sorted(epoch.durable - found)
            skipped = sorted(found - epoch.acked)
            self.rule("C2", not skipped, f"skipped: {', '.join(map(str, skipped))}")
            self.rule("C4", not forgotten, f"forgotten: {', '.join(map(str, forgotten))}")
            self.rule("C2", False, "the recovered state never existed")
        if fits[-1] < len(self.epochs) - 1:
            self.mark("seek forgotten")
        self._found[owner.number] = (fits[-1], found)
        # The state that was found is durable, and consumers continue from it.
        self.epochs = [Epoch(set(found), set(found))]
        self._clean = False

    def finish(self) -> None:
        """Close and recover the cursor three times: nothing is forgotten."""
        self._unknown = self._lost = self._half = 0.0
        self.network.deliver_all(DELIVERIES_AT_END)
        for _ in range(3):
            self._owners = self._owners[-1:]
            self.owner.dead = True
            owner = Owner(self, self.owner_number + 1, FIRST_OWNER)
            self._owners.append(owner)
            self.network.send(owner.host, REGISTER, self._list_written, owner)
            self.network.deliver_all(DELIVERIES_AT_END)
            self._ack()
            owner.close()
            self.network.deliver_all(DELIVERIES_AT_END)
            self.rule("L", self._clean, "the cursor does not come to a clean end")


def _log(sizes: Sequence[int]) -> LedgerList:
    info = ManagedLedgerInfo()
    for number, entries in enumerate((*sizes, 0)):
        info.ledgerInfo.add(ledgerId=FIRST_LEDGER + number, entries=entries, size=0, timestamp=1)
    log = LedgerList(cast("LogContext", None), "log", info, 0)
    for number, entries in enumerate(sizes):
        log.seal(SealedLedger(FIRST_LEDGER + number, entries, 0, 1))
    return log


def _text(info: ManagedCursorInfo) -> str:
    where = f"ledger {info.cursorsLedgerId}" if info.cursorsLedgerId != IN_RECORD else "record"
    return f"{info.markDeleteLedgerId}:{info.markDeleteEntryId}, state in {where}"


def _runs(acked: AckSet) -> str:
    runs = [f"{ledger}:{first}-{last}" for ledger, first, last in acked.ranges()]
    return " ".join(runs) or "no holes"
