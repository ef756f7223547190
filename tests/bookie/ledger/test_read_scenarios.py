"""The read protocol, one scenario per table.

The left of the arrow has the inputs, the right the effects that the protocol returns: `b1?0` asks
bookie 1 for entry 0.  There is one fragment on b1 b2 b3 with write quorum 3, unless the first line
says otherwise.
"""

import pytest

from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.ledger.protocol.read import (
    Ask,
    Effect,
    Failed,
    Found,
    ReadProtocol,
    Verdict,
)

SCENARIOS = {
    "an entry is read from one bookie": """
        start               -> b1?0
        b1 has 0            -> found 0
    """,
    "then from the next one, whatever the first one says": """
        start               -> b1?0
        b1 has no 0         -> b2?0
        b2 knows nothing 0  -> b3?0
        b3 has 0            -> found 0
    """,
    "absent is what all of its write set say that they do not have": """
        start               -> b1?0
        b1 has no 0         -> b2?0
        b2 has no 0         -> b3?0
        b3 has no 0         -> absent 0
    """,
    "one unknown among denials is unknown": """
        start               -> b1?0
        b1 has no 0         -> b2?0
        b2 knows nothing 0  -> b3?0
        b3 has no 0         -> unknown 0
    """,
    "consecutive entries start at different bookies": """
        given 0 4           ->
        start               -> b1?0 b2?1 b3?2 b1?3
        b2 has 1            -> found 1
        b1 has 0            -> found 0
        b1 knows nothing 3  -> b2?3
        b3 has 2            -> found 2
        b2 has 3            -> found 3
    """,
    "a bookie that is preferred is asked for a run": """
        given 0 3 prefer b2 ->
        start               -> b2?0..2
    """,
    "those that failed lately are asked last": """
        given 0 2 avoid b1  ->
        start               -> b2?0..1
        b2 has no 0         -> b3?0
        b3 has no 0         -> b1?0
    """,
    "a run crosses fragments": """
        given 4 2 from 0 b1 b2 b3 from 5 b4 b2 b5 ->
        start               -> b2?4 b5?5
        b5 has no 5         -> b4?5
    """,
    "when it takes long others are asked, too, and the first answer counts": """
        start               -> b1?0
        slow                -> b2?0
        b2 has 0            -> found 0
        b1 has no 0         ->
    """,
    "a late answer may still decide": """
        start               -> b1?0
        slow                -> b2?0
        b2 has no 0         ->
        b1 has 0            -> found 0
        slow                ->
    """,
    "who was asked because it was slow is waited for": """
        start               -> b1?0
        slow                -> b2?0
        slow                -> b3?0
        b1 has no 0         ->
        b2 has no 0         ->
        b3 knows nothing 0  -> unknown 0
    """,
}


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_scenario(table: str) -> None:
    lines = [line.partition("->") for line in table.strip().splitlines()]
    rows = [(left.strip(), right.strip()) for left, _, right in lines]
    first, count, prefer, avoid = 0, 1, "", ""
    fragments = [Fragment(0, names("b1 b2 b3"))]
    if rows[0][0].startswith("given"):
        given, *froms = rows.pop(0)[0].removeprefix("given").split("from")
        given, _, avoid = given.partition("avoid")
        given, _, prefer = given.partition("prefer")
        first, count = map(int, given.split())
        if froms:
            fragments = [Fragment(int(f.split()[0]), names(f)[1:]) for f in froms]
    protocol = ReadProtocol(
        Quorums(3, 3, 2), fragments, first, count, prefer=names(prefer), avoid=names(avoid)
    )
    played = [(line, show(play(protocol, line))) for line, _ in rows]
    assert played == rows


def test_a_reader_is_done_when_every_entry_is_decided() -> None:
    protocol = ReadProtocol(Quorums(1, 1, 1), [Fragment(0, names("b1"))], 0, 2)
    protocol.start()
    play(protocol, "b1 has 0")
    assert not protocol.done
    play(protocol, "b1 has no 1")
    assert protocol.done


def names(text: str) -> tuple[BookieId, ...]:
    return tuple(BookieId(name) for name in text.split())


def play(protocol: ReadProtocol, line: str) -> list[Effect]:
    match line.split():
        case ["start"]:
            return protocol.start()
        case ["slow"]:
            return protocol.slow()
        case [bookie, "has", "no", entry_id]:
            return protocol.answered(BookieId(bookie), int(entry_id), Verdict.ABSENT)
        case [bookie, "has", entry_id]:
            return protocol.answered(BookieId(bookie), int(entry_id), Verdict.FOUND)
        case [bookie, "knows", "nothing", entry_id]:
            return protocol.answered(BookieId(bookie), int(entry_id), Verdict.UNKNOWN)
        case _:
            raise ValueError(line)


def show(effects: list[Effect]) -> str:
    shown: list[str] = []
    for effect in effects:
        match effect:
            case Ask(bookie, first, count):
                shown.append(f"{bookie}?{first}" + (f"..{first + count - 1}" * (count > 1)))
            case Found(entry_id):
                shown.append(f"found {entry_id}")
            case Failed(entry_id, absent):
                shown.append(f"{'absent' if absent else 'unknown'} {entry_id}")
    return " ".join(shown)
