"""The rules of one ledger (`safety.md` 1.1 and 1.7), over acknowledged and stored entries.

Each check is called after the steps that could break it, with decoded values, and raises
BrokenRuleError with the name of the rule.  S5 and W2 are checked when a bookie stores (`bookies`),
W4 when the writer acknowledges (`writer`).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TypeAlias

from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import Fragment, Quorums
from tests.model.ledger.clients import bookie_number
from tests.model.ledger.messages import length_at
from tests.model.ledger.metadata import show
from tests.model.search import BrokenRuleError

Facts: TypeAlias = Sequence[tuple[bool, frozenset[int]]]
"""For each bookie: whether the ledger is fenced there, and the entries that it holds."""

_MAY_FOLLOW = {
    LedgerState.OPEN: (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    LedgerState.IN_RECOVERY: (LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    LedgerState.CLOSED: (),
}


def check_ack(metadata: LedgerMetadata, facts: Facts, acked: int, entry_id: int) -> None:
    """Check an entry that the writer has just acknowledged; `acked` was the last one before."""
    if entry_id != acked + 1:
        raise BrokenRuleError("S7", f"e{entry_id} is acknowledged after e{acked}")
    if metadata.closed and entry_id > metadata.last_entry_id:
        end = metadata.last_entry_id
        raise BrokenRuleError("S8", f"e{entry_id} is acknowledged, but the ledger ends at {end}")
    check_copies(metadata, facts, entry_id, "S4")


def check_write(before: LedgerMetadata, after: LedgerMetadata, facts: Facts, acked: int) -> None:
    """Check a change of the record."""
    if before.closed and _end(before) != _end(after):
        raise BrokenRuleError("S2", f"{show(before)} becomes {show(after)}")
    if after.state not in _MAY_FOLLOW[before.state]:
        raise BrokenRuleError("S9", f"{show(before)} becomes {show(after)}")
    _check_fixed(before, after)
    _check_fragments(before, after, acked)
    if after.closed:
        if acked > after.last_entry_id:
            end = after.last_entry_id
            raise BrokenRuleError("S1", f"e{acked} was acknowledged, but the end is {end}")
        _check_length(before, after)
    for entry_id in range(max(acked, after.last_entry_id) + 1):
        check_copies(after, facts, entry_id, "S4" if entry_id <= acked else "S11")


def _end(metadata: LedgerMetadata) -> tuple[LedgerState, int, int]:
    return metadata.state, metadata.last_entry_id, metadata.length


def _check_fixed(before: LedgerMetadata, after: LedgerMetadata) -> None:
    """Check the fields that never change."""
    same = replace(
        after,
        state=before.state,
        fragments=before.fragments,
        last_entry_id=before.last_entry_id,
        length=before.length,
    )
    if same != before:
        raise BrokenRuleError("S9", "quorums, digest or password changed")


def _check_fragments(before: LedgerMetadata, after: LedgerMetadata, acked: int) -> None:
    starts = [fragment.first_entry_id for fragment in after.fragments]
    if starts[0] != 0 or any(later <= earlier for earlier, later in pairwise(starts)):
        raise BrokenRuleError("S10", f"fragments start at {starts}")
    for fragment in after.fragments:
        if len(set(fragment.ensemble)) != after.quorums.ensemble:
            raise BrokenRuleError("S10", f"an ensemble of {fragment.ensemble}")
    if before.fragments == after.fragments:
        return
    if after.fragments[: len(before.fragments) - 1] != before.fragments[:-1]:
        raise BrokenRuleError("S10", f"{show(before)} becomes {show(after)}")
    if after.state is LedgerState.IN_RECOVERY:
        raise BrokenRuleError("S10", "fragments are written during recovery, before it closes")
    if after.state is LedgerState.OPEN and starts[-1] != acked + 1:
        raise BrokenRuleError("S10", f"a fragment begins at e{starts[-1]}, the LAC is {acked}")


def _check_length(before: LedgerMetadata, after: LedgerMetadata) -> None:
    """The length is exact, or a lower bound if only bookies of an old fragment know it."""
    exact = length_at(after.last_entry_id)
    old = after.last_entry_id < before.last_fragment.first_entry_id
    if after.length != exact and not (old and after.length < exact):
        raise BrokenRuleError("S2", f"the length is {after.length}, but there are {exact} bytes")


def check_copies(metadata: LedgerMetadata, facts: Facts, entry_id: int, rule: str) -> None:
    """An ack quorum of the bookies that the metadata name for it hold the entry."""
    ensemble = metadata.ensemble_at(entry_id)
    write_set = [ensemble[position] for position in metadata.quorums.write_set(entry_id)]
    holders = [b for b in write_set if entry_id in facts[bookie_number(b)][1]]
    if not holders:
        raise BrokenRuleError(
            "S3" if rule == "S4" else rule, f"none of {'+'.join(write_set)} holds e{entry_id}"
        )
    if len(holders) < metadata.quorums.ack:
        raise BrokenRuleError(
            "S4", f"e{entry_id} is on {'+'.join(holders)}, of {'+'.join(write_set)}"
        )


def check_stored_lac(lac: int, acked: int) -> None:
    if lac > acked:
        raise BrokenRuleError("S6", f"a bookie stores LAC {lac}, acknowledged is e{acked}")


def check_fences(metadata: LedgerMetadata) -> None:
    """Check the metadata when a recovery begins to fence."""
    if metadata.state is LedgerState.OPEN:
        raise BrokenRuleError("W3", "a recovery fences a ledger whose metadata say OPEN")


def check_reads(metadata: LedgerMetadata, facts: Facts) -> None:
    """W1: when a recovery begins to read, the old writer can find no ack quorum."""
    if metadata.closed:
        return  # Another recovery was faster: this one no longer decides anything.
    fragment = metadata.last_fragment
    for write_set in write_sets(metadata.quorums, fragment):
        for ack_quorum in combinations(write_set, metadata.quorums.ack):
            if not any(facts[bookie][0] for bookie in ack_quorum):
                names = "+".join(f"b{bookie}" for bookie in ack_quorum)
                raise BrokenRuleError("W1", f"a recovery reads, but {names} are not fenced")


def write_sets(quorums: Quorums, fragment: Fragment) -> list[list[int]]:
    size = quorums.ensemble
    return [
        [bookie_number(fragment.ensemble[(first + i) % size]) for i in range(quorums.write)]
        for first in range(size)
    ]


def check_finished(now: LedgerMetadata, reported: LedgerMetadata) -> None:
    if _end(now) != _end(reported):
        raise BrokenRuleError("S12", f"{show(reported)} is reported, {show(now)} is stored")


def check_end(before: LedgerMetadata, version: int, marked_version: int) -> None:
    """A recovery closes the version that it has marked."""
    if before.state is LedgerState.IN_RECOVERY and version != marked_version:
        raise BrokenRuleError("W3", f"version {version} is closed, {marked_version} was marked")


def check_promise(metadata: LedgerMetadata, acked: int, lac: int) -> None:
    """Check the LAC up to which a reader may read."""
    end = metadata.last_entry_id if metadata.closed else acked
    if lac > end:
        what = "the end is" if metadata.closed else "acknowledged is"
        raise BrokenRuleError("S6", f"a reader is given LAC {lac}, {what} {end}")


def check_missed(now: LedgerMetadata, entry_id: int, then: LedgerMetadata | None) -> None:
    """Check a read of a confirmed entry that all bookies answered with "no such entry".

    If the fragments have changed since, a reader reads the metadata again.
    """
    if then is not None and now.fragments == then.fragments:
        raise BrokenRuleError("S13", f"e{entry_id} was promised to a reader, but is absent")
