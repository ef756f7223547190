"""The last catch of each mutant: `catches.jsonl`, and the table that is made of it."""

import json
from pathlib import Path
from typing import TypedDict

from tests import tables
from tests.mutants.everything import ALL
from tests.mutants.layers import Catch
from tests.mutants.off import OFF
from tests.mutants.patch import Mutant

CATCHES = Path(__file__).with_name("catches.jsonl")
SURVIVES, CODE_CHANGED = MISSED = ("SURVIVES", "CODE CHANGED")
_HEAD = ("mutant", "rule -> what the mutant makes of it", "layer", "caught by", "after", "CPU s")
_SECONDS = 5


class _Row(TypedDict):
    id: str
    by: str
    after: str
    cpu_s: float


def catches() -> dict[str, Catch]:
    """Return the last catch of each mutant that has run, by its id."""
    return {mutant_id: Catch(row["by"], row["after"]) for mutant_id, row in _rows().items()}


def last_catch(mutant_id: str) -> Catch | None:
    """Return what caught this mutant the last time, None if it never ran or survived."""
    catch = catches().get(mutant_id)
    return None if catch is None or catch.by in MISSED else catch


def note(mutant: Mutant, by: str, after: str, seconds: float) -> None:
    """Keep the outcome for this mutant; `by` is one of `MISSED` if nothing caught it."""
    rows = _rows()
    rows[mutant.id] = {"id": mutant.id, "by": by, "after": after, "cpu_s": round(seconds, 1)}
    lines = (json.dumps(rows[each], ensure_ascii=False) for each in ALL if each in rows)
    CATCHES.write_text("".join(f"{line}\n" for line in lines))


def table() -> str:
    """Return all mutants that ran with what caught them, and those that are off, in Markdown."""
    rows = _rows()
    shown = [
        (each.id, each.rule, _layer(each), row["by"], row["after"], f"{row['cpu_s']:.1f}")
        for each in ALL.values()
        if (row := rows.get(each.id)) is not None
    ]
    caught = sum(row["by"] not in MISSED for row in rows.values())
    off = tables.aligned([("mutant", "why it is off"), *OFF.items()])
    return (
        f"{tables.aligned([_HEAD, *shown], right=[_SECONDS])}\n"
        f"{len(shown)} mutants of {len(ALL)}, {caught} caught.\n\n{off}"
    )


def _layer(mutant: Mutant) -> str:
    layer, _, what = mutant.caught_by.partition(":")
    return layer if layer == "tests" else f"{layer} {what}".rstrip()


def _rows() -> dict[str, _Row]:
    rows: list[_Row] = [json.loads(line) for line in CATCHES.read_text().splitlines()]
    return {row["id"]: row for row in rows}
