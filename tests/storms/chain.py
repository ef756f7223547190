"""Storms over a chain of ledgers: brokers open a log, append, roll over and trim.

The world is `tests.model.log`, with its rules and the real shells of `managed_ledger`.  When the
storm is over, one broker opens the log and has to serve it.
"""

from typing import ClassVar

from tests.model.log.system import LogSettings, LogSystem
from tests.model.search import Move, State
from tests.storms.chance import Chance
from tests.storms.walk import Walk

OPENS = "is to open"


class ChainStorm(Walk[LogSettings]):
    kind = "chain"
    steps_max = 80
    tested = 100
    faults = "is lost|no answer|refused now|^late|is to close"
    signs: ClassVar[dict[str, str]] = {
        "appended": "is to append",
        "rolled over": "is to roll",
        "recovered": "^recovers ledger",
        "fenced while it served": "is fenced",
        "unknown outcome": "is lost|no answer",
        "carried out late": "^late",
        "cursor stored": "writes the cursor's record",
        "acknowledged": "is to acknowledge",
        "closed": "is to close",
        "deleted a ledger": "^deletes ledger",
        "waited": "waits for a while",
    }
    wanted: ClassVar[dict[str, float]] = dict.fromkeys(signs, 0.005)

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        self._over = False
        self._dies = chance.one_of(("", "broker A", "broker B"))
        self._dies_at = chance.below(100)
        self._steps = 0

    def draw(self) -> LogSettings:
        one_of = self.chance.one_of
        faults, cursor = one_of((0, 1, 3)), one_of((0, 1))
        return LogSettings(
            brokers=one_of((2, 2, 3, 4)),
            appends=one_of((2, 3, 5)),
            rolls=one_of((0, 1, 2)),
            subscribes=cursor,
            acks=5 * cursor,
            flushes=3 * cursor,
            closes=one_of((0, 1)),
            lost_answers=faults,
            trims=one_of((False, True)),
            calm=one_of((False, False, True)),
            waits=100,
        )

    def build(self, settings: LogSettings) -> LogSystem:
        return LogSystem(settings)

    @property
    def _last(self) -> str:
        return f"broker {'ABCD'[self.settings.brokers - 1]}"

    def may(self, move: Move) -> bool:
        if move.text == OPENS:
            return self._over or move.target != self._last
        if self._over and move.text.startswith("is to") and "append" not in move.text:
            return False
        dead = self._dies != self._last and self._steps >= self._dies_at
        return not (dead and self._dies in (move.source, move.target))

    def is_wish(self, move: Move) -> bool:
        return move.text == OPENS

    def _step(self, system: LogSystem, state: State) -> State:
        self._steps += 1
        return super()._step(system, state)

    def calm(self, system: LogSystem, state: State) -> State:
        self._over = True
        return super().calm(system, state)

    def wrong(self, system: LogSystem, state: State) -> str:
        return "" if system.serves(state) else f"{self._last} does not serve the log"
