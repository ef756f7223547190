"""The topics of a bundle change hands group by group.  The module is pure.

A bundle has one record, which changes hands at the end, when all topics are closed.  Its topics
need not wait for that: the owner closes a few of them, the next owner loads these, then the next
few follow.  So a topic is away for the time of its group, however many topics the bundle has.

    PassedOn   the owner's side: which topics come next, and how many at once
    Held       the next owner's side: which topics may be loaded already

`PassedOn` measures how long a group takes, and makes the groups so large that one takes `target_s`.
Topics are told apart by their hash, which also decides about the bundle; those with the same hash
change hands together.

The next owner learns at the beginning which topics the owner still serves, and may load all others
at once.  A topic that it loads although the owner serves it is fenced by the one that opened it
last, like any topic with two owners.  So the rules here are about pauses, and not about safety.
"""

from collections.abc import Iterable, Sequence

GROUPS_AT_ONCE = 2  # one is closed while the next owner loads the other one
_FIRST = 4  # topics in the first groups, before a time is known
_MOST = 64
_GROWTH_MAX = 2.0  # from one group to the next


class PassedOn:
    """The topics of one bundle that its owner has still to hand over."""

    def __init__(self, topics: Iterable[tuple[str, int]], *, target_s: float) -> None:
        """`topics` are names with their hashes."""
        self._target_s = target_s
        self._by_hash: dict[int, list[str]] = {}
        for name, hash_ in topics:
            self._by_hash.setdefault(hash_, []).append(name)
        self._size = float(_FIRST)
        self._kept = {name for names in self._by_hash.values() for name in names}

    @property
    def hashes(self) -> Sequence[int]:
        """The hashes of the topics that no group has had yet."""
        return list(self._by_hash)

    @property
    def fits_at_once(self) -> bool:
        """True if so few topics are left that they need no groups."""
        return len(self._kept) <= _FIRST

    def keeps(self, name: str) -> bool:
        """Return True if the owner still serves the topic."""
        return name in self._kept

    def next_group(self) -> list[str]:
        """Return the topics to close now; none at the end."""
        group: list[str] = []
        while self._by_hash and len(group) < int(self._size):
            group += self._by_hash.pop(next(iter(self._by_hash)))
        self._kept.difference_update(group)
        return group

    def take_all(self) -> None:
        """Keep no topic any more, because all that are left are closed now."""
        self._by_hash.clear()
        self._kept.clear()

    def took(self, topics: int, seconds: float) -> None:
        """A group of so many topics was closed here and loaded there in that time."""
        assert topics > 0
        fitting = topics * self._target_s / max(seconds, 1e-6)
        self._size = max(1.0, min(fitting, self._size * _GROWTH_MAX, float(_MOST)))


class Held:
    """The topics of an expected bundle that its owner still serves; all, until it has told."""

    def __init__(self) -> None:
        self._hashes: set[int] | None = None

    @property
    def begun(self) -> bool:
        """True if this broker may have loaded topics of the bundle."""
        return self._hashes is not None

    def hold(self, hashes: Iterable[int]) -> None:
        """The owner still serves these topics, and no others.  Only the first time counts."""
        if self._hashes is None:
            self._hashes = set(hashes)

    def pass_on(self, hashes: Iterable[int]) -> None:
        """The owner has closed these topics."""
        if self._hashes is not None:
            self._hashes.difference_update(hashes)

    def may_load(self, hash_: int) -> bool:
        return self._hashes is not None and hash_ not in self._hashes
