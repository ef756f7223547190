"""The records of the in-memory metadata store, with ZooKeeper's rules, as synchronous data.

Every write is one transaction with one id, a `multi` too.  Versions count as ZooKeeper counts: the
version of a record its `set`s, its children version the creations and deletions of children; the
number of a sequential record is the number of children that its parent has had so far, whatever
their names.  Ephemeral records belong to a session, and have no children.

A session has identities, and each record a list of who may do what; the rights that an operation
needs are those of ZooKeeper.  A new record follows the protection that the tree itself describes.

A watch belongs to a session, and leaves the tree when it fires.  Watches fire after the whole
transaction is visible, through the function that the session gave.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from daybook.wire.clock import WallClock
from daybook.wire.metadata import protection
from daybook.wire.metadata.acl import (
    ADMIN,
    CREATE,
    DELETE,
    OPEN_ACL,
    OWN,
    READ,
    WRITE,
    Acl,
    Grant,
    denial,
    may,
)
from daybook.wire.metadata.paths import check_path, name_of, parent_of
from daybook.wire.metadata.protection import Protection, ProtectionError
from daybook.wire.metadata.store import (
    ANY,
    AccessDeniedError,
    Check,
    Create,
    Delete,
    MetadataError,
    NoRecordError,
    NotEmptyError,
    Operation,
    Record,
    RecordExistsError,
    Set,
    Stat,
    VersionConflictError,
    Watch,
    check_request,
)

Notify: TypeAlias = Callable[[Watch], None]
_FIRST_SESSION_ID = 0x100_0000


class SessionExpiredError(Exception):
    """The session of the request has ended; nothing was done."""


@dataclass(slots=True)
class _Node:
    value: bytes
    version: int
    created_txid: int
    modified_txid: int
    created_ms: int
    modified_ms: int
    owner: int
    acl: Acl = OPEN_ACL
    children: dict[str, None] = field(default_factory=dict[str, None])
    children_created: int = 0

    def stat(self) -> Stat:
        return Stat(
            version=self.version,
            created_txid=self.created_txid,
            modified_txid=self.modified_txid,
            created_ms=self.created_ms,
            modified_ms=self.modified_ms,
            owner=self.owner,
            children_count=len(self.children),
            children_version=2 * self.children_created - len(self.children),
        )


@dataclass(slots=True)
class _Session:
    notify: Notify
    identities: frozenset[str] = frozenset()
    ephemerals: dict[str, None] = field(default_factory=dict[str, None])


@dataclass(slots=True)
class _Watch:
    session_id: int
    watch: Watch


class Tree:
    """All records, sessions and watches."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._txid = 0
        self._next_session_id = _FIRST_SESSION_ID
        self._sessions: dict[int, _Session] = {}
        now = clock.now_ms()
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, 0, now, now, 0)}
        self._record_watches: dict[str, list[_Watch]] = {}
        self._children_watches: dict[str, list[_Watch]] = {}
        self._protection: Protection | None = None  # parsed when it is needed

    # Sessions

    def open_session(self, notify: Notify, identities: frozenset[str] = frozenset()) -> int:
        session_id = self._next_session_id
        self._next_session_id += 1
        self._txid += 1
        self._sessions[session_id] = _Session(notify, identities)
        return session_id

    def is_alive(self, session_id: int) -> bool:
        return session_id in self._sessions

    def close_session(self, session_id: int) -> list[Watch]:
        """End a session, delete its ephemeral records, and return the watches that it still had."""
        session = self._sessions.pop(session_id)
        watches = self.drop_watches(session_id)
        self._txid += 1
        for path in session.ephemerals:
            self._remove(path)
        for path in session.ephemerals:
            self._fire_deleted(path)
        return watches

    def drop_watches(self, session_id: int) -> list[Watch]:
        dropped: list[Watch] = []
        for table in (self._record_watches, self._children_watches):
            for path in list(table):
                dropped += [w.watch for w in table[path] if w.session_id == session_id]
                table[path] = [w for w in table[path] if w.session_id != session_id]
                if not table[path]:
                    del table[path]
        return dropped

    # Reading

    def get(self, session_id: int, path: str, watch: Watch | None) -> Record | None:
        self._check_session(session_id)
        node = self._nodes.get(check_path(path))
        if node is not None:
            self._demand(session_id, node, READ, path)
        if watch is not None:
            self._record_watches.setdefault(path, []).append(_Watch(session_id, watch))
        return None if node is None else Record(node.value, node.stat())

    def get_children(self, session_id: int, path: str, watch: Watch | None) -> list[str] | None:
        self._check_session(session_id)
        node = self._nodes.get(check_path(path))
        if node is None:
            return None
        self._demand(session_id, node, READ, path)
        if watch is not None:
            self._children_watches.setdefault(path, []).append(_Watch(session_id, watch))
        return sorted(node.children)

    # Rights

    def get_acl(self, session_id: int, path: str) -> Acl | None:
        self._check_session(session_id)
        node = self._nodes.get(check_path(path))
        if node is None:
            return None
        if may(node.acl, self._sessions[session_id].identities, ADMIN):
            return node.acl
        self._demand(session_id, node, READ, path)
        return tuple(_hidden(grant) for grant in node.acl)

    def set_acl(self, session_id: int, path: str, acl: Acl) -> None:
        self._check_session(session_id)
        node = self._node(path, ANY)
        self._demand(session_id, node, ADMIN, path)
        self._txid += 1
        node.acl = self._resolved(session_id, acl)

    def protection(self) -> Protection:
        """Return the protection that the records describe."""
        if self._protection is None:
            node = self._nodes.get(protection.PATH)
            try:
                found = protection.decode(None if node is None else node.value)
                who = self._nodes.get(found.identities_path)
                if node is not None and who is not None:
                    found = protection.decode(node.value, who.value)
            except ProtectionError as error:
                raise MetadataError(str(error)) from None
            self._protection = found
        return self._protection

    def _demand(self, session_id: int, node: _Node, right: str, path: str) -> None:
        if node.acl is OPEN_ACL:
            return
        identities = self._sessions[session_id].identities
        if not may(node.acl, identities, right):
            raise AccessDeniedError(denial(path, bool(identities)))

    def _resolved(self, session_id: int, acl: Acl) -> Acl:
        """Return the list with the identities of the session in place of `auth:`."""
        if acl == OPEN_ACL:
            return OPEN_ACL
        found: list[Grant] = []
        for grant in acl:
            who = (
                sorted(self._sessions[session_id].identities)
                if grant.identity == OWN
                else [grant.identity]
            )
            found += [Grant(identity, grant.rights) for identity in who]
        if not found:
            raise MetadataError("a list of rights is empty, or names a session without an identity")
        return tuple(dict.fromkeys(found))

    # Writing

    def create(self, session_id: int, operation: Create, *, sequential: bool = False) -> str:
        self._check_session(session_id)
        if sequential:
            parent = self._nodes.get(parent_of(operation.path))
            number = 0 if parent is None else parent.children_created
            operation = replace(operation, path=f"{operation.path}{number:010d}")
        self.multi(session_id, [operation])
        return operation.path

    def set(self, session_id: int, operation: Set) -> Stat:
        self.multi(session_id, [operation])
        return self._nodes[operation.path].stat()

    def multi(self, session_id: int, operations: Sequence[Operation]) -> list[int]:
        """Carry out all operations or, if one raises, none."""
        self._check_session(session_id)
        check_request(operations)
        self._txid += 1
        undo: list[Callable[[], None]] = []
        try:
            versions = [self._apply(session_id, operation, undo) for operation in operations]
        except MetadataError:
            for step in reversed(undo):
                step()
            raise
        for operation in operations:
            if operation.path.startswith(protection.PATH):
                self._protection = None
            self._fire(operation)
        return versions

    def _apply(self, session_id: int, operation: Operation, undo: list[Callable[[], None]]) -> int:
        match operation:
            case Create(path, value, ephemeral, acl):
                self._demand_of_parent(session_id, path, CREATE)
                acl = self._resolved(session_id, acl or self.protection().acl(path))
                self._insert(path, value, session_id if ephemeral else 0, acl)
                undo.append(lambda: self._uninsert(path))
                return 0
            case Set(path, value, version):
                node = self._permitted(session_id, path, WRITE, version)
                before = (node.value, node.version, node.modified_txid, node.modified_ms)
                undo.append(lambda: self._unset(node, *before))
                node.value = value
                node.version += 1
                node.modified_txid, node.modified_ms = self._txid, self._clock.now_ms()
                return node.version
            case Delete(path, version):
                if path == "/":
                    raise MetadataError("the root of the metadata store cannot be deleted")
                self._node(path, ANY)
                self._demand_of_parent(session_id, path, DELETE)
                node = self._node(path, version)
                if node.children:
                    raise NotEmptyError(path)
                self._remove(path)
                undo.append(lambda: self._unremove(path, node))
                return -1
            case Check(path, version):
                self._permitted(session_id, path, READ, version)
                return -1
            case _:
                assert_never(operation)

    def _permitted(self, session_id: int, path: str, right: str, version: int) -> _Node:
        self._demand(session_id, self._node(path, ANY), right, path)
        return self._node(path, version)

    def _demand_of_parent(self, session_id: int, path: str, right: str) -> None:
        parent = None if path == "/" else self._nodes.get(parent_of(check_path(path)))
        if parent is not None:
            self._demand(session_id, parent, right, path)

    def _node(self, path: str, version: int) -> _Node:
        node = self._nodes.get(check_path(path))
        if node is None:
            raise NoRecordError(path)
        if version not in (ANY, node.version):
            raise VersionConflictError(f"{path} has version {node.version}, not {version}")
        return node

    def _insert(self, path: str, value: bytes, owner: int, acl: Acl) -> None:
        parent = None if path == "/" else self._nodes.get(parent_of(check_path(path)))
        if path in self._nodes:
            raise RecordExistsError(path)
        if parent is None:
            raise NoRecordError(parent_of(path))
        if parent.owner:
            raise MetadataError(f"the parent of {path} is ephemeral and cannot have children")
        now = self._clock.now_ms()
        self._nodes[path] = _Node(value, 0, self._txid, self._txid, now, now, owner, acl)
        parent.children[name_of(path)] = None
        parent.children_created += 1
        if owner:
            self._sessions[owner].ephemerals[path] = None

    def _uninsert(self, path: str) -> None:
        self._remove(path)
        self._nodes[parent_of(path)].children_created -= 1

    def _unset(self, node: _Node, value: bytes, version: int, txid: int, ms: int) -> None:
        node.value, node.version, node.modified_txid, node.modified_ms = value, version, txid, ms

    def _remove(self, path: str) -> None:
        node = self._nodes.pop(path)
        del self._nodes[parent_of(path)].children[name_of(path)]
        if node.owner in self._sessions:
            del self._sessions[node.owner].ephemerals[path]

    def _unremove(self, path: str, node: _Node) -> None:
        self._nodes[path] = node
        self._nodes[parent_of(path)].children[name_of(path)] = None
        if node.owner:
            self._sessions[node.owner].ephemerals[path] = None

    # Watches

    def _fire(self, operation: Operation) -> None:
        match operation:
            case Create(path):
                self._fire_table(self._record_watches, path)
                self._fire_table(self._children_watches, parent_of(path))
            case Set(path):
                self._fire_table(self._record_watches, path)
            case Delete(path):
                self._fire_deleted(path)
            case Check():
                pass
            case _:
                assert_never(operation)

    def _fire_deleted(self, path: str) -> None:
        self._fire_table(self._record_watches, path)
        self._fire_table(self._children_watches, path)
        self._fire_table(self._children_watches, parent_of(path))

    def _fire_table(self, table: dict[str, list[_Watch]], path: str) -> None:
        for watch in table.pop(path, []):
            self._sessions[watch.session_id].notify(watch.watch)

    def _check_session(self, session_id: int) -> None:
        if session_id not in self._sessions:
            raise SessionExpiredError


def _hidden(grant: Grant) -> Grant:
    scheme, _, rest = grant.identity.partition(":")
    if scheme != "digest":
        return grant
    return Grant(f"digest:{rest.partition(':')[0]}:x", grant.rights)
