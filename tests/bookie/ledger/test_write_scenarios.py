"""The write protocol, one scenario per table.

The left of the arrow has the inputs, the right the effects that the protocol returns; `b1+0` is
entry 0 sent to bookie 1, `b1+0..2` a run.  The ensemble is b1 b2 b3 with write quorum 3 and ack
quorum 2, unless the first line says otherwise.
"""

import pytest

from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.ledger.protocol.write import (
    ChangeEnsemble,
    Confirm,
    Effect,
    Send,
    Starved,
    Withdraw,
    WriteProtocol,
)

SCENARIOS = {
    "an entry is confirmed once its ack quorum holds it": """
        append              -> b1+0 b2+0 b3+0
        b1 added 0          ->
        b3 added 0          -> confirm 0
        b2 added 0          ->
    """,
    "confirmation goes in order": """
        append              -> b1+0 b2+0 b3+0
        append              -> b1+1 b2+1 b3+1
        b1 added 1          ->
        b2 added 1          ->
        b1 added 0          ->
        b2 added 0          -> confirm 0..1
    """,
    "answers and entries come in runs": """
        append 3            -> b1+0..2 b2+0..2 b3+0..2
        b1 added 0..2       ->
        b3 added 0..1       -> confirm 0..1
        b2 added 0..2       -> confirm 2
    """,
    "an entry goes to its write set only": """
        given 3 2 2         ->
        append 3            -> b1+0 b2+0 b2+1 b3+1 b3+2 b1+2
        b1 added 0          ->
        b2 added 0..1       -> confirm 0
        b1 added 2          ->
        b3 added 1..2       -> confirm 1..2
    """,
    "the LAC stands still while the ensemble changes": """
        append              -> b1+0 b2+0 b3+0
        b2 failed           -> replace b2 from 0
        b1 added 0          ->
        b3 added 0          ->
        ensemble b1 b4 b3   -> b4+0, confirm 0
    """,
    "a change starts a fragment behind the LAC": """
        append 2            -> b1+0..1 b2+0..1 b3+0..1
        b1 added 0          ->
        b3 added 0          -> confirm 0
        b2 failed           -> replace b2 from 1
        ensemble b1 b4 b3   -> b4+1
        b4 added 1          ->
        b3 added 1          -> confirm 1
    """,
    "an answer from a replaced bookie does not count": """
        append              -> b1+0 b2+0 b3+0
        b2 failed           -> replace b2 from 0
        ensemble b1 b4 b3   -> b4+0
        b2 added 0          ->
        b1 added 0          ->
        b4 added 0          -> confirm 0
    """,
    "losing a bookie can undo an ack quorum": """
        append 2            -> b1+0..1 b2+0..1 b3+0..1
        b1 added 1          ->
        b2 added 1          ->
        b2 failed           -> replace b2 from 0
        ensemble b1 b4 b3   -> b4+0..1
        b1 added 0          ->
        b3 added 0          -> confirm 0
        b2 added 1          ->
        b4 added 1          -> confirm 1
    """,
    "a bookie that fails during a change is replaced next": """
        append              -> b1+0 b2+0 b3+0
        b2 failed           -> replace b2 from 0
        b3 failed           -> starved b2 b3
        append              -> b1+1
        ensemble b1 b4 b3   -> b4+0..1, replace b3 from 0
        ensemble b1 b4 b5   -> b5+0..1
        b4 added 0          ->
        b5 added 0          -> confirm 0
    """,
    "a newcomer that takes no part in an entry is not sent it, and the entry is confirmed": """
        given 3 2 1         ->
        append 2            -> b1+0 b2+0 b2+1 b3+1
        b3 failed           -> replace b3 from 0
        b1 added 0          ->
        b2 added 1          ->
        ensemble b1 b2 b4   -> b4+1, confirm 0..1
    """,
    "without a spare the others go on, and nothing is sent to the missing one": """
        append              -> b1+0 b2+0 b3+0
        b2 failed           -> replace b2 from 0
        b1 added 0          ->
        b3 added 0          ->
        postponed           -> confirm 0
        append              -> b1+1 b3+1
        b1 added 1          ->
        b3 added 1          -> confirm 1
    """,
    "a returned bookie is left out while the others suffice": """
        append              -> b1+0 b2+0 b3+0
        b2 failed           -> replace b2 from 0
        postponed           ->
        b2 returned         ->
        append              -> b1+1 b3+1
    """,
    "a spare that turns up later takes the place of the missing one": """
        append              -> b1+0 b2+0 b3+0
        b2 failed           -> replace b2 from 0
        postponed           ->
        b1 added 0          ->
        b3 added 0          -> confirm 0
        append              -> b1+1 b3+1
        spare found         -> replace b2 from 1
        ensemble b1 b4 b3   -> b4+1
        spare found         ->
    """,
    "with too few left appends wait, and are sent again from the LAC on to one that returns": """
        append 2            -> b1+0..1 b2+0..1 b3+0..1
        b1 added 0          ->
        b3 added 0          -> confirm 0
        b2 failed           -> replace b2 from 1
        postponed           ->
        b3 failed           -> starved b2 b3, replace b2 b3 from 1
        postponed           ->
        append              -> b1+2
        b1 added 1..2       ->
        b2 returned         -> b2+1..2
        b2 added 1..2       -> confirm 1..2
        b3 returned         ->
        append              -> b1+3 b2+3
    """,
    "what a returned bookie has said to hold is not sent again": """
        append 3            -> b1+0..2 b2+0..2 b3+0..2
        b2 added 1          ->
        b2 failed           -> replace b2 from 0
        postponed           ->
        b3 failed           -> starved b2 b3, replace b2 b3 from 0
        postponed           ->
        b2 returned         -> b2+0 b2+2
    """,
    "a bookie that returns during a change is sent what waits": """
        append              -> b1+0 b2+0 b3+0
        b2 failed           -> replace b2 from 0
        b3 failed           -> starved b2 b3
        b3 returned         -> b3+0
        postponed           -> replace b2 from 0
        postponed           ->
        b3 added 0          ->
        b1 added 0          -> confirm 0
    """,
    "only some of the missing may be replaced": """
        append              -> b1+0 b2+0 b3+0
        b2 failed           -> replace b2 from 0
        b3 failed           -> starved b2 b3
        postponed           -> replace b2 b3 from 0
        ensemble b1 b4 b3   -> b4+0
        b1 added 0          ->
        b4 added 0          -> confirm 0
    """,
    "a ledger can begin with a bookie that is away": """
        given 3 3 2 without b2 ->
        append              -> b1+0 b3+0
        b1 added 0          ->
        b3 added 0          -> confirm 0
        spare found         -> replace b2 from 1
    """,
    "a fenced writer withdraws, and says which entries are in doubt": """
        append 2            -> b1+0..1 b2+0..1 b3+0..1
        b1 added 0          ->
        b2 added 0          -> confirm 0
        refused             -> withdraw, in doubt 1
        b1 added 1          ->
        b2 added 1          ->
        append              ->
    """,
    "a writer whose ledger is no longer open withdraws in the middle of a change": """
        append              -> b1+0 b2+0 b3+0
        b2 failed           -> replace b2 from 0
        refused             -> withdraw, in doubt 0
        ensemble b1 b4 b3   ->
        b1 added 0          ->
    """,
    "a stopped writer confirms nothing more": """
        append              -> b1+0 b2+0 b3+0
        b1 added 0          ->
        stop                -> withdraw, in doubt 0
        b2 added 0          ->
    """,
    "a stopped writer without appends leaves nothing in doubt": """
        stop                -> withdraw
    """,
}


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_scenario(table: str) -> None:
    protocol, lines = begin(rows(table))
    played = [(line, show(play(protocol, line))) for line, _ in lines]
    assert played == lines


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_a_restored_protocol_goes_on_as_the_original(table: str) -> None:
    for cut in range(len(rows(table))):
        protocol, lines = begin(rows(table))
        for line, _ in lines[:cut]:
            play(protocol, line)
        other, _ = begin(rows(table))
        other.restore(protocol.snapshot())
        for line, expected in lines[cut:]:
            assert show(play(other, line)) == expected


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_without_effects_it_is_the_same(table: str) -> None:
    protocol, lines = begin(rows(table))
    other, _ = begin(rows(table))
    for line, expected in lines:
        play(other, line)
        assert show(play_directly(protocol, line)) == expected
        assert protocol.snapshot() == other.snapshot()


def play_directly(protocol: WriteProtocol, line: str) -> list[Effect]:
    """Call the protocol's fast paths like a shell; each leaves no effect behind."""
    match line.split():
        case ["append", *number]:
            count = int(*number) if number else 1
            first = protocol.last_add_pushed + 1
            to = protocol.append_direct(count)
            if to is not None:
                return [Send(first, count, to)]
        case [bookie, "added", entries]:
            confirmed = protocol.added_direct(BookieId(bookie), *run(entries))
            return [Confirm(protocol.lac + 1 - confirmed, confirmed)] if confirmed else []
        case _:
            pass
    return play(protocol, line)


def test_the_canonical_form_of_a_withdrawn_writer_forgets_how_it_got_there() -> None:
    one, _ = begin([])
    other, _ = begin([])
    other.add_failed(BookieId("b1"))
    assert one.canonical() != other.canonical()
    one.stop()
    other.stop()
    assert one.canonical() == other.canonical()


def test_what_a_writer_says_of_itself() -> None:
    protocol, _ = begin([])
    assert not protocol.under_replicated
    protocol.add_failed(BookieId("b2"))
    protocol.change_postponed()
    assert protocol.under_replicated
    assert protocol.missing == ("b2",)
    assert not protocol.starved
    protocol.add_failed(BookieId("b1"))
    assert protocol.starved


def begin(lines: list[tuple[str, str]]) -> tuple[WriteProtocol, list[tuple[str, str]]]:
    quorums, missing = Quorums(3, 3, 2), ""
    if lines and lines[0][0].startswith("given"):
        numbers, _, missing = lines[0][0].removeprefix("given").partition("without")
        quorums = Quorums(*map(int, numbers.split()))
        lines = lines[1:]
    return WriteProtocol(bookies("b1 b2 b3"), quorums, missing=bookies(missing)), lines


def rows(table: str) -> list[tuple[str, str]]:
    lines = [line.partition("->") for line in table.strip().splitlines()]
    return [(left.strip(), right.strip()) for left, _, right in lines]


def bookies(names: str) -> tuple[BookieId, ...]:
    return tuple(BookieId(name) for name in names.split())


def run(text: str) -> tuple[int, int]:
    first, _, last = text.partition("..")
    return int(first), int(last or first) - int(first) + 1


def play(protocol: WriteProtocol, line: str) -> list[Effect]:
    match line.split():
        case ["append"]:
            return protocol.append()
        case ["append", count]:
            return protocol.append(int(count))
        case [bookie, "added", entries]:
            return protocol.added(BookieId(bookie), *run(entries))
        case [bookie, "failed"]:
            return protocol.add_failed(BookieId(bookie))
        case [bookie, "returned"]:
            return protocol.bookie_returned(BookieId(bookie))
        case ["ensemble", *names]:
            return protocol.ensemble_changed(tuple(map(BookieId, names)))
        case ["postponed"]:
            return protocol.change_postponed()
        case ["spare", "found"]:
            return protocol.spare_found()
        case ["refused"]:
            return protocol.refused("fenced")
        case ["stop"]:
            return protocol.stop()
        case _:
            raise ValueError(line)


def show(effects: list[Effect]) -> str:
    sends = [s for e in effects if isinstance(e, Send) for s in show_send(e)]
    rest = [show_one(e) for e in effects if not isinstance(e, Send)]
    return ", ".join(filter(None, [" ".join(sends), *rest]))


def show_send(send: Send) -> list[str]:
    return [f"{bookie}+{show_run(send.first, send.count)}" for bookie in send.to]


def show_run(first: int, count: int) -> str:
    return f"{first}" if count == 1 else f"{first}..{first + count - 1}"


def show_one(effect: Effect) -> str:
    match effect:
        case ChangeEnsemble(first_entry_id, failed):
            return f"replace {' '.join(failed)} from {first_entry_id}"
        case Confirm(first, count):
            return f"confirm {show_run(first, count)}"
        case Starved(missing):
            return f"starved {' '.join(missing)}"
        case Withdraw(first, count, _):
            return f"withdraw, in doubt {show_run(first, count)}" if count else "withdraw"
        case Send():
            raise AssertionError("shown elsewhere")
