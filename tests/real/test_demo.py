"""The demo itself, on a few rows, with the cluster kept: its output, and the cluster it leaves."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("demo")]

ROWS = 20_000
PATIENCE_S = 900.0
SCRIPT = Path(__file__).parents[2] / "tools" / "show_zookeeper.py"


@pytest.fixture
def demo(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-m", "examples.flights", "--rows", str(ROWS), "--keep"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=SCRIPT.parents[1],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        impatience = threading.Timer(PATIENCE_S, process.terminate)
        impatience.start()
        yield process
        impatience.cancel()
        process.terminate()


def test_the_demo_ends_well_and_its_cluster_can_be_looked_at(
    demo: "subprocess.Popen[str]",
) -> None:
    assert demo.stdout is not None
    said = ""
    for line in demo.stdout:
        said += line
        if SCRIPT.name in line:
            break
    found = re.search(r"show_zookeeper.py (\S+)", said)
    assert found is not None, said
    records = subprocess.run(
        [sys.executable, str(SCRIPT), found[1], "flights"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    ).stdout
    demo.send_signal(signal.SIGINT)
    said += demo.stdout.read()
    assert demo.wait(PATIENCE_S) == 0, said
    assert "verdict: all is well" in said
    assert not re.search(r"\b(WARN|ERROR|Traceback|Exception)\b", said), said

    # Recovery closed the killed broker's ledgers, and others were begun.
    assert "CLOSED, last entry" in records
    assert "pulsar/cursor = demo" in records
    assert records.count("owner: ") == 8  # four partitions of the topic, four of the totals
    assert "4 micro-batches, the owner of the target" in re.sub(r"[\s│]+", " ", said)

    picture = re.search(r"picture: (\S+)", said)
    assert picture is not None
    texts = [e.text for e in ElementTree.parse(picture[1]).iter() if e.text]
    assert any(text.startswith("broker killed") for text in texts)
