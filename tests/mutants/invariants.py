"""The invariants of ledgers and bookies, and the mutants that break them.

S is about one ledger, seen from outside; B about one bookie; W about the single steps of the
machines, without which the others would hold by luck only.

A mutant is evidence for a rule if a storm or a search named the rule when it caught the mutant, or
if it is named here: it breaks that rule, and another rule or a test fails first.  `holes` finds
rules without any mutant, and names that no longer exist.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests import tables
from tests.model.cases import CASES
from tests.mutants import document
from tests.mutants.everything import ALL
from tests.mutants.layers import test_of

_HEAD = ("rule", "what holds", "mutants that break it", "noticed by")


@dataclass(frozen=True, slots=True)
class Invariant:
    """An invariant.  `mutants` break it, though another rule or test catches them."""

    id: str
    text: str
    mutants: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


LEDGER = [
    Invariant("S1", "no loss: a closed ledger ends at the last acknowledged entry, or behind it"),
    Invariant("S2", "once closed, state, end and length never change"),
    Invariant(
        "S3",
        "each acknowledged entry, and each up to the end, is on a bookie of its ensemble",
        ("M04", "M13"),
    ),
    Invariant("S4", "an ack quorum of its write set holds each acknowledged entry"),
    Invariant(
        "S5",
        "every read of an entry returns the bytes that were added",
        ("R03", "M56"),
        ("bookie/ledger/test_reader.py::test_dead_and_damaged_copies_are_passed_over",),
    ),
    Invariant("S6", "no LAC is ahead of the acknowledged entries, or of the end", ("F01",)),
    Invariant("S7", "acknowledgements come in the order of entries, without gaps", ("M18",)),
    Invariant("S8", "once a recovery has closed the ledger, its old writer confirms no more"),
    Invariant(
        "S9", "the metadata goes from open through in recovery to closed, by compare-and-swap"
    ),
    Invariant("S10", "fragments begin at 0 and are in order; a new one begins at LAC + 1"),
    Invariant("S11", "a recovery leaves no gap: every entry up to the end exists"),
    Invariant(
        "S12",
        "all recoveries that succeed report the same end",
        ("M10",),
        ("bookie/ledger/test_recovery.py::test_two_recoveries_at_once_find_the_same_end",),
    ),
    Invariant("S13", "an entry that a reader was promised stays readable while an ack quorum is"),
    Invariant(
        "S14",
        "no add to a deleted ledger is acknowledged, and it is never created again",
        ("M49", "B10", "B11", "B12"),
    ),
]
BOOKIE = [
    Invariant(
        "B1",
        "a bookie denies only entries that it never had, or that were deleted or moved",
        (
            "M43",
            "M43b",
            "M43c",
            "M43d",
            "M43e",
            "M44",
            "M50",
            "M52",
            "M52b",
            "M52c",
            "M55d",
            "RR37",
            "RR39",
            "M40h",
            "M40k",
            "M40l",
            "M52i",
        ),
    ),
    Invariant(
        "B2",
        "a fenced ledger never takes a plain add again",
        ("M33", "M33b", "M34", "M35", "M35b", "M37", "M39c", "M49", "RR26"),
    ),
    Invariant(
        "B3",
        "an acknowledged add, fence or LAC outlives a crash at any operation of the disk",
        ("M36d", "M36e", "M36f", "M53", "M54", "M55", "M55b", "M55c", "M57", "B01", "B02", "M51b"),
    ),
    Invariant("B4", "an entry keeps its first bytes; a LAC never goes back", ("M56b", "M56c")),
    Invariant(
        "B5",
        "a bookie serves if every directory and the store have its cookie",
        ("M39", "M40", "M40e", "M40h", "M40j"),
    ),
    Invariant(
        "B6",
        "after a loss absence is unknown, and ledgers are fenced, even after a crash",
        ("M37", "M41", "M43", "M43b", "M51d", "M52f", "M52h"),
    ),
    Invariant(
        "B7",
        "damage is an error: neither other bytes nor an absence",
        ("M44", "B05", "B08", "B08b", "B08c", "B08d"),
    ),
    Invariant(
        "B8",
        "a file is deleted when its live data is elsewhere, a ledger when its metadata is gone",
        (
            "M46b",
            "M46c",
            "M47",
            "M47b",
            "M47c",
            "M47d",
            "M48",
            "M51",
            "M51b",
            "M51c",
            "M51d",
            "M51e",
        ),
    ),
    Invariant(
        "B11",
        "a damaged index means limbo, then a rebuild; an entry missing in it is not absent",
        ("B11a", "B11b", "B11c", "B11d", "B11e", "B11f", "B11g", "B11h", "B11i", "B11j", "B11k"),
    ),
    Invariant("B9", "a ledger is read in the directory where it was written", ("M45",)),
]
STEPS = [
    Invariant("W1", "a recovery reads only when no ack quorum of any write set is unfenced"),
    Invariant("W2", "a bookie that has answered a fence is fenced, even for an unknown ledger"),
    Invariant("W3", "a recovery marks before it fences, and closes the version it has marked"),
    Invariant("W4", "the LAC stands still during a change; a replaced bookie does not count"),
    Invariant("W5", "a recovery uses the fragments of the version it has marked", ("M17 shell",)),
    Invariant("W6", "an answer that is neither an entry nor a denial decides nothing", ("M38",)),
    Invariant(
        "W7",
        "a write of metadata is applied, refused or in doubt, and handled as such",
        (
            "M59",
            "M60",
            "M59 create",
            "M60 create",
            "M59 list",
            "M60 list",
            "M60 silence",
            "M60 close",
        ),
    ),
]
INVARIANTS = [*LEDGER, *BOOKIE, *STEPS]


def mutants_of(invariant: Invariant) -> list[str]:
    """Return the mutants that the rule caught, or that are named for it, as in the catalogue."""
    by_search = {case.mutant.id for case in CASES if case.rule == invariant.id}
    catches = document.catches()
    return [
        mutant_id
        for mutant_id in ALL
        if mutant_id in by_search
        or mutant_id in invariant.mutants
        or (mutant_id in catches and catches[mutant_id].by == invariant.id)
    ]


def holes() -> list[str]:
    """Return the gaps and errors in the evidence."""
    return [f"{invariant.id}: {what}" for invariant in INVARIANTS for what in _holes(invariant)]


def _holes(invariant: Invariant) -> Iterator[str]:
    if not mutants_of(invariant):
        yield "no mutant breaks it"
    for mutant_id in invariant.mutants:
        if mutant_id not in ALL:
            yield f"there is no mutant {mutant_id}"
        elif document.last_catch(mutant_id) is None:
            yield f"nothing has caught {mutant_id} yet"
    for test in invariant.tests:
        if test_of(test) is None:
            yield f"there is no test {test}"


def table() -> str:
    """Return the invariants with their mutants and witnesses, in Markdown."""
    rows = [
        (each.id, each.text, ", ".join(mutants_of(each)), ", ".join(_witnesses(each)))
        for each in INVARIANTS
    ]
    return tables.aligned([_HEAD, *rows])


def _witnesses(invariant: Invariant) -> list[str]:
    """Return layers and tests, each once."""
    catches = document.catches()
    searched = {case.mutant.id for case in CASES}
    found: list[str] = []
    for mutant_id in mutants_of(invariant):
        layer = ALL[mutant_id].caught_by.partition(":")[0].split()[0]
        if layer != "tests":
            found.append(layer)
        elif mutant_id in catches:
            found.append(catches[mutant_id].by.partition("[")[0])
        if mutant_id in searched:
            found.append("model")
    return list(dict.fromkeys([*sorted(found, key=lambda by: "::" in by), *invariant.tests]))
