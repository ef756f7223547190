"""Brokers, a metadata store and ledgers, as a system to be searched.

A state is a tuple of numbers:

    world | budget | oracle | late calls | history, inbox of each broker

A broker that opens the log makes one call after the other, so each is carried out and answered in
one step.  Once it serves, answers wait in its inbox.  A call that the broker has given up may still
be carried out, at any time or never.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from tests.model.log import rules
from tests.model.log.events import (
    Answer,
    Asks,
    Call,
    Command,
    Confirms,
    DeleteLedger,
    Do,
    Error,
    GivesUp,
    Input,
    Refuses,
    Says,
    Sends,
    Wait,
    What,
    is_write,
)
from tests.model.log.replay import Histories, Node
from tests.model.log.rules import Acked, Oracle
from tests.model.log.showing import show
from tests.model.log.world import (
    World,
    carry_out,
    hear_next,
    refuse,
    sent,
    store_next,
)
from tests.model.numbering import Numbering
from tests.model.search import BrokenRuleError, Move, State


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    brokers: int = 2
    appends: int = 1
    rolls: int = 0
    subscribes: int = 0
    acks: int = 0
    flushes: int = 0
    closes: int = 0
    lost_answers: int = 0  # answers to writes, which the store carries out now, later or never
    waits: int = 3  # times that a broker may see time pass
    trims: bool = False  # entries that consumers have acknowledged are not kept
    calm: bool = False  # a broker gets a command only when it has finished those before

    def __str__(self) -> str:
        parts = ["1 broker" if self.brokers == 1 else f"{self.brokers} brokers"]
        for text, count in [
            ("appends", self.appends),
            ("rolls", self.rolls),
            ("subscribes", self.subscribes),
            ("acks", self.acks),
            ("flushes", self.flushes),
            ("closes", self.closes),
            ("lost answers", self.lost_answers),
        ]:
            if count:
                parts.append(f"{text} {count}")
        return ", ".join([*parts, *["trims"] * self.trims, *["calm"] * self.calm])


Budget: TypeAlias = tuple[int, ...]
_ROLLS, _SUBSCRIBES, _ACKS, _FLUSHES, _CLOSES, _LOST, _WAITS = range(7)
Late: TypeAlias = tuple[tuple[int, Call], ...]
Inbox: TypeAlias = tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class View:
    """The state without the other brokers."""

    number: int
    world: World
    budget: Budget
    oracle: Oracle
    late: Late
    history: int
    inbox: Inbox

    def spent(self, what: int) -> "View":
        budget = tuple(count - (each == what) for each, count in enumerate(self.budget))
        return replace(self, budget=budget)


@dataclass(frozen=True, slots=True)
class Taken:
    move: Move
    state: State = ()
    broken: BrokenRuleError | None = None


class LogSystem:
    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self.histories = Histories(trims=settings.trims)
        self._worlds: Numbering[World] = Numbering(World())
        budget = (
            settings.rolls,
            settings.subscribes,
            settings.acks,
            settings.flushes,
            settings.closes,
            settings.lost_answers,
            settings.waits,
        )
        self._budgets: Numbering[Budget] = Numbering(budget)
        self._oracles: Numbering[Oracle] = Numbering(Oracle())
        self._late: Numbering[Late] = Numbering(())
        self._inboxes: Numbering[Inbox] = Numbering(())
        self._names = [f"broker {'ABCD'[number]}" for number in range(settings.brokers)]
        self._steps: dict[State, list[Taken]] = {}
        self.columns = (*self._names, "ledgers", "store")

    def initial(self) -> State:
        return (0,) * (4 + 2 * self._settings.brokers)

    def expand(self, state: State, moves: list[Move] | None = None) -> list[State]:
        found: list[State] = []
        for number in range(self._settings.brokers):
            at = 4 + 2 * number
            if number and not state[at] and not state[at - 2]:
                break  # Brokers that have done nothing are alike.
            for taken in self._of(state, number):
                if moves is not None:
                    moves.append(taken.move)
                if taken.broken is not None:
                    raise taken.broken
                found.append((*taken.state[:4], *state[4:at], *taken.state[4:], *state[at + 2 :]))
        return found

    def serves(self, state: State) -> bool:
        """Return True if the last broker serves the log, or has served it and closed it."""
        node = self.histories[state[-2]]
        return node.serves or node.closing

    def _of(self, state: State, number: int) -> list[Taken]:
        """Return the steps of one broker, which do not depend on the states of the others."""
        at = 4 + 2 * number
        key = (number, *state[:4], *state[at : at + 2])
        known = self._steps.get(key)
        if known is None:
            world, budget, oracle, late = state[:4]
            history, inbox = state[at : at + 2]
            view = View(
                number,
                self._worlds[world],
                self._budgets[budget],
                self._oracles[oracle],
                self._late[late],
                history,
                self._inboxes[inbox],
            )
            known = self._steps[key] = list(self._work_out(view))
        return known

    def _taken(self, move: Move, make: Callable[[], View]) -> Taken:
        try:
            after = make()
        except BrokenRuleError as error:
            return Taken(move, broken=error)
        state = (
            self._worlds.of(after.world),
            self._budgets.of(after.budget),
            self._oracles.of(after.oracle),
            self._late.of(after.late),
            after.history,
            self._inboxes.of(after.inbox),
        )
        return Taken(move, state)

    # -- the steps of one broker

    def _work_out(self, view: View) -> Iterator[Taken]:
        name, node = self._names[view.number], self.histories[view.history]
        heard = {answer.number for answer in view.inbox}
        for number, call in node.pending:
            if number not in heard:
                yield from self._carried_out(view, node, number, call)
        for answer in view.inbox:
            rest = replace(view, inbox=tuple(each for each in view.inbox if each != answer))
            move = Move("store", name, f"hears {show(answer.result)}")
            yield self._taken(move, partial(self._told, rest, answer))
        yield from self._ledgers(view, name)
        for do, after in self._wishes(view, node):
            move = Move(name, name, f"is to {_wish(do)}")
            yield self._taken(move, partial(self._told, after, do))
        if node.sleeps and view.budget[_WAITS] and not node.pending:
            move = Move(name, name, "waits for a while")
            yield self._taken(move, partial(self._told, view.spent(_WAITS), Wait()))
        for each in view.late:
            if each[0] == view.number:
                yield from self._carried_out_late(view, name, each)

    def _carried_out(self, view: View, node: Node, number: int, call: Call) -> Iterator[Taken]:
        name = self._names[view.number]
        may_come = list(carry_out(view.world, view.number, call))
        for world, result in may_come:
            move = Move(name, "store", f"{show(call)}: {show(result)}")
            answer = Answer(number, result)
            yield self._taken(move, partial(self._done, view, world, call, answer))
        if is_write(call) and view.budget[_LOST]:
            spent = view.spent(_LOST)
            unknown, refused = Answer(number, Error.UNKNOWN), Answer(number, Error.UNAVAILABLE)
            for world, result in may_come:
                if not isinstance(result, Error):
                    move = Move(name, "store", f"{show(call)}, and the answer is lost")
                    yield self._taken(move, partial(self._done, spent, world, call, unknown))
            late = replace(spent, late=(*spent.late, (view.number, call)))
            move = Move(name, "store", f"{show(call)}: no answer, it may come late")
            yield self._taken(move, partial(self._done, late, view.world, call, unknown))
            move = Move(name, "store", f"{show(call)}: refused now")
            yield self._taken(move, partial(self._done, spent, view.world, call, refused))

    def _done(self, view: View, world: World, call: Call, answer: Answer) -> View:
        """Take over the world after a call; the answer is given at once, or put into the inbox."""
        after = replace(view, world=self._changed(view, world, call))
        if not self.histories[view.history].serves:
            return self._told(after, answer)
        return replace(after, inbox=tuple(sorted((*after.inbox, answer), key=_by_number)))

    def _carried_out_late(self, view: View, name: str, late: tuple[int, Call]) -> Iterator[Taken]:
        rest = list(view.late)
        rest.remove(late)
        gone = replace(view, late=tuple(rest))
        for world, result in carry_out(view.world, view.number, late[1]):
            if world != view.world:
                text = f"late, of {name}: {show(late[1])}: {show(result)}"
                make = partial(self._changed_to, gone, world, late[1])
                yield self._taken(Move("store", "store", text), make)

    def _changed_to(self, view: View, world: World, call: Call | None = None) -> View:
        return replace(view, world=self._changed(view, world, call))

    def _ledgers(self, view: View, name: str) -> Iterator[Taken]:
        """Yield the steps of the entries that the broker's ledgers have under way."""
        for ledger_id, ledger in enumerate(view.world.ledgers, 1):
            if ledger.owner != view.number:
                continue
            stored, heard, refused = store_next(ledger), hear_next(ledger), refuse(ledger)
            if stored is not None:
                world = view.world.with_ledger(ledger_id, stored)
                move = Move(name, "ledgers", f"entry {ledger_id}:{ledger.stored} is stored")
                yield self._taken(move, partial(self._changed_to, view, world))
            if heard is not None:
                told = replace(view, world=view.world.with_ledger(ledger_id, heard))
                move = Move("ledgers", name, f"entry {ledger_id}:{ledger.heard} is confirmed")
                yield self._taken(move, partial(self._told, told, Confirms(ledger_id)))
            if refused is not None:
                told = replace(view, world=view.world.with_ledger(ledger_id, refused))
                move = Move("ledgers", name, f"ledger {ledger_id} is fenced")
                yield self._taken(move, partial(self._told, told, Refuses(ledger_id)))

    def _wishes(self, view: View, node: Node) -> Iterator[tuple[Do, View]]:
        oracle, budget = view.oracle, view.budget
        if not view.history:
            yield Do(Command.OPEN, view.number), view
        if not node.serves or node.closing or (self._settings.calm and _is_busy(view, node)):
            return
        if oracle.values < self._settings.appends:
            value = oracle.values + 1
            floors = (*oracle.floors, (value, oracle.last))
            yield (
                Do(Command.APPEND, value),
                replace(view, oracle=replace(oracle, values=value, floors=floors)),
            )
        if budget[_ROLLS]:
            yield Do(Command.ROLL), view.spent(_ROLLS)
        if budget[_CLOSES]:
            yield Do(Command.CLOSE), view.spent(_CLOSES)
        if budget[_SUBSCRIBES] and not node.subscribed:
            yield Do(Command.SUBSCRIBE), view.spent(_SUBSCRIBES)
        if node.subscribed:
            yield from self._consumption(view, node)

    def _consumption(self, view: View, node: Node) -> Iterator[tuple[Do, View]]:
        oracle, budget = view.oracle, view.budget
        consumed = {where for where, _ in oracle.consumed}
        if budget[_ACKS]:
            for acked in oracle.acked:
                known = acked.broker == view.number or acked.where[0] < node.opened
                if known and acked.where not in consumed:
                    by = (*oracle.consumed, (acked.where, view.number))
                    ack = Do(Command.ACK, 0, *acked.where)
                    after = replace(view.spent(_ACKS), oracle=replace(oracle, consumed=by))
                    yield ack, after
        if budget[_FLUSHES] and oracle.consumed:
            number = budget[_FLUSHES]
            mine = tuple(where for where, by in oracle.consumed if by == view.number)
            flushes = (*oracle.flushes, (number, mine))
            after = replace(view.spent(_FLUSHES), oracle=replace(oracle, flushes=flushes))
            yield Do(Command.FLUSH, number), after

    # -- inputs and outputs of a broker

    def _told(self, view: View, event: Input) -> View:
        before = self.histories[view.history]
        history = self.histories.tell(view.history, event)
        node = self.histories[history]
        asked = dict(before.pending)
        view = replace(view, history=history)
        for output in node.out:
            match output:
                case Sends(ledger_id, data):
                    rules.check_sent(view.world.ledger(ledger_id), ledger_id)
                    view = replace(view, world=sent(view.world, ledger_id, data))
                case Says():
                    view = replace(view, oracle=self._said(view, output))
                case GivesUp(number):
                    view = self._given_up(view, number, asked)
                case Asks(number, call):
                    asked[number] = call
                case _:
                    pass
        return view

    def _given_up(self, view: View, number: int, asked: dict[int, Call]) -> View:
        """Drop a call that the broker has given up; a write not yet carried out may come late."""
        if any(answer.number == number for answer in view.inbox):
            rest = tuple(answer for answer in view.inbox if answer.number != number)
            return replace(view, inbox=rest)
        call = asked[number]
        if is_write(call) or isinstance(call, DeleteLedger):
            return replace(view, late=(*view.late, (view.number, call)))
        return view

    def _said(self, view: View, says: Says) -> Oracle:
        oracle, where = view.oracle, (says.ledger_id, says.entry_id)
        match says.what:
            case What.ACKED:
                return rules.acks(view.world, oracle, Acked(says.about, where, view.number))
            case What.FAILED:
                floors = tuple(each for each in oracle.floors if each[0] != says.about)
                return replace(oracle, floors=floors)
            case What.OPENED:
                rules.check_opened(view.world, says.ledger_id)
            case What.FLUSHED:
                promised = set(dict(oracle.flushes)[says.about]) | set(oracle.receipts)
                oracle = replace(oracle, receipts=tuple(sorted(promised)))
                rules.check_cursor(view.world, view.world, oracle)
            case What.CLOSED:
                rules.check_handed_over(view.world, oracle, view.number)
            case _:
                pass
        return oracle

    # -- changes of the world

    def _changed(self, view: View, world: World, call: Call | None) -> World:
        """Check a change of records or ledgers; note the ledgers that were listed."""
        before = view.world
        if world.record(rules.LIST) != before.record(rules.LIST):
            for ledger_id, _ in rules.listed(world):
                ledger = world.ledger(ledger_id)
                if not ledger.listed:
                    world = world.with_ledger(ledger_id, replace(ledger, listed=True))
            rules.check_list(before, world, view.oracle, trims=self._settings.trims)
        for ledger_id, ledger in enumerate(before.ledgers, 1):
            now = world.ledger(ledger_id)
            if now.end != ledger.end:
                rules.check_end(world, ledger_id, view.oracle)
            if now.deleted and not ledger.deleted:
                rules.check_deleted(world, ledger_id)
        rules.check_cursor(before, world, view.oracle)
        return world


def _is_busy(view: View, node: Node) -> bool:
    """Return True if a call, an answer or an entry of the broker is under way."""
    return bool(
        node.pending
        or view.inbox
        or any(
            ledger.owner == view.number and ledger.sent > ledger.heard and not ledger.fenced
            for ledger in view.world.ledgers
        )
    )


def _by_number(answer: Answer) -> int:
    return answer.number


def _wish(do: Do) -> str:
    name = do.command.name.lower()
    match do.command:
        case Command.APPEND:
            return f"append value {do.about}"
        case Command.ACK:
            return f"acknowledge {do.ledger_id}:{do.entry_id}"
        case _:
            return name
