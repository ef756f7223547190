"""The inputs and outputs of a broker: values, so that histories can be compared."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from daybook.wire.metadata.store import Create, Delete, Operation, Set

# -- calls of the metadata store and the ledger client


@dataclass(frozen=True, slots=True)
class Get:
    path: str


@dataclass(frozen=True, slots=True)
class Children:
    path: str


@dataclass(frozen=True, slots=True)
class Multi:
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class NewLedger:
    of_cursor: bool


@dataclass(frozen=True, slots=True)
class OpenLedger:
    ledger_id: int
    recover: bool


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """The close of a ledger by its writer, at the last entry that the writer knows as confirmed."""

    ledger_id: int
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    ledger_id: int


Call: TypeAlias = (
    Get
    | Children
    | Create
    | Set
    | Delete
    | Multi
    | NewLedger
    | OpenLedger
    | CloseLedger
    | DeleteLedger
)


def is_write(call: Call) -> bool:
    """Return True if the call writes to the metadata store; its answer may then be lost."""
    return isinstance(call, Create | Set | Delete | Multi)


class Error(Enum):
    NO_RECORD = auto()
    EXISTS = auto()
    CONFLICT = auto()
    NOT_EMPTY = auto()
    UNKNOWN = auto()
    UNAVAILABLE = auto()
    NO_LEDGER = auto()
    FENCED = auto()


@dataclass(frozen=True, slots=True)
class Found:
    """A record that was found."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Written:
    """A record that was written, and how many records are below it."""

    version: int
    children: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The entries of a closed ledger that was opened."""

    entries: tuple[bytes, ...]


Result: TypeAlias = (
    int | Found | Written | Opened | tuple[str, ...] | tuple[int, ...] | Error | None
)

# -- outputs of a broker


@dataclass(frozen=True, slots=True)
class Asks:
    number: int
    call: Call


@dataclass(frozen=True, slots=True)
class GivesUp:
    """The broker no longer waits for the answer to that call."""

    number: int


@dataclass(frozen=True, slots=True)
class Sends:
    """The broker sends the next entry of a ledger."""

    ledger_id: int
    data: bytes


class What(Enum):
    OPENED = auto()
    OPEN_FAILED = auto()
    ACKED = auto()
    FAILED = auto()
    FENCED = auto()
    SUBSCRIBED = auto()
    FLUSHED = auto()
    CLOSED = auto()
    REFUSED = auto()  # the log refused a command


@dataclass(frozen=True, slots=True)
class Says:
    """The broker reports something; `about` is the value of an append, or the number of a flush."""

    what: What
    about: int = 0
    ledger_id: int = -1
    entry_id: int = -1
    why: str = ""


@dataclass(frozen=True, slots=True)
class Sleeps:
    """A task of the broker waits for a deadline."""


Output: TypeAlias = Asks | GivesUp | Sends | Says | Sleeps

# -- inputs of a broker


class Command(Enum):
    OPEN = auto()
    APPEND = auto()
    ROLL = auto()
    SUBSCRIBE = auto()
    ACK = auto()
    FLUSH = auto()
    CLOSE = auto()


@dataclass(frozen=True, slots=True)
class Do:
    command: Command
    about: int = 0
    ledger_id: int = -1
    entry_id: int = -1


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    result: Result


@dataclass(frozen=True, slots=True)
class Confirms:
    """The next entry of the ledger is on an ack quorum."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class Refuses:
    """The ledger is fenced: a bookie has rejected an entry."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Time passes, up to the next deadline."""


Input: TypeAlias = Do | Answer | Confirms | Refuses | Wait
