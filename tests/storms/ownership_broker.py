"""A broker and its bundles in a storm: what `Ownership` does around the machine."""

from typing import TYPE_CHECKING, TypeAlias

from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership import (
    Acquire,
    Answer,
    Answered,
    BundleState,
    CloseTopics,
    Created,
    CreateFailed,
    CreateInDoubt,
    CreateRecord,
    Deleted,
    DeleteInDoubt,
    DeleteRecord,
    DropTopics,
    Effect,
    Event,
    GuardSeen,
    Join,
    Joined,
    Membership,
    OwnershipProtocol,
    ReadFailed,
    ReadGuard,
    ReadRecord,
    RecordRead,
    RecordTouched,
    Release,
    Released,
    SessionChanged,
    TopicsClosed,
)
from daybook.wire.metadata.store import SessionState

if TYPE_CHECKING:
    from tests.storms.ownership import OwnershipStorm, Reply, Request

Pending: TypeAlias = tuple[int, "Request"]


class Broker:
    def __init__(self, storm: "OwnershipStorm", name: str, host: int) -> None:
        self.storm = storm
        self.name = name
        self.host = host
        self.machine = OwnershipProtocol()
        self.session = 0  # 0: none
        self.connected = False
        self.guard = ""
        self.loaded: set[BundleName] = set()
        self.answers: dict[BundleName, Answer] = {}  # the last one for each
        self.outstanding: dict[int, Request] = {}
        self._watched: set[BundleName] = set()
        self._asked_at: dict[int, int] = {}  # by ask: the step in which that was
        self._released_at: dict[BundleName, int] = {}  # when that was asked for
        self._requests = 0
        self._retry: tuple[tuple[str, str], Event] | None = None  # when there is contact

    # -- what happens to it

    def session_is(self, state: SessionState) -> None:
        self.storm.say(f"{self.name}: session {state.name}")
        if state is SessionState.LOST:
            self._watched.clear()
            self._retry = None
        self.feed(SessionChanged(state))
        if state is SessionState.CONNECTED and self._retry is not None:
            retry, self._retry = self._retry, None
            self._ask(*retry)

    def guard_gone(self, guard: str) -> None:
        """The watch on a guard fired: it is read."""
        if guard == self.guard:
            self._read_guard()

    def lose_contact(self) -> None:
        """Whatever was asked for has no answer."""
        self.connected = False
        self.session_is(SessionState.SUSPENDED)
        for request_id in sorted(self.outstanding):
            self.hear(request_id, "unknown")

    def acquire(self, bundle: BundleName) -> None:
        self.feed(Acquire(bundle))

    def release(self, bundle: BundleName) -> None:
        self._released_at.setdefault(bundle, self.storm.now)
        self.feed(Release(bundle))

    def load(self, bundle: BundleName) -> None:
        if self.machine.may_load(bundle):
            self.storm.say(f"{self.name} loads topics of {bundle}")
            self.loaded.add(bundle)

    # -- the machine

    def feed(self, event: Event) -> None:
        for effect in self.machine.step(event):
            self._perform(effect)
        for bundle in self.loaded:
            holding = self.machine.state_of(bundle)
            held = holding in (BundleState.OWNED, BundleState.CLOSING)
            self.storm.rule("O2", held, f"{self.name} serves {bundle}, which it does not own")

    def _perform(self, effect: Effect) -> None:
        storm = self.storm
        match effect:
            case Join(term):
                self._ask(("join", f"{self.name}-{self.session}-{term}"), Joined(term))
            case ReadGuard(term):
                self._ask(("guard", self.guard), GuardSeen(term, stands=True))
            case CreateRecord(bundle, ask):
                self._asked_at[ask] = storm.now
                self._ask(("create", bundle), Created(bundle, ask))
            case ReadRecord(bundle, ask):
                self._asked_at[ask] = storm.now
                watch = bundle not in self._watched
                self._watched.add(bundle)
                self._ask(("watch" if watch else "read", bundle), ReadFailed(bundle, ask))
            case DeleteRecord(bundle, ask):
                self._ask(("delete", bundle), Deleted(bundle, ask))
            case CloseTopics(bundle, ask):
                storm.network.send(self.host, self.host, self._close, bundle, ask)
            case DropTopics(bundle):
                storm.say(f"{self.name} drops {bundle}")
                if bundle in self.loaded:
                    storm.mark("topics dropped")
                self.loaded.discard(bundle)
            case Answered(bundle, answer):
                storm.say(f"{self.name}: {bundle} is {answer.name}")
                self.answers[bundle] = answer
            case Released(bundle, done):
                storm.say(f"{self.name} has released {bundle}: {done}")
                asked_at = self._released_at.pop(bundle, storm.now)
                if done:
                    storm.check_released(self, bundle, asked_at)

    def _close(self, bundle: BundleName, ask: int) -> None:
        self.loaded.discard(bundle)
        self.feed(TopicsClosed(bundle, ask))

    def _ask(self, what: tuple[str, str], event: Event) -> None:
        self._requests += 1
        request = self.storm.request(self, *what, event)
        self.outstanding[self._requests] = request
        if self.connected:
            self.storm.ask(self, self._requests, request)
        else:
            self.storm.network.send(self.host, self.host, self.hear, self._requests, "unavailable")

    # -- what the store says

    def hear(self, request_id: int, reply: "Reply") -> None:
        request = self.outstanding.pop(request_id, None)
        if request is None:
            return
        match request.event:
            case Joined(term):
                self._join_answered(term, request, reply)
            case GuardSeen(term):
                self._guard_answered(term, reply)
            case Created(bundle, ask):
                self._create_answered(bundle, ask, reply)
            case ReadFailed(bundle, ask):
                self._read_answered(bundle, ask, request, reply)
            case Deleted(bundle, ask):
                self.feed(Deleted(bundle, ask) if reply == "ok" else DeleteInDoubt(bundle, ask))
                if reply == "no guard":
                    self._read_guard()

    def _join_answered(self, term: int, request: "Request", reply: "Reply") -> None:
        """Until it stands, or is not wanted any more."""
        if self.machine.term != term or self.machine.membership is not Membership.JOINING:
            return
        if reply in ("ok", "ours"):
            self.guard = request.what
            self.feed(Joined(term))
            self._read_guard()
        elif self.connected:
            self._ask(("join", request.what), Joined(term))
        else:
            self._retry = (("join", request.what), Joined(term))

    def _read_guard(self) -> None:
        if self.machine.membership is Membership.IN:
            self._ask(("guard", self.guard), GuardSeen(self.machine.term, stands=True))

    def _guard_answered(self, term: int, reply: "Reply") -> None:
        if reply in ("ours", "nobody", "others"):
            self.feed(GuardSeen(term, stands=reply == "ours"))
        elif self.connected and self.machine.term == term:
            self._ask(("guard", self.guard), GuardSeen(term, stands=True))

    def _create_answered(self, bundle: BundleName, ask: int, reply: "Reply") -> None:
        match reply:
            case "ok":
                self._owned(bundle, ask, Created(bundle, ask))
            case "no guard":
                self.feed(CreateFailed(bundle, ask))
                self._read_guard()
            case "unavailable":
                self.feed(CreateFailed(bundle, ask))
            case _:
                self.feed(CreateInDoubt(bundle, ask))

    def _read_answered(
        self, bundle: BundleName, ask: int, request: "Request", reply: "Reply"
    ) -> None:
        owner = self.storm.owner_of(reply)
        if owner is not None:
            self._owned(bundle, ask, RecordRead(bundle, ask, owner))
            return
        if request.kind == "watch":
            self._watched.discard(bundle)
        if self.connected:
            self._ask(("read", bundle), ReadFailed(bundle, ask))
        else:
            self.feed(ReadFailed(bundle, ask))

    def _owned(self, bundle: BundleName, ask: int, event: Event) -> None:
        """Whoever says that a bundle is ours has seen that since it was asked."""
        before = self.machine.owns(bundle)
        self.feed(event)
        if self.machine.owns(bundle) and not before:
            self.storm.check_owned(self, bundle, self._asked_at[ask])

    def touched(self, bundle: BundleName) -> None:
        self._watched.discard(bundle)
        self.feed(RecordTouched(bundle))
