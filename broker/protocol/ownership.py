"""The bundles that this broker owns, as far as anybody can know.  The module is pure.

A bundle is owned by an ephemeral record.  Ownership keeps brokers out of each other's way; fencing
of ledgers is what makes a second owner harmless.  So the rules aim at speed and honesty:

    acquire     Create the record, in one step with a check of our guard.  If the record exists,
                the bundle may belong to another broker.  If there is no answer, read the record
                again: *unknown is never no*, and never yes either.
    suspended   The store is out of reach, for however long: keep what is owned, acquire nothing.
    lost        The store ended the session, or our guard is gone: drop everything at once, and
                join again.
    release     Close the topics, then delete the record and give our guard another version in the
                same step.  A broker that removes us meanwhile has read the old version, so it
                deletes nothing of our successor.
    hand over   A release with a successor: when the topics are closed, the successor is asked to
                *take* the record.  It replaces our record by its own in one step.  If it does not
                answer, the record is read again, and deleted if it is ours still.
    split       Replace the boundaries of the namespace, and our record by one for each part, in
                one step.  The topics are served all the time.

    (nothing) --acquire--> ACQUIRING --created--> OWNED
                    in doubt v   ^ nobody's         ^ ours
                           CHECKING ----------------+
                   no answer v   ^ contact is back
                           DOUBTFUL

    OWNED --release--> CLOSING --topics_closed--> DELETING --deleted, taken--> (nothing)
                                          in doubt v   ^ ours still
                                              DELETE_CHECKING
                                         no answer v   ^ contact is back
                                              DELETE_DOUBTFUL

    OWNED --split--> SPLITTING --split_done--> each part OWNED
      ^   in doubt, failed v
      +--------------------+

`take` is an acquisition that begins with another request: ACQUIRING, and so on.

The *guard* is a record with a name that is never used twice.  A broker that finds this process dead
deletes the guard and our ownership records in one multi.  The guard exists for as long as the
records are ours.

Requests about the guard carry a *term*, which counts the guards; requests about a bundle carry an
`ask`, which is never used twice and comes back in the answer.  An answer to an older request is
void.
"""

from collections.abc import Sequence
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
class GiveRecord:
    """Ask the successor to take the record.  Our topics of the bundle are closed."""

    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class TakeRecord:
    """Replace the record of the broker that gives the bundle by ours, in one step."""

    bundle: BundleName
    ask: int


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """Replace the boundaries of the namespace, and our record by those of the parts."""

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
    """Answer all callers that wait for the release of the bundle, or for its split."""

    bundle: BundleName
    done: bool


Effect: TypeAlias = (
    Join
    | ReadGuard
    | CreateRecord
    | ReadRecord
    | DeleteRecord
    | GiveRecord
    | TakeRecord
    | SplitRecord
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
    SPLITTING = auto()  # owned, and its record is being replaced by those of its parts
    CLOSING = auto()  # being released: its topics are being closed
    DELETING = auto()  # its topics are closed, the record is being deleted or taken
    DELETE_CHECKING = auto()  # the record is being read to see whether it is gone
    DELETE_DOUBTFUL = auto()  # it may be gone, and the store is out of reach


_SERVED = (BundleState.OWNED, BundleState.SPLITTING)
_UNDECIDED = (BundleState.ACQUIRING, BundleState.CHECKING, BundleState.DOUBTFUL)


@dataclass(frozen=True, slots=True)
class HeldBundle:
    state: BundleState
    ask: int  # the latest request about it
    given: bool = False  # it is being closed for a successor


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
        return self.state_of(bundle) in _SERVED

    def may_load(self, bundle: BundleName) -> bool:
        """Return True if a topic of the bundle may be loaded that is not loaded yet."""
        return self.contact and self.owns(bundle)

    @property
    def owned(self) -> list[BundleName]:
        return sorted(b for b, held in self._held.items() if held.state in _SERVED)

    def snapshot(self) -> Snapshot:
        held = tuple(sorted(self._held.items(), key=_by_name))
        return self.session, self.membership, self.contact, self.term, self._asked, held

    def restore(self, snapshot: Snapshot) -> None:
        self.session, self.membership, self.contact, self.term, self._asked, held = snapshot
        self._held = dict(held)

    def canonical(self) -> tuple[object, ...]:
        """Return the state, with asks counted back from the latest one and without terms."""
        held = tuple((b, h.state, self._asked - h.ask, h.given) for b, h in self.snapshot()[-1])
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

    def is_in(self, term: int) -> bool:
        """Return True if the guard of this term was written, and not found missing so far."""
        return term == self.term and self.membership is Membership.IN

    def guard_seen(self, term: int, stands: bool) -> list[Effect]:
        """Our guard was read, on request or after its watch fired.

        `stands` is False if the guard is gone.
        """
        if not self.is_in(term):
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
                case BundleState.SPLITTING:
                    self._emit(DropTopics(bundle))
                    self._emit(Released(bundle, done=False))
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
            case BundleState.OWNED | BundleState.SPLITTING:
                self._emit(Answered(bundle, Answer.OURS))
            case BundleState.ACQUIRING | BundleState.CHECKING:
                pass  # The answer to the first caller is for all of them.
            case BundleState.DOUBTFUL:
                self._check(bundle)
            case _:
                self._emit(Answered(bundle, Answer.UNAVAILABLE))
        return self._pop_effects()

    def take(self, bundle: BundleName) -> list[Effect]:
        """Own the bundle in place of the broker that gives it.

        `Answered` tells the caller.  The answers to the request are those of a creation.
        """
        if self.state_of(bundle) is None and self.contact:
            self._emit(TakeRecord(bundle, self._hold(bundle, BundleState.ACQUIRING)))
            return self._pop_effects()
        return self.acquire(bundle)

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
        return self._begin_release(bundle, given=False)

    def hand_over(self, bundle: BundleName) -> list[Effect]:
        """Give the bundle up to a successor, which expects it.  `Released` tells the caller."""
        return self._begin_release(bundle, given=True)

    def _begin_release(self, bundle: BundleName, *, given: bool) -> list[Effect]:
        match self.state_of(bundle):
            case None:
                self._emit(Released(bundle, done=True))
            case BundleState.OWNED if self.contact:
                ask = self._hold(bundle, BundleState.CLOSING, given=given)
                self._emit(CloseTopics(bundle, ask))
            case (
                BundleState.OWNED
                | BundleState.SPLITTING
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
            if self._held[bundle].given and self.contact:
                self._emit(GiveRecord(bundle, self._hold(bundle, BundleState.DELETING)))
            else:
                self._delete(bundle)
        return self._pop_effects()

    def deleted(self, bundle: BundleName, ask: int) -> list[Effect]:
        """The record was deleted, or the successor has taken it."""
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

    # -- splitting a bundle

    def split(self, bundle: BundleName) -> list[Effect]:
        """Replace the bundle by its parts.  `Released` tells the caller, now or later."""
        if self.state_of(bundle) is BundleState.OWNED and self.contact:
            self._emit(SplitRecord(bundle, self._hold(bundle, BundleState.SPLITTING)))
        else:
            self._emit(Released(bundle, done=False))
        return self._pop_effects()

    def split_done(self, bundle: BundleName, ask: int, parts: Sequence[BundleName]) -> list[Effect]:
        """The records of the parts are ours, and that of the bundle is gone."""
        if self._state_at(bundle, ask) is not None:
            del self._held[bundle]
            for part in parts:
                # A lookup may have found our record before this answer came.
                if self.state_of(part) in (None, *_UNDECIDED):
                    self._emit(Answered(part, Answer.OURS))
                    self._read(part, BundleState.OWNED)  # sets the watch
            self._emit(Released(bundle, done=True))
        return self._pop_effects()

    def split_failed(self, bundle: BundleName, ask: int) -> list[Effect]:
        """The request was refused, or has no answer: the record tells, now or by its watch."""
        if self._state_at(bundle, ask) is not None:
            if self.contact:
                self._read(bundle, BundleState.OWNED)
            else:
                self._hold(bundle, BundleState.OWNED)
            self._emit(Released(bundle, done=False))
        return self._pop_effects()

    # -- the record of a bundle

    def record_touched(self, bundle: BundleName) -> list[Effect]:
        """The watch on the record of a bundle fired."""
        # In the other states the record is read or written before the next decision.
        if self.state_of(bundle) is BundleState.OWNED:
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

    def _hold(self, bundle: BundleName, state: BundleState, *, given: bool = False) -> int:
        """Set the state, and make all earlier requests about the bundle void."""
        self._asked += 1
        self._held[bundle] = HeldBundle(state, self._asked, given)
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
