"""The table of mutants: the set-up that finds each, the rule, and the number of steps.

The steps are those of the shortest counter-example.  They are asserted, so that a change of the
code or of the model that makes one longer, or hides it, is noticed.

Three mutants (M03, M11, M34) do little or no harm alone, because the code has a second defence.  A
W rule, which looks inside, finds each at once; in pairs they lose data, which is seen from outside
(`white_box=False`).
"""

from dataclasses import dataclass

from tests.model.configurations import (
    CURSOR,
    PAIR,
    R1,
    W1,
    Configuration,
    ledger,
    log,
    ownership,
)
from tests.model.ledger.mutants import LEDGER
from tests.model.log.mutants import LOG
from tests.model.ownership.mutants import OWNERSHIP
from tests.mutants.catalogue import BY_ID
from tests.mutants.patch import Mutant


@dataclass(frozen=True, slots=True)
class Case:
    mutant: Mutant
    configuration: Configuration
    rule: str
    steps: int


_MUTANTS = {**BY_ID, **{mutant.id: mutant for mutant in [*LEDGER, *OWNERSHIP, *LOG]}}


def _case(mutant: str, configuration: Configuration, rule: str, steps: int) -> Case:
    return Case(_MUTANTS[mutant], configuration, rule, steps)


_TWO = ledger(2, (2, 2, 2))
_TWO_OUTSIDE = ledger(2, (2, 2, 2), white_box=False)
_UNORDERED = ledger(2, (2, 2, 2), fifo=False, white_box=False)
_CHANGE = ledger(3, (2, 2, 2), **W1)
_CHANGE_OUTSIDE = ledger(3, (2, 2, 2), **W1, white_box=False)
_DOUBT = ledger(3, (2, 2, 2), **W1, lost_answers=1)
_THREE = {"entries": 3, "in_flight": 3}
_CURSOR = log(brokers=1, appends=2, **CURSOR, acks=2, flushes=2, calm=True)

CASES = [
    _case("M01", ledger(2, (2, 2, 2), **PAIR, recovery_give_ups=1), "S1", 13),
    _case("M02", ledger(2, (2, 2, 1), **PAIR), "S1", 14),
    _case("M03", _TWO, "W1", 2),
    _case("M03+M05 shell", _UNORDERED, "S1", 10),
    _case("M04", ledger(2, (2, 2, 2), reads_max=2), "S4", 9),
    _case("M05 shell", ledger(2, (2, 2, 2), **PAIR, **R1, fifo=False), "S1", 15),
    _case("M06", _TWO, "S1", 10),
    _case("M07", ledger(3, (2, 2, 2), **R1), "S10", 7),
    _case("M08", ledger(3, (2, 2, 1), **PAIR, **R1), "W5", 13),
    _case("M08", ledger(3, (2, 2, 1), **_THREE, **R1, white_box=False), "S1", 23),
    _case("M09", ledger(3, (2, 2, 2), entries=2, **W1, **R1), "code", 19),
    _case("M10", ledger(2, (2, 2, 2), recoverers=2), "S9", 15),
    _case("M11", _TWO, "W3", 1),
    _case("M11+close anyway", _CHANGE_OUTSIDE, "S8", 16),
    _case("M12", ledger(2, (2, 2, 2), **PAIR), "L1", 10),
    _case("M13", ledger(3, (3, 2, 2), **PAIR, reads_max=2), "S11", 18),
    _case("M14", _TWO, "L2", 8),
    _case("M15", ledger(2, (2, 2, 2), **PAIR), "S6", 16),
    _case("M18", ledger(2, (2, 2, 1), **PAIR, fifo=False), "S3", 4),
    _case("M18", ledger(3, (3, 2, 2), **PAIR), "S4", 8),
    _case("M19b", _CHANGE, "S4", 8),
    _case("M20", _CHANGE, "S4", 8),
    _case("M21", _CHANGE, "W4", 6),
    _case("M21", _CHANGE_OUTSIDE, "S10", 7),
    _case("M22 shell", _CHANGE, "W4", 6),
    _case("M22 shell", _CHANGE_OUTSIDE, "S4", 6),
    _case("M23", _CHANGE, "S9", 9),
    _case("M24", ledger(3, (2, 2, 2), entries=2, **W1), "S10", 8),
    _case("M24b", ledger(3, (2, 2, 2), entries=2, **W1), "S10", 3),
    _case("M25", _CHANGE, "L1", 4),
    _case("M27", _TWO, "S6", 2),
    _case("M28", ledger(2, (2, 2, 2), closes=True), "S2", 20),
    _case("M29", ledger(2, (2, 2, 2), closes=True), "code", 6),
    _case("M33", _TWO, "S1", 12),
    _case("M34", _TWO, "W2", 3),
    _case("M34", _TWO_OUTSIDE, "S1", 12),
    _case("M34+M05", _UNORDERED, "S1", 12),
    _case("M35", _TWO, "W2", 3),
    _case("M35", _TWO_OUTSIDE, "S1", 12),
    _case("M56", _TWO, "B4", 7),
    _case("M59", _DOUBT, "S4", 8),
    _case("M60", _DOUBT, "W3", 2),
    _case("R01", ledger(2, (2, 2, 2), give_ups=1, cuts=1), "L1", 5),
    _case("M62", ownership(brokers=1, expiries=1), "O2", 8),
    _case("O01", ownership(), "O1", 11),
    _case("O02", ownership(brokers=1, lost_answers=1), "O1", 6),
    _case("O03", ownership(brokers=1, removals=1), "L4", 6),
    _case("O04", ownership(brokers=1, cuts=1, expiries=1, drops=False), "O1", 12),
    _case("K60 shell", log(appends=1, rolls=1), "K6", 14),
    _case("K61 shell", log(), "K4", 6),
    _case("K62 shell", log(), "K6", 10),
    _case("K63 shell", log(), "K1", 14),
    _case("K64", log(brokers=1, appends=2, rolls=1), "K1", 15),
    _case("K65 shell", log(), "K6", 11),
    _case("K66", log(brokers=1, appends=0, rolls=2), "K3", 15),
    _case("K66 shell", log(), "K6", 14),
    _case("M60 list", log(lost_answers=1), "K4", 7),
    _case("C68", _CURSOR, "C1", 26),
    _case("C69", log(brokers=1, **CURSOR), "C6", 11),
    _case("C70 shell", log(**CURSOR, acks=1, flushes=1), "C5", 17),
    _case("C81 shell", _CURSOR, "C4", 25),
]
