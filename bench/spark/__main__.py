"""`make bench-spark`: run the cases, print the tables, write them as JSON.

python -m bench.spark [--rows N] [--rounds N] [CASE ...]; without names all of them.  A case is a
function from `Sides` to `Found`; to measure something else, add a module with `CASES` to those
below.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from bench.peers.rows import Demand
from bench.spark import publishing, reading, streaming, writing
from bench.spark.lines import Found, asked, measured, processor
from bench.spark.sides import VALUE, Sides
from tests.interop.apache import spark_kafka_here

RESULTS = Path("bench/results/spark.json")
CASES: dict[str, Callable[[Sides], Found]] = {
    **reading.CASES,
    **streaming.CASES,
    **writing.CASES,
    **publishing.CASES,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark")
    parser.add_argument("--rows", type=int, default=2_000_000, help="messages of each topic")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each system that count")
    parser.add_argument(
        "--warm", type=float, default=25.0, help="seconds of each kind of turn that do not count"
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
    # An installed package has its bytecode: no process of the measurement should compile sources.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    console = Console(width=160)
    results: dict[str, object] = {"rows": arguments.rows, "bytes": len(VALUE)}
    demands: dict[str, Demand] = {}
    with (
        tempfile.TemporaryDirectory(prefix="daybook-spark-") as directory,
        Sides(
            Path(directory),
            rows=arguments.rows,
            rounds=arguments.rounds,
            warm_s=arguments.warm,
        ) as sides,
    ):
        results |= _versions(sides)
        for name in arguments.cases or CASES:
            began = time.monotonic()
            found = CASES[name](sides)
            for table in (measured(found.lines), processor(found.lines)):
                if table.row_count:
                    console.print(table)
            console.print(f"{name}: {time.monotonic() - began:.0f} s")
            demands |= found.demands
            results[name] = {
                "lines": [asdict(line) for line in found.lines],
                "asked": {what: asdict(demand) for what, demand in found.demands.items()},
            }
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    console.print(asked(demands))
    facts = {name: fact for name, fact in results.items() if isinstance(fact, str)}
    console.print(", ".join(f"{name} {fact}" for name, fact in facts.items()))
    console.print(f"written to {RESULTS}")


def _versions(sides: Sides) -> dict[str, str]:
    connector = spark_kafka_here()
    (clients,) = (path.stem for path in connector.jars.glob("kafka-clients-*.jar"))
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return {
        "Spark": sides.spark.version,
        "Spark's Kafka source": f"{connector.version} ({clients})",
        "Kafka": sides.kafka.version,
        "Java": java.partition('"')[2].partition('"')[0],
        "Python": platform.python_version(),
        "PyArrow": version("pyarrow"),
        "NumPy": version("numpy"),
        "machine": platform.platform(),
    }


if __name__ == "__main__":
    main()
