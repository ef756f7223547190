"""Each rule about entries of ledgers has a history that breaks it, and only it."""

import pytest

from tests.history.check import check
from tests.history.events import Event, Run, decode, encode
from tests.history.ledger_events import (
    Append,
    Confirmed,
    Entries,
    LacSeen,
    LedgerCreate,
    LedgerDelete,
    LedgerEnd,
    LedgerRead,
    NoEntry,
    Recover,
    WriterStopped,
)
from tests.history.story import stamp

L, W = 7, "writer-1"
CREATE = LedgerCreate(L, W, (3, 3, 2))


def sent(*entries: int) -> list[Event]:
    """Return sends of ten bytes each."""
    return [Append(L, W, entry, f"d{entry}", 10) for entry in entries]


def end(last: int, who: str = W, how: str = "close", length: int | None = None) -> LedgerEnd:
    return LedgerEnd(L, who, last, 10 * (last + 1) if length is None else length, how)


def given(reader: str, *entries: int) -> Entries:
    return Entries(L, reader, entries[0], tuple(f"d{entry}" for entry in entries))


def read(*entries: int) -> list[Event]:
    """Return the read at the end."""
    return [*([given("auditor", *entries)] if entries else []), LedgerRead(L, "auditor")]


def good() -> list[Event]:
    """Return a history: a writer is killed with two entries in doubt; recovery keeps one."""
    return [
        CREATE,
        *sent(0, 1),
        Confirmed(L, W, 1),
        *sent(2, 3),
        LacSeen(L, "tail", 1),
        given("tail", 0, 1),
        Recover(L, "recoverer-1"),
        WriterStopped(L, W, "LedgerFencedError"),
        end(2, "recoverer-1", "recovery"),
        given("tail", 2),
        end(2, "tail", "read"),
        NoEntry(L, "random", 3),
        *read(0, 1, 2),
    ]


def rules(events: list[Event]) -> list[str]:
    return sorted({violation.rule for violation in check(stamp(events, Run()))})


def test_a_good_history_breaks_no_rule() -> None:
    assert rules(good()) == []


def test_every_event_is_read_as_it_was_written() -> None:
    for stamped in stamp([*good(), LedgerDelete(L, "recoverer-1")], Run()):
        assert decode(encode(stamped)) == stamped


ONE = [CREATE, *sent(0), Confirmed(L, W, 0)]
TWO = [CREATE, *sent(0, 1), Confirmed(L, W, 1)]

BAD: dict[str, tuple[list[str], list[Event]]] = {
    "recovery ends the ledger before what was confirmed": (
        ["lost-entry"],
        [*TWO, end(0, "r", "recovery"), *read(0)],
    ),
    "the last reader does not find what was confirmed": (
        ["lost-entry"],
        [*TWO, end(1), *read(0)],
    ),
    "the last reader did not begin at the beginning": (
        ["lost-entry"],
        [*TWO, end(1), *read(1)],
    ),
    "the last reader finds nothing": (["lost-entry"], [*ONE, end(0), *read()]),
    "an entry is confirmed behind the end": (
        ["late-confirm", "lost-entry"],
        [*ONE, *sent(1), end(0, "r", "recovery"), Confirmed(L, W, 1), *read(0)],
    ),
    "an entry has other bytes": (
        ["entry-changed"],
        [*ONE, end(0), Entries(L, "random", 0, ("x",)), *read(0)],
    ),
    "two readers see different bytes": (
        ["entry-changed"],
        [CREATE, *sent(0), given("one", 0), Entries(L, "two", 0, ("x",)), *read(0)],
    ),
    "an entry was never sent": (["entry-phantom"], [*ONE, given("tail", 0, 1), *read(0)]),
    "an entry comes before it is sent": (
        ["entry-phantom"],
        [CREATE, given("tail", 0), *sent(0), *read(0)],
    ),
    "the end is behind all that was sent": (["entry-phantom"], [*ONE, end(1), *read(0, 1)]),
    "a reader is given an entry twice": (
        ["entry-order"],
        [*TWO, given("tail", 0, 1), given("tail", 1), *read(0, 1)],
    ),
    "a reader is not given an entry": (
        ["entry-order"],
        [*TWO, *sent(2), given("tail", 0), given("tail", 2), *read(0, 1, 2)],
    ),
    "two recoverers find different ends": (
        ["end-changed"],
        [*ONE, *sent(1), end(0, "r1", "recovery"), end(1, "r2", "recovery"), *read(0)],
    ),
    "the length of a closed ledger changes": (
        ["end-changed"],
        [*ONE, end(0), end(0, "r", "recovery", length=9), *read(0)],
    ),
    "the length is not that of the entries": (["length"], [*ONE, end(0, length=9), *read(0)]),
    "what a reader has seen is behind the end": (
        ["read-lost"],
        [*ONE, *sent(1), given("tail", 0, 1), end(0, "r", "recovery"), *read(0)],
    ),
    "what a reader was told to be confirmed is behind the end": (
        ["read-lost"],
        [*ONE, *sent(1), LacSeen(L, "tail", 1), end(0, "r", "recovery"), *read(0)],
    ),
    "a reader is told of entries that nobody has sent": (
        ["lac-ahead"],
        [*ONE, LacSeen(L, "tail", 1), *sent(1), *read(0, 1)],
    ),
    "a bookie forgets a confirmed entry, and says so": (
        ["false-no"],
        [*ONE, NoEntry(L, "random", 0), *read(0)],
    ),
    "a bookie forgets an entry of a closed ledger": (
        ["false-no"],
        [CREATE, *sent(0), end(0, "r", "recovery"), NoEntry(L, "random", 0), *read(0)],
    ),
    "a ledger is not there though nobody deleted it": (
        ["false-no"],
        [*ONE, NoEntry(L, "random", -1), *read(0)],
    ),
    "a confirmation runs ahead of what was sent": (
        ["confirm-order"],
        [CREATE, *sent(0, 2), Confirmed(L, W, 2), *sent(1), *read(0, 1, 2)],
    ),
    "confirmations go back": (["confirm-order"], [*TWO, Confirmed(L, W, 0), *read(0, 1)]),
    "nobody reads the ledger in the end": (["unread-ledger"], [*ONE, end(0)]),
}


@pytest.mark.parametrize(("broken", "events"), BAD.values(), ids=BAD.keys())
def test_a_bad_history_breaks_its_rule(broken: list[str], events: list[Event]) -> None:
    assert rules(events) == broken


def test_what_is_deleted_need_not_be_found() -> None:
    gone: list[Event] = [LedgerDelete(L, "r"), NoEntry(L, "tail", -1), NoEntry(L, "tail", 0)]
    assert rules([*ONE, end(0), *gone]) == []


def test_an_advanced_writer_sends_in_any_order() -> None:
    assert rules([CREATE, *sent(1, 0), Confirmed(L, W, 1), end(1), *read(0, 1)]) == []


def test_a_ledger_whose_creator_never_heard_of_it_is_empty() -> None:
    assert rules([end(-1, "r", "recovery"), *read()]) == []
