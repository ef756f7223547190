"""Each broken rule is noticed; here in storms.  For all layers: `make mutants`."""

from pathlib import Path

import pytest

from daybook.bookie.ledger.protocol.placement import Quorums
from tests.mutants import document, invariants
from tests.mutants.catalogue import BY_ID, MUTANTS
from tests.mutants.everything import ALL
from tests.mutants.layers import hunt
from tests.mutants.patch import Edit, Mutant, SourceChangedError, applied, target_of

ROOT = Path(__file__).parents[2]
STORMS = [m.id for m in MUTANTS if m.caught_by.startswith("storms")]


@pytest.mark.parametrize("mutant_id", STORMS)
def test_a_broken_rule_is_noticed(mutant_id: str) -> None:
    """Try the storm that noticed it last time, according to the table; otherwise search for one."""
    assert hunt(BY_ID[mutant_id], document.last_catch(mutant_id)) is not None


@pytest.mark.parametrize("mutant_id", list(BY_ID))
def test_mutants_are_made_for_the_code_as_it_is(mutant_id: str) -> None:
    mutant = BY_ID[mutant_id]
    originals = [target_of(each).original for each in (mutant, *mutant.also)]
    with applied(mutant):
        for each, original in zip((mutant, *mutant.also), originals, strict=True):
            assert target_of(each).original is not original
    assert [target_of(each).original for each in (mutant, *mutant.also)] == originals


@pytest.mark.parametrize("mutant_id", [m.id for m in MUTANTS if m.caught_by.startswith("tests:")])
def test_the_tests_that_should_notice_are_there(mutant_id: str) -> None:
    what = BY_ID[mutant_id].caught_by.removeprefix("tests:").partition(" -k ")[0]
    for each in what.split():
        path, _, name = each.partition("::")
        where = ROOT / path
        assert where.is_dir() or f"def {name or 'test_'}" in where.read_text(), each


def test_the_catches_that_are_kept_are_of_mutants_that_exist_and_none_survives() -> None:
    for mutant_id, catch in document.catches().items():
        assert mutant_id in ALL
        assert catch.by not in document.MISSED


def test_every_invariant_is_broken_by_a_mutant_and_the_table_names_it() -> None:
    assert invariants.holes() == []
    assert all(f"| {each.id} " in invariants.table() for each in invariants.INVARIANTS)


def test_an_invariant_without_evidence_is_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = [
        invariants.Invariant("X1", "nobody breaks it"),
        invariants.Invariant("X2", "one that is gone does", ("nobody",), ("nowhere.py::test",)),
    ]
    monkeypatch.setattr(invariants, "INVARIANTS", lonely)
    assert invariants.holes() == [
        "X1: no mutant breaks it",
        "X2: no mutant breaks it",
        "X2: there is no mutant nobody",
        "X2: there is no test nowhere.py::test",
    ]


def test_a_mutant_of_code_that_has_changed_is_refused() -> None:
    mutant = Mutant(
        id="X",
        rule="",
        module="daybook.bookie.ledger.protocol.placement",
        name="Quorums.absent",
        replacement=Edit("self.gone", "1"),
        caught_by="storms:ledger",
    )
    with pytest.raises(SourceChangedError, match=r"'self\.gone' is there 0 x"), applied(mutant):
        pass
    assert Quorums(3, 3, 2).absent == 2
