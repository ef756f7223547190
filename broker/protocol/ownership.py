"""Pure: which bundles this broker owns, as far as anybody can know.

A bundle is owned by an ephemeral record.  Ownership keeps brokers out of each other's way; what
makes a second owner harmless is the fencing of ledgers.  So the rules are about being quick, and
honest:

    acquire     create the record, in one step with a check of our guard.  Somebody has it: not
                ours.  No answer: read it again; *unknown is never no*, and never yes either.
    suspended   the store is out of reach, for however long: keep what is owned, take nothing new.
    lost        the store's word, or our guard is gone: drop everything at once, join anew.
    release     planned hand-over: close the topics, then delete the record, and give our guard
                another version in the same step: who removes us meanwhile must not delete more.

    (nothing) --Acquire--> ACQUIRING --Created--> OWNED
                    in doubt v   ^ nobody's         ^ ours
                           CHECKING ----------------+
                   no answer v   ^ contact is back
                           DOUBTFUL

    OWNED --Release--> CLOSING --TopicsClosed--> DELETING --Deleted--> (nothing)
                                         in doubt v   ^ ours still
                                             DELETE_CHECKING
                                        no answer v   ^ contact is back
                                             DELETE_DOUBTFUL

The *guard* is a record with a name that is never used twice; whoever finds this process dead
deletes the guard and our ownership records in one multi.  It stands for as long as they are ours.

Requests about the guard carry a *term*, which counts the guards; requests about a bundle carry an
`ask`, which is never used twice.  An answer to anything but the latest request is void.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

from daybook.broker.protocol.bundles import BundleName
from daybook.wire.metadata.store import SessionState


class Owner(Enum):
    """Whose an ownership record is, by the session that created it."""

    NOBODY = auto()
    OURS = auto()
    OTHERS = auto()


class Answer(Enum):
    """What whoever asked for a bundle is told."""

    OURS = auto()
    OTHERS = auto()
    UNAVAILABLE = auto()  # ask again


# -- events


@dataclass(frozen=True, slots=True)
class SessionChanged:
    state: SessionState


@dataclass(frozen=True, slots=True)
class Joined:
    """Our guard of this term stands."""

    term: int


@dataclass(frozen=True, slots=True)
class GuardSeen:
    """Our guard was read, or its watch fired and it was read."""

    term: int
    stands: bool


@dataclass(frozen=True, slots=True)
class Acquire:
    bundle: BundleName


@dataclass(frozen=True, slots=True)
class Created:
    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class CreateInDoubt:
    """No answer, or the record exists: only reading it tells whose it is."""

    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class CreateFailed:
    """Certainly not carried out."""

    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class RecordRead:
    bundle: BundleName
    ask: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """The store is out of reach; `SessionChanged` will say when it is back."""

    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class RecordTouched:
    """The watch on the record of a bundle fired."""

    bundle: BundleName


@dataclass(frozen=True, slots=True)
class Release:
    bundle: BundleName


@dataclass(frozen=True, slots=True)
class TopicsClosed:
    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class Deleted:
    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class DeleteInDoubt:
    bundle: BundleName
    ask: int


BundleAnswer: TypeAlias = (
    Created
    | CreateInDoubt
    | CreateFailed
    | RecordRead
    | ReadFailed
    | TopicsClosed
    | Deleted
    | DeleteInDoubt
)
Event: TypeAlias = (
    SessionChanged | Joined | GuardSeen | Acquire | Release | RecordTouched | BundleAnswer
)


# -- effects


@dataclass(frozen=True, slots=True)
class Join:
    """Write a guard with a fresh name; go on until it stands or the term is over."""

    term: int


@dataclass(frozen=True, slots=True)
class ReadGuard:
    term: int


@dataclass(frozen=True, slots=True)
class CreateRecord:
    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the record, and leave a watch."""

    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class DeleteRecord:
    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class CloseTopics:
    """Close the bundle's topics in good order."""

    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class DropTopics:
    """Let the bundle's topics go at once, without a word to the store or the bookies."""

    bundle: BundleName


@dataclass(frozen=True, slots=True)
class Answered:
    """To all who asked for the bundle."""

    bundle: BundleName
    answer: Answer


@dataclass(frozen=True, slots=True)
class Released:
    """To all who wanted the bundle released."""

    bundle: BundleName
    done: bool


Effect: TypeAlias = (
    Join
    | ReadGuard
    | CreateRecord
    | ReadRecord
    | DeleteRecord
    | CloseTopics
    | DropTopics
    | Answered
    | Released
)


# -- state


class Standing(Enum):
    OUT = auto()  # no session: nothing is ours
    JOINING = auto()  # our guard is being written
    IN = auto()  # our guard stood when last seen


class Holding(Enum):
    ACQUIRING = auto()  # the record is being created
    CHECKING = auto()  # the record is being read: is it ours?
    DOUBTFUL = auto()  # nobody knows, and the store is out of reach
    OWNED = auto()
    CLOSING = auto()  # being released: its topics are being closed
    DELETING = auto()  # its topics are closed, the record is being deleted
    DELETE_CHECKING = auto()  # the record is being read: is it gone?
    DELETE_DOUBTFUL = auto()


@dataclass(frozen=True, slots=True)
class Held:
    holding: Holding
    ask: int  # the latest request about it


Snapshot: TypeAlias = tuple[
    SessionState, Standing, bool, int, int, tuple[tuple[BundleName, Held], ...]
]


class OwnershipProtocol:
    """The bundles of one broker, over all its sessions."""

    def __init__(self) -> None:
        self.session = SessionState.SUSPENDED
        self.standing = Standing.OUT
        self.contact = False  # connected, and our guard was seen since
        self.term = 0
        self._asked = 0
        self._held: dict[BundleName, Held] = {}
        self._effects: list[Effect] = []

    # -- what is so

    def holding(self, bundle: BundleName) -> Holding | None:
        held = self._held.get(bundle)
        return None if held is None else held.holding

    def owns(self, bundle: BundleName) -> bool:
        return self.holding(bundle) is Holding.OWNED

    def may_load(self, bundle: BundleName) -> bool:
        """May a topic be loaded that is not loaded yet?"""
        return self.contact and self.owns(bundle)

    @property
    def owned(self) -> list[BundleName]:
        return sorted(b for b, held in self._held.items() if held.holding is Holding.OWNED)

    def snapshot(self) -> Snapshot:
        held = tuple(sorted(self._held.items(), key=_by_name))
        return self.session, self.standing, self.contact, self.term, self._asked, held

    def restore(self, snapshot: Snapshot) -> None:
        self.session, self.standing, self.contact, self.term, self._asked, held = snapshot
        self._held = dict(held)

    def canonical(self) -> tuple[object, ...]:
        """The state, with terms and asks counted back from the latest."""
        held = tuple((b, h.holding, self._asked - h.ask) for b, h in self.snapshot()[-1])
        return self.session, self.standing, self.contact, held

    # -- what happens

    def step(self, event: Event) -> list[Effect]:
        match event:
            case SessionChanged(state):
                self._session_changed(state)
            case Joined(term):
                if term == self.term and self.standing is Standing.JOINING:
                    self.standing = Standing.IN
                    self.contact = self.session is SessionState.CONNECTED
            case GuardSeen(term, stands):
                if term == self.term and self.standing is Standing.IN:
                    self._guard_seen(stands=stands)
            case Acquire(bundle):
                self._acquire(bundle)
            case Release(bundle):
                self._release(bundle)
            case RecordTouched(bundle):
                if self.owns(bundle):
                    self._read(bundle, Holding.OWNED)
            case _:
                held = self._held.get(event.bundle)
                if held is not None and held.ask == event.ask:
                    self._answered(event, held.holding)
        assert self.standing is not Standing.OUT or not self._held
        effects, self._effects = self._effects, []
        return effects

    def _answered(self, event: BundleAnswer, holding: Holding) -> None:
        bundle = event.bundle
        match event:
            case Created():
                self._emit(Answered(bundle, Answer.OURS))
                self._read(bundle, Holding.OWNED)  # for the watch
            case CreateInDoubt():
                self._check(bundle)
            case CreateFailed():
                self._forget(bundle, Answer.UNAVAILABLE)
            case RecordRead(owner=owner):
                self._record_read(bundle, holding, owner)
            case ReadFailed():
                self._read_failed(bundle, holding)
            case TopicsClosed():
                self._delete(bundle)
            case Deleted():
                self._let_go(bundle)
            case DeleteInDoubt():
                self._check_deleted(bundle)
            case _:
                assert_never(event)

    # -- the session and the guard

    def _session_changed(self, state: SessionState) -> None:
        self.session = state
        match state:
            case SessionState.CONNECTED:
                if self.standing is Standing.OUT:
                    self._join()
                elif self.standing is Standing.IN:
                    self._emit(ReadGuard(self.term))
            case SessionState.SUSPENDED:
                self.contact = False
            case SessionState.LOST:
                self._drop_all()
            case _:
                assert_never(state)

    def _join(self) -> None:
        self.standing = Standing.JOINING
        self.term += 1
        self._emit(Join(self.term))

    def _guard_seen(self, *, stands: bool) -> None:
        if not stands:
            self._drop_all()
            if self.session is SessionState.CONNECTED:
                self._join()
        elif self.session is SessionState.CONNECTED and not self.contact:
            self.contact = True
            for bundle, held in sorted(self._held.items(), key=_by_name):
                self._look_again(bundle, held.holding)

    def _look_again(self, bundle: BundleName, holding: Holding) -> None:
        """The contact is back: settle what was left open, and put the watches back."""
        match holding:
            case Holding.OWNED:
                self._read(bundle, Holding.OWNED)
            case Holding.DOUBTFUL:
                self._check(bundle)
            case Holding.DELETE_DOUBTFUL:
                self._check_deleted(bundle)
            case _:
                pass  # Its answer is still to come.

    def _drop_all(self) -> None:
        """Nothing is ours any more.  Answers that are under way are void from now on."""
        self.standing = Standing.OUT
        self.contact = False
        self.term += 1
        for bundle, held in sorted(self._held.items(), key=_by_name):
            match held.holding:
                case Holding.OWNED:
                    self._emit(DropTopics(bundle))
                case Holding.CLOSING:
                    self._emit(DropTopics(bundle))
                    self._emit(Released(bundle, done=True))
                case Holding.ACQUIRING | Holding.CHECKING | Holding.DOUBTFUL:
                    self._emit(Answered(bundle, Answer.UNAVAILABLE))
                case Holding.DELETING | Holding.DELETE_CHECKING | Holding.DELETE_DOUBTFUL:
                    self._emit(Released(bundle, done=True))
                case _:
                    assert_never(held.holding)
        self._held.clear()

    # -- one bundle

    def _acquire(self, bundle: BundleName) -> None:
        match self.holding(bundle):
            case None if self.contact:
                self._create(bundle)
            case Holding.OWNED:
                self._emit(Answered(bundle, Answer.OURS))
            case Holding.ACQUIRING | Holding.CHECKING:
                pass  # The answer to the first one is for all.
            case Holding.DOUBTFUL:
                self._check(bundle)
            case _:
                self._emit(Answered(bundle, Answer.UNAVAILABLE))

    def _create(self, bundle: BundleName) -> None:
        self._emit(CreateRecord(bundle, self._hold(bundle, Holding.ACQUIRING)))

    def _read(self, bundle: BundleName, holding: Holding) -> None:
        self._emit(ReadRecord(bundle, self._hold(bundle, holding)))

    def _check(self, bundle: BundleName) -> None:
        """Is it ours?  Read the record, now or when the store is back."""
        if self.contact:
            self._read(bundle, Holding.CHECKING)
        else:
            self._hold(bundle, Holding.DOUBTFUL)
            self._emit(Answered(bundle, Answer.UNAVAILABLE))

    def _check_deleted(self, bundle: BundleName) -> None:
        if self.contact:
            self._read(bundle, Holding.DELETE_CHECKING)
        else:
            self._hold(bundle, Holding.DELETE_DOUBTFUL)

    def _record_read(self, bundle: BundleName, holding: Holding, owner: Owner) -> None:
        match holding, owner:
            case Holding.CHECKING, Owner.OURS:
                self._hold(bundle, Holding.OWNED)
                self._emit(Answered(bundle, Answer.OURS))
            case Holding.CHECKING, Owner.OTHERS:
                self._forget(bundle, Answer.OTHERS)
            case Holding.CHECKING, _:
                # Our request in doubt may yet create it; then this one meets it there.
                if self.contact:
                    self._create(bundle)
                else:
                    self._forget(bundle, Answer.UNAVAILABLE)
            case Holding.OWNED, Owner.NOBODY | Owner.OTHERS:
                del self._held[bundle]
                self._emit(DropTopics(bundle))
            case Holding.DELETE_CHECKING, Owner.OURS:
                self._delete(bundle)
            case Holding.DELETE_CHECKING, _:
                self._let_go(bundle)
            case _:
                pass

    def _read_failed(self, bundle: BundleName, holding: Holding) -> None:
        match holding:
            case Holding.CHECKING:
                self._hold(bundle, Holding.DOUBTFUL)
                self._emit(Answered(bundle, Answer.UNAVAILABLE))
            case Holding.DELETE_CHECKING:
                self._hold(bundle, Holding.DELETE_DOUBTFUL)
            case _:
                return  # Owned: we keep it, and look again when the contact is back.
        if self.contact:  # It is back already.
            self._look_again(bundle, self._held[bundle].holding)

    def _release(self, bundle: BundleName) -> None:
        match self.holding(bundle):
            case None:
                self._emit(Released(bundle, done=True))
            case Holding.OWNED if self.contact:
                self._emit(CloseTopics(bundle, self._hold(bundle, Holding.CLOSING)))
            case Holding.OWNED | Holding.ACQUIRING | Holding.CHECKING | Holding.DOUBTFUL:
                self._emit(Released(bundle, done=False))
            case _:
                pass  # It is on its way; the answer is for all.

    def _delete(self, bundle: BundleName) -> None:
        if self.contact:
            self._emit(DeleteRecord(bundle, self._hold(bundle, Holding.DELETING)))
        else:
            self._hold(bundle, Holding.DELETE_DOUBTFUL)

    def _let_go(self, bundle: BundleName) -> None:
        del self._held[bundle]
        self._emit(Released(bundle, done=True))

    def _forget(self, bundle: BundleName, answer: Answer) -> None:
        del self._held[bundle]
        self._emit(Answered(bundle, answer))

    def _hold(self, bundle: BundleName, holding: Holding) -> int:
        """Note the state, and that all earlier requests about the bundle are void."""
        self._asked += 1
        self._held[bundle] = Held(holding, self._asked)
        return self._asked

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)


def _by_name(item: tuple[BundleName, Held]) -> BundleName:
    return item[0]
