"""`make bench-peers TOPICS=1`: run the cases, print the tables, write them as JSON.

python -m bench.brokers [--quick] [--rounds N] [--systems "Daybook Pulsar"] [CASE ...]; without
names all cases and all systems.
"""

import argparse
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from bench import limit
from bench.brokers.cases import CASES, GROUPS, warm_up
from bench.brokers.lines import SYSTEMS, Lines, conditions, measured, warning
from bench.brokers.rounds import Run, Sizes
from daybook.wire import interpreter
from daybook.wire.version import __version__
from tests.interop.apache import kafka_here, pulsar_broker_here, pulsar_client_here

RESULTS = Path("bench/results/brokers.json")
# The systems store so much until `batched-1kb` ends: for the warm-up, and for each round.
_WARM_UP_GB, _ROUND_GB = 15, 8
_POLICIES = {os.SCHED_OTHER: "usual", os.SCHED_RR: "SCHED_RR", os.SCHED_FIFO: "SCHED_FIFO"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.brokers")
    parser.add_argument("--quick", action="store_true", help="run for three to four minutes")
    parser.add_argument("--rounds", type=int, help="turns of each system in each case")
    parser.add_argument(
        "--systems", default=" ".join(SYSTEMS), help=f"those to run, of {', '.join(SYSTEMS)}"
    )
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="CASE",
        help=f"the cases to run, all by default: {', '.join(CASES)}",
    )
    arguments = parser.parse_args()
    systems: list[str] = arguments.systems.split()
    for given, known in ((arguments.cases, CASES), (systems, SYSTEMS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            parser.error(f"there is no {unknown[0]!r}: {', '.join(known)}")
    sizes = Sizes.quick() if arguments.quick else Sizes()
    if arguments.rounds is not None:
        sizes = replace(sizes, rounds=arguments.rounds)
    free_gb = shutil.disk_usage(limit.data_dir()).free / 1e9
    needed_gb = _WARM_UP_GB + _ROUND_GB * sizes.rounds
    if free_gb < needed_gb:
        parser.error(
            f"{sizes.rounds} rounds take up to {needed_gb} GB in {limit.data_dir()}, of which"
            f" {free_gb:.0f} are free: make room, name another directory with DAYBOOK_BENCH_DIR, or"
            " run fewer rounds"
        )
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # not that ZooKeeper is not up yet
    # An installed package has its bytecode: no process of the measurement should compile sources.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # All systems end with the block below, also when somebody ends this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(width=200, highlight=False)
    results: dict[str, object] = {**facts(), **asdict(sizes), "systems": systems}
    for name, fact in results.items():
        console.print(f"{name}: {fact}")
    lines = Lines()
    for group in GROUPS:
        chosen = [name for name in group if name in (arguments.cases or CASES)]
        if chosen:
            _run_group(chosen, systems, sizes, lines, results, console)
    if len(arguments.cases) != 1:
        console.print(measured(lines.all(), systems))
    console.print(conditions(lines.all(), systems))
    if text := warning(lines.all()):
        console.print(text)
    console.print(f"written to {RESULTS}")


def _run_group(
    names: Sequence[str],
    systems: Sequence[str],
    sizes: Sizes,
    lines: Lines,
    results: dict[str, object],
    console: Console,
) -> None:
    """Run cases on new systems, which leave nothing on the disk."""
    with (
        tempfile.TemporaryDirectory(prefix="daybook-brokers-", dir=limit.data_dir()) as directory,
        Run(systems, Path(directory), sizes, sys.executable, lines) as run,
    ):
        settings = {name: system.settings for name, system in run.systems.items()}
        if "settings" not in results:
            for name, text in settings.items():
                console.print(f"{name}: {text}")
        results["settings"] = settings
        warm_up(run)
        for name in names:
            began = time.monotonic()
            CASES[name](run, name)
            console.print(f"{name}: {time.monotonic() - began:.0f} s, load {_load()}")
            console.print(measured(lines.all(name), systems))
            results["lines"] = [asdict(line) for line in lines.all()]
            results["load after"] = _load()
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def facts() -> dict[str, str]:
    """Return what the figures depend on: versions, the machine and how it schedules."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    (bookies,) = (p.stem for p in pulsar_broker_here().jars.glob("bookkeeper-server-*.jar"))
    policy = os.sched_getscheduler(0)
    return {
        "Daybook": __version__,
        "Python": interpreter.describe(),
        "Pulsar": f"{pulsar_broker_here().version} with {bookies}",
        "Pulsar's Java client": pulsar_client_here().version,
        "Pulsar's Python client": version("pulsar-client"),
        "Kafka": kafka_here().version,
        "Java": java.partition('"')[2].partition('"')[0],
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
        "scheduling": _POLICIES.get(policy, str(policy)),
        "load before": _load(),
    }


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main()
