"""Acknowledgements that the broker was told, and that it has not confirmed.

    told    --->  settled: a later receipt of the same attachment covers everything told before it
      |
      +-------->  recalled: told again, with receipts this time (`flush_acks`)

A broker carries out what one consumer tells it in order, so one receipt is enough for all that the
same attachment told before.  It says nothing about what an earlier attachment told: that stays in
doubt until it is recalled.  Memory is bounded; what an earlier attachment told, and what there was
no room for, is counted as lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

EntryKey: TypeAlias = tuple[int, int]  # ledger id, entry id
AckTuple: TypeAlias = tuple[int, int, int | None]  # and the pending set, None for the whole entry


Told: TypeAlias = tuple[AckTuple | None, Sequence[AckTuple]]  # cumulative, and single entries


@dataclass(frozen=True, slots=True)
class Recalled:
    """What was in doubt: up to where everything was done, whole entries, batches in part."""

    cumulative: AckTuple | None
    whole: list[EntryKey]
    parts: list[EntryKey]


class AcksInDoubt:
    """Those of one consumer on one topic."""

    __slots__ = (
        "_crowded_out",
        "_cumulative",
        "_entries",
        "_entries_max",
        "_since",
        "lost",
        "newest",
        "told",
    )

    def __init__(self, entries_max: int) -> None:
        self.told = 0  # how often something was told: the number of the last time
        self.lost = 0  # entries that were forgotten, and that no receipt can cover any more
        self.newest: Told | None = None  # what this attachment told last
        self._entries_max = entries_max
        self._entries: dict[EntryKey, tuple[int, bool]] = {}  # when it was told; the whole entry?
        self._cumulative: tuple[int, AckTuple] | None = None
        self._since = 0  # what was told up to here is of an earlier attachment
        self._crowded_out = 0  # forgotten entries that a receipt of this attachment covers

    def __len__(self) -> int:
        return len(self._entries) + (self._cumulative is not None)

    def __contains__(self, key: EntryKey) -> bool:
        return key in self._entries

    def note(self, cumulative: AckTuple | None, single: Sequence[AckTuple]) -> None:
        """The broker is told these now, and gives no receipt."""
        self.told += 1
        self.newest = (None, single[-1:]) if single else (cumulative, [])
        if cumulative is not None and not self._covers(cumulative):
            self._cumulative = (self.told, cumulative)
        entries, all_of_it, a_part = self._entries, (self.told, True), (self.told, False)
        for ledger_id, entry_id, pending in single:
            key = (ledger_id, entry_id)
            if key in entries:
                if pending is not None and entries[key][1]:
                    continue  # All of it was told before, and that is what is in doubt.
                del entries[key]
            entries[key] = all_of_it if pending is None else a_part
        while len(entries) > self._entries_max:
            self._crowd_out(next(iter(entries)))

    def _covers(self, later: AckTuple) -> bool:
        """Whether the place that is in doubt lies behind the one that is told now."""
        if self._cumulative is None:
            return False
        _, known = self._cumulative
        return known[:2] > later[:2] or (known[:2] == later[:2] and known[2] is None)

    def _crowd_out(self, key: EntryKey) -> None:
        number, _ = self._entries.pop(key)
        if number > self._since:
            self._crowded_out += 1
        else:
            self.lost += 1

    def settled(self, number: int) -> None:
        """A receipt covers everything that this attachment told, up to the time `number`."""
        if number <= self._since:
            return
        covered = [key for key, (told, _) in self._entries.items() if self._since < told <= number]
        for key in covered:
            del self._entries[key]
        if self._cumulative is not None and self._since < self._cumulative[0] <= number:
            self._cumulative = None
        if number == self.told:
            self._crowded_out = 0

    def attached(self) -> None:
        """A new attachment: receipts say nothing any more about what was told before."""
        self._since = self.told
        self.newest = None
        self.lost += self._crowded_out
        self._crowded_out = 0

    def recall(self) -> Recalled:
        """Everything that is in doubt, to be told again; nothing is in doubt afterwards."""
        cumulative = None if self._cumulative is None else self._cumulative[1]
        whole = [key for key, (_, whole) in self._entries.items() if whole]
        parts = [key for key, (_, whole) in self._entries.items() if not whole]
        self._entries.clear()
        self._cumulative = None
        return Recalled(cumulative, whole, parts)

    def cover(self, key: EntryKey, *, whole: bool) -> None:
        """Everything up to there is told anew; of the entry itself only a part, unless `whole`."""
        for each in [each for each in self._entries if each < key or (whole and each == key)]:
            del self._entries[each]

    def forget(self) -> None:
        """What was told before is of no interest any more."""
        self._entries.clear()
        self._cumulative = self.newest = None
        self.lost = self._crowded_out = 0
