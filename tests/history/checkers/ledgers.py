"""Ledgers, as an auditor of the metadata and of the bookies' disks sees them.

ledger-state      an end that changed, a state that went back, other quorums
ledger-fragments  they begin at 0, rise, have distinct bookies, and only the last one changes;
                  with auto-recovery the others change, too, one bookie at a time
ledger-list       grows at the end, shrinks in front; only the last two may be unclosed
unlisted          a message with a receipt is not in a ledger of the list, or behind its end
under-replicated  an entry of a closed ledger is on fewer bookies than the ack quorum, or than the
                  write quorum, if auto-recovery has reported that all lost copies were made again
copies-differ     two bookies have different payloads of one entry
length            a closed ledger's length is not the sum of its payloads; it may be less if the
                  last fragment is empty, because a recovery then closes without the last entry
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.history.events import (
    Copy,
    LedgerGone,
    LedgerVersion,
    ListGone,
    ListVersion,
    Replicated,
    Run,
)
from tests.history.record import Record, Violation, show

_OPEN, _RECOVERING, _CLOSED = "OPEN", "IN_RECOVERY", "CLOSED"
_NEXT = {
    _OPEN: (_OPEN, _RECOVERING, _CLOSED),
    _RECOVERING: (_RECOVERING, _CLOSED),
    _CLOSED: (_CLOSED,),
}


def check(record: Record) -> Iterator[Violation]:
    ledgers: dict[int, LedgerVersion] = {}
    lists: dict[str, ListVersion] = {}
    copies: dict[int, list[Copy]] = defaultdict(list)
    gone: dict[int, LedgerVersion] = {}
    auto_recovery = replicated = False
    for stamped in record.events:
        match stamped.event:
            case Run():
                auto_recovery = stamped.event.auto_recovery
            case Replicated():
                replicated = True
            case LedgerVersion(ledger):
                yield from _version(ledgers.get(ledger), stamped.event, auto_recovery)
                ledgers[ledger] = stamped.event
            case LedgerGone(ledger):
                if ledger in ledgers:
                    gone[ledger] = ledgers.pop(ledger)
            case ListVersion(topic):
                known = {**gone, **ledgers}
                yield from _list(lists.get(topic), stamped.event, known)
                lists[topic] = stamped.event
            case ListGone(topic):
                lists.pop(topic, None)
            case Copy(ledger):
                copies[ledger].append(stamped.event)
            case _:
                pass
    yield from _unlisted(record, lists, ledgers)
    for ledger, found in copies.items():
        if ledger in ledgers and ledgers[ledger].state == _CLOSED:
            yield from _copies(ledgers[ledger], found, replicated)


# -- metadata


def _version(
    before: LedgerVersion | None, after: LedgerVersion, auto_recovery: bool
) -> Iterator[Violation]:
    about = f"ledger {after.ledger}"
    yield from _fragments(after, about)
    if before is None:
        return
    what = f"version {before.version} to {after.version}"
    if after.state not in _NEXT[before.state]:
        yield Violation("ledger-state", "", about, f"{before.state} to {after.state}, {what}")
    if after.quorums != before.quorums:
        yield Violation("ledger-state", "", about, f"other quorums, {what}")
    if before.state == _CLOSED:
        if (after.last_entry, after.length) != (before.last_entry, before.length):
            text = f"the end {before.last_entry} became {after.last_entry}, {what}"
            yield Violation("ledger-state", "", about, text)
        if [first for first, _ in after.fragments] != [first for first, _ in before.fragments]:
            yield Violation("ledger-fragments", "", about, f"after closing, {what}")
        elif auto_recovery and _others(before, after) > 1:
            yield Violation("ledger-fragments", "", about, f"several bookies at once, {what}")
        return
    kept = len(before.fragments)
    firsts = [first for first, _ in after.fragments[:kept]]
    changed = after.fragments[: kept - 1] != before.fragments[: kept - 1]
    if changed and auto_recovery and before.state == after.state == _OPEN:
        # A bookie of a fragment that is not the last may be replaced; nothing else may change.
        rest = after.fragments[kept - 1 :] == before.fragments[kept - 1 :]
        changed = not rest or _others(before, after) > 1
    if changed or firsts != [first for first, _ in before.fragments]:
        yield Violation("ledger-fragments", "", about, f"an earlier one changed, {what}")
    if after.state == _RECOVERING and after.fragments != before.fragments:
        yield Violation("ledger-fragments", "", about, f"while it was recovered, {what}")
    if after.state == _OPEN and len(after.fragments) > len(before.fragments) + 1:
        yield Violation("ledger-fragments", "", about, f"several at a time, {what}")


def _others(before: LedgerVersion, after: LedgerVersion) -> int:
    """Count the places of the earlier fragments that have other bookies now."""
    pairs = zip(before.fragments, after.fragments, strict=False)
    return sum(a != b for (_, old), (_, new) in pairs for a, b in zip(old, new, strict=False))


def _fragments(version: LedgerVersion, about: str) -> Iterator[Violation]:
    firsts = [first for first, _ in version.fragments]
    if not firsts or firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
        yield Violation("ledger-fragments", "", about, f"they begin at {firsts}")
    for first, bookies in version.fragments:
        if len(set(bookies)) != version.quorums[0] or len(bookies) != version.quorums[0]:
            text = f"the one from {first} is on {', '.join(bookies)}"
            yield Violation("ledger-fragments", "", about, text)


def _list(
    before: ListVersion | None, after: ListVersion, ledgers: dict[int, LedgerVersion]
) -> Iterator[Violation]:
    topic = after.topic
    for ledger in after.ledgers[:-2]:
        known = ledgers.get(ledger)
        if known is not None and known.state != _CLOSED:
            text = f"{known.state}, and {after.ledgers[-2:]} come behind it"
            yield Violation("ledger-list", topic, f"ledger {ledger}", text)
    if before is None:
        return
    old, new = before.ledgers, after.ledgers
    kept = [ledger for ledger in old if ledger in new]
    if list(new[: len(kept)]) != kept:
        yield Violation("ledger-list", topic, f"version {after.version}", f"{old} became {new}")
    if not kept:
        return
    first, last = old.index(kept[0]), old.index(kept[-1])
    for position, ledger in enumerate(old):
        if ledger in new or position < first:
            continue
        known = ledgers.get(ledger)
        # The tail is the last two ledgers: a roll closes a ledger when its successor is listed
        # already.  If it closes empty, that end is final, so no receipt was or will be given for
        # it, and the list is as safe without it; earlier ledgers must have been dropped before.
        empty = known is None or (known.state == _CLOSED and known.last_entry < 0)
        if not empty or (position < last and position < len(old) - 2):
            text = f"dropped from the end of {old}, which became {new}"
            yield Violation("ledger-list", topic, f"ledger {ledger}", text)


def _unlisted(
    record: Record, lists: dict[str, ListVersion], ledgers: dict[int, LedgerVersion]
) -> Iterator[Violation]:
    for sending, position in record.oks():
        topic = sending.stored_in
        if topic not in lists or record.is_deleted(topic, sending.began_ns):
            continue
        if record.is_trimmed(topic, position):
            continue
        ledger, entry, _ = position
        where = f"its receipt says {show(position)}"
        if ledger not in lists[topic].ledgers:
            text = f"{where}, the list has {lists[topic].ledgers}"
            yield Violation("unlisted", topic, sending.value, text)
        elif ledger not in ledgers:
            yield Violation("unlisted", topic, sending.value, f"{where}, and the ledger is gone")
        elif ledgers[ledger].state == _CLOSED and entry > ledgers[ledger].last_entry:
            text = f"{where}, and the ledger ends at {ledgers[ledger].last_entry}"
            yield Violation("unlisted", topic, sending.value, text)


# -- copies


def _copies(version: LedgerVersion, copies: list[Copy], replicated: bool) -> Iterator[Violation]:
    owed = version.quorums[1] if replicated else version.quorums[2]
    by_entry: dict[int, list[Copy]] = defaultdict(list)
    for copy in copies:
        by_entry[copy.entry].append(copy)
    length, complete = 0, True
    for entry in range(version.last_entry + 1):
        about = f"ledger {version.ledger} entry {entry}"
        named = _write_set(version, entry)
        found = [c for c in by_entry[entry] if c.found == "yes" and c.bookie in named]
        if len(found) < owed:
            text = f"{len(found)} of {', '.join(named)} have it"
            yield Violation("under-replicated", "", about, text)
        if len({copy.digest for copy in found}) > 1:
            text = ", ".join(f"{copy.bookie}: {copy.digest}" for copy in found)
            yield Violation("copies-differ", "", about, text)
        complete = complete and bool(found)
        length += found[0].size if found else 0
    # The bookies that have the last entry may not have answered, if a later fragment is empty.
    estimated = version.fragments[-1][0] > version.last_entry and version.length < length
    if complete and length != version.length and not estimated:
        text = f"{version.length} in the metadata, {length} in the copies"
        yield Violation("length", "", f"ledger {version.ledger}", text)


def _write_set(version: LedgerVersion, entry: int) -> list[str]:
    bookies = [bookies for first, bookies in version.fragments if first <= entry][-1]
    ensemble, write_quorum, _ = version.quorums
    return [bookies[(entry + i) % ensemble] for i in range(write_quorum)]
