"""SEAM metadata: a small tree of versioned records that all hosts of a cluster share.

ZooKeeper in production (`wire.metadata.zookeeper`), memory in tests and simulation
(`wire.metadata.memory`).  One conformance suite runs against both.

Paths start with `/`; a record has a value (bytes) and may have children.  Every write is
conditional: `set` and `delete` name the version that they replace (`ANY` for no condition).

**A write whose answer was lost is unknown, not failed.**  It raises `OutcomeUnknownError`, the
caller re-reads and decides.  No write is ever retried in here.  A read that gets no answer raises
`StoreUnavailableError`; it may be repeated.

    MetadataError
      NoRecordError            the record (or, in `create`, its parent) is not there
      RecordExistsError        create: it is there already
      VersionConflictError     set, delete, check: the record has another version
      NotEmptyError            delete: the record has children
      StoreUnavailableError    no answer to a read, or the request was certainly not carried out
        NoContactError         there never was a session
        NoChrootError          the chroot in the address does not exist
        UnusableAccessError    the files of TLS or of the password cannot be used
      OutcomeUnknownError      no answer to a write: it may have been carried out, or may yet be
      AccessDeniedError        the identities of this session have no right to do that
    and MetadataError itself   the store forbids it: a child of an ephemeral record, a request of
                               more than REQUEST_BYTES_MAX

Session: ephemeral records live as long as the session of their creator.  SUSPENDED means that the
store cannot be reached and nobody knows whether the session lives; only LOST means that the session
has ended, with all its ephemeral records.  After LOST the store starts a new session by itself (a
new `session_id`, CONNECTED).  Listeners are called in the trio thread, in order.

A request made while there is no contact waits for it, up to the request timeout, and never crosses
into another session: at LOST it fails with `StoreUnavailableError`, like one whose time is up.

A watch is one-shot: a plain function, called once, in the trio thread, after the record (or, for
`get_children`, the list of children) has changed or been created or deleted.  Changes can hide
behind a gap in the contact, so it is also called when contact is back, or the session lost.  It
says "look again", not what happened.

Rights: a session has identities, which are proven again at each connection before any request of
it is sent.  Each record has an access control list (`acl`).  `create` needs the right c on the
parent, `delete` d on the parent, `set` w, `get`, `get_children` and `Check` r, `set_acl` a, and
`get_acl` r or a.  A missing record is reported as missing to everybody.  A new record has the list
that the protection of the tree gives to its path (`protection`), unless the caller gives one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeAlias

from daybook.wire.metadata.acl import Acl
from daybook.wire.metadata.protection import Protection

ANY = -1  # The version that matches every version.
VALUE_BYTES_MAX = 1_000_000  # The largest value of a record that grows.
# The largest request, names of records included.  ZooKeeper cuts the connection of a client that
# sends 2**20 bytes.  The room above VALUE_BYTES_MAX is for a record of that size.
REQUEST_BYTES_MAX = 1_040_000
_OPERATION_BYTES = 64  # an operation besides its path and value, and a root before the path

Watch: TypeAlias = Callable[[], None]


class MetadataError(Exception):
    """The store refused the request, or did not answer."""


class NoRecordError(MetadataError):
    """The record, or the parent of a record to be created, does not exist."""


class RecordExistsError(MetadataError):
    """There is a record at that path."""


class VersionConflictError(MetadataError):
    """The record has another version than the caller believed."""


class NotEmptyError(MetadataError):
    """The record has children and cannot be deleted."""


class StoreUnavailableError(MetadataError):
    """A read got no answer, or the request was certainly not carried out."""


class NoContactError(StoreUnavailableError):
    """There never was a session; `why` says what listens at the address."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(f"{message}: {why}" if why else message)
        self.why = why


class NoChrootError(StoreUnavailableError):
    """The chroot in the address does not exist."""


class UnusableAccessError(StoreUnavailableError):
    """The files of TLS or of the password cannot be used; the text names the file."""


class AccessDeniedError(MetadataError):
    """No identity of this session has the right; the text says what to do."""


class OutcomeUnknownError(MetadataError):
    """A write got no answer: it may have been carried out."""


class SessionState(Enum):
    CONNECTED = auto()
    SUSPENDED = auto()  # there is no contact; the session may or may not be alive
    LOST = auto()  # the store says that the session, and all its ephemeral records, are gone


@dataclass(frozen=True, slots=True)
class Stat:
    """The facts that the store has about a record.

    Transaction ids order all writes of the cluster.
    """

    version: int  # counts `set`s; 0 after `create`
    created_txid: int
    modified_txid: int
    created_ms: int
    modified_ms: int
    owner: int  # session id of the creator of an ephemeral record, else 0
    children_count: int
    children_version: int


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    value: bytes
    ephemeral: bool = False
    acl: Acl | None = None  # None: as the protection of the tree says


@dataclass(frozen=True, slots=True)
class Set:
    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """A condition: the record exists and has this version (`ANY`: any version)."""

    path: str
    version: int


Operation: TypeAlias = Create | Set | Delete | Check


def request_bytes(operations: Iterable[Operation]) -> int:
    """Return the bytes of these operations as one request, or a little more."""
    return sum(
        _OPERATION_BYTES
        + len(operation.path.encode())
        + (len(operation.value) if isinstance(operation, Create | Set) else 0)
        for operation in operations
    )


def check_request(operations: Iterable[Operation]) -> None:
    """Raise MetadataError if the store would not take these operations in one request."""
    size = request_bytes(operations)
    if size > REQUEST_BYTES_MAX:
        raise MetadataError(
            f"a request has {size} bytes, and the metadata store takes at most {REQUEST_BYTES_MAX}"
        )


class MetadataStore(Protocol):
    @property
    def session_state(self) -> SessionState: ...

    @property
    def session_id(self) -> int:
        """The id of the present session; 0 before the first one."""
        ...

    def add_session_listener(self, listener: Callable[[SessionState], None]) -> None: ...

    def remove_session_listener(self, listener: Callable[[SessionState], None]) -> None: ...

    async def get(self, path: str, watch: Watch | None = None) -> Record | None:
        """Return the record, or None.  A watch on None fires when the record is created."""
        ...

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """Return the sorted names of the children.

        Return None if there is no such record; then no watch is set.
        """
        ...

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
        acl: Acl | None = None,
    ) -> str:
        """Create a record of version 0 and return its path; `sequential` appends ten digits.

        `make_parents` first creates missing parents, persistent and empty.  `acl` may name the
        identity `auth:`, which stands for those of this session; they must have at least one.
        """
        ...

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        """Replace the value; return the facts about the record as this write left it."""
        ...

    async def delete(self, path: str, version: int) -> None: ...

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        """Carry out all operations or none; return the new versions (0 for Create, -1 for others).

        Raise the error of the first operation that failed.
        """
        ...

    async def sync(self, path: str) -> None:
        """Make later reads of this session at least as new as all writes before this call."""
        ...

    async def get_newest(self, path: str) -> Record | None:
        """Return the record with everything that was written before this call, or None."""
        ...

    async def get_newest_children(self, path: str) -> list[str] | None:
        """Return the names of the children, as `get_newest` does."""
        ...

    async def get_acl(self, path: str) -> Acl | None:
        """Return the list of a record, or None.

        ZooKeeper hides the hash of passwords from a session without the right a.
        """
        ...

    async def set_acl(self, path: str, acl: Acl) -> None:
        """Replace the list of a record."""
        ...

    async def protection(self, changed: Watch | None = None) -> Protection:
        """Return the protection that all records follow that are created after this call.

        The watch fires at a change of it, and when the session is lost.
        """
        ...
