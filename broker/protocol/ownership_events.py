"""Pure: what `ownership` is told, and what it asks for.

An `ask` in an effect comes back in the answer to it; the answer to an older one is void.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

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
