"""docs/mutants.md: what caught each mutant the last time, and which are off."""

from pathlib import Path

from tests import tables
from tests.mutants.everything import ALL
from tests.mutants.layers import Catch
from tests.mutants.off import OFF
from tests.mutants.patch import Mutant

DOCUMENT = Path(__file__).parents[2] / "docs" / "mutants.md"
_HEAD = ("mutant", "rule -> what is made of it", "layer", "caught by", "after", "CPU s")
RULE, BY, _AFTER, _SECONDS = 1, 3, 4, 5
SURVIVES, CODE_CHANGED = MISSED = ("SURVIVES", "CODE CHANGED")
_TEXT = """\
# Mutants

Each breaks one rule of the code on purpose; some layer of the tests has to notice. `make mutants`
runs all of them, and `python -m tests.mutants --write` puts the outcome here, row by row (rows of
mutants that did not run stay as they are). Where they are defined, and what the layers are:
`tests/mutants/patch.py` and `tests/mutants/layers.py`. A mutant keeps a hash of the source that it
replaces: when that has changed, it fails, and somebody looks whether it still says what its rule
says.

The numbers from M01 to P79 are those of the catalogue that the project started from; the others
are rules of this code. "Caught by" is the rule that a schedule or a search broke, or the test that
failed first; "after" is which schedule it was, or how many states or tests were seen until then.
What has caught a mutant the last time is tried first.

"""


def last_catch(mutant_id: str) -> Catch | None:
    """What has caught it when it was put down."""
    row = tables.rows_of(DOCUMENT).get(mutant_id)
    return None if row is None or row[BY] in MISSED else Catch(row[BY], row[_AFTER])


def note(mutant: Mutant, by: str, after: str, seconds: float) -> None:
    """The row of this mutant; `by` is one of `MISSED` if nothing has caught it."""
    layer, _, what = mutant.caught_by.partition(":")
    if layer != "tests":  # of which the one that failed says enough
        layer = f"{layer} {what}".rstrip()
    rows = tables.rows_of(DOCUMENT) if DOCUMENT.exists() else {}
    rows[mutant.id] = (mutant.id, mutant.rule, layer, by, after, f"{seconds:.1f}")
    present = [rows[mutant_id] for mutant_id in ALL if mutant_id in rows]
    caught = sum(row[BY] not in MISSED for row in present)
    table = tables.aligned([_HEAD, *present], right=[_SECONDS])
    off = tables.aligned([("mutant", "why it is off"), *OFF.items()])
    DOCUMENT.write_text(
        f"{_TEXT}{tables.BEGIN}{table}{tables.END}\n\n"
        f"{len(present)} mutants of {len(ALL)}, {caught} caught.\n\n{off}"
    )
