"""The state of each replica of each entry of a fragment, and the repairs that follow from it.

A sealed fragment is a run of entries and an ensemble.  Each position has one byte per entry:

    NONE       the position does not hold this entry
    PRESENT    the bookie has it (in a thorough check: gave it, and its digest matches)
    MISSING    the bookie answered that it does not have it
    DOUBTFUL   the bookie answered that it cannot tell whether it had it
    DAMAGED    the bookie gave other bytes: their digest does not match
    UNREADABLE the bookie has it, and its disk does not return it
    NO_ANSWER    no answer
    LOST       the bookie is gone

**Unknown is neither missing nor present.**  An NO_ANSWER replica is left alone and checked again
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


class ReplicaState(IntEnum):
    NONE = 0
    PRESENT = 1
    MISSING = 2
    DOUBTFUL = 3
    DAMAGED = 4
    NO_ANSWER = 5
    LOST = 6
    UNREADABLE = 7


_USUAL_ENTRY_BYTES = 1024  # while no size is known
# These are written again in place.
_TO_REWRITE = (ReplicaState.MISSING, ReplicaState.DOUBTFUL, ReplicaState.UNREADABLE)


class BookieStatus(Enum):
    WRITABLE = auto()
    READONLY = auto()
    LEAVING = auto()  # registered, and told to leave the cluster
    AWAY = auto()  # not registered, but may be back in a moment
    LOST = auto()


GONE = (BookieStatus.LOST, BookieStatus.LEAVING)  # their copies have to be made elsewhere


@dataclass(frozen=True, slots=True)
class SealedFragment:
    """A fragment that no client writes to any longer: copies may move.  Empty: last < first."""

    first: int
    last: int
    ensemble: Ensemble

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def sealed_fragments(metadata: LedgerMetadata) -> list[SealedFragment]:
    """Return the fragments whose entries are final.

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
        # The last fragments of a closed ledger may start behind its end: they are empty.
        SealedFragment(f.first_entry_id, min(start - 1, _end_of(metadata)), f.ensemble)
        for f, start in zip(fragments, starts, strict=True)
    ]


def _end_of(metadata: LedgerMetadata) -> int:
    return metadata.last_entry_id if metadata.closed else (1 << 63) - 1


def expected_replicas(fragment: SealedFragment, quorums: Quorums, position: int) -> bytearray:
    """Return NO_ANSWER for each entry that the position holds, NONE for all others."""
    assert 0 <= position < quorums.ensemble
    codes = bytearray(max(0, fragment.count))
    if quorums.write == quorums.ensemble:
        return bytearray([ReplicaState.NO_ANSWER]) * len(codes)
    for place in range(quorums.write):
        # entry % E == position - place: the position is the write set's place-th.
        offset = (position - place - fragment.first) % quorums.ensemble
        many = len(range(offset, len(codes), quorums.ensemble))
        codes[offset :: quorums.ensemble] = bytes([ReplicaState.NO_ANSWER]) * many
    return codes


def apply_entry_list(fragment: SealedFragment, codes: bytearray, groups: Iterable[Group]) -> None:
    """Replace NO_ANSWER by PRESENT for the entries in the bookie's list."""
    there = bytearray(len(codes))
    end = fragment.first + len(there)
    for group in groups:
        if group.period == 0:
            _set(there, group.first - fragment.first, group.first + group.size - fragment.first)
            continue
        start = group.first
        # Skip the periods before the fragment: a list may begin any distance before it.
        if start + group.size <= fragment.first:
            start += (fragment.first - start - group.size) // group.period * group.period
        while start <= group.last and start < end:
            _set(there, start - fragment.first, start + group.size - fragment.first)
            start += group.period
    for match in re.finditer(rb"\x01+", bytes(there)):
        run = slice(*match.span())
        codes[run] = codes[run].replace(
            bytes([ReplicaState.NO_ANSWER]), bytes([ReplicaState.PRESENT])
        )


def _set(there: bytearray, first: int, end: int) -> None:
    first, end = max(first, 0), min(end, len(there))
    if first < end:
        there[first:end] = b"\x01" * (end - first)


def runs_of(codes: bytes | bytearray, which: Collection[ReplicaState], first: int) -> list[range]:
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
class FragmentReport:
    """One fragment's report; `copies` counts the known copies of its worst entry."""

    fragment: SealedFragment
    copies: int
    fills: tuple[Fill, ...] = ()
    moves: tuple[Move, ...] = ()
    silent: tuple[BookieId, ...] = ()  # their copies are not known
    no_copy: tuple[range, ...] = ()  # entries without a copy
    unknown: tuple[range, ...] = ()  # no copy found; a bookie may have one

    @property
    def whole(self) -> bool:
        return not (self.fills or self.moves or self.silent or self.no_copy or self.unknown)


def plan_repairs(
    fragment: SealedFragment,
    copies: Sequence[bytes | bytearray],
    statuses: Mapping[BookieId, BookieStatus],
    *,
    unfillable: Collection[BookieId] = (),
    spare: bool = True,
) -> FragmentReport:
    """Return the repairs of a fragment; `copies` has the codes of each position.

    An `unfillable` bookie was given its entries again without success.  Without a `spare` bookie, a
    read-only bookie is filled, too: it may have room for that.
    """
    assert len(copies) == len(fragment.ensemble)
    assert all(len(codes) == len(copies[0]) for codes in copies)
    fills: list[Fill] = []
    moves: list[Move] = []
    silent: list[BookieId] = []
    for position, bookie in enumerate(fragment.ensemble):
        codes = copies[position]
        status = statuses.get(bookie, BookieStatus.LOST)
        lacks = runs_of(codes, _TO_REWRITE, fragment.first)
        if ReplicaState.NO_ANSWER in codes or status is BookieStatus.AWAY:
            silent.append(bookie)
        fillable = bookie not in unfillable and (status is not BookieStatus.READONLY or not spare)
        if why := _why_moved(status, codes, lacks=bool(lacks), fillable=fillable):
            held = runs_of(
                codes,
                [state for state in ReplicaState if state is not ReplicaState.NONE],
                fragment.first,
            )
            # A newcomer needs every entry of the position, not only those that the bookie lacks.
            moves.append(Move(position, bookie, tuple(held), why))
        elif lacks:
            fills.append(Fill(position, bookie, tuple(lacks)))
    # An entry without a copy is lost only if no bookie can still turn out to have it.
    known = _counted(copies, (ReplicaState.PRESENT,))
    hope = _counted(copies, (ReplicaState.NO_ANSWER, ReplicaState.DOUBTFUL))
    bare = (
        bytes(
            0 if n else (ReplicaState.NO_ANSWER if h else ReplicaState.LOST)
            for n, h in zip(known, hope, strict=True)
        )
        if 0 in known
        else b""
    )
    return FragmentReport(
        fragment,
        min(known, default=sum(_is_registered(statuses.get(b)) for b in fragment.ensemble)),
        tuple(fills),
        tuple(moves),
        tuple(silent),
        tuple(runs_of(bare, (ReplicaState.LOST,), fragment.first)),
        tuple(runs_of(bare, (ReplicaState.NO_ANSWER,), fragment.first)),
    )


def _why_moved(
    status: BookieStatus, codes: bytes | bytearray, *, lacks: bool, fillable: bool
) -> str:
    if status is BookieStatus.LOST:
        return "it is gone"
    if status is BookieStatus.LEAVING:
        return "it leaves the cluster"
    if ReplicaState.DAMAGED in codes:
        return "it has damaged copies"
    if lacks and not fillable:
        return "it lacks entries and does not take them"
    return ""


def _is_registered(status: BookieStatus | None) -> bool:
    return status in (BookieStatus.WRITABLE, BookieStatus.READONLY, BookieStatus.LEAVING)


def _counted(copies: Sequence[bytes | bytearray], which: Collection[ReplicaState]) -> bytes:
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


def bookies_of(metadata: LedgerMetadata) -> set[BookieId]:
    return {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}


def bytes_to_copy(metadata: LedgerMetadata, gone: Collection[BookieId]) -> int:
    """Estimate the bytes of payload to copy if these bookies are gone."""
    if not metadata.closed or metadata.last_entry_id < 0:
        return 0
    size = metadata.length / (metadata.last_entry_id + 1)
    quorums = metadata.quorums
    return round(
        sum(
            size * max(0, fragment.count) * quorums.write / quorums.ensemble
            for fragment in sealed_fragments(metadata)
            for bookie in fragment.ensemble
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
    """`newcomer` has all entries of `fragment` that `position` holds."""

    fragment: SealedFragment
    position: int
    newcomer: BookieId


def replace_bookie(replacement: Replacement) -> Decide:
    """Return the change of metadata; it is refused if the metadata have changed in the meantime."""
    fragment, position = replacement.fragment, replacement.position
    old = fragment.ensemble[position]

    def decide(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
        for number, now in enumerate(sealed_fragments(metadata)):
            if now.first != fragment.first:
                continue
            if now.ensemble[position] == replacement.newcomer:
                return Ruling.KEEP  # An earlier write, whose outcome was unknown, has been made.
            if now.ensemble[position] != old or replacement.newcomer in now.ensemble:
                return Ruling.REFUSE  # Another worker has changed it.
            if now.last > fragment.last:
                return Ruling.REFUSE  # The position holds more than was copied.
            ensemble = list(now.ensemble)
            ensemble[position] = replacement.newcomer
            fragments = list(metadata.fragments)
            fragments[number] = Fragment(now.first, tuple(ensemble))
            return replace(metadata, fragments=tuple(fragments))
        return Ruling.REFUSE  # No such fragment, or it is no longer sealed.

    return decide


def newcomers(fragment: SealedFragment, candidates: Sequence[BookieId]) -> list[BookieId]:
    """Return the candidates outside the ensemble: a bookie must count only once."""
    return [bookie for bookie in candidates if bookie not in fragment.ensemble]
