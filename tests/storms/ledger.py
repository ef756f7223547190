"""Storms over one ledger: its writer, recoverers, a reader, and bookies.

The world is `tests.model.ledger`, with its rules, the real clients and real volumes of bookies.
When the storm is over, one more recoverer begins; when it ends, the ledger has to be closed.
"""

from dataclasses import replace
from typing import ClassVar

from daybook.bookie.ledger.protocol.placement import Quorums
from tests.model.ledger.settings import LedgerSettings
from tests.model.ledger.system import LedgerSystem
from tests.model.search import Move, State
from tests.storms.chance import Chance
from tests.storms.walk import Walk

SETUPS = [  # bookies, quorums; small ones are drawn more often
    *[(2, Quorums(2, 2, 2))] * 3,
    *[(2, Quorums(2, 2, 1))] * 2,
    *[(3, Quorums(2, 2, 2))] * 5,
    *[(3, Quorums(2, 2, 1))] * 2,
    *[(3, Quorums(3, 3, 2))] * 3,
    *[(3, Quorums(3, 2, 2))] * 2,
    (3, Quorums(3, 2, 1)),
    *[(4, Quorums(3, 3, 2))] * 2,
    (5, Quorums(3, 3, 2)),
    (5, Quorums(4, 3, 2)),
    (5, Quorums(4, 2, 2)),
    (6, Quorums(4, 3, 3)),
]
LAST = "r1"


class LedgerStorm(Walk[LedgerSettings]):
    kind = "ledger"
    steps_max = 200
    faults = "gives up|answer is lost|no answer|refused for now|late|closes|others, too"
    signs: ClassVar[dict[str, str]] = {
        "recovered": "recovered, the end is",
        "recovered some entries": "recovered, the end is [0-9]",
        "recovery aborted": "Error|ends without a result",
        "fragment written": r"^writes.*record \d+ is OPEN",
        "ensemble changed in recovery": "writes to .* from now on",
        "unknown outcome": "answer is lost|no answer",
        "carried out late": "late write",
        "fenced writer": "FENCED",
        "lost": "the connection is cut",
        "went on degraded": "goes on without",
        "a bookie returned": "sees the return",
        "read by a reader": "has e",
        "a slow reader": "others, too",
        "closed by its writer": "^writes.*CLOSED.*over version 0|^closes",
    }
    wanted: ClassVar[dict[str, float]] = dict.fromkeys(signs, 0.01)

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        self._over = False
        self._dies = chance.one_of(("", "", "writer", "r2", "r3"))
        self._steps = 0
        self._dies_at = chance.below(100)
        self._begins_at = {name: chance.below(60) for name in ("r2", "r3", "reader")}

    def draw(self) -> LedgerSettings:
        one_of = self.chance.one_of
        bookies, quorums = one_of(SETUPS)
        faults, changes = one_of(((0, 0), (1, 1), (2, 1), (3, 3)))
        live = range(quorums.ensemble - 1)
        return LedgerSettings(
            bookies=bookies,
            quorums=quorums,
            entries=one_of((1, 1, 2, 2, 3, 6)),
            in_flight=one_of((1, 2, 3)),
            recoverers=one_of((2, 2, 3)),
            reads_max=one_of((1, 2, 4)),
            give_ups=faults,
            changes=changes,
            postponed=one_of((False, True)),
            recovery_give_ups=faults,
            recovery_changes=changes,
            readers=one_of((0, 0, 1)),
            read_give_ups=faults,
            fence_give_ups=one_of((False, False, True)),
            slow=True,
            degraded=one_of((False, False, False, True)) and quorums.can_confirm(live),
            cuts=one_of((0, faults)),
            lost_answers=faults,
            stale=True,
            closes=one_of((False, False, True)),
            fifo=one_of((False, True, True)),
            canonical=False,
        )

    def build(self, settings: LedgerSettings) -> LedgerSystem:
        return LedgerSystem(settings)

    def settings_now(self) -> LedgerSettings:
        return replace(self.settings, white_box=self.white_box)

    def may(self, move: Move) -> bool:
        if not self._over and LAST in (move.source, move.target):
            return False
        if self._begins_at.get(move.target, 0) > self._steps and not self._over:
            return False
        if self._dies and self._steps >= self._dies_at:
            asks = move.source == self._dies and move.target == "store"
            return move.target != self._dies and not asks
        return True

    def is_wish(self, move: Move) -> bool:
        return move.source == "store" and move.target == LAST

    def _step(self, system: LedgerSystem, state: State) -> State:
        self._steps += 1
        return super()._step(system, state)

    def calm(self, system: LedgerSystem, state: State) -> State:
        state = self._arrived(system, state)
        wrong = "" if self._dies == "writer" else system.unconfirmed(state)
        self.rule("L1", not wrong, wrong)
        self._over = True
        return super().calm(system, state)

    def wrong(self, system: LedgerSystem, state: State) -> str:
        return system.unclosed(state)
