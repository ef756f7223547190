"""Every snippet of the README runs as it stands, on the addresses of a test cluster."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [code for language, code in BLOCKS if language == "sh"]
SERVICE = "pulsar://localhost:6650,localhost:6651"
PATIENCE_S = 600
FREE_PORTS = "--port 0 --admin-port 0 --zookeeper-port 0 --output json"
ENVIRON = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


def test_there_are_no_other_snippets() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    assert [len(PYTHON), len(SHELL)] == [2, 5]


def run(command: list[str], directory: Path, **environ: str) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**ENVIRON, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(cluster: StandaloneProcess, directory: Path, code: str) -> str:
    assert SERVICE in code
    script = directory / "snippet.py"
    script.write_text(code.replace(SERVICE, cluster.service_url))
    return run([sys.executable, str(script)], directory)


@pytest.mark.parametrize("number", [0, 1])
def test_produce_and_consume(cluster: StandaloneProcess, tmp_path: Path, number: int) -> None:
    assert "b'hello" in python(cluster, tmp_path, PYTHON[number])


def test_the_pipes(cluster: StandaloneProcess, tmp_path: Path) -> None:
    (code,) = [code for code in SHELL if "daybook produce" in code]
    shown = run(
        ["bash", "-euo", "pipefail", "-c", code],
        tmp_path,
        DAYBOOK_SERVICE_URL=cluster.service_url,
    )
    assert shown.strip() == "1000"


def test_a_cluster_is_started_broken_and_mended(tmp_path: Path) -> None:
    """The ports are free ones, the directory is the usual one."""
    (code,) = [code for code in SHELL if "daybook standalone" in code]
    install, start = code.strip().splitlines()
    assert install == "pip install ."
    (breaking,) = [code for code in SHELL if "daybook local" in code]
    with subprocess.Popen(
        ["bash", "-c", f"exec {start} {FREE_PORTS}"],
        cwd=tmp_path,
        env=ENVIRON,
        stdout=subprocess.PIPE,
        text=True,
    ) as cluster:
        assert cluster.stdout is not None
        try:
            ready = json.loads(cluster.stdout.readline())
            assert ready["dir"].endswith("daybook-data")
            shown = run(["bash", "-euo", "pipefail", "-c", breaking], tmp_path)
        finally:
            cluster.send_signal(signal.SIGINT)
        assert cluster.wait(PATIENCE_S) == 0
    assert re.search(r"^bookie-1 +running", shown, re.MULTILINE)
    states = re.findall(r"^broker-1 +(\w+)", shown, re.MULTILINE)
    assert states[-1] == "running"
    assert any(state != "running" for state in states[:-1])


def test_what_it_says_of_installing_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(re.findall(r"pip install '\.\[(\w+)\]'", README)) <= set(extras)
    for code, words in ((SHELL[0], "examples.flights"), (SHELL[1], "pytest")):
        assert words in run(["make", "-n", *code.split()[1:]], ROOT)


def test_the_files_that_it_names_are_there() -> None:
    named = re.findall(r"\(((?:docs|tools)/[\w./]*)\)", README)
    assert named
    assert all((ROOT / name).exists() for name in named)
