"""One ledger as a system to be searched.

A state is a tuple of numbers:

    acked + 1 | budget | record | answer of the store to the writer | writes that may come late
    | bookies | writer, recoverers ..., readers ...: each with what it has in flight

A request of a recoverer to the metadata store is carried out and answered in one step.  The
recoverer does nothing else meanwhile, so a later answer would only delay its next messages, and
these may be delayed anyway.  The writer continues meanwhile; it gets its answer in another step.

Recoverers are alike, so states that differ only in their order are one.  Bookies are not alike: a
recovery asks them in the order of the write set.

If `settings.reduced` is set and there is a settled step (`sides`), no other step is taken.  All
other steps are still possible after it, since it changes only a link.  The settled steps come to an
end, since each takes a request off its link.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.placement import Fragment
from daybook.bookie.ledger.protocol.update import Read, Write
from daybook.bookie.ledger.protocol.write import State as WriteState
from tests.harness.calls import Call, call
from tests.model.ledger import rules
from tests.model.ledger.bookies import Bookies
from tests.model.ledger.clients import Outcome, Rules, Table, bookie_id
from tests.model.ledger.metadata import End, Register, answer, found_in_store, show
from tests.model.ledger.network import Links
from tests.model.ledger.reader import ReaderRules
from tests.model.ledger.recoverer import RecovererRules
from tests.model.ledger.settings import LedgerSettings
from tests.model.ledger.sides import Shelves, Sides, Step
from tests.model.ledger.writer import WriterRules
from tests.model.numbering import Numbering
from tests.model.search import BrokenRuleError, Move, State

_ACKED, _BUDGET, _RECORD, _TOLD, _LATE, _SHELF, _SIDES = range(7)
_NOTHING = 0
_SAME = -1  # the record does not change

Budget: TypeAlias = tuple[int, int]  # cuts, lost answers


@dataclass(frozen=True, slots=True)
class _Asked:
    """A possible outcome of a request to the metadata store: the answer, and the record then."""

    text: str
    answer: int = 0
    record: int = _SAME
    lost: bool = False
    late: Write | None = None
    broken: BrokenRuleError | None = None


class LedgerSystem:
    def __init__(self, settings: LedgerSettings) -> None:
        self.settings = settings
        recoverers, readers = settings.recoverers, settings.readers
        assert readers <= 1
        assert recoverers <= 2 or not settings.canonical
        self._twins = recoverers == 2 and settings.canonical
        requests: Numbering[bytes] = Numbering()
        answers: Numbering[bytes] = Numbering()
        nothing = call("unavailable")  # takes number 0, which means that no answer is under way
        self._requests = requests
        self._store_answers: Numbering[Call] = Numbering(nothing)
        self._budgets: Numbering[Budget] = Numbering((settings.cuts, settings.lost_answers))
        self._late: Numbering[tuple[Write, ...]] = Numbering(())
        self._bookies = Bookies(requests, answers, white_box=settings.white_box)
        self._shelves = Shelves(self._bookies, settings.bookies)
        ensemble = tuple(bookie_id(number) for number in range(settings.quorums.ensemble))
        metadata = LedgerMetadata(quorums=settings.quorums, fragments=(Fragment(0, ensemble),))
        self._records: Numbering[Register] = Numbering(Register(metadata, 0))
        links = Links(fifo=settings.fifo, canonical=settings.canonical)

        def sides(kind: Rules[Any], first: Any) -> Sides:
            table: Table[Any] = Table(kind, first, requests, answers, self._store_answers)
            return Sides(table, settings, self._bookies, self._shelves, links, requests, answers)

        writer, recoverer = WriterRules(settings), RecovererRules(settings)
        reader = ReaderRules(settings)
        self._clients = [
            sides(writer, writer.first(StoredMetadata(metadata, 0))),
            *[sides(recoverer, recoverer.first())] * recoverers,
            *[sides(reader, reader.first())] * readers,
        ]
        self._names = ["writer", *(f"r{n + 1}" for n in range(recoverers)), *["reader"] * readers]
        # The writer's connection may be cut, and then a settled request would be lost.
        self._hasty = self._clients[bool(settings.cuts) :] if settings.reduced else []
        self._asked: dict[tuple[Sides, int, int], tuple[_Asked, ...]] = {}
        self._passed: dict[tuple[int, ...], int] = {}  # acked + 1 after an outcome that was checked
        self._checked: set[tuple[int, ...]] = set()
        bookies = [str(bookie_id(number)) for number in range(settings.bookies)]
        self.columns = (*self._names, *bookies, "store")

    def initial(self) -> State:
        return (0,) * (_SIDES + len(self._clients))

    def expand(self, state: State, moves: list[Move] | None = None) -> list[State]:
        found: list[State] = []
        shelf = state[_SHELF]
        at = len(state)
        for sides in reversed(self._hasty):
            at -= 1
            step = sides.settled(state[at], shelf)
            if step is not None:
                self._step(state, at, step, found, moves)
                return found
        twins, alone = self._twins, moves is None
        at = _SIDES
        for sides in self._clients:
            before, side, behind = state[:at], state[at], state[at + 1 :]
            for step in sides.steps(side, shelf):
                if alone and step.plain and not twins:
                    found.append((*before, step.side, *behind))
                else:
                    self._step(state, at, step, found, moves)
            # The writer's request has been carried out once its answer is under way.
            if sides.asks[side] and not (at == _SIDES and state[_TOLD]):
                self._ask_store(state, at, found, moves)
            at += 1
        self._start(state, found, moves)
        if state[_TOLD]:
            self._hear_store(state, found, moves)
        if state[_LATE]:
            self._write_late(state, found, moves)
        return found

    def hosts(self, state: State) -> tuple[object, ...]:
        """Decode the numbers of a state, without messages and budgets, for tests.

        The numbers of two searches differ, and so does the order of recoverers.
        """
        clients = [
            sides.table.states[sides.host(side)]
            for sides, side in zip(self._clients, state[_SIDES:], strict=True)
        ]
        clients[1 : self.settings.recoverers + 1] = sorted(
            clients[1 : self.settings.recoverers + 1], key=repr
        )
        bookies = [self._bookies.states[each] for each in self._shelves[state[_SHELF]]]
        return state[_ACKED], self._records[state[_RECORD]], *clients, *bookies

    def unconfirmed(self, state: State) -> str:
        """Say how the state is wrong if nothing is under way, and nobody has begun to recover."""
        writer = self._clients[0]
        machine = writer.table.states[writer.host(state[_SIDES])].machine
        disturbed = not all(
            sides.is_fresh[state[at]] for at, sides in enumerate(self._clients[1:], _SIDES + 1)
        )
        if disturbed or machine[0] is WriteState.WITHDRAWN or machine[3] == machine[4]:
            return ""
        return f"e{machine[3]} is confirmed, e{machine[4]} was sent"

    def unclosed(self, state: State) -> str:
        """Say how the state is wrong if nothing is under way, and a recovery has ended."""
        metadata = self._records[state[_RECORD]].metadata
        return "" if metadata.closed else f"recovery does not end: {show(metadata)}"

    # -- the step of a client, or of a bookie that serves it

    def _step(
        self, state: State, at: int, step: Step, found: list[State], moves: list[Move] | None
    ) -> None:
        if step.cut and not self._budgets[state[_BUDGET]][0]:
            return
        if moves is not None:
            moves.append(step.move(self._names[at - _SIDES]))
        if step.broken is not None:
            raise step.broken
        if step.lac >= state[_ACKED]:
            rules.check_stored_lac(step.lac, state[_ACKED] - 1)
        new = list(state)
        new[at] = step.side
        if step.cut:
            cuts, lost = self._budgets[state[_BUDGET]]
            new[_BUDGET] = self._budgets.of((cuts - 1, lost))
        if step.shelf != state[_SHELF]:
            new[_SHELF] = step.shelf
            for each, sides in enumerate(self._clients, _SIDES):
                if each != at:
                    new[each] = sides.pruned(new[each], step.shelf)
        if step.outcome is not None:
            self._check(new, step.outcome)
        self._add(new, found, moves)

    def _check(self, new: list[int], outcome: Outcome) -> None:
        """Check the rules about a client's step, once for each outcome, record, shelf and acked."""
        key = (id(outcome), new[_RECORD], new[_SHELF], new[_ACKED])
        acked = self._passed.get(key)
        if acked is None:
            self._judge(new, outcome)
            if outcome.written is None:
                self._passed[key] = new[_ACKED]
        else:
            new[_ACKED] = acked

    def _judge(self, new: list[int], outcome: Outcome) -> None:
        now, facts = self._records[new[_RECORD]].metadata, self._shelves.facts(new[_SHELF])
        white_box = self.settings.white_box
        for first, count in outcome.confirmed:
            for entry_id in range(first, first + count):
                rules.check_ack(now, facts, new[_ACKED] - 1, entry_id)
                new[_ACKED] = entry_id + 1
        if outcome.fences and white_box:
            rules.check_fences(now)
        if outcome.reads and white_box:
            rules.check_reads(now, facts)
        if outcome.finished is not None:
            rules.check_finished(now, outcome.finished)
        if outcome.promised is not None:
            rules.check_promise(now, new[_ACKED] - 1, outcome.promised)
        if outcome.missed is not None:
            rules.check_missed(now, *outcome.missed)
        if outcome.written is not None:
            version = self._records[new[_RECORD]].version + 1
            self._write(new, self._records.of(Register(outcome.written, version)))

    # -- the metadata store

    def _start(self, state: State, found: list[State], moves: list[Move] | None) -> None:
        """Let a fresh client read the record; only one of several fresh recoverers, all alike."""
        last = None
        for at in range(len(state) - 1, _SIDES, -1):
            sides = self._clients[at - _SIDES]
            if sides is last or not sides.is_fresh[state[at]]:
                continue
            last = sides if self.settings.canonical else None
            record = self._records[state[_RECORD]]
            read = [record.stored]
            if record.before is not None:
                read.append(StoredMetadata(record.before, record.version - 1))
            for stored in read:
                if moves is not None:
                    moves.append(Move("store", self._names[at - _SIDES], "reads the record"))
                new = list(state)
                text = self._told(new, at, self._store_answers.of(found_in_store(stored)))
                if moves is not None:
                    moves[-1] = moves[-1]._replace(text=text)
                self._add(new, found, moves)

    def _ask_store(
        self, state: State, at: int, found: list[State], moves: list[Move] | None
    ) -> None:
        sides = self._clients[at - _SIDES]
        key = (sides, sides.host(state[at]), state[_RECORD])
        known = self._asked.get(key)
        if known is None:
            known = self._asked[key] = tuple(self._answers(*key))
        cuts, lost = self._budgets[state[_BUDGET]]
        for asked in known:
            if asked.lost and not lost:
                continue
            if asked.broken is not None:
                if moves is not None:
                    moves.append(Move(self._names[at - _SIDES], "store", asked.text))
                raise asked.broken
            new = list(state)
            if asked.lost:
                new[_BUDGET] = self._budgets.of((cuts, lost - 1))
            if asked.late is not None:
                new[_LATE] = self._late.of((*self._late[state[_LATE]], asked.late))
            if moves is not None:
                moves.append(Move(self._names[at - _SIDES], "store", asked.text))
            if asked.record != _SAME:
                self._write(new, asked.record)
            if at == _SIDES:
                new[_TOLD] = asked.answer
            else:
                text = self._told(new, at, asked.answer)
                if moves is not None:
                    moves[-1] = moves[-1]._replace(text=f"{asked.text}; {text}")
            self._add(new, found, moves)

    def _answers(self, sides: Sides, host: int, number: int) -> list[_Asked]:
        task = sides.table.task(host)
        assert task is not None
        request, record = task.request, self._records[number]
        after: Register | None = None
        if isinstance(request, Write):
            if isinstance(task.purpose, End) and self.settings.white_box:
                try:
                    rules.check_end(record.metadata, request.version, task.purpose.marked_version)
                except BrokenRuleError as error:
                    return [_Asked("writes", broken=error)]
            after = record.written(request, keep=self.settings.stale)
        becomes = _SAME if after is None else self._records.of(after)
        done = "" if after is None else f"record {after.version} is {show(after.metadata)}"
        kind = "reads" if isinstance(request, Read) else "writes"
        number_of = self._store_answers.of
        answered = number_of(answer(record, request, after))
        doubt = number_of(call("outcome_unknown"))
        found = [_Asked(f"{kind}: {done or 'nothing changes'}", answered, becomes)]
        if isinstance(request, Write) and self.settings.lost_answers:
            refused = number_of(call("unavailable"))
            found.append(_Asked("writes: refused for now", refused, lost=True))
            if after is not None:
                lost = f"writes, the answer is lost: {done}"
                found.append(_Asked(lost, doubt, becomes, lost=True))
            text, late = "writes, no answer: it may come late", request if after else None
            found.append(_Asked(text, doubt, lost=True, late=late))
        return found

    def _told(self, new: list[int], at: int, answer: int) -> str:
        """Give a client the answer of the store; return the text of its step."""
        new[at], outcome = self._clients[at - _SIDES].told(new[at], new[_SHELF], answer)
        if not outcome.plain:
            self._check(new, outcome)
        return outcome.text

    def _hear_store(self, state: State, found: list[State], moves: list[Move] | None) -> None:
        if moves is not None:
            moves.append(Move("store", self._names[0], "answers"))
        new = list(state)
        new[_TOLD] = _NOTHING
        text = self._told(new, _SIDES, state[_TOLD])
        if moves is not None:
            moves[-1] = moves[-1]._replace(text=text)
        self._add(new, found, moves)

    def _write_late(self, state: State, found: list[State], moves: list[Move] | None) -> None:
        """Carry out a write whose client got no answer."""
        record = self._records[state[_RECORD]]
        writes = self._late[state[_LATE]]
        for write in dict.fromkeys(writes):
            after = record.written(write, keep=self.settings.stale)
            assert after is not None, "others were dropped"
            if moves is not None:
                text = f"a late write: record {after.version} is {show(after.metadata)}"
                moves.append(Move("store", "store", text))
            new = list(state)
            self._write(new, self._records.of(after))
            self._add(new, found, moves)

    def _write(self, new: list[int], number: int) -> None:
        """Change the record, and drop the late writes: they are over older versions."""
        key = (new[_RECORD], number, new[_ACKED], new[_SHELF])
        if key not in self._checked:
            before, after = self._records[new[_RECORD]], self._records[number]
            facts = self._shelves.facts(new[_SHELF])
            rules.check_write(before.metadata, after.metadata, facts, new[_ACKED] - 1)
            self._checked.add(key)
        new[_RECORD] = number
        new[_LATE] = _NOTHING

    # -- the state after a step

    def _add(self, new: list[int], found: list[State], moves: list[Move] | None) -> None:
        """Add the state; the recoverer whose side has the smaller number comes first."""
        if self._twins and new[_SIDES + 2] < new[_SIDES + 1]:
            new[_SIDES + 1], new[_SIDES + 2] = new[_SIDES + 2], new[_SIDES + 1]
            if moves is not None:
                moves[-1] = moves[-1]._replace(exchanged=("r1", "r2"))
        found.append(tuple(new))
