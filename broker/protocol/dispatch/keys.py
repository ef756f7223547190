"""The entries of one key: those that its consumer has, and those that wait, in their order."""

from bisect import bisect_left
from collections.abc import Sequence

from daybook.broker.protocol.dispatch.interface import Entry
from daybook.broker.protocol.dispatch.places import ConsumerKey, Place

_GONE_MAX = 32


class Key:
    """One key of a key_shared subscription, for as long as an entry of it is out or waits.

    `holder` is the consumer that has entries of the key.  Nobody else may get one before they are
    acknowledged or returned.  `begun` counts the chunks that the holder has of each message of
    which more chunks will come; the key stays with its holder until they have come.
    """

    __slots__ = (
        "_at",
        "_waiting",
        "aside",
        "begun",
        "hash",
        "holder",
        "line",
        "out",
        "owner",
        "waits",
    )

    def __init__(self, value: int) -> None:
        self.hash = value
        self.holder: ConsumerKey | None = None
        self.out = 0  # how many entries consumers have
        self.waits = 0  # how many entries wait
        self.begun: dict[str, int] | None = None
        self.aside: set[Place] = set()  # entries that wait and cannot be read now
        self.line: dict[int, Key] | None = None  # if entries wait: the line in which this key is
        self.owner: ConsumerKey | None = None  # the consumer whose line it is
        self._waiting: list[Place] = []  # sorted, from `_at` on
        self._at = 0

    @property
    def first(self) -> Place:
        return self._waiting[self._at]

    def waiting(self, count: int) -> list[Place]:
        """Return the first entries that wait."""
        return self._waiting[self._at : self._at + count]

    def add(self, places: Sequence[Place]) -> None:
        """Let entries wait.  None of them does so already."""
        self.waits += len(places)
        waiting = self._waiting
        behind = not waiting or self._at == len(waiting) or places[0] > waiting[-1]
        waiting += places
        if not behind or len(places) > 1:
            del waiting[: self._at]
            self._at = 0
            waiting.sort()

    def take_first(self) -> None:
        self.waits -= 1
        self._at += 1
        if self._at > _GONE_MAX and 2 * self._at > len(self._waiting):
            del self._waiting[: self._at]
            self._at = 0

    def remove(self, place: Place) -> None:
        """Forget an entry that waits."""
        if self.first == place:
            self.take_first()
            return
        at = bisect_left(self._waiting, place, self._at)
        assert self._waiting[at] == place
        del self._waiting[at]
        self.waits -= 1

    def went_out(self, entry: Entry, consumer: ConsumerKey, *, ordered: bool) -> None:
        """Note that the consumer gets an entry."""
        self.out += 1
        if entry.group is not None:
            if entry.group_ends:
                self._end(entry.group)
            else:
                begun = self.begun = self.begun or {}
                begun[entry.group] = begun.get(entry.group, 0) + 1
        self.holder = consumer if ordered or self.begun else None

    def came_back(self, group: str | None, *, ordered: bool) -> None:
        """Note that an entry is acknowledged, or that its consumer has returned it."""
        self.out -= 1
        if group is not None and self.begun and group in self.begun:
            self.begun[group] -= 1
            if not self.begun[group]:
                self._end(group)
        if not self.out:
            self.begun = None
        if not self.out or not (ordered or self.begun):
            self.holder = None

    def _end(self, group: str) -> None:
        if self.begun is not None:
            self.begun.pop(group, None)
            if not self.begun:
                self.begun = None
