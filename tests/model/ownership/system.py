"""Brokers and a metadata store, as a system to be searched.

The rules (`safety.md` 1.5, and the contract of `protocol.ownership`):

    O1     if a broker answers "ours", the record was of its session at some time; if the record
           is its own, it never answers "others"
    O2     a broker that is told that its session is lost drops its topics in the same step; a
           broker with a session and nothing under way owns the bundle only if the record says so
    O3     topics are closed or dropped before their bundle is released
    O6     a broker that reports a release no longer has the record
    O7     a record is taken from its owner only when that one has closed its topics
    L4     a broker with a session and nothing under way is in contact with the store, with a
           guard that stands
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from daybook.broker.protocol.ownership import (
    Answer,
    BundleState,
    Membership,
)
from daybook.wire.metadata.store import SessionState
from tests.harness.calls import Call, call
from tests.model.numbering import Numbering
from tests.model.ownership.broker import (
    BUNDLE,
    Broker,
    Done,
    GuardTouched,
    Waiting,
    failed,
    first,
    heard,
    put,
    sorted_requests,
    step,
    text_of,
    unanswered,
)
from tests.model.ownership.store import (
    NOBODY,
    Kind,
    Reply,
    Request,
    Seat,
    Store,
    carry_out,
    without,
)
from tests.model.search import BrokenRuleError, Move, State


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipSettings:
    brokers: int = 2
    cuts: int = 0  # connections to the store that break and are restored
    expiries: int = 0  # sessions that end
    removals: int = 0  # brokers that a peer believes dead and removes
    lost_answers: int = 0  # answers to writes, which the store carries out now, later or never
    releases: int = 0
    gives: bool = False  # releases have a successor, which may take the record
    drops: bool = True  # void answers are dropped from the state

    def __str__(self) -> str:
        parts = ["1 broker" if self.brokers == 1 else f"{self.brokers} brokers"]
        for text, count in [
            ("cuts", self.cuts),
            ("expiries", self.expiries),
            ("removals", self.removals),
            ("lost answers", self.lost_answers),
            ("releases", self.releases),
        ]:
            if count:
                parts.append(f"{text} {count}")
        if self.gives:
            parts.append("with a successor")
        if not self.drops:
            parts.append("nothing dropped")
        return ", ".join(parts)


Budget: TypeAlias = tuple[int, int, int, int, int]
_CUTS, _EXPIRIES, _REMOVALS, _LOST, _RELEASES = range(5)
_PLENTY: Budget = (1, 1, 1, 1, 1)
_SERVING = (BundleState.OWNED, BundleState.CLOSING)  # its topics may be loaded
_FREE = -1  # a step that costs nothing of the budget


def _less(budget: Budget, what: int) -> Budget:
    cuts, expiries, removals, lost, releases = (
        count - (each == what) for each, count in enumerate(budget)
    )
    return cuts, expiries, removals, lost, releases


@dataclass(frozen=True, slots=True)
class View:
    """One broker (by number) and the store.  `touches` are fired watches of other brokers."""

    number: int
    store: Store
    broker: Broker
    budget: Budget
    touches: tuple[tuple[int, Waiting], ...] = ()
    broken: BrokenRuleError | None = None  # the rule that the step to this view breaks

    @property
    def seat(self) -> Seat:
        return self.store.seats[self.number]

    def seated(self, seat: Seat) -> "View":
        return replace(self, store=self.store.with_seat(self.number, seat))

    def put(self, answers: list[Waiting]) -> "View":
        return replace(self, broker=put(self.broker, answers))

    def spent(self, what: int) -> "View":
        return replace(self, budget=_less(self.budget, what))


Step: TypeAlias = tuple[str, str, str, View]
"""Source, target, text, and the view after the step."""


class OwnershipSystem:
    def __init__(self, settings: OwnershipSettings) -> None:
        self._settings = settings
        self._stores: Numbering[Store] = Numbering()
        self._brokers: Numbering[Broker] = Numbering()
        self._budgets: Numbering[Budget] = Numbering()
        self._names = [f"broker {'ABC'[number]}" for number in range(settings.brokers)]
        self._spent: dict[tuple[int, int], int] = {}
        self._steps: dict[tuple[int, int, int], list[_Numbered]] = {}
        self._touched: dict[tuple[int, Waiting], int] = {}
        self._settled: set[tuple[int, int, int]] = set()
        self.columns = (*self._names, "store")

    def initial(self) -> State:
        settings = self._settings
        budget = (
            settings.cuts,
            settings.expiries,
            settings.removals,
            settings.lost_answers,
            settings.releases,
        )
        store = Store(tuple(Seat() for _ in range(settings.brokers)))
        broker = self._brokers.of(first(drops=settings.drops))
        return self._stores.of(store), self._budgets.of(budget), *[broker] * settings.brokers

    def expand(self, state: State, moves: list[Move] | None = None) -> list[State]:
        found: list[State] = []
        for number in range(self._settings.brokers):
            for taken in self._of(state, number):
                budget = state[1]
                if taken.spends != _FREE:
                    if not self._budgets[budget][taken.spends]:
                        continue
                    budget = self._spend(budget, taken.spends)
                if moves is not None:
                    moves.append(taken.move)
                if taken.broken is not None:
                    raise taken.broken
                new = [taken.store, budget, *state[2:]]
                new[2 + number] = taken.broker
                for other, answer in taken.touches:
                    new[2 + other] = self._touch(new[2 + other], answer)
                for each in range(self._settings.brokers):
                    self._check_settled(new[0], each, new[2 + each])
                found.append(tuple(new))
        return found

    def _of(self, state: State, number: int) -> "list[_Numbered]":
        """Return the steps of one broker, including those that cost something of the budget.

        The steps depend only on the store and the broker.
        """
        key = (number, state[0], state[2 + number])
        known = self._steps.get(key)
        if known is None:
            view = View(
                number,
                self._stores[state[0]],
                self._brokers[state[2 + number]],
                _PLENTY,
            )
            known = self._steps[key] = [self._numbered(*each) for each in self._work_out(view)]
        return known

    def _spend(self, budget: int, what: int) -> int:
        after = self._spent.get((budget, what))
        if after is None:
            after = self._spent[budget, what] = self._budgets.of(_less(self._budgets[budget], what))
        return after

    def _numbered(self, source: str, target: str, text: str, after: View) -> "_Numbered":
        return _Numbered(
            Move(source, target, text),
            after.broken,
            self._stores.of(after.store),
            self._brokers.of(after.broker),
            after.budget.index(0) if after.budget != _PLENTY else _FREE,
            after.touches,
        )

    def _touch(self, broker: int, answer: Waiting) -> int:
        key = (broker, answer)
        touched = self._touched.get(key)
        if touched is None:
            touched = self._brokers.of(put(self._brokers[broker], [answer]))
            self._touched[key] = touched
        return touched

    def _check_settled(self, store: int, number: int, broker: int) -> None:
        key = (store, number, broker)
        if key not in self._settled:
            _check_settled(self._stores[store], number, self._brokers[broker])
            self._settled.add(key)

    def disagreement(self, state: State) -> str:
        """Say how the state is wrong when everything has arrived, and all brokers have asked."""
        store, brokers = self._stores[state[0]], [self._brokers[each] for each in state[2:]]
        owners = [number for number, broker in enumerate(brokers) if broker.owns]
        if owners != [store.owner]:
            names = " and ".join(self._names[number] for number in owners) or "nobody"
            return f"{names} owns the bundle, the record says {store.owner}"
        for number, broker in enumerate(brokers):
            if number != store.owner and broker.holding is not None:
                return f"{self._names[number]}: the bundle is {broker.holding.name}"
        return ""

    # -- one broker

    def _work_out(self, view: View) -> Iterator[Step]:
        name = self._names[view.number]
        yield from _answers(view, name)
        for request in view.broker.requests:
            yield from _request(view, name, request)
        for request in view.broker.late:
            rest = tuple(each for each in view.broker.late if each != request)
            gone = replace(view, broker=replace(view.broker, late=rest))
            late = _carried_out(gone, request, hears=False, late=True)
            yield "store", "store", f"a late {request} of {name}", late
        yield from _contact(view, name)
        if view.broker.holding in (None, BundleState.DOUBTFUL):
            yield name, name, "is asked for the bundle", _stepped(view, call("acquire", BUNDLE))
        if view.broker.owns and view.budget[_RELEASES]:
            released = _stepped(view.spent(_RELEASES), call("release", BUNDLE))
            yield name, name, "is to release the bundle", released
            if self._settings.gives:
                given = _stepped(view.spent(_RELEASES), call("hand_over", BUNDLE))
                yield name, name, "is to hand the bundle over", given
        others = view.store.owner not in (NOBODY, view.number)
        if view.store.offered and others and view.broker.holding is None:
            yield name, name, "is given the bundle", _stepped(view, call("take", BUNDLE))


@dataclass(frozen=True, slots=True)
class _Numbered:
    move: Move
    broken: BrokenRuleError | None
    store: int = 0
    broker: int = 0
    spends: int = -1  # the part of the budget that the step costs
    touches: tuple[tuple[int, Waiting], ...] = ()


# -- the steps of one broker


def _stepped(view: View, event: Call) -> View:
    try:
        after, done = step(view.broker, event)
        _check_step(view, after, done, event)
    except BrokenRuleError as error:
        return replace(view, broken=error)
    serves = after.holding in _SERVING
    if view.seat.serves != serves:
        view = view.seated(replace(view.seat, serves=serves))
    return replace(view, broker=after)


def _answers(view: View, name: str) -> Iterator[Step]:
    broker = view.broker
    for answer in broker.answers:
        rest = replace(broker, answers=tuple(each for each in broker.answers if each != answer))
        if isinstance(answer, GuardTouched):
            look = Request(Kind.GUARD, answer.term)
            asking = replace(rest, requests=sorted_requests([*rest.requests, look]))
            yield "store", name, "a watch on its guard fires", replace(view, broker=asking)
        else:
            yield "store", name, text_of(answer), _stepped(replace(view, broker=rest), answer)


def _request(view: View, name: str, request: Request) -> Iterator[Step]:
    """Yield the outcomes of a request: carried out, failed, or unknown."""
    broker, seat = view.broker, view.seat
    rest = replace(broker, requests=tuple(each for each in broker.requests if each != request))
    gone = replace(view, broker=rest)
    reached = seat.up and seat.alive
    if request.kind is Kind.CLOSE:
        yield name, name, "its topics are closed", _carried_out(gone, request)
        return
    if request.kind is Kind.GIVE:
        # The successor has the ticket from now on.  It may use it when this broker has given up.
        if view.store.owner == view.number and not view.store.offered:
            offered = replace(view, store=replace(view.store, offered=True))
            yield name, "store", "the ticket is out", offered
        yield name, "store", f"{request} ends", _carried_out(gone, request)
        return
    if reached:
        yield name, "store", f"{request}", _carried_out(gone, request)
    elif broker.machine[0] is not SessionState.CONNECTED and request.kind is not Kind.JOIN:
        yield name, name, f"{request} fails", gone.put(failed(request))
    if request.writes and view.budget[_LOST]:
        doubt = gone.spent(_LOST).put(unanswered(request))
        if reached:
            done = _carried_out(doubt, request, hears=False)
            yield name, "store", f"{request}, and the answer is lost", done
        later = sorted_requests([*doubt.broker.late, request])
        late = replace(doubt, broker=replace(doubt.broker, late=later))
        yield name, "store", f"{request}: no answer, it may come late", late
        yield name, "store", f"{request}: refused now", gone.spent(_LOST).put(failed(request))


def _contact(view: View, name: str) -> Iterator[Step]:
    """Yield the changes of connection, session and guard."""
    seat = view.seat
    connected = call("session_changed", SessionState.CONNECTED)
    suspended = call("session_changed", SessionState.SUSPENDED)
    if seat.reborn:
        fresh = view.seated(Seat(up=True))
        yield "store", name, "connected, in a new session", _stepped(fresh, connected)
    elif not seat.up and seat.alive:
        back = _all_watches(view.seated(replace(seat, up=True)))
        yield "store", name, "connected", _stepped(back, connected)
    elif not seat.up:
        yield "store", name, "the session is lost", _lost(view)
    if seat.up and not seat.reborn and view.budget[_CUTS]:
        cut = view.seated(replace(seat, up=False)).spent(_CUTS)
        yield "store", name, "the connection breaks", _stepped(cut, suspended)
    if seat.alive and not seat.reborn and view.budget[_EXPIRIES]:
        ended = _removed(view.spent(_EXPIRIES), session=True)
        after: View = ended
        if seat.up:
            after = _stepped(ended.seated(replace(ended.seat, up=False)), suspended)
        yield "store", name, "the session expires", after
    if seat.guard and view.budget[_REMOVALS]:
        yield "store", "store", f"a peer removes {name}", _removed(view.spent(_REMOVALS))


def _removed(view: View, *, session: bool = False) -> View:
    after = replace(view, store=without(view.store, view.number, session=session))
    return _fired(after, view.store, but=view.number if session else NOBODY)


def _lost(view: View) -> View:
    """End the session: all requests of the old session have failed."""
    broker = view.broker
    kept = tuple(each for each in broker.requests if each.kind is Kind.CLOSE)
    answers = [a for each in broker.requests if each not in kept for a in failed(each)]
    emptied = replace(view, broker=put(replace(broker, requests=kept, late=()), answers))
    reborn = emptied.seated(Seat(up=True, reborn=True))
    return _stepped(reborn, call("session_changed", SessionState.LOST))


def _carried_out(view: View, request: Request, *, hears: bool = True, late: bool = False) -> View:
    owner = view.store.owner
    store, reply = carry_out(view.store, view.number, request, late=late)
    if request.kind is Kind.TAKE and reply is Reply.DONE and view.store.seats[owner].serves:
        broken = BrokenRuleError("O7", "the record is taken from a broker that serves the bundle")
        return replace(view, broken=broken)
    after = _fired(replace(view, store=store), view.store)
    return after.put(heard(request, reply)) if hears else after


def _fired(view: View, before: Store, but: int = NOBODY) -> View:
    """Fire the watches on the guards and the record that have changed; `but` gets none."""
    for number, seat in enumerate(view.store.seats):
        fired: list[Waiting] = []
        if seat.watches_record and view.store.owner != before.owner:
            fired.append(call("record_touched", BUNDLE))
            seat = replace(seat, watches_record=False)
        if seat.watches_guard and seat.guard != before.seats[number].guard:
            fired.append(GuardTouched(seat.watches_guard))
            seat = replace(seat, watches_guard=0)
        if not fired or number == but:
            continue
        view = replace(view, store=view.store.with_seat(number, seat))
        if number == view.number:
            view = view.put(fired)
        else:
            view = replace(view, touches=(*view.touches, *((number, each) for each in fired)))
    return view


def _all_watches(view: View) -> View:
    """Fire all watches of a broker that was out of contact, since it may have missed changes."""
    seat = view.seat
    fired: list[Waiting] = []
    if seat.watches_record:
        fired.append(call("record_touched", BUNDLE))
    if seat.watches_guard:
        fired.append(GuardTouched(seat.watches_guard))
    return view.seated(replace(seat, watches_record=False, watches_guard=0)).put(fired)


# -- the rules


def _check_step(view: View, after: Broker, done: Done, event: Call) -> None:
    before, seat = view.broker, view.seat
    if done.answers(Answer.OURS) and not seat.had:
        raise BrokenRuleError("O1", "it says that the bundle is its own, but never had the record")
    if done.answers(Answer.OTHERS) and view.store.owner == view.number and not seat.late:
        raise BrokenRuleError("O1", "it says that others own the bundle, but the record is its own")
    if event == call("session_changed", SessionState.LOST):
        if after.holding is not None:
            raise BrokenRuleError("O2", "the session is lost, but it continues")
        if before.owns and not done.drops:
            raise BrokenRuleError("O2", "the session is lost, but it keeps its topics")

    served, serves = (each.holding in _SERVING for each in (before, after))
    if served and not serves and not done.drops and event.name != "topics_closed":
        raise BrokenRuleError("O3", "it releases the bundle, but serves its topics")
    if done.released and view.store.owner == view.number and not seat.late:
        raise BrokenRuleError("O6", "it says that the bundle is released, but has the record")


def _check_settled(store: Store, number: int, broker: Broker) -> None:
    """Check a broker that has a session and nothing under way."""
    seat = store.seats[number]
    session, standing, contact, term, *_ = broker.machine
    if broker.requests or broker.answers or broker.late or seat.reborn:
        return
    if not (seat.up and seat.alive and session is SessionState.CONNECTED):
        return
    if standing is not Membership.IN or not contact:
        raise BrokenRuleError("L4", "it has a session and nothing under way, but is not in contact")
    if seat.guard != term:
        raise BrokenRuleError("L4", "it continues without its guard")
    if broker.owns and store.owner != number:
        raise BrokenRuleError("O2", "it owns the bundle, but the record is not its own")
