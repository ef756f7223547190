"""The benchmark of topics beside Pulsar and Kafka runs, with each client and each system."""

import sys
from pathlib import Path

import pytest

from bench.brokers.cases import CASES, warm_up
from bench.brokers.lines import DAYBOOK, KAFKA, LIMIT, PULSAR, SYSTEMS, Lines
from bench.brokers.rounds import Run, Sizes

pytestmark = pytest.mark.interop

TINY = Sizes(rounds=1, first_s=0.3, warm_s=0.1, measure_s=0.3, backlog=3_000, relayed_bytes=1 << 20)
# Each client sends and reads, and each kind of sending that the Java programs know is in one case.
CHOSEN = (
    *("alone-1kb", "batched-100b", "fan-out", "python-own", "python-pulsar", "read-java"),
    *("read-own-one", "read-own-batches", "read-pulsar-one", "read-pulsar-batches"),
)


def test_each_client_measures_each_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYBOOK_BENCH_DIR", str(tmp_path))
    with Run(SYSTEMS, tmp_path, TINY, sys.executable, Lines()) as run:
        warm_up(run)
        for name in CHOSEN:
            CASES[name](run, name)
    for name in CHOSEN:
        lines = {line.figure: line for line in run.lines.all(name)}
        java = name in ("alone-1kb", "batched-100b", "fan-out", "read-java")
        expected = {DAYBOOK, PULSAR, *([KAFKA] if java else [])}
        figure = "p50, ms" if "p50, ms" in lines else "MB/s"
        found = lines[figure].values
        assert found.keys() - {LIMIT} == expected, name
        assert all(value[0] > 0 for value in found.values()), name
        assert lines["servers, us/message"].values.keys() == expected, name
        assert lines["servers waited"].values.keys() == expected, name
