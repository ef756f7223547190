"""A broker: the real `OwnershipProtocol`, with the part of its shell that rules depend on.

The shell (`broker/ownership/`) turns effects into requests with tasks of their own, whose answers
come in any order.  Here the numbers of asks are relative to the latest one, so that a broker that
asks again and again has few states.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership import (
    Answer,
    Answered,
    BundleState,
    CloseTopics,
    CreateRecord,
    DeleteRecord,
    DropTopics,
    Effect,
    GiveRecord,
    HeldBundle,
    Join,
    Membership,
    OwnershipProtocol,
    ReadGuard,
    ReadRecord,
    RecordOwner,
    Released,
    Snapshot,
    SplitRecord,
    TakeRecord,
)
from tests.harness.calls import Call, call
from tests.model.ownership.store import Kind, Reply, Request
from tests.model.search import BrokenRuleError

BUNDLE = BundleName("t/n/0x00000000_0xffffffff")
_ASKED = 1000  # the number that the latest ask is given


@dataclass(frozen=True, slots=True)
class GuardTouched:
    """The shell has to read the guard of this term: a watch fired, or a request was refused."""

    term: int


Waiting: TypeAlias = Call | GuardTouched
"""A call of the machine that is under way, or a reason for the shell to read its guard.

The second argument of a call is the number of an ask, except of those below.
"""
_WITHOUT_ASK = ("joined", "guard_seen", "record_touched")


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker; `answers` are under way; requests in `late` may be carried out without an answer.

    With `drops`, void answers are dropped, which the machine would ignore.
    """

    machine: Snapshot
    requests: tuple[Request, ...] = ()
    answers: tuple[Waiting, ...] = ()
    late: tuple[Request, ...] = ()
    drops: bool = True

    @property
    def holding(self) -> BundleState | None:
        held = self.machine[-1]
        return held[0][1].state if held else None

    @property
    def owns(self) -> bool:
        return self.holding is BundleState.OWNED

    @property
    def contact(self) -> bool:
        return self.machine[2]


@dataclass(slots=True)
class Done:
    """The effects of a step."""

    effects: list[Effect]

    def answers(self, answer: Answer) -> bool:
        return any(isinstance(e, Answered) and e.answer is answer for e in self.effects)

    @property
    def drops(self) -> bool:
        return any(isinstance(effect, DropTopics) for effect in self.effects)

    @property
    def released(self) -> bool:
        return any(isinstance(effect, Released) and effect.done for effect in self.effects)

    def __str__(self) -> str:
        return ", ".join(filter(None, map(_show, self.effects)))


def first(*, drops: bool = True) -> Broker:
    return Broker(_rebased(OwnershipProtocol().snapshot())[0], drops=drops)


def step(broker: Broker, event: Call) -> tuple[Broker, Done]:
    protocol = OwnershipProtocol()
    protocol.restore(broker.machine)
    try:
        effects: list[Effect] = event.apply(protocol)
    except AssertionError as error:
        raise BrokenRuleError("code", f"{text_of(event)}: {error!r}") from error
    machine, moved = _rebased(protocol.snapshot())
    requests = [_moved(request, moved, machine) for request in broker.requests]
    answers = [_older(answer, moved, machine) for answer in broker.answers]
    guard = protocol.term if protocol.membership is Membership.IN else 0
    if event == call("joined", guard):
        requests.append(Request(Kind.GUARD, guard))  # sets the watch
    for effect in effects:
        match effect:
            case Join(term):
                requests.append(Request(Kind.JOIN, term))
            case ReadGuard(term):
                requests.append(Request(Kind.GUARD, term))
            case CreateRecord(_, ask):
                requests.append(Request(Kind.CREATE, ask - moved, guard))
            case ReadRecord(_, ask):
                requests.append(Request(Kind.READ, ask - moved))
            case DeleteRecord(_, ask):
                requests.append(Request(Kind.DELETE, ask - moved, guard))
            case GiveRecord(_, ask):
                requests.append(Request(Kind.GIVE, ask - moved))
            case TakeRecord(_, ask):
                requests.append(Request(Kind.TAKE, ask - moved, guard))
            case SplitRecord():
                raise AssertionError("no bundle is split here")
            case CloseTopics(_, ask):
                requests.append(Request(Kind.CLOSE, ask - moved))
            case DropTopics() | Answered() | Released():
                pass
            case _:
                assert_never(effect)
    after = replace(broker, machine=machine, requests=sorted_requests(requests))
    return put(replace(after, answers=()), answers), Done(effects)


def _rebased(machine: Snapshot) -> tuple[Snapshot, int]:
    """Renumber the asks so that the latest is `_ASKED`; return also by how much they moved."""
    session, standing, contact, term, asked, held = machine
    moved = asked - _ASKED
    rebased = tuple(
        (name, HeldBundle(each.state, each.ask - moved, each.given)) for name, each in held
    )
    return (session, standing, contact, term, _ASKED, rebased), moved


def _moved(request: Request, moved: int, machine: Snapshot) -> Request:
    """Renumber the ask of a request; that of a void request does not matter, and becomes 0."""
    if request.kind in (Kind.JOIN, Kind.GUARD):
        return request
    ask = request.number - moved
    held = machine[-1]
    return replace(request, number=ask if held and held[0][1].ask == ask else 0)


def _older(answer: Waiting, moved: int, machine: Snapshot) -> Waiting:
    """Renumber the ask of an answer; answers about guards and watches have none."""
    if isinstance(answer, GuardTouched) or answer.name in _WITHOUT_ASK:
        return answer
    bundle, ask, *rest = answer.args
    ask, held = ask - moved, machine[-1]
    return call(answer.name, bundle, ask if held and held[0][1].ask == ask else 0, *rest)


def heard(request: Request, reply: Reply | RecordOwner) -> list[Waiting]:
    """Return the calls that the shell makes of a reply; `GuardTouched` makes it read its guard."""
    ask, term = request.number, request.number
    match request.kind, reply:
        case Kind.JOIN, _:
            return [call("joined", term)]
        case Kind.GUARD, _:
            return [call("guard_seen", term, reply is Reply.DONE)]
        case Kind.READ, RecordOwner():
            return [call("record_read", BUNDLE, ask, reply)]
        case Kind.TAKE, Reply.REFUSED:
            return [call("create_failed", BUNDLE, ask)]
        case Kind.GIVE, Reply.DONE:
            return [call("deleted", BUNDLE, ask)]
        case Kind.GIVE, _:
            return [call("delete_in_doubt", BUNDLE, ask)]
        case ((Kind.CREATE | Kind.TAKE), Reply.DONE):
            return [call("created", BUNDLE, ask)]
        case Kind.CREATE, Reply.REFUSED:
            return [call("create_failed", BUNDLE, ask), GuardTouched(request.guard)]
        case Kind.CREATE, _:
            return [call("create_in_doubt", BUNDLE, ask)]
        case Kind.DELETE, Reply.DONE:
            return [call("deleted", BUNDLE, ask)]
        case Kind.DELETE, _:
            return [call("delete_in_doubt", BUNDLE, ask), GuardTouched(request.guard)]
        case _:
            return [call("topics_closed", BUNDLE, ask)]


def unanswered(request: Request) -> list[Waiting]:
    """Return the calls after a request whose outcome is unknown."""
    creates = request.kind in (Kind.CREATE, Kind.TAKE)
    name = "create_in_doubt" if creates else "delete_in_doubt"
    return [call(name, BUNDLE, request.number)]


def failed(request: Request) -> list[Waiting]:
    """Return the calls after a request that was certainly not carried out."""
    match request.kind:
        case Kind.CREATE | Kind.TAKE:
            return [call("create_failed", BUNDLE, request.number)]
        case Kind.READ:
            return [call("read_failed", BUNDLE, request.number)]
        case Kind.DELETE | Kind.GIVE:
            return [call("delete_in_doubt", BUNDLE, request.number)]
        case _:
            return []


def put(broker: Broker, answers: Sequence[Waiting]) -> Broker:
    """Add answers to those under way."""
    under_way = dict.fromkeys([*broker.answers, *answers])
    if broker.drops:
        under_way = {answer: None for answer in under_way if not _is_void(broker, answer)}
    return replace(broker, answers=tuple(sorted(under_way, key=repr)))


def _is_void(broker: Broker, answer: Waiting) -> bool:
    """Return True if the answer is about an older term or to an older request."""
    match answer:
        case Call("record_touched"):
            return not broker.owns
        case Call("joined" | "guard_seen", (term, *_)) | GuardTouched(term):
            return bool(term != broker.machine[3])
        case Call(_, args):
            held = broker.machine[-1]
            return not held or held[0][1].ask != args[1]


def text_of(answer: Call) -> str:
    """Return the call as a chart shows it, without the bundle."""
    told = (str(each) for each in answer.args if each != BUNDLE)
    return f"{answer.name}({', '.join(told)})"


def sorted_requests(requests: Sequence[Request]) -> tuple[Request, ...]:
    unique = dict.fromkeys(requests)
    return tuple(sorted(unique, key=lambda r: (r.kind.value, r.number, r.guard)))


def _show(effect: Effect) -> str:
    match effect:
        case Join():
            return "joins"
        case CreateRecord():
            return "creates the record"
        case ReadRecord():
            return "reads the record"
        case DeleteRecord():
            return "deletes the record"
        case GiveRecord():
            return "gives the record"
        case TakeRecord():
            return "takes the record"
        case SplitRecord():
            return "splits the record"
        case CloseTopics():
            return "closes its topics"
        case DropTopics():
            return "DROPS its topics"
        case Answered(_, answer):
            return f"answers {answer.name}"
        case Released(_, done):
            return f"released: {done}"
        case ReadGuard():
            return "reads its guard"
        case _:
            assert_never(effect)
