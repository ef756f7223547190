"""Break one rule, and something has to notice: here, the storms of `replication`.

A mutant replaces a piece of source of one class or function, for the time of one test.  The names
are those of `safety.md`, section 3, where each has its story.
"""

import inspect
import textwrap
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import pytest

from bookie.ledger.protocol import read, recover, update, write
from bookie.ledger.protocol.placement import Quorums
from tests.bookie.ledger.replication import Odds, SafetyError, World

SEEDS = 3000
STEPS = 80


@dataclass(frozen=True)
class Mutant:
    name: str
    target: Any  # a class or a function
    replaced: str
    by: str
    setup: tuple[int, Quorums] | None = None  # where it shows soon; else any
    odds: Odds | None = None


QUIET = Odds(0.3, 0, 0, 0, 0, 0, 0.1, 0, 0, fifo=False)  # appends and recoveries, no faults


MUTANTS = [
    Mutant(
        "M01 silence is a negative answer",
        read.Inquiry,
        "self._absent if verdict is Verdict.ABSENT else self._unknown",
        "self._absent",
    ),
    Mutant(
        "M02 one negative answer less",
        Quorums,
        "self.write - self.ack + 1",
        "max(1, self.write - self.ack)",
    ),
    Mutant(
        "M04 closed without writing back",
        recover.RecoverProtocol,
        "self._writing.lac == self._end - 1",
        "self._writing.last_add_pushed == self._end - 1",
    ),
    Mutant(
        "M06 closed at the LAC that was found",
        recover.RecoverProtocol,
        "self._next_read = self._base + 1\n",
        "self._next_read = self._base + 1; self._end = self._base + 1\n",
    ),
    Mutant(
        "M09 the last fragment does not say where to begin",
        recover.RecoverProtocol,
        "max(self._found_lac, self._last.first_entry_id - 1)",
        "self._found_lac",
    ),
    Mutant(
        "M10 closed over another recovery's end",
        update.close_by_recovery,
        "if metadata.closed:\n            return Ruling.KEEP",
        "if metadata.closed:\n            from dataclasses import replace\n"
        "            return replace(metadata, last_entry_id=last_entry_id, length=length)",
    ),
    Mutant(
        "M13 entries behind a missing one are kept",
        recover.RecoverProtocol,
        "self._end = entry_id\n",
        "if self._writing.last_add_pushed + 1 == entry_id < max(self._found, default=0):\n"
        "            self._writing.lac = self._writing.last_add_pushed = entry_id\n"
        "            return\n"
        "        self._end = entry_id\n",
        setup=(3, Quorums(3, 2, 2)),
        odds=replace(QUIET, lose=0.3, give_up=0.1, append=0.5),
    ),
    Mutant(
        "M15 recovered entries carry a LAC that moves",
        recover.RecoverProtocol,
        "return self._base\n",
        "return self._writing.lac\n",
    ),
    Mutant(
        "M18 any entry with an ack quorum is confirmed",
        write.WriteProtocol,
        "while acks and acks[0].bit_count() >= ack_quorum:",
        "while acks and max(a.bit_count() for a in acks) >= ack_quorum:",
    ),
    Mutant(
        "M19 acks of a replaced bookie count",
        write.WriteProtocol,
        "self._positions = {bookie: position for position, bookie in enumerate(ensemble)}",
        "self._positions = {**self._positions, **{b: p for p, b in enumerate(ensemble)}}",
    ),
    Mutant(
        "M20 acks of a replaced bookie are kept",
        write.WriteProtocol,
        "self._acks[index] = positions & kept",
        "self._acks[index] = positions",
    ),
    Mutant(
        "M21 the LAC moves during a change",
        write.WriteProtocol,
        "if self.state is not State.OPEN:\n            return\n",
        "pass\n",
    ),
    Mutant(
        "M23 fragments are written whatever the state",
        update.change_ensemble,
        "if metadata.state is not LedgerState.OPEN:\n            return Ruling.REFUSE\n",
        "from dataclasses import replace\n"
        "        metadata = replace(\n"
        "            metadata, state=LedgerState.OPEN, last_entry_id=-1, length=0\n"
        "        )\n",
    ),
    Mutant(
        "M24 a fragment starts at the LAC",
        write.WriteProtocol,
        "ChangeEnsemble(self.lac + 1,",
        "ChangeEnsemble(max(self.lac, 0),",
    ),
    Mutant(
        "M24 a fragment starts behind what was pushed",
        write.WriteProtocol,
        "ChangeEnsemble(self.lac + 1,",
        "ChangeEnsemble(self.last_add_pushed + 1,",
    ),
    Mutant(
        "M28 the writer closes whatever the state",
        update.close_by_writer,
        "if metadata.state is LedgerState.OPEN:\n",
        "from dataclasses import replace\n"
        "        if metadata.last_entry_id != last_entry_id or not metadata.closed:\n"
        "            metadata = replace(\n"
        "                metadata, state=LedgerState.OPEN, last_entry_id=-1, length=0\n"
        "            )\n",
    ),
    Mutant(
        "M29 closed while appends may still be confirmed",
        write.WriteProtocol,
        "self.state = State.WITHDRAWN\n",
        "",
    ),
    Mutant(
        "M59 a write without an answer was not carried out",
        update.UpdateProtocol,
        "self._doubtful = True\n                return Read()",
        "return NotDone()",
    ),
    Mutant(
        "M60 a write without an answer was carried out",
        update.UpdateProtocol,
        "self._doubtful = True\n                return Read()",
        "assert self._wanted is not None\n"
        "                return Settled(self._wanted.metadata, self._wanted.version + 1)",
    ),
    Mutant(
        "a returned bookie has a gap behind the LAC",
        write.WriteProtocol,
        "if positions >> position & 1 or not self.quorums.holds(position, entry_id):",
        "if positions or not self.quorums.holds(position, entry_id):",
    ),
]


def mutate(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    target = mutant.target
    source = textwrap.dedent(inspect.getsource(target))
    assert source.count(mutant.replaced) == 1, f"{mutant.name}: the source has changed"
    module = inspect.getmodule(target)
    assert module is not None
    names: dict[str, Any] = {}
    exec(source.replace(mutant.replaced, mutant.by), vars(module), names)
    mutated = names[target.__name__]
    if isinstance(target, FunctionType):
        monkeypatch.setattr(module, target.__name__, mutated)
        return
    for name, value in vars(mutated).items():
        if isinstance(value, FunctionType | property) and not name.startswith("__"):
            monkeypatch.setattr(target, name, value)


def first_failure(**options: Any) -> str:
    for seed in range(SEEDS):
        try:
            World(seed, **options).run(STEPS)
        except SafetyError as error:
            return f"seed {seed}: {error}"
        except (AssertionError, ValueError) as error:
            return f"seed {seed}: noticed by the code itself: {error!r}"
    return ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_mutant_is_noticed(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    mutate(monkeypatch, mutant)
    assert first_failure(setup=mutant.setup, odds=mutant.odds), "no storm notices"


def test_m05_recovery_reads_that_do_not_fence_are_noticed() -> None:
    odds = replace(QUIET, give_up=0.2)
    setup = (2, Quorums(2, 2, 2))
    assert first_failure(setup=setup, odds=odds, reads_fence=False).partition("S1")[1]
