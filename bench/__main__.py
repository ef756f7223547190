"""`make bench`: run the cases, print the table, write it as JSON.

python -m bench [CASE ...]; without names all of them: standalone, and those of `ledger`,
`cases`, `flood`, `features`, `hand_over`, `typed` and `spark_write`.
"""

import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from bench import cases, features, flood, hand_over, ledger, spark_write, typed
from bench.cases import Figure, standalone_start
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire import interpreter

RESULTS = Path("bench/results")
CASES = {
    **ledger.CASES,
    **cases.CASES,
    **flood.CASES,
    **features.CASES,
    **hand_over.CASES,
    **typed.CASES,
    **spark_write.CASES,
}


def main(names: list[str]) -> int:
    console = Console()
    figures: list[Figure] = []
    chosen = names or ["standalone", *CASES]
    unknown = [n for n in chosen if n not in (*CASES, "standalone")]
    if unknown:
        console.print(f"there is no case {unknown[0]!r}: standalone, {', '.join(CASES)}")
        return 2
    console.print(interpreter.describe(), highlight=False)
    for name in chosen:
        console.print(f"running {name}")
        found = standalone_start() if name == "standalone" else _on_a_cluster(name)
        figures += found
        for figure in found:
            console.print(f"  {figure.name.strip()}: {_number(figure)} {figure.unit}")
    table = Table("what", "figure", "asked for", "", "note", title="daybook bench")
    for f in figures:
        met = "" if not f.target else "met" if f.good else "MISSED"
        table.add_row(f.name, f"{_number(f)} {f.unit}", f.target, met, f.note)
    console.print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "bench.json"
    facts = {"machine": platform.platform(), "python": interpreter.describe()}
    path.write_text(json.dumps({**facts, "figures": [asdict(f) for f in figures]}, indent=1))
    console.print(f"written to {path}")
    return 0


def _on_a_cluster(name: str) -> list[Figure]:
    """Run each case on a cluster of its own, so that no case affects another one."""
    with StandaloneProcess() as cluster:
        return trio.run(CASES[name], cluster)


def _number(figure: Figure) -> str:
    return f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
