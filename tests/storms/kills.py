"""The mutants of the dispatchers, and which model finds which: `python -m tests.storms.kills`.

Each mutant runs against each model (`models`).  `kills.jsonl` keeps the first seed with which a
model has found it, and `docs/correctness.md` shows both as a table.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TypeAlias

from tests import tables
from tests.mutants.catalogue import MUTANTS
from tests.mutants.patch import Mutant, applied
from tests.storms.models import MODELS
from tests.storms.run import run_seeds

KILLS = Path(__file__).with_name("kills.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "correctness.md"
BEGIN, END = "<!-- mutants of the dispatchers -->\n", "<!-- end of the mutants -->"
SCHEDULES = 3_000  # for each mutant, with each model
_STORMS = ("storms:dispatch", "storms:key_shared")

Kills: TypeAlias = dict[str, dict[str, int]]
"""By mutant and model: the first seed that breaks a rule."""


def hunted() -> list[Mutant]:
    """Return the mutants that storms over subscriptions should find."""
    return [mutant for mutant in MUTANTS if mutant.caught_by in _STORMS]


def read_kills() -> Kills:
    rows = [json.loads(line) for line in KILLS.read_text().splitlines()]
    return {row["id"]: row["seeds"] for row in rows}


def table(kills: Kills) -> str:
    """Return which model finds which mutant, in Markdown; a number is the first seed that does."""
    head = ("mutant", "rule -> what the mutant makes of it", *MODELS)
    rows = [
        (each.id, each.rule, *(_seed(kills.get(each.id, {}), kind) for kind in MODELS))
        for each in hunted()
    ]
    sums = [sum(kind in found for found in kills.values()) for kind in MODELS]
    total = (f"{len(rows)}", "found", *map(str, sums))
    return tables.aligned([head, *rows, total], right=range(2, 2 + len(MODELS)))


def _seed(found: dict[str, int], kind: str) -> str:
    return str(found[kind]) if kind in found else ""


def hunt(mutant: Mutant, schedules: int) -> dict[str, int]:
    """Return the models that find a mutant, each with its first seed that breaks a rule."""
    found: dict[str, int] = {}
    with applied(mutant):
        for kind in MODELS:
            for failure in run_seeds(kind, 0, schedules).failures:
                found[kind] = failure.seed
    return found


def write(kills: Kills) -> None:
    lines = (json.dumps({"id": each, "seeds": seeds}) for each, seeds in kills.items())
    KILLS.write_text("".join(f"{line}\n" for line in lines))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table(kills)}{END}{rest.partition(END)[2]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storms.kills")
    parser.add_argument(
        "--schedules", type=int, default=SCHEDULES, help="for each mutant and model"
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these mutants; default: all")
    options = parser.parse_args()
    kills = read_kills() if KILLS.exists() else {}
    known = hunted()
    for mutant in known:
        if not options.ids or mutant.id in options.ids:
            found = kills[mutant.id] = hunt(mutant, options.schedules)
            print(f"{mutant.id:17} {found or 'SURVIVES'}  {mutant.rule}", flush=True)
            write({each.id: kills[each.id] for each in known if each.id in kills})
    return int(any(not seeds for seeds in kills.values()))


if __name__ == "__main__":
    sys.exit(main())
