"""The state of each replica of each entry of a fragment, and the repairs that follow from it.

A sealed fragment is a run of entries and an ensemble.  Each position has one byte per entry:

    NONE       the position does not hold this entry
    PRESENT    the bookie has it (in a thorough check: gave it, and its digest matches)
    MISSING    the bookie answered that it does not have it
    DOUBTFUL   the bookie answered that it cannot tell whether it had it
    DAMAGED    the bookie gave other bytes: their digest does not match
    UNREADABLE the bookie has it, and its disk does not return it
    UNHEARD    no answer
    LOST       the bookie is gone

**Unknown is neither missing nor present.**  An UNHEARD replica is left alone and checked again
later; it counts neither as a copy nor as a lost one.  A DOUBTFUL replica is written again in place:
the write is harmless if the entry was there, and it ends the doubt.  An UNREADABLE replica is also
written again: a bookie that knows of its damage accepts the entry again.

    fill    the bookie stays, and gets the entries that it lacks
    move    another bookie replaces one that is lost or leaves, one that was filled without success,
            or one that gives other bytes, because a bookie keeps the first bytes that it got

An entry without any copy is not repaired: the ensemble must go on naming bookies that may return.

A move makes the one change of metadata of re-replication: a newcomer takes a bookie's position.
The change is made only after every entry of the position is durable on the newcomer, and only while
the position has to hold no other entries: the ledger may have been closed, deleted, recovered, or
repaired by another worker meanwhile.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto

from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble, Fragment, Quorums
from daybook.bookie.ledger.protocol.update import Decide, Ruling
from daybook.wire.messages.entry_list import Group


class Copy(IntEnum):
    NONE = 0
    PRESENT = 1
    MISSING = 2
    DOUBTFUL = 3
    DAMAGED = 4
    UNHEARD = 5
    LOST = 6
    UNREADABLE = 7


_LACKED = (Copy.MISSING, Copy.DOUBTFUL, Copy.UNREADABLE)  # these are written again in place


class Presence(Enum):
    WRITABLE = auto()
    READONLY = auto()
    LEAVING = auto()  # registered, and told to leave the cluster
    AWAY = auto()  # not registered, but may be back in a moment
    LOST = auto()


_USUAL_ENTRY_BYTES = 1024  # while no size is known
GONE = (Presence.LOST, Presence.LEAVING)  # their copies have to be made elsewhere


@dataclass(frozen=True, slots=True)
class Stretch:
    """A settled fragment: its entries are final, so copies may move.  Empty: last < first."""

    first: int
    last: int
    ensemble: Ensemble

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def settled_stretches(metadata: LedgerMetadata) -> list[Stretch]:
    """Return the fragments that no client writes to any longer.

    These are all fragments of a closed ledger, and all but the last of an open one, which belongs
    to the writer.  A ledger in recovery has none: its recovery relies on unchanged metadata.
    """
    fragments = metadata.fragments
    starts = [fragment.first_entry_id for fragment in fragments[1:]]
    match metadata.state:
        case LedgerState.IN_RECOVERY:
            return []
        case LedgerState.OPEN:
            fragments = fragments[:-1]
        case LedgerState.CLOSED:
            starts.append(metadata.last_entry_id + 1)
    return [
        # The last fragments of a closed ledger may start behind its end.
        Stretch(f.first_entry_id, min(start - 1, _end_of(metadata)), f.ensemble)
        for f, start in zip(fragments, starts, strict=True)
    ]


def _end_of(metadata: LedgerMetadata) -> int:
    return metadata.last_entry_id if metadata.closed else (1 << 63) - 1


def expected(stretch: Stretch, quorums: Quorums, position: int) -> bytearray:
    """Return UNHEARD for each entry that the position holds, NONE for all others."""
    codes = bytearray(max(0, stretch.count))
    if quorums.write == quorums.ensemble:
        return bytearray([Copy.UNHEARD]) * len(codes)
    for place in range(quorums.write):
        # entry % E == position - place: the position is the write set's place-th.
        offset = (position - place - stretch.first) % quorums.ensemble
        many = len(range(offset, len(codes), quorums.ensemble))
        codes[offset :: quorums.ensemble] = bytes([Copy.UNHEARD]) * many
    return codes


def listed(stretch: Stretch, codes: bytearray, groups: Iterable[Group]) -> None:
    """Replace UNHEARD by PRESENT for the entries in the bookie's list."""
    there = bytearray(len(codes))
    end = stretch.first + len(there)
    for group in groups:
        if group.period == 0:
            _set(there, group.first - stretch.first, group.first + group.size - stretch.first)
            continue
        start = group.first
        # Skip the periods before the fragment: a list may begin any distance before it.
        if start + group.size <= stretch.first:
            start += (stretch.first - start - group.size) // group.period * group.period
        while start <= group.last and start < end:
            _set(there, start - stretch.first, start + group.size - stretch.first)
            start += group.period
    for match in re.finditer(rb"\x01+", bytes(there)):
        run = slice(*match.span())
        codes[run] = codes[run].replace(bytes([Copy.UNHEARD]), bytes([Copy.PRESENT]))


def _set(there: bytearray, first: int, end: int) -> None:
    first, end = max(first, 0), min(end, len(there))
    if first < end:
        there[first:end] = b"\x01" * (end - first)


def runs(codes: bytes | bytearray, which: Collection[Copy], first: int) -> list[range]:
    """Return the entries with these codes, as ranges; `codes` begin at entry `first`."""
    pattern = b"[" + b"".join(b"\\x%02x" % code for code in sorted(which)) + b"]+"
    return [
        range(first + match.start(), first + match.end())
        for match in re.finditer(pattern, bytes(codes))
    ]


# -- repairs


@dataclass(frozen=True, slots=True)
class Fill:
    position: int
    bookie: BookieId
    entries: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Move:
    position: int
    bookie: BookieId
    entries: tuple[range, ...]  # all entries of the position
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """One fragment's report; `copies` counts the known copies of its worst entry."""

    stretch: Stretch
    copies: int
    fills: tuple[Fill, ...] = ()
    moves: tuple[Move, ...] = ()
    unheard: tuple[BookieId, ...] = ()  # their copies are not known
    no_copy: tuple[range, ...] = ()  # entries without a copy
    no_answer: tuple[range, ...] = ()  # no copy found; a bookie may have one

    @property
    def whole(self) -> bool:
        return not (self.fills or self.moves or self.unheard or self.no_copy or self.no_answer)


def judge(
    stretch: Stretch,
    copies: Sequence[bytes | bytearray],
    presence: Mapping[BookieId, Presence],
    *,
    unfillable: Collection[BookieId] = (),
    spare: bool = True,
) -> Report:
    """Return the repairs of a fragment; `copies` has the codes of each position.

    An `unfillable` bookie was given its entries again without success.  Without a `spare` bookie, a
    read-only bookie is filled, too: it may have room for that.
    """
    fills: list[Fill] = []
    moves: list[Move] = []
    unheard: list[BookieId] = []
    for position, bookie in enumerate(stretch.ensemble):
        codes = copies[position]
        here = presence.get(bookie, Presence.LOST)
        lacks = runs(codes, _LACKED, stretch.first)
        if Copy.UNHEARD in codes or here is Presence.AWAY:
            unheard.append(bookie)
        fillable = bookie not in unfillable and (here is not Presence.READONLY or not spare)
        if why := _why_moved(here, codes, lacks=bool(lacks), fillable=fillable):
            held = runs(codes, [copy for copy in Copy if copy is not Copy.NONE], stretch.first)
            moves.append(Move(position, bookie, tuple(held), why))
        elif lacks:
            fills.append(Fill(position, bookie, tuple(lacks)))
    known = _counted(copies, (Copy.PRESENT,))
    hope = _counted(copies, (Copy.UNHEARD, Copy.DOUBTFUL))
    bare = (
        bytes(
            0 if n else (Copy.UNHEARD if h else Copy.LOST) for n, h in zip(known, hope, strict=True)
        )
        if 0 in known
        else b""
    )
    return Report(
        stretch,
        min(known, default=sum(_is_here(presence.get(b)) for b in stretch.ensemble)),
        tuple(fills),
        tuple(moves),
        tuple(unheard),
        tuple(runs(bare, (Copy.LOST,), stretch.first)),
        tuple(runs(bare, (Copy.UNHEARD,), stretch.first)),
    )


def _why_moved(here: Presence, codes: bytes | bytearray, *, lacks: bool, fillable: bool) -> str:
    if here is Presence.LOST:
        return "it is gone"
    if here is Presence.LEAVING:
        return "it leaves the cluster"
    if Copy.DAMAGED in codes:
        return "it has damaged copies"
    if lacks and not fillable:
        return "it lacks entries and does not take them"
    return ""


def _is_here(presence: Presence | None) -> bool:
    return presence in (Presence.WRITABLE, Presence.READONLY, Presence.LEAVING)


def _counted(copies: Sequence[bytes | bytearray], which: Collection[Copy]) -> bytes:
    """Count for each entry the positions with such a code.  (E < 256: no byte overflows.)"""
    table = bytes(int(code in which) for code in range(256))
    size = len(copies[0]) if copies else 0
    total = sum(int.from_bytes(codes.translate(table), "big") for codes in copies)
    return total.to_bytes(size, "big")


# -- estimates from the metadata alone


def fewest_copies(metadata: LedgerMetadata, here: Collection[BookieId]) -> int:
    """Return how many copies the worst entry has at most, if bookies outside `here` are gone.

    The worker repairs the ledger with the fewest copies first.
    """
    quorums = metadata.quorums
    return min(
        (
            sum(fragment.ensemble[position] in here for position in write_set)
            for fragment in metadata.fragments
            for write_set in quorums.write_sets()
        ),
        default=0,
    )


def names(metadata: LedgerMetadata) -> set[BookieId]:
    return {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}


def bytes_to_copy(metadata: LedgerMetadata, gone: Collection[BookieId]) -> int:
    """Estimate the bytes of payload to copy if these bookies are gone."""
    if not metadata.closed or metadata.last_entry_id < 0:
        return 0
    size = metadata.length / (metadata.last_entry_id + 1)
    quorums = metadata.quorums
    return round(
        sum(
            size * max(0, stretch.count) * quorums.write / quorums.ensemble
            for stretch in settled_stretches(metadata)
            for bookie in stretch.ensemble
            if bookie in gone
        )
    )


def entry_bytes(metadata: LedgerMetadata) -> int:
    """Estimate the bytes of payload of an entry; at least one."""
    if metadata.closed and metadata.last_entry_id >= 0:
        return max(1, metadata.length // (metadata.last_entry_id + 1))
    return _USUAL_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Replacement:
    """`newcomer` has all entries of `stretch` that `position` holds."""

    stretch: Stretch
    position: int
    newcomer: BookieId


def replace_bookie(replacement: Replacement) -> Decide:
    stretch, position = replacement.stretch, replacement.position
    old = stretch.ensemble[position]

    def decide(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
        for number, now in enumerate(settled_stretches(metadata)):
            if now.first != stretch.first:
                continue
            if now.ensemble[position] == replacement.newcomer:
                return Ruling.KEEP
            if now.ensemble[position] != old or replacement.newcomer in now.ensemble:
                return Ruling.REFUSE  # Another worker has changed it.
            if now.last > stretch.last:
                return Ruling.REFUSE  # The position holds more than was copied.
            ensemble = list(now.ensemble)
            ensemble[position] = replacement.newcomer
            fragments = list(metadata.fragments)
            fragments[number] = Fragment(now.first, tuple(ensemble))
            return replace(metadata, fragments=tuple(fragments))
        return Ruling.REFUSE  # No such fragment, or it is not settled (any longer).

    return decide


def newcomers(stretch: Stretch, candidates: Sequence[BookieId]) -> list[BookieId]:
    """Return the candidates outside the ensemble: a bookie must count only once."""
    return [bookie for bookie in candidates if bookie not in stretch.ensemble]
