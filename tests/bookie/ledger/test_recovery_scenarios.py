"""The recovery protocol, one scenario per table.

The left of the arrow has the inputs, the right the effects that the protocol returns: `b1?0` is a
fencing read of entry 0 at bookie 1, `b1+0` entry 0 written back there.  There is one fragment on b1
b2 b3 from entry 0, with write quorum 3 and ack quorum 2, one read at a time, unless the first line
says otherwise.  `b1 fenced 4 lac 3` is the answer of a bookie whose last entry is 4 and carries the
LAC 3; each entry has ten bytes.
"""

from itertools import permutations, product

import pytest

from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.ledger.protocol.read import Verdict
from daybook.bookie.ledger.protocol.recover import (
    Abort,
    CloseLedger,
    Drop,
    Effect,
    Fence,
    FencingRead,
    LastEntry,
    Phase,
    RecoverProtocol,
)
from daybook.bookie.ledger.protocol.write import ChangeEnsemble, Confirm, Send

SCENARIOS = {
    "a ledger without entries ends empty": """
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b2 fenced           -> b1?0
        b1 has no 0         -> b2?0 b3?0
        b2 has no 0         -> close at -1, 0 bytes
    """,
    "what one bookie holds is written back, with the LAC found at the start": """
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b2 fenced 0 lac 0   -> b2?1
        b2 has no 1         -> b1?1 b3?1
        b3 has 1            -> b1+1 b2+1 b3+1 lac 0
        b1 added 1          ->
        b2 added 1          -> confirm 1, b1?2
        b1 has no 2         -> b2?2 b3?2
        b3 has no 2         -> close at 1, 20 bytes
    """,
    "one copy is enough, also among denials": """
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b3 fenced           -> b1?0
        b1 has no 0         -> b3?0 b2?0
        b2 has 0            -> b1+0 b2+0 b3+0 lac -1
        b3 has no 0         ->
    """,
    "the last entry of a bookie is not read again": """
        start               -> fence b1 b2 b3
        b1 fenced 1 lac 0   ->
        b2 fenced           -> b1+1 b2+1 b3+1 lac 0
        b1 added 1          ->
        b2 added 1          -> confirm 1, b1?2
    """,
    "silence is no denial": """
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b2 fenced           -> b1?0
        b1 has no 0         -> b2?0 b3?0
        b3 knows nothing 0  ->
        b2 knows nothing 0  -> abort: no bookie can tell whether entry 0 was confirmed
    """,
    "too few bookies answer the fencing request": """
        start               -> fence b1 b2 b3
        b1 silent           ->
        b2 fenced           ->
        b3 silent           -> abort: too few bookies could be fenced; no answer from b1, b3
    """,
    "one that is silent delays nothing, and is asked last": """
        start               -> fence b1 b2 b3
        b1 silent           ->
        b3 fenced           ->
        b2 fenced           -> b2?0
        b2 has no 0         -> b3?0 b1?0
        b3 has no 0         -> close at -1, 0 bytes
    """,
    "the last answer may be the one that is missing for the fence": """
        start               -> fence b1 b2 b3
        b1 silent           ->
        b2 fenced           ->
        b3 fenced           -> b2?0
    """,
    "recovery begins where the last fragment does, if no bookie there knows more": """
        given 3 3 2 from 0 b1 b2 b3 from 5 b1 b4 b3 ->
        start               -> fence b1 b4 b3
        b4 fenced           ->
        b1 fenced 3 lac 2   -> b1?5
        b1 has no 5         -> b4?5 b3?5
        b4 has no 5         -> b1?4
        b1 has 4            -> close at 4, 50 bytes
    """,
    "an old entry that nobody can read now costs only its length": """
        given 3 3 2 from 0 b1 b2 b3 from 5 b1 b4 b3 ->
        start               -> fence b1 b4 b3
        b4 fenced           ->
        b1 fenced 3 lac 2   -> b1?5
        b1 has no 5         -> b4?5 b3?5
        b4 has no 5         -> b1?4
        b1 has no 4         -> b2?4 b3?4
        b3 knows nothing 4  ->
        b2 knows nothing 4  -> close at 4, 40 bytes
    """,
    "the length of a ledger that ends at the LAC is looked up": """
        start               -> fence b1 b2 b3
        b1 fenced 5 lac 2   ->
        b2 fenced 1 lac 0   -> b1?3
        b1 knows nothing 3  -> b2?3 b3?3
        b2 has no 3         ->
        b3 has no 3         -> b1?2
        b1 has 2            -> close at 2, 30 bytes
    """,
    "the largest LAC counts, and an answer that is not to be believed fences all the same": """
        start               -> fence b1 b2 b3
        b1 fenced 7 lac 6   ->
        b2 fenced 9 lac 4   -> b1+7 b2+7 b3+7 lac 6
    """,
    "nothing behind a missing entry is kept": """
        given reads 3       ->
        start               -> fence b1 b2 b3
        b1 fenced 2 lac -1  ->
        b2 fenced           -> b1?0 b2?1
        b1 has 0            -> b1+0 b2+0 b3+0 lac -1
        b2 has no 1         -> b1?1 b3?1
        b1 has no 1         -> drop 2
        b1 added 0          ->
        b3 added 0          -> confirm 0, close at 0, 10 bytes
    """,
    "entries are read ahead, and written back in order": """
        given reads 2       ->
        start               -> fence b1 b2 b3
        b1 fenced 2 lac -1  ->
        b2 fenced           -> b1?0 b2?1
        b2 has 1            ->
        b1 has 0            -> b1+0 b2+0 b3+0 lac -1, b1+1 b2+1 b3+1 lac -1
        b1 added 0          ->
        b3 added 0          -> confirm 0, b1+2 b2+2 b3+2 lac -1
    """,
    "reading goes one entry beyond the last one that was shown": """
        given reads 9       ->
        start               -> fence b1 b2 b3
        b1 fenced 1 lac 0   ->
        b2 fenced 0 lac -1  -> b1+1 b2+1 b3+1 lac 0, b1?2
        b1 has no 2         -> b2?2 b3?2
        b3 has 2            -> b1+2 b2+2 b3+2 lac 0, b1?3
    """,
    "an earlier last entry is no denial of a later entry": """
        given reads 9       ->
        start               -> fence b1 b2 b3
        b1 fenced 0 lac 0   ->
        b2 fenced 0 lac 0   -> b2?1
        b3 fenced 1 lac 0   ->
        b2 knows nothing 1  -> b1?1 b3?1
        b1 knows nothing 1  ->
        b3 has 1            -> b1+1 b2+1 b3+1 lac 0, b1?2
    """,
    "a bookie that takes nothing is replaced, in the closing write only": """
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b2 fenced           -> b1?0
        b1 has 0            -> b1+0 b2+0 b3+0 lac -1
        b3 failed           -> replace b3 from 0
        ensemble b1 b2 b4   -> b4+0 lac -1
        b4 added 0          ->
        b1 added 0          -> confirm 0, b2?1
        b2 has no 1         -> b1?1 b3?1
        b1 has no 1         -> close at 0, 10 bytes, b1 b2 b4 from 0
    """,
    "a change behind the end is not written": """
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b2 fenced           -> b1?0
        b1 has 0            -> b1+0 b2+0 b3+0 lac -1
        b1 added 0          ->
        b2 added 0          -> confirm 0, b2?1
        b3 failed           -> replace b3 from 1
        ensemble b1 b2 b4   ->
        b2 has no 1         -> b1?1 b3?1
        b1 has no 1         -> close at 0, 10 bytes
    """,
    "reads go to the fragment as it was at the start": """
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b2 fenced           -> b1?0
        b1 has 0            -> b1+0 b2+0 b3+0 lac -1
        b2 failed           -> replace b2 from 0
        ensemble b1 b4 b3   -> b4+0 lac -1
        b1 added 0          ->
        b4 added 0          -> confirm 0, b2?1
    """,
    "with nobody to replace it the others are enough": """
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b2 fenced           -> b1?0
        b1 has 0            -> b1+0 b2+0 b3+0 lac -1
        b3 failed           -> replace b3 from 0
        postponed           ->
        b1 added 0          ->
        b2 added 0          -> confirm 0, b2?1
    """,
    "with too few to write to recovery gives up": """
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b2 fenced           -> b1?0
        b1 has 0            -> b1+0 b2+0 b3+0 lac -1
        b3 failed           -> replace b3 from 0
        b2 failed           ->
        postponed           -> replace b2 b3 from 0
        postponed           -> abort: too few bookies take recovered entries; no answer from b2, b3
    """,
    "a change that does not bring enough is a reason, too": """
        given 3 3 3         ->
        start               -> fence b1 b2 b3
        b1 fenced           -> b1?0
        b1 has 0            -> b1+0 b2+0 b3+0 lac -1
        b3 failed           -> replace b3 from 0
        b2 failed           ->
        ensemble b1 b2 b4   -> b4+0 lac -1, replace b2 from 0
        postponed           -> abort: too few bookies take recovered entries; no answer from b2
    """,
    "with striping each write set has to be fenced": """
        given 3 2 2         ->
        start               -> fence b1 b2 b3
        b1 fenced           ->
        b2 fenced           -> b1?0
        b1 has no 0         -> close at -1, 0 bytes
    """,
}


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_scenario(table: str) -> None:
    protocol, lines = begin(rows(table))
    played = [(line, show(protocol, play(protocol, line))) for line, _ in lines]
    assert played == lines


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_a_restored_protocol_goes_on_as_the_original(table: str) -> None:
    for cut in range(len(rows(table))):
        protocol, lines = begin(rows(table))
        for line, _ in lines[:cut]:
            play(protocol, line)
        other, _ = begin(rows(table))
        other.restore(protocol.snapshot())
        assert other.canonical() == protocol.canonical()
        for line, expected in lines[cut:]:
            assert show(other, play(other, line)) == expected


@pytest.mark.parametrize("quorums", [Quorums(w, w, a) for w in (1, 2, 3) for a in range(1, w + 1)])
def test_every_combination_of_answers_about_one_entry(quorums: Quorums) -> None:
    """An entry is kept if a bookie has it, absent if no ack quorum can have it, else undecided."""
    bookies = tuple(BookieId(f"b{number}") for number in range(quorums.write))
    for verdicts in product(Verdict, repeat=quorums.write):
        for order in permutations(bookies):
            protocol = RecoverProtocol(quorums, [Fragment(0, bookies)], reads_max=1)
            effects = protocol.start()
            for bookie in bookies:
                effects += protocol.fence_answered(bookie, True)
            for bookie in order:
                verdict = verdicts[bookies.index(bookie)]
                effects += protocol.read_answered(bookie, 0, verdict, 10)
            heard = [verdicts[bookies.index(bookie)] for bookie in order]
            decided = [e for e in effects if isinstance(e, Send | CloseLedger | Abort)]
            assert [type(effect) for effect in decided] == [decision(quorums, heard)]


def decision(quorums: Quorums, heard: list[Verdict]) -> type[Effect]:
    """Decide by the meaning of the answers, in the order in which they come."""
    for count in range(1, len(heard) + 1):
        if heard[count - 1] is Verdict.FOUND:
            return Send
        may_have_it = quorums.write - heard[:count].count(Verdict.ABSENT)
        if may_have_it < quorums.ack:
            return CloseLedger
    return Abort


def test_reading_before_the_fence_is_complete_is_a_mistake() -> None:
    protocol, _ = begin([])
    protocol.start()
    protocol.fence_answered(BookieId("b1"), True)
    assert protocol.phase is Phase.FENCING
    with pytest.raises(AssertionError, match="the old writer cannot go on"):
        protocol._start_reading()


def begin(lines: list[tuple[str, str]]) -> tuple[RecoverProtocol, list[tuple[str, str]]]:
    quorums, fragments, reads = Quorums(3, 3, 2), [Fragment(0, names("b1 b2 b3"))], 1
    if lines and lines[0][0].startswith("given"):
        given, *froms = lines[0][0].removeprefix("given").split("from")
        if "reads" in given:
            reads = int(given.split()[1])
        elif given.split():
            quorums = Quorums(*map(int, given.split()))
        if froms:
            fragments = [Fragment(int(f.split()[0]), names(f)[1:]) for f in froms]
        lines = lines[1:]
    return RecoverProtocol(quorums, fragments, reads_max=reads), lines


def rows(table: str) -> list[tuple[str, str]]:
    lines = [line.partition("->") for line in table.strip().splitlines()]
    return [(left.strip(), right.strip()) for left, _, right in lines]


def names(text: str) -> tuple[BookieId, ...]:
    return tuple(BookieId(name) for name in text.split())


def play(protocol: RecoverProtocol, line: str) -> list[Effect]:
    match line.split():
        case ["start"]:
            return protocol.start()
        case [bookie, "fenced"]:
            return protocol.fence_answered(BookieId(bookie), True)
        case [bookie, "fenced", last, "lac", lac]:
            entry = LastEntry(int(last), int(lac), 10 * (int(last) + 1))
            return protocol.fence_answered(BookieId(bookie), True, entry)
        case [bookie, "silent"]:
            return protocol.fence_answered(BookieId(bookie), False)
        case [bookie, "has", "no", entry_id]:
            return protocol.read_answered(BookieId(bookie), int(entry_id), Verdict.ABSENT)
        case [bookie, "has", entry_id]:
            length = 10 * (int(entry_id) + 1)
            return protocol.read_answered(BookieId(bookie), int(entry_id), Verdict.FOUND, length)
        case [bookie, "knows", "nothing", entry_id]:
            return protocol.read_answered(BookieId(bookie), int(entry_id), Verdict.UNKNOWN)
        case [bookie, "added", entry_id]:
            return protocol.added(BookieId(bookie), int(entry_id))
        case [bookie, "failed"]:
            return protocol.add_failed(BookieId(bookie))
        case ["ensemble", *ensemble]:
            return protocol.ensemble_changed(tuple(map(BookieId, ensemble)))
        case ["postponed"]:
            return protocol.change_postponed()
        case _:
            raise ValueError(line)


def show(protocol: RecoverProtocol, effects: list[Effect]) -> str:
    shown: list[str] = []
    reads: list[str] = []
    for effect in effects:
        match effect:
            case FencingRead(bookie, first, 1):
                reads.append(f"{bookie}?{first}")
            case Fence(bookies):
                shown.append(f"fence {' '.join(bookies)}")
            case Send(first, 1, to):
                sends = " ".join(f"{bookie}+{first}" for bookie in to)
                shown.append(f"{sends} lac {protocol.lac}")
            case ChangeEnsemble(first, failed):
                shown.append(f"replace {' '.join(failed)} from {first}")
            case Confirm(first, 1):
                shown.append(f"confirm {first}")
            case Drop(entry_id):
                shown.append(f"drop {entry_id}")
            case CloseLedger(last, length, changes):
                fragments = [f"{' '.join(c.ensemble)} from {c.first_entry_id}" for c in changes]
                shown.append(", ".join([f"close at {last}, {length} bytes", *fragments]))
            case Abort(reason):
                shown.append(f"abort: {reason}")
            case _:
                raise ValueError(effect)
    return ", ".join(filter(None, [*shown, " ".join(reads)]))
