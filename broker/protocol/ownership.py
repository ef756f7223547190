"""The bundles that this broker owns, as far as anybody can know.  The module is pure.

A bundle is owned by an ephemeral record.  Ownership keeps brokers out of each other's way; fencing
of ledgers is what makes a second owner harmless.  So the rules aim at speed and honesty:

    acquire     Create the record, in one step with a check of our guard.  If the record exists,
                the bundle may belong to another broker.  If there is no answer, read the record
                again: *unknown is never no*, and never yes either.
    suspended   The store is out of reach, for however long: keep what is owned, acquire nothing.
    lost        The store ended the session, or our guard is gone: drop everything at once, and
                join again.
    release     Planned hand-over: close the topics, then delete the record and give our guard
                another version in the same step.  A broker that removes us meanwhile has read the
                old version, so it deletes nothing of our successor.

    (nothing) --acquire--> ACQUIRING --created--> OWNED
                    in doubt v   ^ nobody's         ^ ours
                           CHECKING ----------------+
                   no answer v   ^ contact is back
                           DOUBTFUL

    OWNED --release--> CLOSING --topics_closed--> DELETING --deleted--> (nothing)
                                          in doubt v   ^ ours still
                                              DELETE_CHECKING
                                         no answer v   ^ contact is back
                                              DELETE_DOUBTFUL

The *guard* is a record with a name that is never used twice.  A broker that finds this process dead
deletes the guard and our ownership records in one multi.  The guard exists for as long as the
records are ours.

Requests about the guard carry a *term*, which counts the guards; requests about a bundle carry an
`ask`, which is never used twice and comes back in the answer.  An answer to an older request is
void.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

from daybook.broker.protocol.bundles import BundleName
from daybook.wire.metadata.store import SessionState


class RecordOwner(Enum):
    """The owner of an ownership record, told by the session that created it."""

    NOBODY = auto()
    OURS = auto()
    OTHERS = auto()


class Answer(Enum):
    """The answer to a caller that wants to acquire a bundle."""

    OURS = auto()
    OTHERS = auto()
    UNAVAILABLE = auto()  # the caller may ask again


# -- effects


@dataclass(frozen=True, slots=True)
class Join:
    """Write a guard with a new name; retry until it is written or the term is over."""

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
    """Read the record, and set a watch."""

    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class DeleteRecord:
    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class CloseTopics:
    """Close the bundle's topics in order."""

    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class DropTopics:
    """Drop the bundle's topics at once, without a request to the store or the bookies."""

    bundle: BundleName


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer all callers that wait to acquire the bundle."""

    bundle: BundleName
    answer: Answer


@dataclass(frozen=True, slots=True)
class Released:
    """Answer all callers that wait for the release of the bundle."""

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


class Membership(Enum):
    OUT = auto()  # no session: this broker owns nothing
    JOINING = auto()  # our guard is being written
    IN = auto()  # our guard existed when last seen


class BundleState(Enum):
    ACQUIRING = auto()  # the record is being created
    CHECKING = auto()  # the record is being read to find its owner
    DOUBTFUL = auto()  # the owner is unknown, and the store is out of reach
    OWNED = auto()
    CLOSING = auto()  # being released: its topics are being closed
    DELETING = auto()  # its topics are closed, the record is being deleted
    DELETE_CHECKING = auto()  # the record is being read to see whether it is gone
    DELETE_DOUBTFUL = auto()  # it may be gone, and the store is out of reach


@dataclass(frozen=True, slots=True)
class HeldBundle:
    state: BundleState
    ask: int  # the latest request about it


Snapshot: TypeAlias = tuple[
    SessionState, Membership, bool, int, int, tuple[tuple[BundleName, HeldBundle], ...]
]


class OwnershipProtocol:
    """The bundles of one broker, across all its sessions."""

    def __init__(self) -> None:
        self.session = SessionState.SUSPENDED
        self.membership = Membership.OUT
        self.contact = False  # connected, and our guard was seen since
        self.term = 0
        self._asked = 0
        self._held: dict[BundleName, HeldBundle] = {}
        self._effects: list[Effect] = []

    # -- properties

    def state_of(self, bundle: BundleName) -> BundleState | None:
        held = self._held.get(bundle)
        return None if held is None else held.state

    def owns(self, bundle: BundleName) -> bool:
        return self.state_of(bundle) is BundleState.OWNED

    def may_load(self, bundle: BundleName) -> bool:
        """Return True if a topic of the bundle may be loaded that is not loaded yet."""
        return self.contact and self.owns(bundle)

    @property
    def owned(self) -> list[BundleName]:
        return sorted(b for b, held in self._held.items() if held.state is BundleState.OWNED)

    def snapshot(self) -> Snapshot:
        held = tuple(sorted(self._held.items(), key=_by_name))
        return self.session, self.membership, self.contact, self.term, self._asked, held

    def restore(self, snapshot: Snapshot) -> None:
        self.session, self.membership, self.contact, self.term, self._asked, held = snapshot
        self._held = dict(held)

    def canonical(self) -> tuple[object, ...]:
        """Return the state, with asks counted back from the latest one and without terms."""
        held = tuple((b, h.state, self._asked - h.ask) for b, h in self.snapshot()[-1])
        return self.session, self.membership, self.contact, held

    # -- the session and the guard

    def session_changed(self, state: SessionState) -> list[Effect]:
        self.session = state
        match state:
            case SessionState.CONNECTED:
                if self.membership is Membership.OUT:
                    self._join()
                elif self.membership is Membership.IN:
                    self._emit(ReadGuard(self.term))
            case SessionState.SUSPENDED:
                self.contact = False
            case SessionState.LOST:
                self._drop_all()
            case _:
                assert_never(state)
        return self._pop_effects()

    def joined(self, term: int) -> list[Effect]:
        """Our guard of this term was written."""
        if term == self.term and self.membership is Membership.JOINING:
            self.membership = Membership.IN
            self.contact = self.session is SessionState.CONNECTED
        return self._pop_effects()

    def guard_seen(self, term: int, stands: bool) -> list[Effect]:
        """Our guard was read, on request or after its watch fired.

        `stands` is False if the guard is gone.
        """
        if term != self.term or self.membership is not Membership.IN:
            return self._pop_effects()
        if not stands:
            self._drop_all()
            if self.session is SessionState.CONNECTED:
                self._join()
        elif self.session is SessionState.CONNECTED and not self.contact:
            # Only a guard that was seen in this session proves that the records are still ours.
            self.contact = True
            for bundle, held in sorted(self._held.items(), key=_by_name):
                self._look_again(bundle, held.state)
        return self._pop_effects()

    def _join(self) -> None:
        self.membership = Membership.JOINING
        self.term += 1
        self._emit(Join(self.term))

    def _look_again(self, bundle: BundleName, state: BundleState) -> None:
        """Settle what was left open while the store was out of reach, and set the watch again."""
        match state:
            case BundleState.OWNED:
                self._read(bundle, BundleState.OWNED)
            case BundleState.DOUBTFUL:
                self._check(bundle)
            case BundleState.DELETE_DOUBTFUL:
                self._check_deleted(bundle)
            case _:
                pass  # Its answer has still to come.

    def _drop_all(self) -> None:
        """Forget all bundles.  Answers that are under way are void from now on."""
        self.membership = Membership.OUT
        self.contact = False
        self.term += 1  # voids answers about the old guard
        for bundle, held in sorted(self._held.items(), key=_by_name):
            match held.state:
                case BundleState.OWNED:
                    self._emit(DropTopics(bundle))
                case BundleState.CLOSING:
                    self._emit(DropTopics(bundle))
                    self._emit(Released(bundle, done=True))
                case BundleState.ACQUIRING | BundleState.CHECKING | BundleState.DOUBTFUL:
                    self._emit(Answered(bundle, Answer.UNAVAILABLE))
                case (
                    BundleState.DELETING | BundleState.DELETE_CHECKING | BundleState.DELETE_DOUBTFUL
                ):
                    self._emit(Released(bundle, done=True))
                case _:
                    assert_never(held.state)
        self._held.clear()

    # -- acquiring a bundle

    def acquire(self, bundle: BundleName) -> list[Effect]:
        """Own the bundle if no broker does.  `Answered` tells the caller, now or later."""
        match self.state_of(bundle):
            case None if self.contact:
                self._create(bundle)
            case BundleState.OWNED:
                self._emit(Answered(bundle, Answer.OURS))
            case BundleState.ACQUIRING | BundleState.CHECKING:
                pass  # The answer to the first caller is for all of them.
            case BundleState.DOUBTFUL:
                self._check(bundle)
            case _:
                self._emit(Answered(bundle, Answer.UNAVAILABLE))
        return self._pop_effects()

    def created(self, bundle: BundleName, ask: int) -> list[Effect]:
        if self._state_at(bundle, ask) is not None:
            self._emit(Answered(bundle, Answer.OURS))
            self._read(bundle, BundleState.OWNED)  # sets the watch
        return self._pop_effects()

    def create_in_doubt(self, bundle: BundleName, ask: int) -> list[Effect]:
        """There was no answer, or the record exists: it has to be read to know the owner."""
        if self._state_at(bundle, ask) is not None:
            self._check(bundle)
        return self._pop_effects()

    def create_failed(self, bundle: BundleName, ask: int) -> list[Effect]:
        """The record was certainly not created."""
        if self._state_at(bundle, ask) is not None:
            self._forget(bundle, Answer.UNAVAILABLE)
        return self._pop_effects()

    def _create(self, bundle: BundleName) -> None:
        assert self.contact  # Nothing is acquired while the store is out of reach.
        self._emit(CreateRecord(bundle, self._hold(bundle, BundleState.ACQUIRING)))

    def _check(self, bundle: BundleName) -> None:
        """Read the record to find its owner, now or when the store is back."""
        if self.contact:
            self._read(bundle, BundleState.CHECKING)
        else:
            self._hold(bundle, BundleState.DOUBTFUL)
            self._emit(Answered(bundle, Answer.UNAVAILABLE))

    def _forget(self, bundle: BundleName, answer: Answer) -> None:
        del self._held[bundle]
        self._emit(Answered(bundle, answer))

    # -- releasing a bundle

    def release(self, bundle: BundleName) -> list[Effect]:
        """Give the bundle up.  `Released` tells the caller, now or later."""
        match self.state_of(bundle):
            case None:
                self._emit(Released(bundle, done=True))
            case BundleState.OWNED if self.contact:
                self._emit(CloseTopics(bundle, self._hold(bundle, BundleState.CLOSING)))
            case (
                BundleState.OWNED
                | BundleState.ACQUIRING
                | BundleState.CHECKING
                | BundleState.DOUBTFUL
            ):
                self._emit(Released(bundle, done=False))
            case _:
                pass  # It is being released already; the answer is for all callers.
        return self._pop_effects()

    def topics_closed(self, bundle: BundleName, ask: int) -> list[Effect]:
        if self._state_at(bundle, ask) is not None:
            self._delete(bundle)
        return self._pop_effects()

    def deleted(self, bundle: BundleName, ask: int) -> list[Effect]:
        if self._state_at(bundle, ask) is not None:
            self._let_go(bundle)
        return self._pop_effects()

    def delete_in_doubt(self, bundle: BundleName, ask: int) -> list[Effect]:
        if self._state_at(bundle, ask) is not None:
            self._check_deleted(bundle)
        return self._pop_effects()

    def _delete(self, bundle: BundleName) -> None:
        if self.contact:
            self._emit(DeleteRecord(bundle, self._hold(bundle, BundleState.DELETING)))
        else:
            self._hold(bundle, BundleState.DELETE_DOUBTFUL)

    def _check_deleted(self, bundle: BundleName) -> None:
        if self.contact:
            self._read(bundle, BundleState.DELETE_CHECKING)
        else:
            self._hold(bundle, BundleState.DELETE_DOUBTFUL)

    def _let_go(self, bundle: BundleName) -> None:
        del self._held[bundle]
        self._emit(Released(bundle, done=True))

    # -- the record of a bundle

    def record_touched(self, bundle: BundleName) -> list[Effect]:
        """The watch on the record of a bundle fired."""
        # In the other states the record is read or written before the next decision.
        if self.owns(bundle):
            self._read(bundle, BundleState.OWNED)
        return self._pop_effects()

    def record_read(self, bundle: BundleName, ask: int, owner: RecordOwner) -> list[Effect]:
        match self._state_at(bundle, ask), owner:
            case BundleState.CHECKING, RecordOwner.OURS:
                self._hold(bundle, BundleState.OWNED)
                self._emit(Answered(bundle, Answer.OURS))
            case BundleState.CHECKING, RecordOwner.OTHERS:
                self._forget(bundle, Answer.OTHERS)
            case BundleState.CHECKING, _:
                # Our request in doubt may still create the record.  Then this one finds it there,
                # is in doubt, too, and reads it.
                if self.contact:
                    self._create(bundle)
                else:
                    self._forget(bundle, Answer.UNAVAILABLE)
            case BundleState.OWNED, RecordOwner.NOBODY | RecordOwner.OTHERS:
                del self._held[bundle]
                self._emit(DropTopics(bundle))
            case BundleState.DELETE_CHECKING, RecordOwner.OURS:
                self._delete(bundle)
            case BundleState.DELETE_CHECKING, _:
                self._let_go(bundle)
            case _:
                pass
        return self._pop_effects()

    def read_failed(self, bundle: BundleName, ask: int) -> list[Effect]:
        """The store is out of reach; `session_changed` will report when it is back."""
        match self._state_at(bundle, ask):
            case BundleState.CHECKING:
                self._hold(bundle, BundleState.DOUBTFUL)
                self._emit(Answered(bundle, Answer.UNAVAILABLE))
            case BundleState.DELETE_CHECKING:
                self._hold(bundle, BundleState.DELETE_DOUBTFUL)
            case _:
                # Keep an owned bundle, and read it again when the contact is back.
                return self._pop_effects()
        # The contact may be back already; then nothing else would look at this bundle again.
        if self.contact:
            self._look_again(bundle, self._held[bundle].state)
        return self._pop_effects()

    def _read(self, bundle: BundleName, state: BundleState) -> None:
        """Read the record, and hold the bundle in `state` until the answer comes."""
        self._emit(ReadRecord(bundle, self._hold(bundle, state)))

    # -- requests and effects

    def _state_at(self, bundle: BundleName, ask: int) -> BundleState | None:
        """Return the state of the bundle; None if an answer to this request is void."""
        held = self._held.get(bundle)
        return held.state if held is not None and held.ask == ask else None

    def _hold(self, bundle: BundleName, state: BundleState) -> int:
        """Set the state, and make all earlier requests about the bundle void."""
        self._asked += 1
        self._held[bundle] = HeldBundle(state, self._asked)
        return self._asked

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _pop_effects(self) -> list[Effect]:
        assert self.membership is not Membership.OUT or not self._held
        assert not self.contact or self.membership is Membership.IN
        effects, self._effects = self._effects, []
        return effects


def _by_name(item: tuple[BundleName, HeldBundle]) -> BundleName:
    return item[0]
