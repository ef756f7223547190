"""The tree of the simulated metadata store, with its past.

`RecordedTree` keeps every version of every record, and tells an observer of each write and of its
writer.  A `Follower` is the server that one session talks to: its reads may be some time behind,
but never behind what the session has seen or written before, and `catch_up` (a sync) brings it up
to date.  A watch that was left on an old state fires when the follower learns of the change.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from daybook.wire.clock import WallClock
from daybook.wire.metadata.acl import Acl
from daybook.wire.metadata.paths import parent_of
from daybook.wire.metadata.protection import Protection
from daybook.wire.metadata.store import Check, Create, Operation, Record, Set, Stat, Watch
from daybook.wire.metadata.tree import Notify, Tree

Observer = Callable[[str, str, Record | None], None]
"""Called for each write with the writer, the path, and the new record."""


class RecordedTree(Tree):
    """A tree that keeps its past.  `writer` is the host that makes the next writes."""

    def __init__(self, clock: WallClock) -> None:
        super().__init__(clock)
        self.writer = ""
        self.observer: Observer | None = None
        self.writes = 0
        self._times: list[float] = []  # the time of each write
        self._records: dict[str, list[tuple[int, Record | None]]] = {}
        self._children: dict[str, list[tuple[int, list[str] | None]]] = {}

    # -- writing

    def multi(self, session_id: int, operations: Sequence[Operation]) -> list[int]:
        versions = super().multi(session_id, operations)
        self._record([each.path for each in operations if not isinstance(each, Check)])
        return versions

    def close_session(self, session_id: int) -> list[Watch]:
        paths = list(self._sessions[session_id].ephemerals)
        watches = super().close_session(session_id)
        self._record(paths)
        return watches

    def _record(self, paths: list[str]) -> None:
        self.writes += 1
        self._times.append(trio.current_time())
        for path in paths:
            node = self._nodes.get(path)
            record = None if node is None else Record(node.value, node.stat())
            self._records.setdefault(path, []).append((self.writes, record))
            children = None if node is None else sorted(node.children)
            self._children.setdefault(path, []).append((self.writes, children))
            parent = self._nodes.get(parent_of(path))
            if parent is not None:
                past = self._children.setdefault(parent_of(path), [])
                past.append((self.writes, sorted(parent.children)))
            if self.observer is not None:
                self.observer(self.writer, path, record)

    # -- the past

    def written_by(self, when: float) -> int:
        """Return how many writes there were at an instant."""
        return bisect_right(self._times, when)

    def record_after(self, writes: int, path: str) -> Record | None:
        return _past(self._records.get(path, []), writes)

    def children_after(self, writes: int, path: str) -> list[str] | None:
        return _past(self._children.get(path, []), writes)

    def changed_since(self, writes: int, path: str, *, children: bool) -> bool:
        pasts = self._children if children else self._records
        past = pasts.get(path)
        return past is not None and past[-1][0] > writes

    def fire(self, session_id: int, watch: Watch) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            session.notify(watch)


_T = TypeVar("_T")


def _past(past: list[tuple[int, _T]], writes: int) -> _T | None:
    """Return the last of these states after so many writes."""
    index = bisect_right(past, writes, key=lambda each: each[0])
    return past[index - 1][1] if index else None


class Follower(Tree):
    """The tree as one session sees it: its reads may be old, its writes go to the leader."""

    def __init__(self, tree: RecordedTree, draw_lag: Callable[[], float]) -> None:
        self._tree = tree
        self._draw_lag = draw_lag
        self._seen = tree.writes

    def catch_up(self) -> None:
        self._seen = self._tree.writes

    # -- reading

    def get(self, session_id: int, path: str, watch: Watch | None) -> Record | None:
        tree, seen = self._tree, self._advance()
        if not tree.changed_since(seen, path, children=False):
            return tree.get(session_id, path, watch)
        tree.get(session_id, path, None)  # The session must be alive.
        if watch is not None:
            tree.fire(session_id, watch)
        return tree.record_after(seen, path)

    def get_children(self, session_id: int, path: str, watch: Watch | None) -> list[str] | None:
        tree, seen = self._tree, self._advance()
        if not tree.changed_since(seen, path, children=True):
            return tree.get_children(session_id, path, watch)
        tree.get_children(session_id, path, None)
        children = tree.children_after(seen, path)
        if watch is not None and children is not None:
            tree.fire(session_id, watch)
        return children

    def _advance(self) -> int:
        lag_s = self._draw_lag()
        behind = self._tree.written_by(trio.current_time() - lag_s) if lag_s else self._tree.writes
        self._seen = max(self._seen, behind)
        return self._seen

    # -- the leader's part

    def create(self, session_id: int, operation: Create, *, sequential: bool = False) -> str:
        path = self._tree.create(session_id, operation, sequential=sequential)
        self.catch_up()
        return path

    def set(self, session_id: int, operation: Set) -> Stat:
        stat = self._tree.set(session_id, operation)
        self.catch_up()
        return stat

    def multi(self, session_id: int, operations: Sequence[Operation]) -> list[int]:
        versions = self._tree.multi(session_id, operations)
        self.catch_up()
        return versions

    def open_session(self, notify: Notify, identities: frozenset[str] = frozenset()) -> int:
        self.catch_up()
        return self._tree.open_session(notify, identities)

    def get_acl(self, session_id: int, path: str) -> Acl | None:
        return self._tree.get_acl(session_id, path)

    def set_acl(self, session_id: int, path: str, acl: Acl) -> None:
        self._tree.set_acl(session_id, path, acl)

    def protection(self) -> Protection:
        return self._tree.protection()

    def is_alive(self, session_id: int) -> bool:
        return self._tree.is_alive(session_id)

    def close_session(self, session_id: int) -> list[Watch]:
        return self._tree.close_session(session_id)

    def drop_watches(self, session_id: int) -> list[Watch]:
        return self._tree.drop_watches(session_id)
