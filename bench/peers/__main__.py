"""`make bench-peers`: run the cases, print the table, write it as JSON.

python -m bench.peers [--quick] [--scale S] [CASE ...]; without names all of them.  The
result of a named case replaces its former result in `bench/results/peers.json`.
"""

import argparse
import json
import logging
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import limit
from bench.peers import failing, reading, writing
from bench.peers.rows import Row, Sizes
from bench.peers.sides import Bench
from tests.interop.apache import apache_here

RESULTS = Path("bench/results/peers.json")
_KEPT_GB = 20  # data that stay when the next case begins
_CASE_GB = 40  # the largest of the cases, at any size
CASES: dict[str, Callable[[Bench, Sizes], list[Row]]] = {
    "append-1kb": writing.append_1kb,
    "append-64kb": writing.append_64kb,
    "append-100b": writing.append_100b,
    "latency": writing.latency,
    "read": reading.sequential,
    "interleaved": reading.interleaved,
    "ledgers": writing.many_ledgers,
    "recovery": failing.recovery,
    "restart": failing.restart,
    "draining": reading.draining,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers")
    parser.add_argument(
        "--quick", action="store_true", help="run for about three minutes, without the mixed pairs"
    )
    parser.add_argument(
        "--scale", type=float, help="the share of the full sizes; 1 is 2, 5 and 10 GB"
    )
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="CASE",
        help=f"the cases to run, all by default: {', '.join(CASES)}",
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]!r}: {', '.join(CASES)}")
    sizes = Sizes.quick() if arguments.quick else Sizes()
    if arguments.scale is not None:
        sizes = replace(sizes, scale=arguments.scale)
    needed_gb = _KEPT_GB + _CASE_GB
    free_gb = shutil.disk_usage(limit.data_dir()).free / 1e9
    if free_gb < needed_gb:
        parser.error(
            f"this takes up to {needed_gb} GB in {limit.data_dir()}, of which {free_gb:.0f} are"
            " free: make room"
        )
    logging.getLogger("kazoo").setLevel(
        logging.ERROR
    )  # not that it is not up yet, nor that it ends
    console = Console()
    apache = apache_here()
    found: dict[str, list[Row]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="daybook-peers-", dir=limit.data_dir()) as directory,
        Bench(apache, Path(directory), first_s=sizes.first_s) as bench,
    ):
        for name in arguments.cases or CASES:
            if free_gb - shutil.disk_usage(directory).free / 1e9 > _KEPT_GB:
                bench.start_anew()
            started = time.monotonic()
            found[name] = CASES[name](bench, sizes)
            _write({name: found[name]}, sizes, apache.version)
            console.print(f"{name}: {time.monotonic() - started:.0f} s")
            for row in found[name]:
                console.print(" ", row.name.strip(), *_figures(row)[:-1], row.unit, row.note)
    rows = [row for some in found.values() for row in some]
    console.print(_measured(rows))
    console.print(_asked(rows))
    console.print(f"written to {RESULTS}")
    return 0


def _measured(rows: list[Row]) -> Table:
    title = "Apache BookKeeper's Java client and bookies, and ours"
    names = ("what", "", "Java pair", "ours", "ours on Apache's", "Java on ours", "limit")
    table = Table(*names, title=title)
    for row in rows:
        table.add_row(row.name, row.unit, *_figures(row))
    return table


def _asked(rows: list[Row]) -> Table:
    table = Table("what", "of that", "is", "asked", "", title="what was asked")
    for row in rows:
        for demand in row.demands:
            met = "" if not demand.asked else "met" if demand.met else "MISSED"
            table.add_row(row.name, demand.what, f"{demand.value:.2f}", demand.asked, met)
    return table


def _figures(row: Row) -> list[str]:
    figures = (row.java, row.ours, row.ours_on_apache, row.java_on_ours, row.limit)
    return ["-" if value is None else _number(value) for value in figures]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _write(found: dict[str, list[Row]], sizes: Sizes, version: str) -> None:
    """Write the results, together with those of cases that did not run this time."""
    cases: dict[str, object] = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else {}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for name, rows in found.items():
        cases[name] = {"run": when, **asdict(sizes), "rows": [asdict(row) for row in rows]}
    facts = {
        "machine": platform.platform(),
        "python": platform.python_version(),
        "bookkeeper": version,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({**facts, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
