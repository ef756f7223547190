"""The topic list watchers of one client: what each was told, and what it has to be told next.

    open --Follow--> OPENING --listed--> OPEN --close--> (absent)
                        |  open_failed, close

A watcher is told the list as it is when it opens, and from then on the differences.  The machine
remembers two lists for each watcher: the one that its client knows, and the latest one.  The next
update is the difference between the two, so changes that come faster than a client reads them are
told together, and nothing has to be queued for a slow client.  The lists are shared by all watchers
that follow the same names.  An update has a bounded size; a longer difference is told in parts, and
the hash in each of them is that of the list as the client knows it then.

An answer that is late does no harm: every opening has a number of its own (`attempt`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from crc32c import crc32c

from daybook.wire.proto import pulsar_pb2 as pb

PART_BYTES_MAX = 256 << 10
_NAME_BYTES = 8  # a name takes so many in a frame besides its characters


def topics_hash(names: Iterable[str]) -> str:
    """Return the hash by which clients compare lists of topics."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


class TopicList:
    """Names of topics at one moment.  The object is shared, and its hash is computed once."""

    __slots__ = ("_hash", "names")

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self._hash: str | None = None

    @property
    def hash(self) -> str:
        if self._hash is None:
            self._hash = topics_hash(self.names)
        return self._hash


_EMPTY = TopicList(frozenset())


# -- effects


@dataclass(frozen=True, slots=True)
class Follow:
    """Find the list of the watcher, then call `listed` or `open_failed`."""

    watcher_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Stop following, or give up the attempt to begin."""

    watcher_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Succeed:
    """Answer the opening with the list, or with its first part."""

    request_id: int
    watcher_id: int
    topics: list[str]
    hash: str


@dataclass(frozen=True, slots=True)
class Confirm:
    request_id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    request_id: int
    code: int
    reason: str


Effect: TypeAlias = Follow | Unfollow | Succeed | Confirm | Refuse


@dataclass(frozen=True, slots=True)
class Update:
    """The difference from the list that the client was told before."""

    watcher_id: int
    new: list[str]
    deleted: list[str]
    hash: str


@dataclass(slots=True)
class _Watcher:
    attempt: int
    request_id: int
    hash_known: str  # the hash that the client named when it opened the watcher
    told: TopicList | None = None  # None while the watcher opens
    latest: TopicList = _EMPTY


class TopicWatchersProtocol:
    """One instance per connection."""

    def __init__(self, *, watchers_max: int) -> None:
        self._watchers_max = watchers_max
        self._watchers: dict[int, _Watcher] = {}
        self._stale: dict[int, None] = {}  # the watchers that have to be told something, in turn
        self._attempts = 0

    def __len__(self) -> int:
        return len(self._watchers)

    @property
    def stale(self) -> bool:
        """True if `next_update` has something."""
        return bool(self._stale)

    # -- inputs

    def open(self, watcher_id: int, request_id: int, hash_known: str) -> list[Effect]:
        """Open a watcher for a client that knows a list with this hash."""
        watcher = self._watchers.get(watcher_id)
        if watcher is not None and watcher.told is None:
            reason = f"the watcher {watcher_id} is being opened already"
            return [Refuse(request_id, pb.ServiceNotReady, reason)]
        if watcher is not None:
            watcher.request_id, watcher.hash_known = request_id, hash_known
            return [self._succeed(watcher_id, watcher)]
        if len(self._watchers) >= self._watchers_max:
            reason = f"the connection has {self._watchers_max} watchers, which is the limit"
            return [Refuse(request_id, pb.NotAllowedError, reason)]
        self._attempts += 1
        self._watchers[watcher_id] = _Watcher(self._attempts, request_id, hash_known)
        return [Follow(watcher_id, self._attempts)]

    def listed(self, watcher_id: int, attempt: int, latest: TopicList) -> list[Effect]:
        """Note the list as it is now.  The first one answers the opening."""
        watcher = self._watchers.get(watcher_id)
        if watcher is None or watcher.attempt != attempt:
            return []
        watcher.latest = latest
        if watcher.told is None:
            return [self._succeed(watcher_id, watcher)]
        self._note(watcher_id, watcher)
        return []

    def open_failed(self, watcher_id: int, attempt: int, code: int, reason: str) -> list[Effect]:
        watcher = self._watchers.get(watcher_id)
        if watcher is None or watcher.attempt != attempt:
            return []
        del self._watchers[watcher_id]
        return [Refuse(watcher.request_id, code, reason)]

    def close(self, watcher_id: int, request_id: int) -> list[Effect]:
        """Close a watcher.  One that is not there is closed already."""
        watcher = self._watchers.pop(watcher_id, None)
        if watcher is None:
            return [Confirm(request_id)]
        self._stale.pop(watcher_id, None)
        effects: list[Effect] = [Unfollow(watcher_id, watcher.attempt)]
        if watcher.told is None:
            reason = f"the watcher {watcher_id} was closed before it was open"
            effects.append(Refuse(watcher.request_id, pb.ServiceNotReady, reason))
        return [*effects, Confirm(request_id)]

    def end(self) -> list[Effect]:
        """Close all watchers, because the connection has ended."""
        unfollow: list[Effect] = [Unfollow(i, w.attempt) for i, w in self._watchers.items()]
        self._watchers.clear()
        self._stale.clear()
        return unfollow

    # -- what a client is told

    def next_update(self) -> Update | None:
        """Return the next update, which the client is then taken to know; None if there is none."""
        if not self._stale:
            return None
        watcher_id = next(iter(self._stale))
        del self._stale[watcher_id]
        watcher = self._watchers[watcher_id]
        assert watcher.told is not None
        before, latest = watcher.told, watcher.latest
        deleted = _part(sorted(before.names - latest.names), PART_BYTES_MAX)
        room = PART_BYTES_MAX - _size(deleted)
        new = _part(sorted(latest.names - before.names), room)
        watcher.told = _together((before.names - set(deleted)) | set(new), latest)
        self._note(watcher_id, watcher)
        return Update(watcher_id, new, deleted, watcher.told.hash)

    def _succeed(self, watcher_id: int, watcher: _Watcher) -> Succeed:
        latest = watcher.latest
        if watcher.hash_known == latest.hash:
            topics, watcher.told = [], latest
        else:
            topics = _part(sorted(latest.names), PART_BYTES_MAX)
            watcher.told = _together(set(topics), latest)
        self._note(watcher_id, watcher)
        return Succeed(watcher.request_id, watcher_id, topics, watcher.told.hash)

    def _note(self, watcher_id: int, watcher: _Watcher) -> None:
        """Remember whether the client has to be told something."""
        told, latest = watcher.told, watcher.latest
        assert told is not None
        if told is latest or told.names == latest.names:
            watcher.told = latest  # the shared object, so that the older one can go
            self._stale.pop(watcher_id, None)
        else:
            self._stale[watcher_id] = None


def _together(names: "set[str] | frozenset[str]", latest: TopicList) -> TopicList:
    """Return the shared list if these are its names."""
    return latest if names == latest.names else TopicList(frozenset(names))


def _part(names: list[str], bytes_max: int) -> list[str]:
    """Return as many names as fit; at least one if there is room for anything."""
    size = 0
    for index, name in enumerate(names):
        size += len(name.encode()) + _NAME_BYTES
        if size > bytes_max and (index or bytes_max < PART_BYTES_MAX):
            return names[:index]
    return names


def _size(names: list[str]) -> int:
    return sum(len(name.encode()) + _NAME_BYTES for name in names)
