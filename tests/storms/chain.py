"""A chain of ledgers: the log of a topic, its brokers, of which each believes to own it.

A ledger is one thing here, with two ways to be asked: an entry is stored (on an ack quorum) or half
stored (on fewer bookies: recovery may keep it, or not), and recovery fences and closes in one step;
the rules inside a ledger are `ledger`'s.  The register holds the list and the cursor's record, and
answers in three ways.  The rules are those of `safety`: K for the chain, O for its owners.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol import log
from daybook.managed_ledger.protocol.trim import SealedLedger
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from tests.storms.chain_broker import Broker, Sent
from tests.storms.chance import Chance
from tests.storms.network import Network
from tests.storms.storm import SOME, Storm

BROKERS_MAX = 4
REGISTER, LEDGERS, FIRST_BROKER = 0, 1, 2
DELIVERIES_AT_END = 2000
NOTHING = Position(-1, -1)


@dataclass(slots=True)
class Ledger:
    """`end` is None while it is not closed."""

    ledger_id: int
    entries: list[str] = field(default_factory=list[str])
    half: list[str] = field(default_factory=list[str])
    fenced: bool = False
    end: int | None = None
    deleted: bool = False


class ChainStorm(Storm):
    kind = "chain"
    steps_max = 300
    wanted: ClassVar[dict[str, float]] = {
        "rolled over": 0.1,
        "taken over": 0.3,
        "two ledgers unclosed": 0.01,
        "fenced while it served": 0.02,
        "recovered what was half stored": 0.002,
        "unknown outcome": 0.05,
        "carried out late": 0.01,
        "acked after a takeover": 0.003,
        "trimmed": 0.01,
    }

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        self.network = Network(
            chance, FIRST_BROKER + BROKERS_MAX, fifo=True, reliable=(REGISTER, LEDGERS)
        )
        self.info = ManagedLedgerInfo()
        self.version = 0
        self._before = (self.info, 0)
        self.stored_cursor = NOTHING
        self.ledgers: dict[int, Ledger] = {}
        self.brokers: list[Broker] = []
        self.last_acked = NOTHING
        self.owned_from = -1  # the ledger with which the newest owner began
        self._acked: dict[Position, str] = {}
        self._ever_listed: set[int] = set()
        self._sent = 0
        self._half = chance.one_of((0.0, 0.0, 0.2, 0.5))
        self._unknown = chance.one_of((0.0, 0.1, 0.4))
        self._unavailable = chance.one_of((0.0, 0.1))
        self._stale = 0.3  # the share of reads that a follower answers that lags
        self._brokers_max = chance.one_of((1, 2, 2, 2, 3, BROKERS_MAX))
        self._appends_max = chance.one_of((2, 3, 5, 10))
        self.actor(self.network.deliver, (1.0,))
        self.actor(self._open, (0.01, 0.03, 0.1))
        self.actor(self._append, (0.1, 0.2, 0.4))
        self.actor(self._roll, (0.0, 0.03, 0.1))
        self.actor(self._lose, SOME)
        self.actor(self._consume, (0.0, 0.05, 0.2))
        self.actor(self._store_cursor, (0.0, 0.05, 0.2))
        self.actor(self._trim, (0.0, 0.02, 0.1))

    # -- what happens

    def _open(self) -> None:
        """Somebody believes that the log is his now."""
        if len(self.brokers) < self._brokers_max:
            number = len(self.brokers)
            broker = Broker(self, f"broker {number + 1}", FIRST_BROKER + number)
            self.brokers.append(broker)
            self.say(f"{broker.name} opens the log")
            broker.open()

    def _serving(self) -> Broker | None:
        serving = [broker for broker in self.brokers if broker.serves]
        return self.chance.one_of(serving) if serving else None

    def _append(self) -> None:
        broker = self._serving()
        if broker is not None and self._sent < self._appends_max:
            self._sent += 1
            broker.append(f"m{self._sent}")

    def _roll(self) -> None:
        broker = self._serving()
        if broker is not None:
            broker.step(log.RollDue())

    def _lose(self) -> None:
        """A broker dies, or its session does and it gives the log up."""
        if self.brokers:
            broker = self.chance.one_of(self.brokers)
            self.say(f"{broker.name} dies")
            broker.dead = True

    def _consume(self) -> None:
        broker = self._serving()
        if broker is not None:
            broker.consume(broker.last)

    def _store_cursor(self) -> None:
        broker = self._serving()
        if broker is not None:
            broker.store_cursor()

    def _trim(self) -> None:
        broker = self._serving()
        if broker is not None:
            broker.trim()

    # -- ledgers

    def create_ledger(self, broker: Broker, then: Callable[[int], None]) -> None:
        def arrive() -> None:
            ledger_id = -1
            if broker.machine is None or not self.chance.happens(self._unavailable):
                ledger_id = len(self.ledgers)
                self.ledgers[ledger_id] = Ledger(ledger_id)
            self.say(f"{broker.name} creates ledger {ledger_id}")
            self._answer(LEDGERS, broker, then, ledger_id)

        self.network.send(broker.host, LEDGERS, arrive)

    def append(self, broker: Broker, ledger_id: int, sent: Sent) -> None:
        self.network.send(broker.host, LEDGERS, self._store, broker, ledger_id, sent)

    def _store(self, broker: Broker, ledger_id: int, sent: Sent) -> None:
        ledger = self.ledgers[ledger_id]
        self.rule("K4", ledger_id in self._ever_listed, f"{ledger_id} is written, not listed")
        if ledger.fenced or ledger.end is not None or ledger.deleted:
            self.say(f"{broker.name} -> ledger {ledger_id}: {sent.payload}: fenced")
            self._answer(LEDGERS, broker, broker.appended, ledger_id, False)
        elif ledger.half or self.chance.happens(self._half):
            self.say(f"{broker.name} -> ledger {ledger_id}: {sent.payload}: half stored")
            ledger.half.append(sent.payload)
            self.network.send(LEDGERS, LEDGERS, self._complete, broker, ledger)
        else:
            self.say(f"{broker.name} -> ledger {ledger_id}: {sent.payload}: stored")
            ledger.entries.append(sent.payload)
            self._answer(LEDGERS, broker, broker.appended, ledger_id, True)

    def _complete(self, broker: Broker, ledger: Ledger) -> None:
        """What was half stored is stored, unless it is too late."""
        ok = bool(ledger.half) and not ledger.fenced and ledger.end is None
        if ok:
            ledger.entries.append(ledger.half.pop(0))
        self._answer(LEDGERS, broker, broker.appended, ledger.ledger_id, ok)

    def close_ledger(self, broker: Broker, row: SealedLedger, then: Callable[[bool], None]) -> None:
        """Its writer ends it behind what it has confirmed."""

        def arrive() -> None:
            ledger = self.ledgers[row.ledger_id]
            if ledger.end is None and not ledger.fenced:
                self._end(ledger, row.entries)
            ok = ledger.end == row.entries
            self.say(f"{broker.name} closes ledger {row.ledger_id} at {row.entries - 1}: {ok}")
            self._answer(LEDGERS, broker, then, ok)

        self.network.send(broker.host, LEDGERS, arrive)

    def recover_ledger(self, broker: Broker, ledger_id: int, then: Callable[[int], None]) -> None:
        def arrive() -> None:
            ledger = self.ledgers[ledger_id]
            if ledger.deleted:  # The list that it was found in is an old one.
                listed = any(each.ledgerId == ledger_id for each in self.info.ledgerInfo)
                self.rule("K5", not listed, f"ledger {ledger_id} is listed, and deleted")
                broker.dead = True
            if ledger.end is None:
                ledger.fenced = True
                kept = self.chance.below(len(ledger.half) + 1)
                if kept:
                    self.mark("recovered what was half stored")
                ledger.entries += ledger.half[:kept]
                self._end(ledger, len(ledger.entries))
            assert ledger.end is not None
            self.say(f"{broker.name} recovers ledger {ledger_id}: {ledger.end} entries")
            self._answer(LEDGERS, broker, then, ledger.end)

        self.network.send(broker.host, LEDGERS, arrive)

    def _end(self, ledger: Ledger, entries: int) -> None:
        for position in self._acked:
            if position.ledger_id == ledger.ledger_id:
                self.rule("K1", position.entry_id < entries, f"{position} behind the end {entries}")
        ledger.end = entries
        del ledger.entries[entries:]

    def _answer(
        self, source: int, broker: Broker, then: Callable[..., None], *args: object
    ) -> None:
        def arrive() -> None:
            if not broker.dead:
                then(*args)

        self.network.send(source, broker.host, arrive)

    # -- the register

    def read_list(self, broker: Broker, then: Callable[[ManagedLedgerInfo, int], None]) -> None:
        def arrive() -> None:
            stale = self.chance.happens(self._stale)
            info, version = self._before if stale else (self.info, self.version)
            self.say(f"{broker.name} reads the list: {_ids(info)}, version {version}")
            self._answer(REGISTER, broker, then, info, version)

        self.network.send(broker.host, REGISTER, arrive)

    def write_list(
        self,
        broker: Broker,
        info: ManagedLedgerInfo,
        version: int | None,
        done: Callable[[str, int], None],
    ) -> None:
        """`done` is told `written`, or `conflict`: what is in doubt is looked up until it is known.

        As `LedgerList._swap` does it, with the lookups as one step each.
        """

        def arrive(in_doubt: bool) -> None:
            outcome = "written"
            if self.chance.happens(self._unknown):
                self.mark("unknown outcome")
                if self.chance.happens(0.3):
                    self._swap(broker, info, version)
                elif self.chance.happens(0.5):
                    self.network.send(REGISTER, REGISTER, late)
                self.say(f"{broker.name} hears nothing of its list {_ids(info)}")
                self._answer(REGISTER, broker, look)
                return
            if not self._swap(broker, info, version):
                outcome = "written" if in_doubt and was_applied() else "conflict"
            self._answer(REGISTER, broker, done, outcome, self.version)

        def late() -> None:
            if self._swap(broker, info, version):
                self.mark("carried out late")

        def was_applied() -> bool:
            return version is not None and self.version == version + 1 and self.info == info

        def look() -> None:
            self.network.send(broker.host, REGISTER, looked)

        def looked() -> None:
            if self.version == version:
                self.network.send(REGISTER, REGISTER, arrive, True)
                return
            self._answer(
                REGISTER, broker, done, "written" if was_applied() else "conflict", self.version
            )

        self.network.send(broker.host, REGISTER, arrive, False)

    def _swap(self, broker: Broker, info: ManagedLedgerInfo, version: int | None) -> bool:
        if version is not None and version != self.version:
            self.say(f"{broker.name} -> register: list {_ids(info)}: conflict")
            return False
        self.say(f"{broker.name} -> register: list {_ids(info)}: written")
        self._check_list(self.info, info)
        self._before = (self.info, self.version)
        self.info, self.version = info, self.version + 1
        self._ever_listed.update(each.ledgerId for each in info.ledgerInfo)
        return True

    def write_cursor(self, broker: Broker, position: Position, version: int) -> None:
        """Guarded by the version of the list."""

        def arrive() -> None:
            if version == self.version:
                self.say(f"{broker.name} stores the cursor at {position}")
                self.stored_cursor = position

        self.network.send(broker.host, REGISTER, arrive)

    # -- what brokers have done

    def opened(self, broker: Broker, ledger_id: int) -> None:
        self.say(f"{broker.name} serves, from ledger {ledger_id}")
        if self.owned_from >= 0:
            self.mark("taken over")
        self.owned_from = max(self.owned_from, ledger_id)

    def acked(self, broker: Broker, sent: Sent, position: Position) -> None:
        self.say(f"{broker.name} acks {sent.payload} at {position}")
        ledger = self.ledgers[position.ledger_id]
        listed = position.ledger_id in self._ever_listed
        self.rule("K4", listed, f"{position} is acked, its ledger is not listed")
        if ledger.end is not None:
            self.rule("K1", position.entry_id < ledger.end, f"{position}, the end is {ledger.end}")
        self.rule("K1", ledger.entries[position.entry_id] == sent.payload, f"{sent} at {position}")
        in_order = position > sent.behind
        self.rule("K2", in_order, f"{position} was sent behind {sent.behind}")
        if self.owned_from > broker.owned_from:
            self.mark("acked after a takeover")
            stale = sent.epoch > broker.owned_from
            self.rule("O2", not stale, f"{broker.name} acks what it was sent after a takeover")
        self._acked[position] = sent.payload
        self.last_acked = max(self.last_acked, position)

    def trimmed(self, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            listed = any(each.ledgerId == ledger_id for each in self.info.ledgerInfo)
            self.rule("K5", not listed, f"ledger {ledger_id} is deleted and listed")
            self.ledgers[ledger_id].deleted = True

    # -- rules

    def _check_list(self, before: ManagedLedgerInfo, after: ManagedLedgerInfo) -> None:
        old, new = _ids(before), _ids(after)
        self.rule("K3", new == sorted(set(new)), f"the list is {new}")
        unclosed = [each for each in new if self.ledgers[each].end is None]
        self.rule("K3", len(unclosed) <= 2, f"{unclosed} of {new} are not closed")
        self.rule("K3", set(unclosed) <= set(new[-2:]), f"{unclosed} of {new} are not closed")
        if len(unclosed) == 2:
            self.mark("two ledgers unclosed")
        for ledger_id in set(old) - set(new):
            end = self.ledgers[ledger_id].end
            self.rule("K6", end is not None, f"{ledger_id} leaves the list and is not closed")
            consumed = not end or self.stored_cursor >= Position(ledger_id, end - 1)
            detail = f"{ledger_id} leaves the list, the cursor is stored at {self.stored_cursor}"
            self.rule("K5", consumed, detail)
        for ledger_id in set(new) - set(old):
            behind = not old or ledger_id > old[-1]
            self.rule("K3", behind, f"{ledger_id} is not put at the end of {old}")
        for each in after.ledgerInfo:
            if each.HasField("entries"):
                ledger = self.ledgers[each.ledgerId]
                right = ledger.end == each.entries
                self.rule("K1", right, f"{each.entries} entries listed of {ledger}")

    def finish(self) -> None:
        """One opens the log last: it finds everything, and can append."""
        self._half = self._unknown = self._unavailable = self._stale = 0.0
        for broker in self.brokers:
            if broker.serves and self.owned_from > broker.owned_from:
                self.mark("fenced while it served")
        self.network.deliver_all(DELIVERIES_AT_END)
        last = Broker(self, "the last broker", FIRST_BROKER)
        for _ in range(10):  # An older one may be at it still.
            last = Broker(self, "the last broker", FIRST_BROKER)
            last.open()
            self.network.deliver_all(DELIVERIES_AT_END)
            if last.serves:
                break
        self.rule("L4", last.serves, "the log cannot be opened")
        last.append("the last message")
        self.network.deliver_all(DELIVERIES_AT_END)
        self.rule("L4", "the last message" in self._acked.values(), "nothing can be appended")
        listed = _ids(self.info)
        for position, payload in self._acked.items():
            ledger = self.ledgers[position.ledger_id]
            if position.ledger_id in listed:
                self.rule("K1", ledger.entries[position.entry_id] == payload, f"{position}")
            else:
                consumed = position <= self.stored_cursor
                self.rule("K6", consumed, f"{position} was acked, and its ledger is not listed")


def _ids(info: ManagedLedgerInfo) -> list[int]:
    return [each.ledgerId for each in info.ledgerInfo]
