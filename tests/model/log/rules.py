"""The rules of a log and its cursor (`safety.md` 1.3 and 1.4), from outside.

The oracle records what brokers have reported: the acknowledged appends with their order, the
acknowledgements of consumers, and their receipts.  The real decoders work out, from the records and
ledgers, the state that a cursor would recover if the log were opened now.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from daybook.managed_ledger.cursor_ledger import IN_RECORD, Recovered, add_ranges
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.records import cursor_path, log_path
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.batch import split_broker_metadata
from tests.model.log.seams import CURSOR, NAME
from tests.model.log.world import Ledger, World
from tests.model.search import BrokenRuleError

LIST = log_path(NAME)
CURSOR_RECORD = cursor_path(NAME, CURSOR)
Where: TypeAlias = tuple[int, int]
NOWHERE: Where = (-1, -1)


@dataclass(frozen=True, slots=True)
class Acked:
    value: int
    where: Where
    broker: int


@dataclass(frozen=True, slots=True)
class Oracle:
    """The reports so far.  `floors`: the position that each append under way has to come after.
    `flushes`: the entries acknowledged before each flush.  `receipts`: those with a receipt."""

    values: int = 0
    acked: tuple[Acked, ...] = ()
    floors: tuple[tuple[int, Where], ...] = ()
    consumed: tuple[tuple[Where, int], ...] = ()
    flushes: tuple[tuple[int, tuple[Where, ...]], ...] = ()
    receipts: tuple[Where, ...] = ()

    @property
    def last(self) -> Where:
        return max((each.where for each in self.acked), default=NOWHERE)


# -- the list


@lru_cache(maxsize=100_000)
def listed(world: World) -> tuple[tuple[int, int | None], ...]:
    """Return the ids of the ledgers on the list, with their lengths if it has them."""
    found = world.record(LIST)
    if found is None:
        return ()
    info = ManagedLedgerInfo.FromString(found.value)
    return tuple(
        (each.ledgerId, each.entries if each.HasField("entries") else None)
        for each in info.ledgerInfo
    )


def check_list(before: World, after: World, oracle: Oracle, *, trims: bool) -> None:
    """Check a write of the list."""
    old, new = [i for i, _ in listed(before)], [i for i, _ in listed(after)]
    kept = [ledger_id for ledger_id in old if ledger_id in new]
    if new[: len(kept)] != kept:
        raise BrokenRuleError("K3", f"the list was {old} and is {new}")
    gone = [ledger_id for ledger_id in old if ledger_id not in new]
    for ledger_id in gone:
        _check_gone(after, ledger_id, old, oracle, trims=trims)
    for ledger_id in new[:-2]:
        if after.ledger(ledger_id).end is None:
            raise BrokenRuleError("K3", f"ledger {ledger_id} of {new} is not closed")
    for ledger_id, entries in listed(after):
        end = after.ledger(ledger_id).end
        if entries is not None and end != entries - 1:
            raise BrokenRuleError(
                "K1", f"the list says {entries} entries of ledger {ledger_id}, its end is {end}"
            )


def _check_gone(
    world: World, ledger_id: int, old: list[int], oracle: Oracle, *, trims: bool
) -> None:
    """Check a ledger that has left the list: it is empty, or no longer needed.

    Without any cursor, entries that retention does not keep are not needed.
    """
    ledger = world.ledger(ledger_id)
    if ledger.end == -1:
        return
    acked = [each for each in oracle.acked if each.where[0] == ledger_id]
    cursor = recovered(world)
    if acked and not trims:
        raise BrokenRuleError("K1", f"ledger {ledger_id} has left the list with acked entries")
    if cursor is not None and any(not cursor.covers(each.where) for each in acked):
        raise BrokenRuleError("K5", f"ledger {ledger_id} has left the list; the cursor needs it")
    before, still = old[: old.index(ledger_id)], [each for each, _ in listed(world)]
    if any(each in still and world.ledger(each).end != -1 for each in before):
        raise BrokenRuleError("K6", f"ledger {ledger_id} has left the middle of the list")
    if ledger.end is None:
        raise BrokenRuleError("K6", f"ledger {ledger_id} has left the list, but is not closed")


def check_end(world: World, ledger_id: int, oracle: Oracle) -> None:
    """Check the end of a ledger that was closed."""
    end = world.ledger(ledger_id).end
    for each in oracle.acked:
        if each.where[0] == ledger_id and end is not None and each.where[1] > end:
            where = _show(each.where)
            raise BrokenRuleError("K1", f"{where} was acked, but its ledger ends at {end}")


def check_deleted(world: World, ledger_id: int) -> None:
    """Check a ledger that is deleted: neither the list nor the cursor's record names it."""
    ledger = world.ledger(ledger_id)
    if any(ledger_id == each for each, _ in listed(world)):
        raise BrokenRuleError("K5", f"ledger {ledger_id} is deleted, but the list names it")
    if ledger.of_cursor and pointer(world) == ledger_id:
        raise BrokenRuleError("C5", f"ledger {ledger_id} is deleted, but the cursor points to it")


def check_sent(ledger: Ledger, ledger_id: int) -> None:
    if not ledger.of_cursor and not ledger.listed:
        raise BrokenRuleError("K6", f"ledger {ledger_id} is written to, but was never listed")


def check_opened(world: World, ledger_id: int) -> None:
    """Check that a broker serves a listed ledger, even if the log has been taken over since."""
    if not world.ledger(ledger_id).listed:
        raise BrokenRuleError("K4", f"the log is served by ledger {ledger_id}, never listed")


def acks(world: World, oracle: Oracle, acked: Acked) -> Oracle:
    """Check an append that a broker acknowledges; return the oracle with it."""
    value, where = acked.value, acked.where
    ledger_id, entry_id = where
    ledger, ids = world.ledger(ledger_id), [each for each, _ in listed(world)]
    if not ledger.listed:
        raise BrokenRuleError("K4", f"{_show(where)} is acked, and the list is {ids}")
    if ledger_id not in ids and ledger.end is None:
        raise BrokenRuleError("K1", f"{_show(where)} is acked, and the list is {ids}")
    if ledger.end is not None and entry_id > ledger.end:
        raise BrokenRuleError("K1", f"{_show(where)} is acked, but its ledger ends at {ledger.end}")
    if not ledger.entries[entry_id].endswith(b"value %d" % value):
        raise BrokenRuleError("K1", f"{_show(where)} is not value {value}")
    floor = dict(oracle.floors).get(value, NOWHERE)
    if where < floor:
        raise BrokenRuleError(
            "K2", f"value {value} is at {_show(where)}, sent when {_show(floor)} was acked"
        )
    _check_offsets(world, oracle, where)
    return replace(
        oracle,
        acked=(*oracle.acked, acked),
        floors=tuple(each for each in oracle.floors if each[0] != value),
    )


def _check_offsets(world: World, oracle: Oracle, where: Where) -> None:
    """Check that offsets ascend with positions."""
    own = _offset(world, where)
    for each in oracle.acked:
        if (each.where < where) != (_offset(world, each.where) < own):
            raise BrokenRuleError("K2", f"offset {own} at {_show(where)} does not ascend")


def _offset(world: World, where: Where) -> int:
    data = world.ledger(where[0]).entries[where[1]]
    offset = split_broker_metadata(memoryview(data))[1]
    assert offset is not None
    return offset


# -- the cursor


@dataclass(frozen=True, slots=True)
class Knows:
    """The state that a cursor would recover."""

    mark_delete: Where
    acked: frozenset[Where]

    def covers(self, where: Where) -> bool:
        return where <= self.mark_delete or where in self.acked


def pointer(world: World) -> int | None:
    """Return the cursor's ledger; None if it has none, or there is no cursor."""
    found = world.record(CURSOR_RECORD)
    if found is None:
        return None
    ledger_id = ManagedCursorInfo.FromString(found.value).cursorsLedgerId
    return None if ledger_id == IN_RECORD else ledger_id


@lru_cache(maxsize=100_000)
def recovered(world: World) -> Knows | None:
    """Return the state that the cursor would recover; None if there is no cursor."""
    found = world.record(CURSOR_RECORD)
    if found is None:
        return None
    info = ManagedCursorInfo.FromString(found.value)
    lengths = {i: len(ledger.entries) for i, ledger in enumerate(world.ledgers, 1)}
    state = Recovered(lengths)
    ledger_id = pointer(world)
    if ledger_id is not None and not world.ledger(ledger_id).deleted:
        ledger = world.ledger(ledger_id)
        for entry in ledger.entries[: None if ledger.end is None else ledger.end + 1]:
            state.apply(entry)
    if state.mark_delete is None:
        state = Recovered(lengths)
        state.mark_delete = Position(info.markDeleteLedgerId, info.markDeleteEntryId)
        add_ranges(state.acked, info.individualDeletedMessages, lengths)
    mark = state.mark_delete
    single = [(i, e) for i, first, last in state.acked.ranges() for e in range(first, last + 1)]
    return Knows((mark.ledger_id, mark.entry_id), frozenset(single))


def check_cursor(before: World, after: World, oracle: Oracle) -> None:
    """Check the cursor after a change of records or ledgers."""
    was, now = recovered(before), recovered(after)
    if now is None:
        if was is not None:
            raise BrokenRuleError("C1", "the record of the cursor is gone")
        return
    if was is None:
        # The cursor may begin at an empty ledger that has left the list since: a smaller position.
        first = (min((i for i, _ in listed(after)), default=-1), -1)
        if now.acked or now.mark_delete[1] != -1 or now.mark_delete > first:
            raise BrokenRuleError("C6", f"a new cursor from the earliest is stored as {now}")
    elif now.mark_delete < was.mark_delete:
        raise BrokenRuleError("C1", f"the cursor was at {was.mark_delete}, now {now.mark_delete}")
    last = _last_entry(after)
    if now.mark_delete[1] >= 0 and now.mark_delete > last:
        raise BrokenRuleError("C1", f"the cursor is at {now.mark_delete}, the last entry at {last}")
    consumed = {where for where, _ in oracle.consumed}
    for where in _entries(after):
        if now.covers(where) and where not in consumed:
            raise BrokenRuleError("C2", f"{_show(where)} is skipped, but was not acknowledged")
    for where in oracle.receipts:
        if not now.covers(where):
            raise BrokenRuleError("C4", f"{_show(where)} is forgotten, but has a receipt")
    points = pointer(after)
    if points is not None and points != pointer(before) and not after.ledger(points).entries:
        raise BrokenRuleError("C5", f"the record points to ledger {points}, which is empty")


def _last_entry(world: World) -> Where:
    """Return the last entry of the log, which may have been trimmed since."""
    of_log = [(i, each) for i, each in enumerate(world.ledgers, 1) if not each.of_cursor]
    ends = [(i, len(each.entries) - 1) for i, each in of_log if each.entries]
    return max(ends, default=NOWHERE)


def _entries(world: World) -> Iterator[Where]:
    """Yield the entries of the log."""
    for ledger_id, _ in listed(world):
        ledger = world.ledger(ledger_id)
        count = len(ledger.entries) if ledger.end is None else ledger.end + 1
        for entry_id in range(count):
            yield ledger_id, entry_id


def check_handed_over(world: World, oracle: Oracle, broker: int) -> None:
    """Check that a clean close has stored all acknowledgements that the broker took."""
    now = recovered(world)
    for where, by in oracle.consumed:
        if by == broker and now is not None and not now.covers(where):
            raise BrokenRuleError("C3", f"closed without storing that {_show(where)} is acked")


def _show(where: Where) -> str:
    return f"{where[0]}:{where[1]}"
