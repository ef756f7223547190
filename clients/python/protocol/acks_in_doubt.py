"""Acknowledgements that were sent to the broker and that it has not confirmed.

    sent    --->  settled: a later receipt of the same attachment covers everything sent before it
      |
      +-------->  recalled: sent again, with receipts this time (`flush_acks`)

A broker carries out the acknowledgements of one consumer in order, so one receipt covers everything
that the same attachment sent before.  It does not cover what an earlier attachment sent: those
acknowledgements stay in doubt until they are recalled.  Memory is bounded: entries that an earlier
attachment sent, and for which there was no room, are counted as lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

EntryKey: TypeAlias = tuple[int, int]  # ledger id, entry id
AckTuple: TypeAlias = tuple[int, int, int | None]  # and the pending set, None for the whole entry
Told: TypeAlias = tuple[AckTuple | None, Sequence[AckTuple]]  # cumulative, and single entries


@dataclass(frozen=True, slots=True)
class Recalled:
    """The acknowledgements that were in doubt: cumulative, whole entries, parts of batches."""

    cumulative: AckTuple | None
    whole: list[EntryKey]
    parts: list[EntryKey]


class AcksInDoubt:
    """One instance per topic consumer."""

    __slots__ = (
        "_crowded_out",
        "_cumulative",
        "_entries",
        "_entries_max",
        "_since",
        "last_group",
        "lost",
        "newest",
    )

    def __init__(self, entries_max: int) -> None:
        self.last_group = 0  # the number of the last group that was sent
        self.lost = 0  # entries that were dropped and that no receipt can cover any longer
        self.newest: Told | None = None  # the group that this attachment sent last
        self._entries_max = entries_max
        self._entries: dict[EntryKey, tuple[int, bool]] = {}  # the group's number; the whole entry?
        self._cumulative: tuple[int, AckTuple] | None = None
        self._since = 0  # groups up to this number are of earlier attachments
        self._crowded_out = 0  # dropped entries that a receipt of this attachment covers

    def __len__(self) -> int:
        return len(self._entries) + (self._cumulative is not None)

    def __contains__(self, key: EntryKey) -> bool:
        return key in self._entries

    def note(self, cumulative: AckTuple | None, single: Sequence[AckTuple]) -> None:
        """Note that these are sent now, without a request for a receipt."""
        self.last_group += 1
        self.newest = (None, single[-1:]) if single else (cumulative, [])
        if cumulative is not None and not self._covers(cumulative):
            self._cumulative = (self.last_group, cumulative)
        entries, all_of_it, a_part = (
            self._entries,
            (self.last_group, True),
            (self.last_group, False),
        )
        for ledger_id, entry_id, pending in single:
            key = (ledger_id, entry_id)
            if key in entries:
                if pending is not None and entries[key][1]:
                    continue  # The whole entry was sent before, and stays in doubt.
                del entries[key]
            entries[key] = all_of_it if pending is None else a_part
        while len(entries) > self._entries_max:
            self._crowd_out(next(iter(entries)))

    def _covers(self, later: AckTuple) -> bool:
        """Return True if the cumulative acknowledgement in doubt includes the later one."""
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
        """Forget what this attachment sent up to group `number`: a receipt covers it."""
        if number <= self._since:
            return
        covered = [
            key for key, (group, _) in self._entries.items() if self._since < group <= number
        ]
        for key in covered:
            del self._entries[key]
        if self._cumulative is not None and self._since < self._cumulative[0] <= number:
            self._cumulative = None
        if number == self.last_group:
            self._crowded_out = 0

    def attached(self) -> None:
        """Begin a new attachment, whose receipts do not cover what was sent before."""
        self._since = self.last_group
        self.newest = None
        self.lost += self._crowded_out
        self._crowded_out = 0

    def recall(self) -> Recalled:
        """Return everything that is in doubt, to be sent again; then nothing is in doubt."""
        cumulative = None if self._cumulative is None else self._cumulative[1]
        whole = [key for key, (_, whole) in self._entries.items() if whole]
        parts = [key for key, (_, whole) in self._entries.items() if not whole]
        self._entries.clear()
        self._cumulative = None
        return Recalled(cumulative, whole, parts)

    def cover(self, key: EntryKey, *, whole: bool) -> None:
        """Forget entries before `key`, and with `whole` also `key`: a later ack includes them."""
        for each in [each for each in self._entries if each < key or (whole and each == key)]:
            del self._entries[each]

    def forget(self) -> None:
        """Forget everything: the position was moved."""
        self._entries.clear()
        self._cumulative = self.newest = None
        self.lost = self._crowded_out = 0
